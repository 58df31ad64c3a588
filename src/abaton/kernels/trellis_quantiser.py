"""Kernels of trellis-coded dithered quantisation: dither, symbols of the chosen points, and decoding.

A rotated value z becomes y = σ·z/Δ + u with a random sign σ and a dither u, uniform on (0, 4). The trellis
search chooses an integer λ close to y; the decoder computes σ·(λ - u). Sign and dither come from one random word
w of 32 bits: σ is negative if bit 0 is set, u = (⌊w / 2^9⌋ + ½)·2^-21. All arithmetic after ⌊64·y⌋ is in
integers.

λ has the parity p of its coset, which the decoder knows from its trellis state. With a = ⌊(⌊u⌋ - p) / 2⌋ and
ν = u - p - 2·a in (0, 2), λ = 2·(k + a) + p and λ - u = 2·k - ν. The outcome k is entropy-coded; its
frequencies depend on the stratum of ν, a row of the table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.counter_rng import random_word
from abaton.kernels.interleaved_rans import decode_step, is_finished
from abaton.kernels.jit import inlined, kernel
from abaton.kernels.rotation import rotate_block
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
    mask_bits,
    pointer,
    random_bits,
    splat,
    store,
    tools,
    types,
)
from abaton.kernels.trellis_search import LANES, RESIDUES_PER_UNIT, Bits32, Bytes, Shorts
from abaton.kernels.trellis_search import parity as parity_of
from abaton.kernels.walsh_hadamard import GROUP, Floats

Int64s = NDArray[np.int64]
Symbols = NDArray[np.uint16]  # also the words of a rANS code

BYTES = ir.VectorType(ir.IntType(8), WIDTH)
SHORTS = ir.VectorType(ir.IntType(16), WIDTH)


@inlined
def select_steps(steps: int, step_count: int, block_start: int, keys: Any, chosen_steps: Int64s) -> None:
    """Choose ``step_count`` of a block's trellis steps at random, in ascending order (selection sampling)."""
    needed = step_count
    for t in range(steps):
        word = random_word(block_start // LANES + t, keys[0], ~keys[1]) >> np.uint64(32)
        if np.int64((word * np.uint64(steps - t)) >> np.uint64(32)) < needed:
            chosen_steps[step_count - needed] = t
            needed -= 1


def _dither(build: Any, word: Any) -> Any:
    """Return the dither of random words: uniform on (0, 4) and exact in float32."""
    integer_part = build.uitofp(build.lshr(word, constant(INTS, 9)), FLOATS)
    return build.fmul(build.fadd(integer_part, constant(FLOATS, 0.5)), constant(FLOATS, 2.0**-21))


def _with_sign(build: Any, values: Any, word: Any) -> Any:
    """Return values times the random sign σ of their words."""
    sign = build.shl(word, constant(INTS, 31))
    return build.bitcast(build.xor(build.bitcast(values, INTS), sign), FLOATS)


def _row(build: Any, word: Any, parity: Any, power: Any) -> Any:
    """Return the stratum of ν: the lowest bit of ⌊u⌋ - p, then the highest bits of u's fraction; 2^power in all."""
    high = splat(build, build.sub(build.trunc(power, INT), ir.Constant(INT, 1)), INTS)
    half = build.and_(build.sub(build.lshr(word, constant(INTS, 30)), parity), constant(INTS, 1))
    fraction = build.lshr(build.shl(word, constant(INTS, 2)), build.sub(constant(INTS, 32), high))
    return build.or_(build.shl(half, high), fraction)


@intrinsic
def _dither_values(_: Any, z: Any, index: Any, inverse: Any, vector: Any, keys: Any, residues: Any) -> Any:
    """Add the dither to 16 values; write ⌊64·y⌋ over them, and its lowest 8 bits to ``residues``."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        value_at, place_at = (pointer(context, build, signature.args[i], args[i], args[1]) for i in (0, 5))
        word = random_bits(build, args[3], *tools.unpack_tuple(build, args[4], 2))
        scaled = build.fmul(load(build, value_at, FLOATS), splat(build, args[2], FLOATS))
        shifted = build.fadd(_with_sign(build, scaled, word), _dither(build, word))
        shifted = build.fmul(shifted, constant(FLOATS, RESIDUES_PER_UNIT))
        nearest = build.fptosi(shifted, INTS)  # rounds towards zero
        is_above = build.fcmp_ordered(">", build.sitofp(nearest, FLOATS), shifted)
        number = build.add(nearest, build.sext(is_above, INTS))
        store(build, build.bitcast(number, FLOATS), value_at)
        store(build, build.trunc(build.and_(number, constant(INTS, 255)), SHORTS), place_at)
        return context.get_dummy_value()

    long, pair = types.int64, types.UniTuple(types.uint64, 2)
    return types.void(z, long, types.float32, long, pair, residues), generate


@kernel
def dither_block(
    x: Floats, block: Int64s, step_count: int, step: float, first_value: int, keys: Any, z: Floats,
    chosen_steps: Int64s, residues: Shorts,
) -> float:  # fmt: skip
    """Rotate a block, add the dither; write ⌊64·y⌋ over ``z``, as integers, and its trellis residue; return the norm.

    Only ``step_count`` steps are quantised; ``first_value`` is the number of values quantised before.
    """
    norm, scale = rotate_block(x, block[0], block[1], z, 0, block[2], block[3] // GROUP, (keys[0], keys[1]))
    if norm == 0.0 or not np.isfinite(norm):
        return norm
    steps = block[2] // LANES
    if step_count < steps:
        select_steps(steps, step_count, block[3], (keys[2], keys[3]), chosen_steps)
        for i in range(step_count):
            source = chosen_steps[i] * LANES
            for lane in range(LANES):
                z[i * LANES + lane] = z[source + lane]
    inverse = np.float32(np.float64(scale) / step)
    for first in range(0, step_count * LANES, WIDTH):
        _dither_values(z, first, inverse, (first_value + first) // WIDTH, (keys[2], keys[3]), residues)
    return norm


@intrinsic
def _take_symbols(
    _: Any,
    grid: Any,
    index: Any,
    path: Any,
    vector: Any,
    keys: Any,
    power: Any,
    width: Any,
    symbols: Any,
    to: Any,
) -> Any:
    """Write the symbols of 16 trellis points, and their outcomes over ``grid``; return a mask of those outside."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        number_at, coset_at = (pointer(context, build, signature.args[i], args[i], args[1]) for i in (0, 2))
        symbol_at = pointer(context, build, signature.args[7], args[7], args[8])
        word = random_bits(build, args[3], *tools.unpack_tuple(build, args[4], 2))
        size, one, two = splat(build, build.trunc(args[6], INT), INTS), constant(INTS, 1), constant(INTS, 2)
        number = build.bitcast(load(build, number_at, FLOATS), INTS)
        bytes_at = build.bitcast(coset_at, BYTES.as_pointer())
        coset_bytes = build.load(bytes_at)
        coset_bytes.align = 1
        coset = build.zext(coset_bytes, INTS)
        parity = build.and_(coset, one)
        # λ is the integer of the coset closest to the number.
        shifted = build.sub(
            build.add(number, constant(INTS, 2 * RESIDUES_PER_UNIT)),
            build.mul(coset, constant(INTS, RESIDUES_PER_UNIT)),
        )
        point = build.add(build.shl(build.ashr(shifted, constant(INTS, 8)), two), coset)
        integer_part = build.ashr(build.sub(build.lshr(word, constant(INTS, 30)), parity), one)
        outcome = build.sub(build.ashr(build.sub(point, parity), one), integer_part)
        outcome = build.add(outcome, build.sub(build.lshr(size, one), one))
        store(build, build.bitcast(outcome, FLOATS), number_at)
        symbol = build.add(build.mul(_row(build, word, parity, args[5]), size), outcome)
        store(build, build.trunc(symbol, SHORTS), symbol_at)
        outside = build.icmp_unsigned(">=", outcome, size)  # negative outcomes are large unsigned integers
        return build.zext(mask_bits(build, outside), LONG)

    long, pair = types.int64, types.UniTuple(types.uint64, 2)
    return types.int64(grid, long, path, long, pair, long, long, symbols, long), generate


@kernel
def take_symbols(
    grid: Floats, count: int, path: Bytes, first_value: int, keys: Any, power: int, width: int, symbols: Symbols,
    outlier_indices: Int64s, excess: Floats, outliers: int,
) -> int:  # fmt: skip
    """Write the symbols of a block's trellis points; return the number of outliers so opposite.

    ``power`` is log2 of the rows of the table, ``width`` the outcomes of a row. An outcome beyond the table is
    clamped by a multiple of two, which keeps its coset; the rest becomes an outlier.
    """
    outcomes = grid.view(np.int32)
    for first in range(0, count, WIDTH):
        index, vector = first_value + first, (first_value + first) // WIDTH
        outside = _take_symbols(grid, first, path, vector, (keys[2], keys[3]), power, width, symbols, index)
        if outside != 0:
            for lane in range(WIDTH):
                if (outside >> lane) & 1 == 0:
                    continue
                outcome = np.int64(outcomes[first + lane])
                beyond = -((1 - outcome) // 2) if outcome < 0 else (outcome - width + 2) // 2
                word = random_word(vector * (WIDTH // 2) + lane // 2, keys[2], keys[3])
                sign = 1 - 2 * (np.int64(word >> np.uint64(32 * (lane % 2))) & 1)
                symbols[index + lane] = np.uint16(np.int64(symbols[index + lane]) - 2 * beyond)
                outlier_indices[outliers], excess[outliers] = index + lane, np.float32(4 * beyond * sign)
                outliers += 1
    return outliers


@intrinsic
def _decoder_rows(
    _: Any, states: Any, vector: Any, keys: Any, low_tap: Any, power: Any, random: Any, rows: Any
) -> Any:
    """Write the random words and the table rows of a step of 32 trellis states."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        zero, keys = ir.Constant(LONG, 0), tools.unpack_tuple(build, args[2], 2)
        state_at, random_at, row_at = (
            pointer(context, build, signature.args[i], args[i], zero) for i in (0, 5, 6)
        )
        tap = splat(build, build.trunc(args[3], INT), INTS)
        for i, offset in enumerate((0, WIDTH)):
            word = random_bits(build, build.add(args[1], ir.Constant(LONG, i)), *keys)
            parity = parity_of(build, build.and_(load(build, state_at, INTS, offset), tap))
            store(build, word, random_at, offset)
            store(build, _row(build, word, parity, args[4]), row_at, offset)
        return context.get_dummy_value()

    long, pair = types.int64, types.UniTuple(types.uint64, 2)
    return types.void(states, long, pair, long, long, random, rows), generate


@intrinsic
def _advance(
    _: Any, states: Any, random: Any, low_tap: Any, high_tap: Any, state_bits: Any, width: Any, rows: Any,
    symbols: Any, values: Any, to: Any,
) -> Any:  # fmt: skip
    """Write the values σ·(λ - u) of a step of 32 symbols, and advance the trellis states."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        zero, one = ir.Constant(LONG, 0), constant(INTS, 1)
        state_at, random_at, row_at, symbol_at = (
            pointer(context, build, signature.args[i], args[i], zero) for i in (0, 1, 6, 7)
        )
        value_at = pointer(context, build, signature.args[8], args[8], args[9])
        low, high, bits, size = (splat(build, build.trunc(args[i], INT), INTS) for i in (2, 3, 4, 5))
        middle = build.sub(build.lshr(size, one), one)
        for offset in (0, WIDTH):
            state, word, row, symbol = (
                load(build, address, INTS, offset) for address in (state_at, random_at, row_at, symbol_at)
            )
            parity = parity_of(build, build.and_(state, low))
            coset = build.or_(build.shl(parity_of(build, build.and_(state, high)), one), parity)
            outcome = build.sub(build.sub(symbol, build.mul(row, size)), middle)
            integer_part = build.ashr(build.sub(build.lshr(word, constant(INTS, 30)), parity), one)
            point = build.add(build.shl(build.add(outcome, integer_part), one), parity)
            is_other = build.icmp_unsigned("!=", build.and_(point, constant(INTS, 3)), coset)
            bit = build.shl(build.zext(is_other, INTS), bits)
            store(build, build.lshr(build.or_(state, bit), one), state_at, offset)
            value = build.fsub(build.sitofp(point, FLOATS), _dither(build, word))
            store(build, _with_sign(build, value, word), value_at, offset)
        return context.get_dummy_value()

    long = types.int64
    return types.void(states, random, long, long, long, long, rows, symbols, values, long), generate


@kernel
def read(
    rans_words: Symbols, rans_states: Bits32, counts: Int64s, taps: Any, state_bits: int, power: int, width: int,
    intervals: Bits32, guesses: Bits32, keys: Any, values: Floats,
) -> bool:  # fmt: skip
    """Decode the trellis outcomes of blocks to σ·(λ - u); return False unless ``rans_words`` is exactly one code.

    ``counts`` are the values of each block; ``taps`` are h1 and h0 of the code; ``rans_words`` is padded with 32 more.
    """
    position, end, first_value = 0, rans_words.size - LANES, 0
    states, random = np.empty(LANES, np.uint32), np.empty(LANES, np.uint32)
    rows, symbols = np.empty(LANES, np.uint32), np.empty(LANES, np.uint32)
    for b in range(counts.size):
        states[:] = np.uint32(0)
        for first in range(first_value, first_value + counts[b], LANES):
            _decoder_rows(states, first // WIDTH, keys, taps[0], power, random, rows)
            position = decode_step(
                rans_words, position, rans_states, rows, symbols, 0, intervals, guesses, values.size - first
            )
            if position > end:
                return False
            _advance(states, random, taps[0], taps[1], state_bits, width, rows, symbols, values, first)
        first_value += counts[b]
    return is_finished(position, end, rans_states)


@kernel
def accumulate(
    values: Floats, blocks: Int64s, counts: Int64s, factors: NDArray[np.float64], keys: Any, chosen_steps: Int64s,
    total: Floats,
) -> None:  # fmt: skip
    """Add factor · decoded trellis value to the rotated ``total``, for blocks with values and a nonzero factor."""
    first_value = 0
    for b in range(len(blocks)):
        start, steps, step_count, factor = (
            blocks[b, 3],
            blocks[b, 2] // LANES,
            counts[b] // LANES,
            np.float32(factors[b]),
        )
        if step_count > 0 and factors[b] != 0.0:
            if step_count == steps:
                for i in range(counts[b]):
                    total[start + i] += factor * values[first_value + i]
            else:
                select_steps(steps, step_count, start, keys, chosen_steps)
                for i in range(step_count):
                    target, source = start + chosen_steps[i] * LANES, first_value + i * LANES
                    for lane in range(LANES):
                        total[target + lane] += factor * values[source + lane]
        first_value += counts[b]
