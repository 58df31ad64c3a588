"""Interface of record sources, and records in FHIR files, read as a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from abaton.errors import RefusedError, SettingsError
from abaton.fhir.file_reader import RecordFile, find_files, read_documents
from abaton.fhir.json_format import parse
from abaton.record_types import Record

_MAX_LOCATIONS = 5
TRUNCATED_FILE = "the last line is incomplete: the file was truncated"


@dataclass(slots=True)
class SourceErrors:
    """Records that were skipped, counted by reason, with a few locations but without content."""

    reasons: Counter[str] = field(default_factory=Counter)
    locations: dict[str, list[str]] = field(default_factory=dict)

    def clear(self) -> None:
        """Reset the counts of records that a source skipped."""
        self.reasons.clear()
        self.locations.clear()

    def add(self, reason: str, where: str = "", times: int = 1) -> None:
        """Count records that a source skipped."""
        self.reasons[reason] += times
        locations = self.locations.setdefault(reason, [])
        if where and len(locations) < _MAX_LOCATIONS:
            locations.append(where)


class RecordSource(Protocol):
    """Stream of a site's records; records that cannot be read are skipped and counted."""

    @property
    def errors(self) -> SourceErrors:
        """Records that the record source skipped so far."""

    @property
    def is_grouped(self) -> bool:
        """Whether every record of the source is a Bundle of all resources of one person, the Patient first."""

    def records(self) -> Iterator[Record]:
        """Yield the records of any record source, one document at a time; a Bundle is one document."""

    def close(self) -> None:
        """Remove temporary files of the record source."""


class FileSource:
    """Records in files and folders: JSON or NDJSON, also gzipped.

    Args:
        paths: Files and folders.
        lines_only: Whether other files than NDJSON are refused.
    """

    is_grouped = False

    def __init__(self, paths: Iterable[Path], *, lines_only: bool = False) -> None:
        self._paths, self._lines_only = tuple(str(path) for path in paths), lines_only
        self.errors = SourceErrors()

    def records(self) -> Iterator[Record]:
        """Yield the records of a file source, FHIR files in the order of their names."""
        files = find_files(self._paths)
        if self._lines_only and (other := next((file for file in files if not file.is_ndjson), None)):
            raise SettingsError(
                "the file is not NDJSON", where=other.path, remedy="set records.source = 'directory'"
            )
        for file in files:
            yield from self._read_file(file)

    def _read_file(self, file: RecordFile) -> Iterator[Record]:
        # An invalid document is counted when the next one is read, since the reason differs for a truncated last line.
        documents, skipped = read_documents(file), ("", "")
        while True:
            try:
                raw, where = next(documents)
            except StopIteration:
                if skipped[0] and file.is_ndjson and _is_truncated(file):
                    skipped = TRUNCATED_FILE, skipped[1]
                self._skip(*skipped)
                return
            except RefusedError as error:
                self._skip(*skipped)
                self.errors.add(error.what, error.where)
                return
            except OSError:
                self._skip(*skipped)
                self.errors.add("a file cannot be read", file.path)
                return
            self._skip(*skipped)
            try:
                record, skipped = Record(parse(raw, where=where)), ("", "")
            except RefusedError as error:
                skipped = error.what, where
                continue
            yield record

    def _skip(self, reason: str, where: str) -> None:
        if reason:
            self.errors.add(reason, where)

    def close(self) -> None:
        """Do nothing: a source of FHIR files creates no temporary files."""


def _is_truncated(file: RecordFile) -> bool:
    """Return whether an uncompressed NDJSON file of a file source does not end with a newline."""
    if file.is_compressed:
        return False
    with Path(file.path).open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 1))
        return stream.read(1) != b"\n"
