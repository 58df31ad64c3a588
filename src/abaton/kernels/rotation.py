"""Rotate one block of a vector to look normal, and back.

Forward: z = H·D·x / ‖x‖, so that every coordinate of z is close to a standard normal number, whatever x was.
Backward: x = D·H·z · ‖x‖ / n. The norm may be rounded: the same value divides here and multiplies there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from abaton.kernels.walsh_hadamard import Floats, rotate, sign, transform
from abaton.kernels.jit import inlined, kernel

Key = tuple[np.uint64, np.uint64]

TINY, HUGE = 1e-28, 1e28
"""Sums of squares and factors between these are safe in float32 arithmetic; others take a slower way in float64."""

LARGEST = float(np.finfo(np.float32).max)


def keyed(seed: int) -> Key:
    """The two key words of a random stream, from a seed of 64 bits.

    >>> keyed(1) == keyed(1), keyed(1) == keyed(2)
    (True, False)
    """
    mask = (1 << 64) - 1
    state = (seed * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) & mask
    state = ((state ^ (state >> 32)) * 0xD6E8FEB86659FD93) & mask
    return np.uint64(seed & mask), np.uint64(state ^ (state >> 32))


@inlined
def _norm(x: Floats, start: int, length: int) -> float:
    total = 0.0
    for i in range(start, start + length):
        total += np.float64(x[i]) * np.float64(x[i])
    return math.sqrt(total)


@kernel
def spin(
    x: Floats, start: int, length: int, z: Floats, at: int, size: int, group: int, keys: Key
) -> tuple[float, Any]:
    """Rotate ``length`` numbers, padded with zeros to ``size``; the answer is their norm, and a factor for z.

    The factor makes numbers normal that were rotated as they are: a norm is only known after one pass.
    """
    one = np.float32(1.0)
    if length == size:
        total = rotate(x, start, z, at, size, group, one, keys, one)
        if TINY < total < HUGE:
            norm = math.sqrt(total)
            return norm, np.float32(1.0 / norm)
    norm = _norm(x, start, length)
    z[at : at + size] = 0.0
    if norm > 0.0 and np.isfinite(norm):
        for i in range(length):
            z[at + i] = np.float32(np.float64(x[start + i]) / norm)
        rotate(z, at, z, at, size, group, one, keys, one)
    return norm, one


@kernel
def forward(
    x: Floats, start: int, length: int, z: Floats, at: int, size: int, group: int, keys: Key
) -> float:
    """Rotate ``length`` numbers, padded with zeros to ``size``, into normal ones; the answer is their norm."""
    norm, factor = spin(x, start, length, z, at, size, group, keys)
    for i in range(at, at + size):
        z[i] *= factor
    return norm


@kernel
def backward(
    z: Floats, at: int, size: int, group: int, keys: Key, factor: Any, x: Floats, start: int, length: int
) -> None:
    """Set x = D·H·z · factor, its first ``length`` numbers, none beyond the largest; ``z`` is used up."""
    transform(z, at, size, np.float32(1.0))
    if length == size and TINY < abs(factor) < HUGE:
        sign(z, at, x, start, size, group, np.float32(factor), keys)
    else:
        sign(z, at, z, at, size, group, np.float32(1.0), keys)
        for i in range(length):
            x[start + i] = np.float32(min(max(np.float64(z[at + i]) * factor, -LARGEST), LARGEST))
