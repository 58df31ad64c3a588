"""Tables as a source of FHIR records, converted by the mapping document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import tzinfo
from pathlib import Path

from abaton.errors import SettingsError
from abaton.fhir.partial_dates import parse_time_zone
from abaton.record_types import Record
from abaton.site.sources.base import SourceErrors
from abaton.site.sources.fhir_builders import (
    Json,
    build_condition,
    build_encounter,
    build_medication,
    build_observation,
    build_patient,
    build_procedure,
    build_quantity,
    fhir_id,
)
from abaton.site.sources.tabular.cell_parser import (
    MISSING_VALUES,
    SEX_SPELLINGS,
    CellError,
    normalise_text,
    parse_birth_date,
    parse_date,
    parse_number,
    to_ucum,
)
from abaton.site.sources.tabular.mapping import (
    TYPES,
    CodeRowsMapping,
    Codings,
    ColumnMapping,
    CompiledMapping,
    Demographics,
    MappingDocument,
    TableSection,
    compile_mapping,
    matches_file,
)
from abaton.site.sources.tabular.table_reader import TabularFile, find_tables

Cells = list[str]
UNKNOWN_CODE = "the code of a row is not in the mapping"


class TabularRowMapper:
    """Mapper of the rows of one file to FHIR resources.

    Args:
        mapping: The mapping document.
        table: Its section for this file.
        file: The file.
        file_number: Number of the file, part of the resource ids.
        types: Required resource types.
        errors: Counts of skipped rows.
    """

    def __init__(
        self,
        mapping: MappingDocument,
        table: TableSection,
        file: TabularFile,
        file_number: int,
        types: frozenset[str],
        errors: SourceErrors,
    ) -> None:
        self._mapping, self._table, self._file, self._errors = mapping, table, file, errors
        self._file_number = file_number
        self._missing_values = frozenset(normalise_text(text.lower()) for text in mapping.files.missing)
        self._units = tuple(mapping.units.items())
        zone = parse_time_zone(mapping.files.timezone)
        assert zone is not None  # the mapping was validated
        self._zone: tzinfo = zone
        self._sex_values = {normalise_text(text): sex for text, sex in table.sex_values.items()}
        compiled = (
            (number, name, compile_mapping(mapping, column))
            for number, (name, column) in enumerate(table.columns.items())
        )
        self._columns = [
            (number, name, file.column_index(name), column)
            for number, name, column in compiled
            if TYPES[column.type] in types
        ]
        self._code_rows = (
            table.code_rows if table.code_rows and TYPES[table.code_rows.type] in types else None
        )
        self._codes = {
            normalise_text(code): compile_mapping(mapping, column) for code, column in self._local_codes()
        }
        self._indices: dict[str, int] = {name: file.column_index(name) for name in table.column_names}

    @property
    def has_events(self) -> bool:
        """Whether a file of the tabular source has required resources besides Patients."""
        return bool(self._columns or self._code_rows)

    def _local_codes(self) -> Iterator[tuple[str, ColumnMapping]]:
        if self._code_rows is not None:
            for code, column in self._code_rows.codes.items():
                yield code, column.model_copy(update={"type": self._code_rows.type})

    def subject(self, line: int, row: int, cells: Cells) -> str:
        """Return the Patient id of a table row; without a subject column every row is a subject."""
        if self._table.subject is None:
            return f"{self._file_number}-{row}" if self._file_number else str(row)
        text = self._cell(cells, self._table.subject)
        if text is None:
            raise self._file.row_error(
                line, "the subject of the row is missing", "add it, or remove the row", self._table.subject
            )
        return fhir_id(text)

    def demographics(self, line: int, cells: Cells) -> Demographics:
        """Return sex, birth and death in a row of the tabular source."""
        table = self._table
        return Demographics(
            self._parse_cell(line, cells, table.sex, self._parse_sex),
            self._parse_cell(
                line,
                cells,
                table.birth_date,
                lambda text: parse_birth_date(text, self._mapping.files.dates, self._zone),
            ),
            self._parse_cell(line, cells, table.death_date, self._parse_date),
        )

    def events(self, line: int, patient_id: str, cells: Cells) -> Iterator[Json]:
        """Convert a row of the tabular source: yield its resources, except the Patient."""
        for number, name, index, column in self._columns:
            text = self._cell_text(cells[index], column.missing)
            if text is None:
                continue
            date_column: str | None = column.date_column or self._table.date_column
            if date_column == name and column.type == "observation":
                date_column = None
            try:
                is_present = date_column == name or column.is_present(text)
            except CellError as error:
                raise self._file.row_error(line, error.what, error.remedy, name) from None
            if not is_present:
                continue
            date = self._parse_cell(line, cells, date_column, self._parse_date)
            is_observation = column.type == "observation"
            value = self._observation_value(line, name, column, text, None) if is_observation else {}
            resource_id = self._resource_id(line, number)
            yield _build_resource(
                column.type, resource_id, patient_id, column.codings, date, None, None, value
            )
        if self._code_rows is not None:
            yield from self._code_row(line, patient_id, cells, self._code_rows)

    def _code_row(
        self, line: int, patient_id: str, cells: Cells, code_rows: CodeRowsMapping
    ) -> Iterator[Json]:
        code = self._cell(cells, code_rows.code)
        if code is None:
            raise self._file.row_error(
                line, "the code of the row is missing", "add it, or remove the row", code_rows.code
            )
        column = self._codes.get(normalise_text(code))
        codings = column.codings if column is not None else self._row_codings(code, cells, code_rows)
        if not codings:
            self._errors.add(UNKNOWN_CODE, f"{self._file.name} line {line}")
            return
        value: Json = {}
        if code_rows.type == "observation":
            assert code_rows.value is not None
            missing = column.missing if column else frozenset()
            text = self._cell_text(cells[self._indices[code_rows.value]], missing)
            if text is None:
                return
            unit = self._cell(cells, code_rows.unit) if code_rows.unit else None
            column = column or CompiledMapping("observation", codings)
            value = self._observation_value(line, code_rows.value, column, text, unit, code_rows.unit)
        date = self._parse_cell(line, cells, self._table.date_column, self._parse_date)
        end = self._parse_cell(line, cells, code_rows.end, self._parse_date)
        recorded = self._parse_cell(line, cells, code_rows.recorded, self._parse_date)
        resource_id = self._resource_id(line, len(self._columns))
        yield _build_resource(code_rows.type, resource_id, patient_id, codings, date, end, recorded, value)

    def _row_codings(self, code: str, cells: Cells, code_rows: CodeRowsMapping) -> Codings:
        if code_rows.system is not None:
            return ((self._mapping.system_url(code_rows.system), code),)
        if code_rows.system_column is None:
            return ()
        name = self._cell(cells, code_rows.system_column) or ""
        url = self._mapping.system_url(name.lower())
        return ((name if ":" in name else url, code),) if ":" in name or ":" in url else ()

    def _observation_value(
        self,
        line: int,
        column_name: str,
        column: CompiledMapping,
        text: str,
        unit: str | None,
        unit_column: str | None = None,
    ) -> Json:
        try:
            if column.values:
                return column.observation_value(text)
            comparator, value = parse_number(text, self._mapping.files.decimal)
            if column.is_integer:
                if comparator or value != int(value):
                    raise CellError("the cell is not an integer", "correct it, or remove number = 'integer'")
                return {"valueInteger": int(value)}
        except CellError as error:
            raise self._file.row_error(line, error.what, error.remedy, column_name) from None
        try:
            ucum_unit = to_ucum(unit, self._units) if unit is not None else column.unit
        except CellError as error:
            raise self._file.row_error(line, error.what, error.remedy, unit_column or column_name) from None
        return {"valueQuantity": build_quantity(value, ucum_unit, comparator)}

    def _resource_id(self, line: int, column_number: int) -> str:
        return f"t{self._file_number}-{line}-{column_number}"

    def _cell_text(self, cell: str, missing: frozenset[str]) -> str | None:
        """Return the text of a cell of the tabular source; None if it stands for a missing value."""
        text = cell.strip()
        lower = text.lower()
        if (
            lower in MISSING_VALUES
            or normalise_text(lower) in self._missing_values
            or (missing and normalise_text(lower) in missing)
        ):
            return None
        return text

    def _cell(self, cells: Cells, column: str) -> str | None:
        return self._cell_text(cells[self._indices[column]], frozenset())

    def _parse_cell(
        self, line: int, cells: Cells, column: str | None, parse: Callable[[str], str]
    ) -> str | None:
        text = self._cell(cells, column) if column else None
        if text is None:
            return None
        try:
            return parse(text)
        except CellError as error:
            raise self._file.row_error(line, error.what, error.remedy, column or "") from None

    def _parse_date(self, text: str) -> str:
        return parse_date(text, self._mapping.files.dates, self._zone)

    def _parse_sex(self, text: str) -> str:
        sex = (
            self._sex_values.get(normalise_text(text))
            if self._sex_values
            else SEX_SPELLINGS.get(text.lower())
        )
        if sex is None:
            raise CellError(
                "the sex is not in the mapping", "add sex_values = { '1' = 'male' } to the mapping"
            )
        return sex


def _build_resource(
    event_type: str,
    resource_id: str,
    patient_id: str,
    codings: Codings,
    date: str | None,
    end: str | None,
    recorded: str | None,
    value: Json,
) -> Json:
    if event_type == "observation":
        return build_observation(resource_id, patient_id, codings, date, value)
    if event_type == "condition":
        return build_condition(resource_id, patient_id, codings, date, end, recorded)
    if event_type == "encounter":
        return build_encounter(resource_id, patient_id, codings, date, end, "")
    if event_type == "procedure":
        return build_procedure(resource_id, patient_id, codings, date, end)
    return build_medication(TYPES[event_type], resource_id, patient_id, codings, date, end)


class TabularSource:
    """Records in tables, joined by subject.

    Patients come first: memory holds a few hundred bytes for each subject. All other resources are a stream.

    Args:
        paths: Files and folders.
        mapping: Mapping document of the files.
        types: Required resource types; other rows are not converted.
    """

    is_grouped = False

    def __init__(self, paths: Iterable[Path], mapping: MappingDocument, types: frozenset[str]) -> None:
        self._paths, self._mapping, self._types = tuple(paths), mapping, types
        self.errors = SourceErrors()

    def records(self) -> Iterator[Record]:
        """Yield all Patients of the tabular source, then its other resources in the order of tables and rows.

        Raises:
            SettingsError: A file or a column is missing.
            RefusedError: A row is invalid; with its line.
        """
        mappers = list(self._row_mappers())
        for patient_id, demographics in self._read_demographics(mappers).items():
            yield Record(
                build_patient(patient_id, demographics.sex, demographics.birth_date, demographics.death_date)
            )
        for _, file, mapper in mappers:
            if mapper.has_events:
                for row, (line, cells) in enumerate(file.rows(), 1):
                    patient_id = mapper.subject(line, row, cells)
                    yield from map(Record, mapper.events(line, patient_id, cells))

    def _row_mappers(self) -> Iterator[tuple[TableSection, TabularFile, TabularRowMapper]]:
        paths, file_number = find_tables(self._paths), 0
        for index, table in enumerate(self._mapping.tables):
            matches = [path for path in paths if matches_file(table, path)]
            if not matches:
                raise SettingsError(
                    "no file matches 'file'",
                    where=f"tables.{index} of the mapping",
                    remedy="correct tables.file, or records.paths",
                )
            for path in matches:
                file = TabularFile(path, self._mapping.files, table)
                yield (
                    table,
                    file,
                    TabularRowMapper(self._mapping, table, file, file_number, self._types, self.errors),
                )
                file_number += 1

    def _read_demographics(
        self, mappers: list[tuple[TableSection, TabularFile, TabularRowMapper]]
    ) -> dict[str, Demographics]:
        has_demographics = any(table.has_demographics for table, _, _ in mappers)
        subjects: dict[str, Demographics] = {}
        for table, file, mapper in mappers:
            if has_demographics and not table.has_demographics:
                continue
            for row, (line, cells) in enumerate(file.rows(), 1):
                patient_id, current = mapper.subject(line, row, cells), mapper.demographics(line, cells)
                earlier = subjects.get(patient_id)
                merged = current if earlier is None else earlier.merge(current)
                if merged is None:
                    raise file.row_error(
                        line,
                        "sex, birth or death of the subject contradicts an earlier row",
                        "give each person a unique id, or correct the row",
                        table.subject or "",
                    )
                subjects[patient_id] = merged
        return subjects

    def close(self) -> None:
        """Do nothing: the tabular source creates no temporary files."""
