"""Sums in the rotated domain: add any number of updates, rotate back once.

Additions run in float32, at memory speed; every 64 of them are moved to float64, so that 100,000 do not
drift.

Cut a vector into blocks that can be rotated.

Input: how many numbers a vector has. Output: blocks of a power of two, and a short tail.
Steps: as many blocks of 2^16 as fit (they stay in a processor's cache, and 2^16 numbers are plenty to look
normal), then of 2^15, ... down to 2^10. What is left is sent as it is (float32) if that is shorter than one
more block of 2^10 filled up with zeros. Nothing in a payload says how a vector was cut: it follows from its
size.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from abaton.codecs.base import Key, KeyPurpose, Quantiser, check_same, check_total, check_weight
from abaton.errors import PayloadError

if TYPE_CHECKING:
    from abaton.layout import Layout, Vector


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


Factors = NDArray[np.float64]

SAFE = 1e28
"""Factors up to this, and down to its inverse, can be added in float32."""

_MOVED = 64
_LARGEST = math.sqrt(2.0**16) * float(np.finfo(np.float32).max)


class Opened(Protocol):
    """An opened payload: norms of its blocks, and numbers that were sent as they are."""

    @property
    def norms(self) -> Factors:
        """One norm a block."""

    @property
    def tail(self) -> Vector:
        """The last numbers of the update."""


P = TypeVar("P", bound=Opened)


@dataclass(frozen=True, slots=True)
class Rotating(Quantiser, ABC, Generic[P]):
    """A quantiser whose learners all rotate alike, so that the server can add before it rotates back."""

    copies: ClassVar[int] = 1  # how many rotations of a block are sent side by side

    @abstractmethod
    def encode(self, update: Vector, layout: Layout, key: Key) -> bytes:
        """The update as a payload."""

    @abstractmethod
    def parts(self, payload: bytes, layout: Layout, key: Key) -> P:
        """Open a payload and check it."""

    @abstractmethod
    def add_to(self, total: Vector, parts: P, cut: Blocks, factors: Factors, key: Key) -> None:
        """Total += factor · the rotated, normalised update, block by block."""

    def cut(self, layout: Layout) -> Blocks:
        """How an update is cut into blocks."""
        return split(layout.size, self.copies * self.bits)

    def decode(self, payload: bytes, layout: Layout, key: Key) -> Vector:
        """The update that a payload stands for."""
        cut, parts = self.cut(layout), self.parts(payload, layout, key)
        rotated = np.zeros(self.copies * cut.padded, dtype=np.float32)
        self.add_to(rotated, parts, cut, (parts.norms > 0).astype(np.float64), key)
        rotation = key.derive(KeyPurpose.ROTATION)
        return decoded(rotated, parts.norms, parts.tail, cut, rotation, copies=self.copies)

    def accumulator(self, layout: Layout, round_key: bytes) -> RotatedSum[P]:
        """A sum in the rotated domain."""
        return RotatedSum(self, layout, round_key)


def rotated_payload_error(what: str) -> PayloadError:
    """The error for a payload that no sound encoder writes."""
    return PayloadError(f"the payload is broken: {what}", remedy="send it again")


def fitting(update: Vector, layout: Layout, learner: str) -> Vector:
    """The update as a contiguous vector, if it fits; that it is finite shows in its norms."""
    if update.shape != (layout.size,) or update.dtype != np.float32:
        layout.check(update, whose=f"update of learner '{learner}'")
    return np.ascontiguousarray(update)


def check_finite(norms: Factors, update: Vector, cut: Blocks, layout: Layout, learner: str) -> None:
    """Refuse an update that is not finite, by the name of its tensor."""
    if not (np.isfinite(norms).all() and np.isfinite(update[cut.tail]).all()):
        layout.check(update, whose=f"update of learner '{learner}'")


def read_norms(body: memoryview, at: int, cut: Blocks) -> tuple[Factors, int]:
    """The norms of all blocks, and where the body goes on."""
    end = at + 8 * len(cut)
    if len(body) < end:
        raise rotated_payload_error("it ends before its norms do")
    norms = np.frombuffer(body, "<f8", len(cut), at).astype(np.float64)
    if not ((norms >= 0) & (norms <= _LARGEST)).all():
        raise rotated_payload_error("a norm in it is impossible")
    return norms, end


def decoded(
    rotated: Vector, norms: Factors, tail: Vector, cut: Blocks, rotation: int, *, copies: int = 1
) -> Vector:
    """Rotate back with the seed ``rotation``; ``rotated`` holds normalised blocks and is used up.

    With several copies, each block is the sum of as many rotations.
    """
    from abaton.kernels.rotation import LARGEST, backward, keyed

    result, seeds = np.empty(cut.tail.stop, dtype=np.float32), keyed(rotation)
    result[cut.tail] = tail
    for (start, length, size, place), norm in zip(cut.table.tolist(), norms.tolist(), strict=True):
        block = result[start : start + length]
        if norm == 0:
            block[:] = 0
            continue
        for at in range(copies * place, copies * (place + size), size):
            before = block.astype(np.float64) if at > copies * place else None
            backward(rotated, at, size, at // 512, seeds, norm / size, result, start, length)
            if before is not None:
                block[:] = np.clip(before + block, -LARGEST, LARGEST)
    return result


class RotatedSum(Generic[P]):
    """The running weighted sum of one round's updates, in the rotated domain."""

    def __init__(self, codec: Rotating[P], layout: Layout, round_key: bytes) -> None:
        self.codec, self.layout, self.round_key = codec, layout, round_key
        self.cut = cut = codec.cut(layout)
        self.total = 0.0
        self._sizes = codec.copies * cut.sizes
        self._recent = np.zeros(codec.copies * cut.padded, dtype=np.float32)
        self._sum = np.zeros(codec.copies * cut.padded, dtype=np.float64)
        self._tail = np.zeros(cut.tail.stop - cut.tail.start, dtype=np.float64)
        self._added = 0

    def add(self, payload: bytes, weight: float, learner: str) -> None:
        """Add one learner's payload."""
        weight, key = check_weight(weight, learner), Key(self.round_key, learner)
        parts = self.codec.parts(payload, self.layout, key)
        factors = weight * parts.norms
        used = factors[factors > 0]
        if used.size and (used.max() > SAFE or used.min() < 1 / SAFE):
            alone = np.zeros_like(self._recent)
            self.codec.add_to(alone, parts, self.cut, (parts.norms > 0).astype(np.float64), key)
            self._sum += np.repeat(factors, self._sizes) * alone
        elif weight > 0:
            self.codec.add_to(self._recent, parts, self.cut, factors, key)
        self._tail += weight * parts.tail.astype(np.float64)
        self.total += weight
        self._added += 1
        if self._added % _MOVED == 0:
            self._move()

    def merge(self, other: Self) -> None:
        """Add another sum of the same round."""
        check_same(self, other)
        self._move()
        self._sum += other._sum
        self._sum += other._recent
        self._tail += other._tail
        self.total += other.total

    def mean(self) -> Vector:
        """The weighted mean of everything added: one inverse rotation."""
        total = check_total(self.total)
        rotated = self._sum + self._recent
        starts = self.codec.copies * self.cut.table[:, 3]
        peaks = np.maximum.reduceat(np.abs(rotated), starts) if starts.size else np.zeros(0)
        rotated /= np.repeat(np.where(peaks > 0, peaks, 1.0), self._sizes)
        tail = (self._tail / total).astype(np.float32)
        rotation = Key(self.round_key, "").derive(KeyPurpose.ROTATION)
        values = rotated.astype(np.float32)
        return decoded(values, peaks / total, tail, self.cut, rotation, copies=self.codec.copies)

    def _move(self) -> None:
        self._sum += self._recent
        self._recent[:] = 0
