"""Kernels of quantisers that select, for each value, a codeword from a random codebook.

Values are processed in groups of 512: 32 vectors of 16 lanes. Each vector has one codebook h, uniform and
independent of the values. Sixteen neighbouring values share a codebook, so that a table row is one SIMD register.
At the optimum a codebook's error has zero mean over normal values, so errors of neighbours are uncorrelated
(checked by the test of the tables). A table row has 16 entries, one for each message; with fewer messages the row
repeats, so bits above the message do not matter in a lookup.

A message of b bits is written in one field of b bits, or for b = 3 in one of 2 and one of 1. A field of q
bits takes q·16 words per group: value 16·s + lane is in word 16·⌊s·q/32⌋ + lane, from bit s·q mod 32 on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.jit import kernel
from abaton.kernels.simd import (
    FLOATS,
    INT,
    INTS,
    LONG,
    WIDTH,
    constant,
    counter_vector,
    fused_multiply_add,
    has_permute,
    hash_counters,
    intrinsic,
    ir,
    load,
    mask_bits,
    permute,
    permute_two,
    pointer,
    push_bits,
    random_bits,
    splat,
    store,
    tools,
    types,
    unit_pairs,
)
from abaton.kernels.walsh_hadamard import GROUP, Floats, aligned

PackedWords = NDArray[np.uint32]
Masks = NDArray[np.uint64]

VECTORS = GROUP // WIDTH
BYTE = ir.IntType(8)
SPAN, CELLS = 3.1, 32  # cells divide (-SPAN, SPAN); the first and the last reach further
FIELDS = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,)}


def int64(value: int) -> Any:
    """Return a 64-bit integer constant for the generated code of the codebook quantiser."""
    return ir.Constant(LONG, value)


def interval_rows(low: NDArray[np.float64], width: NDArray[np.float64]) -> Floats:
    """Return the table of ``write``: for each codebook the bounds of the intervals in which the message changes.

    Message x becomes x + 1 at low[x] + u·width[x], with u in (1, 2). With more than 3 intervals a row has one
    level for each step of a binary search, shifted so that the message so far is the index of the midpoint.
    """
    count, intervals = low.shape
    halves = [1 << j for j in reversed(range((intervals + 1).bit_length() - 1))] if intervals > 3 else [1]
    table = np.zeros((count, len(halves), 2, WIDTH), dtype=np.float32)
    for level, half in enumerate(halves):
        table[:, level, 0, : intervals - half + 1] = low[:, half - 1 :]
        table[:, level, 1, : intervals - half + 1] = width[:, half - 1 :]
    rows = aligned(table.size)
    rows[:] = table.ravel()
    return rows


def cell_rows(low: NDArray[np.float64], width: NDArray[np.float64]) -> Floats | None:
    """Return a codebook table for ``write`` with one comparison: the only candidate message of each of 32 cells.

    A row has the messages of the cells, then the bounds as in ``interval_rows``. None if a cell overlaps two
    intervals.
    """
    count, intervals = low.shape
    first, last = low + width, low + 2 * width
    sides = np.linspace(-SPAN, SPAN, CELLS + 1)
    sides[0], sides[-1], slack = -np.inf, np.inf, 1e-5  # rounding may put a value into the next cell
    candidates = (last[:, None] <= sides[None, :-1, None] - slack).sum(axis=2)  # intervals below each cell
    if (candidates + 1 < (first[:, None] < sides[None, 1:, None] + slack).sum(axis=2)).any():
        return None
    table = np.zeros((count, 4, WIDTH), dtype=np.float32)
    table[:, :2] = candidates.astype(np.int32).view(np.float32).reshape(count, 2, WIDTH)
    table[:, 2], table[:, 2, :intervals], table[:, 3, :intervals] = np.inf, low, width
    rows = aligned(table.size)
    rows[:] = table.ravel()
    return rows


def row_offsets(build: Any, group: Any, keys: Any, count: Any, stride: int) -> Any:
    """Return a function from a vector's index in its group to the offset of its random codebook row."""
    space = tools.alloca_once(build, ir.ArrayType(BYTE, 4 * WIDTH))
    random = hash_counters(build, counter_vector(build, group), *keys)
    build.store(random, build.bitcast(space, random.type.as_pointer())).align = 1
    first, last = build.bitcast(space, BYTE.as_pointer()), build.sub(count, int64(1))

    def row(vector: Any) -> Any:
        byte = build.zext(build.load(build.gep(first, [vector])), LONG)
        return build.mul(build.and_(byte, last), int64(stride))

    return row


def look_up(context: Any, build: Any, row: Any, index: Any, bits: int) -> Any:
    """Look up the codeword row[index] in every lane."""
    if has_permute(context):
        return permute(build, load(build, row, FLOATS), index)
    choices = [splat(build, build.load(build.gep(row, [int64(x)])), FLOATS) for x in range(1 << bits)]
    for j in range(bits):
        is_set = build.icmp_unsigned("!=", build.and_(index, constant(INTS, 1 << j)), constant(INTS, 0))
        choices = [build.select(is_set, b, a) for a, b in zip(choices[::2], choices[1::2], strict=True)]
    return choices[0]


def interval_pairs(bits: int, cells: int) -> int:
    """Return the number of vector pairs in a codebook's row of intervals."""
    return 2 if cells else bits if bits > 2 else 1


def cell_messages(build: Any, values: Any, row: Any) -> Any:
    """Return the candidate message of each value in its codebook: that of the value's cell."""
    position = fused_multiply_add(
        build, values, constant(FLOATS, CELLS / (2 * SPAN)), constant(FLOATS, CELLS / 2)
    )
    for relation, limit in (("<", CELLS - 0.5), (">", 0.0)):
        within = build.fcmp_ordered(relation, position, constant(FLOATS, limit))
        position = build.select(within, position, constant(FLOATS, limit))
    cell, table = build.fptosi(position, INTS), [load(build, row, FLOATS, WIDTH * i) for i in (0, 1)]
    return build.bitcast(permute_two(build, table, cell), INTS)


def select_messages(
    context: Any, build: Any, values: Any, uniform: Any, row: Any, bits: int, cells: int
) -> Any:
    """Return each value's message in its codebook: the number of intervals with z > low + u·width."""
    message = constant(INTS, 0)
    if has_permute(context) and cells:
        message = cell_messages(build, values, row)
        low, width = (permute(build, load(build, row, FLOATS, WIDTH * i), message) for i in (2, 3))
        above = build.fcmp_ordered(">", values, fused_multiply_add(build, uniform, width, low))
        return build.select(above, build.add(message, constant(INTS, 1)), message)
    if has_permute(context) and bits > 2:
        for level in range(bits):
            half, offset = 1 << (bits - 1 - level), 2 * WIDTH * level
            bounds = (load(build, row, FLOATS, offset), load(build, row, FLOATS, offset + WIDTH))
            low, width = (permute(build, bound, message) for bound in bounds)
            above = build.fcmp_ordered(">", values, fused_multiply_add(build, uniform, width, low))
            message = build.select(above, build.add(message, constant(INTS, half)), message)
        return message
    base = 2 * WIDTH * (interval_pairs(bits, cells) - 1)
    for x in range((1 << bits) - 1):
        offsets = (int64(base + x), int64(base + WIDTH + x))
        low, width = (splat(build, build.load(build.gep(row, [offset])), FLOATS) for offset in offsets)
        above = build.fcmp_ordered(">", values, fused_multiply_add(build, uniform, width, low))
        message = build.select(above, build.add(message, constant(INTS, 1)), message)
    return message


@intrinsic
def _write(
    _: Any, z: Any, source_start: Any, packed: Any, target_start: Any, masks: Any, group: Any, table: Any, count: Any,
    edge: Any, scale: Any, bits: Any, cells: Any, keys: Any,
) -> Any:  # fmt: skip
    """Quantise one group with random codebooks: messages to ``packed``, the comparison |z| > edge to ``masks``."""
    fields = FIELDS[bits.literal_value]

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        def address(i: int, index: Any) -> Any:
            return pointer(context, build, signature.args[i], args[i], index)

        vector, limit = build.mul(args[5], int64(VECTORS // 2)), splat(build, args[8], FLOATS)
        factor = splat(build, args[9], FLOATS)
        source, target, table_start = address(0, args[1]), address(2, args[3]), address(6, int64(0))
        mask_start = build.bitcast(address(4, build.lshr(args[1], int64(6))), ir.IntType(WIDTH).as_pointer())
        shared, other, *private = tools.unpack_tuple(build, args[12], 4)
        pairs = interval_pairs(bits.literal_value, cells.literal_value)
        row = row_offsets(build, args[5], (shared, other), args[7], 2 * WIDTH * pairs)
        spaces = [tools.alloca_once(build, INTS) for _ in fields]
        for space in spaces:
            build.store(constant(INTS, 0), space)
        per_word = VECTORS // fields[0]
        for k in range(fields[0]):
            with tools.for_range(build, int64(per_word // 2), intp=LONG) as loop:
                pair = build.add(loop.index, int64(k * per_word // 2))
                random = random_bits(build, build.add(vector, pair), *private)
                for odd, uniform in enumerate(unit_pairs(build, random)):
                    s = build.add(build.mul(pair, int64(2)), int64(odd))
                    values = build.fmul(load(build, source, FLOATS, build.mul(s, int64(WIDTH))), factor)
                    row_start = build.gep(table_start, [row(s)])
                    message = select_messages(
                        context, build, values, uniform, row_start, bits.literal_value, cells.literal_value
                    )
                    for field, space, skip in zip(fields, spaces, (0, 2), strict=False):
                        low = build.lshr(message, constant(INTS, skip)) if skip else message
                        build.store(push_bits(build, low, build.load(space), field), space)
                    size = build.and_(build.bitcast(values, INTS), constant(INTS, 0x7FFFFFFF))
                    outside = build.fcmp_ordered(">", build.bitcast(size, FLOATS), limit)
                    build.store(mask_bits(build, outside), build.gep(mask_start, [s]))
            store(build, build.load(spaces[0]), target, WIDTH * k)
            build.store(constant(INTS, 0), spaces[0])
        if len(fields) == 2:
            store(build, build.load(spaces[1]), target, WIDTH * fields[0])
        return context.get_dummy_value()

    long, four = types.int64, types.UniTuple(types.uint64, 4)
    argument_types = (
        z,
        long,
        packed,
        long,
        masks,
        long,
        table,
        long,
        types.float32,
        types.float32,
        bits,
        cells,
        four,
    )
    return types.void(*argument_types), generate


@intrinsic
def _read(
    _: Any,
    packed: Any,
    source_start: Any,
    total: Any,
    target_start: Any,
    group: Any,
    table: Any,
    count: Any,
    bits: Any,
    keys: Any,
) -> Any:
    """Add the codewords that the messages of one group select from their codebooks to ``total``."""
    fields = FIELDS[bits.literal_value]

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        def address(i: int, index: Any) -> Any:
            return pointer(context, build, signature.args[i], args[i], index)

        source, target, table_start = address(0, args[1]), address(2, args[3]), address(5, int64(0))
        row = row_offsets(build, args[4], tools.unpack_tuple(build, args[8], 2), args[6], WIDTH)
        per_word = VECTORS // fields[0]
        high = load(build, source, INTS, WIDTH * fields[0]) if len(fields) == 2 else None
        for k in range(fields[0]):
            word = load(build, source, INTS, WIDTH * k)
            with tools.for_range(build, int64(per_word), intp=LONG) as loop:
                s = build.add(loop.index, int64(k * per_word))
                shift = build.mul(build.trunc(loop.index, INT), ir.Constant(INT, fields[0]))
                message = build.lshr(word, splat(build, shift, INTS))
                if high is not None:
                    top = build.lshr(high, splat(build, build.trunc(s, INT), INTS))
                    low = build.and_(message, constant(INTS, 3))
                    message = build.or_(low, build.shl(top, constant(INTS, 2)))
                codeword = look_up(
                    context, build, build.gep(table_start, [row(s)]), message, bits.literal_value
                )
                offset = build.mul(s, int64(WIDTH))
                store(build, build.fadd(load(build, target, FLOATS, offset), codeword), target, offset)
        return context.get_dummy_value()

    long, pair = types.int64, types.UniTuple(types.uint64, 2)
    return types.void(packed, long, total, long, long, table, long, bits, pair), generate


@kernel
def write(
    z: Floats, size: int, packed: PackedWords, start: int, masks: Masks, group: int, table: Floats, count: int,
    edge: Any, scale: Any, bits: int, cells: int, keys: Any,
) -> None:  # fmt: skip
    """Quantise ``size`` values of ``z`` (a multiple of 512) with random codebooks to ``packed`` from ``start`` on.

    ``table`` has ``count`` rows from ``interval_rows``, or from ``cell_rows`` if ``cells`` is 1.
    ``group`` is the number of preceding groups, for the random streams; bit i of ``masks`` is set if value i
    is beyond ``edge``. Values are multiplied by ``scale`` first.
    """
    for i in range(size // GROUP):
        source_start, target_start = i * GROUP, start + i * WIDTH * bits
        if bits == 1:
            _write(
                z, source_start, packed, target_start, masks, group + i, table, count, edge, scale, 1, 0, keys
            )
        elif bits == 2 and cells:
            _write(
                z, source_start, packed, target_start, masks, group + i, table, count, edge, scale, 2, 1, keys
            )
        elif bits == 2:
            _write(
                z, source_start, packed, target_start, masks, group + i, table, count, edge, scale, 2, 0, keys
            )
        elif bits == 3 and cells:
            _write(
                z, source_start, packed, target_start, masks, group + i, table, count, edge, scale, 3, 1, keys
            )
        elif bits == 3:
            _write(
                z, source_start, packed, target_start, masks, group + i, table, count, edge, scale, 3, 0, keys
            )
        elif cells:
            _write(
                z, source_start, packed, target_start, masks, group + i, table, count, edge, scale, 4, 1, keys
            )
        else:
            _write(
                z, source_start, packed, target_start, masks, group + i, table, count, edge, scale, 4, 0, keys
            )


@kernel
def add(
    packed: PackedWords, word_start: int, total: Floats, start: int, size: int, group: int, table: Floats, count: int,
    bits: int, keys: Any,
) -> None:  # fmt: skip
    """Add the codewords of ``size`` messages, from their random codebooks, to ``total`` from ``start`` on.

    ``table`` has ``count`` rows of codewords, already multiplied by the update's weight and norm.
    """
    for i in range(size // GROUP):
        source_start, target_start = word_start + i * WIDTH * bits, start + i * GROUP
        if bits == 1:
            _read(packed, source_start, total, target_start, group + i, table, count, 1, keys)
        elif bits == 2:
            _read(packed, source_start, total, target_start, group + i, table, count, 2, keys)
        elif bits == 3:
            _read(packed, source_start, total, target_start, group + i, table, count, 3, keys)
        else:
            _read(packed, source_start, total, target_start, group + i, table, count, 4, keys)
