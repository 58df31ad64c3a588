"""Estimates of metrics from released sums of bounded contributions; intervals contain the sampling and the noise.

The sums are those of `abaton.metrics.bounded_sums`, added over sites. Their noise is Gaussian with a known standard
deviation, or absent. AUROC and concordance are those of pairs within sites, weighted by the number of pairs over the
number of subjects of each site. Nothing is estimated from fewer than 10 cases or 10 controls in total, as released.

Estimates speak of these sites. For hospitals like these there are random effects (:func:`combine_sites`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from abaton.metrics.bounded_sums import (
    INTERCEPT_SCALE,
    MAX_LOG_ODDS,
    PAIR_CENTRE,
    PAIR_SCALE,
    SHIFT_SCALE,
    SQUARE_SCALE,
    SlopeLine,
    information_scale,
)
from abaton.metrics.classification import MetricEstimate
from abaton.metrics.classification_intervals import log_limits, t_quantile
from abaton.metrics.meta_analysis import MetaAnalysis

Floats = NDArray[np.float64]

MIN_COUNT = 10
"""Fewest cases, and controls, in total; with noise, as released."""
MAX_PAIR_NOISE = 0.1
"""Largest standard deviation of the noise of an AUROC or concordance that is estimated."""
MAX_SLOPE_NOISE = 0.2
"""Largest standard deviation of the noise of a calibration slope that is estimated."""
SLOPE_NOISE_FACTORS = (2.0, 2 / math.sqrt(3))
"""Noise of the two Newton steps of a calibration slope, relative to that of one sum; they cost as much as one sum."""

_UNKNOWN = MetricEstimate(math.nan, math.nan, math.nan)
_MIN_SITES = 5  # of a random-effects mean: with fewer the variance between sites is hardly known
_MIN_PRECISION = 4.0  # a divisor is used if it is this many standard deviations of its noise
_MAX_CURVATURE_NOISE = 0.25  # of the curvature of the calibration in the large, relative to its slope
_BISECTIONS = 50


@dataclass(frozen=True, slots=True, eq=False)
class ReleasedSum:
    """Released values of a sum and the standard deviation of the noise of each; 0 without noise."""

    values: Floats
    sd: float = 0.0


@dataclass(frozen=True, slots=True)
class ReleasedSizes:
    """Released numbers of cases and controls of several sites in total.

    Attributes:
        cases, controls: Counts with noise; of survival, subjects with an event and without.
        sd: Standard deviation of the noise of each count.
        sites: Number of sites.
    """

    cases: float
    controls: float
    sd: float = 0.0
    sites: int = 1

    @property
    def subjects(self) -> float:
        """Released number of subjects of all sites, with noise."""
        return self.cases + self.controls

    @property
    def has_enough(self) -> bool:
        """Whether both released sizes allow an estimate."""
        return min(self.cases, self.controls) >= MIN_COUNT


def add_sums(parts: Iterable[ReleasedSum]) -> ReleasedSum:
    """Return the total of the released sums of several sites; independent noise adds up in its variance.

    >>> add_sums([ReleasedSum(np.array([1.0]), 3.0), ReleasedSum(np.array([2.0]), 4.0)]).sd
    5.0
    """
    sums = list(parts)
    return ReleasedSum(
        np.sum([part.values for part in sums], axis=0), math.hypot(*(part.sd for part in sums))
    )


def add_sizes(parts: Iterable[ReleasedSizes]) -> ReleasedSizes:
    """Return the total of the released class sizes of several sites."""
    sizes = list(parts)
    return ReleasedSizes(
        sum(part.cases for part in sizes),
        sum(part.controls for part in sizes),
        math.hypot(*(part.sd for part in sizes)),
        sum(part.sites for part in sizes),
    )


def estimate_pairs(
    total: ReleasedSum, sizes: ReleasedSizes, level: float = 0.95, *, is_survival: bool = False
) -> MetricEstimate:
    """Return the AUROC, or the concordance, of pairs within sites from their released pair sums.

    The limits are the values at which the estimate is just not rejected, with the variance at these values as in
    Wilson's interval (Newcombe, 2006, method 5), plus that of the noise. There is no estimate if a class is too small
    or the noise above :data:`MAX_PAIR_NOISE`.
    """
    deviation, pairs = float(total.values[0]), float(total.values[1]) / PAIR_SCALE
    if not sizes.has_enough or pairs <= 0 or total.sd / pairs > MAX_PAIR_NOISE:
        return _UNKNOWN
    value = PAIR_CENTRE + deviation / pairs
    others = pairs * sizes.subjects / sizes.cases if is_survival else sizes.controls

    def variance(auroc: float) -> float:
        sampling = _pair_variance(auroc, sizes.cases + others, sizes.sites) / (sizes.subjects * pairs)
        noise = (1 + ((auroc - PAIR_CENTRE) / PAIR_SCALE) ** 2) * (total.sd / pairs) ** 2
        return sampling + noise

    low, high = _score_limits(value, variance, level)
    return MetricEstimate(min(1.0, max(0.0, value)), low, high)


def pairs_error(total: ReleasedSum, sizes: ReleasedSizes) -> tuple[float, float, float]:
    """Return AUROC or concordance of a released sum, its standard error and its weight, for random effects."""
    estimate = estimate_pairs(total, sizes, NormalDist().cdf(1) * 2 - 1)
    return estimate.value, (estimate.high - estimate.low) / 2, float(total.values[1]) / PAIR_SCALE


def _pair_variance(auroc: float, subjects: float, sites: int) -> float:
    """Return the sampling variance of pair sums over sites of equal prevalence, times subjects and pairs.

    Hanley and McNeil's formula with half of the subjects for either class, as in Newcombe's method 5.
    """
    by_case, by_control = auroc / (2 - auroc), 2 * auroc * auroc / (1 + auroc)
    shared = by_case + by_control - 2 * auroc * auroc
    return sites * auroc * (1 - auroc) + max(0.0, subjects / 2 - sites) * shared


def _score_limits(value: float, variance: Callable[[float], float], level: float) -> tuple[float, float]:
    """Return the ends of the range in [0, 1] of values from which an estimate is not too far."""
    z = NormalDist().inv_cdf((1 + level) / 2)

    def is_inside(candidate: float) -> bool:
        return abs(value - candidate) <= z * math.sqrt(variance(candidate))

    limits = []
    inside = min(1.0, max(0.0, value))
    for end in (0.0, 1.0):
        if is_inside(end):
            limits.append(end)
            continue
        inner, outer = inside, end
        for _ in range(_BISECTIONS):
            middle = (inner + outer) / 2
            inner, outer = (middle, outer) if is_inside(middle) else (inner, middle)
        limits.append(inner)
    return limits[0], limits[1]


def estimate_intercept(total: ReleasedSum, sizes: ReleasedSizes, level: float = 0.95) -> MetricEstimate:
    """Return the calibration in the large from released sums: the log odds that all predictions lack.

    The sum of predictions is known at shifts of -1, 0 and 1 and interpolated by a parabola; beyond, by a line. The
    bias of the second order, which is that of maximum likelihood, is subtracted (Firth, 1993).
    """
    residual = float(total.values[0])
    up, down = (float(value) / SHIFT_SCALE for value in total.values[1:3])
    slope, slope_sd = (up + down) / 2, total.sd / SHIFT_SCALE / math.sqrt(2)
    if not sizes.has_enough or slope <= _MIN_PRECISION * slope_sd or slope <= 0:
        return _UNKNOWN
    curvature = up - down if 2 * slope_sd <= _MAX_CURVATURE_NOISE * slope else 0.0
    discriminant = slope**2 + 2 * curvature * residual
    shift = residual / slope
    if discriminant > 0:
        shift = 2 * residual / (slope + math.sqrt(discriminant))
    if abs(shift) > 1:
        side, reached = (1.0, up) if residual > 0 else (-1.0, -down)
        steepness = max(slope + side * curvature, slope / 4)
        shift = side + (residual - reached) / steepness if curvature else residual / slope
    steepness = max(slope + curvature * min(1.0, max(-1.0, shift)), slope / 4)
    variance = (steepness + total.sd**2 + (shift * slope_sd) ** 2) / steepness**2
    shift += (
        curvature / steepness * (steepness + total.sd**2) / (2 * steepness**2)
    )  # bias of the second order
    error = math.sqrt(variance)
    half_width = NormalDist().inv_cdf((1 + level) / 2) * error
    return MetricEstimate(shift, shift - half_width, shift + half_width)


def estimate_brier(total: ReleasedSum, sizes: ReleasedSizes, level: float = 0.95) -> MetricEstimate:
    """Return the Brier score from the released sums of squared errors and of their squares."""
    return _estimate_mean(total.values[0], total.values[1] / SQUARE_SCALE, total.sd, sizes, level)


def estimate_accuracy(total: ReleasedSum, sizes: ReleasedSizes, level: float = 0.95) -> MetricEstimate:
    """Return the accuracy from the released number of correct predictions; limits are those of the errors' mean."""
    error_count = sizes.subjects - float(total.values[0])
    errors = _estimate_mean(error_count, error_count, total.sd, sizes, level)
    return MetricEstimate(1 - errors.value, 1 - errors.high, 1 - errors.low)


def _estimate_mean(
    total: float, squares: float, sd: float, sizes: ReleasedSizes, level: float
) -> MetricEstimate:
    """Return the mean of values from 0 to 1 from released sums; none of few subjects."""
    n = sizes.subjects
    if not sizes.has_enough:
        return _UNKNOWN
    mean = max(0.0, float(total) / n)
    spread = min(mean, max(0.0, float(squares) / n - mean**2))
    noise = math.hypot(sd, mean * math.sqrt(2) * sizes.sd) / n
    low, high = _mean_limits(mean, math.sqrt(spread / n), noise, t_quantile(level, max(1.0, n - 1)))
    return MetricEstimate(min(1.0, mean), low, min(1.0, high))


def _mean_limits(mean: float, error: float, noise: float, quantile: float) -> tuple[float, float]:
    """Return limits of a mean of values above 0: of the sampling on the log scale, of the noise symmetric (MOVER)."""
    if not mean > 0:
        return 0.0, quantile * noise
    low, high = log_limits(mean, error, quantile)
    return (
        max(0.0, mean - math.hypot(mean - low, quantile * noise)),
        mean + math.hypot(high - mean, quantile * noise),
    )


@dataclass(frozen=True, slots=True)
class SlopeStep:
    """Line of the calibration slope after a Newton step.

    Attributes:
        line: The line.
        sampling, noise: Variances of the line's slope by sampling, and by the noise of this step's sums.
    """

    line: SlopeLine
    sampling: float
    noise: float


def newton_step(line: SlopeLine, total: ReleasedSum) -> SlopeStep | None:
    """Return the calibration slope's line after a Newton step on released sums.

    The noise is that of the gradient, and that of the information matrix times the step. None if the information is too
    small compared with its noise.
    """
    gradient, scale = total.values[:2], information_scale(line)
    first, mixed, second = total.values[2:5] / scale
    noise = total.sd / scale
    determinant = float(first * second - mixed * mixed)
    if first <= _MIN_PRECISION * noise[0] or second <= _MIN_PRECISION * noise[2] or determinant <= 0:
        return None
    inverse = np.linalg.inv(np.array([[first, mixed], [mixed, second]]))
    step = inverse @ gradient
    by_matrix = [
        (noise[0] * step[0]) ** 2 + (noise[1] * step[1]) ** 2,
        (noise[1] * step[0]) ** 2 + (noise[2] * step[1]) ** 2,
    ]
    covariance = inverse @ (total.sd**2 * np.eye(2) + np.diag(by_matrix)) @ inverse
    moved = SlopeLine(
        line.centre, line.intercept + INTERCEPT_SCALE * float(step[0]), line.slope + float(step[1])
    )
    return SlopeStep(moved, float(inverse[1, 1]), float(covariance[1, 1]))


def estimate_slope(
    sum_at: Callable[[SlopeLine, float], ReleasedSum], sizes: ReleasedSizes, level: float = 0.95
) -> MetricEstimate:
    """Return the calibration slope from two Newton steps on released sums, with Wald's limits.

    The first step finds where the second one starts; it changes the slope by a factor of two at most. There is no
    estimate if a class is too small or the noise above :data:`MAX_SLOPE_NOISE`.

    Args:
        sum_at: Returns the released sums of `slope_contributions` for a line, and the factor of the usual noise.
        sizes: Released class sizes.
        level: Confidence level.
    """
    if not sizes.has_enough:
        return _UNKNOWN
    line, step = SlopeLine.start(sizes.cases, sizes.controls), None
    for factor in SLOPE_NOISE_FACTORS:
        step = newton_step(line, sum_at(line, factor))
        if step is None:
            return _UNKNOWN
        line = _limit_step(line, step.line)
    if step is None or step.noise > (MAX_SLOPE_NOISE * MAX_LOG_ODDS) ** 2:
        return _UNKNOWN
    value, error = step.line.slope / MAX_LOG_ODDS, math.sqrt(step.sampling + step.noise) / MAX_LOG_ODDS
    half_width = NormalDist().inv_cdf((1 + level) / 2) * error
    return MetricEstimate(value, value - half_width, value + half_width)


def _limit_step(line: SlopeLine, moved: SlopeLine) -> SlopeLine:
    """Return the line of a Newton step whose slope is at least half and at most twice the one before."""
    slope = min(max(moved.slope, line.slope / 2), line.slope * 2)
    part = (slope - line.slope) / (moved.slope - line.slope) if moved.slope != line.slope else 1.0
    return SlopeLine(line.centre, line.intercept + part * (moved.intercept - line.intercept), slope)


def estimate_regression(
    total: ReleasedSum, subjects: float, subjects_sd: float, low: float, high: float, level: float = 0.95
) -> dict[str, MetricEstimate]:
    """Return MAE, RMSE and R² of values on a declared range from released sums.

    Errors above half of the range count as half of it. The limits of RMSE are those of its square; the sampling error
    of R² is that of normal errors.

    Args:
        total: Released sums of `regression_contributions`.
        subjects: Released number of subjects.
        subjects_sd: Standard deviation of its noise.
        low: Lower end of the declared range.
        high: Upper end of the declared range.
        level: Confidence level.
    """
    if subjects < MIN_COUNT:
        return dict.fromkeys(("rmse", "mae", "r2"), _UNKNOWN)
    unit, z = (high - low) / 2, t_quantile(level, subjects - 1)
    means = total.values / subjects
    absolute, squared, fourth = float(means[0]), float(means[1]), float(means[2]) / SQUARE_SCALE

    def limits(mean: float, square: float) -> tuple[float, ...]:
        error = math.sqrt(max(0.0, square - mean**2) / subjects)
        noise = math.hypot(total.sd, mean * subjects_sd) / subjects
        return max(0.0, mean), *_mean_limits(mean, error, noise, z)

    mae = MetricEstimate(*(unit * value for value in limits(absolute, squared)))
    rmse = MetricEstimate(*(unit * math.sqrt(value) for value in limits(squared, fourth)))
    relative_noise = total.sd / subjects / squared if squared > 0 else math.inf
    if relative_noise < 1:  # the noise makes the root of a mean too small
        rmse = replace(rmse, value=rmse.value * (1 + relative_noise**2 / 8))
    distance, square = 2 * float(means[3]), float(means[4])
    variance = square - distance**2
    variance_sd = total.sd * math.hypot(1.0, 4 * distance) / subjects
    if variance <= _MIN_PRECISION * variance_sd or variance <= 1e-12:
        return {"rmse": rmse, "mae": mae, "r2": _UNKNOWN}
    ratio = max(0.0, squared) / variance
    sampling = 4 * max(0.0, 1 - ratio) * ratio**2 / subjects
    noise = (total.sd / subjects / variance) ** 2 + (ratio * variance_sd / variance) ** 2
    half_width = z * math.sqrt(sampling + noise)
    return {
        "rmse": rmse,
        "mae": mae,
        "r2": MetricEstimate(1 - ratio, 1 - ratio - half_width, min(1.0, 1 - ratio + half_width)),
    }


def combine_sites(
    values: Sequence[float], errors: Sequence[float], weights: Sequence[float], level: float = 0.95
) -> MetaAnalysis | None:
    """Return the random-effects mean of a metric over sites from noisy estimates; None with fewer than five sites.

    The weights are given, such as the number of cases: weights by estimated variance would favour the AUROCs that are
    too high or too low at random. The variance between sites is the estimate of DerSimonian and Laird for given weights
    (DerSimonian and Kacker, 2007), the interval of the mean that of Hartung and Knapp.

    Args:
        values: Metric of each site.
        errors: Their standard errors, with the noise.
        weights: Weight of each site.
        level: Confidence level.
    """
    sites = len(values)
    if sites < _MIN_SITES:
        return None
    y, w = np.asarray(values, np.float64), np.asarray(weights, np.float64) / np.sum(weights)
    variance = np.asarray(errors, np.float64) ** 2
    mean = float(w @ y)
    q = float(w @ (y - mean) ** 2)
    expected = float(w @ variance - w**2 @ variance)
    tau2 = max(0.0, (q - expected) / float(1 - w @ w))
    mean_variance = float(w**2 @ (y - mean) ** 2 / (1 - w @ w))
    half_width = t_quantile(level, sites - 1) * math.sqrt(mean_variance)
    low, high = (min(1.0, max(0.0, mean + side * half_width)) for side in (-1, 1))
    return MetaAnalysis(
        MetricEstimate(mean, low, high),
        tau2,
        max(0.0, (q - expected) / q) if q else 0.0,
        q,
        sites,
    )
