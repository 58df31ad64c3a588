"""Confidence intervals of classification metrics from counts of cases and controls per score.

Each method was chosen by measured coverage (`abaton bench references`). All but Wilson's need at least
:data:`MIN_CLASS_COUNT` cases and as many controls; with fewer the coverage is below 93 % and the interval is NaN.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from abaton.metrics.logistic_fit import fit_line, fit_shift, log_odds, sigmoid

Floats = NDArray[np.float64]
Limits = tuple[float, float]

MIN_CLASS_COUNT = 15
"""Smallest number of cases, and of controls, for which intervals of a classifier are stated."""

UNKNOWN_LIMITS: Limits = (math.nan, math.nan)


def t_quantile(level: float, degrees: float) -> float:
    """Return the two-sided quantile of Student's t for a metric's confidence interval."""
    from scipy.stats import t

    return float(t.ppf((1 + level) / 2, degrees)) if degrees > 0 else math.nan


def logit_limits(value: float, error: float, quantile: float) -> Limits:
    """Return limits of a metric between 0 and 1, symmetric on the scale of log odds; NaN at 0 and 1.

    >>> [round(limit, 3) for limit in logit_limits(0.9, 0.05, 2.0)]
    [0.748, 0.965]
    """
    if not 0 < value < 1 or not error > 0:
        return UNKNOWN_LIMITS
    centre, half_width = math.log(value / (1 - value)), quantile * error / (value * (1 - value))
    low, high = sigmoid(np.array([centre - half_width, centre + half_width]))
    return float(low), float(high)


def log_limits(value: float, error: float, quantile: float) -> Limits:
    """Return limits of a positive metric, such as an error, symmetric on the logarithmic scale.

    >>> [round(limit, 3) for limit in log_limits(2.0, 0.1, 2.0)]
    [1.81, 2.21]
    """
    if not value > 0 or not error >= 0:
        return UNKNOWN_LIMITS
    factor = math.exp(min(quantile * error / value, 700.0))
    return value / factor, value * factor


def wilson_limits(fraction: float, n: float, z: float) -> Limits:
    """Return Wilson's limits of a fraction, such as the accuracy of a classifier."""
    correction = z * z / n
    middle = (fraction + correction / 2) / (1 + correction)
    half_width = z / (1 + correction) * math.sqrt(fraction * (1 - fraction) / n + correction / (4 * n))
    return max(0.0, middle - half_width), min(1.0, middle + half_width)


class AurocEstimate(NamedTuple):
    """AUROC with its standard error.

    Attributes:
        value: The AUROC; NaN with fewer than two cases or controls.
        standard_error: DeLong's standard error.
        degrees: Degrees of freedom of the error (Brunner and Munzel, 2000).
    """

    value: float
    standard_error: float
    degrees: float


def estimate_auroc(cases: Floats, controls: Floats) -> AurocEstimate:
    """Return the AUROC and DeLong's standard error, for its interval, from counts by ascending score.

    >>> estimate_auroc(np.array([0.0, 1, 0, 1]), np.array([1.0, 0, 1, 0]))[:2]
    (0.75, 0.3535533905932738)
    """
    n1, n0 = float(cases.sum()), float(controls.sum())
    if min(n1, n0) < 2:
        return AurocEstimate(math.nan, math.nan, math.nan)
    below = np.cumsum(controls) - controls / 2  # of a case: number of controls with a lower score
    above = 1 - (np.cumsum(cases) - cases / 2) / n1
    value = float((cases * below).sum() / (n1 * n0))
    by_case = float((cases * (below / n0 - value) ** 2).sum() / (n1 - 1) / n1)
    by_control = float((controls * (above - value) ** 2).sum() / (n0 - 1) / n0)
    variance = by_case + by_control
    squares = by_case**2 / (n1 - 1) + by_control**2 / (n0 - 1)
    return AurocEstimate(value, math.sqrt(variance), variance**2 / squares if squares > 0 else math.nan)


def auroc_limits(cases: Floats, controls: Floats, level: float) -> Limits:
    """Return limits of a classifier's AUROC: DeLong's variance, log odds, and Student's t.

    With an AUROC of 0 or 1 there is no interval.
    """
    value, error, degrees = estimate_auroc(cases, controls)
    return logit_limits(value, error, t_quantile(level, degrees))


def auprc_limits(value: float, cases: Floats, controls: Floats, level: float) -> Limits:
    """Return limits of a classifier's average precision by the infinitesimal jackknife within sites, on log odds.

    The number of cases is random, because average precision depends on the prevalence: resampling cases and controls
    apart would give intervals that are too short.

    Args:
        value: The average precision.
        cases: Counts of cases per score, one row per site.
        controls: Counts of controls, in the same form.
        level: Confidence level.
    """
    total_cases, total_controls = cases.sum(0)[::-1], controls.sum(0)[::-1]
    n1 = total_cases.sum()
    tp, fp = np.cumsum(total_cases), np.cumsum(total_controls)
    positives = np.maximum(tp + fp, 1)
    # A subject changes the precision at its own score and at all lower ones.
    case_tail = np.cumsum((total_cases * fp / positives**2)[::-1])[::-1]
    control_tail = np.cumsum((total_cases * tp / positives**2)[::-1])[::-1]
    influence_case = ((tp / positives + case_tail - value) / n1)[::-1]
    influence_control = (-control_tail / n1)[::-1]
    variance = 0.0
    for site_cases, site_controls in zip(cases, controls, strict=True):
        n = site_cases.sum() + site_controls.sum()
        if n > 1:
            mean = (site_cases @ influence_case + site_controls @ influence_control) / n
            squares = (
                site_cases @ (influence_case - mean) ** 2 + site_controls @ (influence_control - mean) ** 2
            )
            variance += float(squares * n / (n - 1))
    return logit_limits(value, math.sqrt(variance), t_quantile(level, n1 - 1))


def slope_limits(scores: Floats, cases: Floats, controls: Floats, z: float) -> Limits:
    """Return Wald's limits of a classifier's calibration slope."""
    fit = fit_line(log_odds(scores), cases[None], controls[None])
    slope, error = float(fit.slope[0]), float(fit.slope_error[0])
    return slope - z * error, slope + z * error


def intercept_limits(scores: Floats, cases: Floats, controls: Floats, z: float) -> Limits:
    """Return limits of a classifier's calibration intercept by the sandwich variance: the slope need not be 1."""
    x = log_odds(scores)
    shift, error = (float(values[0]) for values in fit_shift(x, cases[None], controls[None]))
    predicted = sigmoid(x + shift)
    squares = float((cases * (1 - predicted) ** 2 + controls * predicted**2).sum())
    robust_error = math.sqrt(squares) * error**2
    return shift - z * robust_error, shift + z * robust_error


def brier_limits(scores: Floats, cases: Floats, controls: Floats, level: float) -> Limits:
    """Return limits of a classifier's Brier score, a mean, on the logarithmic scale."""
    n = float(cases.sum() + controls.sum())
    mean = float((cases * (1 - scores) ** 2 + controls * scores**2).sum() / n)
    squares = float((cases * ((1 - scores) ** 2 - mean) ** 2 + controls * (scores**2 - mean) ** 2).sum())
    return log_limits(mean, math.sqrt(squares / (n - 1) / n), t_quantile(level, n - 1))


def percentile_limits(resampled: Floats, level: float) -> Limits:
    """Return the percentile limits of a metric's bootstrap resamples, NaN without any."""
    finite = resampled[np.isfinite(resampled)]
    if not len(finite):
        return UNKNOWN_LIMITS
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
