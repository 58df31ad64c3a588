"""``quicfl``: QUIC-FL, unbiased at 1 to 4 bits a number, with one inverse transform for all learners.

Input: an update, the round's key, the learner's name. Output: norms, messages of a few bits, a few
outliers.
Steps: rotate each block so that its numbers look normal; for each number take the codebook that the learner
and the server both draw from the learner's key; send which codeword, chosen so that its mean over the
codebooks is the number; send what lies beyond T (one number in 512) as the difference to its codeword. The
server adds codewords times norms in the rotated domain and rotates back once.

The codebooks of QUIC-FL as its kernels want them, from the shipped tables.

``quicfl_tables.json`` holds the first half of each table R[h, x] (the other half is its mirror image), made
by ``quicfl_solver.solve`` and rounded to float32: about seven kilobytes for all settings.
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
from abaton.codecs.base import Key, KeyPurpose, Quantiser, check_whole
from abaton.codecs.quicfl_solver import THRESHOLD, Table, full, staircase
from abaton.codecs.rotated_domain import (
    Blocks,
    Rotating,
    check_finite,
    fitting,
    read_norms,
    rotated_payload_error,
)
from abaton.layout import Vector

if TYPE_CHECKING:
    from abaton.layout import Layout


DEFAULT = {1: 6, 2: 5, 3: 4, 4: 4}
"""How many shared random bits the published method uses for each number of bits."""

LANES = 16


class Codebooks(NamedTuple):
    """Rows of 16: codewords by message, and where in z each message turns into the next."""

    codewords: Vector
    intervals: Vector
    cells: int  # 1 if the intervals are found by cells
    rows: int
    edge: np.float32


@lru_cache(maxsize=1)
def _shipped() -> dict[str, list[float]]:
    tables: dict[str, list[float]] = json.loads(
        files("abaton.codecs").joinpath("quicfl_tables.json").read_text("utf-8")
    )
    return tables


def table(bits: int, shared_bits: int) -> Table:
    """The shipped table R[h, x].

    >>> table(1, 1).round(2).tolist()
    [[-5.4, 0.79], [-0.79, 5.4]]
    """
    half = np.array(_shipped()[f"bits={bits} shared_bits={shared_bits}"], dtype=np.float32).astype(np.float64)
    return full(half, bits, shared_bits)


def intervals_of(bits: int, shared_bits: int) -> tuple[Table, Table]:
    """For each codebook where a message ends and the next begins: at low + u·width, with u in (1, 2)."""
    _, knots, rank = staircase(table(bits, shared_bits))
    low, high = knots[rank], knots[rank + 1]
    return 2 * low - high, high - low


@lru_cache(maxsize=32)
def codebooks(bits: int, shared_bits: int) -> Codebooks:
    """The tables of the kernels ``codebooks.write`` and ``codebooks.add``."""
    from abaton.kernels.codebook_quantiser import cell_rows, interval_rows

    values, ends = table(bits, shared_bits), intervals_of(bits, shared_bits)
    _, knots, _ = staircase(values)
    cells = cell_rows(*ends) if bits > 1 else None
    intervals = interval_rows(*ends) if cells is None else cells
    codewords = np.tile(values, LANES >> bits)
    # Rounding must not leave a number below the edge that no codeword reaches.
    edge = np.nextafter(np.float32(min(THRESHOLD, knots[-1])), np.float32(0))
    return Codebooks(
        codewords.astype(np.float32).ravel(), intervals, int(cells is not None), len(values), edge
    )


_START = struct.Struct("<BBHI")  # bits, shared bits, 0, how many outliers


class Parts(NamedTuple):
    """A payload's parts, checked for size."""

    norms: NDArray[np.float64]
    words: NDArray[np.uint32]
    places: NDArray[np.int64]
    excess: NDArray[np.float32]
    tail: Vector


@dataclass(frozen=True, slots=True)
class QuicFL(Rotating[Parts]):
    """Quantises to ``bits`` bits; ``shared_bits`` random bits pick the codebook (default: as published).

    >>> from abaton.codecs import parse
    >>> parse("quicfl(bits=2)").spec
    'quicfl(bits=2)'
    """

    name: ClassVar[str] = "quicfl"
    code: ClassVar[int] = 16
    unbiased: ClassVar[bool] = True

    shared_bits: int = -1

    def __post_init__(self) -> None:
        Quantiser.__post_init__(self)
        check_whole("shared_bits", self.shared_bits, -1, DEFAULT[self.bits])

    @property
    def shared(self) -> int:
        """How many shared random bits pick a codebook."""
        return DEFAULT[self.bits] if self.shared_bits < 0 else self.shared_bits

    def encode(self, update: Vector, layout: Layout, key: Key) -> bytes:
        """The update as a payload."""
        from abaton.kernels import rotated_quantiser
        from abaton.kernels.rotation import keyed
        from abaton.kernels.walsh_hadamard import aligned

        update = fitting(update, layout, key.learner)
        cut, books = self.cut(layout), codebooks(self.bits, self.shared)
        norms, words = np.zeros(len(cut)), np.empty(cut.padded * self.bits // 32, dtype=np.uint32)
        # Squares of a block sum to its size, so fewer than size / T² numbers lie beyond T.
        most = cut.padded // 9 + 1
        places, excess = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.float32)
        seeds = [
            keyed(key.derive(purpose))
            for purpose in (KeyPurpose.ROTATION, KeyPurpose.DITHER, KeyPurpose.PRIVATE)
        ]
        used, found = rotated_quantiser.encode(
            update, cut.table, books.intervals, books.cells, books.codewords, books.rows,
            books.edge, self.bits, (*seeds[0], *seeds[1], *seeds[2]), aligned(1 << 16),
            np.empty(1 << 10, dtype=np.uint64), norms, words, places, excess,
        )  # fmt: skip
        check_finite(norms, update, cut, layout, key.learner)
        places, excess = places[:found], excess[:found]
        rotated_quantiser.halves(excess, places, seeds[2])
        return payload_format.pack(
            self.code,
            layout,
            _START.pack(self.bits, self.shared, 0, found),
            norms.astype("<f8").data,
            words[:used].astype("<u4", copy=False).data,
            update[cut.tail].astype("<f4").data,
            index_coding.write(places, excess, cut.padded),
        )

    def parts(self, payload: bytes, layout: Layout, key: Key) -> Parts:
        """Open a payload and check every length in it."""
        body, cut = payload_format.unpack(payload, self.code, layout).body, self.cut(layout)
        norms, at = read_norms(body, _START.size, cut)
        bits, shared, zero, found = _START.unpack_from(body)
        coded, tail = int(cut.sizes[norms > 0].sum()), cut.tail.stop - cut.tail.start
        if (bits, shared, zero) != (self.bits, self.shared, 0) or found > coded // 9:
            raise rotated_payload_error("it was not written with these settings")
        used = coded * self.bits // 32
        payload_format.exact(body, at + 4 * used + 4 * tail + index_coding.length(found, cut.padded))
        words = np.require(np.frombuffer(body, "<u4", used, at), np.uint32, "A")
        words.flags.writeable = False
        at += 4 * used
        rest = np.frombuffer(body, "<f4", tail, at).astype(np.float32)
        if not np.isfinite(rest).all():
            raise rotated_payload_error("a number in it is not finite")
        return Parts(norms, words, *index_coding.read(body[at + 4 * tail :], found, cut.padded), rest)

    def add_to(
        self, total: Vector, parts: Parts, cut: Blocks, factors: NDArray[np.float64], key: Key
    ) -> None:
        """Total += factor · codeword, in the rotated domain."""
        from abaton.kernels import rotated_quantiser
        from abaton.kernels.rotation import keyed
        from abaton.kernels.walsh_hadamard import aligned

        books: Any = codebooks(self.bits, self.shared)
        seeds = keyed(key.derive(KeyPurpose.DITHER))
        space = aligned(books.codewords.size)
        rotated_quantiser.accumulate(
            parts.words, cut.table, factors, books.codewords, books.rows, self.bits, seeds, space,
            parts.places, parts.excess, total,
        )  # fmt: skip
