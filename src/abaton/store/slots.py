"""A scratch file of models in numbered slots, for what does not fit in memory.

The file has no name: it disappears with the process, also after a crash, and a resumed run fills a new one. Slots are
read and written at their place, whole, without mapping the file into memory.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray

from abaton.store.blobs import damaged, writing

Vector = NDArray[np.float32]


class SlotFile:
    """Models of one size in a file that is made when the first of them comes.

    Args:
        folder: on which disk.
        size: how many numbers a model has.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._bytes = folder, 4 * size
        self._buffer: Vector = np.empty(size, np.float32)
        self._file: IO[bytes] | None = None

    def read(self, slot: int) -> Vector:
        """The model in a slot; the next read overwrites it."""
        assert self._file is not None, "a slot is written before it is read"
        view = self._buffer.data.cast("B")
        if os.preadv(self._file.fileno(), [view], slot * self._bytes) != self._bytes:
            raise damaged(self._folder)
        return self._buffer

    def write(self, slot: int, model: Vector) -> None:
        """Write a model to its slot."""
        with writing(self._folder):
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - closed in close
            view = np.ascontiguousarray(model).data.cast("B")
            done = 0
            while done < self._bytes:
                done += os.pwrite(self._file.fileno(), view[done:], slot * self._bytes + done)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()
