"""Base of the sparse codecs: sparsified tensors, the dense part, and sums by entries."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import payload_format
from abaton.codecs.base import DecodedSum, SpecifiedComponent
from abaton.codecs.float_formats import check_finite_update, from_half, to_half
from abaton.layout import Layout, Tensor, TensorRole, Vector

if TYPE_CHECKING:
    from abaton.codecs.base import CodecKey

Indices = NDArray[np.uint32]
Signs = NDArray[np.bool_]
Segments = NDArray[np.int64]

WEIGHT_ROLES = frozenset({TensorRole.CONV, TensorRole.DENSE, TensorRole.EMBEDDING})


@dataclass(frozen=True, slots=True)
class TensorSegment:
    """Segment of the flat vector of one tensor, with its shape as a matrix (outputs, inputs)."""

    tensor: Tensor
    start: int
    stop: int

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns of a sparsified tensor; a vector is one row."""
        shape = self.tensor.shape
        return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))


@dataclass(frozen=True)
class SparseLayout:
    """Layout in two parts: weights, which are sparsified, and the dense part (biases, norms), which is not."""

    weights: tuple[TensorSegment, ...]
    dense_part: tuple[TensorSegment, ...]

    def segments(self) -> Segments:
        """Return the segments of the sparsified weights, as an array for the kernels."""
        return np.array([(w.start, w.stop) for w in self.weights], np.int64).reshape(-1, 2)

    @property
    def size(self) -> int:
        """Number of sparsified weights."""
        return sum(w.stop - w.start for w in self.weights)

    @property
    def dense_part_size(self) -> int:
        """Number of values in the dense part, which is not sparsified."""
        return sum(r.stop - r.start for r in self.dense_part)


@lru_cache(maxsize=64)
def split_layout(layout: Layout, *, all_tensors: bool = False) -> SparseLayout:
    """Split a layout into sparsified weights and dense part; with ``all_tensors`` all tensors are weights."""
    weights: list[TensorSegment] = []
    dense_part: list[TensorSegment] = []
    for tensor in layout:
        if tensor.size:
            position = layout.slice(tensor.name)
            segments = weights if all_tensors or tensor.role in WEIGHT_ROLES else dense_part
            segments.append(TensorSegment(tensor, position.start, position.stop))
    return SparseLayout(tuple(weights), tuple(dense_part))


@lru_cache(maxsize=256)
def exact_fraction(fraction: float, count: int) -> Fraction:
    """Return a sparsity as an exact fraction of a count: 0.07 of 100 is 7, not 7.000000000000001."""
    return Fraction(repr(float(fraction))) * count


def check_fits(update: Vector, layout: Layout) -> Vector:
    """Return an update to sparsify as a contiguous vector if it fits the layout; finiteness is checked later."""
    fits = isinstance(update, np.ndarray) and update.dtype == np.float32 and update.shape == (layout.size,)
    return np.ascontiguousarray(update if fits else layout.check(update, label="update"))


def write_dense_part(update: Vector, sparse_layout: SparseLayout, encoding: str, layout: Layout) -> bytes:
    """Return the dense part, the values that are not sparsified, raw or as half floats."""
    if not sparse_layout.dense_part:
        return b""
    values = np.concatenate([update[r.start : r.stop] for r in sparse_layout.dense_part])
    if not np.isfinite(values).all():
        layout.check(update, label="update")
    return values.astype("<f4").tobytes() if encoding == "raw" else to_half(values)


def dense_part_bytes(sparse_layout: SparseLayout, encoding: str) -> int:
    """Return the bytes of the dense part in a sparse payload."""
    if not sparse_layout.dense_part:
        return 0
    return 4 * sparse_layout.dense_part_size if encoding == "raw" else 2 + 2 * sparse_layout.dense_part_size


def read_dense_part(body: memoryview, sparse_layout: SparseLayout, encoding: str) -> Vector:
    """Return the values of the dense part of a sparse payload."""
    payload_format.check_body_size(body, dense_part_bytes(sparse_layout, encoding))
    if not sparse_layout.dense_part:
        return np.zeros(0, np.float32)
    if encoding == "raw":
        return check_finite_update(np.frombuffer(body, "<f4").astype(np.float32))
    return from_half(body, sparse_layout.dense_part_size)


def check_scale(scale: float) -> float:
    """Return the common magnitude of a sparse payload's entries; raise an error if negative or not finite."""
    if not math.isfinite(scale) or scale < 0:
        raise payload_format.payload_error(f"its scale is {scale}")
    return scale


@dataclass(frozen=True, slots=True)
class SparsePayload:
    """Sparse update: its entries and the dense part."""

    indices: Indices
    values: Vector
    dense_part: Vector
    sparse_layout: SparseLayout

    def to_vector(self, layout: Layout) -> Vector:
        """Return a sparse update as a full vector."""
        vector = layout.zeros()
        vector[self.indices] = self.values
        for segment, values in self._dense_segments():
            vector[segment.start : segment.stop] = values
        return vector

    def add_to(self, total: NDArray[np.float64], weight: float) -> None:
        """Add a sparse update to a sum, in time proportional to its entries."""
        from abaton.kernels.vector_ops import scatter_add

        scatter_add(total, self.indices, self.values, weight)
        for segment, values in self._dense_segments():
            total[segment.start : segment.stop] += weight * values.astype(np.float64)

    def _dense_segments(self) -> list[tuple[TensorSegment, Vector]]:
        ends = np.cumsum([r.stop - r.start for r in self.sparse_layout.dense_part])
        return (
            list(zip(self.sparse_layout.dense_part, np.split(self.dense_part, ends[:-1]), strict=True))
            if len(ends)
            else []
        )


@dataclass(frozen=True, slots=True)
class SparseCodec(SpecifiedComponent, ABC):
    """Codec whose payloads are summed without a full vector per learner."""

    code: ClassVar[int]
    is_unbiased: ClassVar[bool] = False

    @abstractmethod
    def encode(self, update: Vector, layout: Layout, key: CodecKey) -> bytes:
        """Encode the update as a sparse payload (base class)."""

    @abstractmethod
    def open_payload(self, payload: bytes, layout: Layout) -> SparsePayload:
        """Return the entries of a sparse payload, checked against layout and settings (base class)."""

    def decode(self, payload: bytes, layout: Layout, key: CodecKey) -> Vector:
        """Decode a sparse payload to the full ternary update."""
        return self.open_payload(payload, layout).to_vector(layout)

    def accumulator(self, layout: Layout, round_key: bytes) -> SparseSum:
        """Return an empty sum that adds the entries of sparse updates only."""
        return SparseSum(self, layout, round_key)


class SparseSum(DecodedSum):
    """Sum that adds entries at their indices: the cost depends on the entries sent, not on the size of the model."""

    def __init__(self, codec: SparseCodec, layout: Layout, round_key: bytes) -> None:
        super().__init__(codec, layout, round_key)
        self._open_payload = codec.open_payload

    def _add_decoded(self, payload: bytes, weight: float, key: CodecKey) -> None:
        self._open_payload(payload, self.layout).add_to(self.sum, weight)
