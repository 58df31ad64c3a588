"""Concordance of survival models from counts of pairs of subjects.

Harrell's concordance is the fraction of comparable pairs in which the subject with the earlier event has the higher
predicted probability. Each site compares its own subjects, and the sums add up over sites: over several sites it is
the within-site concordance, which has no pairs of subjects from two sites. It differs from Harrell's C of the pooled
subjects if predictions or baseline hazards differ between sites.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.metrics.classification import Floats, MetricEstimate
from abaton.metrics.classification_intervals import MIN_CLASS_COUNT, logit_limits, t_quantile

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
    """Return Harrell's concordance of a survival model from sums, over pairs within sites, with its interval.

    It is a ratio of two U-statistics, so its variance is four times the sum of squared deviations of the subjects'
    contributions, over the squared number of pairs. The interval is symmetric on log odds, with a quantile of
    Student's t; below 15 events there is none.
    """
    if not sums.pairs:
        return {"concordance": _UNKNOWN}
    value = sums.concordant / sums.pairs
    squared_sum = sums.concordant_squared - 2 * value * sums.product + value**2 * sums.pairs_squared
    error = 2 * math.sqrt(max(0.0, squared_sum)) / sums.pairs
    return {"concordance": _estimate(value, error, sums.events, level)}


@dataclass(frozen=True, slots=True, eq=False)
class SurvivalComparison:
    """Concordance of several models on the same subjects.

    Attributes:
        values: Concordance by model; NaN if no two subjects are comparable.
        influence: Contribution of each subject to the error of the concordance, by model.
        events: Number of events; below 15 there are no intervals.
        level: Confidence level of the intervals.
    """

    values: Mapping[str, float]
    influence: Mapping[str, Floats]
    events: int
    level: float

    def estimate(self, model: str) -> MetricEstimate:
        """Return the concordance of a compared survival model with its interval."""
        error = float(np.linalg.norm(self.influence[model]))
        return _estimate(self.values[model], error, self.events, self.level)

    def difference(self, model: str, other: str) -> MetricEstimate:
        """Return the difference of two survival models' concordances with its interval."""
        difference = self.values[model] - self.values[other]
        if self.events < MIN_CLASS_COUNT:
            return MetricEstimate(difference, math.nan, math.nan)
        half_width = t_quantile(self.level, self.events - 1) * self.standard_error(model, other)
        return MetricEstimate(
            difference, max(-1.0, difference - half_width), min(1.0, difference + half_width)
        )

    def standard_error(self, model: str, other: str) -> float:
        """Return the standard error of the difference of two survival models' concordances."""
        return float(np.linalg.norm(self.influence[model] - self.influence[other]))


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
    return SurvivalComparison(values, influence, int((y[:, 1] > 0).sum()), level)


def _estimate(value: float, standard_error: float, events: int, level: float) -> MetricEstimate:
    if math.isnan(value):
        return _UNKNOWN
    if events < MIN_CLASS_COUNT:
        return MetricEstimate(value, math.nan, math.nan)
    return MetricEstimate(value, *logit_limits(value, standard_error, t_quantile(level, events - 1)))
