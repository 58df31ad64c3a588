"""OMOP CDM instance as a source of FHIR records, person by person.

Invariants:
(1) every table is read once, ordered by person, some thousand rows at a time, so memory is bounded by one person;
(2) each record is a Bundle of all resources of one person;
(3) rows without a code in a FHIR code system are counted as skipped.
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

from abaton.deid.settings import DataRequest
from abaton.errors import RefusedError
from abaton.fhir.partial_dates import is_plausible_year, normalise_iso_date, to_fhir_datetime
from abaton.record_types import Record
from abaton.site.sources.base import SourceErrors
from abaton.site.sources.fhir_builders import (
    Json,
    build_condition,
    build_device,
    build_encounter,
    build_medication,
    build_observation,
    build_patient,
    build_procedure,
    build_quantity,
)
from abaton.site.sources.omop.cdm_schema import (
    COMPARATORS,
    ENCOUNTER_CLASSES,
    MEDICATION_TYPES,
    RESOURCE_TYPES,
    SEX_BY_CONCEPT,
)
from abaton.site.sources.omop.concept_map import ConceptMap
from abaton.site.sources.omop.omop_database import BATCH_ROWS, OmopDatabase
from abaton.site.sources.omop.omop_queries import OmopQuery, build_queries, person_query
from abaton.site.sources.queries import source_types
from abaton.study.criteria import Eligibility

Row = tuple[Any, ...]
UNMAPPED = "the concept of a row has no code in a FHIR code system"
UNMAPPED_UNIT = "the concept of a unit is not in UCUM"
INVALID_NUMBER = "a value is NaN or infinite"
_MIDNIGHT = re.compile(r"[T ]00:00(:00(\.0*)?)?$")
_MEDICATION_TYPE_BY_CONCEPT = {
    concept_id: name for name, concept_ids in MEDICATION_TYPES.items() for concept_id in concept_ids
}


class OmopRowMapper:
    """Mapper of the rows of one query to FHIR resources.

    Args:
        query: The query.
        concepts: The vocabulary.
        zone: Time zone of the instance.
        types: Required resource types.
        errors: Counts of rows without a code.
    """

    def __init__(
        self,
        query: OmopQuery,
        concepts: ConceptMap,
        zone: tzinfo,
        types: frozenset[str],
        errors: SourceErrors,
    ) -> None:
        self._table, self._concepts, self._zone = query.table, concepts, zone
        self._types, self._errors = types, errors
        indices = {name: index for index, name in enumerate(query.columns)}
        self._indices: dict[str, int | None] = {
            name: indices.get(name) for name in (*self._table.columns, *self._table.optional)
        }
        names = (self._table.concept, self._table.source, "unit_concept_id", "value_as_concept_id")
        self._concept_indices = [indices[name] for name in names if name in indices]
        self._map_row: Callable[[str, str, Row], Iterable[Json]] = getattr(self, f"_{self._table.name}")

    def load(self, rows: Iterable[Row]) -> None:
        """Load the concepts of OMOP rows into the cache before mapping them to FHIR."""
        indices = self._concept_indices
        self._concepts.load({row[index] for row in rows for index in indices})

    def __call__(self, patient_id: str, row: Row) -> Iterable[Json]:
        """Map an OMOP row to its FHIR resources."""
        return self._map_row(
            f"{self._table.name.split('_')[0]}-{self._cell(row, self._table.key)}", patient_id, row
        )

    def _cell(self, row: Row, column: str) -> Any:
        index = self._indices[column]
        return None if index is None else row[index]

    def _codes(self, row: Row) -> list[tuple[str, str]]:
        """Return the code of an OMOP row's standard concept, then other codes of the source concept."""
        codes = list(self._concepts(self._cell(row, self._table.concept)))
        codes += [code for code in self._concepts(self._cell(row, self._table.source)) if code not in codes]
        if not codes:
            self._errors.add(UNMAPPED, self._table.name)
        return codes

    def _date_time(self, row: Row, day: str) -> str | None:
        index = self._indices.get(f"{day}time")
        return to_fhir_text(row[index] if index is not None else None, self._zone) or to_fhir_text(
            self._cell(row, day), self._zone
        )

    def _visit_occurrence(self, name: str, patient_id: str, row: Row) -> Iterable[Json]:
        concept_id = self._cell(row, "visit_concept_id")
        codes = [*self._concepts(concept_id), *self._concepts(self._cell(row, "visit_source_concept_id"))]
        if not codes and concept_id not in ENCOUNTER_CLASSES:
            self._errors.add(UNMAPPED, self._table.name)
        start, end = self._date_time(row, "visit_start_date"), self._date_time(row, "visit_end_date")
        yield build_encounter(name, patient_id, codes, start, end, ENCOUNTER_CLASSES.get(concept_id, ""))

    def _condition_occurrence(self, name: str, patient_id: str, row: Row) -> Iterable[Json]:
        if codes := self._codes(row):
            onset, end = self._date_time(row, "condition_start_date"), self._end(row, "condition_end_date")
            yield build_condition(name, patient_id, codes, onset, end)

    def _procedure_occurrence(self, name: str, patient_id: str, row: Row) -> Iterable[Json]:
        if codes := self._codes(row):
            when, end = self._date_time(row, "procedure_date"), self._end(row, "procedure_end_date")
            yield build_procedure(name, patient_id, codes, when, end)

    def _drug_exposure(self, name: str, patient_id: str, row: Row) -> Iterable[Json]:
        if codes := self._codes(row):
            resource_type = _MEDICATION_TYPE_BY_CONCEPT.get(
                self._cell(row, "drug_type_concept_id"), "MedicationStatement"
            )
            when = self._date_time(row, "drug_exposure_start_date")
            yield build_medication(
                resource_type, name, patient_id, codes, when, self._end(row, "drug_exposure_end_date")
            )

    def _device_exposure(self, name: str, patient_id: str, row: Row) -> Iterable[Json]:
        if codes := self._codes(row):
            when = self._date_time(row, "device_exposure_start_date")
            resources = build_device(
                name, patient_id, codes, when, self._end(row, "device_exposure_end_date")
            )
            yield from (resource for resource in resources if resource["resourceType"] in self._types)

    def _measurement(self, name: str, patient_id: str, row: Row) -> Iterable[Json]:
        if codes := self._codes(row):
            comparator = COMPARATORS.get(self._cell(row, "operator_concept_id"))
            when = self._date_time(row, "measurement_date")
            yield build_observation(name, patient_id, codes, when, self._value(row, comparator))

    def _observation(self, name: str, patient_id: str, row: Row) -> Iterable[Json]:
        if codes := self._codes(row):
            value = self._value(row, None)
            text = self._cell(row, "value_as_string")
            if not value and text:
                value = {"valueString": str(text)}
            yield build_observation(name, patient_id, codes, self._date_time(row, "observation_date"), value)

    def _end(self, row: Row, day: str) -> str | None:
        return self._date_time(row, day) if day in self._indices else None

    def _value(self, row: Row, comparator: str | None) -> Json:
        value = self._cell(row, "value_as_number")
        if value is not None and isfinite(value):
            return {"valueQuantity": build_quantity(_to_float(value), self._unit(row), comparator)}
        if value is not None:
            self._errors.add(INVALID_NUMBER, self._table.name)
        concept_id = self._cell(row, "value_as_concept_id")
        codes = self._concepts(concept_id)
        if codes:
            return {"valueCodeableConcept": {"coding": [{"system": s, "code": c} for s, c in codes]}}
        if concept_id:
            self._errors.add(UNMAPPED, f"{self._table.name}.value_as_concept_id")
        return {}

    def _unit(self, row: Row) -> str | None:
        concept_id = self._cell(row, "unit_concept_id")
        if not concept_id:
            return None
        codes = self._concepts(concept_id)
        if not codes:
            self._errors.add(UNMAPPED_UNIT, self._table.name)
            return None
        return codes[0][1]


def map_person(columns: tuple[str, ...], row: Row, zone: tzinfo) -> Json:
    """Map a row of OMOP's 'person', joined with 'death', to a FHIR Patient."""
    cells = dict(zip(columns, row, strict=True))
    death_date = to_fhir_text(cells.get("death_datetime"), zone) or to_fhir_text(
        cells.get("death_date"), zone
    )
    sex = SEX_BY_CONCEPT.get(cells["gender_concept_id"] or 0)
    return build_patient(str(cells["person_id"]), sex, _birth_date(cells), death_date)


def _birth_date(cells: dict[str, Any]) -> str | None:
    """Return the partial date of birth of an OMOP person: a date, a month or a year."""
    parts = cells["year_of_birth"], cells.get("month_of_birth"), cells.get("day_of_birth")
    if parts[0] is None:
        return None
    year, month, day = (int(part or 0) for part in parts)
    try:
        born = date(year, month or 1, (day or 1) if month else 1)
    except (ValueError, OverflowError):
        born = date.min
    if not is_plausible_year(born.year):
        raise RefusedError(
            "year, month and day of birth are not a valid date",
            where="table 'person'",
            remedy="correct the row",
        )
    return born.isoformat()[: 10 if month and day else 7 if month else 4]


def to_fhir_text(value: Any, zone: tzinfo) -> str | None:
    """Return a date or time of an OMOP source as FHIR text; midnight means that there is no time."""
    if value is None or value == "":
        return None
    if isinstance(value, int | float):
        raise RefusedError(
            "a date is stored as a number",
            where="a date column of the OMOP tables",
            remedy="store dates as text, such as 2020-12-31, or export the tables to CSV or Parquet",
        )
    if isinstance(value, str):
        text = normalise_iso_date(_MIDNIGHT.sub("", value), zone)
    elif isinstance(value, datetime):
        is_midnight = value.hour == value.minute == value.second == 0
        text = value.date().isoformat() if is_midnight else to_fhir_datetime(value, zone)
        text = text if is_plausible_year(value.year) else None
    else:
        text = value.isoformat() if is_plausible_year(value.year) else None
    if text is None:
        raise RefusedError(
            "a date is not valid", where="a date column of the OMOP tables", remedy="correct the row"
        )
    return text


def _to_float(value: Any) -> float:
    return float(value) if isinstance(value, Decimal) else value


UNKNOWN_PERSON = "the Patient of a record is missing or ambiguous"


class OmopSource:
    """Records of an OMOP CDM instance, version 5.3 or 5.4.

    Args:
        address: URL of a database, or a folder of CSV and Parquet files.
        request: Data that the study needs.
        eligibility: Eligibility criteria, whose tables are read completely.
        zone: Time zone of the instance.
        cdm_schema, vocabulary_schema: Schemas of the clinical and vocabulary tables.
    """

    is_grouped = True

    def __init__(
        self,
        address: str | Path,
        request: DataRequest,
        eligibility: Eligibility | None,
        zone: tzinfo,
        *,
        cdm_schema: str = "",
        vocabulary_schema: str = "",
    ) -> None:
        self._address, self._request, self._eligibility, self._zone = address, request, eligibility, zone
        self._schemas = cdm_schema, vocabulary_schema
        self.errors = SourceErrors()

    def records(self) -> Iterator[Record]:
        """Yield one Bundle per person of the OMOP source, in the order of ``person_id``.

        Raises:
            SettingsError: A table, a column or the vocabulary does not exist.
            StoreError: The database does not respond.
            RefusedError: Two persons have the same id, or a date is not valid.
        """
        database, tables = OmopDatabase(self._address, *self._schemas), list[_TableStream]()
        streams: list[Generator[Row]] = []
        try:
            concepts = ConceptMap(database)
            types = source_types(self._request, self._eligibility, RESOURCE_TYPES)
            columns, statement = person_query(database)
            tables += (
                _TableStream(database, query, OmopRowMapper(query, concepts, self._zone, types, self.errors))
                for query in build_queries(database, concepts, self._request, self._eligibility)
            )
            last: Any = None
            streams.append(persons := database.stream(statement))
            for row in persons:
                if row[0] is None:
                    raise RefusedError(
                        "a person has no id", where="person.person_id", remedy="set person_id in every row"
                    )
                if row[0] == last:
                    raise RefusedError(
                        "two persons have the same id",
                        where="person.person_id",
                        remedy="make person_id unique",
                    )
                last = row[0]
                entries = [map_person(columns, row, self._zone)]
                for table in tables:
                    entries += table.take_person(last, self.errors)
                yield _bundle(entries)
            for table in tables:
                table.count_remaining(self.errors)
                table.count_unmapped(database, concepts, self.errors)
        finally:
            for stream in streams:
                stream.close()
            for table in tables:
                table.close()
            database.close()

    def close(self) -> None:
        """Do nothing; connections of the OMOP source are closed at the end of :meth:`records`."""


class _TableStream:
    """Rows of one query, read person by person."""

    def __init__(self, database: OmopDatabase, query: OmopQuery, mapper: OmopRowMapper) -> None:
        self._query = query
        self._stream = database.stream(query.statement)
        self._rows = self._load_batches(self._stream, mapper)
        self._map_row = mapper
        self._next: Row | None = None
        self._has_started = False

    @staticmethod
    def _load_batches(rows: Iterator[Row], mapper: OmopRowMapper) -> Iterator[Row]:
        """Yield the rows of an OMOP table; load the concepts of each batch at once."""
        while batch := list(islice(rows, BATCH_ROWS)):
            mapper.load(batch)
            yield from batch

    def take_person(self, person_id: Any, errors: SourceErrors) -> list[Json]:
        """Return a person's resources from an OMOP table; count rows before them that have no row in 'person'."""
        if not self._has_started:
            self._has_started, self._next = True, next(self._rows, None)
        resources: list[Json] = []
        patient_id, row, map_row, rows = str(person_id), self._next, self._map_row, self._rows
        while row is not None and (row[0] is None or row[0] <= person_id):
            if row[0] == person_id:
                resources += map_row(patient_id, row)
            else:
                errors.add(UNKNOWN_PERSON)
            row = next(rows, None)
        self._next = row
        return resources

    def count_remaining(self, errors: SourceErrors) -> None:
        """Count the remaining rows of an OMOP table, which have no row in 'person'."""
        if not self._has_started:
            self._has_started, self._next = True, next(self._rows, None)
        while self._next is not None:
            errors.add(UNKNOWN_PERSON)
            self._next = next(self._rows, None)

    def count_unmapped(self, database: OmopDatabase, concepts: ConceptMap, errors: SourceErrors) -> None:
        """Count dropped rows of an OMOP table without a code, since the study might have required them."""
        if self._query.unmapped_count is None:
            return
        for times, *concept_ids in database.fetch_all(self._query.unmapped_count):
            if not any(concepts(concept_id) for concept_id in concept_ids):
                errors.add(UNMAPPED, self._query.table.name, times)

    def close(self) -> None:
        """Close the cursor of an OMOP table."""
        self._stream.close()


def _bundle(entries: list[Json]) -> Record:
    return Record(
        {"resourceType": "Bundle", "type": "collection", "entry": [{"resource": entry} for entry in entries]}
    )
