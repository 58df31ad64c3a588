"""Random-effects meta-analysis of the sites' AUROC, and differences of AUROC between groups of subjects.

Each site contributes its AUROC and standard error (DeLong et al., 1988) on the logit scale. Heterogeneity is estimated
by DerSimonian and Laird, the interval of the mean by Hartung and Knapp, the prediction interval as by Higgins et al.
(2009) with the Hartung-Knapp standard error. Results speak of hospitals like those in the analysis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from abaton.metrics.classification import MetricEstimate
from abaton.metrics.classification_intervals import MIN_CLASS_COUNT

MIN_SITES_FOR_PREDICTION = 5
"""Fewest sites with a prediction interval: with fewer the heterogeneity is hardly known."""

MIN_INTERVAL_CASES = 15
"""Fewest cases, and controls, of an AUROC with an interval: with ten its simulated coverage falls to 83 %."""


@dataclass(frozen=True, slots=True)
class MetaAnalysis:
    """Result of a random-effects meta-analysis on the scale of the metric.

    Attributes:
        mean: Mean over sites with its interval.
        prediction: Interval in which the metric of another such site is expected; None with few sites.
        tau2: Variance between sites on the analysed scale.
        i2: Fraction of the variation that is due to heterogeneity.
        q: Cochran's Q.
        sites: Number of sites.
    """

    mean: MetricEstimate
    prediction: tuple[float, float] | None
    tau2: float
    i2: float
    q: float
    sites: int


class AurocEstimate(NamedTuple):
    """AUROC of a site for a meta-analysis.

    Attributes:
        value: The AUROC; NaN with fewer than two cases or controls.
        standard_error: DeLong's standard error.
        degrees: Degrees of freedom of the error (Brunner and Munzel, 2000).
        rarer: Number of subjects of the rarer class.
    """

    value: float
    standard_error: float
    degrees: float
    rarer: int

    def interval(self, level: float = 0.95) -> MetricEstimate:
        """Return a site's AUROC with its interval, by Student's t on the logit scale of the meta-analysis.

        There is none at 0 and 1, nor below :data:`MIN_INTERVAL_CASES` cases or controls.
        """
        from scipy.stats import t

        if not (0 < self.value < 1 and self.standard_error > 0 and self.rarer >= MIN_INTERVAL_CASES):
            return MetricEstimate(self.value, float("nan"), float("nan"))
        half_width = (
            t.ppf((1 + level) / 2, self.degrees) * self.standard_error / (self.value * (1 - self.value))
        )
        logit = np.log(self.value / (1 - self.value))
        return MetricEstimate(self.value, _expit(logit - half_width), _expit(logit + half_width))


def estimate_auroc(scores: NDArray[np.floating], labels: NDArray[np.integer]) -> AurocEstimate:
    """Return the AUROC and DeLong's standard error for a meta-analysis.

    >>> estimate_auroc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))[:2]
    (0.75, 0.3535533905932738)
    """
    is_case = np.asarray(labels).astype(bool)
    values = np.asarray(scores, np.float64)
    cases, controls = values[is_case], values[~is_case]
    rarer = min(len(cases), len(controls))
    if rarer < 2:
        return AurocEstimate(float("nan"), float("nan"), float("nan"), rarer)
    by_case = _win_fraction(cases, controls)
    by_control = 1 - _win_fraction(controls, cases)
    parts = [(part.var(ddof=1) / len(part), len(part) - 1) for part in (by_case, by_control)]
    variance = float(sum(part for part, _ in parts))
    spread = float(sum(part**2 / degrees for part, degrees in parts))
    degrees = variance**2 / spread if spread > 0 else float("nan")
    return AurocEstimate(float(by_case.mean()), float(np.sqrt(variance)), degrees, rarer)


def _win_fraction(values: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each value the fraction of others below it, ties counting one half."""
    ordered = np.sort(others)
    below, up_to = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return np.asarray((below + up_to) / (2 * len(others)))


def weighted_difference(
    differences: Sequence[float], errors: Sequence[float], counts: Sequence[int], level: float = 0.95
) -> MetricEstimate:
    """Return the mean difference of two models over these sites, weighted by counts of the rarer class.

    It speaks of these sites only: variation between sites does not widen the interval. The error of one small site is
    imprecise, that of the mean less so: sites without an interval of their own contribute. There is no interval with
    fewer than 15 counts in total.

    >>> print(weighted_difference([0.1, 0.0], [0.03, 0.04], [30, 10]))
    0.075 (0.027 to 0.123)
    """
    weights = np.asarray(counts, np.float64) / sum(counts)
    value = float(weights @ np.asarray(differences))
    error = float(np.sqrt(weights**2 @ np.asarray(errors) ** 2))
    if sum(counts) < MIN_CLASS_COUNT or not np.isfinite(error):
        return MetricEstimate(value, float("nan"), float("nan"))
    half_width = NormalDist().inv_cdf((1 + level) / 2) * error
    return MetricEstimate(value, value - half_width, value + half_width)


def auroc_difference(one: MetricEstimate, other: MetricEstimate) -> MetricEstimate:
    """Return the difference of the AUROCs of two groups of subjects; its interval combines theirs (MOVER, Newcombe).

    >>> print(auroc_difference(MetricEstimate(0.8, 0.7, 0.9), MetricEstimate(0.7, 0.6, 0.8)))
    0.100 (-0.041 to 0.241)
    """
    difference = one.value - other.value
    low = difference - float(np.hypot(one.value - one.low, other.high - other.value))
    high = difference + float(np.hypot(one.high - one.value, other.value - other.low))
    return MetricEstimate(difference, low, high)


def combine_auroc(estimates: Sequence[AurocEstimate], level: float = 0.95) -> MetaAnalysis | None:
    """Combine the AUROCs of sites by a random-effects meta-analysis on the logit scale; None with fewer than two sites.

    Sites without a standard error, or with an AUROC of 0 or 1, are dropped.
    """
    from scipy.stats import t

    pairs = [
        (estimate.value, estimate.standard_error)
        for estimate in estimates
        if 0 < estimate.value < 1 and estimate.standard_error > 0
    ]
    if len(pairs) < 2:
        return None
    auroc, error = np.array(pairs).T
    y, variance = np.log(auroc / (1 - auroc)), (error / (auroc * (1 - auroc))) ** 2
    degrees, weights = len(y) - 1, 1 / variance
    q = float((weights * (y - (weights @ y) / weights.sum()) ** 2).sum())
    tau2 = max(0.0, (q - degrees) / float(weights.sum() - (weights**2).sum() / weights.sum()))
    weights = 1 / (variance + tau2)
    mean = float(weights @ y / weights.sum())
    mean_variance = float((weights * (y - mean) ** 2).sum() / (degrees * weights.sum()))
    half_width = t.ppf((1 + level) / 2, degrees) * np.sqrt(mean_variance)
    prediction = None
    if len(y) >= MIN_SITES_FOR_PREDICTION:
        spread = t.ppf((1 + level) / 2, len(y) - 2) * np.sqrt(tau2 + mean_variance)
        prediction = float(_expit(mean - spread)), float(_expit(mean + spread))
    estimate = MetricEstimate(
        *(float(_expit(value)) for value in (mean, mean - half_width, mean + half_width))
    )
    return MetaAnalysis(estimate, prediction, tau2, max(0.0, (q - degrees) / q) if q else 0.0, q, len(y))


def _expit(value: float) -> float:
    return float(1 / (1 + np.exp(-value)))
