"""The vector instructions' plain twins: the same kernels as ordinary loops.

Nothing uses them but tests, which compare bits, and ``abaton bench codecs``, which compares speed: what is written in
vector instructions stays so only where it is at least one and a half times as fast as its twin here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.counter_rng import random_word
from abaton.kernels.walsh_hadamard import GROUP, TILE, Floats
from abaton.kernels.jit import inlined, kernel
from abaton.kernels.simd import WIDTH

Bits = NDArray[np.uint32]
Masks = NDArray[np.uint64]


@inlined
def random_bits(number: Any, keys: Any) -> Any:
    """The ``number``-th 32 random bits of a stream: sixteen lanes are eight words, the lower half first."""
    word = random_word(number // 2, keys[0], keys[1])
    return np.uint32(word >> np.uint64(32 * (number % 2)))


@inlined
def level(x: Floats, start: int, size: int, half: int) -> None:
    """One level of butterflies between numbers that lie ``half`` apart."""
    for first in range(start, start + size, 2 * half):
        for i in range(first, first + half):
            a, b = x[i], x[i + half]
            x[i], x[i + half] = a + b, a - b


@kernel
def transform(x: Floats, start: int, size: int) -> None:
    """Multiply by the Hadamard matrix, in place, level by level in the order of ``hadamard.transform``."""
    half = WIDTH
    while half < TILE:
        level(x, start, size, half)
        half *= 2
    half = 1
    while half < WIDTH:
        level(x, start, size, half)
        half *= 2
    half = TILE
    while half < size:
        level(x, start, size, half)
        half *= 2


@kernel
def sign(source: Floats, target: Floats, size: int, group: int, factor: Any, keys: Any) -> None:
    """Set target = source · random signs · factor, as ``hadamard.sign`` does."""
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
    words: Bits, at: int, total: Floats, start: int, size: int, group: int, table: Floats, count: int,
    bits: int, keys: Any,
) -> None:  # fmt: skip
    """Add the codewords of ``size`` numbers to ``total``, as ``codebooks.add`` does."""
    main = 2 if bits == 3 else bits
    mask = np.uint32((1 << main) - 1)
    for g in range(size // GROUP):
        here, out = at + g * WIDTH * bits, start + g * GROUP
        for vector in range(GROUP // WIDTH):
            random = random_word((group + g) * 8 + vector // 8, keys[0], keys[1])
            row = (np.int64(random >> np.uint64(8 * (vector % 8))) & np.int64(count - 1)) * WIDTH
            first, shift = here + vector * main // 32 * WIDTH, np.uint32(vector * main % 32)
            for lane in range(WIDTH):
                message = (words[first + lane] >> shift) & mask
                if bits == 3:
                    message |= (
                        (words[here + 2 * WIDTH + lane] >> np.uint32(vector)) & np.uint32(1)
                    ) << np.uint32(2)
                total[out + vector * WIDTH + lane] += table[row + np.int64(message)]


@kernel
def write(
    z: Floats, size: int, words: Bits, to: int, masks: Masks, group: int, low: Floats, width: Floats,
    edge: Any, scale: Any, bits: int, keys: Any,
) -> None:  # fmt: skip
    """Quantise numbers into ``words`` and ``masks``, as ``codebooks.write`` does: one interval after the other.

    ``low`` and ``width`` are the intervals themselves, a row for each codebook.
    """
    main, messages, beyond = 2 if bits == 3 else bits, np.empty(WIDTH, np.uint32), np.empty(WIDTH, np.uint64)
    values, uniforms = np.empty(WIDTH, np.float32), np.empty(WIDTH, np.float64)
    for g in range(size // GROUP):
        here = to + g * WIDTH * bits
        words[here : here + WIDTH * bits] = 0
        masks[g * GROUP // 64 : (g + 1) * GROUP // 64] = 0
        for vector in range(GROUP // WIDTH):
            shared = random_word((group + g) * 8 + vector // 8, keys[0], keys[1])
            row = np.int64(shared >> np.uint64(8 * (vector % 8))) & np.int64(low.shape[0] - 1)
            number = ((group + g) * (GROUP // WIDTH // 2) + vector // 2) * WIDTH
            for lane in range(WIDTH):
                random = random_bits(number + lane, (keys[2], keys[3]))
                part = (random >> np.uint32(16 * (vector % 2))) & np.uint32(0xFFFF)
                uniforms[lane] = 1.0 + (np.float64(part) + 0.5) / 65536.0
                values[lane] = z[g * GROUP + vector * WIDTH + lane] * scale
                beyond[lane] = np.uint64(1 if abs(values[lane]) > edge else 0)
                messages[lane] = np.uint32(0)
            for x in range(low.shape[1]):
                wide, start = np.float64(width[row, x]), np.float64(low[row, x])
                for lane in range(WIDTH):  # rounded once, as a fused multiplication and addition is
                    end = np.float32(uniforms[lane] * wide + start)
                    messages[lane] += np.uint32(1 if values[lane] > end else 0)
            first, shift = here + vector * main // 32 * WIDTH, np.uint32(vector * main % 32)
            for lane in range(WIDTH):
                words[first + lane] |= (messages[lane] & np.uint32((1 << main) - 1)) << shift
                place = g * GROUP + vector * WIDTH + lane
                masks[place // 64] |= beyond[lane] << np.uint64(place % 64)
                if bits == 3:
                    words[here + 2 * WIDTH + lane] |= (messages[lane] >> np.uint32(2)) << np.uint32(vector)


@kernel
def gather(bits: Bits, threshold: int, places: Bits, found: Bits) -> int:
    """Collect what reaches a threshold, in order, as ``select`` does for one segment."""
    count, limit = 0, np.uint32(threshold)
    for i in range(bits.size):
        places[count], found[count] = i, bits[i]
        count += 1 if bits[i] & np.uint32(0x7FFFFFFF) >= limit else 0
    return count


@kernel
def put_words(buffer: NDArray[np.uint8], step: int, words: Masks) -> None:
    """Write words ``step`` bytes apart, each over the end of the one before, as ``lanes.put_word`` does."""
    for i in range(words.size):
        for j in range(8):
            buffer[i * step + j] = np.uint8(words[i] >> np.uint64(8 * j))
