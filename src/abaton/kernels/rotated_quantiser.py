"""Rotate and quantise a whole vector, block by block, and add what was quantised to a sum.

One block at a time goes through every step, so that it stays in the processor's cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.codebook_quantiser import Masks, Words, add, write
from abaton.kernels.counter_rng import random_word
from abaton.kernels.walsh_hadamard import GROUP, Floats
from abaton.kernels.jit import inlined, kernel
from abaton.kernels.simd import WIDTH, trailing_zeros
from abaton.kernels.rotation import spin

Wholes = NDArray[np.int64]
Doubles = NDArray[np.float64]


@inlined
def _codeword(
    i: int, words: Words, at: int, group: int, table: Floats, count: int, bits: int, keys: Any
) -> Any:
    """The codeword of one number of a block, exactly as ``add`` finds it."""
    vector, lane = i % GROUP // WIDTH, i % WIDTH
    random = random_word((group + i // GROUP) * 8 + vector // 8, keys[0], keys[1])
    row = np.int64(random >> np.uint64(8 * (vector % 8))) & (count - 1)
    low = 4 if bits == 4 else min(bits, 2)
    word = words[at + (i // GROUP * bits + vector * low // 32) * WIDTH + lane]
    message = np.int64(word >> np.uint32(vector * low % 32)) & ((1 << low) - 1)
    if bits == 3:
        top = words[at + (i // GROUP * bits + 2) * WIDTH + lane]
        message |= (np.int64(top >> np.uint32(vector)) & 1) << 2
    return table[row * WIDTH + message]


@kernel
def encode(
    x: Floats, blocks: Wholes, intervals: Floats, cells: int, codewords: Floats, count: int, edge: Any, bits: int,
    keys: Any, z: Floats, masks: Masks, norms: Doubles, words: Words, places: Wholes, excess: Floats,
) -> tuple[int, int]:  # fmt: skip
    """Rotate and quantise all blocks; the answer is how many words and how many outliers were written.

    ``keys`` are two words each for the rotation, the codebooks and private rounding; ``z`` and ``masks`` are
    space for one block. ``excess`` gets what each outlier exceeds its codeword by.
    """
    used = found = 0
    for b in range(len(blocks)):
        start, length, size, place = blocks[b, 0], blocks[b, 1], blocks[b, 2], blocks[b, 3]
        group = place // GROUP
        norms[b], scale = spin(x, start, length, z, 0, size, group, (keys[0], keys[1]))
        if norms[b] == 0.0 or not np.isfinite(norms[b]):
            continue
        write(
            z,
            size,
            words,
            used,
            masks,
            group,
            intervals,
            count,
            edge,
            scale,
            bits,
            cells,
            (keys[2], keys[3], keys[4], keys[5]),
        )
        for i in range(size // 64):
            mask = masks[i]
            while mask != 0:
                at: Any = i * 64 + np.int64(trailing_zeros(mask))
                mask &= mask - np.uint64(1)
                places[found] = place + at
                codeword = _codeword(at, words, used, group, codewords, count, bits, (keys[2], keys[3]))
                excess[found] = z[at] * scale - codeword
                found += 1
        used += size // GROUP * WIDTH * bits
    return used, found


@kernel
def halves(values: Floats, places: Wholes, keys: Any) -> None:
    """Round to what float16 can hold, up or down at random so that the mean is right, in place."""
    bits = values.view(np.uint32)
    for i in range(values.size):
        random = np.uint32(random_word(places[i], keys[0], ~keys[1]) >> np.uint64(51))
        bits[i] = (bits[i] + random) & np.uint32(0xFFFFE000)


@kernel
def accumulate(
    words: Words, blocks: Wholes, factors: Doubles, codewords: Floats, count: int, bits: int, keys: Any,
    scaled: Floats, places: Wholes, excess: Floats, total: Floats,
) -> None:  # fmt: skip
    """Total += factor · (codeword + excess of outliers) for all blocks whose factor is not zero.

    ``scaled`` is space for a table.
    """
    used = found = 0
    for b in range(len(blocks)):
        if factors[b] == 0.0:
            continue
        size, place = blocks[b, 2], blocks[b, 3]
        factor = np.float32(factors[b])
        for i in range(codewords.size):
            scaled[i] = factor * codewords[i]
        add(words, used, total, place, size, place // GROUP, scaled, count, bits, keys)
        while found < places.size and places[found] < place + size:
            if places[found] >= place:  # none lies in a block that was not sent, unless a payload is forged
                total[places[found]] += factor * excess[found]
            found += 1
        used += size // GROUP * WIDTH * bits
