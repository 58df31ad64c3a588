"""Elias-Fano code of ascending indices: low bits with a fixed width, high bits in unary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.bit_packing import get_bits, put_bits
from abaton.kernels.jit import kernel

Indices = NDArray[np.int64]
Bytes = NDArray[np.uint8]


@kernel
def write(indices: Indices, width: int, low: Bytes, high: Bytes) -> None:
    """Write the Elias-Fano code of ascending indices to two zeroed buffers, from the lowest bit of each byte."""
    for i in range(indices.size):
        put_bits(low, i * width, indices[i] & ((1 << width) - 1), width)
        position = (indices[i] >> width) + i
        high[position >> 3] |= np.uint8(1 << (position & 7))


@kernel
def read(low: Bytes, high: Bytes, width: int, end: int, indices: Indices) -> bool:
    """Read an Elias-Fano code to ``indices``; return False if it is not a valid code of indices below ``end``."""
    count, decoded, previous = indices.size, 0, np.int64(-1)
    for i in range(count * width, 8 * low.size):
        if low[i >> 3] >> (i & 7) & 1:
            return False
    for i in range(high.size):
        byte, position = high[i], 8 * i
        while byte:
            if byte & 1:
                if decoded == count:
                    return False
                index = get_bits(low, decoded * width, width) | np.int64(position - decoded) << width
                if index <= previous or index >= end:
                    return False
                indices[decoded] = previous = index
                decoded += 1
            byte >>= 1
            position += 1
    return decoded == count
