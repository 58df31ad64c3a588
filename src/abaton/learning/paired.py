"""Two models on the same subjects: how much better one is than the other, with a paired interval."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from abaton.learning.clinical import Estimate

Floats = NDArray[np.float64]


def auroc_difference(
    first: NDArray[np.floating], second: NDArray[np.floating], ill: NDArray[np.bool_], *, level: float = 0.95
) -> Estimate:
    """The AUROC of the first model less that of the second, with the interval of DeLong and others (1988).

    Args:
        first: What the one model says of every subject.
        second: What the other says.
        ill: Who is a case.
        level: Of the interval.

    >>> ill = np.array([False, False, True, True])
    >>> print(auroc_difference(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0.1, 0.4, 0.35, 0.8]), ill))
    0.000 (0.000 to 0.000)
    """
    of_cases, of_controls = zip(
        *(_places(np.asarray(said, np.float64), ill) for said in (first, second)), strict=True
    )
    cases, controls = of_cases[0] - of_cases[1], of_controls[0] - of_controls[1]
    if len(cases) < 2 or len(controls) < 2:
        return Estimate(np.nan, np.nan, np.nan)
    wide = float(np.sqrt(cases.var(ddof=1) / len(cases) + controls.var(ddof=1) / len(controls)))
    return _around(float(cases.mean()), wide, level)


def error_difference(
    first: NDArray[np.floating],
    second: NDArray[np.floating],
    actual: NDArray[np.floating],
    *,
    level: float = 0.95,
) -> Estimate:
    """By how much the first model's mean absolute error is smaller than the second's."""
    saved = np.abs(np.asarray(second, np.float64) - actual) - np.abs(np.asarray(first, np.float64) - actual)
    if len(saved) < 2:
        return Estimate(np.nan, np.nan, np.nan)
    return _around(float(saved.mean()), float(saved.std(ddof=1) / np.sqrt(len(saved))), level)


def _around(value: float, deviation: float, level: float) -> Estimate:
    reach = NormalDist().inv_cdf((1 + level) / 2) * deviation
    return Estimate(value, value - reach, value + reach)


def _places(said: Floats, ill: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """For each case the share of controls below it, for each control the share of cases above it; ties count half."""
    cases, controls = np.sort(said[ill]), np.sort(said[~ill])
    below = (np.searchsorted(controls, said[ill]) + np.searchsorted(controls, said[ill], side="right")) / 2
    above = (
        len(cases)
        - (np.searchsorted(cases, said[~ill]) + np.searchsorted(cases, said[~ill], side="right")) / 2
    )
    return below / max(len(controls), 1), above / max(len(cases), 1)
