"""Chosen kernels and their maps of signs: the structured half of SSTC's wire format.

A kernel is the block of K·K numbers of one output and one input channel, contiguous in the layout's order
(output, input, height, width). Kernels of a pool are numbered from 0 in that order, tensor after tensor.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abaton.codecs import entries

if TYPE_CHECKING:
    from abaton.codecs.sparse_codec import Places, Signs, Stretches
    from abaton.layout import Vector

_COUNT = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Pool:
    """All kernels of one size."""

    size: int  # numbers in a kernel
    where: tuple[tuple[int, int], ...]  # the tensors they lie in

    @property
    def count(self) -> int:
        """How many kernels there are."""
        return sum(stop - start for start, stop in self.where) // self.size

    @property
    def width(self) -> int:
        """The paper's bits for a kernel's number (Sec. IV-A): b_k = 1 + ⌊log2 kernels⌋."""
        return self.count.bit_length()

    def scores(self, update: Vector) -> Vector:
        """The summed magnitude of each kernel: for equal sizes the same order as the mean."""
        from abaton.vectors.stretches import magnitudes

        return np.concatenate([magnitudes(update[start:stop], self.size) for start, stop in self.where])

    def stretches(self, ids: Places) -> Stretches:
        """Where some kernels lie in the vector."""
        from abaton.vectors.stretches import runs

        return runs(ids, self.size, np.array(self.where))


def write_maps(
    places: Places, values: Places, pool: Pool, ids: Places, stretches: Stretches, coding: str
) -> bytes:
    """How many kernels, which, and a map of signs for each; ``stretches`` are where those kernels lie."""
    from abaton.kernels.bit_packing import write_kernels, write_trits
    from abaton.vectors.stretches import inside

    told, signs = inside(places, values, stretches)
    head = _COUNT.pack(len(ids))
    if coding == "fixed":
        return head + write_kernels(ids, pool.width, pool.size, told, signs).tobytes()
    listed = entries.write_golomb(ids, np.zeros(len(ids), np.bool_), pool.count, signed=False)
    return head + listed + write_trits(told, signs, len(ids) * pool.size).tobytes()


def read_maps(
    body: memoryview, pool: Pool, allowed: int, most: int, coding: str
) -> tuple[Places, Signs, memoryview]:
    """The places of at most so many survivors, whether each is negative, and what follows."""
    from abaton.kernels.bit_packing import field_bytes, read_kernels, read_trits
    from abaton.vectors.stretches import outside

    if len(body) < _COUNT.size or (count := _COUNT.unpack_from(body)[0]) > allowed:
        raise entries.index_payload_error(f"more than {allowed:,} kernels, or none told")
    body = body[_COUNT.size :]
    most = min(most, count * pool.size)
    told, negative = np.empty(most, np.uint32), np.empty(most, np.bool_)
    if coding == "fixed":
        used, ids = field_bytes(count, pool.width + 2 * pool.size), np.empty(count, np.uint32)
        maps = np.frombuffer(body[:used], np.uint8)
        found = read_kernels(maps, pool.width, pool.size, pool.count, ids, told, negative)
    else:
        ids, _, body = entries.read_golomb(body, count, pool.count, signed=False)
        used = -(-count * pool.size // 5)
        found = read_trits(np.frombuffer(body[:used], np.uint8), count * pool.size, told, negative)
    if found < 0:
        raise entries.index_payload_error("a map of signs")
    return outside(told[:found], pool.stretches(ids)), negative[:found], body[used:]
