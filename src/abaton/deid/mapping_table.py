"""Mapping table: the pseudonym of each subject in each study, in a separate file.

It is the only file that can reverse pseudonymisation. It belongs to the data controller and must not be stored with
the exported data; the governance package stores it in the vault. Several processes may write it.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from abaton.errors import SettingsError


@dataclass(frozen=True, slots=True)
class MappingRow:
    """One row of the mapping table: the pseudonym of a subject in a study."""

    study: str
    tag: str
    pseudonym: str
    subject: str

    def __repr__(self) -> str:
        return "MappingRow(…)"  # contains an identity


class MappingSink(Protocol):
    """Store of mapping rows, separate from the data."""

    def find(self, study: str, tag: str) -> str | None:
        """Return the pseudonym of a subject that the mapping table has stored, or None."""

    def add(self, row: MappingRow) -> str:
        """Store a row of the mapping table; return the valid pseudonym: an earlier one has precedence."""


class MemoryMapping:
    """Mapping table in memory.

    >>> table = MemoryMapping()
    >>> table.add(MappingRow("s", "tag", "NEW", "old")), table.add(MappingRow("s", "tag", "LATER", "old"))
    ('NEW', 'NEW')
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], MappingRow] = {}

    def find(self, study: str, tag: str) -> str | None:
        """Return the pseudonym of a subject in the mapping table in memory, or None."""
        row = self.rows.get((study, tag))
        return None if row is None else row.pseudonym

    def add(self, row: MappingRow) -> str:
        """Store a row of the mapping table in memory unless the subject has one; return the valid pseudonym."""
        return self.rows.setdefault((row.study, row.tag), row).pseudonym


_TABLE = (
    "CREATE TABLE IF NOT EXISTS mapping (study TEXT, tag TEXT, pseudonym TEXT NOT NULL, subject TEXT NOT NULL, "
    "PRIMARY KEY (study, tag)) WITHOUT ROWID"
)
_VERSION = 2
"""2: subjects are identified by keyed BLAKE2b; tables of version 1 would assign new pseudonyms."""


class MappingFile:
    """Mapping table in a SQLite file that several processes can write; a subject's first pseudonym is kept."""

    def __init__(self, path: Path) -> None:
        path.touch(mode=0o600, exist_ok=True)
        self._connection = sqlite3.connect(path, timeout=60, isolation_level=None)
        self._connection.execute(_TABLE)
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version != _VERSION and self._connection.execute("SELECT 1 FROM mapping LIMIT 1").fetchone():
            raise SettingsError(
                f"the mapping table has version {max(version, 1)}, expected {_VERSION}",
                where=str(path),
                remedy="use the version of Abaton that wrote it, or start a new table",
            )
        self._connection.execute(f"PRAGMA user_version = {_VERSION}")

    def find(self, study: str, tag: str) -> str | None:
        """Return the pseudonym of a subject in the mapping table's file, or None."""
        row = self._connection.execute(
            "SELECT pseudonym FROM mapping WHERE study = ? AND tag = ?", (study, tag)
        ).fetchone()
        return None if row is None else str(row[0])

    def add(self, row: MappingRow) -> str:
        """Store a row in the mapping table's file unless the subject has one; return the valid pseudonym."""
        self._connection.execute(
            "INSERT OR IGNORE INTO mapping VALUES (?, ?, ?, ?)",
            (row.study, row.tag, row.pseudonym, row.subject),
        )
        existing = self.find(row.study, row.tag)
        assert existing is not None
        return existing

    def close(self) -> None:
        """Close the file of the mapping table."""
        self._connection.close()
