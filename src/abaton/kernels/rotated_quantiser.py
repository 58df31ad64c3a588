"""Rotation, quantisation and summation of vectors, block by block.

One block passes through all stages before the next, so that it stays in the processor's cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.codebook_quantiser import Masks, PackedWords, add, write
from abaton.kernels.counter_rng import random_word
from abaton.kernels.jit import inlined, kernel
from abaton.kernels.rotation import rotate_block
from abaton.kernels.simd import WIDTH, trailing_zeros
from abaton.kernels.walsh_hadamard import GROUP, Floats

Int64s = NDArray[np.int64]
Doubles = NDArray[np.float64]


@inlined
def _look_up_codeword(
    i: int, packed: PackedWords, word_start: int, group: int, table: Floats, count: int, bits: int, keys: Any
) -> Any:
    """Return the codeword of value ``i`` of a rotated, quantised block."""
    vector, lane = i % GROUP // WIDTH, i % WIDTH
    random = random_word((group + i // GROUP) * 8 + vector // 8, keys[0], keys[1])
    row = np.int64(random >> np.uint64(8 * (vector % 8))) & (count - 1)
    low = 4 if bits == 4 else min(bits, 2)
    word = packed[word_start + (i // GROUP * bits + vector * low // 32) * WIDTH + lane]
    message = np.int64(word >> np.uint32(vector * low % 32)) & ((1 << low) - 1)
    if bits == 3:
        top = packed[word_start + (i // GROUP * bits + 2) * WIDTH + lane]
        message |= (np.int64(top >> np.uint32(vector)) & 1) << 2
    return table[row * WIDTH + message]


@kernel
def encode(
    x: Floats, blocks: Int64s, intervals: Floats, cells: int, codewords: Floats, count: int, edge: Any, bits: int,
    keys: Any, z: Floats, masks: Masks, norms: Doubles, packed: PackedWords, outlier_indices: Int64s, excess: Floats,
) -> tuple[int, int]:  # fmt: skip
    """Rotate and quantise all blocks; return the number of words and the number of outliers.

    ``keys`` are two words each for the rotation, the codebooks and private rounding; ``z`` and ``masks`` are
    buffers for one block. ``excess`` receives the difference of each outlier from its codeword.
    """
    word_count = outliers = 0
    for b in range(len(blocks)):
        start, length, size, block_start = blocks[b, 0], blocks[b, 1], blocks[b, 2], blocks[b, 3]
        group = block_start // GROUP
        norms[b], scale = rotate_block(x, start, length, z, 0, size, group, (keys[0], keys[1]))
        if norms[b] == 0.0 or not np.isfinite(norms[b]):
            continue
        write(
            z,
            size,
            packed,
            word_count,
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
                index: Any = i * 64 + np.int64(trailing_zeros(mask))
                mask &= mask - np.uint64(1)
                outlier_indices[outliers] = block_start + index
                codeword = _look_up_codeword(
                    index, packed, word_count, group, codewords, count, bits, (keys[2], keys[3])
                )
                excess[outliers] = z[index] * scale - codeword
                outliers += 1
        word_count += size // GROUP * WIDTH * bits
    return word_count, outliers


@kernel
def round_to_float16(values: Floats, indices: Int64s, keys: Any) -> None:
    """Round outliers of rotated blocks to float16 precision in place, stochastically and without bias."""
    bits = values.view(np.uint32)
    for i in range(values.size):
        random = np.uint32(random_word(indices[i], keys[0], ~keys[1]) >> np.uint64(51))
        bits[i] = (bits[i] + random) & np.uint32(0xFFFFE000)


@kernel
def accumulate(
    packed: PackedWords, blocks: Int64s, factors: Doubles, codewords: Floats, count: int, bits: int, keys: Any,
    scaled: Floats, outlier_indices: Int64s, excess: Floats, total: Floats,
) -> None:  # fmt: skip
    """Add factor · (codeword + excess of outliers) to the rotated ``total``, for blocks with a nonzero factor.

    ``scaled`` is a buffer for a table.
    """
    word_start = outlier = 0
    for b in range(len(blocks)):
        if factors[b] == 0.0:
            continue
        size, block_start = blocks[b, 2], blocks[b, 3]
        factor = np.float32(factors[b])
        for i in range(codewords.size):
            scaled[i] = factor * codewords[i]
        add(packed, word_start, total, block_start, size, block_start // GROUP, scaled, count, bits, keys)
        while outlier < outlier_indices.size and outlier_indices[outlier] < block_start + size:
            if (
                outlier_indices[outlier] >= block_start
            ):  # a forged payload may have outliers in a block that was not sent
                total[outlier_indices[outlier]] += factor * excess[outlier]
            outlier += 1
        word_start += size // GROUP * WIDTH * bits
