"""Kernels of trellis-coded quantisation as scalar loops, for comparison.

Used only by tests, which compare bits, and by the codec benchmark, which compares speed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.jit import inlined, kernel
from abaton.kernels.simd_fallback import random_bits
from abaton.kernels.trellis_search import LANES, RESIDUES_PER_UNIT, START_METRIC, Bits32, Bytes, Shorts
from abaton.kernels.walsh_hadamard import Floats

Numbers = NDArray[np.int64]


@inlined
def _dither(word: Any) -> Any:
    return (np.float32(word >> np.uint32(9)) + np.float32(0.5)) * np.float32(2.0**-21)


@inlined
def _row(word: Any, parity: Any, strata: Any) -> Any:
    upper = ((np.int64(word) >> 30) - parity) & 1
    return upper * (strata // 2) + (np.int64(word) & ((1 << 30) - 1)) * (strata // 2) // (1 << 30)


@kernel
def dither_values(
    z: Floats, inverse: Any, first_value: int, keys: Any, grid: Numbers, residues: Shorts
) -> None:
    """Scalar fallback: write ⌊64·y⌋ of dithered values to ``grid``, and modulo 256 to ``residues``."""
    for i in range(z.size):
        word = random_bits(first_value + i, keys)
        sign = np.float32(-1.0) if word & np.uint32(1) else np.float32(1.0)
        shifted = sign * (z[i] * inverse) + _dither(word)
        grid[i] = np.int64(np.floor(np.float64(shifted) * RESIDUES_PER_UNIT))
        residues[i] = np.int16(grid[i] % 256)


@kernel
def search(residues: Shorts, states: int, cosets: Bytes, path: Bytes) -> None:
    """Scalar fallback: write the cosets of the sequence closest to the residues, one lane after another."""
    steps = residues.size // LANES
    decisions, metrics, following = (
        np.empty((steps, states), np.uint8),
        np.empty(states, np.int64),
        np.empty(states, np.int64),
    )
    costs = np.empty(4, np.int64)
    for lane in range(LANES):
        metrics[:] = START_METRIC
        metrics[0] = 0
        for t in range(steps):
            for coset in range(4):
                distance = (
                    np.int64(residues[t * LANES + lane]) - RESIDUES_PER_UNIT * coset + 128
                ) % 256 - 128
                folded = distance if distance >= 0 else -1 - distance
                costs[coset] = (2 * folded + 1) ** 2 // 64
            for state in range(states):
                even, odd = 2 * state, 2 * state + 1
                first = metrics[even % states] + costs[cosets[even]]
                second = metrics[odd % states] + costs[cosets[odd]]
                decisions[t, state] = 1 if second < first else 0
                following[state] = min(first, second)
            metrics[:] = following
        state = int(np.argmin(metrics))
        for t in range(steps - 1, -1, -1):
            register = 2 * state + decisions[t, state]
            path[t * LANES + lane] = cosets[register]
            state = register % states


@kernel
def take_symbols(
    grid: Numbers, path: Bytes, first_value: int, keys: Any, strata: int, width: int, symbols: NDArray[np.uint16],
    excess: Numbers,
) -> None:  # fmt: skip
    """Scalar fallback: write the symbols of trellis points, and their distance beyond the table."""
    for i in range(grid.size):
        word, coset = random_bits(first_value + i, keys), np.int64(path[i])
        parity, integer_part = coset % 2, np.int64(word) >> 30
        point = 4 * ((grid[i] - RESIDUES_PER_UNIT * coset + 128) // 256) + coset
        outcome = (point - parity) // 2 - (integer_part - parity) // 2 + width // 2 - 1
        inside, excess[i] = outcome, 0
        while inside < 0:
            inside += 2
            excess[i] -= 4
        while inside >= width:
            inside -= 2
            excess[i] += 4
        excess[i] *= -1 if word & np.uint32(1) else 1
        symbols[i] = np.uint16(_row(word, parity, strata) * width + inside)


@kernel
def decode_symbols(
    symbols: NDArray[np.uint16], first_value: int, keys: Any, strata: int, width: int, states: int, cosets: Bytes,
    rows: Bits32, values: Floats,
) -> None:  # fmt: skip
    """Scalar fallback: write the table rows and the values σ·(λ - u) of one block of symbols."""
    state = np.zeros(LANES, np.int64)
    for i in range(symbols.size):
        word, coset = random_bits(first_value + i, keys), np.int64(cosets[state[i % LANES]])
        parity, integer_part = coset % 2, np.int64(word) >> 30
        row = _row(word, parity, strata)
        outcome = np.int64(symbols[i]) - row * width - (width // 2 - 1)
        point = 2 * (outcome + (integer_part - parity) // 2) + parity
        bit = 0 if point % 4 == coset else 1
        state[i % LANES] = (state[i % LANES] + bit * states) // 2
        value = np.float32(point) - _dither(word)
        rows[i], values[i] = np.uint32(row), -value if word & np.uint32(1) else value
