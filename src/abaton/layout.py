"""Parameter layout: which slice of a model's flat vector is which tensor.

Invariants:
(1) tensors are contiguous in the order given, each in C order;
(2) the digest depends only on names, shapes, roles and order;
(3) a view shares memory with the vector;
(4) trained tensors come first, then statistics, then frozen tensors.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import LayoutError

Vector = NDArray[np.float32]


class TensorRole(StrEnum):
    """Role of a tensor in its model; codecs treat the roles differently.

    All but the last two are trained by gradients. A `STATISTIC` is computed during training, such as the running
    mean and variance of BatchNorm: it is averaged over learners and never compressed. A `FROZEN` tensor never changes
    and is not part of updates.
    """

    CONV = "conv"
    DENSE = "dense"
    BIAS = "bias"
    NORM = "norm"
    EMBEDDING = "embedding"
    OTHER = "other"
    STATISTIC = "statistic"
    FROZEN = "frozen"


_ORDER = {TensorRole.STATISTIC: 1, TensorRole.FROZEN: 2}  # all other roles are trained: 0


@dataclass(frozen=True, slots=True)
class Tensor:
    """One named array of a model.

    >>> Tensor("conv1.weight", (32, 1, 5, 5), TensorRole.CONV).size
    800
    """

    name: str
    shape: tuple[int, ...]
    role: TensorRole

    def __post_init__(self) -> None:
        if not self.name or any(c in self.name for c in "\t\n\r"):
            raise LayoutError(
                f"tensor name {self.name!r} is empty or contains a tab or line break",
                remedy="rename the tensor",
            )
        if any(n < 0 for n in self.shape):
            raise LayoutError(
                f"tensor '{self.name}' has a negative dimension {self.shape}", remedy="check its shape"
            )

    @property
    def size(self) -> int:
        """Number of values of a tensor in the layout."""
        return math.prod(self.shape)


class Layout:
    """Ordered tensors of a model in one flat float32 vector.

    >>> layout = Layout([Tensor("weight", (2, 3), TensorRole.DENSE), Tensor("bias", (2,), TensorRole.BIAS)])
    >>> vector = np.arange(8, dtype=np.float32)
    >>> layout.size, layout.views(vector)["bias"].tolist()
    (8, [6.0, 7.0])
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors = tuple(tensors)
        self._slices: dict[str, slice] = {}
        end = 0
        for tensor in self.tensors:
            if tensor.name in self._slices:
                raise LayoutError(
                    f"two tensors have the name '{tensor.name}'", remedy="give each tensor its own name"
                )
            self._slices[tensor.name] = slice(end, end + tensor.size)
            end += tensor.size
        self.size = end
        order = [_ORDER.get(tensor.role, 0) for tensor in self.tensors]
        if order != sorted(order):
            raise LayoutError(
                "a trained tensor comes after statistics or frozen tensors",
                remedy="order the tensors: trained, statistics, frozen",
            )

    @cached_property
    def digest(self) -> str:
        """Digest of the layout: names, shapes, roles and order, as 64 hexadecimal digits."""
        lines = [f"{t.name}\t{'x'.join(map(str, t.shape))}\t{t.role}" for t in self.tensors]
        # frozen: part of the bytes
        return hashlib.blake2b("\n".join(["abaton-layout-1", *lines]).encode(), digest_size=32).hexdigest()

    @cached_property
    def trained(self) -> Layout:
        """Layout of the tensors that are trained by gradients: the first part of the vector."""
        return self._part(0)

    @cached_property
    def statistics(self) -> Layout:
        """Layout of the statistics, which follow the trained tensors in the vector."""
        return self._part(1)

    @property
    def update_size(self) -> int:
        """Number of values of the layout that training may change; the frozen ones follow them."""
        return self.trained.size + self.statistics.size

    def _part(self, order: int) -> Layout:
        tensors = [tensor for tensor in self.tensors if _ORDER.get(tensor.role, 0) == order]
        return self if len(tensors) == len(self.tensors) else Layout(tensors)

    def slice(self, name: str) -> slice:
        """Return the slice of a tensor of the layout in the flat vector."""
        try:
            return self._slices[name]
        except KeyError:
            known = ", ".join(list(self._slices)[:8])
            raise LayoutError(
                f"the model has no tensor '{name}'", remedy=f"use one of its tensors: {known}"
            ) from None

    def view(self, vector: Vector, name: str) -> Vector:
        """Return one tensor of the layout as a view of the vector."""
        shape = next(t.shape for t in self.tensors if t.name == name) if name in self._slices else ()
        return vector[self.slice(name)].reshape(shape)

    def views(self, vector: Vector) -> dict[str, Vector]:
        """Return all tensors of the layout by name as views of the vector."""
        return {t.name: vector[self._slices[t.name]].reshape(t.shape) for t in self.tensors}

    def zeros(self) -> Vector:
        """Return a new vector of zeros with the layout's size."""
        return np.zeros(self.size, dtype=np.float32)

    def check(self, vector: NDArray[Any], *, label: str = "vector") -> Vector:
        """Return the vector if it fits the layout and is finite; otherwise raise an error that names the tensor."""
        if not isinstance(vector, np.ndarray) or vector.ndim != 1 or vector.dtype != np.float32:
            description = (
                f"{vector.dtype}{list(vector.shape)}"
                if isinstance(vector, np.ndarray)
                else type(vector).__name__
            )
            raise LayoutError(
                f"{label} is {description}, not a flat float32 vector",
                remedy="pass a one-dimensional numpy float32 array",
            )
        if vector.size != self.size:
            raise LayoutError(
                f"{label} has {vector.size:,} values, the model has {self.size:,}",
                where=f"layout {self.digest[:12]}",
                remedy="it belongs to another model: use the model and study of the vector",
            )
        # A finite float32 sum of squares proves that all values are finite; `vdot` does not warn.
        if not math.isfinite(np.vdot(vector, vector)) and not np.isfinite(vector).all():
            raise LayoutError(
                f"{label} has a value that is not finite in tensor '{self._first_not_finite(vector)}'",
                remedy="lower the learning rate or clip gradients, and check the data for missing values",
            )
        return vector

    def _first_not_finite(self, vector: Vector) -> str:
        position = int(np.flatnonzero(~np.isfinite(vector))[0])
        return next(t.name for t in self.tensors if position < self._slices[t.name].stop)

    def __len__(self) -> int:
        return len(self.tensors)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.tensors)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.tensors == other.tensors

    def __hash__(self) -> int:
        return hash(self.tensors)

    def __repr__(self) -> str:
        return f"Layout({len(self)} tensors, {self.size:,} values, {self.digest[:12]})"
