"""Comparison of models on the same subjects by a paired bootstrap.

A resample has the same subjects for all models, so variation between subjects that affects all models cancels out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abaton.metrics.classification import BINS, Floats, MetricEstimate, metric_functions, percentile_interval

Statistic = Callable[[Floats], Floats]
"""A metric of one model: takes the draws of each subject, one row per resample, and returns a value per row."""

_RESAMPLES_PER_CHUNK = 100  # limits memory


@dataclass(frozen=True, slots=True, eq=False)
class ModelComparison:
    """Metric of several models on the same subjects and on every resample.

    Attributes:
        values: The metric on all subjects, by model.
        resampled: The metric on each resample, by model; the same subjects for all models.
        level: Confidence level of the intervals.
    """

    values: Mapping[str, float]
    resampled: Mapping[str, Floats]
    level: float

    def estimate(self, model: str) -> MetricEstimate:
        """Return the metric of a compared model with its bootstrap interval."""
        return percentile_interval(self.values[model], self.resampled[model], self.level)

    def difference(self, model: str, other: str) -> MetricEstimate:
        """Return the paired difference of two models' metrics with its bootstrap interval."""
        return percentile_interval(
            self.values[model] - self.values[other], self.resampled[model] - self.resampled[other], self.level
        )


def probability_statistic(
    probabilities: NDArray[np.floating],
    labels: NDArray[np.integer],
    cases: Sequence[int],
    metric: str,
    *,
    specificity: float = 0.9,
) -> Statistic:
    """Return a metric of probabilities for the paired bootstrap; for several classes the mean of one-vs-rest.

    Args:
        probabilities: Probability of each class, a row per subject.
        labels: Class of each subject.
        cases: Classes that are evaluated.
        metric: One of the names of :func:`abaton.metrics.classification.evaluate_classifier`.
        specificity: Specificity at which sensitivity is computed.
    """
    metric_function = metric_functions(specificity)[metric]
    # The same bins as in the counts that sites release: both give the same value.
    bin_indices = [
        np.minimum((np.clip(probabilities[:, i], 0, 1) * BINS).astype(np.int64), BINS - 1) for i in cases
    ]

    def statistic(weights: Floats) -> Floats:
        values = []
        for i, bins in zip(cases, bin_indices, strict=True):
            order = np.argsort(bins, kind="stable")
            starts = np.flatnonzero(np.append(True, np.diff(bins[order]) > 0))
            is_case = (labels == i)[order]
            scores = (bins[order][starts] + 0.5) / BINS
            sorted_weights = weights[:, order]
            sums = (
                np.add.reduceat(sorted_weights * is_member, starts, axis=1)
                for is_member in (is_case, ~is_case)
            )
            values.append(metric_function(scores, *sums))
        return np.asarray(np.mean(values, axis=0))

    return statistic


def regression_statistic(predicted: Floats, actual: Floats, metric: str) -> Statistic:
    """Return a metric of predicted values for the paired bootstrap: 'rmse', 'mae' or 'r2'."""
    errors = np.asarray(predicted, np.float64) - actual

    def statistic(weights: Floats) -> Floats:
        n = weights.sum(1)
        if metric == "mae":
            return np.asarray(weights @ np.abs(errors) / n)
        squared_sum = weights @ errors**2
        if metric == "rmse":
            return np.asarray(np.sqrt(squared_sum / n))
        variation = weights @ actual**2 - (weights @ actual) ** 2 / n
        return np.asarray(1 - squared_sum / np.where(variation > 0, variation, np.nan))

    return statistic


def compare_models(
    models: Mapping[str, Statistic],
    strata: NDArray[np.integer],
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> ModelComparison:
    """Compare models on the same subjects by a paired bootstrap, resampled within each stratum.

    >>> labels = np.array([0, 0, 1, 1])
    >>> def model(*p): return probability_statistic(np.array([[1 - x, x] for x in p]), labels, [1], "auroc")
    >>> comparison = compare_models({"a": model(0.1, 0.4, 0.3, 0.8), "b": model(0.1, 0.2, 0.3, 0.8)}, labels)
    >>> comparison.estimate("a").value, comparison.estimate("b").value, comparison.difference("b", "a").value
    (0.75, 1.0, 0.25)
    """
    rng = np.random.default_rng(seed)
    resampled: dict[str, list[Floats]] = {name: [np.empty(0)] for name in models}
    groups = [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]
    for start in range(0, resamples, _RESAMPLES_PER_CHUNK):
        weights = np.zeros((min(_RESAMPLES_PER_CHUNK, resamples - start), len(strata)))
        for group in groups:
            weights[:, group] = rng.multinomial(len(group), np.full(len(group), 1 / len(group)), len(weights))
        for name, statistic in models.items():
            resampled[name].append(statistic(weights))
    unit_weights = np.ones((1, len(strata)))
    values = {name: float(statistic(unit_weights)[0]) for name, statistic in models.items()}
    return ModelComparison(
        values, {name: np.concatenate(chunks) for name, chunks in resampled.items()}, level
    )
