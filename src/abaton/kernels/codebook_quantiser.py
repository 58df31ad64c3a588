"""Kernels of quantisers that choose, for each number, a codeword from a codebook picked at random.

Numbers come in groups of 512: 32 vectors of 16 lanes. Each vector has one codebook h, uniform and
independent of the others. (The 16 lanes may share it: at the optimum a codebook's error has mean zero over
normal numbers, so sharing correlates nothing; the test of the tables checks that.) A table row holds 16
numbers, one for each message; with fewer messages the row repeats, so that bits above the message do not
matter in a lookup.

A message of b bits is written in one field of b bits, or for b = 3 in one of 2 and one of 1. A field of q
bits takes q·16 words a group: number 16·s + lane is in word 16·⌊s·q/32⌋ + lane, from bit s·q mod 32 on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.walsh_hadamard import GROUP, Floats, aligned
from abaton.kernels.jit import kernel
from abaton.kernels.simd import (
    FLOATS,
    INT,
    INTS,
    LONG,
    WIDTH,
    constant,
    counted,
    fused,
    has_permute,
    hashed,
    intrinsic,
    ir,
    load,
    permute,
    permute_two,
    pointer,
    pushed,
    random_bits,
    splat,
    store,
    tools,
    truth_bits,
    types,
    unit_pairs,
)

Words = NDArray[np.uint32]
Masks = NDArray[np.uint64]

VECTORS = GROUP // WIDTH
BYTE = ir.IntType(8)
SPAN, CELLS = 3.1, 32  # cells divide (-SPAN, SPAN); the first and the last reach further
FIELDS = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,)}


def whole(value: int) -> Any:
    """A 64-bit constant."""
    return ir.Constant(LONG, value)


def interval_rows(low: NDArray[np.float64], width: NDArray[np.float64]) -> Floats:
    """The table for ``write``: for each codebook the ends of the intervals in which messages change.

    Message x turns into x + 1 at low[x] + u·width[x], with u in (1, 2). With more than 3 intervals a row has one
    part for each step of a binary search, moved so that the message so far is the index of the middle.
    """
    count, ends = low.shape
    halves = [1 << j for j in reversed(range((ends + 1).bit_length() - 1))] if ends > 3 else [1]
    table = np.zeros((count, len(halves), 2, WIDTH), dtype=np.float32)
    for part, half in enumerate(halves):
        table[:, part, 0, : ends - half + 1] = low[:, half - 1 :]
        table[:, part, 1, : ends - half + 1] = width[:, half - 1 :]
    result = aligned(table.size)
    result[:] = table.ravel()
    return result


def cell_rows(low: NDArray[np.float64], width: NDArray[np.float64]) -> Floats | None:
    """A table for ``write`` that needs one comparison: for each of 32 equal cells, the only message to try.

    A row has the messages of the cells, then the ends as in ``interval_rows``. None if a cell meets two intervals.
    """
    count, ends = low.shape
    first, last = low + width, low + 2 * width
    sides = np.linspace(-SPAN, SPAN, CELLS + 1)
    sides[0], sides[-1], slack = -np.inf, np.inf, 1e-5  # rounding may put a number into the next cell
    tried = (last[:, None] <= sides[None, :-1, None] - slack).sum(
        axis=2
    )  # intervals that lie below each cell
    if (tried + 1 < (first[:, None] < sides[None, 1:, None] + slack).sum(axis=2)).any():
        return None
    table = np.zeros((count, 4, WIDTH), dtype=np.float32)
    table[:, :2] = tried.astype(np.int32).view(np.float32).reshape(count, 2, WIDTH)
    table[:, 2], table[:, 2, :ends], table[:, 3, :ends] = np.inf, low, width
    result = aligned(table.size)
    result[:] = table.ravel()
    return result


def rows(build: Any, group: Any, keys: Any, count: Any, stride: int) -> Any:
    """A function from a vector's place in its group to where its random row begins in a table."""
    space = tools.alloca_once(build, ir.ArrayType(BYTE, 4 * WIDTH))
    random = hashed(build, counted(build, group), *keys)
    build.store(random, build.bitcast(space, random.type.as_pointer())).align = 1
    first, last = build.bitcast(space, BYTE.as_pointer()), build.sub(count, whole(1))

    def row(place: Any) -> Any:
        byte = build.zext(build.load(build.gep(first, [place])), LONG)
        return build.mul(build.and_(byte, last), whole(stride))

    return row


def chosen(context: Any, build: Any, row: Any, index: Any, bits: int) -> Any:
    """Look up row[index] in every lane."""
    if has_permute(context):
        return permute(build, load(build, row, FLOATS), index)
    choices = [splat(build, build.load(build.gep(row, [whole(x)])), FLOATS) for x in range(1 << bits)]
    for j in range(bits):
        is_set = build.icmp_unsigned("!=", build.and_(index, constant(INTS, 1 << j)), constant(INTS, 0))
        choices = [build.select(is_set, b, a) for a, b in zip(choices[::2], choices[1::2], strict=True)]
    return choices[0]


def parts_of(bits: int, cells: int) -> int:
    """How many pairs of vectors a row of intervals has."""
    return 2 if cells else bits if bits > 2 else 1


def tried_in(build: Any, values: Any, row: Any) -> Any:
    """The message to try for each number: that of its cell."""
    place = fused(build, values, constant(FLOATS, CELLS / (2 * SPAN)), constant(FLOATS, CELLS / 2))
    for relation, limit in (("<", CELLS - 0.5), (">", 0.0)):
        within = build.fcmp_ordered(relation, place, constant(FLOATS, limit))
        place = build.select(within, place, constant(FLOATS, limit))
    cell, table = build.fptosi(place, INTS), [load(build, row, FLOATS, WIDTH * i) for i in (0, 1)]
    return build.bitcast(permute_two(build, table, cell), INTS)


def message_of(context: Any, build: Any, values: Any, uniform: Any, row: Any, bits: int, cells: int) -> Any:
    """How many messages lie below each number: those with z > low + u·width."""
    message = constant(INTS, 0)
    if has_permute(context) and cells:
        message = tried_in(build, values, row)
        low, width = (permute(build, load(build, row, FLOATS, WIDTH * i), message) for i in (2, 3))
        above = build.fcmp_ordered(">", values, fused(build, uniform, width, low))
        return build.select(above, build.add(message, constant(INTS, 1)), message)
    if has_permute(context) and bits > 2:
        for part in range(bits):
            half, at = 1 << (bits - 1 - part), 2 * WIDTH * part
            ends = (load(build, row, FLOATS, at), load(build, row, FLOATS, at + WIDTH))
            low, width = (permute(build, end, message) for end in ends)
            above = build.fcmp_ordered(">", values, fused(build, uniform, width, low))
            message = build.select(above, build.add(message, constant(INTS, half)), message)
        return message
    plain = 2 * WIDTH * (parts_of(bits, cells) - 1)
    for x in range((1 << bits) - 1):
        places = (whole(plain + x), whole(plain + WIDTH + x))
        low, width = (splat(build, build.load(build.gep(row, [place])), FLOATS) for place in places)
        above = build.fcmp_ordered(">", values, fused(build, uniform, width, low))
        message = build.select(above, build.add(message, constant(INTS, 1)), message)
    return message


@intrinsic
def _write(
    _: Any, z: Any, at: Any, words: Any, to: Any, masks: Any, group: Any, table: Any, count: Any, edge: Any,
    scale: Any, bits: Any, cells: Any, keys: Any,
) -> Any:  # fmt: skip
    """Quantise one group: messages to ``words``, the truth of |z| > edge to ``masks``."""
    fields = FIELDS[bits.literal_value]

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        def place(i: int, index: Any) -> Any:
            return pointer(context, build, signature.args[i], args[i], index)

        vector, limit = build.mul(args[5], whole(VECTORS // 2)), splat(build, args[8], FLOATS)
        factor = splat(build, args[9], FLOATS)
        source, target, table_start = place(0, args[1]), place(2, args[3]), place(6, whole(0))
        beyond = build.bitcast(place(4, build.lshr(args[1], whole(6))), ir.IntType(WIDTH).as_pointer())
        shared, other, *private = tools.unpack_tuple(build, args[12], 4)
        pairs = parts_of(bits.literal_value, cells.literal_value)
        row = rows(build, args[5], (shared, other), args[7], 2 * WIDTH * pairs)
        spaces = [tools.alloca_once(build, INTS) for _ in fields]
        for space in spaces:
            build.store(constant(INTS, 0), space)
        per_word = VECTORS // fields[0]
        for k in range(fields[0]):
            with tools.for_range(build, whole(per_word // 2), intp=LONG) as loop:
                pair = build.add(loop.index, whole(k * per_word // 2))
                random = random_bits(build, build.add(vector, pair), *private)
                for odd, uniform in enumerate(unit_pairs(build, random)):
                    s = build.add(build.mul(pair, whole(2)), whole(odd))
                    values = build.fmul(load(build, source, FLOATS, build.mul(s, whole(WIDTH))), factor)
                    here = build.gep(table_start, [row(s)])
                    message = message_of(
                        context, build, values, uniform, here, bits.literal_value, cells.literal_value
                    )
                    for field, space, skip in zip(fields, spaces, (0, 2), strict=False):
                        low = build.lshr(message, constant(INTS, skip)) if skip else message
                        build.store(pushed(build, low, build.load(space), field), space)
                    size = build.and_(build.bitcast(values, INTS), constant(INTS, 0x7FFFFFFF))
                    outside = build.fcmp_ordered(">", build.bitcast(size, FLOATS), limit)
                    build.store(truth_bits(build, outside), build.gep(beyond, [s]))
            store(build, build.load(spaces[0]), target, WIDTH * k)
            build.store(constant(INTS, 0), spaces[0])
        if len(fields) == 2:
            store(build, build.load(spaces[1]), target, WIDTH * fields[0])
        return context.get_dummy_value()

    long, four = types.int64, types.UniTuple(types.uint64, 4)
    kinds = (z, long, words, long, masks, long, table, long, types.float32, types.float32, bits, cells, four)
    return types.void(*kinds), generate


@intrinsic
def _read(
    _: Any, words: Any, at: Any, total: Any, to: Any, group: Any, table: Any, count: Any, bits: Any, keys: Any
) -> Any:
    """Add the codewords of one group to ``total``."""
    fields = FIELDS[bits.literal_value]

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        def place(i: int, index: Any) -> Any:
            return pointer(context, build, signature.args[i], args[i], index)

        source, target, table_start = place(0, args[1]), place(2, args[3]), place(5, whole(0))
        row = rows(build, args[4], tools.unpack_tuple(build, args[8], 2), args[6], WIDTH)
        per_word = VECTORS // fields[0]
        high = load(build, source, INTS, WIDTH * fields[0]) if len(fields) == 2 else None
        for k in range(fields[0]):
            word = load(build, source, INTS, WIDTH * k)
            with tools.for_range(build, whole(per_word), intp=LONG) as loop:
                s = build.add(loop.index, whole(k * per_word))
                by = build.mul(build.trunc(loop.index, INT), ir.Constant(INT, fields[0]))
                message = build.lshr(word, splat(build, by, INTS))
                if high is not None:
                    top = build.lshr(high, splat(build, build.trunc(s, INT), INTS))
                    low = build.and_(message, constant(INTS, 3))
                    message = build.or_(low, build.shl(top, constant(INTS, 2)))
                codeword = chosen(
                    context, build, build.gep(table_start, [row(s)]), message, bits.literal_value
                )
                offset = build.mul(s, whole(WIDTH))
                store(build, build.fadd(load(build, target, FLOATS, offset), codeword), target, offset)
        return context.get_dummy_value()

    long, pair = types.int64, types.UniTuple(types.uint64, 2)
    return types.void(words, long, total, long, long, table, long, bits, pair), generate


@kernel
def write(
    z: Floats, size: int, words: Words, to: int, masks: Masks, group: int, table: Floats, count: int,
    edge: Any, scale: Any, bits: int, cells: int, keys: Any,
) -> None:  # fmt: skip
    """Quantise the first ``size`` numbers of ``z`` (a multiple of 512) into ``words`` from ``to`` on.

    ``table`` holds ``count`` rows as ``interval_rows`` makes them, or as ``cell_rows`` does if ``cells`` is 1.
    ``group`` counts groups so far, for the random streams; bit i of ``masks`` tells whether number i lies beyond
    ``edge``. Numbers are multiplied by ``scale`` first.
    """
    for i in range(size // GROUP):
        at, out = i * GROUP, to + i * WIDTH * bits
        if bits == 1:
            _write(z, at, words, out, masks, group + i, table, count, edge, scale, 1, 0, keys)
        elif bits == 2 and cells:
            _write(z, at, words, out, masks, group + i, table, count, edge, scale, 2, 1, keys)
        elif bits == 2:
            _write(z, at, words, out, masks, group + i, table, count, edge, scale, 2, 0, keys)
        elif bits == 3 and cells:
            _write(z, at, words, out, masks, group + i, table, count, edge, scale, 3, 1, keys)
        elif bits == 3:
            _write(z, at, words, out, masks, group + i, table, count, edge, scale, 3, 0, keys)
        elif cells:
            _write(z, at, words, out, masks, group + i, table, count, edge, scale, 4, 1, keys)
        else:
            _write(z, at, words, out, masks, group + i, table, count, edge, scale, 4, 0, keys)


@kernel
def add(
    words: Words, at: int, total: Floats, start: int, size: int, group: int, table: Floats, count: int,
    bits: int, keys: Any,
) -> None:  # fmt: skip
    """Add the codewords of ``size`` numbers to ``total`` from ``start`` on.

    ``table`` holds ``count`` rows of codewords, already multiplied by the update's weight and norm.
    """
    for i in range(size // GROUP):
        here, out = at + i * WIDTH * bits, start + i * GROUP
        if bits == 1:
            _read(words, here, total, out, group + i, table, count, 1, keys)
        elif bits == 2:
            _read(words, here, total, out, group + i, table, count, 2, keys)
        elif bits == 3:
            _read(words, here, total, out, group + i, table, count, 3, keys)
        else:
            _read(words, here, total, out, group + i, table, count, 4, keys)
