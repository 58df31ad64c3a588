"""Clinical metrics of classifiers: discrimination, calibration and sensitivity, with confidence intervals.

All metrics are computed from counts of cases and controls at each score. Counts over the same bins add up, so sites
send counts instead of subjects' scores, and the sum is evaluated as if all subjects were in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.metrics.classification_intervals import (
    MIN_CLASS_COUNT,
    UNKNOWN_LIMITS,
    AurocEstimate,
    auprc_limits,
    auroc_limits,
    brier_limits,
    effective_fraction_count,
    estimate_auroc,
    intercept_limits,
    percentile_limits,
    slope_limits,
    wilson_limits,
)
from abaton.metrics.logistic_fit import MIN_PROBABILITY, fit_line, fit_shift, log_odds, sigmoid

Floats = NDArray[np.float64]

BINS = 4000
"""Bins of the histograms that sites release, equally wide on the scale of log odds, the same at all sites."""

_RESAMPLES_PER_CHUNK = 100  # limits memory
_MAX_LOG_ODDS = -float(np.log(MIN_PROBABILITY))
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


def estimate_to_json(estimate: MetricEstimate) -> dict[str, float | None]:
    """Return a metric's estimate as JSON values; None for values that are not finite.

    >>> estimate_to_json(MetricEstimate(0.8, np.nan, np.nan))
    {'value': 0.8, 'low': None, 'high': None}
    """
    return {key: value if np.isfinite(value) else None for key, value in asdict(estimate).items()}


@dataclass(frozen=True, slots=True, eq=False)
class ScoreHistogram:
    """Numbers of cases and controls by predicted probability, or sums of their weights.

    Attributes:
        scores: The probabilities, ascending.
        cases, controls: Subjects with each probability, or the sum of their weights.
        weighting: Of weighted subjects, the histograms of squared weights and of numbers of subjects.
    """

    scores: Floats
    cases: Floats
    controls: Floats
    weighting: tuple[ScoreHistogram, ScoreHistogram] | None = field(default=None, kw_only=True)

    @property
    def subjects(self) -> int:
        """Number of subjects in a classifier's score histogram."""
        counts = self.unweighted
        return int(counts.cases.sum() + counts.controls.sum())

    @property
    def squared(self) -> ScoreHistogram:
        """Histogram of a classifier's squared weights, from which variances follow; of counts the same counts."""
        return self if self.weighting is None else self.weighting[0]

    @property
    def unweighted(self) -> ScoreHistogram:
        """Numbers of subjects in a classifier's score histogram."""
        return self if self.weighting is None else self.weighting[1]

    def auroc_estimate(self) -> AurocEstimate:
        """Return the AUROC of a classifier's score histogram with its standard error."""
        squares = self.squared
        return estimate_auroc(self.cases, self.controls, (squares.cases, squares.controls))

    def curve(self) -> tuple[Floats, Floats]:
        """Return the ROC curve: false positive rate and sensitivity at every threshold, from none positive to all."""
        tp, fp = _cumulative_from_top(self.cases[None]), _cumulative_from_top(self.controls[None])
        return np.append(0.0, fp[0] / fp[0, -1]), np.append(0.0, tp[0] / tp[0, -1])

    def calibration(self, groups: int = 10) -> list[tuple[float, MetricEstimate]]:
        """Return the classifier's calibration: mean predicted probability and fraction of cases, in equal groups."""
        total, squares = self.cases + self.controls, self.squared.cases + self.squared.controls
        group_index = np.minimum((np.cumsum(total) - total / 2) / total.sum() * groups, groups - 1).astype(
            int
        )
        points = []
        for group in np.unique(group_index[total > 0]):
            is_member = group_index == group
            n, k = float(total[is_member].sum()), float(self.cases[is_member].sum())
            effective = n / float(squares[is_member].sum())  # subjects per weight; 1 for counts
            mean = float((self.scores * total)[is_member].sum() / n)
            points.append((mean, wilson(k * effective, n * effective)))
        return points


def count_scores(
    probabilities: NDArray[np.floating],
    labels: NDArray[np.integer],
    *,
    bins: int = 0,
    weights: NDArray[np.floating] | None = None,
) -> ScoreHistogram:
    """Count cases (label 1) and controls (label 0) by a classifier's probability, exactly or in bins.

    With weights of subjects, the histogram has their sums. Bins have equal widths on the scale of log odds, so rare
    outcomes and extreme predictions have enough of them.

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
        scores, bin_index = bin_scores(bins), bin_indices(probabilities, bins)
    else:
        scores, bin_index = np.unique(probabilities, return_inverse=True)
    is_case = np.asarray(labels).astype(bool)

    def count(power: int) -> ScoreHistogram:
        return ScoreHistogram(
            scores,
            *(
                np.bincount(
                    bin_index[members],
                    None
                    if weights is None or not power
                    else np.asarray(weights, np.float64)[members] ** power,
                    minlength=len(scores),
                ).astype(float)
                for members in (is_case, ~is_case)
            ),
        )

    return count(0) if weights is None else replace(count(1), weighting=(count(2), count(0)))


def bin_scores(bins: int = BINS) -> Floats:
    """Return the probability that represents each bin of a classifier's score histogram: its middle in log odds.

    >>> bin_scores(4).round(6).tolist()
    [0.0, 0.000999, 0.999001, 1.0]
    """
    middles = (np.arange(bins) + 0.5) / bins
    return sigmoid((2 * middles - 1) * _MAX_LOG_ODDS)


def bin_indices(probabilities: NDArray[np.floating], bins: int = BINS) -> NDArray[np.int64]:
    """Return the bin of each predicted probability in a classifier's score histogram."""
    position = (log_odds(probabilities) / _MAX_LOG_ODDS + 1) / 2 * bins
    return np.clip(np.floor(position), 0, bins - 1).astype(np.int64)


def merge_histograms(histograms: Iterable[ScoreHistogram]) -> ScoreHistogram:
    """Return the sum of the classifier score histograms of several sites, over the union of their scores."""
    parts = list(histograms)
    scores, cases, controls = _stack_histograms(parts)
    weighting = None
    if any(part.weighting is not None for part in parts):
        weighting = (
            merge_histograms(part.squared for part in parts),
            merge_histograms(part.unweighted for part in parts),
        )
    return ScoreHistogram(scores, cases.sum(0), controls.sum(0), weighting=weighting)


def _stack_histograms(histograms: Sequence[ScoreHistogram]) -> tuple[Floats, Floats, Floats]:
    """Return the union of the scores of a classifier's histograms, and the counts of each, one row per histogram."""
    first = histograms[0].scores
    if all(np.array_equal(first, histogram.scores) for histogram in histograms[1:]):
        return (
            first,
            np.stack([histogram.cases for histogram in histograms]),
            np.stack([histogram.controls for histogram in histograms]),
        )
    scores = np.unique(np.concatenate([histogram.scores for histogram in histograms]))
    cases, controls = np.zeros((2, len(histograms), len(scores)))
    for row, histogram in enumerate(histograms):
        columns = np.searchsorted(scores, histogram.scores)
        cases[row, columns], controls[row, columns] = histogram.cases, histogram.controls
    return scores, cases, controls


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

    def apply(self, probabilities: NDArray[np.floating]) -> Floats:
        """Return predicted probabilities of a classifier corrected by the recalibration."""
        return sigmoid(self.intercept + self.slope * log_odds(probabilities))


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
    n = float(counts.cases.sum() + counts.controls.sum())
    above = counts.scores[None] >= thresholds[:, None]
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
    counts: ScoreHistogram | Sequence[ScoreHistogram],
    *,
    specificity: float = 0.9,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, MetricEstimate]:
    """Return all metrics of a classifier with confidence intervals.

    Intervals: DeLong with Student's t for AUROC; the infinitesimal jackknife within sites for AUPRC; the percentile
    bootstrap, stratified by site and class, for sensitivity; Wald for the calibration slope and sandwich for the
    intercept; Wilson for accuracy; the standard error of the mean for the Brier score. Except for accuracy, there is
    no interval below 15 cases or 15 controls. With cases only or controls only, metrics that need both are NaN. With
    weights of subjects, variances are sums over squared weights, and the bootstrap and Wilson's interval use the
    effective number of subjects; weights are taken as known.

    Args:
        counts: Histogram of all subjects, or one of each site.
        specificity: Specificity at which sensitivity is computed.
        resamples: Number of bootstrap samples.
        seed: Seed of the bootstrap.
        level: Confidence level.
    """
    names = metric_functions(specificity)
    histograms = [counts] if isinstance(counts, ScoreHistogram) else list(counts)
    unknown = MetricEstimate(np.nan, np.nan, np.nan)
    if not sum(histogram.subjects for histogram in histograms):
        return dict.fromkeys(names, unknown)
    scores, site_cases, site_controls = _stack_histograms(histograms)
    _, site_case_squares, site_control_squares = _stack_histograms([part.squared for part in histograms])
    is_filled = (site_cases + site_controls).sum(0) > 0
    scores, site_cases, site_controls, site_case_squares, site_control_squares = (
        scores[is_filled],
        site_cases[:, is_filled],
        site_controls[:, is_filled],
        site_case_squares[:, is_filled],
        site_control_squares[:, is_filled],
    )
    cases, controls = site_cases.sum(0), site_controls.sum(0)
    squares = site_case_squares.sum(0), site_control_squares.sum(0)
    class_counts = [
        sum(float(members.sum()) for members in parts)
        for parts in zip(*((h.unweighted.cases, h.unweighted.controls) for h in histograms), strict=True)
    ]
    has_both = bool(cases.sum() and controls.sum())
    values = {
        name: float(metric(scores, cases[None], controls[None])[0])
        for name, metric in names.items()
        if has_both or name in ("accuracy", "brier")
    }
    z, is_positive = NormalDist().inv_cdf((1 + level) / 2), scores >= 0.5
    n = effective_fraction_count(
        np.where(is_positive, cases, controls), np.where(is_positive, controls, cases),
        np.where(is_positive, squares[0], squares[1]), np.where(is_positive, squares[1], squares[0]),
    )  # fmt: skip
    limits = {"accuracy": wilson_limits(values["accuracy"], n, z)}
    if min(class_counts) >= MIN_CLASS_COUNT:
        sensitivity = f"sensitivity at specificity {specificity:g}"
        site_squares = site_case_squares, site_control_squares
        resampled = _resample_metric(
            names[sensitivity], (scores, site_cases, site_controls), site_squares, resamples, seed
        )
        limits |= {
            "auroc": auroc_limits(cases, controls, level, squares),
            "auprc": auprc_limits(values["auprc"], site_cases, site_controls, level, site_squares),
            sensitivity: percentile_limits(resampled, level),
            "calibration slope": slope_limits(scores, cases, controls, z, squares),
            "calibration intercept": intercept_limits(scores, cases, controls, z, squares),
            "brier": brier_limits(scores, cases, controls, level, squares),
        }
    return {
        name: MetricEstimate(values[name], *limits.get(name, UNKNOWN_LIMITS)) if name in values else unknown
        for name in names
    }


def _resample_metric(
    metric: MetricFunction,
    counts: tuple[Floats, Floats, Floats],
    squares: tuple[Floats, Floats],
    resamples: int,
    seed: int,
) -> Floats:
    """Return a classification metric of bootstrap samples, drawn within each site and class.

    A sample of weighted subjects has their effective number, and the weight that they have.
    """
    rng, (scores, site_cases, site_controls) = np.random.default_rng(seed), counts
    resampled = [np.empty(0)]
    for start in range(0, resamples, _RESAMPLES_PER_CHUNK):
        rows = min(_RESAMPLES_PER_CHUNK, resamples - start)
        cases, controls = (
            np.sum(
                [_resample(site, part, rows, rng) for site, part in zip(*strata, strict=True) if site.sum()],
                axis=0,
            )
            for strata in ((site_cases, squares[0]), (site_controls, squares[1]))
        )
        resampled.append(metric(scores, cases, controls))
    return np.concatenate(resampled)


def wilson(hits: float, n: float, z: float = 1.959964) -> MetricEstimate:
    """Return a fraction, such as a sensitivity, with Wilson's interval, which stays within 0 and 1.

    >>> print(wilson(0, 10))
    0.000 (0.000 to 0.278)
    """
    if not n:
        return MetricEstimate(np.nan, np.nan, np.nan)
    return MetricEstimate(hits / n, *wilson_limits(hits / n, n, z))


def _cumulative_from_top(counts: Floats) -> Floats:
    """Return a classifier's cumulative counts from the highest score down."""
    return np.asarray(np.cumsum(counts[:, ::-1], axis=1))


def _resample(counts: Floats, squares: Floats, rows: int, rng: np.random.Generator) -> Floats:
    total = float(counts.sum())
    n = max(1, round(total**2 / float(squares.sum())))
    return np.asarray(rng.multinomial(n, counts / total, size=rows) * (total / n), np.float64)
