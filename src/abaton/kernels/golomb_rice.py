"""Golomb-Rice code of sorted indices with signs: short gaps take few bits.

Bits are filled from the lowest of each byte. An entry is the gap's upper part in unary (zeros, then a
one), the gap's lower ``width`` bits, and one bit that is set for a negative sign. Padding bits of the last
byte are zero.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.jit import inlined, kernel
from abaton.kernels.simd import put_word, trailing_zeros

Indices = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
_ZERO, _ONE = np.uint64(0), np.uint64(1)


def best_width(count: int, total: int) -> int:
    """Return the optimal Golomb-Rice width for ``count`` random indices below ``total`` (Sattler et al. 2019).

    >>> best_width(1, 100)
    6
    """
    density = count / total if total else 1.0
    if count == 0 or density >= 0.5:
        return 0
    golden = (math.sqrt(5) + 1) / 2
    return max(0, 1 + math.floor(math.log2(math.log(golden - 1) / math.log1p(-density))))


def max_bytes(count: int, total: int, width: int) -> int:
    """Return an upper bound of the bytes that the Golomb-Rice code of ``count`` entries takes."""
    return (count * (width + 2) + (total >> width)) // 8 + 16


@inlined
def _flush(buffer: Bytes, offset: int, word: Any, used: int) -> Any:
    """Move complete bytes of a Golomb-Rice code to the buffer; always eight, since a branch would be slower."""
    put_word(buffer, offset, word)
    return offset + (used >> 3), word >> np.uint64(used & ~7), used & 7


@kernel
def write(indices: Indices, negative: NDArray[np.bool_], width: int, signed: int, buffer: Bytes) -> int:
    """Write the Golomb-Rice code of sorted indices, with signs if ``signed`` is 1; return the bytes used.

    The buffer must have ``max_bytes`` bytes.
    """
    offset, word, used, previous = 0, _ZERO, 0, np.int64(-1)
    lower = (_ONE << np.uint64(width)) - _ONE
    for i in range(indices.size):
        gap = np.int64(indices[i]) - previous - 1
        previous = np.int64(indices[i])
        upper: Any = gap >> width
        while upper > 20:  # a long gap: write its zeros sixteen at a time
            used += 16
            upper -= 16
            offset, word, used = _flush(buffer, offset, word, used)
        code = _ONE | ((np.uint64(gap) & lower) << _ONE)
        bits = 1 + width
        if signed:
            code |= np.uint64(negative[i]) << np.uint64(bits)
            bits += 1
        word |= code << np.uint64(used + upper)
        used += upper + bits
        offset, word, used = _flush(buffer, offset, word, used)
    if used > 0:
        buffer[offset] = word
        offset += 1
    return offset


@kernel
def read(
    buffer: Bytes, width: int, signed: int, total: int, indices: Indices, negative: NDArray[np.bool_]
) -> int:
    """Read a Golomb-Rice code to ``indices`` and ``negative``; return the bytes used, or -1 if it is invalid."""
    offset, word, used, previous = 0, _ZERO, 0, np.int64(-1)
    lower = (_ONE << np.uint64(width)) - _ONE
    for i in range(indices.size):
        upper = 0
        while word == _ZERO:  # only zeros so far: the gap continues in the next byte
            upper += used
            if offset >= buffer.size or upper > (total >> width):
                return -1
            word = np.uint64(buffer[offset])
            used = 8
            offset += 1
        zeros: Any = np.int64(trailing_zeros(word))
        upper += zeros
        word >>= np.uint64(zeros + 1)
        used -= zeros + 1
        need = width + signed
        while used < need:
            if offset >= buffer.size:
                return -1
            word |= np.uint64(buffer[offset]) << np.uint64(used)
            used += 8
            offset += 1
        previous += (np.int64(upper) << width) + np.int64(word & lower) + 1
        if previous >= total:
            return -1
        indices[i] = previous
        negative[i] = signed == 1 and (word >> np.uint64(width)) & _ONE == _ONE
        word >>= np.uint64(need)
        used -= need
    return offset if word == _ZERO else -1
