"""Additive quantisation for sums of masked integers: a trellis lattice beside scalar rounding with dither.

Under masks nothing is entropy-coded: all learners use one step, and integers travel modulo M. Scalar rounding sends
one integer modulo M per value. The lattice sends a pair of values as two linear coordinates, modulo M and M/2: their
sums are the coordinates of the sum. It is Construction A with a convolutional code of rate 1/2 (generators g1, g2).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from abaton.benchmark import BenchmarkResult, at_least, at_most

if TYPE_CHECKING:
    from numpy.typing import NDArray

GENERATORS = {8: (0o15, 0o17), 64: (0o133, 0o171), 256: (0o561, 0o753)}
PAIRS, LEARNERS, MODULUS, MIN_GAIN = 1 << 14, 10, 256, 0.15


@numba.njit(cache=False)
def _parity(value: int) -> int:
    result = 0
    while value:
        result ^= value & 1
        value >>= 1
    return result


@numba.njit(cache=False)
def nearest(y: Any, first: int, second: int, states: int) -> Any:
    """Return the lattice points closest to pairs of values, by a Viterbi search from state 0 with a free end."""
    steps = len(y)
    metrics, decisions = np.full(states, 1e30), np.empty((steps, states), np.uint8)
    metrics[0] = 0.0
    for t in range(steps):
        following, cost = np.empty(states), np.empty((2, 2))
        for i in range(2):
            for parity in range(2):
                cost[i, parity] = (y[t, i] - parity - 2 * np.floor((y[t, i] - parity) / 2 + 0.5)) ** 2
        for state in range(states):
            best = [0.0, 0.0]
            for odd in range(2):
                register = 2 * state + odd
                outputs = _parity(register & first), _parity(register & second)
                best[odd] = metrics[register % states] + cost[0, outputs[0]] + cost[1, outputs[1]]
            decisions[t, state] = 1 if best[1] < best[0] else 0
            following[state] = min(best[0], best[1])
        metrics = following
    points, state = np.empty((steps, 2), np.int64), int(np.argmin(metrics))
    for t in range(steps - 1, -1, -1):
        register = 2 * state + decisions[t, state]
        for i, generator in enumerate((first, second)):
            parity = _parity(register & generator)
            points[t, i] = parity + 2 * np.int64(np.floor((y[t, i] - parity) / 2 + 0.5))
        state = register % states
    return points


def taps(generator: int, states: int) -> list[int]:
    """Return the taps of a generator by delay: the newest bit of a register is the highest."""
    memory = states.bit_length() - 1
    return [generator >> (memory - delay) & 1 for delay in range(memory + 1)]


def inputs(first: NDArray[np.int64], generator: list[int], modulus: int) -> NDArray[np.int64]:
    """Return integers w whose filtered sequence is ``first``: w_t = first_t - Σ g_j·w_(t-j), modulo ``modulus``."""
    result = np.zeros(first.size, np.int64)
    for t in range(first.size):
        past = sum(generator[j] * int(result[t - j]) for j in range(1, len(generator)) if j <= t)
        result[t] = (int(first[t]) - past) % modulus
    return result


def filtered(values: NDArray[np.int64], generator: list[int], modulus: int) -> NDArray[np.int64]:
    """Return Σ g_j·w_(t-j) modulo ``modulus``."""
    return np.convolve(values, generator)[: values.size] % modulus


def to_coordinates(points: NDArray[np.int64], states: int, modulus: int) -> NDArray[np.int64]:
    """Return the linear coordinates of lattice points: the first value modulo M, the rest of the second modulo M/2."""
    first, second = (taps(generator, states) for generator in GENERATORS[states])
    extra = points[:, 1] - filtered(inputs(points[:, 0], first, modulus), second, modulus)
    assert not (extra % 2).any()
    return np.stack([points[:, 0] % modulus, extra // 2 % (modulus // 2)], axis=1)


def to_points(coordinates: NDArray[np.int64], states: int, modulus: int) -> NDArray[np.int64]:
    """Return the points of coordinates modulo M, centred at zero."""
    first, second = (taps(generator, states) for generator in GENERATORS[states])
    low = coordinates[:, 0] % modulus
    high = (2 * coordinates[:, 1] + filtered(inputs(low, first, modulus), second, modulus)) % modulus
    points = np.stack([low, high], axis=1)
    return (points + modulus // 2) % modulus - modulus // 2


def measure(states: int) -> tuple[float, int]:
    """Return the variance of the error in grid units, and the points of a sum that its coordinates do not give."""
    rng, squares = np.random.default_rng(states), 0.0
    total, coordinates = np.zeros((2, PAIRS, 2), np.int64)
    for _ in range(LEARNERS):
        values, dither = 3 * rng.standard_normal((PAIRS, 2)), rng.uniform(0, 2, (PAIRS, 2))
        points = nearest(values + dither, *GENERATORS[states], states)
        squares += float(np.mean((points - dither - values) ** 2)) / LEARNERS
        total = total + points
        coordinates = coordinates + to_coordinates(points, states, MODULUS)
    return squares, int(np.count_nonzero(to_points(coordinates, states, MODULUS) - total))


def run() -> list[BenchmarkResult]:
    """Measure the bits per value that the lattice saves at the error of scalar rounding, and that sums are exact."""
    results = []
    for states in GENERATORS:
        variance, wrong_points = measure(states)
        # At equal error the grid is finer by √(12·variance); a pair of coordinates takes one bit less.
        gain = 0.5 - 0.5 * math.log2(12 * variance)
        results.append(
            at_least(f"additive lattice, {states} states, bits saved", gain, MIN_GAIN, "bits/number")
        )
        name = f"additive lattice, {states} states, sums of {LEARNERS} that differ"
        results.append(at_most(name, wrong_points, 0, "points"))
    return results
