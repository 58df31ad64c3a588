"""Atomic file writes, and removal of temporary files that killed processes left."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from abaton.errors import StoreError


@contextlib.contextmanager
def map_os_errors(folder: Path) -> Iterator[None]:
    """Raise a `StoreError` with a remedy for an `OSError` while a file is written."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot write: {error.strerror}",
            where=str(folder),
            remedy="free space, or choose a folder you may write to with --store or ABATON_STORE",
        ) from error


_PREFIX, _SUFFIX = ".abaton-", ".tmp"
_DEFAULT_MODE = 0o666


@contextmanager
def atomic_write(path: Path, *, mode: int = _DEFAULT_MODE, sync: bool = True) -> Iterator[Path]:
    """Write a file atomically: yield a temporary path that replaces `path` on success and is removed on failure.

    Args:
        path: File to create or replace.
        mode: Permissions before the umask. With another mode than the default the file exists with its final
            permissions before anything is written, so a key is not readable by other users while it is written.
        sync: Whether to wait until the content is on disk, so that a power cut does not leave a partial file.

    Raises:
        OSError: The file cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder, "answer")) as temporary_path:
    ...         _ = temporary_path.write_text("42")
    ...         early = Path(folder, "answer").exists()
    ...     early, Path(folder, "answer").read_text()
    (False, '42')
    """
    # Not derived from the name of the target, which may already have the maximum length.
    temporary_path = path.with_name(temporary_name(secrets.token_hex(8)))
    try:
        if mode != _DEFAULT_MODE:
            os.close(os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        yield temporary_path
        if sync:
            with temporary_path.open("rb") as file:
                os.fsync(file.fileno())
        temporary_path.replace(path)
    except BaseException:
        temporary_path.unlink(missing_ok=True)
        raise


def temporary_name(label: str) -> str:
    """Return the temporary name of a file being written atomically; :func:`remove_leftovers` removes it.

    >>> temporary_name("7")
    '.abaton-7.tmp'
    """
    return f"{_PREFIX}{label}{_SUFFIX}"


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of killed processes from a folder; no other process may be writing there."""
    for temporary_path in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        temporary_path.unlink(missing_ok=True)
