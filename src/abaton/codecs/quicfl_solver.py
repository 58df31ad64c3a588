"""Exact solver of the reconstruction tables of QUIC-FL.

The published method discretises the normal distribution into quantiles and solves a large non-linear problem over
both the sender's probabilities S and the receiver's values R. For a fixed R, however, the
sender's problem has a closed form: at a point z, every codebook h selects its codeword nearest to one common
point s, and at most one codebook, the one whose midpoint is s, selects at random between two
neighbours. Sorting all midpoints m_k therefore gives

* the reachable means G_k (a staircase in s), and
* E[Ẑ² | z], a convex piecewise linear function of z with slope 2·m_k on [G_k, G_k+1],

so that the error is a finite sum of normal integrals with an exact gradient in R. One constraint remains:
the mean of the largest values must reach the threshold T, or values near T have no unbiased code.

The shipped tables (``quicfl_tables.json``) are the results of :func:`solve`; a slow test solves them again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]

OUTLIERS = 1 / 512
THRESHOLD = 3.0972690781987844
"""Values beyond this (a fraction OUTLIERS of a normal distribution) are sent exactly."""


def full_table(half: Table, bits: int, shared_bits: int) -> Table:
    """Return a full QUIC-FL table R[h, x] from its solved half: R(h, x) = -R(H-1-h, M-1-x).

    >>> full_table(np.array([-2.0]), 1, 0)
    array([[-2.,  2.]])
    """
    return np.concatenate([half, -half[::-1]]).reshape(1 << shared_bits, 1 << bits)


def staircase(table: Table) -> tuple[Table, Table, NDArray[np.intp]]:
    """Return a QUIC-FL table's sorted midpoints m_k, the knots G_k between which they randomise, and ranks."""
    midpoints = (table[:, 1:] + table[:, :-1]).ravel() / 2
    order = np.argsort(midpoints, kind="stable")
    steps = ((table[:, 1:] - table[:, :-1]) / len(table)).ravel()[order]
    knots = table[:, 0].mean() + np.concatenate([[0.0], np.cumsum(steps)])
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return midpoints[order], knots, rank.reshape(len(table), -1)


def error(table: Table) -> float:
    """Return the vNMSE of a QUIC-FL table: E[(Ẑ - Z)²] for standard normal Z, values beyond T sent exactly.

    >>> from abaton.codecs.quicfl_solver import error, full_table
    >>> round(error(full_table(np.array([-3.0972690782]), 1, 0)), 3)
    8.597
    """
    return _error_and_gradient(table)[0]


def solve(bits: int, shared_bits: int) -> Table:
    """Solve for QUIC-FL's optimal table R[h, x]: 2^bits messages, 2^shared_bits shared random values."""
    from scipy.optimize import minimize
    from scipy.special import ndtri

    size = 1 << (bits + shared_bits)
    # Interleaved and companded: message-major order, spaced by the third root of the density.
    grid = ndtri((np.arange(size) + 0.5) / size) * math.sqrt(3)
    start = grid.reshape(1 << bits, 1 << shared_bits).T
    last_means = np.zeros((1 << shared_bits, 1 << bits))
    last_means[:, -1] = 1 / len(last_means)

    def fold(gradient: Table) -> Table:
        flat = gradient.ravel()
        return flat[: size // 2] - flat[: size // 2 - 1 : -1]

    def objective(half: Table) -> tuple[float, Table]:
        value, gradient = _error_and_gradient(full_table(half, bits, shared_bits))
        return value, fold(gradient)

    constraint_gradient = fold(last_means)
    solution: Any = minimize(
        objective,
        start.ravel()[: size // 2],
        jac=True,
        method="SLSQP",
        constraints={
            "type": "ineq",
            "fun": lambda half: constraint_gradient @ half - THRESHOLD,
            "jac": lambda _: constraint_gradient,
        },
        options={"maxiter": 2000, "ftol": 1e-13},
    )
    return full_table(np.asarray(solution.x), bits, shared_bits)


def _error_and_gradient(table: Table) -> tuple[float, Table]:
    from scipy.special import ndtr

    def density(z: Table) -> Table:
        return np.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    codebook_count = len(table)
    midpoints, knots, rank = staircase(table)
    low, high = np.clip(knots[:-1], -THRESHOLD, THRESHOLD), np.clip(knots[1:], -THRESHOLD, THRESHOLD)
    mass = ndtr(high) - ndtr(low)
    partial_mean = density(low) - density(high)
    steps = np.diff(knots)
    mean_squares = (table[:, 0] ** 2).mean() + np.concatenate([[0.0], np.cumsum(2 * midpoints * steps)[:-1]])
    edge = np.array(THRESHOLD)
    variance = ndtr(edge) - ndtr(-edge) - 2 * edge * density(edge)
    value = float(
        ((mean_squares - 2 * midpoints * knots[:-1]) * mass + 2 * midpoints * partial_mean).sum() - variance
    )

    # dF/dR(h,x) = 2/H (R·A - B): A the probability of sending x under h, B its mean common point s.
    rising_mass = np.divide(partial_mean - knots[:-1] * mass, steps, out=mass / 2, where=steps > 1e-12)

    def sent_mass(weight: Table) -> Table:
        total = np.concatenate([[0.0], np.cumsum(mass * weight)])
        upper, lower = (rising_mass * weight)[rank], ((mass - rising_mass) * weight)[rank]
        sums = np.zeros_like(table)
        sums[:, 1:] += upper - total[rank + 1]
        sums[:, :-1] += lower + total[rank]
        sums[:, -1] += total[-1]
        return sums

    gradient = 2 / codebook_count * (table * sent_mass(np.ones_like(mass)) - sent_mass(midpoints))
    return value, gradient
