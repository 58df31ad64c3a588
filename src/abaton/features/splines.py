"""Restricted cubic splines with declared knots (Harrell, Regression Modeling Strategies, 2.4.5).

K knots give K - 1 columns: a cubic spline between the outer knots and a straight line beyond them. The basis depends on
the knots only, never on data, so it is the same at every site and after every withdrawal. Values are cut at half the
distance of the outer knots beyond them, so a wrong unit is not cubed. The columns are orthonormal over a reference
distribution: a normal one in which the knots are equally spaced and the outer ones are the 5 % and 95 % quantiles.
Raw spline columns are almost collinear, and gradient descent would converge slowly on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, log
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_OUTER_KNOT = NormalDist().inv_cdf(0.95)  # of the reference distribution, in standard deviations
_CUT = 0.5  # distance of the cut beyond the outer knots, in units of the distance between these
_QUANTILES = 200  # of the reference distribution


@dataclass(frozen=True, slots=True)
class SplineBasis:
    """Restricted cubic spline of one input; the knots are in its unit, increasing.

    >>> SplineBasis((45.0, 62.0, 79.0)).width, SplineBasis((45.0, 62.0, 79.0)).cut_range
    (2, (28.0, 96.0))
    """

    knots: tuple[float, ...]
    is_log: bool = False

    @property
    def width(self) -> int:
        """Return the number of columns of the spline."""
        return len(self.knots) - 1

    @property
    def cut_range(self) -> tuple[float, float]:
        """Return the values at which an input is cut before its spline, in the unit of the input."""
        low, high = (self._to_unit(position) for position in (-_CUT, 1 + _CUT))
        return low, high

    def names(self, name: str) -> tuple[str, ...]:
        """Return the names of the spline's columns, for example age, age' and age''; the first is linear."""
        return tuple(name + "'" * i for i in range(self.width))

    def positions(self, values: Floats) -> Floats:
        """Return cut values of a spline's input on a scale where the outer knots are 0 and 1; NaN stays."""
        first, last = self._outer_knots
        cut = np.clip(values, *self.cut_range)
        return ((np.log(cut) if self.is_log else cut) - first) / (last - first)

    def columns(self, values: Floats) -> Floats:
        """Return the columns of the spline for values of its input; NaN for a missing value."""
        matrix, offset = self.coefficients
        return powers(self.positions(values), self.knot_positions) @ matrix - offset

    def reference_value(self, deviations: float) -> float:
        """Return the value of a spline's input that many standard deviations from the reference's median."""
        return self._to_unit(float(_reference(np.array([deviations]), self.knot_positions)[0]))

    @property
    def knot_positions(self) -> Floats:
        """Return the knots of the spline on the scale of `positions`."""
        first, last = self._outer_knots
        knots = np.array(self.knots)
        return ((np.log(knots) if self.is_log else knots) - first) / (last - first)

    @property
    def coefficients(self) -> tuple[Floats, Floats]:
        """Return matrix and offset that map the powers of positions to the spline's columns."""
        return _coefficients(tuple(self.knot_positions))

    def to_row(self) -> list[Any]:
        """Return the spline as JSON values."""
        return [list(self.knots), self.is_log]

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> SplineBasis:
        """Return the spline from its JSON values."""
        return cls(tuple(map(float, row[0])), bool(row[1]))

    @property
    def _outer_knots(self) -> tuple[float, float]:
        first, last = self.knots[0], self.knots[-1]
        return (log(first), log(last)) if self.is_log else (first, last)

    def _to_unit(self, position: float) -> float:
        first, last = self._outer_knots
        value = first + position * (last - first)
        return exp(value) if self.is_log else value


def powers(positions: Floats, knot_positions: Floats) -> Floats:
    """Return positions and their truncated cubes at each knot, from which a spline's columns are combined."""
    cubes = np.maximum(positions[:, None] - knot_positions, 0.0) ** 3
    return np.concatenate([positions[:, None], cubes], axis=1)


def expand_splines(x: Floats, splines: Sequence[SplineBasis | None]) -> Floats:
    """Return rows in which the columns of its spline replace each column that has one.

    >>> expand_splines(np.array([[62.0, 1.0]]), [SplineBasis((45.0, 62.0, 79.0)), None]).shape
    (1, 3)
    """
    if not any(splines):
        return x
    blocks = [
        x[:, i, None] if spline is None else spline.columns(x[:, i]) for i, spline in enumerate(splines)
    ]
    return np.concatenate(blocks, axis=1)


def _reference(deviations: Floats, knot_positions: Floats) -> Floats:
    """Return positions of a spline's reference distribution at standard normal deviations."""
    steps = np.linspace(-_OUTER_KNOT, _OUTER_KNOT, len(knot_positions))
    slopes = np.diff(knot_positions) / np.diff(steps)
    segments = np.clip(np.searchsorted(steps, deviations) - 1, 0, len(slopes) - 1)
    return knot_positions[segments] + (deviations - steps[segments]) * slopes[segments]


@lru_cache(maxsize=256)
def _coefficients(knot_positions: tuple[float, ...]) -> tuple[Floats, Floats]:
    knots, count = np.array(knot_positions), len(knot_positions)
    harrell = np.zeros((count + 1, count - 1))
    harrell[0, 0] = 1.0
    last, second_last = knots[-1], knots[-2]
    for j in range(count - 2):
        harrell[1 + j, 1 + j] = 1.0
        harrell[-2, 1 + j] -= (last - knots[j]) / (last - second_last)
        harrell[-1, 1 + j] += (second_last - knots[j]) / (last - second_last)
    probabilities = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    deviations = np.array([NormalDist().inv_cdf(float(p)) for p in probabilities])
    sample = np.clip(_reference(deviations, knots), -_CUT, 1 + _CUT)
    columns = powers(sample, knots) @ harrell
    mean = columns.mean(axis=0)
    _, triangle = np.linalg.qr(columns - mean)
    triangle = triangle * np.sign(np.diag(triangle))[:, None]  # the first column increases with the input
    to_orthonormal = np.linalg.inv(triangle) * np.sqrt(_QUANTILES)
    matrix, offset = harrell @ to_orthonormal, mean @ to_orthonormal
    for array in (matrix, offset):
        array.setflags(write=False)  # shared by all callers
    return matrix, offset
