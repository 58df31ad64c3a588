"""Downloaded files with their digests, and the position at which an interrupted download resumes.

Pages are stored before they are read, so an interrupted download resumes at the next page; a file that has changed
is downloaded again. The state is an append-only NDJSON file: the digest of the request, then one entry per file or
position. An incomplete last line is ignored. The folder is readable by its owner only and is removed when its records
have been read.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from abaton.errors import RefusedError, SettingsError

STATE_FILE = "state.ndjson"
MIN_FREE_BYTES = 256 * 1024 * 1024
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CachedFile:
    """Name, size and SHA-256 of one downloaded file."""

    name: str
    size: int
    sha256: str


class DownloadCache:
    """Folder of downloaded files.

    Args:
        folder: The folder; created if it does not exist.
        request: Digest of the request; the files of another request are deleted.
    """

    def __init__(self, folder: Path, request: str) -> None:
        self.folder, self._state, self._request = folder, folder / STATE_FILE, request
        self._files: dict[str, CachedFile] = {}
        self.position: Any = None
        """Position at which the download resumes, as last saved."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._state.exists() and any(folder.iterdir()):
                # Without a state file the folder was not created here, so it must not be emptied.
                raise SettingsError(
                    "the work folder contains other files",
                    where=str(folder),
                    remedy="set records.work_dir to an empty folder",
                )
            folder.chmod(0o700)
            if not self._resume():
                self.restart()
        except OSError as error:
            raise SettingsError(
                f"the work folder cannot be opened: {error.strerror or type(error).__name__}",
                where=str(folder),
                remedy="check the owner of the folder, or set records.work_dir to another one",
            ) from None

    def _resume(self) -> bool:
        """Load the download cache of an earlier run; return whether it is of this request and unchanged."""
        entries = self._read_state()
        if next(entries, None) != {"request": self._request}:
            return False
        for entry in entries:
            if cached := entry.get("file"):
                self._files[cached["name"]] = CachedFile(**cached)
            self.position = entry["position"]
        return all(_is_unchanged(self.folder / name, cached) for name, cached in self._files.items())

    def _read_state(self) -> Iterator[dict[str, Any]]:
        try:
            lines = self._state.read_bytes().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                return

    def restart(self) -> None:
        """Delete all files of the download cache and start from the beginning."""
        self.clear()
        self.folder.mkdir(mode=0o700, parents=True)
        self._files, self.position = {}, None
        self._append({"request": self._request})

    @property
    def file_names(self) -> tuple[str, ...]:
        """Names of the files in the download cache."""
        return tuple(self._files)

    def save_position(self, position: Any) -> None:
        """Save in the download cache the position at which the download resumes."""
        self._append({"position": position})
        self.position = position

    def open(self, name: str) -> IO[bytes]:
        """Open a file for writing; it becomes part of the download cache with :meth:`commit_file`."""
        return os.fdopen(os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "w+b")

    def commit_file(self, name: str, position: Any) -> None:
        """Add a completely written file to the download cache and save the position, both in one entry.

        Raises:
            RefusedError: Less than `MIN_FREE_BYTES` of the disk are free; an endless download must not fill it.
        """
        if shutil.disk_usage(self.folder).free < MIN_FREE_BYTES:
            raise RefusedError(
                f"less than {MIN_FREE_BYTES >> 20} MiB are free on the disk",
                where=str(self.folder),
                remedy="free disk space, or set records.work_dir to a folder on another disk",
            )
        cached = _digest_file(self.folder / name)
        self._append({"file": asdict(cached), "position": position})
        self._files[name], self.position = cached, position

    def add_file(self, name: str, content: bytes, position: Any) -> None:
        """Write a file to the download cache and save the position."""
        with self.open(name) as stream:
            stream.write(content)
        self.commit_file(name, position)

    def paths(self) -> Iterator[Path]:
        """Return the files of the download cache in the order of their download."""
        return (self.folder / name for name in self._files)

    def clear(self) -> None:
        """Remove the folder of the download cache and its contents."""
        shutil.rmtree(self.folder)

    def _append(self, entry: dict[str, Any]) -> None:
        handle = os.open(self._state, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(json.dumps(entry).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())


def _is_unchanged(path: Path, cached: CachedFile) -> bool:
    try:
        return path.stat().st_size == cached.size and _digest_file(path) == cached
    except OSError:
        return False


def _digest_file(path: Path) -> CachedFile:
    hasher, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            hasher.update(chunk)
            size += len(chunk)
    return CachedFile(path.name, size, hasher.hexdigest())


def clear_work_dir(folder: Path) -> None:
    """Remove the cached personal data that an interrupted download left in a work folder."""
    if (folder / STATE_FILE).is_file():  # a folder without a state file was not created here
        shutil.rmtree(folder)
