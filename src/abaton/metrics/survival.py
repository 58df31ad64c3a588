"""Concordance of survival models from counts of pairs of subjects.

Harrell's concordance is the fraction of comparable pairs in which the subject with the earlier event has the higher
predicted probability. Each site compares its own subjects, and the sums add up over sites.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.metrics.classification import Floats, MetricEstimate

_UNKNOWN = MetricEstimate(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class ConcordanceSums:
    """Sums over subjects that add up over sites.

    Attributes:
        subjects, events: Number of subjects, and of events.
        concordant, pairs: Concordant and comparable pairs, summed over subjects; every pair counts for both subjects.
        concordant_squared, product, pairs_squared: Sums of squares and products of these two, for the interval.
    """

    subjects: int = 0
    events: int = 0
    concordant: float = 0.0
    pairs: float = 0.0
    concordant_squared: float = 0.0
    product: float = 0.0
    pairs_squared: float = 0.0


def count_pairs(probabilities: NDArray[Any], y: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return for every subject the concordant pairs, ties counting one half, and the comparable pairs.

    Two subjects are comparable if one has an event before the event or the censoring of the other.

    >>> concordant, pairs = count_pairs(np.array([0.9, 0.2, 0.5]), np.array([[1.0, 1], [2.0, 0], [3.0, 1]]))
    >>> concordant.tolist(), pairs.tolist()
    ([2.0, 1.0, 1.0], [2.0, 1.0, 1.0])
    """
    time, has_event = np.asarray(y[:, 0], np.float64), y[:, 1] > 0
    _, rank = np.unique(np.asarray(probabilities, np.float64), return_inverse=True)
    concordant, pairs = np.zeros(len(time)), np.zeros(len(time))
    bins = int(rank.max(initial=-1)) + 1
    # From the last event to the first: subjects still at risk are counted by predicted probability.
    event_times = np.unique(time[has_event])[::-1]
    later = np.zeros(bins)
    is_waiting = np.full(len(time), True)
    for event_time in event_times:
        is_event_now = has_event & (time == event_time)
        is_joining = is_waiting & ((time > event_time) | ((time == event_time) & ~has_event))
        np.add.at(later, rank[is_joining], 1.0)
        is_waiting &= ~is_joining
        below = np.cumsum(later)
        concordant[is_event_now] += below[rank[is_event_now]] - later[rank[is_event_now]] / 2
        pairs[is_event_now] += below[-1]
    # From the first time to the last: the same pairs, counted for the other subject.
    earlier = np.zeros(bins)
    order = np.argsort(time, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(time[order])) + 1) if len(order) else ():
        events, censored = rows[has_event[rows]], rows[~has_event[rows]]
        for group, include_events in ((events, False), (censored, True)):
            if include_events:
                np.add.at(earlier, rank[events], 1.0)
            below = np.cumsum(earlier)
            concordant[group] += below[-1] - below[rank[group]] + earlier[rank[group]] / 2
            pairs[group] += below[-1]
    return concordant, pairs


def sum_pairs(probabilities: NDArray[Any], y: NDArray[Any], min_cell_count: int = 1) -> ConcordanceSums:
    """Return one site's sums of concordant pairs; zeros below `min_cell_count` subjects with or without an event."""
    events = int((y[:, 1] > 0).sum())
    if min(events, len(y) - events) < min_cell_count:
        return ConcordanceSums()
    concordant, pairs = count_pairs(probabilities, y)
    return ConcordanceSums(
        len(y),
        events,
        float(concordant.sum()),
        float(pairs.sum()),
        float(np.dot(concordant, concordant)),
        float(np.dot(concordant, pairs)),
        float(np.dot(pairs, pairs)),
    )


def add_pairs(site_sums: Iterable[ConcordanceSums]) -> ConcordanceSums:
    """Return the total of the concordance sums of several sites."""
    all_sums = list(site_sums)
    return ConcordanceSums(
        *(sum(getattr(sums, field.name) for sums in all_sums) for field in fields(ConcordanceSums))
    )


def evaluate_survival(sums: ConcordanceSums, *, level: float = 0.95) -> dict[str, MetricEstimate]:
    """Return Harrell's concordance of a survival model from sums, with its large-sample interval.

    It is a ratio of two U-statistics, so its variance is four times the sum of squared deviations of the subjects'
    contributions, over the squared number of pairs.
    """
    if not sums.pairs:
        return {"concordance": _UNKNOWN}
    value = sums.concordant / sums.pairs
    squared_sum = sums.concordant_squared - 2 * value * sums.product + value**2 * sums.pairs_squared
    return {"concordance": _interval(value, 2 * math.sqrt(max(0.0, squared_sum)) / sums.pairs, level)}


@dataclass(frozen=True, slots=True, eq=False)
class SurvivalComparison:
    """Concordance of several models on the same subjects.

    Attributes:
        values: Concordance by model; NaN if no two subjects are comparable.
        influence: Contribution of each subject to the error of the concordance, by model.
        level: Confidence level of the intervals.
    """

    values: Mapping[str, float]
    influence: Mapping[str, Floats]
    level: float

    def estimate(self, model: str) -> MetricEstimate:
        """Return the concordance of a compared survival model with its interval."""
        return _interval(self.values[model], float(np.linalg.norm(self.influence[model])), self.level)

    def difference(self, model: str, other: str) -> MetricEstimate:
        """Return the difference of two survival models' concordances with its interval."""
        standard_error = float(np.linalg.norm(self.influence[model] - self.influence[other]))
        return _interval(self.values[model] - self.values[other], standard_error, self.level, minimum=-1.0)


def compare_survival_models(
    probabilities: Mapping[str, NDArray[Any]], y: NDArray[Any], *, level: float = 0.95
) -> SurvivalComparison:
    """Compare survival models by concordance on the same subjects with large-sample intervals."""
    values, influence = {}, {}
    for name, predicted in probabilities.items():
        concordant, pairs = count_pairs(predicted, y)
        total = float(pairs.sum()) or math.nan
        values[name] = float(concordant.sum()) / total
        influence[name] = 2 * (concordant - values[name] * pairs) / total
    return SurvivalComparison(values, influence, level)


def _interval(value: float, standard_error: float, level: float, minimum: float = 0.0) -> MetricEstimate:
    if math.isnan(value):
        return _UNKNOWN
    half_width = NormalDist().inv_cdf((1 + level) / 2) * standard_error
    return MetricEstimate(value, max(minimum, value - half_width), min(1.0, value + half_width))
