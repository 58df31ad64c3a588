"""Cut a vector into blocks that can be rotated.

Input: how many numbers a vector has. Output: blocks of a power of two, and a short tail.
Steps: as many blocks of 2^16 as fit (they stay in a processor's cache, and 2^16 numbers are plenty to look
normal), then of 2^15, ... down to 2^10. What is left is sent as it is (float32) if that is shorter than one
more block of 2^10 filled up with zeros. Nothing in a payload says how a vector was cut: it follows from its
size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SMALLEST, LARGEST = 1 << 10, 1 << 16
GROUP = 512


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Where each block starts, how many numbers it has, its padded size, and its place after padding."""

    table: NDArray[np.int64]  # one row a block: start, length, size, place
    padded: int
    tail: slice

    def __len__(self) -> int:
        return len(self.table)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The padded size of each block."""
        return self.table[:, 2]


@lru_cache(maxsize=64)
def split(size: int, bits: int) -> Blocks:
    """The blocks of a vector, if a number in a block costs this many bits.

    >>> split(3000, 2).table.tolist()
    [[0, 2048, 2048, 0], [2048, 952, 1024, 2048]]
    >>> split(2060, 2).tail
    slice(2048, 2060, None)
    """
    rows: list[tuple[int, int, int, int]] = []
    start = place = 0
    block = LARGEST
    while block >= SMALLEST:
        if size - start >= block:
            rows.append((start, block, block, place))
            start, place = start + block, place + block
        else:
            block //= 2
    if 32 * (size - start) > bits * SMALLEST:
        rows.append((start, size - start, SMALLEST, place))
        start, place = size, place + SMALLEST
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    table.flags.writeable = False
    return Blocks(table, place, slice(start, size))
