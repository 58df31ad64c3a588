"""Random-effects meta-analysis of the sites' AUROC, and differences of AUROC between groups of subjects.

Each site contributes its AUROC and standard error (DeLong et al., 1988) on the logit scale. Heterogeneity is estimated
by DerSimonian and Laird, the interval of the mean by Hartung and Knapp. Results speak of hospitals like those in the
analysis. There is no prediction interval: that of Higgins et al. (2009) covered 85 to 96 % with five and eight sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from abaton.metrics.classification import MetricEstimate
from abaton.metrics.classification_intervals import MIN_CLASS_COUNT, AurocEstimate
from abaton.metrics.logistic_fit import sigmoid


@dataclass(frozen=True, slots=True)
class MetaAnalysis:
    """Result of a random-effects meta-analysis on the scale of the metric.

    Attributes:
        mean: Mean over sites with its interval.
        tau2: Variance between sites on the analysed scale.
        i2: Fraction of the variation that is due to heterogeneity.
        q: Cochran's Q.
        sites: Number of sites.
    """

    mean: MetricEstimate
    tau2: float
    i2: float
    q: float
    sites: int


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
    estimate = MetricEstimate(*sigmoid(np.array([mean, mean - half_width, mean + half_width])).tolist())
    return MetaAnalysis(estimate, tau2, max(0.0, (q - degrees) / q) if q else 0.0, q, len(y))
