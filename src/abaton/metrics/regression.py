"""How close a model of a value comes, from sums that add up over sites: nobody's value or prediction travels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from abaton.metrics.classification import Estimate

_UNKNOWN = Estimate(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class ValueSums:
    """Sums over subjects: how many, absolute, squared and fourth powers of errors, the values and their squares."""

    subjects: int = 0
    absolute: float = 0.0
    squared: float = 0.0
    fourth: float = 0.0
    total: float = 0.0
    squares: float = 0.0


def sum_errors(predicted: NDArray[np.floating], actual: NDArray[np.floating]) -> ValueSums:
    """The sums of some subjects.

    >>> sum_errors(np.array([1.0, 2.0]), np.array([1.0, 4.0])).squared
    4.0
    """
    wrong = np.asarray(predicted, np.float64) - np.asarray(actual, np.float64)
    values = np.asarray(actual, np.float64)
    return ValueSums(
        len(values),
        float(np.abs(wrong).sum()),
        float((wrong**2).sum()),
        float((wrong**4).sum()),
        float(values.sum()),
        float((values**2).sum()),
    )


def add_errors(parts: Iterable[ValueSums]) -> ValueSums:
    """The sums of several sites as one."""
    listed = list(parts)
    return ValueSums(*(sum(getattr(part, field.name) for part in listed) for field in fields(ValueSums)))


def judge_sums(sums: ValueSums, *, level: float = 0.95) -> dict[str, Estimate]:
    """Mean absolute and root mean squared error and the explained share, with intervals for large samples.

    Those of the errors follow from their variance (the root's by the delta method), that of the explained share from
    the formula of Olkin and Finn (1995).
    """
    n = sums.subjects
    if n < 3:
        return dict.fromkeys(("rmse", "mae", "r2"), _UNKNOWN)
    z = NormalDist().inv_cdf((1 + level) / 2)
    mae, mse = sums.absolute / n, sums.squared / n
    rmse = math.sqrt(mse)
    spread = sums.squares - sums.total**2 / n
    wide_mae = math.sqrt(max(0.0, mse - mae**2) / n)
    wide_rmse = math.sqrt(max(0.0, sums.fourth / n - mse**2) / n) / (2 * rmse) if rmse else 0.0
    made = {"rmse": _around(rmse, z * wide_rmse), "mae": _around(mae, z * wide_mae)}
    if spread <= 0:
        return {**made, "r2": _UNKNOWN}
    r2 = 1 - sums.squared / spread
    inside = max(0.0, min(1.0, r2))
    wide = math.sqrt(4 * inside * (1 - inside) ** 2 * (n - 2) ** 2 / ((n**2 - 1) * (n + 3)))
    return {**made, "r2": Estimate(r2, r2 - z * wide, min(1.0, r2 + z * wide))}


def _around(value: float, reach: float) -> Estimate:
    return Estimate(value, max(0.0, value - reach), value + reach)
