"""Blocks, base class and accumulator of codecs that rotate all learners' updates alike.

Blocks: a vector is split greedily into blocks of 2^16 down to 2^10 values, so padding is below 1,024 values and a
block fits into the L2 cache. The remaining values are sent as float32 if that is shorter than one more padded block.
The split follows from the dimension and the bits; the payload does not contain it.

Sums: any number of updates is added in the rotated domain and rotated back once. Additions are in float32; after every
64 the sum is added to a float64 sum, so that 100,000 additions do not drift. EDEN is separate because its rotation
differs between learners.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from abaton.codecs.base import CodecKey, KeyPurpose, Quantiser, check_mergeable, check_total, check_weight
from abaton.codecs.payload_format import payload_error

if TYPE_CHECKING:
    from abaton.layout import Layout, Vector


MIN_BLOCK, MAX_BLOCK = 1 << 10, 1 << 16
GROUP = 512


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Start, length, padded size and padded position of each block, and the tail."""

    table: NDArray[np.int64]  # one row per block: start, length, padded size, position after padding
    padded_size: int
    tail: slice

    def __len__(self) -> int:
        return len(self.table)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Padded size of each block that is rotated."""
        return self.table[:, 2]


@lru_cache(maxsize=64)
def split_blocks(size: int, bits: int) -> Blocks:
    """Split a vector into blocks to rotate, for codecs with ``bits`` bits per value.

    >>> split_blocks(3000, 2).table.tolist()
    [[0, 2048, 2048, 0], [2048, 952, 1024, 2048]]
    >>> split_blocks(2060, 2).tail
    slice(2048, 2060, None)
    """
    rows: list[tuple[int, int, int, int]] = []
    start = position = 0
    block = MAX_BLOCK
    while block >= MIN_BLOCK:
        if size - start >= block:
            rows.append((start, block, block, position))
            start, position = start + block, position + block
        else:
            block //= 2
    if 32 * (size - start) > bits * MIN_BLOCK:
        rows.append((start, size - start, MIN_BLOCK, position))
        start, position = size, position + MIN_BLOCK
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    table.flags.writeable = False
    return Blocks(table, position, slice(start, size))


Factors = NDArray[np.float64]

MAX_SAFE_FACTOR = 1e28
"""Factors up to this value, and down to its inverse, can be added in float32."""

_ADDITIONS_PER_FLUSH = 64
_MAX_NORM = math.sqrt(2.0**16) * float(np.finfo(np.float32).max)


class RotatedPayload(Protocol):
    """Opened payload: norms of its blocks, and the tail in float32."""

    @property
    def norms(self) -> Factors:
        """Norms of an opened payload in the rotated domain, one per block."""

    @property
    def tail(self) -> Vector:
        """Last values of the update, which are not rotated."""


P = TypeVar("P", bound=RotatedPayload)


@dataclass(frozen=True, slots=True)
class RotatedCodec(Quantiser, ABC, Generic[P]):
    """Quantiser with one rotation for all learners, so that the server adds before it rotates back."""

    rotations: ClassVar[int] = 1  # rotations of a block in one payload

    @abstractmethod
    def encode(self, update: Vector, layout: Layout, key: CodecKey) -> bytes:
        """Encode the update in the rotated domain (base class)."""

    @abstractmethod
    def open_payload(self, payload: bytes, layout: Layout, key: CodecKey) -> P:
        """Return the checked contents of a payload in the rotated domain (base class)."""

    @abstractmethod
    def add_to(self, total: Vector, payload: P, blocks: Blocks, factors: Factors, key: CodecKey) -> None:
        """Add factor · the rotated, normalised update to ``total``, block by block (base class)."""

    def blocks(self, layout: Layout) -> Blocks:
        """Return the blocks of an update that this codec rotates."""
        return split_blocks(layout.size, self.rotations * self.bits)

    def decode(self, payload: bytes, layout: Layout, key: CodecKey) -> Vector:
        """Decode a payload of any rotated codec: add it in the rotated domain, then rotate it back."""
        blocks, opened = self.blocks(layout), self.open_payload(payload, layout, key)
        rotated = np.zeros(self.rotations * blocks.padded_size, dtype=np.float32)
        self.add_to(rotated, opened, blocks, (opened.norms > 0).astype(np.float64), key)
        rotation = key.derive(KeyPurpose.ROTATION)
        return rotate_back(rotated, opened.norms, opened.tail, blocks, rotation, rotations=self.rotations)

    def accumulator(self, layout: Layout, round_key: bytes) -> RotatedSum[P]:
        """Return an empty sum in the rotated domain, for codecs that rotate all updates alike."""
        return RotatedSum(self, layout, round_key)


def check_fits_layout(update: Vector, layout: Layout, learner: str) -> Vector:
    """Return an update to rotate as a contiguous vector if it fits the layout; its norms show if it is finite."""
    if update.shape != (layout.size,) or update.dtype != np.float32:
        layout.check(update, label=f"update of learner '{learner}'")
    return np.ascontiguousarray(update)


def check_finite(norms: Factors, update: Vector, blocks: Blocks, layout: Layout, learner: str) -> None:
    """Raise an error that names the tensor if norms of the rotated blocks or the tail are not finite."""
    if not (np.isfinite(norms).all() and np.isfinite(update[blocks.tail]).all()):
        layout.check(update, label=f"update of learner '{learner}'")


def read_norms(body: memoryview, offset: int, blocks: Blocks) -> tuple[Factors, int]:
    """Return the norms of all rotated blocks in a payload body, and the offset after them."""
    end = offset + 8 * len(blocks)
    if len(body) < end:
        raise payload_error("it ends within its norms")
    norms = np.frombuffer(body, "<f8", len(blocks), offset).astype(np.float64)
    if not ((norms >= 0) & (norms <= _MAX_NORM)).all():
        raise payload_error("a norm is out of range")
    return norms, end


def rotate_back(
    rotated: Vector, norms: Factors, tail: Vector, blocks: Blocks, rotation: int, *, rotations: int = 1
) -> Vector:
    """Rotate normalised blocks back to an update; ``rotated`` is overwritten.

    Args:
        rotated: Normalised blocks in the rotated domain.
        norms: One norm per block.
        tail: The last values in float32.
        blocks: The blocks of the update.
        rotation: Seed of the rotation.
        rotations: Rotations per block, whose inverses are added.
    """
    from abaton.kernels.rotation import MAX_FLOAT32, backward, derive_key

    update, key = np.empty(blocks.tail.stop, dtype=np.float32), derive_key(rotation)
    update[blocks.tail] = tail
    for (start, length, size, position), norm in zip(blocks.table.tolist(), norms.tolist(), strict=True):
        block = update[start : start + length]
        if norm == 0:
            block[:] = 0
            continue
        for source_start in range(rotations * position, rotations * (position + size), size):
            partial_sum = block.astype(np.float64) if source_start > rotations * position else None
            backward(
                rotated, source_start, size, source_start // 512, key, norm / size, update, start, length
            )
            if partial_sum is not None:
                block[:] = np.clip(partial_sum + block, -MAX_FLOAT32, MAX_FLOAT32)
    return update


class RotatedSum(Generic[P]):
    """Running weighted sum of one round's updates, in the rotated domain."""

    def __init__(self, codec: RotatedCodec[P], layout: Layout, round_key: bytes) -> None:
        self.codec, self.layout, self.round_key = codec, layout, round_key
        self.blocks = blocks = codec.blocks(layout)
        self.total = 0.0
        self._sizes = codec.rotations * blocks.sizes
        self._recent = np.zeros(codec.rotations * blocks.padded_size, dtype=np.float32)
        self._sum = np.zeros(codec.rotations * blocks.padded_size, dtype=np.float64)
        self._tail = np.zeros(blocks.tail.stop - blocks.tail.start, dtype=np.float64)
        self._added = 0

    def add(self, payload: bytes, weight: float, learner: str) -> None:
        """Add one learner's payload to the sum in the rotated domain."""
        weight, key = check_weight(weight, learner), CodecKey(self.round_key, learner)
        opened = self.codec.open_payload(payload, self.layout, key)
        factors = weight * opened.norms
        positive = factors[factors > 0]
        if positive.size and (positive.max() > MAX_SAFE_FACTOR or positive.min() < 1 / MAX_SAFE_FACTOR):
            addition = np.zeros_like(self._recent)
            self.codec.add_to(addition, opened, self.blocks, (opened.norms > 0).astype(np.float64), key)
            self._sum += np.repeat(factors, self._sizes) * addition
        elif weight > 0:
            self.codec.add_to(self._recent, opened, self.blocks, factors, key)
        self._tail += weight * opened.tail.astype(np.float64)
        self.total += weight
        self._added += 1
        if self._added % _ADDITIONS_PER_FLUSH == 0:
            self._flush()

    def merge(self, other: Self) -> None:
        """Add another sum in the rotated domain of the same round."""
        check_mergeable(self, other)
        self._flush()
        self._sum += other._sum
        self._sum += other._recent
        self._tail += other._tail
        self.total += other.total

    def mean(self) -> Vector:
        """Return the weighted mean of the added updates, with one inverse rotation."""
        total = check_total(self.total)
        rotated = self._sum + self._recent
        starts = self.codec.rotations * self.blocks.table[:, 3]
        peaks = np.maximum.reduceat(np.abs(rotated), starts) if starts.size else np.zeros(0)
        rotated /= np.repeat(np.where(peaks > 0, peaks, 1.0), self._sizes)
        tail = (self._tail / total).astype(np.float32)
        rotation = CodecKey(self.round_key, "").derive(KeyPurpose.ROTATION)
        values = rotated.astype(np.float32)
        return rotate_back(values, peaks / total, tail, self.blocks, rotation, rotations=self.codec.rotations)

    def _flush(self) -> None:
        self._sum += self._recent
        self._recent[:] = 0
