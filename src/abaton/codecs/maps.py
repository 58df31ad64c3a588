"""Chosen kernels and their maps of signs: the structured half of SSTC's wire format.

A kernel is the block of K·K numbers of one output and one input channel, contiguous in the layout's order
(output, input, height, width). Kernels of a pool are numbered from 0 in that order, tensor after tensor.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import entries

if TYPE_CHECKING:
    from abaton.codecs.sparse import Places, Signs, Stretches
    from abaton.vectors.layout import Vector

MapSigns = NDArray[np.int8]

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

    def scores(self, update: Vector) -> Vector:
        """The summed magnitude of each kernel: for equal sizes the same order as the mean."""
        from abaton.vectors.stretches import magnitudes

        return np.concatenate([magnitudes(update[start:stop], self.size) for start, stop in self.where])

    def stretches(self, ids: Places) -> Stretches:
        """Where some kernels lie in the vector."""
        starts, first = np.empty(len(ids), np.int64), 0
        for start, stop in self.where:
            last = first + (stop - start) // self.size
            a, b = np.searchsorted(ids, (first, last))
            starts[a:b] = start + (ids[a:b].astype(np.int64) - first) * self.size
            first = last
        return np.stack([starts, starts + self.size], axis=1)


def write_maps(places: Places, negative: Signs, pool: Pool, ids: Places, coding: str) -> bytes:
    """How many kernels, which, and a map of signs for each; ``fixed`` spends two bits on each sign."""
    from abaton.vectors.packing import pack_fields, pack_trits
    from abaton.vectors.stretches import inside

    told, which = inside(places, pool.stretches(ids))
    signs = np.zeros(len(ids) * pool.size, np.int8)
    signs[told] = np.where(negative[which], -1, 1)
    head = _COUNT.pack(len(ids))
    if coding == "trit":
        listed = entries.write_golomb(ids, np.zeros(len(ids), np.bool_), pool.count, signed=False)
        return head + listed + pack_trits(signs)
    fields = np.column_stack(
        [ids.astype(np.int64), (signs.reshape(len(ids), pool.size) % 3).astype(np.int64)]
    )
    widths = _widths(pool)
    buffer = np.empty(len(ids) * int(widths.sum()) // 8 + 1, np.uint8)
    return head + buffer[: pack_fields(fields, widths, buffer)].tobytes()


def read_maps(body: memoryview, pool: Pool, allowed: int, coding: str) -> tuple[Places, Signs, memoryview]:
    """The places of the survivors, whether each is negative, and what follows."""
    from abaton.vectors.stretches import outside

    if len(body) < _COUNT.size or (count := _COUNT.unpack_from(body)[0]) > allowed:
        raise entries.broken(f"more than {allowed:,} kernels, or none told")
    read = _read_trits if coding == "trit" else _read_fixed
    ids, signs, body = read(body[_COUNT.size :], pool, count)
    told = np.flatnonzero(signs).astype(np.uint32)
    return outside(told, pool.stretches(ids)), signs[told] < 0, body


def _read_trits(body: memoryview, pool: Pool, count: int) -> tuple[Places, MapSigns, memoryview]:
    from abaton.vectors.packing import unpack_trits

    ids, _, body = entries.read_golomb(body, count, pool.count, signed=False)
    used = -(-count * pool.size // 5)
    signs = unpack_trits(np.frombuffer(body[:used], np.uint8), count * pool.size)
    if signs is None:
        raise entries.broken("a map of signs")
    return ids, signs, body[used:]


def _read_fixed(body: memoryview, pool: Pool, count: int) -> tuple[Places, MapSigns, memoryview]:
    from abaton.vectors.packing import unpack_fields

    widths = _widths(pool)
    used = -(-count * int(widths.sum()) // 8)
    fields = np.empty((count, 1 + pool.size), np.int64) if len(body) >= used else None
    if fields is None or unpack_fields(np.frombuffer(body[:used], np.uint8), widths, fields) != used:
        raise entries.broken("a map of signs")
    ids, signs = fields[:, 0], fields[:, 1:].reshape(-1).astype(np.int8)
    if (signs > 2).any() or (np.diff(ids) <= 0).any() or (ids >= pool.count).any():
        raise entries.broken("a map of signs")
    signs[signs == 2] = -1
    return ids.astype(np.uint32), signs, body[used:]


def _widths(pool: Pool) -> NDArray[np.int64]:
    """The paper's widths (Sec. IV-A): b_k = 1 + ⌊log2 kernels⌋ bits for the number, two for each sign."""
    return np.array([pool.count.bit_length(), *[2] * pool.size], np.int64)
