"""From rows of OMOP's tables to FHIR resources."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import date, datetime, tzinfo
from decimal import Decimal
from math import isfinite
from typing import Any

from abaton.errors import Refused
from abaton.site.moments import from_iso, possible, told
from abaton.site.sources.omop.omop_queries import Question
from abaton.site.sources.omop.concept_map import Concepts
from abaton.site.omop.names import COMPARATORS, MEDICINES, SETTINGS, SEXES
from abaton.site.sources.fhir_builders import (
    Json,
    condition,
    device,
    encounter,
    medicine,
    observation,
    patient,
    procedure,
    quantity,
)
from abaton.site.sources.base import Faults

Row = tuple[Any, ...]
Get = Callable[[Row, str], Any]
UNMAPPED = "a row's concept has no code in a system that FHIR names"
NO_UNIT = "a unit's concept is none of UCUM"
NO_NUMBER = "a value is no number, or infinite"
_MIDNIGHT = re.compile(r"[T ]00:00(:00(\.0*)?)?$")
_KINDS = {number: kind for kind, numbers in MEDICINES.items() for number in numbers}


class RowMaker:
    """Makes resources of the rows of one query.

    Args:
        question: The query.
        concepts: The vocabulary.
        zone: The time zone in which the instance tells times of day.
        types: The FHIR types that are wanted.
        faults: Where what has no code is counted.
    """

    def __init__(
        self, question: Question, concepts: Concepts, zone: tzinfo, types: frozenset[str], faults: Faults
    ) -> None:
        self._table, self._concepts, self._zone = question.table, concepts, zone
        self._types, self._faults = types, faults
        places = {name: place for place, name in enumerate(question.columns)}
        self._at: dict[str, int | None] = {
            name: places.get(name) for name in (*self._table.columns, *self._table.optional)
        }
        known = (self._table.concept, self._table.source, "unit_concept_id", "value_as_concept_id")
        self._coded = [places[name] for name in known if name in places]
        self._make: Callable[[str, str, Row], Iterable[Json]] = getattr(self, f"_{self._table.name}")

    def learn(self, rows: Iterable[Row]) -> None:
        """Ask for the concepts of some rows at once."""
        coded = self._coded
        self._concepts.learn({row[place] for row in rows for place in coded})

    def __call__(self, who: str, row: Row) -> Iterable[Json]:
        """The resources of a row."""
        return self._make(f"{self._table.name.split('_')[0]}-{self._of(row, self._table.key)}", who, row)

    def _of(self, row: Row, column: str) -> Any:
        place = self._at[column]
        return None if place is None else row[place]

    def _codes(self, row: Row) -> list[tuple[str, str]]:
        """The standard concept's code, and the source's beside it if that is another."""
        found = list(self._concepts(self._of(row, self._table.concept)))
        found += [code for code in self._concepts(self._of(row, self._table.source)) if code not in found]
        if not found:
            self._faults.note(UNMAPPED, self._table.name)
        return found

    def _when(self, row: Row, day: str) -> str | None:
        at = self._at.get(f"{day}time")
        return moment(row[at] if at is not None else None, self._zone) or moment(
            self._of(row, day), self._zone
        )

    def _visit_occurrence(self, name: str, who: str, row: Row) -> Iterable[Json]:
        number = self._of(row, "visit_concept_id")
        codes = [*self._concepts(number), *self._concepts(self._of(row, "visit_source_concept_id"))]
        if not codes and number not in SETTINGS:
            self._faults.note(UNMAPPED, self._table.name)
        start, end = self._when(row, "visit_start_date"), self._when(row, "visit_end_date")
        yield encounter(name, who, codes, start, end, SETTINGS.get(number, ""))

    def _condition_occurrence(self, name: str, who: str, row: Row) -> Iterable[Json]:
        if codes := self._codes(row):
            onset, end = self._when(row, "condition_start_date"), self._end(row, "condition_end_date")
            yield condition(name, who, codes, onset, end)

    def _procedure_occurrence(self, name: str, who: str, row: Row) -> Iterable[Json]:
        if codes := self._codes(row):
            when, end = self._when(row, "procedure_date"), self._end(row, "procedure_end_date")
            yield procedure(name, who, codes, when, end)

    def _drug_exposure(self, name: str, who: str, row: Row) -> Iterable[Json]:
        if codes := self._codes(row):
            kind = _KINDS.get(self._of(row, "drug_type_concept_id"), "MedicationStatement")
            when = self._when(row, "drug_exposure_start_date")
            yield medicine(kind, name, who, codes, when, self._end(row, "drug_exposure_end_date"))

    def _device_exposure(self, name: str, who: str, row: Row) -> Iterable[Json]:
        if codes := self._codes(row):
            when = self._when(row, "device_exposure_start_date")
            made = device(name, who, codes, when, self._end(row, "device_exposure_end_date"))
            yield from (each for each in made if each["resourceType"] in self._types)

    def _measurement(self, name: str, who: str, row: Row) -> Iterable[Json]:
        if codes := self._codes(row):
            sign = COMPARATORS.get(self._of(row, "operator_concept_id"))
            when = self._when(row, "measurement_date")
            yield observation(name, who, codes, when, self._value(row, sign))

    def _observation(self, name: str, who: str, row: Row) -> Iterable[Json]:
        if codes := self._codes(row):
            value = self._value(row, None)
            text = self._of(row, "value_as_string")
            if not value and text:
                value = {"valueString": str(text)}
            yield observation(name, who, codes, self._when(row, "observation_date"), value)

    def _end(self, row: Row, day: str) -> str | None:
        return self._when(row, day) if day in self._at else None

    def _value(self, row: Row, sign: str | None) -> Json:
        found = self._of(row, "value_as_number")
        if found is not None and isfinite(found):
            return {"valueQuantity": quantity(_plain(found), self._unit(row), sign)}
        if found is not None:
            self._faults.note(NO_NUMBER, self._table.name)
        number = self._of(row, "value_as_concept_id")
        codes = self._concepts(number)
        if codes:
            return {"valueCodeableConcept": {"coding": [{"system": s, "code": c} for s, c in codes]}}
        if number:
            self._faults.note(UNMAPPED, f"{self._table.name}.value_as_concept_id")
        return {}

    def _unit(self, row: Row) -> str | None:
        number = self._of(row, "unit_concept_id")
        if not number:
            return None
        codes = self._concepts(number)
        if not codes:
            self._faults.note(NO_UNIT, self._table.name)
            return None
        return codes[0][1]


def person(columns: tuple[str, ...], row: Row, zone: tzinfo) -> Json:
    """A row of 'person', with the death beside it, as a Patient."""
    of = dict(zip(columns, row, strict=True))
    died = moment(of.get("death_datetime"), zone) or moment(of.get("death_date"), zone)
    return patient(str(of["person_id"]), SEXES.get(of["gender_concept_id"] or 0), _born(of), died)


def _born(of: dict[str, Any]) -> str | None:
    """The date of birth as far as it is known: a day, a month or a year."""
    told = of["year_of_birth"], of.get("month_of_birth"), of.get("day_of_birth")
    if told[0] is None:
        return None
    year, month, day = (int(each or 0) for each in told)
    try:
        born = date(year, month or 1, (day or 1) if month else 1)
    except (ValueError, OverflowError):
        born = date.min
    if not possible(born.year):
        raise Refused(
            "there is no such date", where="person: year, month and day of birth", remedy="correct it"
        )
    return born.isoformat()[: 10 if month and day else 7 if month else 4]


def moment(value: Any, zone: tzinfo) -> str | None:
    """A date or time of a database as FHIR writes it; midnight is a day without a time of day."""
    if value is None or value == "":
        return None
    if isinstance(value, int | float):
        raise Refused(
            "a date is stored as a number, which does not say what it counts",
            where="a date of the OMOP tables",
            remedy="store dates as text, 2020-12-31, or give the tables as CSV or Parquet",
        )
    if isinstance(value, str):
        made = from_iso(_MIDNIGHT.sub("", value), zone)
    elif isinstance(value, datetime):
        plain = value.hour == value.minute == value.second == 0
        made = value.date().isoformat() if plain else told(value, zone)
        made = made if possible(value.year) else None
    else:
        made = value.isoformat() if possible(value.year) else None
    if made is None:
        raise Refused("there is no such date", where="a date of the OMOP tables", remedy="correct it there")
    return made


def _plain(value: Any) -> float:
    return float(value) if isinstance(value, Decimal) else value
