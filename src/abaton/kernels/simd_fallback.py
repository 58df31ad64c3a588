"""SIMD kernels as scalar loops, for comparison.

Used only by tests, which compare bits, and by the codec benchmark, which compares speed: a SIMD kernel is
kept only where it is at least 1.5 times as fast as its counterpart here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.counter_rng import random_word
from abaton.kernels.interleaved_rans import LANES, MIN_STATE, SERIAL, TOTAL, TOTAL_BITS, RansWords
from abaton.kernels.jit import inlined, kernel
from abaton.kernels.simd import WIDTH
from abaton.kernels.walsh_hadamard import GROUP, TILE, Floats

Int32s = NDArray[np.uint32]
Masks = NDArray[np.uint64]


@inlined
def random_bits(index: Any, keys: Any) -> Any:
    """Scalar fallback: return the ``index``-th 32 random bits of a stream, as sixteen SIMD lanes have them."""
    word = random_word(index // 2, keys[0], keys[1])
    return np.uint32(word >> np.uint64(32 * (index % 2)))


@inlined
def butterfly_level(x: Floats, start: int, size: int, half: int) -> None:
    """Scalar fallback: compute one level of butterflies between values ``half`` apart."""
    for first in range(start, start + size, 2 * half):
        for i in range(first, first + half):
            a, b = x[i], x[i + half]
            x[i], x[i + half] = a + b, a - b


@kernel
def transform(x: Floats, start: int, size: int) -> None:
    """Scalar fallback: multiply by the Hadamard matrix in place, in the order of ``walsh_hadamard.transform``."""
    half = WIDTH
    while half < TILE:
        butterfly_level(x, start, size, half)
        half *= 2
    half = 1
    while half < WIDTH:
        butterfly_level(x, start, size, half)
        half *= 2
    half = TILE
    while half < size:
        butterfly_level(x, start, size, half)
        half *= 2


@kernel
def sign(source: Floats, target: Floats, size: int, group: int, factor: Any, keys: Any) -> None:
    """Scalar fallback: set target = source · random signs · factor, as ``walsh_hadamard.sign`` does."""
    bits, signed = np.empty(WIDTH, np.uint32), target.view(np.uint32)
    for first in range(0, size, GROUP):
        for lane in range(WIDTH):
            bits[lane] = random_bits((group + first // GROUP) * WIDTH + lane, keys)
        for i in range(first, first + GROUP):
            target[i] = source[i] * factor
        for vector in range(GROUP // WIDTH):
            for lane in range(WIDTH):
                negative = (bits[lane] << np.uint32(vector)) & np.uint32(0x80000000)
                signed[first + vector * WIDTH + lane] ^= negative


@kernel
def add(
    packed: Int32s, word_start: int, total: Floats, start: int, size: int, group: int, table: Floats, count: int,
    bits: int, keys: Any,
) -> None:  # fmt: skip
    """Scalar fallback: add codewords of ``size`` values to ``total``, as ``codebook_quantiser.add`` does."""
    low_bits = 2 if bits == 3 else bits
    mask = np.uint32((1 << low_bits) - 1)
    for g in range(size // GROUP):
        source_start, target_start = word_start + g * WIDTH * bits, start + g * GROUP
        for vector in range(GROUP // WIDTH):
            random = random_word((group + g) * 8 + vector // 8, keys[0], keys[1])
            row = (np.int64(random >> np.uint64(8 * (vector % 8))) & np.int64(count - 1)) * WIDTH
            first, shift = source_start + vector * low_bits // 32 * WIDTH, np.uint32(vector * low_bits % 32)
            for lane in range(WIDTH):
                message = (packed[first + lane] >> shift) & mask
                if bits == 3:
                    message |= (
                        (packed[source_start + 2 * WIDTH + lane] >> np.uint32(vector)) & np.uint32(1)
                    ) << np.uint32(2)
                total[target_start + vector * WIDTH + lane] += table[row + np.int64(message)]


@kernel
def write(
    z: Floats, size: int, packed: Int32s, start: int, masks: Masks, group: int, low: Floats, width: Floats,
    edge: Any, scale: Any, bits: int, keys: Any,
) -> None:  # fmt: skip
    """Scalar fallback: quantise values to ``packed`` and ``masks``, as ``codebook_quantiser.write`` does.

    ``low`` and ``width`` are the intervals, a row for each codebook.
    """
    low_bits, messages, is_outside = (
        2 if bits == 3 else bits,
        np.empty(WIDTH, np.uint32),
        np.empty(WIDTH, np.uint64),
    )
    values, uniforms = np.empty(WIDTH, np.float32), np.empty(WIDTH, np.float64)
    for g in range(size // GROUP):
        target_start = start + g * WIDTH * bits
        packed[target_start : target_start + WIDTH * bits] = 0
        masks[g * GROUP // 64 : (g + 1) * GROUP // 64] = 0
        for vector in range(GROUP // WIDTH):
            shared = random_word((group + g) * 8 + vector // 8, keys[0], keys[1])
            row = np.int64(shared >> np.uint64(8 * (vector % 8))) & np.int64(low.shape[0] - 1)
            first_random = ((group + g) * (GROUP // WIDTH // 2) + vector // 2) * WIDTH
            for lane in range(WIDTH):
                random = random_bits(first_random + lane, (keys[2], keys[3]))
                uniform_bits = (random >> np.uint32(16 * (vector % 2))) & np.uint32(0xFFFF)
                uniforms[lane] = 1.0 + (np.float64(uniform_bits) + 0.5) / 65536.0
                values[lane] = z[g * GROUP + vector * WIDTH + lane] * scale
                is_outside[lane] = np.uint64(1 if abs(values[lane]) > edge else 0)
                messages[lane] = np.uint32(0)
            for x in range(low.shape[1]):
                interval_width, interval_start = np.float64(width[row, x]), np.float64(low[row, x])
                for lane in range(WIDTH):  # rounded once, like a fused multiply-add
                    end = np.float32(uniforms[lane] * interval_width + interval_start)
                    messages[lane] += np.uint32(1 if values[lane] > end else 0)
            first, shift = target_start + vector * low_bits // 32 * WIDTH, np.uint32(vector * low_bits % 32)
            for lane in range(WIDTH):
                packed[first + lane] |= (messages[lane] & np.uint32((1 << low_bits) - 1)) << shift
                index = g * GROUP + vector * WIDTH + lane
                masks[index // 64] |= is_outside[lane] << np.uint64(index % 64)
                if bits == 3:
                    packed[target_start + 2 * WIDTH + lane] |= (messages[lane] >> np.uint32(2)) << np.uint32(
                        vector
                    )


@kernel
def gather(bits: Int32s, threshold: int, indices: Int32s, values: Int32s) -> int:
    """Scalar fallback: collect the magnitudes that reach a threshold, as ``topk.gather`` does for one segment."""
    count, limit = 0, np.uint32(threshold)
    for i in range(bits.size):
        indices[count], values[count] = i, bits[i]
        count += 1 if bits[i] & np.uint32(0x7FFFFFFF) >= limit else 0
    return count


@kernel
def put_words(buffer: NDArray[np.uint8], step: int, packed: Masks) -> None:
    """Scalar fallback: write words ``step`` bytes apart, each overlapping the last, as ``simd.put_word`` does."""
    for i in range(packed.size):
        for j in range(8):
            buffer[i * step + j] = np.uint8(packed[i] >> np.uint64(8 * j))


@kernel
def write_rans(symbols: RansWords, intervals: Int32s, states: Int32s, rans_words: RansWords) -> int:
    """Scalar fallback: code symbols with rANS, as ``interleaved_rans.write`` does."""
    count, parallel = 0, max(symbols.size - SERIAL, 0)
    states[:] = np.uint32(MIN_STATE)
    for i in range(symbols.size - 1, -1, -1):
        if i == parallel - 1:
            for lane in range(1, min(LANES, count + 1)):
                states[lane] += np.uint32(rans_words[count - lane])
            count = max(count - LANES + 1, 0)
        lane = i % LANES if i < parallel else 0
        x, interval = np.int64(states[lane]), np.int64(intervals[symbols[i]])
        start, frequency = interval & 0xFFFF, interval >> 16
        if x >= frequency << (32 - TOTAL_BITS):
            rans_words[count] = np.uint16(x & 0xFFFF)
            count += 1
            x >>= 16
        states[lane] = np.uint32((x // frequency << TOTAL_BITS) + start + x % frequency)
    rans_words[:count] = rans_words[:count][::-1].copy()
    return count


@kernel
def read_rans(
    rans_words: RansWords, states: Int32s, rows: Int32s, intervals: Int32s, width: int, symbols: Int32s
) -> bool:
    """Scalar fallback: decode a rANS code from ``open_code``, as ``interleaved_rans.read`` does."""
    end, parallel, used = rans_words.size - LANES, max(rows.size - SERIAL, 0), 0
    position = 0
    for i in range(rows.size):
        lane = i % LANES if i < parallel else 0
        x, symbol = np.int64(states[lane]), np.int64(rows[i]) * width
        slot = x & (TOTAL - 1)
        while slot >= np.int64(intervals[symbol] & 0xFFFF) + np.int64(intervals[symbol] >> 16):
            symbol += 1
        x = (
            np.int64(intervals[symbol] >> 16) * (x >> TOTAL_BITS)
            + slot
            - np.int64(intervals[symbol] & 0xFFFF)
        )
        if x < MIN_STATE and i >= parallel and used < LANES - 1:
            used += 1
            x = x << 16 | np.int64(states[used] & 0xFFFF)
            states[used] -= states[used] & np.uint32(0xFFFF)
        elif x < MIN_STATE:
            if position == end:
                return False
            x = x << 16 | np.int64(rans_words[position])
            position += 1
        symbols[i], states[lane] = np.uint32(symbol), np.uint32(x)
    return position == end and bool((states[:LANES] == np.uint32(MIN_STATE)).all())
