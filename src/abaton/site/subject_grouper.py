"""Records grouped by subject, independent of the order in which they are read.

Exports have one file per resource type, so the records of a subject are far apart. Required records are written to a
temporary SQLite file in a private folder and read back subject by subject, so memory is bounded by one subject. The
file is unlinked while it is open, so a killed process leaves nothing behind. An index of file offsets would not work
for compressed files and server pages.
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
from abaton.fhir.bundles import SUBJECT_ELEMENTS, reference_target
from abaton.fhir.elements import resource_types
from abaton.fhir.json_format import dump, parse
from abaton.record_types import Record
from abaton.site.sources.base import SourceErrors

_SCHEMA = """
CREATE TABLE records (
    number INTEGER PRIMARY KEY, name TEXT UNIQUE, subject TEXT NOT NULL, url TEXT NOT NULL, body BLOB NOT NULL
);
CREATE TABLE aliases (alias TEXT PRIMARY KEY, subject TEXT NOT NULL) WITHOUT ROWID;
"""
_INDEX = """
CREATE INDEX records_by_subject ON records (subject);
CREATE INDEX aliases_by_subject ON aliases (subject);
"""
_MAX_NESTING = 8
_COMMIT_EVERY = 10_000
_TYPICAL_RECORD_BYTES = 400
_PARSED_SIZE_FACTOR = 16  # memory of a parsed record relative to its JSON


@dataclass(frozen=True, slots=True)
class SubjectRecords:
    """Records of one subject: the Patient, records that refer to it, and shared records such as Medications.

    ``key`` is the reference to the Patient in the site's records; it stays at the site.
    """

    key: str
    entries: tuple[tuple[str, Record], ...]
    is_too_large: bool = False
    """Whether the records exceed the memory limit; then ``entries`` is empty."""

    @property
    def id(self) -> str:
        """Patient id of a subject's grouped records."""
        return self.key.removeprefix("Patient/")

    @property
    def records(self) -> list[Record]:
        """Grouped records of a subject, without the URLs of their Bundle."""
        return [record for _, record in self.entries]

    def __repr__(self) -> str:
        return "SubjectRecords(…)"


def group_bundle(
    bundle: Record, types: frozenset[str], records_read: Counter[str], memory_mib: int
) -> SubjectRecords:
    """Group a Bundle that has all resources of one person, the Patient first, as one subject's records.

    Args:
        bundle: The Bundle.
        types: Required resource types.
        records_read: Counter of records by type, which is updated.
        memory_mib: Memory limit for the records of one subject.
    """
    records = [Record(entry["resource"]) for entry in bundle.content["entry"]]
    records_read.update(record.type for record in records)
    key = f"Patient/{records[0].content['id']}"
    if len(records) * _TYPICAL_RECORD_BYTES * _PARSED_SIZE_FACTOR > memory_mib << 20:
        return SubjectRecords(key, (), is_too_large=True)
    return SubjectRecords(key, tuple(("", record) for record in records if record.type in types))


class SubjectGrouper:
    """Grouper of records by subject.

    Args:
        types: Required resource types; others are only counted.
        errors: Counts of records that cannot be assigned.
        folder: Folder of the temporary file; by default that of the system.
        memory_mib: Memory limit for the records of one subject.
    """

    def __init__(
        self,
        types: frozenset[str],
        errors: SourceErrors,
        folder: Path | None = None,
        memory_mib: int = 2048,
    ) -> None:
        self._types, self._errors = types, errors
        self._max_bytes = memory_mib * (1 << 20) // _PARSED_SIZE_FACTOR
        self.records_read: Counter[str] = Counter()
        self._record_count = 0
        self._is_indexed = False
        self._database = _temporary_database(folder)
        self._database.executescript(_SCHEMA)

    def add(self, record: Record) -> None:
        """Add a record, or the entries of a Bundle, to the grouping by subject."""
        self._add_resource(record.content, "", 0)

    def subjects(self) -> Iterator[SubjectRecords]:
        """Yield all subjects with their grouped records, in the order in which their Patients were read."""
        if not self._is_indexed:
            self._database.executescript(_INDEX)
            self._is_indexed = True
            self._count_unassigned()
        keys = self._database.execute("SELECT name FROM records WHERE subject = name ORDER BY number")
        shared = self._database.execute("SELECT 1 FROM records WHERE subject = '' LIMIT 1").fetchone()
        for (key,) in keys:
            yield self._read_subject(key, has_shared=shared is not None)

    def close(self) -> None:
        """Close the subject grouper's temporary file, which deletes it."""
        self._database.close()

    def _add_resource(self, content: dict[str, Any], url: str, depth: int) -> None:
        if content.get("resourceType") != "Bundle":
            self._store_resource(content, url)
            return
        if depth > _MAX_NESTING:
            self._errors.add("Bundles are nested too deeply")
            return
        entries = content.get("entry")
        for entry in entries if isinstance(entries, list) else ():
            resource = entry.get("resource") if isinstance(entry, dict) else None
            if isinstance(resource, dict):
                full_url = entry.get("fullUrl")
                self._add_resource(resource, full_url if isinstance(full_url, str) else "", depth + 1)

    def _store_resource(self, resource: dict[str, Any], url: str) -> None:
        resource_type, resource_id = resource.get("resourceType"), resource.get("id")
        if not isinstance(resource_type, str) or resource_type not in resource_types():
            self._errors.add("the type of a record is not an R4 resource type")
            return
        self.records_read[resource_type] += 1
        if resource_type not in self._types:
            return
        name = f"{resource_type}/{resource_id}" if isinstance(resource_id, str) and resource_id else url
        if resource_type == "Patient":
            if not name:
                self._errors.add("a Patient has no id")
                return
            subject = name
            self._register_aliases(resource, name, url)
        else:
            references = [resource.get(element) for element in SUBJECT_ELEMENTS]
            subject = next((target for item in references if (target := reference_target(item))), "")
            if not subject and any(isinstance(item, dict) for item in references):
                self._errors.add("the subject reference of a record has no target")
                return
        self._insert(name, subject, url, resource)

    def _register_aliases(self, patient: dict[str, Any], subject: str, url: str) -> None:
        """Store all references to a Patient for grouping; one shared by two Patients refers to neither."""
        identifiers = patient.get("identifier")
        names = [
            f"identifier {identifier.get('system') or ''}|{identifier['value']}"
            for identifier in (identifiers if isinstance(identifiers, list) else ())
            if isinstance(identifier, dict) and isinstance(identifier.get("value"), str)
        ]
        for alias in {subject, *([url] if url else ()), *names}:
            self._database.execute(
                "INSERT INTO aliases VALUES (?, ?) ON CONFLICT DO UPDATE SET subject = "
                "CASE WHEN subject = excluded.subject THEN subject ELSE '' END",
                (alias, subject),
            )

    def _insert(self, name: str, subject: str, url: str, resource: dict[str, Any]) -> None:
        self._record_count += 1
        changes_before = self._database.total_changes
        self._database.execute(
            "INSERT INTO records (name, subject, url, body) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
            "subject = excluded.subject, url = excluded.url, body = excluded.body WHERE body != excluded.body",
            (name or None, subject, url, dump(resource)),
        )
        if self._database.total_changes == changes_before:
            self._errors.add("a record was read twice; it counts once")
        if self._record_count % _COMMIT_EVERY == 0:
            self._database.commit()

    def _read_subject(self, key: str, *, has_shared: bool) -> SubjectRecords:
        source = "FROM aliases a JOIN records r ON r.subject = a.alias WHERE a.subject = ?"
        (size,) = self._database.execute(
            f"SELECT coalesce(sum(length(r.body)), 0) {source}", (key,)
        ).fetchone()
        if size > self._max_bytes:
            return SubjectRecords(key, (), is_too_large=True)
        rows = self._database.execute(f"SELECT r.url, r.body {source} ORDER BY r.number", (key,))
        entries = [(url, Record(parse(body))) for url, body in rows]
        if has_shared:
            entries += self._referenced_records(entries)
        return SubjectRecords(key, tuple(entries))

    def _referenced_records(self, entries: list[tuple[str, Record]]) -> list[tuple[str, Record]]:
        """Return records without a subject that a group's records refer to, such as a Medication."""
        targets = sorted({target for _, record in entries for target in _reference_targets(record.content)})
        referenced = []
        for target in targets:
            row = self._database.execute(
                "SELECT url, body FROM records WHERE subject = '' AND (name = ?1 OR url = ?1) LIMIT 1",
                (target,),
            ).fetchone()
            if row:
                referenced.append((row[0], Record(parse(row[1]))))
        return referenced

    def _count_unassigned(self) -> None:
        query = (
            "SELECT count(*) FROM records r LEFT JOIN aliases a ON a.alias = r.subject "
            "WHERE r.subject != '' AND (a.subject IS NULL OR a.subject = '')"
        )
        (count,) = self._database.execute(query).fetchone()
        if count:
            self._errors.add("the Patient of a record is missing or ambiguous", times=count)


def _temporary_database(folder: Path | None) -> sqlite3.Connection:
    """Return the subject grouper's private database, which disappears with the process."""
    try:
        with tempfile.TemporaryDirectory(prefix="abaton-", dir=folder) as path:
            database = sqlite3.connect(Path(path) / "subjects.sqlite")
            for setting in ("journal_mode = OFF", "synchronous = OFF", "temp_store = MEMORY"):
                database.execute(f"PRAGMA {setting}")
            database.execute("CREATE TABLE opened (value)")  # creates the file before its folder is removed
            database.commit()
    except (OSError, sqlite3.Error):
        raise SettingsError(
            "the temporary file cannot be created",
            where=str(folder or "TMPDIR"),
            remedy="set TMPDIR to a writable folder with free space",
        ) from None
    return database


def _reference_targets(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("reference"), str) and (target := reference_target(node)):
            yield target
        for child in node.values():
            yield from _reference_targets(child)
    elif isinstance(node, list):
        for child in node:
            yield from _reference_targets(child)
