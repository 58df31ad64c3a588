"""Validation scores that evaluators release: exact and suppressed, or with noise and within the privacy budget."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from abaton.controller import LossWeighting, Strategy, SynchronousScheduler, ValidationWeighting
from abaton.disclosure.levels import DisclosureLevel, NoiseSettings
from abaton.disclosure.release_gate import Question, ReleaseGate
from abaton.disclosure.release_register import ReleaseRegister
from abaton.metrics.counts import accuracy, is_plausible, relative_loss
from abaton.metrics.predictions import validation_counts
from abaton.study_run.validation_scores import INTERVAL, noisy_counts, suppress_counts, with_mean_scores

NOW = datetime(2026, 3, 5, 12, tzinfo=UTC)
LARGE = NoiseSettings(study_budget=1e6, yearly_budget=1e6)


def _gate(folder: Path, settings: NoiseSettings = LARGE) -> ReleaseGate:
    register = ReleaseRegister(folder / "site.releases", folder / "site.releases.key")
    return ReleaseGate(register, DisclosureLevel.NOISY, settings, lambda: NOW)


def _validation_set(rows: int, seed: int = 0, classes: int = 2):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    logits = rng.normal(size=(rows, classes)) + 1.5 * np.eye(classes)[labels]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return [f"patient {i}" for i in range(rows)], probabilities, labels


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_noisy_counts_are_plausible_and_average_to_the_score(tmp_path: Path, classes: int) -> None:
    gate = _gate(tmp_path)
    subjects, probabilities, labels = _validation_set(200, classes=classes)
    scores = []
    for model in range(300):
        counts = noisy_counts(
            gate, Question("score", "s", {"model": model}), subjects, probabilities, labels, "none"
        )
        assert is_plausible(counts)
        scores.append(accuracy(counts))
    expected = float((probabilities.argmax(1) == labels).mean())
    assert np.mean(scores) == pytest.approx(expected, abs=4 * np.std(scores) / np.sqrt(len(scores)) + 0.005)
    assert np.std(scores) > 0.01  # the noise is there


def test_noisy_losses_average_to_the_relative_loss(tmp_path: Path) -> None:
    gate = _gate(tmp_path)
    subjects, probabilities, labels = _validation_set(300)
    losses = []
    for model in range(300):
        question = Question("score", "s", {"model": model})
        counts = noisy_counts(gate, question, subjects, probabilities, labels, "relative")
        assert is_plausible(counts)
        losses.append(relative_loss(counts, is_relative=True))
    loss = float(-np.log(probabilities[np.arange(len(labels)), labels]).mean())
    exact = relative_loss(validation_counts(probabilities, labels, loss))
    assert np.mean(losses) == pytest.approx(exact, abs=0.05)


def test_an_answer_is_repeated_and_abstains_after_a_quarter_of_the_budget(tmp_path: Path) -> None:
    gate = _gate(tmp_path, NoiseSettings())
    subjects, probabilities, labels = _validation_set(60)
    questions = [Question("score", "s", {"model": model}) for model in range(20)]
    answers = [
        noisy_counts(gate, question, subjects, probabilities, labels, "none") for question in questions
    ]
    assert [bool(answer) for answer in answers] == [True] * 12 + [False] * 8  # 12 answers cost 12/50 = .24
    again = noisy_counts(gate, questions[3], subjects[:-1], probabilities[:-1], labels[:-1], "none")
    assert again == answers[3]
    assert gate.remaining("s") == pytest.approx(0.76)


def test_exact_counts_lose_only_classes_below_the_threshold() -> None:
    assert suppress_counts((40, 9, 50, 12, 43, 19), 10, "none") == (40.0, 9.0, 50.0, 12.0, 43.0, 19.0)
    assert suppress_counts((40, 9, 50, 9, 40, 19), 10, "none") == (40.0, 0.0, 50.0, 0.0, 40.0, 10.0)
    assert suppress_counts((4, 3, 5, 4, 5, 4), 10, "none") == ()
    relative = suppress_counts((90, 0, 90, 10, 100, 0, 33.0), 10, "relative")
    frequencies = np.array([90.5, 10.5]) / 101
    assert relative[-1] == pytest.approx(0.33 / -(frequencies @ np.log(frequencies)) * 90)


def test_with_noise_the_strategy_averages_scores_at_an_interval() -> None:
    strategy = Strategy(scheduler=SynchronousScheduler(), weighting=(ValidationWeighting("mcc"),), rounds=9)
    assert with_mean_scores(strategy, DisclosureLevel.EXACT) == strategy
    for level in (DisclosureLevel.NOISY, DisclosureLevel.SUMMED):
        validation = with_mean_scores(strategy, level).validation
        assert validation == ValidationWeighting(
            "mcc", include_own_validation=False, combination="mean", interval=5
        )
    by_loss = Strategy(scheduler=SynchronousScheduler(), weighting=(LossWeighting(k=2.0),), rounds=9)
    (factor,) = with_mean_scores(by_loss, DisclosureLevel.NOISY).weighting
    assert isinstance(factor, LossWeighting)
    assert (factor.k, factor.combination, factor.interval) == (2.0, "mean", INTERVAL)
