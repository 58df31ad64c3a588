"""Model files named by the digest of their content, and a scratch file for models that do not fit in memory.

Model files are written atomically. The scratch file is unlinked: it disappears with the process, also after a crash,
and a resumed run fills a new one. Its slots are read and written without mapping the file into memory.
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

from abaton.atomic_files import atomic_write, map_os_errors
from abaton.errors import StoreError

Vector = NDArray[np.float32]


def content_digest(data: bytes | memoryview) -> str:
    """Return the BLAKE2b digest of content, such as a model file, as 64 hexadecimal digits.

    >>> content_digest(b"")[:12]
    '0e5751c026e5'
    """
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def model_digest(vector: Vector) -> str:
    """Return the digest that names a model file: of the parameters as little-endian float32."""
    return content_digest(np.ascontiguousarray(vector, dtype="<f4").data.cast("B") if vector.size else b"")


class ModelFiles:
    """Folder of models as safetensors files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, vector: Vector, layout_digest: str) -> str:
        """Write a model file and return its digest."""
        from safetensors.numpy import save

        digest = model_digest(vector)
        path = self.path(digest)
        if not path.exists():
            named = {"model": np.ascontiguousarray(vector)}
            self._write(path, save(named, metadata={"layout": layout_digest}))
        return digest

    def get(self, digest: str) -> Vector:
        """Read a model file by its digest; raise a `StoreError` if the content does not match."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        path = self.path(digest)
        try:
            vector: Vector = load(self._read(path))["model"]
        except (SafetensorError, KeyError) as error:
            raise corrupt_file_error(path) from error
        if model_digest(vector) != digest:
            raise corrupt_file_error(path)
        return vector

    def path(self, digest: str) -> Path:
        """Return the path of a model's file, which need not exist."""
        return self.folder / f"{digest}.safetensors"

    def _read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise StoreError(
                "a stored file is missing",
                where=str(path),
                remedy="use a later version if it was pruned, restore it from a backup, or start a new run",
            ) from None
        except OSError as error:
            raise StoreError(
                f"cannot read: {error.strerror}", where=str(path), remedy="check the disk"
            ) from error

    def _write(self, path: Path, data: bytes) -> None:
        with map_os_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            # Not synced: damage by a power cut is detected by the digest.
            with atomic_write(path, sync=False) as temporary_path, temporary_path.open("xb") as file:
                file.write(data)


def corrupt_file_error(path: Path) -> StoreError:
    """Return the error for a model or payload file whose content does not match its digest."""
    return StoreError(
        "a stored file is damaged",
        where=str(path),
        remedy="restore it from a backup, or delete it and start a new run",
    )


class ScratchModelFile:
    """Unlinked file of models of equal size, created when the first model is written.

    Args:
        folder: Folder on the disk to use.
        size: Number of parameters of a model.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._bytes = folder, 4 * size
        self._buffer: Vector = np.empty(size, np.float32)
        self._file: IO[bytes] | None = None

    def read(self, slot: int) -> Vector:
        """Read the model in a slot of the scratch file; the next read overwrites it."""
        assert self._file is not None, "a slot is written before it is read"
        view = self._buffer.data.cast("B")
        if os.preadv(self._file.fileno(), [view], slot * self._bytes) != self._bytes:
            raise corrupt_file_error(self._folder)
        return self._buffer

    def write(self, slot: int, model: Vector) -> None:
        """Write a model to its slot of the scratch file."""
        with map_os_errors(self._folder):
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - closed in close
            view = np.ascontiguousarray(model).data.cast("B")
            done = 0
            while done < self._bytes:
                done += os.pwrite(self._file.fileno(), view[done:], slot * self._bytes + done)

    def close(self) -> None:
        """Close the scratch file of models."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()
