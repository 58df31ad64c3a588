"""From one row of a table to FHIR resources, as the mapping says; compiled once for each file.

Tables as a source of records: rows become FHIR resources on the way in, and everything after that is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import tzinfo
from pathlib import Path

from abaton.errors import SettingsError
from abaton.fhir.partial_dates import zone_of
from abaton.record_types import Record
from abaton.site.sources.base import Faults
from abaton.site.sources.fhir_builders import (
    Json,
    condition,
    encounter,
    identity,
    medicine,
    observation,
    patient,
    procedure,
    quantity,
)
from abaton.site.sources.tabular.cell_parser import (
    MISSING,
    SEXES,
    CellError,
    birth,
    moment,
    number,
    plain,
    unit_of,
)
from abaton.site.sources.tabular.mapping import (
    TYPES,
    Codings,
    Compiled,
    Meaning,
    Person,
    RowsPart,
    TableMapping,
    TablePart,
    compiled,
    fits,
)
from abaton.site.sources.tabular.table_reader import TableFile, tables_in

Cells = list[str]
UNNAMED = "a row has a code that the mapping does not name"


class RowReader:
    """Reads the rows of one file.

    Args:
        mapping: The whole mapping.
        table: Its part about this file.
        file: The file.
        number: The file's number, which enters the ids of resources.
        types: The resource types that are wanted.
        faults: Where rows that mean nothing are counted.
    """

    def __init__(
        self,
        mapping: TableMapping,
        table: TablePart,
        file: TableFile,
        number: int,
        types: frozenset[str],
        faults: Faults,
    ) -> None:
        self._mapping, self._table, self._file, self._faults = mapping, table, file, faults
        self._number = number
        self._own = frozenset(plain(text.lower()) for text in mapping.files.missing)
        self._units = tuple(mapping.units.items())
        zone = zone_of(mapping.files.timezone)
        assert zone is not None  # the document was checked
        self._zone: tzinfo = zone
        self._sexes = {plain(text): sex for text, sex in table.sexes.items()}
        wide = ((n, name, compiled(mapping, each)) for n, (name, each) in enumerate(table.columns.items()))
        self._wide = [
            (n, name, file.place(name), each) for n, name, each in wide if TYPES[each.type] in types
        ]
        self._long = table.rows if table.rows and TYPES[table.rows.type] in types else None
        self._codes = {plain(word): compiled(mapping, each) for word, each in self._words()}
        self._places: dict[str, int] = {name: file.place(name) for name in table.names}

    @property
    def has_events(self) -> bool:
        """Whether anything of the file is wanted besides who people are."""
        return bool(self._wide or self._long)

    def _words(self) -> Iterator[tuple[str, Meaning]]:
        if self._long is not None:
            for word, each in self._long.codes.items():
                yield word, each.model_copy(update={"type": self._long.type})

    def subject(self, line: int, row: int, cells: Cells) -> str:
        """Whom a row is about; without a column for it, every row is somebody else."""
        if self._table.subject is None:
            return f"{self._number}-{row}" if self._number else str(row)
        text = self._cell(cells, self._table.subject)
        if text is None:
            raise self._file.refusal(
                line, "a row is about nobody", "fill it in, or remove it", self._table.subject
            )
        return identity(text)

    def person(self, line: int, cells: Cells) -> Person:
        """Who somebody is, as far as the row says it."""
        table = self._table
        return Person(
            self._read(line, cells, table.sex, self._sex),
            self._read(
                line, cells, table.born, lambda text: birth(text, self._mapping.files.dates, self._zone)
            ),
            self._read(line, cells, table.died, self._moment),
        )

    def events(self, line: int, who: str, cells: Cells) -> Iterator[Json]:
        """The resources of a row, all but the person."""
        for n, name, place, each in self._wide:
            text = self._text(cells[place], each.missing)
            if text is None:
                continue
            when = each.when or self._table.when
            try:
                dated = when if when != name or each.type != "observation" else None
                yes = True if dated == name else each.happens(text)
            except CellError as error:
                raise self._file.refusal(line, error.what, error.remedy, name) from None
            if not yes:
                continue
            moment = self._read(line, cells, dated, self._moment)
            value = self._told(line, name, each, text, None) if each.type == "observation" else {}
            yield _made(each.type, self._name(line, n), who, each.codings, moment, None, None, value)
        if self._long is not None:
            yield from self._row(line, who, cells, self._long)

    def _row(self, line: int, who: str, cells: Cells, long: RowsPart) -> Iterator[Json]:
        word = self._cell(cells, long.code)
        if word is None:
            raise self._file.refusal(line, "a row has no code", "fill it in, or remove the row", long.code)
        each = self._codes.get(plain(word))
        codings = each.codings if each is not None else self._coded(word, cells, long)
        if not codings:
            self._faults.note(UNNAMED, f"{self._file.name} line {line}")
            return
        value: Json = {}
        if long.type == "observation":
            assert long.value is not None
            text = self._text(cells[self._places[long.value]], each.missing if each else frozenset())
            if text is None:
                return
            unit = self._cell(cells, long.unit) if long.unit else None
            value = self._told(
                line, long.value, each or Compiled("observation", codings), text, unit, long.unit
            )
        when = self._read(line, cells, self._table.when, self._moment)
        end = self._read(line, cells, long.end, self._moment)
        recorded = self._read(line, cells, long.recorded, self._moment)
        yield _made(long.type, self._name(line, len(self._wide)), who, codings, when, end, recorded, value)

    def _coded(self, word: str, cells: Cells, long: RowsPart) -> Codings:
        if long.system is not None:
            return ((self._mapping.system(long.system), word),)
        if long.system_column is None:
            return ()
        named = self._cell(cells, long.system_column) or ""
        system = self._mapping.system(named.lower())
        return ((named if ":" in named else system, word),) if ":" in named or ":" in system else ()

    def _told(
        self,
        line: int,
        column: str,
        each: Compiled,
        text: str,
        unit: str | None,
        unit_column: str | None = None,
    ) -> Json:
        try:
            if each.values:
                return each.value(text)
            sign, found = number(text, self._mapping.files.decimal)
            if each.integer:
                if sign or found != int(found):
                    raise CellError(
                        "this is not a whole number", "correct it, or leave out number = 'integer'"
                    )
                return {"valueInteger": int(found)}
        except CellError as error:
            raise self._file.refusal(line, error.what, error.remedy, column) from None
        try:
            meant = unit_of(unit, self._units) if unit is not None else each.unit
        except CellError as error:
            raise self._file.refusal(line, error.what, error.remedy, unit_column or column) from None
        return {"valueQuantity": quantity(found, meant, sign)}

    def _name(self, line: int, n: int) -> str:
        return f"t{self._number}-{line}-{n}"

    def _text(self, cell: str, missing: frozenset[str]) -> str | None:
        """What stands in a cell; nothing if that stands for nothing."""
        text = cell.strip()
        word = text.lower()
        if word in MISSING or plain(word) in self._own or (missing and plain(word) in missing):
            return None
        return text

    def _cell(self, cells: Cells, column: str) -> str | None:
        return self._text(cells[self._places[column]], frozenset())

    def _read(self, line: int, cells: Cells, column: str | None, read: Callable[[str], str]) -> str | None:
        text = self._cell(cells, column) if column else None
        if text is None:
            return None
        try:
            return read(text)
        except CellError as error:
            raise self._file.refusal(line, error.what, error.remedy, column or "") from None

    def _moment(self, text: str) -> str:
        return moment(text, self._mapping.files.dates, self._zone)

    def _sex(self, text: str) -> str:
        found = self._sexes.get(plain(text)) if self._sexes else SEXES.get(text.lower())
        if found is None:
            raise CellError("the mapping does not say which sex is meant", "write sexes = { '1' = 'male' }")
        return found


def _made(
    kind: str,
    name: str,
    who: str,
    codings: Codings,
    when: str | None,
    end: str | None,
    recorded: str | None,
    value: Json,
) -> Json:
    if kind == "observation":
        return observation(name, who, codings, when, value)
    if kind == "condition":
        return condition(name, who, codings, when, end, recorded)
    if kind == "encounter":
        return encounter(name, who, codings, when, end, "")
    if kind == "procedure":
        return procedure(name, who, codings, when, end)
    return medicine(TYPES[kind], name, who, codings, when, end)


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
