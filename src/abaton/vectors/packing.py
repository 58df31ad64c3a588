"""Small whole numbers packed into bytes: fixed widths, and five three-valued signs in one byte."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abaton.vectors.jit import kernel

Bytes = NDArray[np.uint8]
Whole = NDArray[np.int64]
Signs = NDArray[np.int8]


@kernel
def pack_fields(values: Whole, widths: Whole, buffer: Bytes) -> int:
    """Write each row of numbers with the width of its column, lowest bits first; returns the bytes used."""
    place, word, used = 0, np.uint64(0), 0
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            word |= np.uint64(values[i, j]) << np.uint64(used)
            used += widths[j]
            while used >= 8:
                buffer[place] = word & np.uint64(255)
                word >>= np.uint64(8)
                used -= 8
                place += 1
    if used > 0:
        buffer[place] = word
        place += 1
    return place


@kernel
def unpack_fields(buffer: Bytes, widths: Whole, values: Whole) -> int:
    """Read rows of numbers; returns the bytes used, or -1 if the buffer ends early or has stray bits."""
    place, word, used = 0, np.uint64(0), 0
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            while used < widths[j]:
                if place >= buffer.size:
                    return -1
                word |= np.uint64(buffer[place]) << np.uint64(used)
                used += 8
                place += 1
            values[i, j] = word & ((np.uint64(1) << np.uint64(widths[j])) - np.uint64(1))
            word >>= np.uint64(widths[j])
            used -= widths[j]
    return place if word == np.uint64(0) else -1


def pack_trits(signs: Signs) -> bytes:
    """Signs -1, 0, 1 as five to a byte: the first counts 1, then 3, 9, 27, 81; 2 stands for -1.

    >>> pack_trits(np.array([1, -1, 0, 0, 0, 1], np.int8)).hex()
    '0701'
    """
    digits = np.zeros(-(-signs.size // 5) * 5, np.uint8)
    digits[: signs.size] = signs.astype(np.int16) % 3
    return (digits.reshape(-1, 5) @ np.array([1, 3, 9, 27, 81], np.uint8)).astype(np.uint8).tobytes()


def unpack_trits(buffer: Bytes, count: int) -> Signs | None:
    """The signs again, or nothing if a byte is not a sum of five digits or the padding is not zero."""
    if buffer.size != -(-count // 5) or (buffer > 242).any():
        return None
    digits = (buffer[:, None] // np.array([1, 3, 9, 27, 81], np.uint8)) % 3
    flat = digits.reshape(-1).astype(np.int8)
    if flat[count:].any():
        return None
    signs = flat[:count]
    signs[signs == 2] = -1
    return signs
