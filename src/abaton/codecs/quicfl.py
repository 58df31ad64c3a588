"""``quicfl``: QUIC-FL, unbiased at 1 to 4 bits per value, with one inverse rotation for all learners.

Input: an update, the round's key, the learner's name. Output: norms, messages of a few bits, rare
outliers.
Each block is rotated to approximately normal values; learner and server derive a random codebook for each value from
the learner's key; the message selects a codeword such that its mean over the codebooks is the value. Values beyond T
(one in 512) are sent in addition, as the difference from their codeword. The server adds codewords times norms in the
rotated domain and rotates back once.

``quicfl_tables.json`` has the first half of each table R[h, x] (the other half is its mirror image), computed
by ``quicfl_solver.solve`` and rounded to float32. For a fixed receiver table the sender's problem has a closed form, so
only these tables are shipped (7 KB in all). They are not solved at run time because both sides need the same bits.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import index_coding, payload_format
from abaton.codecs.base import CodecKey, KeyPurpose, Quantiser, check_integer
from abaton.codecs.payload_format import payload_error
from abaton.codecs.quicfl_solver import THRESHOLD, Table, full_table, staircase
from abaton.codecs.rotated_domain import (
    Blocks,
    RotatedCodec,
    check_finite,
    check_fits_layout,
    read_norms,
)
from abaton.layout import Vector

if TYPE_CHECKING:
    from abaton.layout import Layout


DEFAULT_SHARED_BITS = {1: 6, 2: 5, 3: 4, 4: 4}
"""Shared random bits of the published method, by bits per value."""

LANES = 16


class Codebooks(NamedTuple):
    """Rows of 16: codewords by message, and the bounds in z at which each message changes to the next."""

    codewords: Vector
    intervals: Vector
    cells: int  # 1 if the intervals are looked up by cells
    row_count: int
    edge: np.float32


@lru_cache(maxsize=1)
def _shipped_tables() -> dict[str, list[float]]:
    tables: dict[str, list[float]] = json.loads(
        files("abaton.codecs").joinpath("quicfl_tables.json").read_text("utf-8")
    )
    return tables


def reconstruction_table(bits: int, shared_bits: int) -> Table:
    """Return the shipped reconstruction table R[h, x] of QUIC-FL.

    >>> reconstruction_table(1, 1).round(2).tolist()
    [[-5.4, 0.79], [-0.79, 5.4]]
    """
    half = np.array(_shipped_tables()[f"bits={bits} shared_bits={shared_bits}"], dtype=np.float32).astype(
        np.float64
    )
    return full_table(half, bits, shared_bits)


def message_intervals(bits: int, shared_bits: int) -> tuple[Table, Table]:
    """Return low and width per QUIC-FL codebook: a message changes at low + u·width, with u in (1, 2)."""
    _, knots, rank = staircase(reconstruction_table(bits, shared_bits))
    low, high = knots[rank], knots[rank + 1]
    return 2 * low - high, high - low


@lru_cache(maxsize=32)
def codebooks(bits: int, shared_bits: int) -> Codebooks:
    """Return QUIC-FL's codebooks as tables for the kernels of ``codebook_quantiser``."""
    from abaton.kernels.codebook_quantiser import cell_rows, interval_rows

    values, bounds = reconstruction_table(bits, shared_bits), message_intervals(bits, shared_bits)
    _, knots, _ = staircase(values)
    cells = cell_rows(*bounds) if bits > 1 else None
    intervals = interval_rows(*bounds) if cells is None else cells
    codewords = np.tile(values, LANES >> bits)
    # Rounding must not leave a value below the edge beyond the largest codeword mean.
    edge = np.nextafter(np.float32(min(THRESHOLD, knots[-1])), np.float32(0))
    return Codebooks(
        codewords.astype(np.float32).ravel(), intervals, int(cells is not None), len(values), edge
    )


_PREFIX = struct.Struct("<BBHI")  # bits, shared bits, 0, number of outliers


class QuicflPayload(NamedTuple):
    """Contents of a payload, with checked sizes."""

    norms: NDArray[np.float64]
    packed: NDArray[np.uint32]
    outlier_indices: NDArray[np.int64]
    excess: NDArray[np.float32]
    tail: Vector


@dataclass(frozen=True, slots=True)
class QuicFL(RotatedCodec[QuicflPayload]):
    """QUIC-FL quantiser to ``bits`` bits; ``shared_bits`` random bits select the codebook (default: as published).

    >>> from abaton.codecs import parse_codec
    >>> parse_codec("quicfl(bits=2)").spec
    'quicfl(bits=2)'
    """

    name: ClassVar[str] = "quicfl"
    code: ClassVar[int] = 16
    is_unbiased: ClassVar[bool] = True

    shared_bits: int = -1

    def __post_init__(self) -> None:
        Quantiser.__post_init__(self)
        check_integer("shared_bits", self.shared_bits, -1, DEFAULT_SHARED_BITS[self.bits])

    @property
    def shared_bit_count(self) -> int:
        """Number of shared random bits that select a QUIC-FL codebook."""
        return DEFAULT_SHARED_BITS[self.bits] if self.shared_bits < 0 else self.shared_bits

    def encode(self, update: Vector, layout: Layout, key: CodecKey) -> bytes:
        """Encode the update with QUIC-FL: norms, messages of a few bits, and rare outliers."""
        from abaton.kernels import rotated_quantiser
        from abaton.kernels.rotation import derive_key
        from abaton.kernels.walsh_hadamard import aligned

        update = check_fits_layout(update, layout, key.learner)
        blocks, books = self.blocks(layout), codebooks(self.bits, self.shared_bit_count)
        norms, packed = np.zeros(len(blocks)), np.empty(blocks.padded_size * self.bits // 32, dtype=np.uint32)
        # Squares of a block sum to its size, so fewer than size / T² values are beyond T.
        max_outliers = blocks.padded_size // 9 + 1
        outlier_indices, excess = (
            np.empty(max_outliers, dtype=np.int64),
            np.empty(max_outliers, dtype=np.float32),
        )
        keys = [
            derive_key(key.derive(purpose))
            for purpose in (KeyPurpose.ROTATION, KeyPurpose.DITHER, KeyPurpose.PRIVATE)
        ]
        word_count, outliers = rotated_quantiser.encode(
            update, blocks.table, books.intervals, books.cells, books.codewords, books.row_count,
            books.edge, self.bits, (*keys[0], *keys[1], *keys[2]), aligned(1 << 16),
            np.empty(1 << 10, dtype=np.uint64), norms, packed, outlier_indices, excess,
        )  # fmt: skip
        check_finite(norms, update, blocks, layout, key.learner)
        outlier_indices, excess = outlier_indices[:outliers], excess[:outliers]
        rotated_quantiser.round_to_float16(excess, outlier_indices, keys[2])
        return payload_format.pack(
            self.code,
            layout,
            _PREFIX.pack(self.bits, self.shared_bit_count, 0, outliers),
            norms.astype("<f8").data,
            packed[:word_count].astype("<u4", copy=False).data,
            update[blocks.tail].astype("<f4").data,
            index_coding.write_outliers(outlier_indices, excess, blocks.padded_size),
        )

    def open_payload(self, payload: bytes, layout: Layout, key: CodecKey) -> QuicflPayload:
        """Return the contents of a QUIC-FL payload after checking all lengths."""
        body, blocks = payload_format.unpack(payload, self.code, layout).body, self.blocks(layout)
        norms, offset = read_norms(body, _PREFIX.size, blocks)
        bits, shared, zero, outliers = _PREFIX.unpack_from(body)
        coded_values, tail_size = int(blocks.sizes[norms > 0].sum()), blocks.tail.stop - blocks.tail.start
        if (bits, shared, zero) != (self.bits, self.shared_bit_count, 0) or outliers > coded_values // 9:
            raise payload_error("it has other settings")
        word_count = coded_values * self.bits // 32
        payload_format.check_body_size(
            body,
            offset
            + 4 * word_count
            + 4 * tail_size
            + index_coding.outlier_bytes(outliers, blocks.padded_size),
        )
        packed = np.require(np.frombuffer(body, "<u4", word_count, offset), np.uint32, "A")
        packed.flags.writeable = False
        offset += 4 * word_count
        tail = np.frombuffer(body, "<f4", tail_size, offset).astype(np.float32)
        if not np.isfinite(tail).all():
            raise payload_error("a value of its tail is not finite")
        return QuicflPayload(
            norms,
            packed,
            *index_coding.read_outliers(body[offset + 4 * tail_size :], outliers, blocks.padded_size),
            tail,
        )

    def add_to(
        self,
        total: Vector,
        payload: QuicflPayload,
        blocks: Blocks,
        factors: NDArray[np.float64],
        key: CodecKey,
    ) -> None:
        """Add factor · QUIC-FL codeword to ``total``, in the rotated domain."""
        from abaton.kernels import rotated_quantiser
        from abaton.kernels.rotation import derive_key
        from abaton.kernels.walsh_hadamard import aligned

        books: Any = codebooks(self.bits, self.shared_bit_count)
        dither_key = derive_key(key.derive(KeyPurpose.DITHER))
        scaled = aligned(books.codewords.size)
        rotated_quantiser.accumulate(
            payload.packed, blocks.table, factors, books.codewords, books.row_count, self.bits, dither_key, scaled,
            payload.outlier_indices, payload.excess, total,
        )  # fmt: skip
