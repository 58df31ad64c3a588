"""Models as files named by the digest of their content: written once, whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from abaton.errors import StoreError
from abaton.atomic_files import replacing

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


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a failure to write into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot write: {error.strerror}",
            where=str(folder),
            remedy="free space, or choose a folder you may write to with --store or ABATON_STORE",
        ) from error


def damaged(path: Path) -> StoreError:
    """The error for a file whose content is not what its name says."""
    return StoreError(
        "a stored file is damaged",
        where=str(path),
        remedy="restore it from a backup, or delete it and start a new run",
    )
