"""One list of levels for a whole block: what the simpler quantisers send.

Every payload of ``hadamard``, ``kashin``, ``eden``, ``drive`` and ``qsgd`` has a body of: bits u8 and seven
zeros; one pair of float64 a block (what the pair means is the codec's); the messages of all blocks whose
pair is not zero; then the numbers of the tail as float32.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import payload_format
from abaton.codecs.rotated_domain import Blocks, Rotating, rotated_payload_error, split

if TYPE_CHECKING:
    from abaton.codecs.base import Key
    from abaton.layout import Layout, Vector

Pair = tuple[float, float]
Pairs = NDArray[np.float64]
Words = NDArray[np.uint32]

LANES = 16
_START = struct.Struct("<Q")
NOTHING: Final[tuple[Pair, list[Words]]] = ((0.0, 0.0), [])  # what is written for a block of zeros


class BlockWriter(Protocol):
    """What a codec makes of one block: its pair, and its messages."""

    def __call__(self, block: Vector, size: int, place: int) -> tuple[Pair, list[Words]]:
        """The block has at most ``size`` numbers, and stands at ``place`` after padding."""


class LevelsCodec(Protocol):
    """A codec of this family."""

    code: ClassVar[int]

    @property
    def bits(self) -> int:
        """Bits of a message."""


class Parts(NamedTuple):
    """A payload's parts: pairs by block, messages by block (none where the pair is zero), the tail."""

    pairs: Pairs
    words: list[Words]
    tail: Vector


def quantise(z: Vector, group: int, levels: Vector, private: tuple[np.uint64, np.uint64] | None) -> Words:
    """Messages for numbers: the nearest level, or with private randomness one of the two around it."""
    from abaton.kernels import codebook_quantiser

    steps = np.diff(levels).astype(np.float64) if private else np.zeros(levels.size - 1)
    first = levels[:-1] if private else (levels[:-1] + levels[1:]) / 2
    table = codebook_quantiser.interval_rows((first - steps)[None], steps[None])
    bits, seeds = int(levels.size).bit_length() - 1, private or (np.uint64(0), np.uint64(0))
    words, masks = np.empty(z.size * bits // 32, dtype=np.uint32), np.empty(z.size // 64, dtype=np.uint64)
    edge = np.float32(np.inf)
    codebook_quantiser.write(
        z, z.size, words, 0, masks, group, table, 1, edge, np.float32(1), bits, 0, (*seeds, *seeds)
    )
    return words


def add(words: Words, total: Vector, start: int, size: int, levels: Vector) -> None:
    """Add the levels that ``size`` messages name to ``total`` from ``start`` on."""
    from abaton.kernels import codebook_quantiser
    from abaton.kernels.walsh_hadamard import aligned

    table, none = aligned(LANES), (np.uint64(0), np.uint64(0))
    table[:] = np.tile(levels, LANES // levels.size)
    codebook_quantiser.add(words, 0, total, start, size, 0, table, 1, int(levels.size).bit_length() - 1, none)


def restore(words: Words, size: int, levels: Vector) -> Vector:
    """The levels that messages name."""
    total = np.zeros(size, dtype=np.float32)
    add(words, total, 0, size, levels)
    return total


def encode(
    codec: LevelsCodec, update: Vector, layout: Layout, key: Key, each: int, block: BlockWriter
) -> bytes:
    """A payload whose blocks are written one by one; a number takes ``each`` bits in its messages."""
    layout.check(update, whose=f"update of learner '{key.learner}'")
    cut, source = split(layout.size, each), np.ascontiguousarray(update)
    pairs, words = np.zeros((len(cut), 2)), list[Words]()
    for i, (start, length, size, place) in enumerate(cut.table.tolist()):
        pairs[i], messages = block(source[start : start + length], size, place)
        words += messages
    parts = (pairs.astype("<f8"), *(part.astype("<u4") for part in words), source[cut.tail].astype("<f4"))
    return payload_format.pack(codec.code, layout, _START.pack(codec.bits), *(part.data for part in parts))


def unpack(codec: LevelsCodec, payload: bytes, layout: Layout, each: int) -> Parts:
    """A payload's parts; a number takes ``each`` bits in its messages."""
    cut = split(layout.size, each)
    body, at = payload_format.unpack(payload, codec.code, layout).body, _START.size + 16 * len(cut)
    if len(body) < at or _START.unpack_from(body)[0] != codec.bits:
        raise rotated_payload_error("it was not written with these settings")
    pairs = np.frombuffer(body, "<f8", 2 * len(cut), _START.size).astype(np.float64).reshape(-1, 2)
    present = (pairs != 0).any(axis=1)
    if not np.isfinite(pairs).all() or (np.abs(pairs) > 1e42).any():
        raise rotated_payload_error("a number in it is impossible")
    payload_format.exact(
        body, at + int(cut.sizes[present].sum()) * each // 8 + 4 * (cut.tail.stop - cut.tail.start)
    )
    words = []
    for size, there in zip(cut.sizes, present, strict=True):
        count = int(size) * each // 32 if there else 0
        words.append(np.frombuffer(body, "<u4", count, at).astype(np.uint32))
        at += 4 * count
    tail = np.frombuffer(body, "<f4", -1, at).astype(np.float32)
    if not np.isfinite(tail).all():
        raise rotated_payload_error("a number in it is not finite")
    return Parts(pairs, words, tail)


class Rotated(NamedTuple):
    """The opened payload of a codec that rotates: what each block is multiplied by, and its levels."""

    norms: NDArray[np.float64]
    grids: list[Vector]
    words: list[Words]
    tail: Vector


@dataclass(frozen=True, slots=True)
class RotatingLevels(Rotating[Rotated]):
    """Rotate each block alike for all learners, then round to levels: sums need no decoding."""

    code: ClassVar[int]

    def parts(self, payload: bytes, layout: Layout, key: Key) -> Rotated:
        """Open a payload and check it."""
        opened = unpack(self, payload, layout, self.copies * self.bits)
        return Rotated(*self.scales(opened.pairs, self.cut(layout)), opened.words, opened.tail)

    @abstractmethod
    def scales(self, pairs: Pairs, cut: Blocks) -> tuple[NDArray[np.float64], list[Vector]]:
        """What the pairs say: a factor for each block, and its levels divided by that factor."""

    def add_to(
        self, total: Vector, parts: Rotated, cut: Blocks, factors: NDArray[np.float64], key: Key
    ) -> None:
        """Total += factor · level, in the rotated domain."""
        for i, (_, _, size, place) in enumerate(cut.table.tolist()):
            if factors[i] > 0:
                grid = (factors[i] * parts.grids[i].astype(np.float64)).astype(np.float32)
                add(parts.words[i], total, self.copies * place, self.copies * size, grid)
