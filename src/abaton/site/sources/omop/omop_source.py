"""From rows of OMOP's tables to FHIR resources.

An OMOP instance as a source of records: person by person, whatever the size of its tables.

Invariants:
(1) every table is read once, in the order of people, some thousand rows at a time; memory does not grow with it;
(2) each record is a Bundle of all that one person has, so nothing has to be sorted again;
(3) rows without a code that FHIR knows are counted, never shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from datetime import date, datetime, tzinfo
from decimal import Decimal
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

from abaton.deid.settings import Need
from abaton.errors import Refused
from abaton.fhir.partial_dates import from_iso, possible, told
from abaton.record_types import Record
from abaton.site.sources.base import Faults
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
from abaton.site.sources.omop.cdm_schema import COMPARATORS, KNOWN, MEDICINES, SETTINGS, SEXES
from abaton.site.sources.omop.concept_map import Concepts
from abaton.site.sources.omop.omop_database import BATCH, OmopDatabase
from abaton.site.sources.omop.omop_queries import Question, people_of, questions
from abaton.site.sources.queries import read_for
from abaton.study.criteria import Eligibility

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


STRAY = "a record is about somebody whose Patient is not here, or not one alone"


class OmopSource:
    """Records in OMOP's common data model, 5.3 or 5.4.

    Args:
        address: A database's address, or a folder of CSV and Parquet files.
        need: What the study needs.
        eligibility: Who may take part, which is judged by records, too.
        zone: The time zone in which the instance tells times of day.
        cdm, vocabulary: The schemas of the clinical and of the vocabulary tables.
    """

    by_subject = True

    def __init__(
        self,
        address: str | Path,
        need: Need,
        eligibility: Eligibility | None,
        zone: tzinfo,
        *,
        cdm: str = "",
        vocabulary: str = "",
    ) -> None:
        self._address, self._need, self._eligibility, self._zone = address, need, eligibility, zone
        self._schemas = cdm, vocabulary
        self.faults = Faults()

    def records(self) -> Iterator[Record]:
        """Everybody, each with all of their records, in the order of their ids.

        Raises:
            SettingsError: A table, a column or the vocabulary is not there.
            StoreError: The database went away.
            Refused: Two people have one id, or a date is impossible.
        """
        database, tables = OmopDatabase(self._address, *self._schemas), list[_Table]()
        streams: list[Generator[Row]] = []
        try:
            concepts = Concepts(database)
            types = read_for(self._need, self._eligibility, KNOWN)
            columns, asked = people_of(database)
            tables += (
                _Table(database, question, RowMaker(question, concepts, self._zone, types, self.faults))
                for question in questions(database, concepts, self._need, self._eligibility)
            )
            last: Any = None
            streams.append(people := database.stream(asked))
            for row in people:
                if row[0] is None:
                    raise Refused(
                        "a person has no id", where="person.person_id", remedy="give each person an id"
                    )
                if row[0] == last:
                    raise Refused(
                        "two people have one id",
                        where="person.person_id",
                        remedy="give each person an id of their own",
                    )
                last = row[0]
                entries = [person(columns, row, self._zone)]
                for table in tables:
                    entries += table.of(last, self.faults)
                yield _bundle(entries)
            for table in tables:
                table.end(self.faults)
                table.count_left(database, concepts, self.faults)
        finally:
            for stream in streams:
                stream.close()
            for table in tables:
                table.close()
            database.close()

    def close(self) -> None:
        """Nothing was kept."""


class _Table:
    """The rows of one query, taken off person by person."""

    def __init__(self, database: OmopDatabase, question: Question, make: RowMaker) -> None:
        self._question = question
        self._stream = database.stream(question.asked)
        self._rows = self._learned(self._stream, make)
        self._make = make
        self._next: Row | None = None
        self._begun = False

    @staticmethod
    def _learned(rows: Iterator[Row], make: RowMaker) -> Iterator[Row]:
        """The rows, after their concepts have been asked for some thousand at a time."""
        while some := list(islice(rows, BATCH)):
            make.learn(some)
            yield from some

    def of(self, number: Any, faults: Faults) -> list[Json]:
        """What a person's rows become; rows of people before, who are not in 'person', and of nobody are counted."""
        if not self._begun:
            self._begun, self._next = True, next(self._rows, None)
        made: list[Json] = []
        who, row, make, rows = str(number), self._next, self._make, self._rows
        while row is not None and (row[0] is None or row[0] <= number):
            if row[0] == number:
                made += make(who, row)
            else:
                faults.note(STRAY)
            row = next(rows, None)
        self._next = row
        return made

    def end(self, faults: Faults) -> None:
        """Count what is left: rows of people who are not in 'person'."""
        if not self._begun:
            self._begun, self._next = True, next(self._rows, None)
        while self._next is not None:
            faults.note(STRAY)
            self._next = next(self._rows, None)

    def count_left(self, database: OmopDatabase, concepts: Concepts, faults: Faults) -> None:
        """Count rows without a code that the filter left out: nobody knows whether the study would have wanted them."""
        if self._question.left is None:
            return
        for times, *numbers in database.rows(self._question.left):
            if not any(concepts(number) for number in numbers):
                faults.note(UNMAPPED, self._question.table.name, times)

    def close(self) -> None:
        """Let the cursor go."""
        self._stream.close()


def _bundle(entries: list[Json]) -> Record:
    listed = [{"resource": each} for each in entries]
    return Record({"resourceType": "Bundle", "type": "collection", "entry": listed})
