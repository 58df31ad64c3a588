"""The mapping table in a file of its own: which subject has which identity in which study.

It is the one file that can undo pseudonymisation. It belongs to the data controller, never beside the
exported data; governance keeps it sealed. Several processes may write it.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from abaton.errors import SettingsError


@dataclass(frozen=True, slots=True)
class MappingRow:
    """One line of the mapping table: which subject has which new identity in which study."""

    study: str
    tag: str
    pseudonym: str
    subject: str

    def __repr__(self) -> str:
        return "MappingRow(…)"  # holds an identity: never shown


class MappingSink(Protocol):
    """Where mapping rows go; governance keeps them sealed, apart from the data."""

    def find(self, study: str, tag: str) -> str | None:
        """The new identity already given to a subject, if any."""

    def add(self, row: MappingRow) -> str:
        """Keep a row and return the identity that counts: an earlier one for the same subject wins."""


class MemoryMapping:
    """A mapping table that lives only as long as the process.

    >>> table = MemoryMapping()
    >>> table.add(MappingRow("s", "tag", "NEW", "old")), table.add(MappingRow("s", "tag", "LATER", "old"))
    ('NEW', 'NEW')
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], MappingRow] = {}

    def find(self, study: str, tag: str) -> str | None:
        """The new identity already given to a subject, if any."""
        row = self.rows.get((study, tag))
        return None if row is None else row.pseudonym

    def add(self, row: MappingRow) -> str:
        """Keep a row unless the subject has one already."""
        return self.rows.setdefault((row.study, row.tag), row).pseudonym


_TABLE = (
    "CREATE TABLE IF NOT EXISTS mapping (study TEXT, tag TEXT, pseudonym TEXT NOT NULL, subject TEXT NOT NULL, "
    "PRIMARY KEY (study, tag)) WITHOUT ROWID"
)
_VERSION = 2
"""2: subjects are found by keyed BLAKE2b. Tables of version 1 would find nobody and name everybody anew."""


class MappingFile:
    """A mapping table that several processes can write to; a subject's first identity stays."""

    def __init__(self, path: Path) -> None:
        path.touch(mode=0o600, exist_ok=True)
        self._connection = sqlite3.connect(path, timeout=60, isolation_level=None)
        self._connection.execute(_TABLE)
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version != _VERSION and self._connection.execute("SELECT 1 FROM mapping LIMIT 1").fetchone():
            raise SettingsError(
                f"the mapping table is of version {max(version, 1)}; this is version {_VERSION}",
                where=str(path),
                remedy="go on with the version of Abaton that made it, or begin a new table",
            )
        self._connection.execute(f"PRAGMA user_version = {_VERSION}")

    def find(self, study: str, tag: str) -> str | None:
        """The new identity already given to a subject, if any."""
        row = self._connection.execute(
            "SELECT pseudonym FROM mapping WHERE study = ? AND tag = ?", (study, tag)
        ).fetchone()
        return None if row is None else str(row[0])

    def add(self, row: MappingRow) -> str:
        """Keep a row unless the subject has one, and return the identity that counts."""
        self._connection.execute(
            "INSERT OR IGNORE INTO mapping VALUES (?, ?, ?, ?)",
            (row.study, row.tag, row.pseudonym, row.subject),
        )
        kept = self.find(row.study, row.tag)
        assert kept is not None
        return kept

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
