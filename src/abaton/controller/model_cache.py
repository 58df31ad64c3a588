"""Latest model of each learner: in memory up to a limit, the others in a scratch file.

Models are stored in numbered slots of equal size. Slots in memory are rows of arrays of 64 MiB: separate arrays of a
few megabytes use small memory pages, which makes each commit slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from abaton.errors import SettingsError
from abaton.layout import Vector

_SLAB_BYTES = 64 * 2**20


class ModelSlots(Protocol):
    """Numbered slots for models."""

    def read(self, slot: int) -> Vector:
        """Return the model in a slot of the cache (interface); the next read may overwrite it."""

    def write(self, slot: int, model: Vector) -> None:
        """Store a model in a slot of the cache (interface)."""


class InMemorySlots:
    """Slots in memory; `read` returns a view."""

    def __init__(self, size: int) -> None:
        self._size, self._rows = size, max(1, _SLAB_BYTES // max(4 * size, 1))
        self._slabs: list[Vector] = []

    def read(self, slot: int) -> Vector:
        """Return a writable view of an in-memory slot of the model cache."""
        slab, row = divmod(slot, self._rows)
        while slab >= len(self._slabs):  # zero pages are not allocated before the first write
            self._slabs.append(np.zeros((self._rows, self._size), np.float32))
        row_view: Vector = self._slabs[slab][row]
        return row_view

    def write(self, slot: int, model: Vector) -> None:
        """Store a model in memory in its cache slot, unless it is the view of that slot."""
        row_view = self.read(slot)
        if not np.may_share_memory(row_view, model):
            row_view[:] = model


class ModelCache:
    """Latest model of each learner by the learner's name.

    Args:
        size: Number of parameters of a model.
        limit: Bytes of models that stay in memory; all of them if None.
        overflow: Slots for the other models.

    >>> cache = ModelCache(2)
    >>> cache.put("north", np.float32([1, 2]))
    >>> cache.get("north").tolist(), "south" in cache
    ([1.0, 2.0], False)
    """

    def __init__(self, size: int, limit: int | None = None, overflow: ModelSlots | None = None) -> None:
        if limit is not None and (limit < 0 or overflow is None):
            raise SettingsError(
                f"the memory limit of models is {limit} bytes",
                where="model cache",
                remedy="use 0 or more bytes, and give slots for the other models",
            )
        self._memory, self._overflow = InMemorySlots(size), overflow
        self._inside = None if limit is None else limit // max(4 * size, 1)
        self._slots: dict[str, int] = {}
        self._free: list[int] = []

    def get(self, learner: str) -> Vector:
        """Return a learner's cached model; it may be changed until `put`, and is invalid after the next `get`."""
        slots, slot = self._locate(self._slots[learner])
        return slots.read(slot)

    def put(self, learner: str, model: Vector) -> None:
        """Cache a learner's latest model, replacing the previous one."""
        if learner not in self._slots:
            self._slots[learner] = self._free.pop() if self._free else len(self._slots)
        slots, slot = self._locate(self._slots[learner])
        slots.write(slot, model)

    def drop(self, learner: str) -> None:
        """Remove a learner's model from the cache and free its slot."""
        self._free.append(self._slots.pop(learner))

    def _locate(self, slot: int) -> tuple[ModelSlots, int]:
        if self._inside is None or slot < self._inside:
            return self._memory, slot
        assert self._overflow is not None
        return self._overflow, slot - self._inside

    def __contains__(self, learner: object) -> bool:
        return learner in self._slots

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)
