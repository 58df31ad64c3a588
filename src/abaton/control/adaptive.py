"""When a learner of its own accord sends its update: the adaptive update frequency of the Metis paper (section V).

After every local epoch the learner looks at its validation loss. C1: it did not fall. C2: it fell, but by no more than
`loss` percent. Each time one of them holds uses up a tombstone; when all are used up and one holds again, the learner
sends. C3: it sends as soon as its effective staleness is above the median of its first twenty cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from abaton.errors import SettingsError

CYCLES = 20


@dataclass(frozen=True, slots=True)
class Thresholds:
    """VC_Loss in percent and VC_Tomb of the paper.

    >>> sends([1.0, 0.8, 0.81], Thresholds(loss=0.0, tombstones=0))
    True
    """

    loss: float = 0.0
    tombstones: int = 4

    def __post_init__(self) -> None:
        if not 0 <= self.loss < float("inf"):
            raise SettingsError(f"loss is {self.loss}", where="thresholds", remedy="use 0 or more percent")
        if not isinstance(self.tombstones, int) or self.tombstones < 0:
            raise SettingsError(
                f"tombstones is {self.tombstones}", where="thresholds", remedy="use 0 or a whole number above"
            )


def sends(losses: Sequence[float], thresholds: Thresholds) -> bool:
    """Whether a cycle with these validation losses, one for each epoch, has come to its end (C1, C2, tombstones).

    Two consecutive epochs are compared, so a cycle has at least two.
    """
    hits = sum(_stalls(before, after, thresholds.loss) for before, after in pairwise(losses))
    stalled = len(losses) > 1 and _stalls(losses[-2], losses[-1], thresholds.loss)
    return stalled and hits > thresholds.tombstones


def _stalls(before: float, after: float, percent: float) -> bool:
    change = 100 * (after - before) / before if before else 0.0
    return change >= 0 or -change <= percent


def staleness_limit(cycles: Sequence[int]) -> float:
    """The staleness above which a learner sends (C3): the median of its first twenty cycles, no limit before."""
    return float(median(cycles[:CYCLES])) if len(cycles) >= CYCLES else float("inf")
