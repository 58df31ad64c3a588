"""Regression metrics from error sums that add up over sites; no value or prediction is sent."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from abaton.metrics.classification import MetricEstimate
from abaton.metrics.classification_intervals import UNKNOWN_LIMITS, log_limits, t_quantile

_UNKNOWN = MetricEstimate(math.nan, math.nan, math.nan)


MIN_SUBJECTS = 50
"""Smallest number of subjects for which intervals of RMSE and explained variance are stated."""
MIN_MAE_SUBJECTS = 20
"""Smallest number of subjects for which an interval of MAE is stated."""

_LOST_DEGREES = 8  # a sample's fourth moment is too small on average; chosen by measured coverage


@dataclass(frozen=True, slots=True)
class RegressionSums:
    """Sums over subjects that add up over sites with the same centre of values.

    Attributes:
        subjects: Number of subjects.
        absolute, squared, fourth: Sums of absolute errors, their squares and fourth powers.
        total, squares, cubes, fourths: Sums of powers of the values minus the centre.
        squared_values, squared_squares: Sums of squared errors times the centred values, and times their squares.
    """

    subjects: int = 0
    absolute: float = 0.0
    squared: float = 0.0
    fourth: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    cubes: float = 0.0
    fourths: float = 0.0
    squared_values: float = 0.0
    squared_squares: float = 0.0


def sum_errors(
    predicted: NDArray[np.floating], actual: NDArray[np.floating], *, centre: float = 0.0
) -> RegressionSums:
    """Return one site's regression error sums from its subjects' predictions.

    Args:
        predicted: Predicted values.
        actual: True values.
        centre: Subtracted from the values before their powers are summed, the same at all sites; a value near their
            mean avoids rounding errors.

    >>> sum_errors(np.array([1.0, 2.0]), np.array([1.0, 4.0])).squared
    4.0
    """
    errors = np.asarray(predicted, np.float64) - np.asarray(actual, np.float64)
    values = np.asarray(actual, np.float64) - centre
    columns = (
        np.abs(errors), errors**2, errors**4, values, values**2, values**3, values**4,
        errors**2 * values, errors**2 * values**2,
    )  # fmt: skip
    return RegressionSums(len(values), *(float(column.sum()) for column in columns))


def releasable_sums(sums: RegressionSums) -> RegressionSums:
    """Return regression error sums that a site may release: of few values no higher powers, which determine them.

    Only the interval of R² needs them; it is then not stated.
    """
    if sums.subjects >= MIN_SUBJECTS:
        return sums
    unknown = math.nan
    return replace(sums, cubes=unknown, fourths=unknown, squared_values=unknown, squared_squares=unknown)


def add_errors(site_sums: Iterable[RegressionSums]) -> RegressionSums:
    """Return the total of the regression error sums of several sites."""
    all_sums = list(site_sums)
    return RegressionSums(
        *(sum(getattr(sums, field.name) for sums in all_sums) for field in fields(RegressionSums))
    )


def evaluate_sums(sums: RegressionSums, *, level: float = 0.95) -> dict[str, MetricEstimate]:
    """Return MAE, RMSE and explained variance of a regression from error sums, with large-sample intervals.

    All intervals follow from the delta method and Student's t on the logarithmic scale, that of the explained
    variance on the scale of log(1 - R²), so it has a width at any R², also below 0. Intervals of RMSE and R² need 50
    subjects, those of MAE 20. R² is NaN if all values are equal.
    """
    n = sums.subjects
    if n < 3:
        return dict.fromkeys(("rmse", "mae", "r2"), _UNKNOWN)
    quantile = t_quantile(level, n - 1)
    mae, mse = sums.absolute / n, sums.squared / n
    mae_error = math.sqrt(max(0.0, mse - mae**2) / (n - 1))
    mae_limits = log_limits(mae, mae_error, quantile) if n >= MIN_MAE_SUBJECTS else UNKNOWN_LIMITS
    scale = quantile / math.sqrt(n - _LOST_DEGREES) if n >= MIN_SUBJECTS else math.nan
    rmse_limits = UNKNOWN_LIMITS
    if n >= MIN_SUBJECTS:
        low, high = log_limits(mse, math.sqrt(max(0.0, sums.fourth / n - mse**2)), scale)
        rmse_limits = math.sqrt(low), math.sqrt(high)
    estimates = {
        "rmse": MetricEstimate(math.sqrt(mse), *rmse_limits),
        "mae": MetricEstimate(mae, *mae_limits),
    }
    mean = sums.total / n
    variance = sums.squares / n - mean**2
    if variance <= 1e-14 * sums.squares / n:  # rounding errors only
        return {**estimates, "r2": _UNKNOWN}
    ratio = mse / variance
    if n < MIN_SUBJECTS or math.isnan(sums.fourths):
        return {**estimates, "r2": MetricEstimate(1 - ratio, math.nan, math.nan)}
    # Each subject's squared error and squared deviation from the mean, as far as their ratio depends on them.
    deviation_fourth = (
        sums.fourths - 4 * mean * sums.cubes + 6 * mean**2 * sums.squares - 3 * n * mean**4
    ) / n
    product = (sums.squared_squares - 2 * mean * sums.squared_values + mean**2 * sums.squared) / n
    influence = sums.fourth / n - 2 * ratio * product + ratio**2 * deviation_fourth
    low, high = log_limits(ratio, math.sqrt(max(0.0, influence)) / variance, scale)
    return {**estimates, "r2": MetricEstimate(1 - ratio, 1 - high, 1 - low)}
