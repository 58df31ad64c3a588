"""``stc``: sparse ternary compression (Sattler et al. 2019).

Only the largest changes are sent, each as plus or minus their mean magnitude μ. The selection is
exact: k = ⌈sparsity · weights⌉, ties by lowest index; μ is the mean of the k largest magnitudes. The codec is
biased: smaller changes are lost unless ``error_feedback`` adds them to the next update.

Biases are float16 by default, because one bias affects a whole unit and is not sparse; ``biases=sparse`` is the
published behaviour. ``golomb`` is the default coding: context coding is 3 % larger on noise and takes 16 ns per weight
there.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from abaton.codecs import index_coding, payload_format, sparse_codec
from abaton.codecs.base import check_choice, check_number

if TYPE_CHECKING:
    from abaton.codecs.base import CodecKey
    from abaton.codecs.sparse_codec import SparseLayout, SparsePayload
    from abaton.layout import Layout, Vector

SCOPES, CODINGS, BIASES = ("global", "tensor"), ("golomb", "context"), ("fp16", "raw", "sparse")
_GROUP_HEADER = struct.Struct("<fI")


@dataclass(frozen=True, slots=True)
class Stc(sparse_codec.SparseCodec):
    """STC codec: the largest changes, all with one magnitude.

    Args:
        sparsity: Fraction of weights that is sent.
        scope: One selection and one μ over all weights, or one for each tensor.
        coding: Coding of the indices: Golomb-Rice, or the smaller and slower context coder.
        biases: Encoding of biases and norms: half floats, raw, or sparsified with the weights.
    """

    sparsity: float
    scope: str = "global"
    coding: str = "golomb"
    biases: str = "fp16"

    name: ClassVar[str] = "stc"
    code: ClassVar[int] = 3

    def __post_init__(self) -> None:
        check_number("sparsity", self.sparsity, 0, 1, exclusive=True)
        check_choice("scope", self.scope, SCOPES)
        check_choice("coding", self.coding, CODINGS)
        check_choice("biases", self.biases, BIASES)

    @property
    def flags(self) -> int:
        """Settings of STC that a decoder of the payload must share."""
        return SCOPES.index(self.scope) | CODINGS.index(self.coding) << 2 | BIASES.index(self.biases) << 4

    def encode(self, update: Vector, layout: Layout, key: CodecKey) -> bytes:
        """Encode with STC: indices and signs of the largest values, μ, and the biases."""
        from abaton.kernels.topk import top_k
        from abaton.kernels.vector_ops import segment_values

        update, sparse_layout = sparse_codec.check_fits(update, layout), self._sparse_layout(layout)
        headers, coded_indices, bits, selected = [], [], update.view(np.uint32), []
        for group in self._groups(sparse_layout):
            segments = group.segments()
            k = self._count(group.size)
            indices, values, total = top_k(bits, segments, k)
            if not math.isfinite(total):
                layout.check(update, label="update")
            headers.append(_GROUP_HEADER.pack(total / k, len(indices)))
            if self.coding == "golomb":
                coded_indices.append(
                    index_coding.write_golomb(*segment_values(indices, values, segments), group.size)
                )
            else:
                selected.append((indices, values))
        if self.coding == "context" and selected:
            indices, values = (np.concatenate(arrays) for arrays in zip(*selected, strict=True))
            compact_indices, negative = segment_values(indices, values, sparse_layout.segments())
            coded_indices.append(index_coding.write_context(compact_indices, negative, sparse_layout.weights))
        dense_part = sparse_codec.write_dense_part(update, sparse_layout, self.biases, layout)
        return payload_format.pack(self.code, layout, *headers, *coded_indices, dense_part, flags=self.flags)

    def open_payload(self, payload: bytes, layout: Layout) -> SparsePayload:
        """Return the entries of an STC payload, checked against the layout and the settings."""
        from abaton.kernels.vector_ops import expand_indices

        body, sparse_layout = (
            payload_format.unpack(payload, self.code, layout, flags=self.flags).body,
            self._sparse_layout(layout),
        )
        if payload_format.read_header(payload).flags != self.flags:
            raise payload_format.payload_error("it has other settings")
        groups = self._groups(sparse_layout)
        if len(body) < _GROUP_HEADER.size * len(groups) + sparse_codec.dense_part_bytes(
            sparse_layout, self.biases
        ):
            raise payload_format.payload_error("it is too short")
        headers = [_GROUP_HEADER.unpack_from(body, _GROUP_HEADER.size * i) for i in range(len(groups))]
        for group, (scale, count) in zip(groups, headers, strict=True):
            sparse_codec.check_scale(scale)
            if count > self._count(group.size):
                raise payload_format.payload_error(
                    f"it has {count:,} entries, {self._count(group.size):,} are allowed"
                )
        dense_start = len(body) - sparse_codec.dense_part_bytes(sparse_layout, self.biases)
        dense_part = sparse_codec.read_dense_part(body[dense_start:], sparse_layout, self.biases)
        body = body[_GROUP_HEADER.size * len(groups) : dense_start]
        counts = [count for _, count in headers]
        if self.coding == "context" and groups:
            compact_indices, negative, per_tensor = index_coding.read_context(
                body, sum(counts), sparse_layout.weights
            )
            if self.scope == "tensor" and list(per_tensor) != counts:
                raise payload_format.payload_error("the entries of a tensor differ from its count")
            indices = expand_indices(compact_indices, sparse_layout.segments())
        else:
            entries = [(np.zeros(0, np.uint32), np.zeros(0, np.bool_))]
            for group, count in zip(groups, counts, strict=True):
                compact_indices, negative, body = index_coding.read_golomb(body, count, group.size)
                entries.append((expand_indices(compact_indices, group.segments()), negative))
            payload_format.check_body_size(body, 0)
            indices, negative = (np.concatenate(arrays) for arrays in zip(*entries, strict=True))
        scales = np.repeat(np.array([scale for scale, _ in headers], np.float32), counts)
        return sparse_codec.SparsePayload(
            indices, np.where(negative, -scales, scales), dense_part, sparse_layout
        )

    def _sparse_layout(self, layout: Layout) -> SparseLayout:
        return sparse_codec.split_layout(layout, all_tensors=self.biases == "sparse")

    def _groups(self, sparse_layout: SparseLayout) -> list[SparseLayout]:
        if self.scope == "global":
            return [sparse_layout] if sparse_layout.weights else []
        return [sparse_codec.SparseLayout((weight,), ()) for weight in sparse_layout.weights]

    def _count(self, size: int) -> int:
        return math.ceil(sparse_codec.exact_fraction(self.sparsity, size))
