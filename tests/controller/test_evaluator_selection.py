"""Random selection of evaluators, and selection by label coverage."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from tests.controller.test_state_machine import of_type, update_for

from abaton.controller import (
    ControllerState,
    LearnerJoined,
    LearnerLeft,
    StartEvaluation,
    Strategy,
    ValidationWeighting,
    transition,
)
from abaton.controller.evaluator_selection import label_distance, sum_label_counts

# Five pairs of learners, each pair with two classes of ten.
LABELS = {f"site{i}": tuple(10 if j // 2 == i % 5 else 0 for j in range(10)) for i in range(10)}


def start_run(weighting: ValidationWeighting, seed: int = 0, labels=LABELS):
    strategy, state = (
        Strategy(learners=len(labels), rounds=9, weighting=(weighting,), seed=seed),
        ControllerState(),
    )
    for name, counts in labels.items():
        state, instructions = transition(strategy, state, LearnerJoined(0.0, name, 100, labels=counts))
    return strategy, state, instructions


def selected_evaluators(weighting: ValidationWeighting, seed: int = 0) -> dict[str, list[str]]:
    strategy, state, tasks = start_run(weighting, seed)
    return {
        t.learner: [
            e.learner for e in of_type(StartEvaluation, transition(strategy, state, update_for(t))[1])
        ]
        for t in tasks
    }


def distance(author: str, evaluators: list[str]) -> float:
    seen = sum_label_counts([LABELS[author], *(LABELS[name] for name in evaluators)])
    return label_distance(seen, sum_label_counts(LABELS.values()))


def smallest_distance(author: str, count: int) -> float:
    others = [name for name in LABELS if name != author]
    return min(distance(author, list(subset)) for subset in combinations(others, count))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_label_coverage_is_closer_to_the_federation_than_a_random_sample(count):
    totals, best = Counter(), Counter()
    for seed in range(5):
        for selection in ("random", "label_coverage"):
            for author, names in selected_evaluators(
                ValidationWeighting(evaluators=count, evaluator_selection=selection), seed
            ).items():
                assert len(set(names)) == count
                assert author not in names
                totals[selection] += distance(author, names)
                best[selection] += smallest_distance(author, count)
    assert totals["label_coverage"] < totals["random"]
    assert totals["label_coverage"] <= 1.2 * best["label_coverage"], "of all subsets"


def test_labels_of_the_author_count_only_if_its_validation_is_included():
    """With a class that only the author and one other have, the other is needed only without the author's counts."""
    labels = {"owner": (10, 0), "same": (10, 0), "b": (0, 10), "c": (0, 10), "d": (0, 10)}
    evaluators = {}
    for include_own in (True, False):
        strategy, state, tasks = start_run(
            ValidationWeighting(
                evaluators=2, evaluator_selection="label_coverage", include_own_validation=include_own
            ),
            labels=labels,
        )
        (task,) = (t for t in tasks if t.learner == "owner")
        evaluators[include_own] = {
            e.learner for e in of_type(StartEvaluation, transition(strategy, state, update_for(task))[1])
        }
    assert "same" not in evaluators[True], "10 of 30 is nearer to 20 of 50 than 20 of 30"
    assert "same" in evaluators[False]


def test_the_selection_depends_on_the_seed_and_distributes_the_work():
    """Invariant 16."""
    weighting = ValidationWeighting(evaluators=3, evaluator_selection="label_coverage")
    assert (
        selected_evaluators(weighting, 1)
        == selected_evaluators(weighting, 1)
        != selected_evaluators(weighting, 2)
    )
    work = Counter(
        name
        for seed in range(10)
        for names in selected_evaluators(weighting, seed).values()
        for name in names
    )
    assert min(work[name] for name in LABELS) > 10, "30 on average"


def test_labels_of_a_learner_that_leaves_or_rejoins_are_counted_once():
    strategy, state, _ = start_run(ValidationWeighting(evaluators=2, evaluator_selection="label_coverage"))
    all_labels = state.labels
    state, _ = transition(strategy, state, LearnerLeft(1.0, "site3"))
    assert sum(state.labels) == sum(all_labels) - 20
    state, _ = transition(strategy, state, LearnerJoined(1.0, "site3", 100, labels=LABELS["site3"]))
    state, _ = transition(strategy, state, LearnerJoined(1.0, "site3", 100, labels=LABELS["site3"]))
    assert state.labels == all_labels


def test_learners_without_label_counts_are_sampled_randomly():
    labels = dict.fromkeys(LABELS, ())
    strategy, state, tasks = start_run(
        ValidationWeighting(evaluators=2, evaluator_selection="label_coverage"), labels=labels
    )
    assert len(of_type(StartEvaluation, transition(strategy, state, update_for(tasks[0]))[1])) == 2
