"""Where the newest model of each learner lies: in memory up to a limit, beyond it wherever it is told.

Models lie in numbered slots of the same size. Slots in memory are rows of a few large arrays: separate arrays
cost more memory, and more time to read, since only large arrays lie on large pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from abaton.errors import SettingsError
from abaton.kernels import Vector

_SLAB = 64 * 2**20


class Slots(Protocol):
    """Numbered places for models."""

    def read(self, slot: int) -> Vector:
        """The model there; it may be overwritten by the next read."""

    def write(self, slot: int, model: Vector) -> None:
        """Keep a model there."""


class Memory:
    """Slots in memory; a read gives the place itself."""

    def __init__(self, size: int) -> None:
        self._size, self._rows = size, max(1, _SLAB // max(4 * size, 1))
        self._slabs: list[Vector] = []

    def read(self, slot: int) -> Vector:
        """The place itself, to be read and written."""
        slab, row = divmod(slot, self._rows)
        while slab >= len(self._slabs):  # memory that nobody has written to is not taken from the system
            self._slabs.append(np.zeros((self._rows, self._size), np.float32))
        place: Vector = self._slabs[slab][row]
        return place

    def write(self, slot: int, model: Vector) -> None:
        """Keep a model, unless it was changed in its place."""
        place = self.read(slot)
        if not np.may_share_memory(place, model):
            place[:] = model


class Shelf:
    """Each learner's newest model by the learner's name.

    Args:
        size: how many numbers a model has.
        limit: how many bytes of models stay in memory; all of them if not given.
        overflow: where the others go.

    >>> shelf = Shelf(2)
    >>> shelf.put("north", np.float32([1, 2]))
    >>> shelf.get("north").tolist(), "south" in shelf
    ([1.0, 2.0], False)
    """

    def __init__(self, size: int, limit: int | None = None, overflow: Slots | None = None) -> None:
        if limit is not None and (limit < 0 or overflow is None):
            raise SettingsError(
                f"the limit of models in memory is {limit}",
                where="shelf",
                remedy="use 0 or more bytes, and say where the others go",
            )
        self._memory, self._overflow = Memory(size), overflow
        self._inside = None if limit is None else limit // max(4 * size, 1)
        self._slots: dict[str, int] = {}
        self._free: list[int] = []

    def get(self, learner: str) -> Vector:
        """A learner's model; it may be changed until it is put back, and may be gone after the next `get`."""
        slots, slot = self._place(self._slots[learner])
        return slots.read(slot)

    def put(self, learner: str, model: Vector) -> None:
        """Keep a learner's model in place of the former one."""
        if learner not in self._slots:
            self._slots[learner] = self._free.pop() if self._free else len(self._slots)
        slots, slot = self._place(self._slots[learner])
        slots.write(slot, model)

    def drop(self, learner: str) -> None:
        """Forget a learner's model; its place is used again."""
        self._free.append(self._slots.pop(learner))

    def _place(self, slot: int) -> tuple[Slots, int]:
        if self._inside is None or slot < self._inside:
            return self._memory, slot
        assert self._overflow is not None
        return self._overflow, slot - self._inside

    def __contains__(self, learner: object) -> bool:
        return learner in self._slots

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)
