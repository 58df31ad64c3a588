"""Two models on the same subjects: how good each is, and by how much the second is better, by a paired bootstrap.

Whoever is drawn again is drawn for both models, so that what makes subjects hard for both cancels out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from abaton.learning.clinical import BINS, Estimate, Floats, interval, measures_of

Statistic = Callable[[Floats], Floats]
"""A measure of one model: takes how often each subject is drawn, one row a resample, and gives one value a row."""

_TOGETHER = 100  # resamples drawn at once: memory stays small


@dataclass(frozen=True, slots=True)
class Pair:
    """Two models on the same subjects, and the second's measure less the first's."""

    first: Estimate
    second: Estimate
    difference: Estimate

    def row(self) -> list[list[float]]:
        """As plain values."""
        return [list(asdict(each).values()) for each in (self.first, self.second, self.difference)]


def chance_statistic(
    chances: NDArray[np.floating],
    labels: NDArray[np.integer],
    cases: Sequence[int],
    measure: str,
    *,
    specificity: float = 0.9,
) -> Statistic:
    """A measure of predicted chances; of several classes the mean, each against the rest.

    Args:
        chances: For each subject the chance of each class.
        labels: The class of each.
        cases: The classes that are told of.
        measure: One of the names of :func:`abaton.learning.clinical.judge`.
        specificity: Where sensitivity is measured.
    """
    judge = measures_of(specificity)[measure]
    # The same bins as in the counts that sites tell: both ways give the same number.
    places = [np.minimum((np.clip(chances[:, i], 0, 1) * BINS).astype(np.int64), BINS - 1) for i in cases]

    def statistic(drawn: Floats) -> Floats:
        values = []
        for i, place in zip(cases, places, strict=True):
            order = np.argsort(place, kind="stable")
            starts = np.flatnonzero(np.append(True, np.diff(place[order]) > 0))
            ill = (labels == i)[order]
            scores = (place[order][starts] + 0.5) / BINS
            each = drawn[:, order]
            sums = (np.add.reduceat(each * side, starts, axis=1) for side in (ill, ~ill))
            values.append(judge(scores, *sums))
        return np.asarray(np.mean(values, axis=0))

    return statistic


def value_statistic(predicted: Floats, actual: Floats, measure: str) -> Statistic:
    """A measure of predicted values: 'rmse', 'mae' or 'r2'."""
    wrong = np.asarray(predicted, np.float64) - actual

    def statistic(drawn: Floats) -> Floats:
        n = drawn.sum(1)
        if measure == "mae":
            return np.asarray(drawn @ np.abs(wrong) / n)
        squared = drawn @ wrong**2
        if measure == "rmse":
            return np.asarray(np.sqrt(squared / n))
        spread = drawn @ actual**2 - (drawn @ actual) ** 2 / n
        return np.asarray(1 - squared / np.where(spread > 0, spread, np.nan))

    return statistic


def compare_pair(
    first: Statistic,
    second: Statistic,
    strata: NDArray[np.integer],
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Pair:
    """Both models and their difference with bootstrap intervals; subjects of each stratum are drawn apart.

    >>> labels = np.array([0, 0, 1, 1])
    >>> def model(*ill): return chance_statistic(np.array([[1 - p, p] for p in ill]), labels, [1], "auroc")
    >>> pair = compare_pair(model(0.1, 0.4, 0.3, 0.8), model(0.1, 0.2, 0.3, 0.8), labels)
    >>> pair.first.value, pair.second.value, pair.difference.value
    (0.75, 1.0, 0.25)
    """
    chance = np.random.default_rng(seed)
    drawn: tuple[list[Floats], list[Floats]] = ([], [])
    groups = [np.flatnonzero(strata == each) for each in np.unique(strata)]
    for begin in range(0, resamples, _TOGETHER):
        weights = np.zeros((min(_TOGETHER, resamples - begin), len(strata)))
        for group in groups:
            weights[:, group] = chance.multinomial(
                len(group), np.full(len(group), 1 / len(group)), len(weights)
            )
        for made, statistic in zip(drawn, (first, second), strict=True):
            made.append(statistic(weights))
    once = np.ones((1, len(strata)))
    values = [float(statistic(once)[0]) for statistic in (first, second)]
    one, two = (np.concatenate(made) if made else np.empty(0) for made in drawn)
    return Pair(
        interval(values[0], one, level),
        interval(values[1], two, level),
        interval(values[1] - values[0], two - one, level),
    )
