"""Bit packing of indices and signs: fixed widths, or five ternary signs in one byte.

A sign is a digit: 0 for zero, 1 for plus, 2 for minus. Bits are filled from the lowest of each byte.
Readers return -1 for bytes that no writer produces, and stay within the bounds of their arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.jit import inlined, kernel

Bytes = NDArray[np.uint8]
Indices = NDArray[np.uint32]
Signs = NDArray[np.bool_]
POWERS = np.array([1, 3, 9, 27, 81], np.uint8)


@inlined
def put_bits(buffer: Bytes, offset: Any, value: Any, width: int) -> None:
    """Pack the lowest ``width`` bits of a value into a buffer from bit ``offset`` on, which must be zero."""
    while width > 0:
        room = min(8 - (offset & 7), width)
        buffer[offset >> 3] |= (value & ((1 << room) - 1)) << (offset & 7)
        value >>= room
        offset += room
        width -= room


@inlined
def get_bits(buffer: Bytes, offset: int, width: int) -> Any:
    """Return the packed field of ``width`` bits from bit ``offset`` on."""
    value: Any = 0
    filled = 0
    while filled < width:
        room = min(8 - (offset & 7), width - filled)
        value |= ((np.int64(buffer[offset >> 3]) >> (offset & 7)) & ((1 << room) - 1)) << filled
        offset += room
        filled += room
    return value


def field_bytes(count: int, width: int) -> int:
    """Return the bytes that ``count`` packed fields of ``width`` bits take."""
    return (count * width + 7) // 8


@inlined
def _has_zero_padding(buffer: Bytes, bits: int) -> bool:
    """Return whether the bits after the last packed field are zero."""
    return bits & 7 == 0 or buffer[bits >> 3] >> (bits & 7) == 0


@kernel
def pack_indices(indices: Indices, negative: Signs, width: int) -> Bytes:
    """Pack each index with ``width`` bits and one bit for its sign."""
    buffer = np.zeros((indices.size * (width + 1) + 7) // 8, np.uint8)
    for i in range(indices.size):
        put_bits(buffer, i * (width + 1), np.int64(indices[i]) | (np.int64(negative[i]) << width), width + 1)
    return buffer


@kernel
def unpack_indices(buffer: Bytes, width: int, total: int, indices: Indices, negative: Signs) -> int:
    """Unpack bits to ``indices``, which must ascend below ``total``; return 0, or -1 if they do not."""
    if buffer.size != (indices.size * (width + 1) + 7) // 8:
        return -1
    previous = -1
    for i in range(indices.size):
        index = get_bits(buffer, i * (width + 1), width)
        if index <= previous or index >= total:
            return -1
        indices[i] = previous = index
        negative[i] = get_bits(buffer, i * (width + 1) + width, 1) == 1
    return 0 if _has_zero_padding(buffer, indices.size * (width + 1)) else -1


@kernel
def write_kernels(ids: Indices, width: int, size: int, indices: Indices, negative: Signs) -> Bytes:
    """Pack each convolution kernel's id with ``width`` bits, then two bits for each of its ``size`` signs."""
    step = width + 2 * size
    buffer = np.zeros((ids.size * step + 7) // 8, np.uint8)
    for i in range(ids.size):
        put_bits(buffer, i * step, np.int64(ids[i]), width)
    for e in range(indices.size):
        index = np.int64(indices[e])
        put_bits(buffer, (index // size) * step + width + 2 * (index % size), 1 + np.int64(negative[e]), 2)
    return buffer


@kernel
def read_kernels(
    buffer: Bytes, width: int, size: int, total: int, ids: Indices, indices: Indices, negative: Signs
) -> int:
    """Unpack kernel ids and the signs of their nonzero entries; return the number of signs, or -1."""
    step, count, previous = width + 2 * size, 0, -1
    if buffer.size != (ids.size * step + 7) // 8:
        return -1
    for i in range(ids.size):
        kernel_id = get_bits(buffer, i * step, width)
        if kernel_id <= previous or kernel_id >= total:
            return -1
        ids[i] = previous = kernel_id
        for j in range(size):
            digit = get_bits(buffer, i * step + width + 2 * j, 2)
            if digit == 3 or (digit > 0 and count == indices.size):
                return -1
            if digit > 0:
                indices[count], negative[count] = i * size + j, digit == 2
                count += 1
    return count if _has_zero_padding(buffer, ids.size * step) else -1


@kernel
def write_trits(indices: Indices, negative: Signs, size: int) -> Bytes:
    """Pack the signs at ``indices`` of a vector of ``size`` values, five to a byte in base 3, the first lowest.

    >>> write_trits(np.uint32([0, 1, 5]), np.array([False, True, False]), 6).tolist()
    [7, 1]
    """
    buffer = np.zeros((size + 4) // 5, np.uint8)
    for e in range(indices.size):
        index = indices[e]
        buffer[index // 5] += (1 + np.int64(negative[e])) * POWERS[index % 5]
    return buffer


@kernel
def read_trits(buffer: Bytes, size: int, indices: Indices, negative: Signs) -> int:
    """Unpack five ternary signs per byte to indices and signs; return the number of nonzero ones, or -1."""
    if buffer.size != (size + 4) // 5:
        return -1
    count = 0
    for i in range(buffer.size):
        byte, index = np.int64(buffer[i]), 5 * i
        while byte > 0:
            digit = byte % 3
            byte //= 3
            if index >= min(size, 5 * i + 5) or (digit > 0 and count == indices.size):
                return -1
            if digit > 0:
                indices[count], negative[count] = index, digit == 2
                count += 1
            index += 1
    return count
