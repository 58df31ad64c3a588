"""``tcdq``: trellis-coded dithered quantisation, the smallest error of the unbiased codecs at 0.3 to 6 bits per value.

Input: an update, the round's key, the learner's name. Output: norms, one entropy-coded stream, rare outliers.
Each block is rotated to approximately normal values. A dither that learner and server derive from the
learner's key is added. A trellis code then chooses an integer for every value: a Viterbi search finds the
sequence closest to the dithered values (``kernels/trellis_search.py``). The server subtracts the dither, adds
in the rotated domain and rotates back once.

The dither is uniform on a period of the code, so the error is independent of the update whatever the search
decides; a random sign of every value makes its mean zero. The codec is therefore unbiased (``docs/trellis.md``).
At the same rate, 64 states have 0.75 times the squared error of scalar rounding.

Below 0.4 bits a random part of the rotated values is coded at 0.5 bits and scaled up.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import index_coding, payload_format
from abaton.codecs.base import CodecKey, KeyPurpose, check_number
from abaton.codecs.payload_format import payload_error
from abaton.codecs.rotated_domain import Blocks, RotatedCodec, check_finite, check_fits_layout, read_norms
from abaton.codecs.tcdq_rate_model import HIGHEST_RATE, LOWEST_RATE, RATE_UNITS, trellis_rate_model
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.layout import Layout, Vector

LANES, STEPS = 32, 4  # lanes of the trellis, and the number that divides the steps of a block
STATES = (8, 64, 256)
_MAX_BITS = 14  # per value: the rarest outcome has one frequency unit of 2^14
_PREFIX = struct.Struct("<BB2xI")  # bits in 20ths, log2 of the states, 0, number of outliers


class TcdqPayload(NamedTuple):
    """Contents of a TCDQ payload: norms, decoded values of all coded steps in units of the grid, and the tail."""

    norms: NDArray[np.float64]
    values: Vector
    tail: Vector


@lru_cache(maxsize=8)
def _entropy_table(bits: float, states: int) -> Any:
    from abaton.kernels.interleaved_rans import rans_table

    return rans_table(trellis_rate_model(bits, states).rows)


@dataclass(frozen=True, slots=True)
class Tcdq(RotatedCodec[TcdqPayload]):
    """Trellis-coded dithered quantiser to about ``bits`` bits per value, a multiple of 0.05.

    Args:
        bits: Bits per value, 0.3 to 6.
        states: States of the trellis code: 64, or 8 for a faster search, or 256 for the smallest error.

    >>> from abaton.codecs import parse_codec
    >>> parse_codec("tcdq(bits=0.5)").spec
    'tcdq(bits=0.5)'
    """

    name: ClassVar[str] = "tcdq"
    code: ClassVar[int] = 23
    is_unbiased: ClassVar[bool] = True

    bits: float  # type: ignore[assignment]
    states: int = 64

    def __post_init__(self) -> None:
        check_number("bits", self.bits, LOWEST_RATE, HIGHEST_RATE)
        if abs(self.bits * RATE_UNITS - round(self.bits * RATE_UNITS)) > 1e-9:
            raise SettingsError(
                f"bits={self.bits} is not a multiple of 0.05", remedy="choose such a number for bits"
            )
        if isinstance(self.states, bool) or self.states not in STATES:
            raise SettingsError(
                f"states={self.states} is not 8, 64 or 256", remedy="choose one of them for states"
            )
        if self.bits == round(self.bits):
            object.__setattr__(self, "bits", round(self.bits))  # one spec for 2 and 2.0

    def encode(self, update: Vector, layout: Layout, key: CodecKey) -> bytes:
        """Encode the update with TCDQ: rotate, dither, search the trellis and entropy-code the outcomes."""
        from abaton.kernels import interleaved_rans, trellis_quantiser, trellis_search
        from abaton.kernels.rotation import derive_key
        from abaton.kernels.walsh_hadamard import aligned

        update = check_fits_layout(update, layout, key.learner)
        blocks, model = self.blocks(layout), trellis_rate_model(self.bits, self.states)
        strata, width = model.rows.shape
        counts = self._coded_counts(blocks)
        largest = int(counts.max(initial=0))
        norms, symbols = np.zeros(len(blocks)), np.empty(int(counts.sum()), np.uint16)
        max_outliers = symbols.size // 16 + 1  # squares of a block sum to its size, and outliers are beyond 4
        outlier_indices, excess = np.empty(max_outliers, np.int64), np.empty(max_outliers, np.float32)
        keys = (*derive_key(key.derive(KeyPurpose.ROTATION)), *derive_key(key.derive(KeyPurpose.DITHER)))
        z, residues = aligned(int(blocks.sizes.max(initial=0))), aligned(largest // 2).view(np.int16)
        metrics = aligned(3 * LANES * self.states // 2).view(np.int16)
        decisions = aligned(largest // LANES * self.states).view(np.uint32)
        path, chosen_steps = np.empty(largest, np.uint8), np.empty(largest // LANES, np.int64)
        search = trellis_search.SEARCHES[self.states]
        symbol_count = outliers = 0
        for b, count in enumerate(counts.tolist()):
            steps = count // LANES
            norms[b] = trellis_quantiser.dither_block(
                update, blocks.table[b], steps, model.step, symbol_count, keys, z, chosen_steps, residues
            )
            if norms[b] == 0 or not np.isfinite(norms[b]):
                continue
            search(residues, steps, metrics, decisions, path)
            outliers = trellis_quantiser.take_symbols(
                z, count, path, symbol_count, keys, strata.bit_length() - 1, width, symbols,
                outlier_indices, excess, outliers,
            )  # fmt: skip
            symbol_count += count
        check_finite(norms, update, blocks, layout, key.learner)
        return payload_format.pack(
            self.code,
            layout,
            self._prefix(outliers),
            norms.astype("<f8").data,
            update[blocks.tail].astype("<f4").data,
            index_coding.write_outliers(outlier_indices[:outliers], excess[:outliers], symbols.size),
            interleaved_rans.encode_symbols(symbols[:symbol_count], _entropy_table(self.bits, self.states)),
        )

    def open_payload(self, payload: bytes, layout: Layout, key: CodecKey) -> TcdqPayload:
        """Return the contents of a TCDQ payload after checking all lengths and decoding its stream."""
        from abaton.kernels import trellis_quantiser
        from abaton.kernels.interleaved_rans import STATE_BYTES, open_code
        from abaton.kernels.rotation import derive_key
        from abaton.kernels.trellis_search import TAPS

        body, blocks = payload_format.unpack(payload, self.code, layout).body, self.blocks(layout)
        norms, offset = read_norms(body, _PREFIX.size, blocks)
        *_, outliers = _PREFIX.unpack_from(body)
        all_counts = self._coded_counts(blocks)
        counts, index_end = np.where(norms > 0, all_counts, 0), int(all_counts.sum())
        coded_values = int(counts.sum())
        if body[: _PREFIX.size] != self._prefix(outliers) or outliers > coded_values // 16:
            raise payload_error("it has other settings")
        tail_end = offset + 4 * (blocks.tail.stop - blocks.tail.start)
        code_start = tail_end + index_coding.outlier_bytes(outliers, index_end)
        word_bytes = len(body) - code_start - (STATE_BYTES if coded_values else 0)
        if not 0 <= word_bytes <= coded_values * _MAX_BITS // 8 or word_bytes % 2:
            raise payload_error("its stream has an impossible length")
        tail = np.frombuffer(body[offset:tail_end], "<f4").astype(np.float32)
        if not np.isfinite(tail).all():
            raise payload_error("a value of its tail is not finite")
        outlier_indices, excess = index_coding.read_outliers(body[tail_end:code_start], outliers, index_end)
        if outliers and outlier_indices[-1] >= coded_values:
            raise payload_error("its outliers are not a valid list")
        values = np.empty(coded_values, dtype=np.float32)
        if coded_values:
            model, table = trellis_rate_model(self.bits, self.states), _entropy_table(self.bits, self.states)
            rans_states, rans_words = open_code(body[code_start:])
            strata, width = model.rows.shape
            if not trellis_quantiser.read(
                rans_words, rans_states, counts, TAPS[self.states], self.states.bit_length() - 1,
                strata.bit_length() - 1, width, table.intervals, table.guesses,
                derive_key(key.derive(KeyPurpose.DITHER)), values,
            ):  # fmt: skip
                raise payload_error("its stream is not a valid code")
        values[outlier_indices] += excess
        return TcdqPayload(norms, values, tail)

    def add_to(
        self, total: Vector, payload: TcdqPayload, blocks: Blocks, factors: NDArray[np.float64], key: CodecKey
    ) -> None:
        """Add factor · TCDQ value (trellis point minus dither) to ``total``, in the rotated domain."""
        from abaton.kernels import trellis_quantiser
        from abaton.kernels.rotation import derive_key

        counts = np.where(payload.norms > 0, self._coded_counts(blocks), 0)
        scale = trellis_rate_model(self.bits, self.states).step * (blocks.sizes / np.maximum(counts, 1))
        chosen_steps = np.empty(int(counts.max(initial=0)) // LANES, np.int64)
        keys = derive_key(key.derive(KeyPurpose.DITHER))
        trellis_quantiser.accumulate(
            payload.values, blocks.table, counts, factors * scale, keys, chosen_steps, total
        )

    def _coded_counts(self, blocks: Blocks) -> NDArray[np.int64]:
        """Return how many values of each block are coded: all, or a part below 0.4 bits."""
        share = trellis_rate_model(self.bits, self.states).sampled_share
        chunk = LANES * STEPS
        return np.rint(blocks.sizes * share / chunk).astype(np.int64) * chunk

    def _prefix(self, outliers: int) -> bytes:
        return _PREFIX.pack(round(self.bits * RATE_UNITS), self.states.bit_length() - 1, outliers)
