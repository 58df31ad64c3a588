"""Signs and small numbers packed into bytes: fixed widths, or five three-valued signs in one byte.

A sign is a digit: 0 for nothing, 1 for plus, 2 for minus. Bits are filled from the lowest of each byte.
Readers return -1 for whatever a writer could not have written, and touch nothing outside their arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.jit import inlined, kernel

Bytes = NDArray[np.uint8]
Places = NDArray[np.uint32]
Signs = NDArray[np.bool_]
POWERS = np.array([1, 3, 9, 27, 81], np.uint8)


@inlined
def put(buffer: Bytes, at: Any, value: Any, width: int) -> None:
    """Set ``width`` bits from bit ``at`` on; they must be zero before."""
    while width > 0:
        room = min(8 - (at & 7), width)
        buffer[at >> 3] |= (value & ((1 << room) - 1)) << (at & 7)
        value >>= room
        at += room
        width -= room


@inlined
def get(buffer: Bytes, at: int, width: int) -> Any:
    """The ``width`` bits from bit ``at`` on."""
    value: Any = 0
    got = 0
    while got < width:
        room = min(8 - (at & 7), width - got)
        value |= ((np.int64(buffer[at >> 3]) >> (at & 7)) & ((1 << room) - 1)) << got
        at += room
        got += room
    return value


def field_bytes(count: int, width: int) -> int:
    """How many bytes so many fields of a width take."""
    return (count * width + 7) // 8


@inlined
def _clean(buffer: Bytes, bits: int) -> bool:
    """Whether the bits after the last field are zero."""
    return bits & 7 == 0 or buffer[bits >> 3] >> (bits & 7) == 0


@kernel
def write_places(places: Places, negative: Signs, width: int) -> Bytes:
    """Each place with ``width`` bits and a bit for its sign."""
    buffer = np.zeros((places.size * (width + 1) + 7) // 8, np.uint8)
    for i in range(places.size):
        put(buffer, i * (width + 1), np.int64(places[i]) | (np.int64(negative[i]) << width), width + 1)
    return buffer


@kernel
def read_places(buffer: Bytes, width: int, total: int, places: Places, negative: Signs) -> int:
    """Fill places, which must ascend and stay below ``total``; returns 0."""
    if buffer.size != (places.size * (width + 1) + 7) // 8:
        return -1
    before = -1
    for i in range(places.size):
        place = get(buffer, i * (width + 1), width)
        if place <= before or place >= total:
            return -1
        places[i] = before = place
        negative[i] = get(buffer, i * (width + 1) + width, 1) == 1
    return 0 if _clean(buffer, places.size * (width + 1)) else -1


@kernel
def write_kernels(ids: Places, width: int, size: int, told: Places, negative: Signs) -> Bytes:
    """Each kernel's number with ``width`` bits, then two bits for each of its ``size`` signs."""
    step = width + 2 * size
    buffer = np.zeros((ids.size * step + 7) // 8, np.uint8)
    for i in range(ids.size):
        put(buffer, i * step, np.int64(ids[i]), width)
    for e in range(told.size):
        at = np.int64(told[e])
        put(buffer, (at // size) * step + width + 2 * (at % size), 1 + np.int64(negative[e]), 2)
    return buffer


@kernel
def read_kernels(
    buffer: Bytes, width: int, size: int, total: int, ids: Places, told: Places, negative: Signs
) -> int:
    """Fill the kernels' numbers, and the signs found in them; returns how many."""
    step, count, before = width + 2 * size, 0, -1
    if buffer.size != (ids.size * step + 7) // 8:
        return -1
    for i in range(ids.size):
        number = get(buffer, i * step, width)
        if number <= before or number >= total:
            return -1
        ids[i] = before = number
        for j in range(size):
            digit = get(buffer, i * step + width + 2 * j, 2)
            if digit == 3 or (digit > 0 and count == told.size):
                return -1
            if digit > 0:
                told[count], negative[count] = i * size + j, digit == 2
                count += 1
    return count if _clean(buffer, ids.size * step) else -1


@kernel
def write_trits(told: Places, negative: Signs, size: int) -> Bytes:
    """Signs at some places of ``size``, five to a byte: the first counts 1, then 3, 9, 27, 81.

    >>> write_trits(np.uint32([0, 1, 5]), np.array([False, True, False]), 6).tolist()
    [7, 1]
    """
    buffer = np.zeros((size + 4) // 5, np.uint8)
    for e in range(told.size):
        at = told[e]
        buffer[at // 5] += (1 + np.int64(negative[e])) * POWERS[at % 5]
    return buffer


@kernel
def read_trits(buffer: Bytes, size: int, told: Places, negative: Signs) -> int:
    """Fill the places and signs found among ``size``; returns how many."""
    if buffer.size != (size + 4) // 5:
        return -1
    count = 0
    for i in range(buffer.size):
        byte, at = np.int64(buffer[i]), 5 * i
        while byte > 0:
            digit = byte % 3
            byte //= 3
            if at >= min(size, 5 * i + 5) or (digit > 0 and count == told.size):
                return -1
            if digit > 0:
                told[count], negative[count] = at, digit == 2
                count += 1
            at += 1
    return count
