"""How far an update may reach: no learner moves the community model much further than the others lately did.

An update is compared with the newest accepted update of each of the other learners, at most so many of them. One that
is longer than so many times their median is shortened to that; it still counts, in its direction. Whoever carries the
model away makes the others' updates longer, too, as they come back from further away: by their newest ones alone the
bound would grow by a share in every round. So their first ones bind as well, by so many times more. Before two others
are known there is nothing to compare with: then a fixed length holds that no honest start comes near. What is decided
depends on the commits and their order alone, so a run that is replayed decides the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

from abaton.controller.events import TrainSettings

_KNOWN = 64  # learners whose newest length is remembered: a median costs the same however many there are
_OTHERS = 2  # the fewest others that can be compared with
_START = 100.0  # how many learning rates each number of a first update may move, in the mean


class Reach:
    """Remembers how long accepted updates were, and says how much of the next one counts.

    Args:
        factor: how many times longer than others' an update may be; 0 is no bound.
        size: how many numbers a model has.
        training: how learners train, which says what a first update may be.

    >>> reach = Reach(10.0, 100, TrainSettings(learning_rate=0.05))
    >>> [reach.share(name, length) for name, length in (("north", 1.0), ("south", 2.0), ("east", 150.0))]
    [1.0, 1.0, 0.1]
    >>> reach.share("north", 1e9) * 1e9, reach.shortened
    (85.0, 2)
    """

    def __init__(self, factor: float, size: int, training: TrainSettings) -> None:
        self.factor, self.shortened = factor, 0
        self._start = math.sqrt(size) * max(1.0, _START * training.learning_rate)
        self._lengths: dict[str, float] = {}
        self._first: dict[str, float] = {}

    def share(self, learner: str, length: float) -> float:
        """The share of an update that counts: 1, or what shortens it to the bound; its length is remembered."""
        if not self.factor:
            return 1.0
        limit = self._limit(learner)
        self._lengths.pop(learner, None)
        self._lengths[learner] = min(length, limit)
        if len(self._first) < _KNOWN:
            self._first.setdefault(learner, min(length, limit))
        if len(self._lengths) > _KNOWN:
            del self._lengths[next(iter(self._lengths))]
        if length <= limit:
            return 1.0
        self.shortened += 1
        return limit / length

    def _limit(self, learner: str) -> float:
        usual, first = _usual(self._lengths, learner), _usual(self._first, learner)
        if not usual:
            return self._start
        return self.factor * (min(usual, self.factor * first) if first else usual)

    def save(self) -> dict[str, object]:
        """Plain values that `load` goes on from."""
        return {
            "lengths": [[name, length] for name, length in self._lengths.items()],
            "first": [[name, length] for name, length in self._first.items()],
            "shortened": self.shortened,
        }

    def load(self, saved: Mapping[str, object]) -> None:
        """Take over what was saved."""
        shortened = saved["shortened"]
        assert isinstance(shortened, int)
        self._lengths, self._first = _lengths(saved["lengths"]), _lengths(saved["first"])
        self.shortened = shortened


def _usual(lengths: Mapping[str, float], learner: str) -> float:
    """The median length of the others; 0 if too few are known."""
    others = [length for name, length in lengths.items() if name != learner]
    return median(others) if len(others) >= _OTHERS else 0.0


def _lengths(saved: object) -> dict[str, float]:
    assert isinstance(saved, list | tuple)
    return {str(name): float(length) for name, length in saved}
