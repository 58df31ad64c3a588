"""The payloads of one run in one file, one after the other, each stored once.

A file for each payload would cost more than training a small model. The file is only ever appended to; which bytes
of it count is written in the database, in the same transaction as the events that name them. What a crash leaves
behind the last known payload is cut off at the next write.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from pathlib import Path

from abaton.atomic_files import writing
from abaton.errors import StoreError
from abaton.store.model_files import damaged, digest_of

Place = tuple[int, int]


class Pack:
    """An append-only file of payloads.

    Args:
        path: the file.
        places: which payload is known to lie where: digest to offset and size.

    Attributes:
        waiting: how many bytes are not on disk yet.
    """

    def __init__(self, path: Path, places: Mapping[str, Place]) -> None:
        self.path = path
        self._places = dict(places)
        self._waiting: dict[str, bytes] = {}
        self.waiting = 0
        self._reader: int | None = None
        self._end = max((offset + size for offset, size in places.values()), default=0)

    def put(self, payload: bytes) -> str:
        """Take a payload in and return its digest; it is on disk after the next `write`."""
        digest = digest_of(payload)
        if digest not in self:
            self._waiting[digest] = payload
            self.waiting += len(payload)
        return digest

    def get(self, digest: str) -> bytes:
        """A payload by its digest; bytes that are not what the digest says are refused."""
        if digest in self._waiting:
            return self._waiting[digest]
        if digest not in self:
            raise StoreError("a stored payload is missing", where=str(self.path), remedy="start a new run")
        offset, size = self._places[digest]
        try:
            payload = os.pread(self._open(), size, offset)
        except OSError:
            raise damaged(self.path) from None
        if digest_of(payload) != digest:
            raise damaged(self.path)
        return payload

    def _open(self) -> int:
        """The file, opened once: to open it for each payload would take longer than to read it."""
        if self._reader is None:
            self._reader = os.open(self.path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._reader)
        return self._reader

    def __contains__(self, digest: str) -> bool:
        return digest in self._places or digest in self._waiting

    def write(self) -> dict[str, Place]:
        """Append what is waiting to the file, and say where each payload lies."""
        placed: dict[str, Place] = {}
        end = self._end
        for digest, payload in self._waiting.items():
            placed[digest] = (end, len(payload))
            end += len(payload)
        if placed:
            with writing(self.path.parent):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("r+b" if self.path.exists() else "wb") as file:
                    file.truncate(self._end)
                    file.seek(self._end)
                    file.write(b"".join(self._waiting.values()))
            self._end = end
            self._places |= placed
            self._waiting, self.waiting = {}, 0
        return placed
