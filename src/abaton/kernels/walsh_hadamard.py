"""The fast Walsh-Hadamard transform and the random signs of a rotation, at memory speed.

A rotation is y = H·D·x: random signs D from a keyed hash, then the Hadamard matrix H of +1 and -1 (not
scaled). Its inverse is x = D·H·y / n. Butterflies add and subtract in a fixed order: the same bits
everywhere.

Levels are grouped so that each pass over the data does as many as registers hold: 8 levels on 256
contiguous numbers, then up to 3 or 4 levels a pass, first inside the L1 cache, then inside the L2 cache,
then across.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.jit import inlined, kernel
from abaton.kernels.simd import (
    FLOATS,
    INT,
    INTS,
    LONG,
    WIDTH,
    constant,
    intrinsic,
    ir,
    load,
    multiply_add,
    pointer,
    random_bits,
    splat,
    store,
    tools,
    types,
)

Floats = NDArray[np.float32]

TILE = 256  # numbers held in registers: 16 vectors of 16
GROUP = 512  # numbers that share one vector of random bits, one bit each
NEAR = 1 << 12  # a block that stays in the L1 cache
FAR = 1 << 17  # a block that stays in the L2 cache

PAIR = types.UniTuple(types.uint64, 2)


def aligned(size: int) -> Floats:
    """An empty float32 array that starts at a cache line, as wide vector instructions like it."""
    space = np.empty(size + WIDTH, dtype=np.float32)
    start = -(space.ctypes.data // 4) % WIDTH
    return space[start : start + size]


def across(build: Any, values: list[Any], one: Any) -> list[Any]:
    """Butterflies between vectors; sums run as 1·a + b, because multipliers would otherwise idle."""
    half = 1
    while half < len(values):
        for first in range(0, len(values), 2 * half):
            for i in range(first, first + half):
                a, b = values[i], values[i + half]
                values[i], values[i + half] = multiply_add(build, a, one, b), build.fsub(a, b)
        half *= 2
    return values


def inside(build: Any, value: Any) -> Any:
    """Butterflies between the 16 lanes of one vector: v·(±1) + v with lanes exchanged."""
    for half in (1, 2, 4, 8):
        lanes = ir.Constant(INTS, [ir.Constant(INT, i ^ half) for i in range(WIDTH)])
        swapped = build.shuffle_vector(value, ir.Constant(FLOATS, ir.Undefined), lanes)
        signs = constant(FLOATS, [-1.0 if i & half else 1.0 for i in range(WIDTH)])
        value = multiply_add(build, value, signs, swapped)
    return value


@intrinsic
def _tile(_: Any, array: Any, index: Any, one: Any) -> Any:
    """Eight levels on 256 numbers, in place."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        at = pointer(context, build, signature.args[0], args[0], args[1])
        values = [load(build, at, FLOATS, WIDTH * i) for i in range(WIDTH)]
        for i, value in enumerate(across(build, values, splat(build, args[2], FLOATS))):
            store(build, inside(build, value), at, WIDTH * i)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.float32), generate


@intrinsic
def _butterflies(_: Any, array: Any, index: Any, stride: Any, radix: Any, one: Any) -> Any:
    """The levels between ``radix`` vectors that lie ``stride`` numbers apart, in place."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        at = pointer(context, build, signature.args[0], args[0], args[1])
        offsets = [build.mul(args[2], ir.Constant(LONG, i)) for i in range(radix.literal_value)]
        values = [load(build, at, FLOATS, offset) for offset in offsets]
        for offset, value in zip(offsets, across(build, values, splat(build, args[4], FLOATS)), strict=True):
            store(build, value, at, offset)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, radix, types.float32), generate


def signed(build: Any, value: Any, bits: Any, vector: int, scale: Any) -> Any:
    """Value · scale · random signs, the signs of the ``vector``-th vector of a group."""
    sign = build.and_(build.shl(bits, constant(INTS, vector)), constant(INTS, 0x80000000))
    return build.bitcast(build.xor(build.bitcast(build.fmul(value, scale), INTS), sign), FLOATS)


@intrinsic
def _signed(
    _: Any, source: Any, start: Any, target: Any, index: Any, group: Any, factor: Any, keys: Any
) -> Any:
    """Target = source · random signs · factor, for one group of 512 numbers."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        there = pointer(context, build, signature.args[0], args[0], args[1])
        here = pointer(context, build, signature.args[2], args[2], args[3])
        bits = random_bits(build, args[4], *tools.unpack_tuple(build, args[6], 2))
        scale = splat(build, args[5], FLOATS)
        for i in range(GROUP // WIDTH):
            value = load(build, there, FLOATS, WIDTH * i)
            store(build, signed(build, value, bits, i, scale), here, WIDTH * i)
        return context.get_dummy_value()

    kinds = (source, types.int64, target, types.int64, types.int64, types.float32, PAIR)
    return types.void(*kinds), generate


@intrinsic
def _signed_tiles(
    _: Any, source: Any, start: Any, target: Any, index: Any, group: Any, factor: Any, keys: Any, one: Any
) -> Any:
    """The same with the first eight levels of the transform on the way; the answer is source's sum of squares."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        there = pointer(context, build, signature.args[0], args[0], args[1])
        here = pointer(context, build, signature.args[2], args[2], args[3])
        bits = random_bits(build, args[4], *tools.unpack_tuple(build, args[6], 2))
        scale, unit = splat(build, args[5], FLOATS), splat(build, args[7], FLOATS)
        sums = [constant(FLOATS, 0.0)] * 2
        for tile in (range(WIDTH), range(WIDTH, 2 * WIDTH)):
            values = [load(build, there, FLOATS, WIDTH * i) for i in tile]
            for i, value in enumerate(values):
                sums[i % 2] = build.fadd(sums[i % 2], build.fmul(value, value))
            values = [signed(build, value, bits, i, scale) for i, value in zip(tile, values, strict=True)]
            for i, value in zip(tile, across(build, values, unit), strict=True):
                store(build, inside(build, value), here, WIDTH * i)
        # The first lane of a Hadamard transform is the sum of all lanes.
        total = inside(build, build.fadd(*sums))
        return build.extract_element(total, ir.Constant(INT, 0))

    kinds = (source, types.int64, target, types.int64, types.int64, types.float32, PAIR, types.float32)
    return types.float32(*kinds), generate


@inlined
def _levels(x: Floats, start: int, size: int, stride: int, widest: int, one: Any) -> None:
    """All levels from ``stride`` up to ``size``, in passes of up to ``widest`` vectors."""
    while stride < size:
        left = size // stride
        radix = left if left <= widest else widest // 2 if left == 2 * widest else widest
        for first in range(start, start + size, stride * radix):
            if radix == 16:
                for i in range(first, first + stride, WIDTH):
                    _butterflies(x, i, stride, 16, one)
            elif radix == 8:
                for i in range(first, first + stride, WIDTH):
                    _butterflies(x, i, stride, 8, one)
            elif radix == 4:
                for i in range(first, first + stride, WIDTH):
                    _butterflies(x, i, stride, 4, one)
            else:
                for i in range(first, first + stride, WIDTH):
                    _butterflies(x, i, stride, 2, one)
        stride *= radix


@kernel
def transform(x: Floats, start: int, size: int, one: Any) -> None:
    """Multiply ``size`` numbers (a power of two, at least 256) by the Hadamard matrix, in place.

    ``one`` is 1; it is an argument so that the compiler keeps the multiplications (see ``across``).
    """
    far, near = min(size, FAR), min(size, NEAR)
    for block in range(start, start + size, far):
        for inner in range(block, block + far, near):
            for tile in range(inner, inner + near, TILE):
                _tile(x, tile, one)
            _levels(x, inner, near, TILE, 16, one)
        # Eight streams at most: more lines a power of two apart would evict each other from an 8-way cache.
        _levels(x, block, far, near, 8, one)
    _levels(x, start, size, far, 8, one)


@kernel
def rotate(
    source: Floats,
    start: int,
    x: Floats,
    at: int,
    size: int,
    group: int,
    factor: Any,
    keys: Any,
    one: Any,
) -> float:
    """Set x = H · (source · random signs · factor), for a power of two from 512 to ``FAR`` numbers.

    The answer is the sum of squares of the source.
    """
    near, total = min(size, NEAR), 0.0
    for inner in range(0, size, near):
        for i in range(inner, inner + near, GROUP):
            squares = _signed_tiles(source, start + i, x, at + i, group + i // GROUP, factor, keys, one)
            total += np.float64(squares)
        _levels(x, at + inner, near, TILE, 16, one)
    _levels(x, at, size, near, 8, one)
    return total


@kernel
def sign(
    source: Floats, start: int, target: Floats, index: int, size: int, group: int, factor: Any, keys: Any
) -> None:
    """Set target = source · random signs · factor; ``group`` counts groups of 512 so far."""
    for i in range(0, size, GROUP):
        _signed(source, start + i, target, index + i, group + i // GROUP, factor, keys)
