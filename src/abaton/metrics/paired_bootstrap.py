"""Comparison of models on the same subjects by a paired bootstrap.

A resample has the same subjects for all models, so variation between subjects that affects all models cancels out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abaton.metrics.classification import (
    Floats,
    MetricEstimate,
    count_scores,
    evaluate_classifier,
    metric_functions,
)
from abaton.metrics.classification_intervals import MIN_CLASS_COUNT, t_quantile
from abaton.metrics.regression import MIN_MAE_SUBJECTS, MIN_SUBJECTS, evaluate_sums, sum_errors

_RESAMPLES_PER_CHUNK = 100  # limits memory


@dataclass(frozen=True, slots=True, eq=False)
class Statistic:
    """Metric of one model for the paired bootstrap.

    Attributes:
        evaluate: Takes the draws of each subject, one row per resample, and returns a value per row.
        estimate: Returns the metric with its own interval at a confidence level, as it is evaluated without
            comparison; None if there is only the bootstrap.
        min_subjects: Smallest stratum for which the difference of two models has an interval.
        has_difference_interval: Whether the interval of a difference has its coverage. That of a calibration slope or
            of a sensitivity at a specificity has not, so it is not stated.
        is_normal: Whether the quantile of a difference is that of the normal distribution instead of Student's t, as
            for the AUROC.
    """

    evaluate: Callable[[Floats], Floats]
    estimate: Callable[[float], MetricEstimate] | None = None
    min_subjects: int = MIN_CLASS_COUNT
    has_difference_interval: bool = True
    is_normal: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ModelComparison:
    """Metric of several models on the same subjects and on every resample.

    Attributes:
        values: The metric on all subjects, by model.
        resampled: The metric on each resample, by model; the same subjects for all models.
        smallest_stratum: Number of subjects in the smallest stratum.
        statistics: The metric of each model.
        level: Confidence level of the intervals.
    """

    values: Mapping[str, float]
    resampled: Mapping[str, Floats]
    smallest_stratum: int
    statistics: Mapping[str, Statistic]
    level: float

    def estimate(self, model: str) -> MetricEstimate:
        """Return the metric of a compared model with the interval that it has without comparison."""
        own_estimate = self.statistics[model].estimate
        if own_estimate is not None:
            return own_estimate(self.level)
        return self._bootstrap(self.values[model], self.resampled[model], self.statistics[model])

    def difference(self, model: str, other: str) -> MetricEstimate:
        """Return the paired difference of two models' metrics with its bootstrap interval.

        The half width is the bootstrap's standard error times a quantile of Student's t by the smallest stratum, of
        the normal distribution for the AUROC.
        There is no interval if that stratum is below 15 subjects (50 for RMSE and R², 20 for MAE).
        """
        return self._bootstrap(
            self.values[model] - self.values[other],
            self.resampled[model] - self.resampled[other],
            self.statistics[model],
        )

    def standard_error(self, model: str, other: str) -> float:
        """Return the bootstrap's standard error of a paired difference, also of one without an interval."""
        return self._error(self.resampled[model] - self.resampled[other])

    def _error(self, resampled: Floats) -> float:
        """Return the standard error of a paired bootstrap, corrected for the smallest stratum; NaN if unknown."""
        finite, n = resampled[np.isfinite(resampled)], self.smallest_stratum
        return float(finite.std(ddof=1) * np.sqrt(n / (n - 1))) if min(len(finite), n) > 1 else np.nan

    def _bootstrap(self, value: float, resampled: Floats, statistic: Statistic) -> MetricEstimate:
        """Return a paired bootstrap's value with its interval, if it has one."""
        error, n = self._error(resampled), self.smallest_stratum
        if not statistic.has_difference_interval or n < statistic.min_subjects or not np.isfinite(error):
            return MetricEstimate(value, np.nan, np.nan)
        half_width = t_quantile(self.level, np.inf if statistic.is_normal else n - 1) * error
        return MetricEstimate(value, float(value - half_width), float(value + half_width))


def probability_statistic(
    probabilities: NDArray[np.floating],
    labels: NDArray[np.integer],
    cases: Sequence[int],
    metric: str,
    *,
    specificity: float = 0.9,
    row_weights: Floats | None = None,
) -> Statistic:
    """Return a metric of exact probabilities for the paired bootstrap; for several classes the mean of one-vs-rest.

    Args:
        probabilities: Probability of each class, a row per subject.
        labels: Class of each subject.
        cases: Classes that are evaluated.
        metric: One of the names of :func:`abaton.metrics.classification.evaluate_classifier`.
        specificity: Specificity at which sensitivity is computed.
        row_weights: Weight of each subject; 1 if not given.
    """
    metric_function = metric_functions(specificity)[metric]
    clipped = np.clip(np.asarray(probabilities, np.float64), 0, 1)
    parts = []
    for i in cases:
        order = np.argsort(clipped[:, i], kind="stable")
        scores, starts = np.unique(clipped[order, i], return_index=True)
        parts.append((order, scores, starts, (labels == i)[order]))

    def evaluate(weights: Floats) -> Floats:
        values = []
        for order, scores, starts, is_case in parts:
            sorted_weights = (weights if row_weights is None else weights * row_weights)[:, order]
            sums = (
                np.add.reduceat(sorted_weights * is_member, starts, axis=1)
                for is_member in (is_case, ~is_case)
            )
            values.append(metric_function(scores, *sums))
        return np.asarray(np.mean(values, axis=0))

    def estimate(level: float) -> MetricEstimate:
        counts = count_scores(clipped[:, cases[0]], labels == cases[0], weights=row_weights)
        return evaluate_classifier(counts, specificity=specificity, level=level)[metric]

    has_difference_interval = metric != "calibration slope" and not metric.startswith("sensitivity")
    return Statistic(
        evaluate,
        estimate if len(cases) == 1 else None,
        has_difference_interval=has_difference_interval,
        is_normal=metric == "auroc",
    )


def regression_statistic(predicted: Floats, actual: Floats, metric: str) -> Statistic:
    """Return a metric of predicted values for the paired bootstrap: 'rmse', 'mae' or 'r2'."""
    errors = np.asarray(predicted, np.float64) - actual
    values = np.asarray(actual, np.float64) - np.mean(actual)

    def evaluate(weights: Floats) -> Floats:
        n = weights.sum(1)
        if metric == "mae":
            return np.asarray(weights @ np.abs(errors) / n)
        squared_sum = weights @ errors**2
        if metric == "rmse":
            return np.asarray(np.sqrt(squared_sum / n))
        variation = weights @ values**2 - (weights @ values) ** 2 / n
        return np.asarray(1 - squared_sum / np.where(variation > 0, variation, np.nan))

    def estimate(level: float) -> MetricEstimate:
        sums = sum_errors(predicted, actual, centre=float(np.mean(actual)))
        return evaluate_sums(sums, level=level)[metric]

    return Statistic(evaluate, estimate, MIN_MAE_SUBJECTS if metric == "mae" else MIN_SUBJECTS)


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
            resampled[name].append(statistic.evaluate(weights))
    unit_weights = np.ones((1, len(strata)))
    values = {name: float(statistic.evaluate(unit_weights)[0]) for name, statistic in models.items()}
    return ModelComparison(
        values,
        {name: np.concatenate(chunks) for name, chunks in resampled.items()},
        min((len(group) for group in groups), default=0),
        dict(models),
        level,
    )
