"""Files that appear whole or not at all: every room that writes one writes it so."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from abaton.errors import StoreError


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


_BEGUN, _END = ".abaton-", ".begun"
_ANYBODY = 0o666


@contextmanager
def replacing(path: Path, *, mode: int = _ANYBODY, sync: bool = True) -> Iterator[Path]:
    """A file to write beside a path, which takes that place when all went well; otherwise no trace is left.

    Args:
        path: The file that appears, or is replaced, at the end.
        mode: Who may read it; the process's own mask is taken off. If that is not anybody, the file is there, empty
            and closed to others, before anything is written to it.
        sync: Whether to wait until the content is on disk, so that not even a power cut leaves half of it.

    Raises:
        OSError: The file cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder, "answer")) as begun:
    ...         _ = begun.write_text("42")
    ...         early = Path(folder, "answer").exists()
    ...     early, Path(folder, "answer").read_text()
    (False, '42')
    """
    # Not made from the path's own name: that may be as long as the file system allows, or a person's.
    begun = path.with_name(begun_name(secrets.token_hex(8)))
    try:
        if mode != _ANYBODY:
            os.close(os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        yield begun
        if sync:
            with begun.open("rb") as file:
                os.fsync(file.fileno())
        begun.replace(path)
    except BaseException:
        begun.unlink(missing_ok=True)
        raise


def begun_name(label: str) -> str:
    """The name of something begun, which :func:`sweep` takes away if nobody finishes it.

    >>> begun_name("7")
    '.abaton-7.begun'
    """
    return f"{_BEGUN}{label}{_END}"


def sweep(folder: Path) -> None:
    """Remove what processes that were killed had begun in a folder; nobody else may be writing there."""
    for begun in folder.glob(f"{_BEGUN}*{_END}"):
        begun.unlink(missing_ok=True)
