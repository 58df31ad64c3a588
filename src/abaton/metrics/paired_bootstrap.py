"""Some models on the same subjects: how good each is, and by how much one is better, by a paired bootstrap.

Whoever is drawn again is drawn for all models, so that what makes subjects hard for all of them cancels out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abaton.metrics.classification import BINS, Estimate, Floats, interval, measures_of

Statistic = Callable[[Floats], Floats]
"""A measure of one model: takes how often each subject is drawn, one row a resample, and gives one value a row."""

_TOGETHER = 100  # resamples drawn at once: memory stays small


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """Some models on the same subjects: the measure of each, once and for every resample.

    Attributes:
        values: By model, the measure on the subjects as they are.
        drawn: By model, the measure on each resample; the same subjects for all models.
        level: Of the intervals.
    """

    values: Mapping[str, float]
    drawn: Mapping[str, Floats]
    level: float

    def of(self, model: str) -> Estimate:
        """How good a model is."""
        return interval(self.values[model], self.drawn[model], self.level)

    def difference(self, model: str, other: str) -> Estimate:
        """A model's measure less that of another one."""
        return interval(
            self.values[model] - self.values[other], self.drawn[model] - self.drawn[other], self.level
        )


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
        measure: One of the names of :func:`abaton.metrics.classification.judge`.
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


def compare_models(
    models: Mapping[str, Statistic],
    strata: NDArray[np.integer],
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Compared:
    """Some models with bootstrap intervals, and of the differences between them; each stratum is drawn apart.

    >>> labels = np.array([0, 0, 1, 1])
    >>> def model(*ill): return chance_statistic(np.array([[1 - p, p] for p in ill]), labels, [1], "auroc")
    >>> found = compare_models({"a": model(0.1, 0.4, 0.3, 0.8), "b": model(0.1, 0.2, 0.3, 0.8)}, labels)
    >>> found.of("a").value, found.of("b").value, found.difference("b", "a").value
    (0.75, 1.0, 0.25)
    """
    chance = np.random.default_rng(seed)
    drawn: dict[str, list[Floats]] = {name: [np.empty(0)] for name in models}
    groups = [np.flatnonzero(strata == each) for each in np.unique(strata)]
    for begin in range(0, resamples, _TOGETHER):
        weights = np.zeros((min(_TOGETHER, resamples - begin), len(strata)))
        for group in groups:
            weights[:, group] = chance.multinomial(
                len(group), np.full(len(group), 1 / len(group)), len(weights)
            )
        for name, statistic in models.items():
            drawn[name].append(statistic(weights))
    once = np.ones((1, len(strata)))
    values = {name: float(statistic(once)[0]) for name, statistic in models.items()}
    return Compared(values, {name: np.concatenate(made) for name, made in drawn.items()}, level)
