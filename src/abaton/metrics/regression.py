"""Regression metrics from error sums that add up over sites; no value or prediction is sent."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from abaton.metrics.classification import MetricEstimate

_UNKNOWN = MetricEstimate(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class RegressionSums:
    """Sums over subjects: number, absolute, squared and fourth powers of errors, the values and their squares."""

    subjects: int = 0
    absolute: float = 0.0
    squared: float = 0.0
    fourth: float = 0.0
    total: float = 0.0
    squares: float = 0.0


def sum_errors(predicted: NDArray[np.floating], actual: NDArray[np.floating]) -> RegressionSums:
    """Return one site's regression error sums from its subjects' predictions.

    >>> sum_errors(np.array([1.0, 2.0]), np.array([1.0, 4.0])).squared
    4.0
    """
    errors = np.asarray(predicted, np.float64) - np.asarray(actual, np.float64)
    values = np.asarray(actual, np.float64)
    return RegressionSums(
        len(values),
        float(np.abs(errors).sum()),
        float((errors**2).sum()),
        float((errors**4).sum()),
        float(values.sum()),
        float((values**2).sum()),
    )


def add_errors(site_sums: Iterable[RegressionSums]) -> RegressionSums:
    """Return the total of the regression error sums of several sites."""
    all_sums = list(site_sums)
    return RegressionSums(
        *(sum(getattr(sums, field.name) for sums in all_sums) for field in fields(RegressionSums))
    )


def evaluate_sums(sums: RegressionSums, *, level: float = 0.95) -> dict[str, MetricEstimate]:
    """Return MAE, RMSE and explained variance of a regression from error sums, with large-sample intervals.

    The intervals of the errors follow from their variance (RMSE by the delta method), that of the explained variance
    from the formula of Olkin and Finn (1995).
    """
    n = sums.subjects
    if n < 3:
        return dict.fromkeys(("rmse", "mae", "r2"), _UNKNOWN)
    z = NormalDist().inv_cdf((1 + level) / 2)
    mae, mse = sums.absolute / n, sums.squared / n
    rmse = math.sqrt(mse)
    variation = sums.squares - sums.total**2 / n
    mae_error = math.sqrt(max(0.0, mse - mae**2) / n)
    rmse_error = math.sqrt(max(0.0, sums.fourth / n - mse**2) / n) / (2 * rmse) if rmse else 0.0
    estimates = {"rmse": _interval(rmse, z * rmse_error), "mae": _interval(mae, z * mae_error)}
    if variation <= 0:
        return {**estimates, "r2": _UNKNOWN}
    r2 = 1 - sums.squared / variation
    clipped = max(0.0, min(1.0, r2))
    r2_error = math.sqrt(4 * clipped * (1 - clipped) ** 2 * (n - 2) ** 2 / ((n**2 - 1) * (n + 3)))
    return {**estimates, "r2": MetricEstimate(r2, r2 - z * r2_error, min(1.0, r2 + z * r2_error))}


def _interval(value: float, half_width: float) -> MetricEstimate:
    return MetricEstimate(value, max(0.0, value - half_width), value + half_width)
