"""How well a model predicts how long it takes until something happens, from counts of pairs of people.

It is judged by Harrell's concordance: of all pairs of whom it is known who came first, how often the model gave that
one the higher chance. Each site compares its own people, and sums over them add up over sites.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.metrics.classification import Estimate, Floats

_UNKNOWN = Estimate(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class PairSums:
    """Sums over subjects that add up over sites.

    Attributes:
        subjects, events: How many people, and to how many it happened.
        right, pairs: Over all people, in how many comparable pairs they are, and in how many of them the model is
            right; every pair is counted from both sides.
        right_squared, both, pairs_squared: The sums of squares and products of these two, for the interval.
    """

    subjects: int = 0
    events: int = 0
    right: float = 0.0
    pairs: float = 0.0
    right_squared: float = 0.0
    both: float = 0.0
    pairs_squared: float = 0.0


def pairs_of(chances: NDArray[Any], y: NDArray[Any]) -> tuple[Floats, Floats]:
    """Of every subject: in how many comparable pairs the model is right, equal chances counted half, and in how many.

    Two people are comparable if it happened to one of them while it is known not to have happened to the other by
    then.

    >>> right, pairs = pairs_of(np.array([0.9, 0.2, 0.5]), np.array([[1.0, 1], [2.0, 0], [3.0, 1]]))
    >>> right.tolist(), pairs.tolist()
    ([2.0, 1.0, 1.0], [2.0, 1.0, 1.0])
    """
    time, happened = np.asarray(y[:, 0], np.float64), y[:, 1] > 0
    _, place = np.unique(np.asarray(chances, np.float64), return_inverse=True)
    right, pairs = np.zeros(len(time)), np.zeros(len(time))
    bins = int(place.max(initial=-1)) + 1
    # From the last moment to the first: who is still without the event is counted by chance, and each event meets them.
    moments = np.unique(time[happened])[::-1]
    later = np.zeros(bins)
    known = np.full(len(time), True)
    for moment in moments:
        mine = happened & (time == moment)
        joins = known & ((time > moment) | ((time == moment) & ~happened))
        np.add.at(later, place[joins], 1.0)
        known &= ~joins
        below = np.cumsum(later)
        right[mine] += below[place[mine]] - later[place[mine]] / 2
        pairs[mine] += below[-1]
    # From the first moment to the last: the same pairs from the other side.
    earlier = np.zeros(bins)
    order = np.argsort(time, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(time[order])) + 1) if len(order) else ():
        events, others = rows[happened[rows]], rows[~happened[rows]]
        for part, after in ((events, False), (others, True)):
            if after:
                np.add.at(earlier, place[events], 1.0)
            below = np.cumsum(earlier)
            right[part] += below[-1] - below[place[part]] + earlier[place[part]] / 2
            pairs[part] += below[-1]
    return right, pairs


def sum_pairs(chances: NDArray[Any], y: NDArray[Any], floor: int = 1) -> PairSums:
    """What a site tells of some subjects: nothing if fewer than the floor have the event, or have it not."""
    events = int((y[:, 1] > 0).sum())
    if min(events, len(y) - events) < floor:
        return PairSums()
    right, pairs = pairs_of(chances, y)
    return PairSums(
        len(y),
        events,
        float(right.sum()),
        float(pairs.sum()),
        float(np.dot(right, right)),
        float(np.dot(right, pairs)),
        float(np.dot(pairs, pairs)),
    )


def add_pairs(parts: Iterable[PairSums]) -> PairSums:
    """The sums of several sites as one."""
    listed = list(parts)
    return PairSums(*(sum(getattr(part, field.name) for part in listed) for field in fields(PairSums)))


def judge_pairs(sums: PairSums, *, level: float = 0.95) -> dict[str, Estimate]:
    """Harrell's concordance with its interval for large samples.

    It is a ratio of two U-statistics, so its variance is four times the sum of squared deviations of what each person
    adds, over the squared number of pairs.
    """
    if not sums.pairs:
        return {"concordance": _UNKNOWN}
    value = sums.right / sums.pairs
    squares = sums.right_squared - 2 * value * sums.both + value**2 * sums.pairs_squared
    return {"concordance": _around(value, 2 * math.sqrt(max(0.0, squares)) / sums.pairs, level)}


@dataclass(frozen=True, slots=True, eq=False)
class ComparedTimes:
    """Some models on the same subjects, by the concordance of each.

    Attributes:
        values: By model, its concordance; no number if no two subjects are comparable.
        added: By model, what each subject adds to how far the concordance may be off.
        level: Of the intervals.
    """

    values: Mapping[str, float]
    added: Mapping[str, Floats]
    level: float

    def of(self, model: str) -> Estimate:
        """How good a model is."""
        return _around(self.values[model], float(np.linalg.norm(self.added[model])), self.level)

    def difference(self, model: str, other: str) -> Estimate:
        """A model's concordance less that of another one."""
        between = float(np.linalg.norm(self.added[model] - self.added[other]))
        return _around(self.values[model] - self.values[other], between, self.level, lowest=-1.0)


def compare_times(
    chances: Mapping[str, NDArray[Any]], y: NDArray[Any], *, level: float = 0.95
) -> ComparedTimes:
    """Some models on the same subjects, with intervals for large samples; what is hard for all of them cancels out."""
    values, added = {}, {}
    for name, each in chances.items():
        right, pairs = pairs_of(each, y)
        total = float(pairs.sum()) or math.nan
        values[name] = float(right.sum()) / total
        added[name] = 2 * (right - values[name] * pairs) / total
    return ComparedTimes(values, added, level)


def _around(value: float, deviation: float, level: float, lowest: float = 0.0) -> Estimate:
    if math.isnan(value):
        return _UNKNOWN
    reach = NormalDist().inv_cdf((1 + level) / 2) * deviation
    return Estimate(value, max(lowest, value - reach), min(1.0, value + reach))
