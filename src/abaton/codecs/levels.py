"""One list of levels for a whole block: what the simpler quantisers send.

Every payload of ``hadamard``, ``kashin``, ``eden``, ``drive`` and ``qsgd`` has a body of: bits u8 and seven
zeros; one pair of float64 a block (what the pair means is the codec's); the messages of all blocks whose
pair is not zero; then the numbers of the tail as float32.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import wire
from abaton.codecs.rotated import broken

if TYPE_CHECKING:
    from abaton.codecs.blocks import Blocks
    from abaton.vectors.layout import Layout, Vector

Pairs = NDArray[np.float64]
Words = NDArray[np.uint32]

LANES = 16
_START = struct.Struct("<Q")


class Parts(NamedTuple):
    """A payload's parts: pairs by block, messages by block (none where the pair is zero), the tail."""

    pairs: Pairs
    words: list[Words]
    tail: Vector


def quantise(z: Vector, group: int, levels: Vector, private: tuple[np.uint64, np.uint64] | None) -> Words:
    """Messages for numbers: the nearest level, or with private randomness one of the two around it."""
    from abaton.vectors import codebooks

    steps = np.diff(levels).astype(np.float64) if private else np.zeros(levels.size - 1)
    first = levels[:-1] if private else (levels[:-1] + levels[1:]) / 2
    table = codebooks.interval_rows((first - steps)[None], steps[None])
    bits, seeds = int(levels.size).bit_length() - 1, private or (np.uint64(0), np.uint64(0))
    words, masks = np.empty(z.size * bits // 32, dtype=np.uint32), np.empty(z.size // 64, dtype=np.uint64)
    edge = np.float32(np.inf)
    codebooks.write(z, z.size, words, 0, masks, group, table, 1, edge, np.float32(1), bits, (*seeds, *seeds))
    return words


def restore(words: Words, size: int, levels: Vector) -> Vector:
    """The levels that messages name."""
    from abaton.vectors import codebooks
    from abaton.vectors.rotation import aligned

    table, total = aligned(LANES), np.zeros(size, dtype=np.float32)
    table[:] = np.tile(levels, LANES // levels.size)
    none = (np.uint64(0), np.uint64(0))
    codebooks.add(words, 0, total, 0, size, 0, table, 1, int(levels.size).bit_length() - 1, none)
    return total


def pack(code: int, bits: int, layout: Layout, pairs: Pairs, words: list[Words], tail: Vector) -> bytes:
    """A payload from its parts."""
    parts = (pairs.astype("<f8"), *(part.astype("<u4") for part in words), tail.astype("<f4"))
    return wire.pack(code, layout, b"".join((_START.pack(bits), *(part.tobytes() for part in parts))))


def unpack(payload: bytes, code: int, bits: int, layout: Layout, cut: Blocks, each: int) -> Parts:
    """A payload's parts; a number takes ``each`` bits in its messages."""
    body, at = wire.unpack(payload, code, layout).body, _START.size + 16 * len(cut)
    if len(body) < at or _START.unpack_from(body)[0] != bits:
        raise broken("it was not written with these settings")
    pairs = np.frombuffer(body, "<f8", 2 * len(cut), _START.size).astype(np.float64).reshape(-1, 2)
    present = (pairs != 0).any(axis=1)
    if not np.isfinite(pairs).all() or (np.abs(pairs) > 1e42).any():
        raise broken("a number in it is impossible")
    wire.exact(body, at + int(cut.sizes[present].sum()) * each // 8 + 4 * (cut.tail.stop - cut.tail.start))
    words = []
    for size, there in zip(cut.sizes, present, strict=True):
        count = int(size) * each // 32 if there else 0
        words.append(np.frombuffer(body, "<u4", count, at).astype(np.uint32))
        at += 4 * count
    tail = np.frombuffer(body, "<f4", -1, at).astype(np.float32)
    if not np.isfinite(tail).all():
        raise broken("a number in it is not finite")
    return Parts(pairs, words, tail)
