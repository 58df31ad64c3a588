"""Arrays that were expensive to make, kept as files and mapped into memory: read once, shared by all processes."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FORM = 1  # of what is kept; another number makes everything again


def fingerprint(files: Sequence[Path], how: str) -> str:
    """A name for what is made from these files in this way; it changes when a file does."""
    made = hashlib.sha256(f"{_FORM}\x1f{how}".encode())
    for file in files:
        about = file.stat()
        made.update(f"\x1f{file.resolve()}\x1f{about.st_size}\x1f{about.st_mtime_ns}".encode())
    return made.hexdigest()[:24]


def recall(place: Path) -> dict[str, NDArray[Any]] | None:
    """The arrays kept in a folder, mapped into memory; None if they are not there or not whole.

    What is written to them stays in this process: PyTorch wants arrays that could be written to.
    """
    try:
        return {
            path.stem: np.load(path, mmap_mode="c", allow_pickle=False)
            for path in sorted(place.glob("*.npy"))
        } or None
    except (OSError, ValueError, EOFError):
        return None


def keep(place: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Keep arrays in a folder, all or none of them; a cache that cannot be written is done without."""
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        half = Path(tempfile.mkdtemp(prefix=".half-", dir=place.parent))
        try:
            for name, array in arrays.items():
                np.save(half / f"{name}.npy", array, allow_pickle=False)
            shutil.rmtree(place, ignore_errors=True)
            half.replace(place)
        finally:
            shutil.rmtree(half, ignore_errors=True)
