"""Elias-Fano code of ascending places: their low bits side by side, their high bits as steps in a bit string."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.jit import kernel
from abaton.kernels.bit_packing import get, put

Places = NDArray[np.int64]
Bytes = NDArray[np.uint8]


@kernel
def write(places: Places, width: int, low: Bytes, high: Bytes) -> None:
    """Set the bits of ascending places in two strings of zeros; bits fill bytes from the lowest on."""
    for i in range(places.size):
        put(low, i * width, places[i] & ((1 << width) - 1), width)
        step = (places[i] >> width) + i
        high[step >> 3] |= np.uint8(1 << (step & 7))


@kernel
def read(low: Bytes, high: Bytes, width: int, end: int, places: Places) -> bool:
    """The places; false if they do not ascend below ``end``, are too few or many, or unused bits are set."""
    count, found, last = places.size, 0, np.int64(-1)
    for i in range(count * width, 8 * low.size):
        if low[i >> 3] >> (i & 7) & 1:
            return False
    for i in range(high.size):
        byte, at = high[i], 8 * i
        while byte:
            if byte & 1:
                if found == count:
                    return False
                place = get(low, found * width, width) | np.int64(at - found) << width
                if place <= last or place >= end:
                    return False
                places[found] = last = place
                found += 1
            byte >>= 1
            at += 1
    return found == count
