"""Mapping document of a site's tables (``mapping.toml``) and its compiled form."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from abaton.documents.fields import Section, field_error
from abaton.documents.problems import DocumentError, DocumentHelp
from abaton.documents.toml_reader import decode_text, read_document, validate_toml
from abaton.errors import SettingsError, shorten_name
from abaton.fhir.terminology import SHORT_NAMES
from abaton.fhir.ucum import parse_unit
from abaton.site.config_fields import check_time_zone
from abaton.site.sources.fhir_builders import Json, build_concept, build_quantity
from abaton.site.sources.tabular.cell_parser import (
    FALSE_VALUES,
    TRUE_VALUES,
    CellError,
    normalise_text,
    parse_number,
)

_HELP = DocumentHelp("abaton site suggest-mapping", "docs/sources.md")
_FORMAT_CODE = re.compile(r"%[YmdHMSIpyzbB]")
TYPES = {
    "observation": "Observation",
    "condition": "Condition",
    "encounter": "Encounter",
    "procedure": "Procedure",
    "medication": "MedicationStatement",
    "prescription": "MedicationRequest",
}
"""FHIR resource type by type of event."""


class MappingError(DocumentError):
    """Invalid mapping, with every problem."""


def _check_unit(text: str) -> str:
    if parse_unit(text) is None:
        raise field_error("this is not a UCUM unit", "write mm[Hg], mg/dL, /min or a")
    return text


def _check_date_format(text: str) -> str:
    try:
        datetime(2023, 11, 28, 13).strftime(text)
    except ValueError:
        text = ""
    if not _FORMAT_CODE.search(text):
        raise field_error("the text is not a date format", "write %d.%m.%Y, or %d.%m.%Y %H:%M with a time")
    return text


def _check_encoding(text: str) -> str:
    try:
        codecs.lookup(text)
    except LookupError:
        raise field_error(
            "this is not a known encoding", "write utf-8, or cp1252 for older exports"
        ) from None
    return text


def _check_codes(text: str) -> str:
    if not text.split() or any(
        len(code.split("|")) != 2 or not all(code.split("|")) for code in text.split()
    ):
        raise field_error("the text is not a code", "write 'loinc|8480-6'; separate several codes by spaces")
    return text


ColumnName = Annotated[str, Field(min_length=1, max_length=200)]
Unit = Annotated[str, AfterValidator(_check_unit)]
Codes = Annotated[str, AfterValidator(_check_codes)]
DateFormat = Annotated[str, AfterValidator(_check_date_format)]
TimeZone = Annotated[str, AfterValidator(check_time_zone)]
EventType = Literal["observation", "condition", "encounter", "procedure", "medication", "prescription"]


class FilesSection(Section):
    """``[files]``: format of the files."""

    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    decimal: Literal[".", ","] = "."
    encoding: Annotated[str, AfterValidator(_check_encoding)] = "utf-8"
    missing: tuple[str, ...] = ()
    dates: tuple[DateFormat, ...] = ()
    timezone: TimeZone = "Z"


class ColumnMapping(Section):
    """Meaning of one column, or of one local code."""

    code: Codes
    type: EventType | None = None
    unit: Unit | None = None
    number: Literal["quantity", "integer"] = "quantity"
    values: dict[str, str | bool] = Field(default_factory=dict)
    missing: tuple[str, ...] = ()
    date_column: ColumnName | None = None

    @model_validator(mode="after")
    def _check_fits(self) -> Self:
        is_event = self.type not in (None, "observation")
        if is_event and (self.unit or self.number != "quantity"):
            raise field_error(
                f"'unit' and 'number' do not apply to type = '{self.type}'", "remove them, or remove 'type'"
            )
        if is_event and not all(isinstance(value, bool) for value in self.values.values()):
            raise field_error(
                f"'values' of type = '{self.type}' are not boolean",
                "write values = { '1' = true, '0' = false }",
            )
        if self.number == "integer" and self.unit:
            raise field_error("'unit' does not apply to number = 'integer'", "remove 'unit' or 'number'")
        return self


class CodeRowsMapping(Section):
    """``[tables.code_rows]``: long table with one event per row, identified by a code in a column."""

    code: ColumnName
    type: EventType = "observation"
    system: str | None = None
    system_column: ColumnName | None = None
    value: ColumnName | None = None
    unit: ColumnName | None = None
    end: ColumnName | None = None
    recorded: ColumnName | None = None
    codes: dict[str, ColumnMapping] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_fits(self) -> Self:
        if self.type == "observation" and self.value is None:
            raise field_error("'value', the column of the values, is missing", "add value = 'result'")
        if self.type != "observation" and (self.value or self.unit):
            raise field_error(f"'value' and 'unit' do not apply to type = '{self.type}'", "remove them")
        if self.system and self.system_column:
            raise field_error("both 'system' and 'system_column' are set", "remove one of them")
        if not (self.system or self.system_column or self.codes):
            raise field_error("the code system is missing", "add 'system', 'system_column' or 'codes'")
        return self


class TableSection(Section):
    """``[[tables]]``: files of one format."""

    file: ColumnName = "*"
    header: tuple[ColumnName, ...] = ()
    subject: ColumnName | None = None
    sex: ColumnName | None = None
    sex_values: dict[str, Literal["male", "female", "other", "unknown"]] = Field(default_factory=dict)
    birth_date: ColumnName | None = None
    death_date: ColumnName | None = None
    date_column: ColumnName | None = None
    columns: dict[ColumnName, ColumnMapping] = Field(default_factory=dict)
    code_rows: CodeRowsMapping | None = None

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of all columns in a table section of the mapping document."""
        rows = self.code_rows
        code_columns = (
            (rows.code, rows.system_column, rows.value, rows.unit, rows.end, rows.recorded) if rows else ()
        )
        names = (
            self.subject,
            self.sex,
            self.birth_date,
            self.death_date,
            self.date_column,
            *code_columns,
            *self.columns,
        )
        date_columns = (column.date_column for column in self.columns.values())
        return tuple(dict.fromkeys(name for name in (*names, *date_columns) if name))

    @property
    def has_demographics(self) -> bool:
        """Whether a table section of the mapping document maps sex, birth or death."""
        return bool(self.sex or self.birth_date or self.death_date)

    @model_validator(mode="after")
    def _check_fits(self) -> Self:
        if self.header and (missing := [name for name in self.column_names if name not in self.header]):
            raise field_error(
                f"the column '{shorten_name(missing[0])}' is not in 'header'",
                "list every column of the file in 'header', in order",
            )
        if len(set(self.header)) < len(self.header):
            raise field_error("'header' contains a name twice", "rename one of the columns")
        if not self.column_names:
            raise field_error("no column is mapped", "add 'columns' or [tables.code_rows]")
        return self


class MappingDocument(Section):
    """Mapping document."""

    files: FilesSection = FilesSection()
    systems: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,30}$")], str] = Field(
        default_factory=dict
    )
    units: dict[str, Unit] = Field(default_factory=dict)
    tables: tuple[TableSection, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_fits(self) -> Self:
        if any(table.subject is None for table in self.tables) and len(self.tables) > 1:
            raise field_error(
                "'subject' is missing in one of several tables", "add subject = 'patient_id' to each"
            )
        known = {**SHORT_NAMES, **self.systems}
        for table in self.tables:
            columns = [*table.columns.values(), *(table.code_rows.codes.values() if table.code_rows else ())]
            texts = [
                text
                for column in columns
                for text in (column.code, *column.values.values())
                if isinstance(text, str) and "|" in text
            ]
            names = [code.split("|")[0] for text in texts for code in text.split()]
            names += [table.code_rows.system] if table.code_rows and table.code_rows.system else []
            if any(name not in known and ":" not in name for name in names):
                raise field_error(
                    "a code system is not known",
                    f"use {', '.join(SHORT_NAMES)} or a URL, or define it under [systems]",
                )
        return self

    def system_url(self, name: str) -> str:
        """Return the URL of a code system by its short name in the mapping; a URL is returned unchanged."""
        return self.systems.get(name) or SHORT_NAMES.get(name, name)

    def parse_codings(self, text: str) -> tuple[tuple[str, str], ...]:
        """Return system URL and code of each code in a mapping's text like ``loinc|8480-6 snomed|271649006``."""
        pairs = (code.split("|") for code in text.split())
        return tuple((self.system_url(system), code) for system, code in pairs)


def load_mapping(file: Path) -> MappingDocument:
    """Read and validate the mapping document of a site's tables.

    Raises:
        MappingError: With every problem, its line and its remedy.
    """
    return mapping_from_toml(
        decode_text(read_document(file, MappingError), str(file), MappingError), str(file)
    )


def mapping_from_toml(text: str, file: str = "mapping.toml") -> MappingDocument:
    """Validate the text of a mapping document of tables."""
    return validate_toml(text, file, MappingDocument, _HELP, MappingError)


def matches_file(table: TableSection, path: Path) -> bool:
    """Return whether a table section of the mapping document applies to a file."""
    return PurePath(path.name).match(table.file)


Codings = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Demographics:
    """Sex, birth and death of a subject."""

    sex: str | None = None
    birth_date: str | None = None
    death_date: str | None = None

    def merge(self, other: Demographics) -> Demographics | None:
        """Return the union of two mapped demographics; None if they contradict each other."""
        pairs = (
            (self.sex, other.sex),
            (self.birth_date, other.birth_date),
            (self.death_date, other.death_date),
        )
        if any(first and second and first != second for first, second in pairs):
            return None
        return Demographics(*(first or second for first, second in pairs))


@dataclass(frozen=True, slots=True)
class CompiledMapping:
    """Compiled mapping of a column or a local code."""

    type: str
    codings: Codings
    unit: str | None = None
    values: dict[str, Any] | None = None
    missing: frozenset[str] = frozenset()
    date_column: str | None = None
    is_integer: bool = False

    def is_present(self, text: str) -> bool:
        """Return whether a cell states by its mapping that the event occurred; always true for an observation."""
        if self.type == "observation":
            return True
        if self.values:
            return bool(self._lookup(text))
        if text.lower() in TRUE_VALUES or text.lower() in FALSE_VALUES:
            return text.lower() in TRUE_VALUES
        normalised = normalise_text(text)
        if normalised not in ("0", "1"):
            raise CellError(
                "the cell is not boolean", "add values = { 'pos' = true, 'neg' = false } to the mapping"
            )
        return normalised == "1"

    def observation_value(self, text: str) -> Json:
        """Return the FHIR value that the mapping's ``values`` list for a text."""
        value = self._lookup(text)
        if isinstance(value, bool):
            return {"valueBoolean": value}
        return {key: dict(element) for key, element in value.items()}

    def _lookup(self, text: str) -> Any:
        assert self.values is not None
        value = self.values.get(normalise_text(text))
        if value is None:
            raise CellError("the text is not in the mapping", "add it to 'values' or 'missing'")
        return value


def compile_mapping(mapping: MappingDocument, column: ColumnMapping) -> CompiledMapping:
    """Compile the mapping of a table column or a local code."""
    values = {
        normalise_text(text): _compile_value(mapping, column, value) for text, value in column.values.items()
    }
    missing = frozenset(normalise_text(text.lower()) for text in column.missing)
    return CompiledMapping(
        column.type or "observation",
        mapping.parse_codings(column.code),
        column.unit,
        values,
        missing,
        column.date_column,
        column.number == "integer",
    )


def _compile_value(mapping: MappingDocument, column: ColumnMapping, value: object) -> Any:
    """Return the FHIR value of a mapping's entry of ``values``: a boolean, a code, or a number such as '>120'."""
    if isinstance(value, bool):
        return value
    text = str(value)
    if "|" in text:
        return {"valueCodeableConcept": build_concept(mapping.parse_codings(text))}
    try:
        comparator, number = parse_number(text, ".")
    except CellError:
        raise SettingsError(
            "one of 'values' is neither a code nor a number",
            where="values of the mapping",
            remedy="write 'snomed|449868002', '>120', true or false",
        ) from None
    return {"valueQuantity": build_quantity(number, column.unit, comparator)}
