"""Which evaluators score a model: all of them, some by lot, or some whose labels together resemble everybody's.

A few evaluators cost less, but few validation sets with few classes each judge a model by a part of what it must know.
Learners tell the label counts of their validation sets when they join; of several lots drawn, the one is taken whose
labels, together with the model's own learner's if its own score counts, are distributed most like everybody's. Lots
keep the work spread over evaluators, and cost the same however many learners there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from abaton.control import draw
from abaton.control.messages import Counts
from abaton.control.state import State
from abaton.control.weighting import ByValidation

LOTS = 32


def choose(policy: ByValidation, state: State, seed: int, task: str, owner: str) -> list[str]:
    """The evaluators of one learner's model, in the order of their names."""
    others = sorted(name for name in state.present if name != owner)
    count = policy.evaluators
    if count is None or count >= len(others):
        return others
    if policy.choice == "lot":
        return sorted(draw.sample(others, count, seed, "evaluators", task))
    lots = [sorted(draw.sample(others, count, seed, "evaluators", task, i)) for i in range(LOTS)]
    own = state.present[owner].labels if policy.own and owner in state.present else ()
    return min(lots, key=lambda lot: _distance(state, own, lot))


def _distance(state: State, own: Counts, lot: Sequence[str]) -> float:
    seen = together([own, *(state.present[name].labels for name in lot)])
    return round(
        difference(seen, state.labels), 9
    )  # lots that fit equally well must not be told apart by rounding


def together(counts: Iterable[Counts]) -> Counts:
    """Label counts added up; a missing class counts 0.

    >>> together([(1, 2), (3, 0, 5)])
    (4, 2, 5)
    """
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))


def difference(one: Counts, other: Counts) -> float:
    """How differently two label counts are distributed: 0 if alike, 1 if they have no label in common.

    >>> difference((2, 2), (5, 5)), difference((3, 0), (0, 0, 4))
    (0.0, 1.0)
    """
    all_of_one, all_of_other = sum(one) or 1, sum(other) or 1
    pairs = zip_longest(one, other, fillvalue=0)
    return sum(abs(a / all_of_one - b / all_of_other) for a, b in pairs) / 2
