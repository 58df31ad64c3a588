"""Random rotation of one block of a vector, and its inverse.

Forward: z = H·D·x / ‖x‖, so that every coordinate of z is approximately standard normal for any x.
Backward: x = D·H·z · ‖x‖ / n. The norm may be rounded, because both directions use the same value.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from abaton.kernels.jit import inlined, kernel
from abaton.kernels.walsh_hadamard import Floats, rotate, sign, transform

Key = tuple[np.uint64, np.uint64]

MIN_SAFE, MAX_SAFE = 1e-28, 1e28
"""Range of squared norms and factors that is safe in float32 arithmetic; others use a slower float64 path."""

MAX_FLOAT32 = float(np.finfo(np.float32).max)


def derive_key(seed: int) -> Key:
    """Return the two key words of a rotation's random stream, derived from a 64-bit seed.

    >>> derive_key(1) == derive_key(1), derive_key(1) == derive_key(2)
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
def rotate_block(
    x: Floats, start: int, length: int, z: Floats, target_start: int, size: int, group: int, keys: Key
) -> tuple[float, Any]:
    """Rotate a block of ``length`` values, padded with zeros to ``size``; return its norm, and a factor for z.

    The factor normalises z afterwards, because the norm is known only after one pass.
    """
    one = np.float32(1.0)
    if length == size:
        total = rotate(x, start, z, target_start, size, group, one, keys, one)
        if MIN_SAFE < total < MAX_SAFE:
            norm = math.sqrt(total)
            return norm, np.float32(1.0 / norm)
    norm = _norm(x, start, length)
    z[target_start : target_start + size] = 0.0
    if norm > 0.0 and np.isfinite(norm):
        for i in range(length):
            z[target_start + i] = np.float32(np.float64(x[start + i]) / norm)
        rotate(z, target_start, z, target_start, size, group, one, keys, one)
    return norm, one


@kernel
def forward(
    x: Floats, start: int, length: int, z: Floats, target_start: int, size: int, group: int, keys: Key
) -> float:
    """Rotate a block forward: z = H·D·x / ‖x‖, padded with zeros to ``size``; return the norm."""
    norm, factor = rotate_block(x, start, length, z, target_start, size, group, keys)
    for i in range(target_start, target_start + size):
        z[i] *= factor
    return norm


@kernel
def backward(
    z: Floats,
    source_start: int,
    size: int,
    group: int,
    keys: Key,
    factor: Any,
    x: Floats,
    start: int,
    length: int,
) -> None:
    """Rotate a block back: x = D·H·z · factor, clipped to the float32 range; ``z`` is overwritten."""
    transform(z, source_start, size, np.float32(1.0))
    if length == size and MIN_SAFE < abs(factor) < MAX_SAFE:
        sign(z, source_start, x, start, size, group, np.float32(factor), keys)
    else:
        sign(z, source_start, z, source_start, size, group, np.float32(1.0), keys)
        for i in range(length):
            x[start + i] = np.float32(
                min(max(np.float64(z[source_start + i]) * factor, -MAX_FLOAT32), MAX_FLOAT32)
            )
