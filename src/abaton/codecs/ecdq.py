"""``ecdq``: entropy-coded dithered quantisation, the smallest error at 1 to 4 measured bits per value.

Input: an update, the round's key, the learner's name. Output: norms, one entropy-coded stream, rare
outliers.
Each block is rotated to approximately normal values; a dither that learner and server derive from the
learner's key is added; the result is rounded to a grid, and the outcome is coded with its frequency under
that dither. The server subtracts the dither. The error is uniform on the grid's cell and independent of the
value, so the codec is unbiased. The server adds in the rotated domain and rotates back once.

A normal value z is rounded to q = round(z/Δ + u) with a dither u that the server knows. Given u, outcome q
has probability Φ((q + ½ - u)·Δ) - Φ((q - ½ - u)·Δ). The dither is divided into S strata; all their frequency
tables are the same function Φ on one grid of spacing Δ/S, read with stride S: outcome q in stratum j extends
from C[k] to C[k + S] with k = S·q - j + K. One list of cumulative frequencies, in units of 2^-14, is therefore
enough for all strata; :func:`outcome_frequencies` reads the rows of the entropy coder from it. Frequencies depend
on the dither stratum because the error at one bit is then 0.55 instead of 1.03.

``ecdq_tables.json`` has Δ and the first half of C (the other half is its mirror image), computed by
:func:`solve`. Frequencies are shipped as integers, because floating-point frequencies can differ in the last
bit between machines.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import index_coding, payload_format
from abaton.codecs.base import CodecKey, KeyPurpose
from abaton.codecs.payload_format import payload_error
from abaton.codecs.rotated_domain import (
    GROUP,
    Blocks,
    RotatedCodec,
    check_finite,
    check_fits_layout,
    read_norms,
)

if TYPE_CHECKING:
    from abaton.kernels.interleaved_rans import RansTable
    from abaton.layout import Layout, Vector


TOTAL = 1 << 14
STRATA = {1: 64, 2: 32, 3: 16, 4: 16}
RATE_TOLERANCE = 0.0015
"""Bits per value that the codes may take beyond ``bits``, about as much as norms and header at 2^20 values."""

_MAX_DEVIATION = 4.3  # in standard deviations; grid points beyond it have probability 0

CumulativeCounts = NDArray[np.int64]


class EcdqRateModel(NamedTuple):
    """Rounding step, number of strata, cumulative frequencies, and the entropy coder's table made of them."""

    step: float
    strata: int
    cumulative: CumulativeCounts
    table: RansTable


def frequencies(step: float, strata: int) -> CumulativeCounts:
    """Return the cumulative frequencies of ECDQ's rounding outcomes; every outcome has at least one unit."""
    from scipy.special import ndtr

    half = strata + int(np.ceil(_MAX_DEVIATION * strata / step))
    points = (np.arange(2 * half) - half + 0.5) * step / strata
    counts: CumulativeCounts = np.rint(TOTAL * ndtr(points)).astype(np.int64)
    counts[:strata] = 0
    for i in range(strata, half):
        counts[i] = max(counts[i], counts[i - strata] + 1)
    counts[half:] = TOTAL - counts[:half][::-1]
    return counts


def rate(step: float, strata: int, counts: CumulativeCounts) -> float:
    """Return ECDQ's expected bits per value for standard normal values."""
    from scipy.special import ndtr

    dither_points = 16  # dither values within a stratum
    half = counts.size // 2
    k = np.arange(counts.size - strata)
    length = np.log2(TOTAL) - np.log2(counts[strata:] - counts[:-strata])
    # Stratum j, dither value f: the lower boundary is at grid point k + ½ - (f + ½)/dither_points.
    shift = 0.5 - (np.arange(dither_points) + 0.5) / dither_points
    low = (k[:, None] - half + 0.5 + shift) * step / strata
    return float((length[:, None] * (ndtr(low + step) - ndtr(low))).sum() / dither_points / strata)


def solve(bits: int) -> tuple[float, CumulativeCounts]:
    """Return ECDQ's smallest grid step whose codes take ``bits`` bits per value, and its frequencies."""
    strata = STRATA[bits]
    low, high = 0.1, 4.0
    for _ in range(40):
        middle = (low + high) / 2
        if rate(middle, strata, frequencies(middle, strata)) > bits + RATE_TOLERANCE:
            low = middle
        else:
            high = middle
    step = float(np.float32(np.ceil(high * 1e4) / 1e4))
    return step, frequencies(step, strata)


def outcome_frequencies(counts: CumulativeCounts, strata: int) -> NDArray[np.int64]:
    """Return the frequencies of ECDQ's outcomes, one row for each stratum, ascending; 0 after the last outcome."""
    half = counts.size // 2
    rows = np.zeros((strata, -(-counts.size // strata) - 1), dtype=np.int64)
    for stratum in range(strata):
        row = np.diff(counts[(half - 1 - stratum) % strata :: strata])
        rows[stratum, : row.size] = row
    return rows


@lru_cache(maxsize=4)
def rate_model(bits: int) -> EcdqRateModel:
    """Return the shipped rate model of ECDQ for 1 to 4 bits: its step and frequencies.

    >>> round(rate_model(2).step ** 2 / 12, 4)
    0.0974
    """
    from abaton.kernels.interleaved_rans import rans_table

    shipped = json.loads(files("abaton.codecs").joinpath("ecdq_tables.json").read_text("utf-8"))[
        f"bits={bits}"
    ]
    first, strata = np.array(shipped["cumulative"], dtype=np.int64), STRATA[bits]
    cumulative = np.concatenate([first, TOTAL - first[::-1]])
    return EcdqRateModel(
        shipped["step"], strata, cumulative, rans_table(outcome_frequencies(cumulative, strata))
    )


_PREFIX = struct.Struct("<B3xI")  # bits, 0, number of outliers


class EcdqPayload(NamedTuple):
    """Contents of a payload, decoded to multiples of the grid step."""

    norms: NDArray[np.float64]
    values: Vector
    tail: Vector


@dataclass(frozen=True, slots=True)
class Ecdq(RotatedCodec[EcdqPayload]):
    """Entropy-coded dithered quantiser to about ``bits`` bits per value, with the same error for every value.

    >>> from abaton.codecs import parse_codec
    >>> parse_codec("ecdq(bits=2)").spec
    'ecdq(bits=2)'
    """

    name: ClassVar[str] = "ecdq"
    code: ClassVar[int] = 17
    is_unbiased: ClassVar[bool] = True

    def encode(self, update: Vector, layout: Layout, key: CodecKey) -> bytes:
        """Encode the update with ECDQ: rotate, dither, round to the grid and entropy-code the outcomes."""
        from abaton.kernels import dithered_quantiser
        from abaton.kernels.interleaved_rans import encode_symbols
        from abaton.kernels.rotation import derive_key
        from abaton.kernels.walsh_hadamard import aligned

        update = check_fits_layout(update, layout, key.learner)
        blocks, model = self.blocks(layout), rate_model(self.bits)
        norms, symbols = np.zeros(len(blocks)), np.empty(blocks.padded_size, dtype=np.uint16)
        max_outliers = (
            blocks.padded_size // 16 + 1
        )  # squares of a block sum to its size, and outliers are beyond 4
        outlier_indices, excess = (
            np.empty(max_outliers, dtype=np.int64),
            np.empty(max_outliers, dtype=np.float32),
        )
        keys = (*derive_key(key.derive(KeyPurpose.ROTATION)), *derive_key(key.derive(KeyPurpose.DITHER)))
        symbol_count, outliers = dithered_quantiser.quantise(
            update, blocks.table, model.step, model.strata, model.cumulative.size, model.table.width, keys,
            aligned(1 << 16), np.empty(GROUP, dtype=np.uint32), norms, symbols, outlier_indices, excess,
        )  # fmt: skip
        check_finite(norms, update, blocks, layout, key.learner)
        return payload_format.pack(
            self.code,
            layout,
            _PREFIX.pack(self.bits, outliers),
            norms.astype("<f8").data,
            update[blocks.tail].astype("<f4").data,
            index_coding.write_outliers(outlier_indices[:outliers], excess[:outliers], blocks.padded_size),
            encode_symbols(symbols[:symbol_count], model.table),
        )

    def open_payload(self, payload: bytes, layout: Layout, key: CodecKey) -> EcdqPayload:
        """Return the contents of an ECDQ payload after checking all lengths and decoding its stream."""
        from abaton.kernels import dithered_quantiser
        from abaton.kernels.interleaved_rans import STATE_BYTES, open_code
        from abaton.kernels.rotation import derive_key

        body, blocks = payload_format.unpack(payload, self.code, layout).body, self.blocks(layout)
        norms, offset = read_norms(body, _PREFIX.size, blocks)
        bits, outliers = _PREFIX.unpack_from(body)
        coded_values = int(blocks.sizes[norms > 0].sum())
        if bits != self.bits or any(body[1:4]) or outliers > coded_values // 16:
            raise payload_error("it has other settings")
        tail_size, outlier_bytes = (
            blocks.tail.stop - blocks.tail.start,
            index_coding.outlier_bytes(outliers, blocks.padded_size),
        )
        code = body[offset + 4 * tail_size + outlier_bytes :]
        if len(body) < offset + 4 * tail_size + outlier_bytes or not (
            STATE_BYTES <= len(code) <= STATE_BYTES + 2 * coded_values if coded_values else not code
        ):
            raise payload_error("its code has an impossible length")
        tail = np.frombuffer(body, "<f4", tail_size, offset).astype(np.float32)
        outlier_indices, excess = index_coding.read_outliers(
            body[offset + 4 * tail_size : offset + 4 * tail_size + outlier_bytes],
            outliers,
            blocks.padded_size,
        )
        values = np.zeros(blocks.padded_size, dtype=np.float32)
        if coded_values:
            states, rans_words = open_code(code)
            dither_key, random = derive_key(key.derive(KeyPurpose.DITHER)), np.empty(GROUP, dtype=np.uint32)
            model = rate_model(self.bits)
            sizes = (model.strata, model.cumulative.size, model.table.width)
            if len(code) % 2 or not dithered_quantiser.read(
                rans_words, states, blocks.table, norms, model.table.intervals, model.table.guesses, *sizes,
                dither_key, random, coded_values, values,
            ):  # fmt: skip
                raise payload_error("its code is invalid")
        if not np.isfinite(tail).all():
            raise payload_error("a value of its tail is not finite")
        values[outlier_indices] += excess
        return EcdqPayload(norms, values, tail)

    def add_to(
        self, total: Vector, payload: EcdqPayload, blocks: Blocks, factors: NDArray[np.float64], key: CodecKey
    ) -> None:
        """Add factor · ECDQ value (outcome minus dither) to ``total``, in the rotated domain."""
        from abaton.kernels import dithered_quantiser

        dithered_quantiser.accumulate(
            payload.values, blocks.table, factors * rate_model(self.bits).step, total
        )
