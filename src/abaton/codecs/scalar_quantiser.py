"""Base of quantisers with one list of levels per block.

The body of ``hadamard``, ``kashin``, ``eden``, ``drive`` and ``qsgd`` payloads: bits u8 and seven
zeros; one pair of float64 per block, whose meaning depends on the codec; the messages of all blocks whose
pair is not zero; then the values of the tail as float32.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import payload_format
from abaton.codecs.payload_format import payload_error
from abaton.codecs.rotated_domain import Blocks, RotatedCodec, split_blocks

if TYPE_CHECKING:
    from abaton.codecs.base import CodecKey
    from abaton.layout import Layout, Vector

Pair = tuple[float, float]
Pairs = NDArray[np.float64]
PackedWords = NDArray[np.uint32]

LANES = 16
_PREFIX = struct.Struct("<Q")
ZERO_BLOCK: Final[tuple[Pair, list[PackedWords]]] = ((0.0, 0.0), [])  # pair and messages of a block of zeros


class BlockWriter(Protocol):
    """Encoder of one block: returns its pair and its messages."""

    def __call__(self, block: Vector, size: int, position: int) -> tuple[Pair, list[PackedWords]]:
        """Quantise one block of at most ``size`` values, which starts at ``position`` after padding."""


class ScalarQuantiserCodec(Protocol):
    """Attributes of a codec that the functions of this module use."""

    code: ClassVar[int]

    @property
    def bits(self) -> int:
        """Bits per message of the scalar quantiser."""


class QuantisedPayload(NamedTuple):
    """Contents of a payload: pairs by block, messages by block (none where the pair is zero), the tail."""

    pairs: Pairs
    packed: list[PackedWords]
    tail: Vector


def quantise(
    z: Vector, group: int, levels: Vector, private: tuple[np.uint64, np.uint64] | None
) -> PackedWords:
    """Quantise values to messages: the nearest scalar level, or with a private key stochastic rounding."""
    from abaton.kernels import codebook_quantiser

    steps = np.diff(levels).astype(np.float64) if private else np.zeros(levels.size - 1)
    first = levels[:-1] if private else (levels[:-1] + levels[1:]) / 2
    table = codebook_quantiser.interval_rows((first - steps)[None], steps[None])
    bits, seeds = int(levels.size).bit_length() - 1, private or (np.uint64(0), np.uint64(0))
    packed, masks = np.empty(z.size * bits // 32, dtype=np.uint32), np.empty(z.size // 64, dtype=np.uint64)
    edge = np.float32(np.inf)
    codebook_quantiser.write(
        z, z.size, packed, 0, masks, group, table, 1, edge, np.float32(1), bits, 0, (*seeds, *seeds)
    )
    return packed


def add(packed: PackedWords, total: Vector, start: int, size: int, levels: Vector) -> None:
    """Dequantise ``size`` messages to their scalar levels and add them to ``total`` from ``start`` on."""
    from abaton.kernels import codebook_quantiser
    from abaton.kernels.walsh_hadamard import aligned

    table, no_key = aligned(LANES), (np.uint64(0), np.uint64(0))
    table[:] = np.tile(levels, LANES // levels.size)
    codebook_quantiser.add(
        packed, 0, total, start, size, 0, table, 1, int(levels.size).bit_length() - 1, no_key
    )


def dequantise(packed: PackedWords, size: int, levels: Vector) -> Vector:
    """Return the scalar levels of quantised messages."""
    total = np.zeros(size, dtype=np.float32)
    add(packed, total, 0, size, levels)
    return total


def encode(
    codec: ScalarQuantiserCodec,
    update: Vector,
    layout: Layout,
    key: CodecKey,
    bits_per_value: int,
    write_block: BlockWriter,
) -> bytes:
    """Return a scalar quantiser's payload with ``bits_per_value`` bits per value, encoded block by block."""
    layout.check(update, label=f"update of learner '{key.learner}'")
    blocks, source = split_blocks(layout.size, bits_per_value), np.ascontiguousarray(update)
    pairs, packed = np.zeros((len(blocks), 2)), list[PackedWords]()
    for i, (start, length, size, position) in enumerate(blocks.table.tolist()):
        pairs[i], messages = write_block(source[start : start + length], size, position)
        packed += messages
    arrays = (
        pairs.astype("<f8"),
        *(array.astype("<u4") for array in packed),
        source[blocks.tail].astype("<f4"),
    )
    return payload_format.pack(
        codec.code, layout, _PREFIX.pack(codec.bits), *(array.data for array in arrays)
    )


def unpack(
    codec: ScalarQuantiserCodec, payload: bytes, layout: Layout, bits_per_value: int
) -> QuantisedPayload:
    """Return the checked contents of a scalar quantiser's payload with ``bits_per_value`` bits per value."""
    blocks = split_blocks(layout.size, bits_per_value)
    body, offset = payload_format.unpack(payload, codec.code, layout).body, _PREFIX.size + 16 * len(blocks)
    if len(body) < offset or _PREFIX.unpack_from(body)[0] != codec.bits:
        raise payload_error("it has other settings")
    pairs = np.frombuffer(body, "<f8", 2 * len(blocks), _PREFIX.size).astype(np.float64).reshape(-1, 2)
    present = (pairs != 0).any(axis=1)
    if not np.isfinite(pairs).all() or (np.abs(pairs) > 1e42).any():
        raise payload_error("a scale is out of range")
    payload_format.check_body_size(
        body,
        offset
        + int(blocks.sizes[present].sum()) * bits_per_value // 8
        + 4 * (blocks.tail.stop - blocks.tail.start),
    )
    packed = []
    for size, is_present in zip(blocks.sizes, present, strict=True):
        count = int(size) * bits_per_value // 32 if is_present else 0
        packed.append(np.frombuffer(body, "<u4", count, offset).astype(np.uint32))
        offset += 4 * count
    tail = np.frombuffer(body, "<f4", -1, offset).astype(np.float32)
    if not np.isfinite(tail).all():
        raise payload_error("a value of its tail is not finite")
    return QuantisedPayload(pairs, packed, tail)


class RotatedLevels(NamedTuple):
    """Opened payload of a rotated codec: a factor for each block, its levels, its messages, the tail."""

    norms: NDArray[np.float64]
    grids: list[Vector]
    packed: list[PackedWords]
    tail: Vector


@dataclass(frozen=True, slots=True)
class RotatedScalarQuantiser(RotatedCodec[RotatedLevels]):
    """Base of codecs that rotate all learners' blocks alike, then round to levels."""

    code: ClassVar[int]

    def open_payload(self, payload: bytes, layout: Layout, key: CodecKey) -> RotatedLevels:
        """Return the checked contents of a payload of rotated, scalar-quantised blocks."""
        opened = unpack(self, payload, layout, self.rotations * self.bits)
        return RotatedLevels(*self.scales(opened.pairs, self.blocks(layout)), opened.packed, opened.tail)

    @abstractmethod
    def scales(self, pairs: Pairs, blocks: Blocks) -> tuple[NDArray[np.float64], list[Vector]]:
        """Return each block's factor and its scalar levels divided by that factor (base class)."""

    def add_to(
        self,
        total: Vector,
        payload: RotatedLevels,
        blocks: Blocks,
        factors: NDArray[np.float64],
        key: CodecKey,
    ) -> None:
        """Add factor · scalar level to ``total``, in the rotated domain."""
        for i, (_, _, size, position) in enumerate(blocks.table.tolist()):
            if factors[i] > 0:
                grid = (factors[i] * payload.grids[i].astype(np.float64)).astype(np.float32)
                add(payload.packed[i], total, self.rotations * position, self.rotations * size, grid)
