"""Models as files named by the digest of their content: written once, whole or not at all.

A scratch file of models in numbered slots, for what does not fit in memory.

The file has no name: it disappears with the process, also after a crash, and a resumed run fills a new one. Slots are
read and written at their place, whole, without mapping the file into memory.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray

from abaton.atomic_files import replacing, writing
from abaton.errors import StoreError

Vector = NDArray[np.float32]


def digest_of(data: bytes | memoryview) -> str:
    """The name of some content: 64 hexadecimal digits of its BLAKE2b digest.

    >>> digest_of(b"")[:12]
    '0e5751c026e5'
    """
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def model_digest(vector: Vector) -> str:
    """The name of a model: the digest of its numbers as little-endian float32."""
    return digest_of(np.ascontiguousarray(vector, dtype="<f4").data.cast("B") if vector.size else b"")


class Models:
    """Models in one folder, as safetensors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, vector: Vector, layout_digest: str) -> str:
        """Keep a model and return its name."""
        from safetensors.numpy import save

        digest = model_digest(vector)
        path = self.path(digest)
        if not path.exists():
            named = {"model": np.ascontiguousarray(vector)}
            self._write(path, save(named, metadata={"layout": layout_digest}))
        return digest

    def get(self, digest: str) -> Vector:
        """A model by its name; a file that does not hold what its name says is refused."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        path = self.path(digest)
        try:
            vector: Vector = load(self._read(path))["model"]
        except (SafetensorError, KeyError) as error:
            raise damaged(path) from error
        if model_digest(vector) != digest:
            raise damaged(path)
        return vector

    def path(self, digest: str) -> Path:
        """Where a model lies, or would lie."""
        return self.folder / f"{digest}.safetensors"

    def _read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise StoreError(
                "a stored file is missing",
                where=str(path),
                remedy="it may have been pruned; take a later version, restore it from a backup, or start a new run",
            ) from None
        except OSError as error:
            raise StoreError(
                f"cannot read: {error.strerror}", where=str(path), remedy="check the disk"
            ) from error

    def _write(self, path: Path, data: bytes) -> None:
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            # Not waited for: what a power cut damages is found by its digest.
            with replacing(path, sync=False) as begun, begun.open("xb") as file:
                file.write(data)


def damaged(path: Path) -> StoreError:
    """The error for a file whose content is not what its name says."""
    return StoreError(
        "a stored file is damaged",
        where=str(path),
        remedy="restore it from a backup, or delete it and start a new run",
    )


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
