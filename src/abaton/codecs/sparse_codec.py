"""What the sparse codecs share: which tensors are sparsified, how the others travel, and sums by entries."""

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
from abaton.codecs.base import DecodedSum, Written
from abaton.codecs.float_formats import finite, from_half, to_half
from abaton.errors import PayloadError
from abaton.layout import Layout, Role, Tensor, Vector

if TYPE_CHECKING:
    from abaton.codecs.base import Key

Places = NDArray[np.uint32]
Signs = NDArray[np.bool_]
Stretches = NDArray[np.int64]

WEIGHTS = frozenset({Role.CONV, Role.DENSE, Role.EMBEDDING})


@dataclass(frozen=True, slots=True)
class Stretch:
    """One sparsified tensor: where it lies, and its form as a matrix (outputs, inputs)."""

    tensor: Tensor
    start: int
    stop: int

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns; a vector is one row."""
        shape = self.tensor.shape
        return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))


@dataclass(frozen=True)
class Parts:
    """A layout split in two: weights that are sparsified, and the rest (biases, norms) that is not."""

    weights: tuple[Stretch, ...]
    rest: tuple[Stretch, ...]

    def stretches(self) -> Stretches:
        """The weights' stretches as an array for the kernels."""
        return np.array([(w.start, w.stop) for w in self.weights], np.int64).reshape(-1, 2)

    @property
    def size(self) -> int:
        """How many weights there are."""
        return sum(w.stop - w.start for w in self.weights)

    @property
    def rest_size(self) -> int:
        """How many numbers are not sparsified."""
        return sum(r.stop - r.start for r in self.rest)


@lru_cache(maxsize=64)
def split(layout: Layout, *, all_tensors: bool = False) -> Parts:
    """The weights of a layout and the rest; with ``all_tensors`` biases and norms count as weights."""
    weights: list[Stretch] = []
    rest: list[Stretch] = []
    for tensor in layout:
        if tensor.size:
            place = layout.slice(tensor.name)
            chosen = weights if all_tensors or tensor.role in WEIGHTS else rest
            chosen.append(Stretch(tensor, place.start, place.stop))
    return Parts(tuple(weights), tuple(rest))


@lru_cache(maxsize=256)
def share(part: float, count: int) -> Fraction:
    """A share of a count, exactly: 0.07 of 100 is 7, not 7.000000000000001."""
    return Fraction(repr(float(part))) * count


def check_fits(update: Vector, layout: Layout) -> Vector:
    """The update, contiguous, if it fits; whether it is finite shows later, at no extra pass."""
    fits = isinstance(update, np.ndarray) and update.dtype == np.float32 and update.shape == (layout.size,)
    return np.ascontiguousarray(update if fits else layout.check(update, whose="update"))


def write_rest(update: Vector, parts: Parts, form: str, layout: Layout) -> bytes:
    """The numbers that are not sparsified, raw or as half floats."""
    if not parts.rest:
        return b""
    values = np.concatenate([update[r.start : r.stop] for r in parts.rest])
    if not np.isfinite(values).all():
        layout.check(update, whose="update")
    return values.astype("<f4").tobytes() if form == "raw" else to_half(values)


def rest_bytes(parts: Parts, form: str) -> int:
    """How long the rest is on the wire."""
    if not parts.rest:
        return 0
    return 4 * parts.rest_size if form == "raw" else 2 + 2 * parts.rest_size


def read_rest(body: memoryview, parts: Parts, form: str) -> Vector:
    """The numbers that are not sparsified."""
    payload_format.exact(body, rest_bytes(parts, form))
    if not parts.rest:
        return np.zeros(0, np.float32)
    if form == "raw":
        return finite(np.frombuffer(body, "<f4").astype(np.float32))
    return from_half(body, parts.rest_size)


def check_scale(scale: float) -> float:
    """The size of all entries, if it can be one."""
    if not math.isfinite(scale) or scale < 0:
        raise PayloadError("the payload is broken: its scale is not usable", remedy="send it again")
    return scale


@dataclass(frozen=True, slots=True)
class Sparse:
    """A sparse update: some entries, and the dense rest."""

    places: Places
    values: Vector
    rest: Vector
    parts: Parts

    def dense(self, layout: Layout) -> Vector:
        """The whole update."""
        vector = layout.zeros()
        vector[self.places] = self.values
        for stretch, values in self._rest():
            vector[stretch.start : stretch.stop] = values
        return vector

    def add_to(self, total: NDArray[np.float64], weight: float) -> None:
        """Add it to a sum, in time proportional to its entries."""
        from abaton.kernels.vector_ops import add_entries

        add_entries(total, self.places, self.values, weight)
        for stretch, values in self._rest():
            total[stretch.start : stretch.stop] += weight * values.astype(np.float64)

    def _rest(self) -> list[tuple[Stretch, Vector]]:
        ends = np.cumsum([r.stop - r.start for r in self.parts.rest])
        return list(zip(self.parts.rest, np.split(self.rest, ends[:-1]), strict=True)) if len(ends) else []


@dataclass(frozen=True, slots=True)
class SparseCodec(Written, ABC):
    """A codec that can open a payload without making the whole vector."""

    code: ClassVar[int]
    unbiased: ClassVar[bool] = False

    @abstractmethod
    def encode(self, update: Vector, layout: Layout, key: Key) -> bytes:
        """The update as a payload."""

    @abstractmethod
    def open(self, payload: bytes, layout: Layout) -> Sparse:
        """The entries of a payload; everything is checked against the layout and the settings first."""

    def decode(self, payload: bytes, layout: Layout, key: Key) -> Vector:
        """The ternary update."""
        return self.open(payload, layout).dense(layout)

    def accumulator(self, layout: Layout, round_key: bytes) -> SparseSum:
        """A sum that adds entries only."""
        return SparseSum(self, layout, round_key)


class SparseSum(DecodedSum):
    """Adds entries where they belong: a round costs what was sent, not the model's size for each learner."""

    def __init__(self, codec: SparseCodec, layout: Layout, round_key: bytes) -> None:
        super().__init__(codec, layout, round_key)
        self._open = codec.open

    def _include(self, payload: bytes, weight: float, key: Key) -> None:
        self._open(payload, self.layout).add_to(self.sum, weight)
