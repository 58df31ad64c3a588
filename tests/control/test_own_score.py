"""Whether what a learner says of its own model counts."""

from __future__ import annotations

import pytest

from abaton.controller import Arrived, Asynchronous, ByValidation, Commit, Joined, Rules, Scored, State, step
from abaton.metrics.counts import from_confusion

PROUD = from_confusion([[50, 0], [0, 50]])  # right about everything, by its own labels
OTHERS = from_confusion([[1, 9], [9, 1]])


@pytest.mark.parametrize(("own", "weight"), [(True, 102 / 120), (False, 0.1)])
def test_the_own_score_counts_unless_others_alone_are_to_judge(own, weight):
    rules = Rules(2, rounds=5, pacing=Asynchronous(), weighting=(ByValidation(own=own),))
    state = State()
    for name in ("a", "b"):
        state, said = step(rules, state, Joined(0.0, name, 100))
    task = next(one.task for one in said if one.learner == "a")
    update = Arrived(1.0, "a", task, "digest", 4, steps=1, examples=10, score=PROUD)
    state, said = step(rules, state, update)
    assert [one.learner for one in said] == ["b"]
    state, said = step(rules, state, Scored(2.0, "b", said[0].task, OTHERS))
    (commit,) = (one for one in said if isinstance(one, Commit))
    assert commit.weight == pytest.approx(weight)
