"""Solve for the reconstruction tables of QUIC-FL, exactly.

The published method discretises the normal distribution into quantiles and gives a large problem over both
the sender's probabilities S and the receiver's values R to a non-linear solver. For a fixed R, however, the
sender's problem has a closed form: at a point z, every codebook h takes its codeword nearest to one common
point s, and at most one codebook, the one whose midpoint lies at s, chooses at random between two
neighbours. Sorting all midpoints m_k therefore gives

* the reachable means G_k (a staircase in s), and
* E[Ẑ² | z], a convex piecewise linear function of z with slope 2·m_k on [G_k, G_k+1],

so that the error is a finite sum of normal integrals with an exact gradient in R. One constraint is left:
the mean of the largest values must reach the threshold T, or values near T have no unbiased code.

Shipped tables (``quicfl_tables.json``) were made by :func:`solve`; a slow test solves them again.
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


def full(half: Table, bits: int, shared_bits: int) -> Table:
    """The whole table R[h, x] from its first half: R(h, x) = -R(H-1-h, M-1-x).

    >>> full(np.array([-2.0]), 1, 0)
    array([[-2.,  2.]])
    """
    return np.concatenate([half, -half[::-1]]).reshape(1 << shared_bits, 1 << bits)


def staircase(table: Table) -> tuple[Table, Table, NDArray[np.intp]]:
    """The sorted midpoints m_k, the knots G_k between which they randomise, and each midpoint's rank."""
    midpoints = (table[:, 1:] + table[:, :-1]).ravel() / 2
    order = np.argsort(midpoints, kind="stable")
    steps = ((table[:, 1:] - table[:, :-1]) / len(table)).ravel()[order]
    knots = table[:, 0].mean() + np.concatenate([[0.0], np.cumsum(steps)])
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return midpoints[order], knots, rank.reshape(len(table), -1)


def error(table: Table) -> float:
    """The vNMSE of a table: E[(Ẑ - Z)²] for standard normal Z, values beyond the threshold sent exactly.

    >>> from abaton.codecs.quicfl_solver import error, full
    >>> round(error(full(np.array([-3.0972690782]), 1, 0)), 3)
    8.597
    """
    return _error_and_gradient(table)[0]


def solve(bits: int, shared_bits: int) -> Table:
    """The best table R[h, x] for 2^bits messages and 2^shared_bits values of the shared randomness."""
    from scipy.optimize import minimize
    from scipy.special import ndtri

    size = 1 << (bits + shared_bits)
    # Interleaved and companded: message-major order, spread as the third root of the density asks for.
    grid = ndtri((np.arange(size) + 0.5) / size) * math.sqrt(3)
    start = grid.reshape(1 << bits, 1 << shared_bits).T
    reach = np.zeros((1 << shared_bits, 1 << bits))
    reach[:, -1] = 1 / len(reach)

    def fold(gradient: Table) -> Table:
        flat = gradient.ravel()
        return flat[: size // 2] - flat[: size // 2 - 1 : -1]

    def objective(half: Table) -> tuple[float, Table]:
        value, gradient = _error_and_gradient(full(half, bits, shared_bits))
        return value, fold(gradient)

    slope = fold(reach)
    found: Any = minimize(
        objective,
        start.ravel()[: size // 2],
        jac=True,
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda half: slope @ half - THRESHOLD, "jac": lambda _: slope},
        options={"maxiter": 2000, "ftol": 1e-13},
    )
    return full(np.asarray(found.x), bits, shared_bits)


def _error_and_gradient(table: Table) -> tuple[float, Table]:
    from scipy.special import ndtr

    def density(z: Table) -> Table:
        return np.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    heights = len(table)
    midpoints, knots, rank = staircase(table)
    low, high = np.clip(knots[:-1], -THRESHOLD, THRESHOLD), np.clip(knots[1:], -THRESHOLD, THRESHOLD)
    mass = ndtr(high) - ndtr(low)
    moment = density(low) - density(high)
    steps = np.diff(knots)
    squares = (table[:, 0] ** 2).mean() + np.concatenate([[0.0], np.cumsum(2 * midpoints * steps)[:-1]])
    edge = np.array(THRESHOLD)
    variance = ndtr(edge) - ndtr(-edge) - 2 * edge * density(edge)
    value = float(((squares - 2 * midpoints * knots[:-1]) * mass + 2 * midpoints * moment).sum() - variance)

    # dF/dR(h,x) = 2/H (R·A - B): A the probability of sending x under h, B its mean common point s.
    up = np.divide(moment - knots[:-1] * mass, steps, out=mass / 2, where=steps > 1e-12)

    def share(weight: Table) -> Table:
        total = np.concatenate([[0.0], np.cumsum(mass * weight)])
        rising, falling = (up * weight)[rank], ((mass - up) * weight)[rank]
        sent = np.zeros_like(table)
        sent[:, 1:] += rising - total[rank + 1]
        sent[:, :-1] += falling + total[rank]
        sent[:, -1] += total[-1]
        return sent

    gradient = 2 / heights * (table * share(np.ones_like(mass)) - share(midpoints))
    return value, gradient
