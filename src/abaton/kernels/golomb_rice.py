"""Golomb-Rice code for sorted places with signs: short gaps take few bits.

Bits are filled from the lowest of each byte. An entry is: the gap's upper part as that many zeros and a
one, the gap's lower ``width`` bits, and one bit that is set for a negative sign. Unused bits of the last
byte are zero.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.jit import inlined, kernel
from abaton.kernels.simd import put_word, trailing_zeros

Places = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
_ZERO, _ONE = np.uint64(0), np.uint64(1)


def best_width(count: int, total: int) -> int:
    """The best number of lower bits for ``count`` random places among ``total`` (Sattler et al. 2019).

    >>> best_width(1, 100)
    6
    """
    share = count / total if total else 1.0
    if count == 0 or share >= 0.5:
        return 0
    golden = (math.sqrt(5) + 1) / 2
    return max(0, 1 + math.floor(math.log2(math.log(golden - 1) / math.log1p(-share))))


def longest(count: int, total: int, width: int) -> int:
    """A number of bytes that no code of so many entries exceeds."""
    return (count * (width + 2) + (total >> width)) // 8 + 16


@inlined
def _flush(buffer: Bytes, place: int, word: Any, used: int) -> Any:
    """Move whole bytes to the buffer; always eight are written, because a branch would be mispredicted."""
    put_word(buffer, place, word)
    return place + (used >> 3), word >> np.uint64(used & ~7), used & 7


@kernel
def write(places: Places, negative: NDArray[np.bool_], width: int, signed: int, buffer: Bytes) -> int:
    """Write sorted places, with signs if ``signed`` is 1; returns the bytes used.

    The buffer must have the ``longest`` size.
    """
    place, word, used, before = 0, _ZERO, 0, np.int64(-1)
    lower = (_ONE << np.uint64(width)) - _ONE
    for i in range(places.size):
        gap = np.int64(places[i]) - before - 1
        before = np.int64(places[i])
        upper: Any = gap >> width
        while upper > 20:  # an unusually long gap: its zeros go out sixteen at a time
            used += 16
            upper -= 16
            place, word, used = _flush(buffer, place, word, used)
        code = _ONE | ((np.uint64(gap) & lower) << _ONE)
        bits = 1 + width
        if signed:
            code |= np.uint64(negative[i]) << np.uint64(bits)
            bits += 1
        word |= code << np.uint64(used + upper)
        used += upper + bits
        place, word, used = _flush(buffer, place, word, used)
    if used > 0:
        buffer[place] = word
        place += 1
    return place


@kernel
def read(
    buffer: Bytes, width: int, signed: int, total: int, places: Places, negative: NDArray[np.bool_]
) -> int:
    """Fill ``places`` and ``negative``; returns the bytes used, or -1 if the buffer is not a sound code."""
    place, word, used, before = 0, _ZERO, 0, np.int64(-1)
    lower = (_ONE << np.uint64(width)) - _ONE
    for i in range(places.size):
        upper = 0
        while word == _ZERO:  # only zeros so far: the gap goes on in the next byte
            upper += used
            if place >= buffer.size or upper > (total >> width):
                return -1
            word = np.uint64(buffer[place])
            used = 8
            place += 1
        zeros: Any = np.int64(trailing_zeros(word))
        upper += zeros
        word >>= np.uint64(zeros + 1)
        used -= zeros + 1
        need = width + signed
        while used < need:
            if place >= buffer.size:
                return -1
            word |= np.uint64(buffer[place]) << np.uint64(used)
            used += 8
            place += 1
        before += (np.int64(upper) << width) + np.int64(word & lower) + 1
        if before >= total:
            return -1
        places[i] = before
        negative[i] = signed == 1 and (word >> np.uint64(width)) & _ONE == _ONE
        word >>= np.uint64(need)
        used -= need
    return place if word == _ZERO else -1
