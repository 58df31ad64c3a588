"""Validation scores that an evaluator releases for the weighting of other sites' models.

At level `exact` these are the counts of correct predictions by class; classes with few subjects are suppressed. At the
other levels they have noise and are charged to the privacy budget: correct and incorrect predictions by class,
or a sum of bounded losses. Scores may use a quarter of a study's budget, so that the evaluation remains possible;
after that the evaluator abstains. The centre averages the scores over evaluators and versions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from abaton.controller import LossWeighting, Strategy, ValidationWeighting
from abaton.disclosure.levels import DisclosureLevel
from abaton.disclosure.release_gate import Question, ReleaseGate
from abaton.errors import RefusedError
from abaton.metrics.counts import REGRESSION_SUMS, SURVIVAL_SUMS, Counts

ReleasedLoss = Literal["none", "mean", "relative"]
"""Loss that evaluators release: none, the mean, or the mean relative to the entropy of their own labels."""

INTERVAL = 5
"""Versions between evaluations at levels with noise."""

MAX_LOSS = 3.0
"""Loss of one subject in a sum with noise: a probability below 5 % for the true class counts as 5 %."""

MAX_SQUARED_ERROR = 4.0
"""Squared error of one subject in a sum with noise, in units of the scaled outcome."""

_BUDGET_SHARE = 0.25  # of the study's budget that scores may use


def with_mean_scores(strategy: Strategy, level: DisclosureLevel) -> Strategy:
    """Return the strategy for a disclosure level: with noise, mean scores of evaluations every fifth version.

    Settings of the study for `combination` and `interval` are kept; the author's own validation set is not scored.
    """
    if level is DisclosureLevel.EXACT or strategy.validation is None:
        return strategy
    factors = tuple(
        replace(
            factor, combination="mean", interval=max(factor.interval, INTERVAL), include_own_validation=False
        )
        if isinstance(factor, ValidationWeighting | LossWeighting) and factor.combination == "sum"
        else factor
        for factor in strategy.weighting
    )
    return replace(strategy, weighting=factors)


def suppress_counts(counts: Counts, threshold: int, loss: ReleasedLoss) -> Counts:
    """Return an evaluator's exact validation counts without classes below the threshold; nothing if none remains.

    A relative loss needs no counts of classes, so only the most frequent one is released with it.

    >>> suppress_counts((9, 2, 12, 4, 11, 5, 7.1), 5, "none")
    (9.0, 0.0, 12.0, 0.0, 9.0, 3.0)
    >>> suppress_counts((4, 20.0, 3.0, 9.0), 5, "none")
    ()
    """
    if not counts or len(counts) in (len(REGRESSION_SUMS), len(SURVIVAL_SUMS)):
        return counts if counts and counts[0] >= threshold else ()
    classes, has_loss = divmod(len(counts), 3)
    correct, actual = (np.array(counts[i * classes : (i + 1) * classes]) for i in range(2))
    is_released = actual >= threshold
    if loss == "relative":
        is_released &= np.arange(classes) == np.argmax(actual)
    if not is_released.any():
        return ()
    released = _complete(np.where(is_released, correct, 0), np.where(is_released, actual - correct, 0))
    if loss == "none" or not has_loss:
        return released
    mean_loss = counts[-1] / actual.sum()
    if loss == "relative":
        mean_loss /= _entropy(actual)
    return (*released, float(mean_loss * actual[is_released].sum()))


def noisy_counts(
    gate: ReleaseGate,
    question: Question,
    subjects: list[str],
    probabilities: NDArray[Any],
    labels: NDArray[np.int64],
    loss: ReleasedLoss,
) -> Counts:
    """Return an evaluator's validation counts with noise; nothing once scores have used their part of the budget.

    Args:
        gate: The site's release gate, at level `noisy`.
        question: What is scored; it names the model.
        subjects: Patient id of each validation row.
        probabilities: Predicted probabilities, one column per class.
        labels: Class of each row.
        loss: Loss that the study's weighting needs.
    """
    classes, ids = probabilities.shape[1], np.array(subjects, object)
    try:
        if loss == "none":
            _check_budget(gate, question)
            is_correct = probabilities.argmax(1) == labels
            cells = {
                f"{case}/{outcome}": ids[(labels == case) & mask].tolist()
                for case in range(classes)
                for outcome, mask in (("correct", is_correct), ("incorrect", ~is_correct))
            }
            released = gate.table(question, cells, sd=gate.settings.score_sd).values
            correct, incorrect = (
                np.array([max(0.0, released[f"{case}/{outcome}"]) for case in range(classes)])
                for outcome in ("correct", "incorrect")
            )
            return _complete(correct, incorrect) if correct.sum() + incorrect.sum() else ()
        cells = {str(case): ids[labels == case].tolist() for case in range(classes)}
        sizes = _released_sizes(gate, question.study, cells)
        actual = np.array([sizes[str(case)] for case in range(classes)])
        true_class = np.clip(probabilities[np.arange(len(labels)), labels], 1e-12, 1.0)
        total = _released_losses(gate, question, subjects, -np.log(true_class), MAX_LOSS)
    except RefusedError:
        return ()
    mean_loss = total / actual.sum()
    if loss == "relative":
        mean_loss /= _entropy(actual)
    return (*_complete(actual, np.zeros(classes)), float(mean_loss * actual.sum()))


def noisy_sums(
    gate: ReleaseGate,
    question: Question,
    subjects: list[str],
    losses: NDArray[Any],
    max_loss: float,
    length: int,
) -> Counts:
    """Return an evaluator's number of subjects and sum of bounded losses with noise, for regression and survival.

    Args:
        gate: The site's release gate, at level `noisy`.
        question: What is scored; it names the model.
        subjects: Patient id of each validation row.
        losses: Squared error or negative log likelihood of each row.
        max_loss: Bound of a subject's loss in the sum.
        length: Length of the counts; sums of the values are not released and are 0.
    """
    try:
        subjects_released = _released_sizes(gate, question.study, {"all": subjects})["all"]
        total = _released_losses(gate, question, subjects, losses, max_loss)
    except RefusedError:
        return ()
    return (subjects_released, total, *(0.0,) * (length - 2))


def _released_sizes(gate: ReleaseGate, study: str, cells: dict[str, list[str]]) -> dict[str, float]:
    """Return the released numbers of validation subjects that scores refer to, at least 1 each."""
    released = gate.table(Question("validation_sizes", study, {"cells": sorted(cells)}), cells)
    return {name: max(1.0, count) for name, count in released.values.items()}


def _released_losses(
    gate: ReleaseGate, question: Question, subjects: list[str], losses: NDArray[Any], max_loss: float
) -> float:
    """Return the released sum of bounded losses of a score, at least 0."""
    _check_budget(gate, question)
    bounded = np.clip(np.nan_to_num(losses, nan=max_loss), 0, max_loss).astype(np.float64)[:, None]
    released = gate.total(question, subjects, bounded, max_loss, gate.settings.score_sd)
    return max(0.0, float(released.vector[0]))


def _check_budget(gate: ReleaseGate, question: Question) -> None:
    """Refuse a score that would leave less than three quarters of the study's privacy budget for the evaluation."""
    cost = gate.cost(question, gate.settings.score_sd)
    if cost and gate.remaining(question.study) - cost < (1 - _BUDGET_SHARE) * gate.settings.study_budget:
        raise RefusedError("scores have used their part of the privacy budget")


def _complete(correct: NDArray[Any], incorrect: NDArray[Any]) -> Counts:
    """Return validation counts with predicted classes; incorrect ones are spread over the other classes."""
    classes = len(correct)
    predicted = correct.astype(float)
    for i, count in enumerate(incorrect):
        share, remainder = divmod(int(count), classes - 1)
        for index, j in enumerate(j for j in range(classes) if j != i):
            predicted[j] += share + (index < remainder)
    return tuple(float(n) for n in (*correct, *(correct + incorrect), *predicted))


def _entropy(actual: NDArray[Any]) -> float:
    """Return the entropy of an evaluator's labels, with half a subject added to each class."""
    frequencies = (actual + 0.5) / (actual.sum() + 0.5 * len(actual))
    return float(-frequencies @ np.log(frequencies))
