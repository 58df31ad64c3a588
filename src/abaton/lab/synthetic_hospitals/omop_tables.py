"""OMOP common data model of the synthetic hospitals: tables with their concepts, as CSV and in databases."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import date, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from abaton.lab.synthetic_hospitals.fhir_records import ATC, ICD10, LOINC, SNOMED, UCUM
from abaton.lab.synthetic_hospitals.spreadsheets import first_coding, patient_number

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "person": ("person_id", "gender_concept_id", "year_of_birth", "month_of_birth", "day_of_birth"),
    "visit_occurrence": (
        "visit_occurrence_id", "person_id", "visit_concept_id", "visit_start_date", "visit_start_datetime",
        "visit_end_date", "visit_end_datetime", "visit_source_concept_id",
    ),
    "condition_occurrence": (
        "condition_occurrence_id", "person_id", "condition_concept_id", "condition_start_date",
        "condition_start_datetime", "condition_end_date", "condition_source_concept_id",
    ),
    "measurement": (
        "measurement_id", "person_id", "measurement_concept_id", "measurement_date", "measurement_datetime",
        "operator_concept_id", "value_as_number", "value_as_concept_id", "unit_concept_id",
        "measurement_source_concept_id",
    ),
    "observation": (
        "observation_id", "person_id", "observation_concept_id", "observation_date", "observation_datetime",
        "value_as_number", "value_as_string", "value_as_concept_id", "unit_concept_id",
        "observation_source_concept_id",
    ),
    "drug_exposure": (
        "drug_exposure_id", "person_id", "drug_concept_id", "drug_exposure_start_date", "drug_exposure_end_date",
        "drug_type_concept_id", "drug_source_concept_id",
    ),
    "concept": ("concept_id", "concept_name", "domain_id", "vocabulary_id", "concept_code"),
    "concept_relationship": ("concept_id_1", "concept_id_2", "relationship_id"),
}  # fmt: skip
RXNORM = "http://www.nlm.nih.gov/research/umls/rxnorm"
_VOCABULARIES = {SNOMED: "SNOMED", LOINC: "LOINC", ICD10: "ICD10", ATC: "ATC", UCUM: "UCUM", RXNORM: "RxNorm"}
CONCEPTS: Mapping[tuple[str, str], int] = {
    (LOINC, "8480-6"): 3004249,
    (LOINC, "2093-3"): 3027114,
    (LOINC, "14647-2"): 3019900,
    (LOINC, "2160-0"): 3016723,
    (LOINC, "14682-9"): 3020564,
    (LOINC, "39156-5"): 3038553,
    (LOINC, "72166-2"): 43054909,
    (LOINC, "LA18976-3"): 45881517,
    (LOINC, "LA15920-4"): 45883458,
    (LOINC, "LA18978-9"): 45879404,
    (SNOMED, "38341003"): 316866,
    (SNOMED, "44054006"): 201826,
    (SNOMED, "84114007"): 316139,
    (SNOMED, "449868002"): 42709996,
    (SNOMED, "8517006"): 4310250,
    (SNOMED, "266919005"): 4144272,
    (SNOMED, "4525004"): 4163685,
    (SNOMED, "185349003"): 4085799,
    (SNOMED, "390906007"): 4203722,
    (ICD10, "I10"): 45591453,
    (ICD10, "E11.9"): 45605401,
    (ICD10, "I50.9"): 45567180,
    (ATC, "C09AA05"): 21601784,
    (ATC, "C03CA01"): 21601554,
    (RXNORM, "35296"): 1334456,
    (RXNORM, "4603"): 956874,
    (UCUM, "mm[Hg]"): 8876,
    (UCUM, "mg/dL"): 8840,
    (UCUM, "mmol/L"): 8753,
    (UCUM, "umol/L"): 8749,
    (UCUM, "kg/m2"): 9531,
}
"""The concepts of the hospitals' codes."""
_STANDARD = {
    (ICD10, "I10"): (SNOMED, "38341003"),
    (ICD10, "E11.9"): (SNOMED, "44054006"),
    (ICD10, "I50.9"): (SNOMED, "84114007"),
    (ATC, "C09AA05"): (RXNORM, "35296"),
    (ATC, "C03CA01"): (RXNORM, "4603"),
}
_VISITS = {"AMB": 9202, "EMER": 9203}
_SEXES = {"male": 8507, "female": 8532}
_PRESCRIBED = 32838
_BATCH_ROWS = 10_000  # rows of one insertion


def write_omop(folder: Path, records: Iterator[dict[str, Any]]) -> None:
    """Write one synthetic hospital's records as OMOP CDM tables, a CSV file each.

    Args:
        folder: Target folder.
        records: The hospital's records, as returned by :func:`abaton.lab.synthetic_hospitals.records`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        files = {}
        for table, columns in COLUMNS.items():
            stream = stack.enter_context((folder / f"{table}.csv").open("w", encoding="utf-8", newline=""))
            files[table] = csv.writer(stream)
            files[table].writerow(columns)
        for number, resource in enumerate(records, 1):
            table, row = _row(number, resource)
            files[table].writerow(row)
        for (system, code), number in CONCEPTS.items():
            files["concept"].writerow((number, code, "", _VOCABULARIES[system], code))
        for source, standard in _STANDARD.items():
            files["concept_relationship"].writerow((CONCEPTS[source], CONCEPTS[standard], "Maps to"))


def _row(number: int, resource: dict[str, Any]) -> tuple[str, tuple[Any, ...]]:
    resource_type = resource["resourceType"]
    if resource_type == "Patient":
        born = date.fromisoformat(resource["birthDate"])
        sex = _SEXES[resource["gender"]]
        return "person", (patient_number(resource["id"]), sex, born.year, born.month, born.day)
    person_id = patient_number(resource["subject"]["reference"])
    if resource_type == "Encounter":
        start, end = (_parse_timestamp(resource["period"][side]) for side in ("start", "end"))
        source = CONCEPTS[first_coding(resource["type"][0])]
        return "visit_occurrence", (
            number,
            person_id,
            _VISITS[resource["class"]["code"]],
            *start,
            *end,
            source,
        )
    if resource_type == "Condition":
        standard, source = _concept_ids(resource["code"])
        day, _ = _parse_timestamp(resource["onsetDateTime"])
        return "condition_occurrence", (number, person_id, standard, day, "", "", source)
    if resource_type == "MedicationRequest":
        standard, source = _concept_ids(resource["medicationCodeableConcept"])
        day, _ = _parse_timestamp(resource["authoredOn"])
        return "drug_exposure", (number, person_id, standard, day, day, _PRESCRIBED, source)
    concept, _ = _concept_ids(resource["code"])
    timestamp = _parse_timestamp(resource["effectiveDateTime"])
    if "valueCodeableConcept" in resource:
        value = CONCEPTS[first_coding(resource["valueCodeableConcept"])]
        return "observation", (number, person_id, concept, *timestamp, "", "", value, "", concept)
    quantity = resource["valueQuantity"]
    unit = CONCEPTS[UCUM, quantity["code"]] if "code" in quantity else 0
    return "measurement", (number, person_id, concept, *timestamp, "", quantity["value"], "", unit, concept)


def _concept_ids(concept: dict[str, Any]) -> tuple[int, int]:
    """Return the standard and the source concept for a synthetic OMOP table."""
    source = first_coding(concept)
    return CONCEPTS[_STANDARD.get(source, source)], CONCEPTS[source]


def _parse_timestamp(text: str) -> tuple[str, str]:
    timestamp = datetime.fromisoformat(text)
    return timestamp.date().isoformat(), "" if len(text) == 10 else timestamp.strftime("%Y-%m-%d %H:%M:%S")


def load_omop(folder: Path, url: str) -> None:
    """Create a synthetic hospital's OMOP tables in a database, with the CDM's types and an index by person.

    Args:
        folder: Folder written by :func:`write_omop`.
        url: The database, as an SQLAlchemy URL.
    """
    import sqlalchemy as sql

    engine = sql.create_engine(url)
    types = {"date": sql.Date, "datetime": sql.DateTime, "number": sql.Numeric}
    metadata = sql.MetaData()
    for name, columns in COLUMNS.items():
        column_types = [(column, types.get(column.rsplit("_", 1)[1], sql.Integer)) for column in columns]
        text_columns = (
            "value_as_string",
            "concept_name",
            "domain_id",
            "vocabulary_id",
            "concept_code",
            "relationship_id",
        )
        sql_columns = [
            sql.Column(column, sql.String if column in text_columns else kind())
            for column, kind in column_types
        ]
        table = sql.Table(name, metadata, *sql_columns)
        if "person_id" in columns:
            sql.Index(f"{name}_by_person", table.c.person_id)
    with engine.begin() as connection:
        metadata.create_all(connection)
        for table in metadata.sorted_tables:
            with (folder / f"{table.name}.csv").open(encoding="utf-8", newline="") as stream:
                rows = (_convert_row(table, row) for row in csv.DictReader(stream))
                while batch := list(islice(rows, _BATCH_ROWS)):
                    connection.execute(table.insert(), batch)
    engine.dispose()


def _convert_row(table: Any, row: dict[str, str]) -> dict[str, Any]:
    typed: dict[str, Any] = {}
    for column in table.columns:
        text, kind = row[column.name], column.type.__class__.__name__
        if text == "":
            typed[column.name] = None
        elif kind == "Integer":
            typed[column.name] = int(text)
        elif kind == "Numeric":
            typed[column.name] = float(text)
        elif kind == "Date":
            typed[column.name] = date.fromisoformat(text)
        else:
            typed[column.name] = datetime.fromisoformat(text) if kind == "DateTime" else text
    return typed
