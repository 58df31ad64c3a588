"""Selection of evaluators for an update, and collection of their counts.

A model is evaluated by all other learners, by a random sample, or by a sample that covers the labels: of 32 seeded
samples the one is used whose labels, with the author's if included, are closest to the federation's by total variation.
The optimal subset is costly to find and would always be the same few evaluators.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from math import fsum

from abaton import training
from abaton.controller.events import Instruction, StartEvaluation
from abaton.controller.state import Contribution, ControllerState, LearnerInfo
from abaton.controller.strategies import Strategy
from abaton.controller.weighting import LossWeighting, ValidationWeighting
from abaton.metrics import counts as validation_counts
from abaton.metrics.counts import Counts

SAMPLES = 32
_LABEL = "evaluators"  # frozen: part of the bytes


def evaluation_id(task: str, evaluator: str) -> str:
    """Return the id of an evaluation by a selected evaluator: the model's task and the evaluator."""
    return f"{task}@{evaluator}"  # frozen: part of the bytes


def scored_task(evaluation: str, evaluator: str) -> str:
    """Return the task whose model a selected evaluator evaluates.

    >>> scored_task(evaluation_id("7.kos", "north@clinic"), "north@clinic")
    '7.kos'
    """
    return evaluation.removesuffix(f"@{evaluator}")


def request_evaluations(
    strategy: Strategy, state: ControllerState, contribution: Contribution
) -> tuple[Contribution, tuple[Instruction, ...]]:
    """Select evaluators if the weighting needs them; return the update with them, and the evaluations to start."""
    weighting = strategy.validation
    if weighting is None or contribution.is_final:
        return contribution, ()
    if contribution.version % weighting.interval:
        return contribution._replace(score=mean_score(state, contribution.update.learner)), ()
    task, author = contribution.update.task, contribution.update.learner
    evaluators = select_evaluators(weighting, state, strategy.seed, task, author)
    own_counts = (contribution.update.counts,) if weighting.include_own_validation else ()
    own_score = mean_score(add_scores(strategy, state, author, own_counts), author)
    pending = contribution._replace(
        pending_evaluators=frozenset(evaluators),
        evaluations_received=own_counts,
        counts=() if evaluators else validation_counts.combine_counts(own_counts),
        score=None if evaluators else own_score,
    )
    return pending, tuple(StartEvaluation(evaluation_id(task, name), name, task) for name in evaluators)


def add_evaluation(
    strategy: Strategy, state: ControllerState, task: str, evaluator: str, counts: tuple[float, ...] = ()
) -> ControllerState:
    """Add a selected evaluator's counts, empty if it failed; replies that are not pending change nothing.

    Implausible counts, and counts above what the evaluator declared when it joined, are treated as a failure.
    """
    contribution = state.awaiting_evaluation.get(task)
    if contribution is None or evaluator not in contribution.pending_evaluators:
        return state
    learner = state.present.get(evaluator)
    if learner is None or not are_counts_plausible(learner, counts):
        counts = ()
    evaluated = contribution._replace(
        pending_evaluators=contribution.pending_evaluators - {evaluator},
        evaluations_received=(*contribution.evaluations_received, counts),
    )
    if not evaluated.pending_evaluators:
        received: Sequence[Counts] = evaluated.evaluations_received
        if strategy.is_capped:
            received, is_reduced = validation_counts.cap_largest_counts(received)
            state = state._replace(capped_evaluations=state.capped_evaluations + is_reduced)
        if strategy.validation is not None and strategy.validation.combination == "mean":
            author = contribution.update.learner
            state = add_scores(strategy, state, author, received)
            evaluated = evaluated._replace(score=mean_score(state, author))
        evaluated = evaluated._replace(
            evaluations_received=(), counts=validation_counts.combine_counts(received)
        )
    return state._replace(awaiting_evaluation=state.awaiting_evaluation.set(task, evaluated))


def add_scores(
    strategy: Strategy, state: ControllerState, author: str, received: Sequence[Counts]
) -> ControllerState:
    """Add the evaluators' scores of a learner's model; an evaluator without a score adds none."""
    factor = next(factor for factor in strategy.weighting if factor.validation is not None)
    assert factor.validation is not None
    score_of = factor.score if isinstance(factor, LossWeighting) else factor.validation.score
    scores = [score for counts in received if (score := score_of(counts)) is not None]
    total, number = state.scores.get(author, (0.0, 0))
    total_after = (total + fsum(scores), number + len(scores))
    return state._replace(scores=state.scores.set(author, total_after))


def mean_score(state: ControllerState, learner: str) -> float | None:
    """Return the mean score of a learner's models over evaluators and versions; None without a score."""
    total, number = state.scores.get(learner, (0.0, 0))
    return total / number if number else None


def are_counts_plausible(learner: LearnerInfo, counts: Counts) -> bool:
    """Return whether an evaluator can have these counts, by what it declared when it joined."""
    return (
        validation_counts.is_plausible(counts, learner.labels)
        and validation_counts.count_examples(counts) <= learner.max_examples
    )


def fully_evaluated(state: ControllerState, tasks: Iterable[str]) -> list[Contribution]:
    """Return the updates of these tasks whose evaluations are complete, in order of arrival."""
    known = (state.awaiting_evaluation.get(task) for task in tasks)
    done = [
        contribution
        for contribution in known
        if contribution is not None and not contribution.pending_evaluators
    ]
    return sorted(done, key=lambda contribution: (contribution.update.timestamp, contribution.update.task))


def select_evaluators(
    weighting: ValidationWeighting, state: ControllerState, seed: int, task: str, author: str
) -> list[str]:
    """Select the evaluators of one learner's model, sorted by name."""
    candidates = sorted(name for name in state.present if name != author)
    count = weighting.evaluators
    if count is None or count >= len(candidates):
        return candidates
    if weighting.evaluator_selection == "random":
        return sorted(training.seeded_sample(candidates, count, seed, _LABEL, task))
    samples = [
        sorted(training.seeded_sample(candidates, count, seed, _LABEL, task, i)) for i in range(SAMPLES)
    ]
    own_labels = (
        state.present[author].labels if weighting.include_own_validation and author in state.present else ()
    )
    return min(samples, key=lambda sample: _distance(state, own_labels, sample))


def _distance(state: ControllerState, own_labels: Counts, sample: Sequence[str]) -> float:
    labels = sum_label_counts([own_labels, *(state.present[name].labels for name in sample)])
    return round(label_distance(labels, state.labels), 9)  # equally good samples must compare as equal


def sum_label_counts(counts: Iterable[Counts]) -> Counts:
    """Return the sum of label counts, for evaluators that cover all labels; a missing class counts 0.

    >>> sum_label_counts([(1, 2), (3, 0, 5)])
    (4, 2, 5)
    """
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))


def label_distance(first: Counts, second: Counts) -> float:
    """Return the total variation distance of evaluators' labels from all labels: 0 if equal, 1 if disjoint.

    >>> label_distance((2, 2), (5, 5)), label_distance((3, 0), (0, 0, 4))
    (0.0, 1.0)
    """
    first_total, second_total = sum(first) or 1, sum(second) or 1
    pairs = zip_longest(first, second, fillvalue=0)
    return sum(abs(a / first_total - b / second_total) for a, b in pairs) / 2
