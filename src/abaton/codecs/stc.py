"""``stc``: sparse ternary compression (Sattler et al. 2019).

Only the largest share of the changes is sent, each as plus or minus their mean magnitude μ. The choice is
exact: k = ⌈share · weights⌉, ties to the lowest place; μ is the mean of the k largest magnitudes. It is
biased: what stays below the threshold never arrives unless ``error_feedback`` keeps it for the next round.
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
    from abaton.codecs.base import Key
    from abaton.codecs.sparse_codec import Parts, Sparse
    from abaton.layout import Layout, Vector

SCOPES, CODINGS, BIASES = ("global", "tensor"), ("golomb", "context"), ("fp16", "raw", "sparse")
_GROUP = struct.Struct("<fI")


@dataclass(frozen=True, slots=True)
class Stc(sparse_codec.SparseCodec):
    """Sends the largest changes only, all with one magnitude.

    Args:
        sparsity: The share of weights that is sent.
        scope: One choice and one μ over all weights, or one for each tensor.
        coding: How places are written: Golomb-Rice gaps, or the smaller and slower context coder.
        biases: How biases and norms travel: as half floats, raw, or sparsified with the weights.
    """

    sparsity: float
    scope: str = "global"
    coding: str = "golomb"
    biases: str = "fp16"

    name: ClassVar[str] = "stc"
    code: ClassVar[int] = 3

    def __post_init__(self) -> None:
        check_number("sparsity", self.sparsity, 0, 1, above=True)
        check_choice("scope", self.scope, SCOPES)
        check_choice("coding", self.coding, CODINGS)
        check_choice("biases", self.biases, BIASES)

    @property
    def flags(self) -> int:
        """The settings that a reader of the payload must share."""
        return SCOPES.index(self.scope) | CODINGS.index(self.coding) << 2 | BIASES.index(self.biases) << 4

    def encode(self, update: Vector, layout: Layout, key: Key) -> bytes:
        """The chosen places and signs, μ, and the biases."""
        from abaton.kernels.topk import largest
        from abaton.kernels.vector_ops import inside

        update, parts = sparse_codec.check_fits(update, layout), self._parts(layout)
        heads, lists, bits, found = [], [], update.view(np.uint32), []
        for group in self._groups(parts):
            stretches = group.stretches()
            k = self._count(group.size)
            places, values, total = largest(bits, stretches, k)
            if not math.isfinite(total):
                layout.check(update, whose="update")
            heads.append(_GROUP.pack(total / k, len(places)))
            if self.coding == "golomb":
                lists.append(index_coding.write_golomb(*inside(places, values, stretches), group.size))
            else:
                found.append((places, values))
        if self.coding == "context" and found:
            places, values = (np.concatenate(part) for part in zip(*found, strict=True))
            told, negative = inside(places, values, parts.stretches())
            lists.append(index_coding.write_context(told, negative, parts.weights))
        rest = sparse_codec.write_rest(update, parts, self.biases, layout)
        return payload_format.pack(self.code, layout, *heads, *lists, rest, flags=self.flags)

    def open(self, payload: bytes, layout: Layout) -> Sparse:
        """The entries of a payload; everything is checked against the layout and the settings first."""
        from abaton.kernels.vector_ops import outside

        body, parts = (
            payload_format.unpack(payload, self.code, layout, flags=self.flags).body,
            self._parts(layout),
        )
        if payload_format.read(payload).flags != self.flags:
            raise index_coding.index_payload_error("it was written with other settings")
        groups = self._groups(parts)
        if len(body) < _GROUP.size * len(groups) + sparse_codec.rest_bytes(parts, self.biases):
            raise index_coding.index_payload_error("it is too short")
        heads = [_GROUP.unpack_from(body, _GROUP.size * i) for i in range(len(groups))]
        for group, (scale, count) in zip(groups, heads, strict=True):
            sparse_codec.check_scale(scale)
            if count > self._count(group.size):
                raise index_coding.index_payload_error(
                    f"{count:,} entries where {self._count(group.size):,} are allowed"
                )
        cut = len(body) - sparse_codec.rest_bytes(parts, self.biases)
        rest = sparse_codec.read_rest(body[cut:], parts, self.biases)
        body = body[_GROUP.size * len(groups) : cut]
        counts = [count for _, count in heads]
        if self.coding == "context" and groups:
            told, negative, per_tensor = index_coding.read_context(body, sum(counts), parts.weights)
            if self.scope == "tensor" and list(per_tensor) != counts:
                raise index_coding.index_payload_error(
                    "a tensor has another number of entries than announced"
                )
            places = outside(told, parts.stretches())
        else:
            lists = [(np.zeros(0, np.uint32), np.zeros(0, np.bool_))]
            for group, count in zip(groups, counts, strict=True):
                told, negative, body = index_coding.read_golomb(body, count, group.size)
                lists.append((outside(told, group.stretches()), negative))
            payload_format.exact(body, 0)
            places, negative = (np.concatenate(part) for part in zip(*lists, strict=True))
        scales = np.repeat(np.array([scale for scale, _ in heads], np.float32), counts)
        return sparse_codec.Sparse(places, np.where(negative, -scales, scales), rest, parts)

    def _parts(self, layout: Layout) -> Parts:
        return sparse_codec.split(layout, all_tensors=self.biases == "sparse")

    def _groups(self, parts: Parts) -> list[Parts]:
        if self.scope == "global":
            return [parts] if parts.weights else []
        return [sparse_codec.Parts((weight,), ()) for weight in parts.weights]

    def _count(self, size: int) -> int:
        return math.ceil(sparse_codec.share(self.sparsity, size))
