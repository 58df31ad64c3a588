"""Inclusion of the author's own validation counts."""

from __future__ import annotations

import pytest

from abaton.controller import (
    AsynchronousScheduler,
    Commit,
    ControllerState,
    EvaluationReceived,
    LearnerJoined,
    Strategy,
    UpdateReceived,
    ValidationWeighting,
    transition,
)
from abaton.metrics.counts import from_confusion

OWN_COUNTS = from_confusion([[50, 0], [0, 50]])  # all correct by its own labels
OTHER_COUNTS = from_confusion([[1, 9], [9, 1]])


@pytest.mark.parametrize(("include_own", "weight"), [(True, 102 / 120), (False, 0.1)])
def test_own_validation_counts_are_included_unless_disabled(include_own, weight):
    strategy = Strategy(
        2,
        rounds=5,
        scheduler=AsynchronousScheduler(),
        weighting=(ValidationWeighting(include_own_validation=include_own),),
    )
    state = ControllerState()
    for name in ("a", "b"):
        state, instructions = transition(strategy, state, LearnerJoined(0.0, name, 100))
    task = next(instruction.task for instruction in instructions if instruction.learner == "a")
    update = UpdateReceived(1.0, "a", task, "digest", 4, steps=1, examples=10, counts=OWN_COUNTS)
    state, instructions = transition(strategy, state, update)
    assert [instruction.learner for instruction in instructions] == ["b"]
    state, instructions = transition(
        strategy, state, EvaluationReceived(2.0, "b", instructions[0].task, OTHER_COUNTS)
    )
    (commit,) = (instruction for instruction in instructions if isinstance(instruction, Commit))
    assert commit.weight == pytest.approx(weight)
