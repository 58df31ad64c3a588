"""Rotate one block of a vector to look normal, and back.

Forward: z = H·D·x / ‖x‖, so that every coordinate of z is close to a standard normal number, whatever x was.
Backward: x = D·H·z · ‖x‖ / n. The norm may be rounded: the same value divides here and multiplies there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from abaton.vectors.hadamard import GROUP, Floats, rotate, sign, transform
from abaton.vectors.jit import inlined, kernel
from abaton.vectors.lanes import FLOATS, INT, INTS, WIDTH, constant, intrinsic, ir, load, pointer, types

Key = tuple[np.uint64, np.uint64]

TINY, HUGE = 1e-28, 1e28
"""Norms and factors between these are safe in float32 arithmetic; others take a slower way in float64."""

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


def aligned(size: int) -> Floats:
    """An empty float32 array that starts at a cache line, as wide vector instructions like it."""
    space = np.empty(size + WIDTH, dtype=np.float32)
    start = -(space.ctypes.data // 4) % WIDTH
    return space[start : start + size]


@intrinsic
def _squares(_: Any, array: Any, index: Any) -> Any:
    """The sum of squares of 512 numbers, always in the same order."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        at = pointer(context, build, signature.args[0], args[0], args[1])
        sums = [constant(FLOATS, 0.0)] * 4
        for i in range(GROUP // WIDTH):
            value = load(build, at, FLOATS, WIDTH * i)
            sums[i % 4] = build.fadd(sums[i % 4], build.fmul(value, value))
        total = build.fadd(build.fadd(sums[0], sums[1]), build.fadd(sums[2], sums[3]))
        for half in (8, 4, 2, 1):
            lanes = ir.Constant(INTS, [ir.Constant(INT, i ^ half) for i in range(WIDTH)])
            total = build.fadd(total, build.shuffle_vector(total, ir.Constant(FLOATS, ir.Undefined), lanes))
        return build.extract_element(total, ir.Constant(INT, 0))

    return types.float32(array, types.int64), generate


@inlined
def _norm(x: Floats, start: int, length: int) -> float:
    total = 0.0
    whole = length - length % GROUP
    for i in range(start, start + whole, GROUP):
        total += np.float64(_squares(x, i))
    for i in range(start + whole, start + length):
        total += np.float64(x[i]) * np.float64(x[i])
    if TINY < total < HUGE:
        return math.sqrt(total)
    total = 0.0
    for i in range(start, start + length):
        total += np.float64(x[i]) * np.float64(x[i])
    return math.sqrt(total)


@kernel
def forward(
    x: Floats, start: int, length: int, z: Floats, at: int, size: int, group: int, keys: Key
) -> float:
    """Rotate ``length`` numbers, padded with zeros to ``size``, into ``z``; the answer is their norm."""
    norm = _norm(x, start, length)
    one = np.float32(1.0)
    if norm == 0.0:
        z[at : at + size] = 0.0
    elif length == size and TINY < norm < HUGE:
        rotate(x, start, z, at, size, group, np.float32(1.0 / norm), keys, one)
    else:
        for i in range(length):
            z[at + i] = np.float32(np.float64(x[start + i]) / norm)
        z[at + length : at + size] = 0.0
        rotate(z, at, z, at, size, group, one, keys, one)
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
