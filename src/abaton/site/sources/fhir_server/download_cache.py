"""What was fetched from a server, kept until it has been read: files with their digests, and where to go on.

A fetch that was interrupted goes on where it stopped; a file that is not as it was written is fetched again.
The state is a file of lines that only grows: the request's fingerprint, then one line per step. A half-written
last line is a step that did not happen. The folder is readable by its owner alone and is removed when its
records have been read: it holds people.
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

from abaton.errors import Refused, SettingsError

STATE = "state.ndjson"
LEAST_FREE = 256 * 1024 * 1024
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Kept:
    """One fetched file: its name, how long it is, and its SHA-256."""

    name: str
    size: int
    sha256: str


class Fetched:
    """A folder of fetched files.

    Args:
        folder: Where it is; made if it is not there.
        request: The fingerprint of what is asked for; a folder that belongs to another request is begun anew.
    """

    def __init__(self, folder: Path, request: str) -> None:
        self.folder, self._state, self._request = folder, folder / STATE, request
        self._files: dict[str, Kept] = {}
        self.next: Any = None
        """Where to go on: whatever was last noted."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._state.exists() and any(folder.iterdir()):
                # Without our state this is somebody else's folder, and must never be emptied.
                raise SettingsError(
                    "the work folder holds other files",
                    where=str(folder),
                    remedy="name an empty folder under records.work",
                )
            folder.chmod(0o700)
            if not self._resume():
                self.restart()
        except OSError as error:
            raise SettingsError(
                "the work folder cannot be used",
                where=str(folder),
                remedy=error.strerror or "check its owner",
            ) from None

    def _resume(self) -> bool:
        """Take up an earlier fetch of the same request, up to the first file that is not as it was written."""
        steps = self._steps()
        if next(steps, None) != {"request": self._request}:
            return False
        for step in steps:
            if kept := step.get("file"):
                self._files[kept["name"]] = Kept(**kept)
            self.next = step["next"]
        return all(_as_written(self.folder / name, kept) for name, kept in self._files.items())

    def _steps(self) -> Iterator[dict[str, Any]]:
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
        """Forget everything and begin anew."""
        self.clear()
        self.folder.mkdir(mode=0o700, parents=True)
        self._files, self.next = {}, None
        self._append({"request": self._request})

    @property
    def names(self) -> tuple[str, ...]:
        """The files that are here."""
        return tuple(self._files)

    def note(self, place: Any) -> None:
        """Note where to go on."""
        self._append({"next": place})
        self.next = place

    def open(self, name: str) -> IO[bytes]:
        """A file to write into; it counts once it is entered with :meth:`enter`."""
        return os.fdopen(os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "w+b")

    def enter(self, name: str, place: Any) -> None:
        """Count a file that was written whole, and note where to go on, both in one step.

        Raises:
            Refused: The disk is nearly full: a server that never ends must not fill it.
        """
        if shutil.disk_usage(self.folder).free < LEAST_FREE:
            raise Refused(
                "the disk is nearly full",
                where=str(self.folder),
                remedy="make room, or name another records.work",
            )
        kept = _measured(self.folder / name)
        self._append({"file": asdict(kept), "next": place})
        self._files[name], self.next = kept, place

    def add(self, name: str, content: bytes, place: Any) -> None:
        """Keep some bytes as a file, and note where to go on."""
        with self.open(name) as stream:
            stream.write(content)
        self.enter(name, place)

    def paths(self) -> Iterator[Path]:
        """The files, in the order in which they were fetched."""
        return (self.folder / name for name in self._files)

    def clear(self) -> None:
        """Remove the folder and all that is in it."""
        shutil.rmtree(self.folder)

    def _append(self, step: dict[str, Any]) -> None:
        handle = os.open(self._state, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(json.dumps(step).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())


def _as_written(path: Path, kept: Kept) -> bool:
    try:
        return path.stat().st_size == kept.size and _measured(path) == kept
    except OSError:
        return False


def _measured(path: Path) -> Kept:
    made, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            made.update(chunk)
            size += len(chunk)
    return Kept(path.name, size, made.hexdigest())


def clear_work(folder: Path) -> None:
    """Remove what an interrupted fetch has left in a work folder: it holds people, and is fetched anew."""
    if (folder / STATE).is_file():  # without our state it is somebody else's folder
        shutil.rmtree(folder)
