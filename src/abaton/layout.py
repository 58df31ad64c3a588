"""The layout: which part of a model's flat vector is which tensor.

Invariants:
(1) tensors lie one after the other without gaps, in the order given, each in C order;
(2) the digest depends on names, shapes, roles and order, and on nothing else;
(3) a view shares memory with the vector: writing to one writes to the other.
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


class Role(StrEnum):
    """What a tensor does in its model; codecs treat the roles differently."""

    CONV = "conv"
    DENSE = "dense"
    BIAS = "bias"
    NORM = "norm"
    EMBEDDING = "embedding"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One named array of a model.

    >>> Tensor("conv1.weight", (32, 1, 5, 5), Role.CONV).size
    800
    """

    name: str
    shape: tuple[int, ...]
    role: Role

    def __post_init__(self) -> None:
        if not self.name or any(c in self.name for c in "\t\n\r"):
            raise LayoutError(
                f"tensor name {self.name!r} is empty or holds a tab or a line break", remedy="rename it"
            )
        if any(n < 0 for n in self.shape):
            raise LayoutError(
                f"tensor '{self.name}' has a negative dimension {self.shape}", remedy="check its shape"
            )

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


class Layout:
    """The ordered tensors of a model, laid over one flat float32 vector.

    >>> layout = Layout([Tensor("weight", (2, 3), Role.DENSE), Tensor("bias", (2,), Role.BIAS)])
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
                    f"two tensors are called '{tensor.name}'", remedy="give each tensor its own name"
                )
            self._slices[tensor.name] = slice(end, end + tensor.size)
            end += tensor.size
        self.size = end

    @cached_property
    def digest(self) -> str:
        """A stable name for this layout: 64 hexadecimal digits."""
        lines = [f"{t.name}\t{'x'.join(map(str, t.shape))}\t{t.role}" for t in self.tensors]
        return hashlib.blake2b("\n".join(["abaton-layout-1", *lines]).encode(), digest_size=32).hexdigest()

    def slice(self, name: str) -> slice:
        """Where a tensor lies in the flat vector."""
        try:
            return self._slices[name]
        except KeyError:
            known = ", ".join(list(self._slices)[:8])
            raise LayoutError(f"the model has no tensor '{name}'", remedy=f"it has {known}") from None

    def view(self, vector: Vector, name: str) -> Vector:
        """One tensor of the vector, sharing its memory."""
        shape = next(t.shape for t in self.tensors if t.name == name) if name in self._slices else ()
        return vector[self.slice(name)].reshape(shape)

    def views(self, vector: Vector) -> dict[str, Vector]:
        """All tensors of the vector by name, sharing its memory."""
        return {t.name: vector[self._slices[t.name]].reshape(t.shape) for t in self.tensors}

    def zeros(self) -> Vector:
        """A new vector of zeros that fits."""
        return np.zeros(self.size, dtype=np.float32)

    def check(self, vector: NDArray[Any], *, whose: str = "vector") -> Vector:
        """The vector itself if it fits and is finite; otherwise an error that names the tensor."""
        if not isinstance(vector, np.ndarray) or vector.ndim != 1 or vector.dtype != np.float32:
            got = (
                f"{vector.dtype}{list(vector.shape)}"
                if isinstance(vector, np.ndarray)
                else type(vector).__name__
            )
            raise LayoutError(
                f"{whose} is {got}, not a flat float32 vector",
                remedy="pass a one-dimensional numpy float32 array",
            )
        if vector.size != self.size:
            raise LayoutError(
                f"{whose} has {vector.size:,} numbers, the model has {self.size:,}",
                where=f"layout {self.digest[:12]}",
                remedy="it was made for another model: use the model and study it belongs to",
            )
        # A float32 sum of squares is finite unless a value is not, or is too large to train with; `vdot` never warns.
        if not math.isfinite(np.vdot(vector, vector)) and not np.isfinite(vector).all():
            raise LayoutError(
                f"{whose} has a value that is not finite in tensor '{self._first_not_finite(vector)}'",
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
        return f"Layout({len(self)} tensors, {self.size:,} numbers, {self.digest[:12]})"
