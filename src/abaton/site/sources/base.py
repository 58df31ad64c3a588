"""Where a site's records come from: one interface for files and servers, read as a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from abaton.errors import Refused, SettingsError
from abaton.fhir.json_format import parse
from abaton.fhir.file_reader import Source as File
from abaton.fhir.file_reader import documents, find
from abaton.record_types import Record

_MOST_PLACES = 5


@dataclass(slots=True)
class Faults:
    """What could not be read: reasons with counts, and a few places to look at; never content."""

    reasons: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)

    def clear(self) -> None:
        """Begin counting anew."""
        self.reasons.clear()
        self.places.clear()

    def note(self, reason: str, where: str = "", times: int = 1) -> None:
        """Count something that was set aside."""
        self.reasons[reason] += times
        places = self.places.setdefault(reason, [])
        if where and len(places) < _MOST_PLACES:
            places.append(where)


class Source(Protocol):
    """A site's records as a stream. What cannot be read is set aside and counted; the rest goes on."""

    @property
    def faults(self) -> Faults:
        """What was set aside so far."""

    @property
    def by_subject(self) -> bool:
        """Whether every record is a Bundle of all that one person has, the Patient first."""

    def records(self) -> Iterator[Record]:
        """The records, one document at a time; a Bundle is one document."""

    def close(self) -> None:
        """Remove whatever was kept only to be read."""


class FileSource:
    """Records in files and directories: JSON, NDJSON, either of them packed with gzip.

    Args:
        paths: The files and directories.
        lines_only: Whether only NDJSON is meant; then a file of another form is refused.
    """

    by_subject = False

    def __init__(self, paths: Iterable[Path], *, lines_only: bool = False) -> None:
        self._paths, self._lines_only = tuple(str(path) for path in paths), lines_only
        self.faults = Faults()

    def records(self) -> Iterator[Record]:
        """The records of all files, in the order of their names."""
        files = find(self._paths)
        if self._lines_only and (other := next((each for each in files if not each.is_lines), None)):
            raise SettingsError(
                "a file is not NDJSON", where=other.path, remedy="use kind = 'directory' for other forms"
            )
        for each in files:
            yield from self._of(each)

    def _of(self, file: File) -> Iterator[Record]:
        found, broken = documents(file), ("", "")
        while True:
            try:
                raw, where = next(found)
            except StopIteration:
                if broken[0] and file.is_lines and _cut_off(file):
                    broken = "the last line is half-written: the file was cut off", broken[1]
                self._set_aside(*broken)
                return
            except Refused as error:
                self._set_aside(*broken)
                self.faults.note(error.what, error.where)
                return
            except OSError:
                self._set_aside(*broken)
                self.faults.note("a file cannot be read", file.path)
                return
            self._set_aside(*broken)
            try:
                record, broken = Record(parse(raw, where=where)), ("", "")
            except Refused as error:
                broken = error.what, where
                continue
            yield record

    def _set_aside(self, what: str, where: str) -> None:
        if what:
            self.faults.note(what, where)

    def close(self) -> None:
        """Nothing was kept."""


def _cut_off(file: File) -> bool:
    """Whether a file of lines does not end with the end of a line."""
    if file.is_packed:
        return False
    with Path(file.path).open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 1))
        return stream.read(1) != b"\n"
