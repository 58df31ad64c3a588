"""All payloads of a run in one append-only file.

Creating a file per payload (0.3 to 0.7 ms) costs more than training a small network. Offsets are committed in the
transaction of the events that reference the payload; bytes after the last known payload are the remains of a crash and
are truncated at the next write.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from pathlib import Path

from abaton.atomic_files import map_os_errors
from abaton.errors import StoreError
from abaton.store.model_files import content_digest, corrupt_file_error

PayloadPosition = tuple[int, int]


class PayloadFile:
    """Append-only file of payloads, each stored once.

    Args:
        path: The file.
        positions: Offset and size of each stored payload, by digest.

    Attributes:
        pending_bytes: Bytes that are not on disk yet.
    """

    def __init__(self, path: Path, positions: Mapping[str, PayloadPosition]) -> None:
        self.path = path
        self._positions = dict(positions)
        self._pending: dict[str, bytes] = {}
        self.pending_bytes = 0
        self._reader: int | None = None
        self._end = max((offset + size for offset, size in positions.values()), default=0)

    def put(self, payload: bytes) -> str:
        """Add a payload to the run's payload file and return its digest; it is on disk after the next `write`."""
        digest = content_digest(payload)
        if digest not in self:
            self._pending[digest] = payload
            self.pending_bytes += len(payload)
        return digest

    def get(self, digest: str) -> bytes:
        """Read a payload from the payload file by its digest; raise a `StoreError` if its bytes do not match."""
        if digest in self._pending:
            return self._pending[digest]
        if digest not in self:
            raise StoreError("a stored payload is missing", where=str(self.path), remedy="start a new run")
        offset, size = self._positions[digest]
        try:
            payload = os.pread(self._open(), size, offset)
        except OSError:
            raise corrupt_file_error(self.path) from None
        if content_digest(payload) != digest:
            raise corrupt_file_error(self.path)
        return payload

    def _open(self) -> int:
        """Return the payload file's descriptor; opening it for each payload would take longer than reading."""
        if self._reader is None:
            self._reader = os.open(self.path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._reader)
        return self._reader

    def __contains__(self, digest: str) -> bool:
        return digest in self._positions or digest in self._pending

    def write(self) -> dict[str, PayloadPosition]:
        """Append the pending payloads to the payload file and return their positions."""
        written: dict[str, PayloadPosition] = {}
        end = self._end
        for digest, payload in self._pending.items():
            written[digest] = (end, len(payload))
            end += len(payload)
        if written:
            with map_os_errors(self.path.parent):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("r+b" if self.path.exists() else "wb") as file:
                    file.truncate(self._end)
                    file.seek(self._end)
                    file.write(b"".join(self._pending.values()))
            self._end = end
            self._positions |= written
            self._pending, self.pending_bytes = {}, 0
        return written
