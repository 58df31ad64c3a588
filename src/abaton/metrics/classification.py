"""Clinical metrics of classifiers: discrimination, calibration and sensitivity, with confidence intervals.

All metrics are computed from counts of cases and controls at each score. Counts over the same bins add up, so sites
send counts instead of subjects' scores, and the sum is evaluated as if all subjects were in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.metrics.logistic_fit import fit_line, fit_shift, log_odds

Floats = NDArray[np.float64]

BINS = 500
_RESAMPLES_PER_CHUNK = 100  # limits memory
NOT_ESTIMABLE = "not estimable"


@dataclass(frozen=True, slots=True)
class MetricEstimate:
    """Estimate with its confidence interval; NaN where it is not estimable.

    >>> print(MetricEstimate(0.8, 0.7, 0.9), MetricEstimate(0.8, np.nan, np.nan), sep="; ")
    0.800 (0.700 to 0.900); 0.800
    >>> print(MetricEstimate(np.nan, np.nan, np.nan))
    not estimable
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if not np.isfinite(self.value):
            return NOT_ESTIMABLE
        if not (np.isfinite(self.low) and np.isfinite(self.high)):
            return f"{self.value:.3f}"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True, slots=True, eq=False)
class ScoreHistogram:
    """Numbers of cases and controls by predicted probability.

    Attributes:
        scores: The probabilities, ascending.
        cases, controls: Subjects with each probability.
    """

    scores: Floats
    cases: Floats
    controls: Floats

    @property
    def subjects(self) -> int:
        """Number of subjects in a classifier's score histogram."""
        return int(self.cases.sum() + self.controls.sum())

    def curve(self) -> tuple[Floats, Floats]:
        """Return the ROC curve: false positive rate and sensitivity at every threshold, from none positive to all."""
        tp, fp = _cumulative_from_top(self.cases[None]), _cumulative_from_top(self.controls[None])
        return np.append(0.0, fp[0] / fp[0, -1]), np.append(0.0, tp[0] / tp[0, -1])

    def calibration(self, groups: int = 10) -> list[tuple[float, MetricEstimate]]:
        """Return the classifier's calibration: mean predicted probability and fraction of cases, in equal groups."""
        total = self.cases + self.controls
        group_index = np.minimum((np.cumsum(total) - total / 2) / total.sum() * groups, groups - 1).astype(
            int
        )
        points = []
        for group in np.unique(group_index[total > 0]):
            is_member = group_index == group
            n, k = float(total[is_member].sum()), float(self.cases[is_member].sum())
            points.append((float((self.scores * total)[is_member].sum() / n), wilson(k, n)))
        return points


def count_scores(
    probabilities: NDArray[np.floating], labels: NDArray[np.integer], *, bins: int = 0
) -> ScoreHistogram:
    """Count cases (label 1) and controls (label 0) by a classifier's probability, exactly or in equal bins.

    >>> counts = count_scores(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    >>> auroc(counts.scores, counts.cases[None], counts.controls[None]).tolist()
    [0.75]
    """
    probabilities = np.asarray(probabilities, np.float64)
    if not np.isfinite(probabilities).all() or (
        len(probabilities) and not (probabilities.min() >= 0 and probabilities.max() <= 1)
    ):
        raise SettingsError(
            "a predicted probability is not between 0 and 1", remedy="pass probabilities, not raw outputs"
        )
    if bins:
        scores = (np.arange(bins) + 0.5) / bins
        bin_index = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
    else:
        scores, bin_index = np.unique(probabilities, return_inverse=True)
    is_case = np.asarray(labels).astype(bool)
    cases, controls = (
        np.bincount(bin_index[members], minlength=len(scores)).astype(float)
        for members in (is_case, ~is_case)
    )
    return ScoreHistogram(scores, cases, controls)


def merge_histograms(histograms: Iterable[ScoreHistogram]) -> ScoreHistogram:
    """Return the sum of the classifier score histograms of several sites, which must have the same bins."""
    first, *remaining = histograms
    if any(not np.array_equal(first.scores, histogram.scores) for histogram in remaining):
        raise SettingsError(
            "the sites have different bins", remedy="use the same number of bins at all sites"
        )
    return ScoreHistogram(
        first.scores,
        first.cases + sum(histogram.cases for histogram in remaining),
        first.controls + sum(histogram.controls for histogram in remaining),
    )


# Each metric takes the scores and resampled counts, one row per resample, and returns one value per row.


def auroc(scores: Floats, cases: Floats, controls: Floats) -> Floats:
    """Return the AUROC from counts of cases and controls per score, ties counting one half."""
    tp, fp = _cumulative_from_top(cases), _cumulative_from_top(controls)
    previous = np.concatenate([np.zeros((len(tp), 1)), tp[:, :-1]], axis=1)
    area = (controls[:, ::-1] * (tp + previous) / 2).sum(1)
    return np.asarray(area / (tp[:, -1] * fp[:, -1]))


def auprc(scores: Floats, cases: Floats, controls: Floats) -> Floats:
    """Return the average precision from counts of cases and controls per score, without interpolation."""
    tp, fp = _cumulative_from_top(cases), _cumulative_from_top(controls)
    precision = tp / np.maximum(tp + fp, 1)
    return np.asarray((cases[:, ::-1] * precision).sum(1) / tp[:, -1])


def sensitivity_at(specificity: float) -> Callable[[Floats, Floats, Floats], Floats]:
    """Return a classification metric: the sensitivity of the best threshold with at least this specificity."""

    def metric(scores: Floats, cases: Floats, controls: Floats) -> Floats:
        tp, fp = _cumulative_from_top(cases), _cumulative_from_top(controls)
        allowed = fp <= (1 - specificity) * fp[:, -1:] + 1e-9
        return np.asarray(np.where(allowed, tp, 0).max(1) / tp[:, -1])

    return metric


def accuracy(scores: Floats, cases: Floats, controls: Floats) -> Floats:
    """Return the classification accuracy at probability ½, from counts of cases and controls per score."""
    is_positive = scores >= 0.5
    return np.asarray((cases * is_positive + controls * ~is_positive).sum(1) / (cases + controls).sum(1))


def brier(scores: Floats, cases: Floats, controls: Floats) -> Floats:
    """Return the Brier score of a classifier: mean squared difference of predicted probability and outcome."""
    squared_errors = cases * (1 - scores) ** 2 + controls * scores**2
    return np.asarray(squared_errors.sum(1) / (cases + controls).sum(1))


def calibration_slope(scores: Floats, cases: Floats, controls: Floats) -> Floats:
    """Return the slope of the outcome on the predicted log odds: below 1 the predictions are too extreme.

    NaN, that is not estimable, where `metrics.logistic_fit` has no fit.
    """
    return fit_line(log_odds(scores), cases, controls).slope


def calibration_intercept(scores: Floats, cases: Floats, controls: Floats) -> Floats:
    """Return the log odds to add to every prediction for a correct mean: above 0 the predictions are too low."""
    return fit_shift(log_odds(scores), cases, controls)[0]


@dataclass(frozen=True, slots=True)
class Recalibration:
    """Line that corrects a classifier's predicted log odds.

    Attributes:
        intercept, slope: The fitted line; NaN if it is not estimable.
    """

    intercept: float
    slope: float

    @property
    def status(self) -> str:
        """Whether the recalibration can be applied: 'fitted', or why it cannot.

        >>> Recalibration(0.1, 0.8).status, Recalibration(0.1, -0.8).status
        ('fitted', 'slope not above 0')
        """
        if not (np.isfinite(self.intercept) and np.isfinite(self.slope)):
            return NOT_ESTIMABLE
        return "fitted" if self.slope > 0 else "slope not above 0"

    @property
    def is_applicable(self) -> bool:
        """Whether the recalibration exists and preserves the order of predictions."""
        return self.status == "fitted"


def recalibration(counts: ScoreHistogram) -> Recalibration:
    """Return the recalibration of a classifier on the scale of log odds, by the fit of the calibration slope.

    A slope of 0 or below would reverse the order of predictions: the result states it, and is not applicable.
    """
    fit = fit_line(log_odds(counts.scores), counts.cases[None], counts.controls[None])
    return Recalibration(float(fit.intercept[0]), float(fit.slope[0]))


def net_benefit(counts: ScoreHistogram, thresholds: Floats) -> tuple[Floats, Floats]:
    """Return a classifier's decision curve: net benefit of treating above each threshold, and of treating all.

    Net benefit is the fraction of true positives minus that of false positives times the odds of the threshold
    (Vickers and Elkin, 2006). Treating no subject has a net benefit of 0.
    """
    n, above = counts.subjects, counts.scores[None] >= thresholds[:, None]
    odds = thresholds / (1 - thresholds)
    by_model = (above * counts.cases).sum(1) / n - odds * (above * counts.controls).sum(1) / n
    return by_model, counts.cases.sum() / n - odds * counts.controls.sum() / n


MetricFunction = Callable[[Floats, Floats, Floats], Floats]


def metric_functions(specificity: float) -> dict[str, MetricFunction]:
    """Return all classification metrics by name, each a function of cases and controls per score."""
    return {
        "auroc": auroc,
        "auprc": auprc,
        f"sensitivity at specificity {specificity:g}": sensitivity_at(specificity),
        "calibration slope": calibration_slope,
        "calibration intercept": calibration_intercept,
        "accuracy": accuracy,
        "brier": brier,
    }


def evaluate_classifier(
    counts: ScoreHistogram,
    *,
    specificity: float = 0.9,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, MetricEstimate]:
    """Return all metrics of a classifier with bootstrap intervals, stratified by cases and controls.

    With cases only or controls only, metrics that need both are NaN.
    """
    metrics = metric_functions(specificity)
    if not counts.subjects:
        return dict.fromkeys(metrics, MetricEstimate(np.nan, np.nan, np.nan))
    if not counts.cases.sum() or not counts.controls.sum():
        unknown = MetricEstimate(np.nan, np.nan, np.nan)
        values = {
            name: float(metrics[name](counts.scores, counts.cases[None], counts.controls[None])[0])
            for name in ("accuracy", "brier")
        }
        estimates = {name: MetricEstimate(value, np.nan, np.nan) for name, value in values.items()}
        return {**dict.fromkeys(metrics, unknown), **estimates}
    rng = np.random.default_rng(seed)
    resampled: dict[str, list[Floats]] = {name: [] for name in metrics}
    for start in range(0, resamples, _RESAMPLES_PER_CHUNK):
        chunk = min(_RESAMPLES_PER_CHUNK, resamples - start)
        cases, controls = (
            _resample(counts_of_group, chunk, rng) for counts_of_group in (counts.cases, counts.controls)
        )
        for name, metric in metrics.items():
            resampled[name].append(metric(counts.scores, cases, controls))
    return {
        name: percentile_interval(
            float(metric(counts.scores, counts.cases[None], counts.controls[None])[0]),
            np.concatenate(resampled[name]) if resamples else np.empty(0),
            level,
        )
        for name, metric in metrics.items()
    }


def evaluate_regression(
    predicted: Floats, actual: Floats, *, resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> dict[str, MetricEstimate]:
    """Return MAE, RMSE, r² and calibration slope of predicted values, with bootstrap intervals as for classifiers."""
    if not len(actual):
        return dict.fromkeys(
            ("mae", "rmse", "r2", "calibration slope"), MetricEstimate(np.nan, np.nan, np.nan)
        )
    predicted, actual = np.asarray(predicted, np.float64), np.asarray(actual, np.float64)
    rng = np.random.default_rng(seed)
    metrics = [_regression_metrics(predicted, actual)]
    for _ in range(resamples):
        sample = rng.integers(0, len(actual), len(actual))
        metrics.append(_regression_metrics(predicted[sample], actual[sample]))
    return {
        name: percentile_interval(metrics[0][name], np.array([r[name] for r in metrics[1:]]), level)
        for name in metrics[0]
    }


def wilson(hits: float, n: float, z: float = 1.959964) -> MetricEstimate:
    """Return a fraction, such as a sensitivity, with Wilson's interval, which stays within 0 and 1.

    >>> print(wilson(0, 10))
    0.000 (0.000 to 0.278)
    """
    if not n:
        return MetricEstimate(np.nan, np.nan, np.nan)
    fraction, correction = hits / n, z * z / n
    middle = (fraction + correction / 2) / (1 + correction)
    half_width = z / (1 + correction) * np.sqrt(fraction * (1 - fraction) / n + correction / (4 * n))
    return MetricEstimate(
        fraction, max(0.0, float(middle - half_width)), min(1.0, float(middle + half_width))
    )


def _regression_metrics(predicted: Floats, actual: Floats) -> Mapping[str, float]:
    errors, centred_values = predicted - actual, actual - actual.mean()
    centred_predictions, value_variation = (
        predicted - predicted.mean(),
        float(np.dot(centred_values, centred_values)),
    )
    prediction_variation = float(np.dot(centred_predictions, centred_predictions))
    return {
        "mae": float(np.abs(errors).mean()),
        "rmse": float(np.sqrt(np.mean(errors**2))),
        "r2": 1 - float(np.dot(errors, errors)) / value_variation if value_variation else np.nan,
        "calibration slope": float(np.dot(centred_predictions, centred_values)) / prediction_variation
        if prediction_variation
        else np.nan,
    }


def _cumulative_from_top(counts: Floats) -> Floats:
    """Return a classifier's cumulative counts from the highest score down."""
    return np.asarray(np.cumsum(counts[:, ::-1], axis=1))


def _resample(counts: Floats, rows: int, rng: np.random.Generator) -> Floats:
    n = int(counts.sum())
    return rng.multinomial(n, counts / n, size=rows).astype(np.float64)


def percentile_interval(value: float, resampled: Floats, level: float) -> MetricEstimate:
    """Return a classification metric with the percentile interval of its bootstrap resamples."""
    finite = resampled[np.isfinite(resampled)]
    if not len(finite):
        return MetricEstimate(value, np.nan, np.nan)
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return MetricEstimate(value, float(low), float(high))
