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


def effective_count(counts: Floats, squares: Floats) -> float:
    """Return the effective number of weighted subjects for a confidence interval: squared sum over sum of squares."""
    total = float(counts.sum())
    return total * total / float(squares.sum())


def effective_fraction_count(
    hits: Floats, misses: Floats, squared_hits: Floats, squared_misses: Floats
) -> float:
    """Return the number of subjects for which the binomial variance of a fraction is that with weights.

    >>> ones, threes = np.array([1.0]), np.array([3.0])
    >>> effective_fraction_count(ones, threes, ones, threes), effective_fraction_count(ones, threes, ones, 9 * ones)
    (4.0, 2.6666666666666665)
    """
    a, b = float(hits.sum()), float(misses.sum())
    total = a + b
    fraction = a / total
    squared = float(squared_hits.sum()) * (1 - fraction) ** 2 + float(squared_misses.sum()) * fraction**2
    if not squared:
        return effective_count(np.array([a, b]), np.array([squared_hits.sum(), squared_misses.sum()]))
    return total * ((a * (1 - fraction) ** 2 + b * fraction**2) / squared)


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


def estimate_auroc(
    cases: Floats, controls: Floats, squares: tuple[Floats, Floats] | None = None
) -> AurocEstimate:
    """Return the AUROC and DeLong's standard error, for its interval, from counts by ascending score.

    `squares` are the sums of squared weights of cases and of controls, if the counts are sums of weights.

    >>> estimate_auroc(np.array([0.0, 1, 0, 1]), np.array([1.0, 0, 1, 0]))[:2]
    (0.75, 0.3535533905932738)
    """
    n1, n0 = float(cases.sum()), float(controls.sum())
    case_squares, control_squares = squares or (cases, controls)
    s1, s0 = float(case_squares.sum()), float(control_squares.sum())
    if not min(n1, n0) or min(m1 := n1 * n1 / s1, m0 := n0 * n0 / s0) < 2:
        return AurocEstimate(math.nan, math.nan, math.nan)
    below = np.cumsum(controls) - controls / 2  # of a case: number of controls with a lower score
    above = 1 - (np.cumsum(cases) - cases / 2) / n1
    value = float((cases * below).sum() / (n1 * n0))
    by_case = float((case_squares * (below / n0 - value) ** 2).sum() / (m1 - 1) / s1)
    by_control = float((control_squares * (above - value) ** 2).sum() / (m0 - 1) / s0)
    variance = by_case + by_control
    spread = by_case**2 / (m1 - 1) + by_control**2 / (m0 - 1)
    return AurocEstimate(value, math.sqrt(variance), variance**2 / spread if spread > 0 else math.nan)


def auroc_limits(
    cases: Floats, controls: Floats, level: float, squares: tuple[Floats, Floats] | None = None
) -> Limits:
    """Return limits of a classifier's AUROC: DeLong's variance, log odds, and Student's t.

    With an AUROC of 0 or 1 there is no interval.
    """
    value, error, degrees = estimate_auroc(cases, controls, squares)
    return logit_limits(value, error, t_quantile(level, degrees))


def auprc_limits(
    value: float,
    cases: Floats,
    controls: Floats,
    level: float,
    squares: tuple[Floats, Floats] | None = None,
) -> Limits:
    """Return limits of a classifier's average precision by the infinitesimal jackknife within sites, on log odds.

    The number of cases is random, because average precision depends on the prevalence: resampling cases and controls
    apart would give intervals that are too short.

    Args:
        value: The average precision.
        cases: Counts of cases per score, one row per site.
        controls: Counts of controls, in the same form.
        level: Confidence level.
        squares: Squared weights of cases and controls, in the same form, if subjects have weights.
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
    case_squares, control_squares = squares or (cases, controls)
    for site_cases, site_controls, squared_cases, squared_controls in zip(
        cases, controls, case_squares, control_squares, strict=True
    ):
        total = site_cases.sum() + site_controls.sum()
        n = total * total / (squared_cases.sum() + squared_controls.sum()) if total else 0.0
        if n > 1:
            mean = (site_cases @ influence_case + site_controls @ influence_control) / total
            spread = (
                squared_cases @ (influence_case - mean) ** 2
                + squared_controls @ (influence_control - mean) ** 2
            )
            variance += float(spread * n / (n - 1))
    return logit_limits(
        value, math.sqrt(variance), t_quantile(level, effective_count(cases, case_squares) - 1)
    )


def slope_limits(
    scores: Floats,
    cases: Floats,
    controls: Floats,
    z: float,
    squares: tuple[Floats, Floats] | None = None,
) -> Limits:
    """Return Wald's limits of a classifier's calibration slope; with weights its variance has their design effect."""
    x = log_odds(scores)
    fit = fit_line(x, cases[None], controls[None])
    slope, error = float(fit.slope[0]), float(fit.slope_error[0])
    if squares is not None:
        fitted = sigmoid(float(fit.intercept[0]) + slope * x)
        error *= math.sqrt(design_effect(fitted, cases, controls, squares))
    return slope - z * error, slope + z * error


def design_effect(fitted: Floats, cases: Floats, controls: Floats, squares: tuple[Floats, Floats]) -> float:
    """Return by how much weights of subjects change the variance of a fit, for its confidence interval; 1 for counts.

    It is the sum of squared residuals with squared weights over that with weights.
    """
    weighted, squared = (
        float((first * (1 - fitted) ** 2 + second * fitted**2).sum())
        for first, second in ((cases, controls), squares)
    )
    return squared / weighted if weighted else math.nan


def intercept_limits(
    scores: Floats,
    cases: Floats,
    controls: Floats,
    z: float,
    squares: tuple[Floats, Floats] | None = None,
) -> Limits:
    """Return limits of a classifier's calibration intercept by the sandwich variance: the slope need not be 1."""
    x = log_odds(scores)
    shift, error = (float(values[0]) for values in fit_shift(x, cases[None], controls[None]))
    predicted = sigmoid(x + shift)
    case_squares, control_squares = squares or (cases, controls)
    spread = float((case_squares * (1 - predicted) ** 2 + control_squares * predicted**2).sum())
    robust_error = math.sqrt(spread) * error**2
    return shift - z * robust_error, shift + z * robust_error


def brier_limits(
    scores: Floats,
    cases: Floats,
    controls: Floats,
    level: float,
    squares: tuple[Floats, Floats] | None = None,
) -> Limits:
    """Return limits of a classifier's Brier score, a mean, on the logarithmic scale."""
    total = float(cases.sum() + controls.sum())
    mean = float((cases * (1 - scores) ** 2 + controls * scores**2).sum() / total)
    case_squares, control_squares = squares or (cases, controls)
    spread = float(
        (case_squares * ((1 - scores) ** 2 - mean) ** 2 + control_squares * (scores**2 - mean) ** 2).sum()
    )
    squared_total = float(case_squares.sum() + control_squares.sum())
    n = total * total / squared_total
    return log_limits(mean, math.sqrt(spread / (n - 1) / squared_total), t_quantile(level, n - 1))


def percentile_limits(resampled: Floats, level: float) -> Limits:
    """Return the percentile limits of a metric's bootstrap resamples, NaN without any."""
    finite = resampled[np.isfinite(resampled)]
    if not len(finite):
        return UNKNOWN_LIMITS
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
