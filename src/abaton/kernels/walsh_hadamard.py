"""Fast Walsh-Hadamard transform and random signs of a rotation.

A rotation is y = H·D·x: random signs D from a keyed hash, then the Hadamard matrix H of +1 and -1 (not
scaled). Its inverse is x = D·H·y / n. Butterflies add and subtract in a fixed order, so results are bit-identical on
every machine.

Each pass over the data computes as many levels as fit into registers: 8 levels on 256
contiguous values, then up to 3 or 4 levels per pass, first inside the L1 cache, then inside the L2 cache,
then over the full vector.
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

TILE = 256  # values in registers: 16 vectors of 16
GROUP = 512  # values that share one vector of random bits, one bit each
L1_BLOCK = 1 << 12  # a block that stays in the L1 cache
L2_BLOCK = 1 << 17  # a block that stays in the L2 cache

PAIR = types.UniTuple(types.uint64, 2)


def aligned(size: int) -> Floats:
    """Return an uninitialised float32 array aligned to a cache line, for the Walsh-Hadamard transform."""
    space = np.empty(size + WIDTH, dtype=np.float32)
    start = -(space.ctypes.data // 4) % WIDTH
    return space[start : start + size]


def butterflies(build: Any, values: list[Any], one: Any) -> list[Any]:
    """Compute Walsh-Hadamard butterflies between vectors; 1·a + b uses the multiply-add units."""
    half = 1
    while half < len(values):
        for first in range(0, len(values), 2 * half):
            for i in range(first, first + half):
                a, b = values[i], values[i + half]
                values[i], values[i + half] = multiply_add(build, a, one, b), build.fsub(a, b)
        half *= 2
    return values


def lane_butterflies(build: Any, value: Any) -> Any:
    """Compute Walsh-Hadamard butterflies between the 16 lanes of one vector: v·(±1) + v with exchanged lanes."""
    for half in (1, 2, 4, 8):
        lanes = ir.Constant(INTS, [ir.Constant(INT, i ^ half) for i in range(WIDTH)])
        swapped = build.shuffle_vector(value, ir.Constant(FLOATS, ir.Undefined), lanes)
        signs = constant(FLOATS, [-1.0 if i & half else 1.0 for i in range(WIDTH)])
        value = multiply_add(build, value, signs, swapped)
    return value


@intrinsic
def _tile(_: Any, array: Any, index: Any, one: Any) -> Any:
    """Compute eight Walsh-Hadamard levels on 256 values, in place."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        address = pointer(context, build, signature.args[0], args[0], args[1])
        values = [load(build, address, FLOATS, WIDTH * i) for i in range(WIDTH)]
        for i, value in enumerate(butterflies(build, values, splat(build, args[2], FLOATS))):
            store(build, lane_butterflies(build, value), address, WIDTH * i)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.float32), generate


@intrinsic
def _strided_butterflies(_: Any, array: Any, index: Any, stride: Any, radix: Any, one: Any) -> Any:
    """Compute Walsh-Hadamard levels between ``radix`` vectors that are ``stride`` values apart, in place."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        address = pointer(context, build, signature.args[0], args[0], args[1])
        offsets = [build.mul(args[2], ir.Constant(LONG, i)) for i in range(radix.literal_value)]
        values = [load(build, address, FLOATS, offset) for offset in offsets]
        for offset, value in zip(
            offsets, butterflies(build, values, splat(build, args[4], FLOATS)), strict=True
        ):
            store(build, value, address, offset)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, radix, types.float32), generate


def apply_signs(build: Any, value: Any, bits: Any, vector: int, scale: Any) -> Any:
    """Return value · scale · the random signs of a Walsh-Hadamard rotation for one vector of a group."""
    sign = build.and_(build.shl(bits, constant(INTS, vector)), constant(INTS, 0x80000000))
    return build.bitcast(build.xor(build.bitcast(build.fmul(value, scale), INTS), sign), FLOATS)


@intrinsic
def _apply_signs(
    _: Any, source: Any, start: Any, target: Any, index: Any, group: Any, factor: Any, keys: Any
) -> Any:
    """Set target = source · random signs of a Walsh-Hadamard rotation · factor, for one group of 512 values."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        source_address = pointer(context, build, signature.args[0], args[0], args[1])
        target_address = pointer(context, build, signature.args[2], args[2], args[3])
        bits = random_bits(build, args[4], *tools.unpack_tuple(build, args[6], 2))
        scale = splat(build, args[5], FLOATS)
        for i in range(GROUP // WIDTH):
            value = load(build, source_address, FLOATS, WIDTH * i)
            store(build, apply_signs(build, value, bits, i, scale), target_address, WIDTH * i)
        return context.get_dummy_value()

    argument_types = (source, types.int64, target, types.int64, types.int64, types.float32, PAIR)
    return types.void(*argument_types), generate


@intrinsic
def _apply_signs_and_tiles(
    _: Any, source: Any, start: Any, target: Any, index: Any, group: Any, factor: Any, keys: Any, one: Any
) -> Any:
    """Set target as ``_apply_signs``, compute eight Walsh-Hadamard levels; return the source's sum of squares."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        source_address = pointer(context, build, signature.args[0], args[0], args[1])
        target_address = pointer(context, build, signature.args[2], args[2], args[3])
        bits = random_bits(build, args[4], *tools.unpack_tuple(build, args[6], 2))
        scale, unit = splat(build, args[5], FLOATS), splat(build, args[7], FLOATS)
        sums = [constant(FLOATS, 0.0)] * 2
        for tile in (range(WIDTH), range(WIDTH, 2 * WIDTH)):
            values = [load(build, source_address, FLOATS, WIDTH * i) for i in tile]
            for i, value in enumerate(values):
                sums[i % 2] = build.fadd(sums[i % 2], build.fmul(value, value))
            values = [
                apply_signs(build, value, bits, i, scale) for i, value in zip(tile, values, strict=True)
            ]
            for i, value in zip(tile, butterflies(build, values, unit), strict=True):
                store(build, lane_butterflies(build, value), target_address, WIDTH * i)
        # The first lane of a Hadamard transform is the sum of all lanes.
        total = lane_butterflies(build, build.fadd(*sums))
        return build.extract_element(total, ir.Constant(INT, 0))

    argument_types = (
        source,
        types.int64,
        target,
        types.int64,
        types.int64,
        types.float32,
        PAIR,
        types.float32,
    )
    return types.float32(*argument_types), generate


@inlined
def _levels(x: Floats, start: int, size: int, stride: int, max_radix: int, one: Any) -> None:
    """Compute all Walsh-Hadamard levels from ``stride`` up to ``size``, in passes of up to ``max_radix`` vectors."""
    while stride < size:
        remaining = size // stride
        radix = (
            remaining
            if remaining <= max_radix
            else max_radix // 2
            if remaining == 2 * max_radix
            else max_radix
        )
        for first in range(start, start + size, stride * radix):
            if radix == 16:
                for i in range(first, first + stride, WIDTH):
                    _strided_butterflies(x, i, stride, 16, one)
            elif radix == 8:
                for i in range(first, first + stride, WIDTH):
                    _strided_butterflies(x, i, stride, 8, one)
            elif radix == 4:
                for i in range(first, first + stride, WIDTH):
                    _strided_butterflies(x, i, stride, 4, one)
            else:
                for i in range(first, first + stride, WIDTH):
                    _strided_butterflies(x, i, stride, 2, one)
        stride *= radix


@kernel
def transform(x: Floats, start: int, size: int, one: Any) -> None:
    """Compute the Walsh-Hadamard transform of ``size`` values (a power of two, at least 256), in place.

    ``one`` is 1; it is an argument so that the compiler keeps the multiplications (see ``butterflies``).
    """
    l2_size, l1_size = min(size, L2_BLOCK), min(size, L1_BLOCK)
    for block in range(start, start + size, l2_size):
        for inner in range(block, block + l2_size, l1_size):
            for tile in range(inner, inner + l1_size, TILE):
                _tile(x, tile, one)
            _levels(x, inner, l1_size, TILE, 16, one)
        # At most eight streams: more cache lines a power of two apart would evict each other from an 8-way cache.
        _levels(x, block, l2_size, l1_size, 8, one)
    _levels(x, start, size, l2_size, 8, one)


@kernel
def rotate(
    source: Floats,
    start: int,
    x: Floats,
    target_start: int,
    size: int,
    group: int,
    factor: Any,
    keys: Any,
    one: Any,
) -> float:
    """Set x = H · (source · random signs · factor), for a power of two from 512 to ``L2_BLOCK`` values.

    Returns the sum of squares of the source.
    """
    l1_size, total = min(size, L1_BLOCK), 0.0
    for inner in range(0, size, l1_size):
        for i in range(inner, inner + l1_size, GROUP):
            squared_sum = _apply_signs_and_tiles(
                source, start + i, x, target_start + i, group + i // GROUP, factor, keys, one
            )
            total += np.float64(squared_sum)
        _levels(x, target_start + inner, l1_size, TILE, 16, one)
    _levels(x, target_start, size, l1_size, 8, one)
    return total


@kernel
def sign(
    source: Floats, start: int, target: Floats, index: int, size: int, group: int, factor: Any, keys: Any
) -> None:
    """Set target = source · a rotation's random signs · factor; ``group`` counts the preceding groups of 512."""
    for i in range(0, size, GROUP):
        _apply_signs(source, start + i, target, index + i, group + i // GROUP, factor, keys)
