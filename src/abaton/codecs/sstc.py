"""``sstc``: structured sparse ternary compression (Mora, Foschini, Bellavista 2022, Algorithm 1).

Large changes of a convolution are concentrated in few kernels. The kernels with the largest mean
magnitude are selected first, over all convolutions of equal kernel size in one pool. The k largest values of
these kernels and of all dense weights are then selected, k counted on *all* weights, and sent
as plus or minus one common μ. Convolutions of size 1x1 count as dense. With ``kernels=1`` the decoded update is
that of ``stc``, whose k is rounded up; otherwise k is rounded.

A kernel is the block of K·K values of one output and one input channel, contiguous in the layout's order
(output, input, height, width). Kernel ids of a pool count from 0 in that order, tensor after tensor.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from abaton.codecs import index_coding, payload_format, sparse_codec
from abaton.codecs.base import check_choice, check_number
from abaton.layout import TensorRole

if TYPE_CHECKING:
    from abaton.codecs.base import CodecKey
    from abaton.codecs.sparse_codec import Indices, Segments, Signs, SparsePayload
    from abaton.layout import Layout, Vector


_COUNT = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class KernelPool:
    """All kernels of one size."""

    size: int  # values per kernel
    segments: tuple[tuple[int, int], ...]  # segments of their tensors

    @property
    def count(self) -> int:
        """Number of convolution kernels in the SSTC pool."""
        return sum(stop - start for start, stop in self.segments) // self.size

    @property
    def width(self) -> int:
        """Bits of a kernel id in SSTC (Sec. IV-A): b_k = 1 + ⌊log2 kernels⌋."""
        return self.count.bit_length()

    def scores(self, update: Vector) -> Vector:
        """Return the summed magnitude of each kernel, by which SSTC selects; it orders equal sizes as the mean does."""
        from abaton.kernels.vector_ops import block_magnitudes

        return np.concatenate(
            [block_magnitudes(update[start:stop], self.size) for start, stop in self.segments]
        )

    def kernel_segments(self, ids: Indices) -> Segments:
        """Return the segments of SSTC's selected kernels in the flat vector."""
        from abaton.kernels.vector_ops import block_segments

        return block_segments(ids, self.size, np.array(self.segments))


def write_maps(
    indices: Indices, values: Indices, pool: KernelPool, ids: Indices, segments: Segments, coding: str
) -> bytes:
    """Write an SSTC pool: the number of kernels, their ids, and a map of signs for each."""
    from abaton.kernels.bit_packing import write_kernels, write_trits
    from abaton.kernels.vector_ops import segment_values

    compact_indices, signs = segment_values(indices, values, segments)
    header = _COUNT.pack(len(ids))
    if coding == "fixed":
        return header + write_kernels(ids, pool.width, pool.size, compact_indices, signs).tobytes()
    kernel_ids = index_coding.write_golomb(ids, np.zeros(len(ids), np.bool_), pool.count, signed=False)
    return header + kernel_ids + write_trits(compact_indices, signs, len(ids) * pool.size).tobytes()


def read_maps(
    body: memoryview, pool: KernelPool, max_kernels: int, max_entries: int, coding: str
) -> tuple[Indices, Signs, memoryview]:
    """Read an SSTC pool: at most ``max_entries`` indices, whether each is negative, and the remaining bytes."""
    from abaton.kernels.bit_packing import field_bytes, read_kernels, read_trits
    from abaton.kernels.vector_ops import expand_indices

    if len(body) < _COUNT.size or (count := _COUNT.unpack_from(body)[0]) > max_kernels:
        raise payload_format.payload_error(f"its number of kernels is missing or above {max_kernels:,}")
    body = body[_COUNT.size :]
    max_entries = min(max_entries, count * pool.size)
    compact_indices, negative = np.empty(max_entries, np.uint32), np.empty(max_entries, np.bool_)
    if coding == "fixed":
        byte_count, ids = field_bytes(count, pool.width + 2 * pool.size), np.empty(count, np.uint32)
        maps = np.frombuffer(body[:byte_count], np.uint8)
        entries = read_kernels(maps, pool.width, pool.size, pool.count, ids, compact_indices, negative)
    else:
        ids, _, body = index_coding.read_golomb(body, count, pool.count, signed=False)
        byte_count = -(-count * pool.size // 5)
        entries = read_trits(
            np.frombuffer(body[:byte_count], np.uint8), count * pool.size, compact_indices, negative
        )
    if entries < 0:
        raise payload_format.payload_error("its map of signs is not a valid code")
    return (
        expand_indices(compact_indices[:entries], pool.kernel_segments(ids)),
        negative[:entries],
        body[byte_count:],
    )


CODINGS, BIASES = ("trit", "fixed", "context"), ("fp16", "raw")
_HEADER = struct.Struct("<fI")


@dataclass(frozen=True, slots=True)
class Sstc(sparse_codec.SparseCodec):
    """SSTC codec: the largest changes of the most changed kernels, all with one magnitude.

    Args:
        sparsity: Fraction of weights that is sent.
        kernels: Fraction of convolution kernels that may contain them.
        coding: ``fixed`` is the paper's encoding, ``trit`` has five signs in a byte, ``context`` is the smallest.
        biases: Encoding of biases and norms: half floats, or raw as in the paper.
    """

    sparsity: float
    kernels: float
    coding: str = "trit"
    biases: str = "fp16"

    name: ClassVar[str] = "sstc"
    code: ClassVar[int] = 4

    def __post_init__(self) -> None:
        check_number("sparsity", self.sparsity, 0, 1, exclusive=True)
        check_number("kernels", self.kernels, 0, 1, exclusive=True)
        check_choice("coding", self.coding, CODINGS)
        check_choice("biases", self.biases, BIASES)

    @property
    def flags(self) -> int:
        """Settings of SSTC that a decoder of the payload must share."""
        return CODINGS.index(self.coding) | BIASES.index(self.biases) << 4

    def encode(self, update: Vector, layout: Layout, key: CodecKey) -> bytes:
        """Encode with SSTC: the selected kernels and entries, μ, and the biases."""
        from abaton.kernels.topk import top_k
        from abaton.kernels.vector_ops import segment_values

        update, sparse_layout = sparse_codec.check_fits(update, layout), sparse_codec.split_layout(layout)
        pools, dense_weights = kernel_pools(layout)
        selected = [self._select_kernels(update, pool, layout) for pool in pools]
        segments_by_pool = [pool.kernel_segments(ids) for pool, ids in zip(pools, selected, strict=True)]
        competing = _ascending([*segments_by_pool, dense_weights])
        # Kernels of zeros are not listed but count among the k, as in the paper.
        k = min(
            self.entry_limit(sparse_layout.size),
            sum(self.kernel_limit(p) * p.size for p in pools) + _total(dense_weights),
        )
        indices, values, total = top_k(update.view(np.uint32), competing, min(k, _total(competing)))
        if not math.isfinite(total):
            layout.check(update, label="update")
        body = [_HEADER.pack(total / k if k else 0.0, len(indices))]
        if self.coding == "context":
            compact_indices, negative = segment_values(indices, values, sparse_layout.segments())
            body.append(
                index_coding.write_context(compact_indices, negative, sparse_layout.weights)
                if sparse_layout.weights
                else b""
            )
        else:
            for pool, ids, kernel_segments in zip(pools, selected, segments_by_pool, strict=True):
                body.append(write_maps(indices, values, pool, ids, kernel_segments, self.coding))
            body.append(self._write_dense_weights(indices, values, dense_weights))
        body.append(sparse_codec.write_dense_part(update, sparse_layout, self.biases, layout))
        return payload_format.pack(self.code, layout, *body, flags=self.flags)

    def open_payload(self, payload: bytes, layout: Layout) -> SparsePayload:
        """Return the entries of an SSTC payload, checked against the layout and the settings."""
        from abaton.kernels.vector_ops import expand_indices

        header, sparse_layout = (
            payload_format.unpack(payload, self.code, layout, flags=self.flags),
            sparse_codec.split_layout(layout),
        )
        dense_start = len(header.body) - sparse_codec.dense_part_bytes(sparse_layout, self.biases)
        if header.flags != self.flags or dense_start < _HEADER.size:
            raise payload_format.payload_error("it is too short or has other settings")
        scale, count = _HEADER.unpack_from(header.body)
        sparse_codec.check_scale(scale)
        if count > self.entry_limit(sparse_layout.size):
            raise payload_format.payload_error(
                f"it has {count:,} entries, {self.entry_limit(sparse_layout.size):,} are allowed"
            )
        dense_part = sparse_codec.read_dense_part(header.body[dense_start:], sparse_layout, self.biases)
        body, pools, dense_weights = header.body[_HEADER.size : dense_start], *kernel_pools(layout)
        entries: list[tuple[Indices, Signs]] = [(np.zeros(0, np.uint32), np.zeros(0, np.bool_))]
        if self.coding == "context" and sparse_layout.weights:
            compact_indices, negative, _ = index_coding.read_context(body, count, sparse_layout.weights)
            entries.append((expand_indices(compact_indices, sparse_layout.segments()), negative))
        elif self.coding != "context":
            for pool in pools:
                indices, negative, body = read_maps(body, pool, self.kernel_limit(pool), count, self.coding)
                entries.append((indices, negative))
                count -= len(indices)
            entries.append(self._read_dense_weights(body, count, dense_weights))
        indices, negative = (np.concatenate(arrays) for arrays in zip(*entries, strict=True))
        mu = np.float32(scale)
        return sparse_codec.SparsePayload(indices, np.where(negative, -mu, mu), dense_part, sparse_layout)

    def entry_limit(self, weight_count: int) -> int:
        """Return the number of entries that SSTC sends: k of Algorithm 1, counted on all weights."""
        k = sparse_codec.exact_fraction(self.sparsity, weight_count)
        return math.ceil(k) if self.kernels == 1 else round(k)

    def kernel_limit(self, pool: KernelPool) -> int:
        """Return the number of kernels of a pool that SSTC selects."""
        return max(1, round(sparse_codec.exact_fraction(self.kernels, pool.count)))

    def _select_kernels(self, update: Vector, pool: KernelPool, layout: Layout) -> Indices:
        """Select SSTC's kernels: the largest mean magnitudes, ties by lowest id, without kernels of zeros."""
        from abaton.kernels.topk import top_k

        all_kernels = np.array([[0, pool.count]], np.int64)
        ids, _, total = top_k(pool.scores(update).view(np.uint32), all_kernels, self.kernel_limit(pool))
        if math.isfinite(total):
            return ids
        layout.check(update, label="update")
        # The values are finite but a sum overflows: compare scaled values. If all kernels are selected, their order
        # is irrelevant, and no small value may become 0.
        scaled_update = np.clip(update, -1, 1) if self.kernels == 1 else update * np.float32(2.0**-64)
        scaled_scores = pool.scores(scaled_update)
        return top_k(scaled_scores.view(np.uint32), all_kernels, self.kernel_limit(pool))[0]

    def _write_dense_weights(
        self, indices: Indices, values: Indices, dense_weights: sparse_codec.Segments
    ) -> bytes:
        from abaton.kernels.vector_ops import segment_values

        write = index_coding.write_golomb if self.coding == "trit" else index_coding.write_fixed
        return write(*segment_values(indices, values, dense_weights), _total(dense_weights))

    def _read_dense_weights(
        self, body: memoryview, count: int, dense_weights: sparse_codec.Segments
    ) -> tuple[Indices, Signs]:
        from abaton.kernels.vector_ops import expand_indices

        read = index_coding.read_golomb if self.coding == "trit" else index_coding.read_fixed
        compact_indices, negative, body = read(body, count, _total(dense_weights))
        payload_format.check_body_size(body, 0)
        return expand_indices(compact_indices, dense_weights), negative


@lru_cache(maxsize=64)
def kernel_pools(layout: Layout) -> tuple[tuple[KernelPool, ...], sparse_codec.Segments]:
    """Return SSTC's kernel pools, convolutions by kernel size, and the segments of the dense weights."""
    pools: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    dense_weights: list[tuple[int, int]] = []
    for weight in sparse_codec.split_layout(layout).weights:
        kernel = weight.tensor.shape[2:]
        if weight.tensor.role is TensorRole.CONV and math.prod(kernel) > 1:
            pools.setdefault(kernel, []).append((weight.start, weight.stop))
        else:
            dense_weights.append((weight.start, weight.stop))
    pool_list = tuple(KernelPool(math.prod(kernel), tuple(segments)) for kernel, segments in pools.items())
    return pool_list, np.array(dense_weights, np.int64).reshape(-1, 2)


def _total(segments: sparse_codec.Segments) -> int:
    return int((segments[:, 1] - segments[:, 0]).sum())


def _ascending(segment_lists: list[sparse_codec.Segments]) -> sparse_codec.Segments:
    joined = np.concatenate(segment_lists)
    starts = joined[:, 0]
    return joined if (starts[1:] > starts[:-1]).all() else joined[np.argsort(starts, kind="stable")]
