"""Tables as a source of records: rows become FHIR resources on the way in, and everything after that is the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from abaton.errors import SettingsError
from abaton.record_types import Record
from abaton.site.sources.fhir_builders import patient
from abaton.site.sources.base import Faults
from abaton.site.sources.tabular.table_reader import TableFile, tables_in
from abaton.site.tables.mapping import TableMapping, TablePart, fits
from abaton.site.tables.meanings import Person
from abaton.site.tables.rows import RowReader


class TableSource:
    """Records in files of rows, joined by subject.

    Who people are is read first and held, so memory grows by some hundred bytes for each person; what happened to
    them is a stream.

    Args:
        paths: The files and folders.
        mapping: What their columns mean.
        types: The resource types that are wanted; nothing else is made.
    """

    by_subject = False

    def __init__(self, paths: Iterable[Path], mapping: TableMapping, types: frozenset[str]) -> None:
        self._paths, self._mapping, self._types = tuple(paths), mapping, types
        self.faults = Faults()

    def records(self) -> Iterator[Record]:
        """Everybody, and then what happened to them, in the order of the tables and their rows.

        Raises:
            SettingsError: A file or a column is not there.
            Refused: A row cannot be read; with its line.
        """
        readers = list(self._readers())
        for who, person in self._people(readers).items():
            yield Record(patient(who, person.sex, person.born, person.died))
        for _, file, reader in readers:
            if reader.has_events:
                for row, (line, cells) in enumerate(file.rows(), 1):
                    who = reader.subject(line, row, cells)
                    yield from map(Record, reader.events(line, who, cells))

    def _readers(self) -> Iterator[tuple[TablePart, TableFile, RowReader]]:
        found, number = tables_in(self._paths), 0
        for place, table in enumerate(self._mapping.tables):
            mine = [path for path in found if fits(table, path)]
            if not mine:
                raise SettingsError(
                    f"no file is called '{table.file}'",
                    where=f"tables.{place} of the mapping",
                    remedy="correct 'file' there, or records.paths",
                )
            for path in mine:
                file = TableFile(path, self._mapping.files, table)
                yield table, file, RowReader(self._mapping, table, file, number, self._types, self.faults)
                number += 1

    def _people(self, readers: list[tuple[TablePart, TableFile, RowReader]]) -> dict[str, Person]:
        telling = any(table.tells_people for table, _, _ in readers)
        people: dict[str, Person] = {}
        for table, file, reader in readers:
            if telling and not table.tells_people:
                continue
            for row, (line, cells) in enumerate(file.rows(), 1):
                who, told = reader.subject(line, row, cells), reader.person(line, cells)
                known = people.get(who)
                both = told if known is None else known.with_more(told)
                if both is None:
                    raise file.refusal(
                        line,
                        "two people have one id: sex, birth or death contradict an earlier row",
                        "give each person an id of their own, or correct the row",
                        table.subject or "",
                    )
                people[who] = both
        return people

    def close(self) -> None:
        """Nothing was kept."""
