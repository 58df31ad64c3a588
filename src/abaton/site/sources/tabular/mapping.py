"""The mapping of a site's tables: which column is what, in a document of its own, with lines for every problem.

What a column, or a word in it, means: the mapping's words made ready to be asked row by row.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from abaton.documents.fields import Part, fault
from abaton.documents.problems import DocumentError, Guide
from abaton.documents.toml_reader import checked_toml, read_document, text_of
from abaton.errors import SettingsError
from abaton.fhir.partial_dates import zone_of
from abaton.fhir.terminology import SHORT
from abaton.fhir.ucum import read_unit
from abaton.site.sources.fhir_builders import Json, concept, quantity
from abaton.site.sources.tabular.cell_parser import NO, YES, CellError, number, plain

_GUIDE = Guide("abaton site map", "docs/sources.md")
_FORM = re.compile(r"%[YmdHMSIpyzbB]")
TYPES = {
    "observation": "Observation",
    "condition": "Condition",
    "encounter": "Encounter",
    "procedure": "Procedure",
    "medication": "MedicationStatement",
    "prescription": "MedicationRequest",
}
"""What a column or a row may be, and the resource that it becomes."""


class MappingError(DocumentError):
    """A mapping that cannot be used, with every problem found in it."""


def _unit(text: str) -> str:
    if read_unit(text) is None:
        raise fault("the unit is not one of UCUM", "write it as UCUM does: mm[Hg], mg/dL, /min, a")
    return text


def _form(text: str) -> str:
    try:
        datetime(2023, 11, 28, 13).strftime(text)
    except ValueError:
        text = ""
    if not _FORM.search(text):
        raise fault("this is not the form of a date", "write it as %d.%m.%Y, or %d.%m.%Y %H:%M with a time")
    return text


def _zone(text: str) -> str:
    if zone_of(text) is None:
        raise fault("there is no such time zone", "write +02:00, Z, or a name such as Europe/Athens")
    return text


def _encoding(text: str) -> str:
    try:
        codecs.lookup(text)
    except LookupError:
        raise fault("there is no such encoding", "write utf-8, or cp1252 for older exports") from None
    return text


def _codes(text: str) -> str:
    if not text.split() or any(
        len(each.split("|")) != 2 or not all(each.split("|")) for each in text.split()
    ):
        raise fault("this is not a code", "write it as 'loinc|8480-6'; several stand apart by spaces")
    return text


Column = Annotated[str, Field(min_length=1, max_length=200)]
Unit = Annotated[str, AfterValidator(_unit)]
Codes = Annotated[str, AfterValidator(_codes)]
Form = Annotated[str, AfterValidator(_form)]
Zone = Annotated[str, AfterValidator(_zone)]
Kind = Literal["observation", "condition", "encounter", "procedure", "medication", "prescription"]


class FilesPart(Part):
    """How the files are written."""

    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    decimal: Literal[".", ","] = "."
    encoding: Annotated[str, AfterValidator(_encoding)] = "utf-8"
    missing: tuple[str, ...] = ()
    dates: tuple[Form, ...] = ()
    timezone: Zone = "Z"


class Meaning(Part):
    """What one column, or one word of a column of codes, means."""

    code: Codes
    type: Kind | None = None
    unit: Unit | None = None
    number: Literal["quantity", "integer"] = "quantity"
    values: dict[str, str | bool] = Field(default_factory=dict)
    missing: tuple[str, ...] = ()
    when: Column | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        events = self.type not in (None, "observation")
        if events and (self.unit or self.number != "quantity"):
            raise fault("only an observation has a unit or a number", "leave it out, or leave 'type' out")
        if events and not all(isinstance(value, bool) for value in self.values.values()):
            raise fault("this column says yes or no", "write values = { '1' = true, '0' = false }")
        if self.number == "integer" and self.unit:
            raise fault("a whole number that is counted has no unit", "leave out 'unit' or 'number'")
        return self


class RowsPart(Part):
    """A long table: each row is one measurement, diagnosis, visit or medicine, named by a code in a column."""

    code: Column
    type: Kind = "observation"
    system: str | None = None
    system_column: Column | None = None
    value: Column | None = None
    unit: Column | None = None
    end: Column | None = None
    recorded: Column | None = None
    codes: dict[str, Meaning] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.type == "observation" and self.value is None:
            raise fault("it is not said in which column the values are", "write value = 'result'")
        if self.type != "observation" and (self.value or self.unit):
            raise fault("only observations have values", "leave out 'value' and 'unit'")
        if self.system and self.system_column:
            raise fault("two places say the code system", "give 'system' or 'system_column'")
        if not (self.system or self.system_column or self.codes):
            raise fault("it is not said what the codes mean", "give 'system', 'system_column' or 'codes'")
        return self


class TablePart(Part):
    """One kind of file."""

    file: Column = "*"
    header: tuple[Column, ...] = ()
    subject: Column | None = None
    sex: Column | None = None
    sexes: dict[str, Literal["male", "female", "other", "unknown"]] = Field(default_factory=dict)
    born: Column | None = None
    died: Column | None = None
    when: Column | None = None
    columns: dict[Column, Meaning] = Field(default_factory=dict)
    rows: RowsPart | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Every column that is spoken of."""
        rows = self.rows
        long = (rows.code, rows.system_column, rows.value, rows.unit, rows.end, rows.recorded) if rows else ()
        said = (self.subject, self.sex, self.born, self.died, self.when, *long, *self.columns)
        dated = (each.when for each in self.columns.values())
        return tuple(dict.fromkeys(name for name in (*said, *dated) if name))

    @property
    def tells_people(self) -> bool:
        """Whether its rows say who somebody is."""
        return bool(self.sex or self.born or self.died)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.header and (lost := [name for name in self.names if name not in self.header]):
            raise fault(f"'{lost[0]}' is not in 'header'", "name every column of the file there, in order")
        if len(set(self.header)) < len(self.header):
            raise fault("'header' has a name twice", "give each column a name of its own")
        if not self.names:
            raise fault("the table says nothing", "name at least one column")
        return self


class TableMapping(Part):
    """A whole mapping, complete and checked."""

    files: FilesPart = FilesPart()
    systems: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,30}$")], str] = Field(
        default_factory=dict
    )
    units: dict[str, Unit] = Field(default_factory=dict)
    tables: tuple[TablePart, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if any(table.subject is None for table in self.tables) and len(self.tables) > 1:
            raise fault(
                "a table does not say whom its rows are about", "write subject = 'patient_id' in each"
            )
        known = {**SHORT, **self.systems}
        for table in self.tables:
            meant = [*table.columns.values(), *(table.rows.codes.values() if table.rows else ())]
            told = [
                (m.code, *(v for v in m.values.values() if isinstance(v, str) and "|" in v)) for m in meant
            ]
            named = [each.split("|")[0] for texts in told for text in texts for each in text.split()]
            named += [table.rows.system] if table.rows and table.rows.system else []
            if lost := [name for name in named if name not in known and ":" not in name]:
                raise fault(
                    f"'{lost[0]}' is no code system",
                    f"use {', '.join(SHORT)}, an address, or say what it stands for under [systems]",
                )
        return self

    def system(self, name: str) -> str:
        """The address of a code system by its short name; an address stands for itself."""
        return self.systems.get(name) or SHORT.get(name, name)

    def codings(self, text: str) -> tuple[tuple[str, str], ...]:
        """Codes as they are written in the mapping: the address of the system, and the code."""
        pairs = (each.split("|") for each in text.split())
        return tuple((self.system(system), code) for system, code in pairs)


def load_mapping(file: Path) -> TableMapping:
    """Read and check a mapping.

    Raises:
        MappingError: With every problem that was found, each with its line and its remedy.
    """
    return mapping_from_toml(text_of(read_document(file, MappingError), str(file), MappingError), str(file))


def mapping_from_toml(text: str, file: str = "mapping.toml") -> TableMapping:
    """Check the text of a mapping."""
    return checked_toml(text, file, TableMapping, _GUIDE, MappingError)


def fits(table: TablePart, path: Path) -> bool:
    """Whether a table of the mapping speaks of a file."""
    return PurePath(path.name).match(table.file)


Codings = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Person:
    """What the tables say of who somebody is."""

    sex: str | None = None
    born: str | None = None
    died: str | None = None

    def with_more(self, other: Person) -> Person | None:
        """Both together; nothing if they contradict each other."""
        pairs = ((self.sex, other.sex), (self.born, other.born), (self.died, other.died))
        if any(one and two and one != two for one, two in pairs):
            return None
        return Person(*(one or two for one, two in pairs))


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a column or a word means, ready to be asked row by row."""

    type: str
    codings: Codings
    unit: str | None = None
    values: dict[str, Any] | None = None
    missing: frozenset[str] = frozenset()
    when: str | None = None
    integer: bool = False

    def happens(self, text: str) -> bool:
        """Whether a cell says that there is something; of an observation it always does."""
        if self.type == "observation":
            return True
        if self.values:
            return bool(self._word(text))
        if text.lower() in YES or text.lower() in NO:
            return text.lower() in YES
        word = plain(text)
        if word not in ("0", "1"):
            raise CellError("this says neither yes nor no", "write values = { 'pos' = true, 'neg' = false }")
        return word == "1"

    def value(self, text: str) -> Json:
        """The value of an observation whose words are listed."""
        found = self._word(text)
        return {"valueBoolean": found} if isinstance(found, bool) else {
            key: dict(each) for key, each in found.items()
        }  # fmt: skip

    def _word(self, text: str) -> Any:
        assert self.values is not None
        found = self.values.get(plain(text))
        if found is None:
            raise CellError("the mapping does not say what this means", "name it under 'values' or 'missing'")
        return found


def compiled(mapping: TableMapping, each: Meaning) -> Compiled:
    """What the mapping says of a column or a word, made ready."""
    values = {plain(word): _meant(mapping, each, told) for word, told in each.values.items()}
    missing = frozenset(plain(word.lower()) for word in each.missing)
    integer = each.number == "integer"
    codings = mapping.codings(each.code)
    return Compiled(each.type or "observation", codings, each.unit, values, missing, each.when, integer)


def _meant(mapping: TableMapping, each: Meaning, told: object) -> Any:
    """What a word of the mapping stands for: yes or no, a code, or a number such as '>120'."""
    if isinstance(told, bool):
        return told
    text = str(told)
    if "|" in text:
        return {"valueCodeableConcept": concept(mapping.codings(text))}
    try:
        sign, found = number(text, ".")
    except CellError:
        raise SettingsError(
            f"'{text}' is neither a code nor a number",
            where="values of the mapping",
            remedy="write 'snomed|449868002', '>120', true or false",
        ) from None
    return {"valueQuantity": quantity(found, each.unit, sign)}
