"""All records of one subject together, whatever order they were read in, in bounded memory.

Exports have one file per resource type, so a subject's records lie far apart. They are written to a temporary
SQLite file, only those of the types that are needed, and read back subject by subject. The file's name is
removed as soon as it is open: nothing is left behind, even if the process is killed.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abaton.errors import SettingsError
from abaton.fhir.bundles import SUBJECTS, target_of
from abaton.fhir.elements import resources
from abaton.fhir.json_format import dump, parse
from abaton.record_types import Record
from abaton.site.sources.base import Faults

_SCHEMA = """
CREATE TABLE record (
    number INTEGER PRIMARY KEY, name TEXT UNIQUE, about TEXT NOT NULL, url TEXT NOT NULL, body BLOB NOT NULL
);
CREATE TABLE known (alias TEXT PRIMARY KEY, subject TEXT NOT NULL) WITHOUT ROWID;
"""
_INDEX = """
CREATE INDEX about ON record (about);
CREATE INDEX subject ON known (subject);
"""
_NESTED = 8
_COMMIT = 10_000
_USUAL = 400  # bytes of a usual record
_SPREAD = 16  # a parsed record takes several times its length


@dataclass(frozen=True, slots=True)
class Subject:
    """One person's records: the Patient, all that is about them, and what those point at (a Medication).

    ``key`` is how the site's records name the person; it never leaves the site.
    """

    key: str
    entries: tuple[tuple[str, Record], ...]
    too_large: bool = False
    """There were more records than could be held; none is here."""

    @property
    def id(self) -> str:
        """The Patient's id."""
        return self.key.removeprefix("Patient/")

    @property
    def records(self) -> list[Record]:
        """The records, without the addresses they had in a Bundle."""
        return [record for _, record in self.entries]

    def __repr__(self) -> str:
        return "Subject(…)"


def together(bundle: Record, types: frozenset[str], read: Counter[str], memory: int) -> Subject:
    """The subject of a Bundle that holds all of one person, the Patient first.

    Args:
        bundle: The Bundle.
        types: The resource types that are needed.
        read: Where what was read is counted, by type.
        memory: How many MiB one subject's records may take.
    """
    found = [Record(entry["resource"]) for entry in bundle.content["entry"]]
    read.update(record.type for record in found)
    key = f"Patient/{found[0].content['id']}"
    if len(found) * _USUAL * _SPREAD > memory << 20:
        return Subject(key, (), too_large=True)
    return Subject(key, tuple(("", record) for record in found if record.type in types))


class Grouping:
    """Records by subject.

    Args:
        types: The resource types that are needed; others are counted and passed over.
        faults: Where records that cannot be placed are counted.
        folder: Where the temporary file is made; the system's folder for temporary files if not given.
        memory: How many MiB one subject's records may take.
    """

    def __init__(
        self, types: frozenset[str], faults: Faults, folder: Path | None = None, memory: int = 2048
    ) -> None:
        self._types, self._faults = types, faults
        self._most = memory * (1 << 20) // _SPREAD
        self.read: Counter[str] = Counter()
        self._number = 0
        self._indexed = False
        self._base = _scratch(folder)
        self._base.executescript(_SCHEMA)

    def add(self, record: Record) -> None:
        """Take in a record; a Bundle is opened."""
        self._open(record.content, "", 0)

    def _open(self, content: dict[str, Any], url: str, depth: int) -> None:
        if content.get("resourceType") != "Bundle":
            self._place(content, url)
            return
        if depth > _NESTED:
            self._faults.note("Bundles are nested too deeply")
            return
        entries = content.get("entry")
        for entry in entries if isinstance(entries, list) else ():
            resource = entry.get("resource") if isinstance(entry, dict) else None
            if isinstance(resource, dict):
                address = entry.get("fullUrl")
                self._open(resource, address if isinstance(address, str) else "", depth + 1)

    def _place(self, resource: dict[str, Any], url: str) -> None:
        kind, old = resource.get("resourceType"), resource.get("id")
        if not isinstance(kind, str) or kind not in resources():
            self._faults.note("a record has no type that R4 knows")
            return
        self.read[kind] += 1
        if kind not in self._types:
            return
        name = f"{kind}/{old}" if isinstance(old, str) and old else url
        if kind == "Patient":
            if not name:
                self._faults.note("a Patient has no id")
                return
            about = name
            self._know(resource, name, url)
        else:
            about = next((found for each in SUBJECTS if (found := target_of(resource.get(each)))), "")
            if not about and any(isinstance(resource.get(each), dict) for each in SUBJECTS):
                self._faults.note("a record does not say about whom it is")
                return
        self._write(name, about, url, resource)

    def _know(self, patient: dict[str, Any], subject: str, url: str) -> None:
        """All names under which a Patient may be meant; a name that two share means neither."""
        listed = patient.get("identifier")
        names = [
            f"identifier {each.get('system') or ''}|{each['value']}"
            for each in (listed if isinstance(listed, list) else ())
            if isinstance(each, dict) and isinstance(each.get("value"), str)
        ]
        for alias in {subject, *([url] if url else ()), *names}:
            self._base.execute(
                "INSERT INTO known VALUES (?, ?) ON CONFLICT DO UPDATE SET subject = "
                "CASE WHEN subject = excluded.subject THEN subject ELSE '' END",
                (alias, subject),
            )

    def _write(self, name: str, about: str, url: str, resource: dict[str, Any]) -> None:
        self._number += 1
        before = self._base.total_changes
        self._base.execute(
            "INSERT INTO record (name, about, url, body) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
            "about = excluded.about, url = excluded.url, body = excluded.body WHERE body != excluded.body",
            (name or None, about, url, dump(resource)),
        )
        if self._base.total_changes == before:
            self._faults.note("a record was read twice; it counts once")
        if self._number % _COMMIT == 0:
            self._base.commit()

    def subjects(self) -> Iterator[Subject]:
        """Everybody, in the order in which their Patients were read."""
        if not self._indexed:
            self._base.executescript(_INDEX)
            self._indexed = True
            self._count_strays()
        keys = self._base.execute("SELECT name FROM record WHERE about = name ORDER BY number")
        shared = self._base.execute("SELECT 1 FROM record WHERE about = '' LIMIT 1").fetchone() is not None
        for (key,) in keys:
            yield self._subject(key, shared=shared)

    def _subject(self, key: str, *, shared: bool) -> Subject:
        of = "FROM known k JOIN record r ON r.about = k.alias WHERE k.subject = ?"
        (size,) = self._base.execute(f"SELECT coalesce(sum(length(r.body)), 0) {of}", (key,)).fetchone()
        if size > self._most:
            return Subject(key, (), too_large=True)
        found = self._base.execute(f"SELECT r.url, r.body {of} ORDER BY r.number", (key,))
        entries = [(url, Record(parse(body))) for url, body in found]
        if shared:
            entries += self._pointed_at(entries)
        return Subject(key, tuple(entries))

    def _pointed_at(self, entries: list[tuple[str, Record]]) -> list[tuple[str, Record]]:
        """Records about nobody that a subject's records point at, such as a Medication."""
        targets = sorted({target for _, record in entries for target in _targets(record.content)})
        made = []
        for target in targets:
            row = self._base.execute(
                "SELECT url, body FROM record WHERE about = '' AND (name = ?1 OR url = ?1) LIMIT 1", (target,)
            ).fetchone()
            if row:
                made.append((row[0], Record(parse(row[1]))))
        return made

    def _count_strays(self) -> None:
        query = (
            "SELECT count(*) FROM record r LEFT JOIN known k ON k.alias = r.about "
            "WHERE r.about != '' AND (k.subject IS NULL OR k.subject = '')"
        )
        (number,) = self._base.execute(query).fetchone()
        for _ in range(number):
            self._faults.note("a record is about somebody whose Patient is not here, or not one alone")

    def close(self) -> None:
        """Let the temporary file go."""
        self._base.close()


def _scratch(folder: Path | None) -> sqlite3.Connection:
    """A database that nobody else can open, and that is gone when the process is."""
    try:
        with tempfile.TemporaryDirectory(prefix="abaton-", dir=folder) as place:
            base = sqlite3.connect(Path(place) / "subjects.sqlite")
            for setting in ("journal_mode = OFF", "synchronous = OFF", "temp_store = MEMORY"):
                base.execute(f"PRAGMA {setting}")
            base.execute("CREATE TABLE opened (yes)")  # the file exists from now on
            base.commit()
    except (OSError, sqlite3.Error):
        raise SettingsError(
            "no temporary file can be made", where=str(folder or "TMPDIR"), remedy="give a folder with space"
        ) from None
    return base


def _targets(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("reference"), str) and (target := target_of(node)):
            yield target
        for child in node.values():
            yield from _targets(child)
    elif isinstance(node, list):
        for child in node:
            yield from _targets(child)
