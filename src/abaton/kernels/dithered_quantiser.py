"""Kernels of the dithered quantiser: round to a randomly shifted grid, and back.

The outcomes are symbols of ``interleaved_rans``: row j of the frequencies has the outcomes in stratum j of the dither.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.counter_rng import fill
from abaton.kernels.interleaved_rans import LANES, Bits32, RansWords, decode_step, is_finished
from abaton.kernels.jit import inlined, inner, kernel
from abaton.kernels.rotation import rotate_block
from abaton.kernels.walsh_hadamard import GROUP, Floats

Int64s = NDArray[np.int64]


@inlined
def _dither(random: int) -> Any:
    """Return a value between -½ and ½ from the upper 23 of 32 random bits; exact in float32."""
    return (np.float32(random >> np.uint32(9)) + np.float32(0.5)) * np.float32(2.0**-23) - np.float32(0.5)


@inner
def _round_group(
    z: Floats, inverse: Any, random: Bits32, power: Any, start_of: Any, outcomes: NDArray[np.int32]
) -> Any:
    """Round a group of rotated values with dither to outcomes; return the lowest and the highest outcome or 0."""
    shift, low, high = np.uint32(32 - power), np.int32(0), np.int32(0)
    for i in range(GROUP):
        q = np.int32(np.floor(z[i] * inverse + _dither(random[i]) + np.float32(0.5)))
        k = np.int32((q << power) - np.int32(random[i] >> shift) + start_of)
        outcomes[i] = k
        low, high = min(low, k), max(high, k)
    return low, high


@inner
def _number_group(
    outcomes: NDArray[np.int32], random: Bits32, power: Any, width: int, symbols: RansWords
) -> None:
    """Number a group of outcomes through the rows of the entropy coder, one row for each stratum of the dither."""
    shift, row_width = np.uint32(32 - power), np.int32(width)
    for i in range(GROUP):
        symbols[i] = np.uint16(np.int32(random[i] >> shift) * row_width + (outcomes[i] >> power))


@kernel
def quantise(
    x: Floats, blocks: Int64s, step: Any, strata: int, count: int, width: int, keys: Any, z: Floats, random: Bits32,
    norms: NDArray[np.float64], symbols: RansWords, outlier_indices: Int64s, excess: Floats,
) -> tuple[int, int]:  # fmt: skip
    """Rotate all blocks and round them with dither; return the number of symbols and of outliers.

    Outcome k is the start of its frequencies in a list of ``count``, see ``codecs/ecdq.py``; the symbol is its number
    in the rows of ``width`` outcomes.
    """
    symbol_count = outliers = 0
    pairs = random.view(np.uint64)  # two random values each, the lower half first
    start_of, last = np.int32(count // 2 - 1), np.int32(count - strata - 1)
    power = np.int32(round(np.log2(strata)))
    outcomes = np.empty(GROUP, np.int32)
    for b in range(len(blocks)):
        start, size = blocks[b, 3], blocks[b, 2]
        norms[b], scale = rotate_block(
            x, blocks[b, 0], blocks[b, 1], z, 0, size, start // GROUP, (keys[0], keys[1])
        )
        if norms[b] == 0.0 or not np.isfinite(norms[b]):
            continue
        inverse = np.float32(np.float64(scale) / step)
        for first in range(0, size, GROUP):
            fill(pairs, (start + first) // GROUP, (keys[2], keys[3]))
            low, high = _round_group(z[first : first + GROUP], inverse, random, power, start_of, outcomes)
            if low < 0 or high > last:
                for i in range(GROUP):
                    k, beyond = outcomes[i], 0
                    if k < 0:
                        beyond = -((strata - 1 - k) // strata)
                    elif k > last:
                        beyond = (k - last + strata - 1) // strata
                    if beyond != 0:
                        outcomes[i] = k - beyond * strata
                        outlier_indices[outliers], excess[outliers] = start + first + i, np.float32(beyond)
                        outliers += 1
            _number_group(outcomes, random, power, width, symbols[symbol_count : symbol_count + GROUP])
            symbol_count += GROUP
    return symbol_count, outliers


@inner
def _strata(random: Bits32, power: Any, rows: Bits32) -> None:
    """Set the stratum of each dither value of a group."""
    shift = np.uint32(32 - power)
    for i in range(GROUP):
        rows[i] = random[i] >> shift


@inner
def _dequantise_group(
    symbols: Bits32, rows: Bits32, random: Bits32, power: Any, start_of: Any, width: int, values: Floats
) -> None:
    """Set a group of values to q - u, from the symbols and the dither."""
    row_width = np.int32(width)
    for i in range(GROUP):
        stratum = np.int32(rows[i])
        q = np.int32(np.int32(symbols[i]) - stratum * row_width - ((start_of - stratum) >> power))
        values[i] = np.float32(q) - _dither(random[i])


@kernel
def read(
    rans_words: RansWords, states: Bits32, blocks: Int64s, norms: NDArray[np.float64], intervals: Bits32,
    guesses: Bits32, strata: int, count: int, width: int, keys: Any, random: Bits32, remaining: int, values: Floats,
) -> bool:  # fmt: skip
    """Decode the rANS code of all blocks with a norm to q - u; return False unless it is exactly one code.

    ``remaining`` is the number of values in these blocks.
    """
    position, end, power = 0, rans_words.size - LANES, np.int32(round(np.log2(strata)))
    start_of = np.int32(count // 2 - 1)
    pairs, rows, symbols = random.view(np.uint64), np.empty(GROUP, np.uint32), np.empty(GROUP, np.uint32)
    for block in range(len(blocks)):
        if norms[block] == 0.0:
            continue
        for first in range(blocks[block, 3], blocks[block, 3] + blocks[block, 2], GROUP):
            fill(pairs, first // GROUP, keys)
            _strata(random, power, rows)
            for i in range(0, GROUP, LANES):
                position = decode_step(
                    rans_words, position, states, rows, symbols, i, intervals, guesses, remaining
                )
                remaining -= LANES
                if position > end:
                    return False
            _dequantise_group(symbols, rows, random, power, start_of, width, values[first : first + GROUP])
    return is_finished(position, end, states)


@kernel
def accumulate(values: Floats, blocks: Int64s, factors: NDArray[np.float64], total: Floats) -> None:
    """Add factor · dithered value to ``total`` for all blocks whose factor is not zero."""
    for b in range(len(blocks)):
        factor = np.float32(factors[b])
        if factors[b] != 0.0:
            for i in range(blocks[b, 3], blocks[b, 3] + blocks[b, 2]):
                total[i] += factor * values[i]
