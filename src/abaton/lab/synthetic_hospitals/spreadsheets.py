"""Spreadsheets of the synthetic hospitals, with semicolons, decimal commas and local date formats."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

from abaton.lab.synthetic_hospitals.fhir_records import SNOMED, smoking_codes
from abaton.lab.synthetic_hospitals.patients import FOUR_HOSPITALS

COLUMNS = {
    "people": ("patient", "sex", "born"),
    "checkups": ("patient", "date", "bmi", "smoking"),
    "diagnoses": ("patient", "code", "system", "onset", "recorded"),
    "measurements": ("patient", "code", "value", "unit", "taken"),
    "prescriptions": ("patient", "code", "prescribed"),
    "visits": ("patient", "code", "start", "end"),
}
_WIDE_COLUMNS = {"39156-5": "bmi", "72166-2": "smoking"}
_MAPPING = """\
# What the columns of the spreadsheets mean. Every key is explained in docs/sources.md.
[files]
delimiter = ";"
decimal = ","
dates = ["%d.%m.%Y", "%d.%m.%Y %H:%M"]
timezone = "+02:00"

[[tables]]
file = "people.csv"
subject = "patient"
sex = "sex"
birth_date = "born"

[[tables]]                      # a wide table: a column for each thing
file = "checkups.csv"
subject = "patient"
date_column = "date"
[tables.columns]
bmi = { code = "loinc|39156-5", unit = "kg/m2" }
smoking = { code = "loinc|72166-2", values = {SMOKING} }

[[tables]]                      # a long one: a row for each thing, named by a code
file = "measurements.csv"
subject = "patient"
date_column = "taken"
[tables.code_rows]
code = "code"
system = "loinc"
value = "value"
unit = "unit"

[[tables]]
file = "diagnoses.csv"
subject = "patient"
date_column = "onset"
[tables.code_rows]
type = "condition"
code = "code"
system_column = "system"
recorded = "recorded"

[[tables]]
file = "prescriptions.csv"
subject = "patient"
date_column = "prescribed"
[tables.code_rows]
type = "prescription"
code = "code"
system = "atc"

[[tables]]
file = "visits.csv"
subject = "patient"
date_column = "start"
[tables.code_rows]
type = "encounter"
code = "code"
system = "snomed"
end = "end"
"""


def mapping_text(name: str) -> str:
    """Return the mapping of one synthetic hospital's spreadsheets."""
    smoking_words = smoking_codes(answers=FOUR_HOSPITALS.hospitals[name].answers)
    short = {SNOMED: "snomed"}
    pairs = ", ".join(
        f'{word} = "{short.get(system, "loinc")}|{code}"' for word, (system, code) in smoking_words.items()
    )
    return _MAPPING.replace("{SMOKING}", f"{{ {pairs} }}")


def write_spreadsheets(folder: Path, name: str, records: Iterator[dict[str, Any]]) -> None:
    """Write one synthetic hospital's records as spreadsheets, and their mapping beside them.

    Args:
        folder: Target folder.
        name: The hospital.
        records: Its records, as returned by :func:`abaton.lab.synthetic_hospitals.records`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    smoking_words = {
        codes: word for word, codes in smoking_codes(answers=FOUR_HOSPITALS.hospitals[name].answers).items()
    }
    with ExitStack() as stack:
        files = {}
        for table, columns in COLUMNS.items():
            # As Excel does: a byte order mark.
            stream = stack.enter_context(
                (folder / f"{table}.csv").open("w", encoding="utf-8-sig", newline="")
            )
            files[table] = csv.writer(stream, delimiter=";")
            files[table].writerow(columns)
        for resource in records:
            table, row = _row(resource, smoking_words)
            files[table].writerow(row)
    (folder / "mapping.toml").write_text(mapping_text(name), encoding="utf-8")


def _row(resource: dict[str, Any], smoking_words: dict[tuple[str, str], str]) -> tuple[str, list[Any]]:
    resource_type = resource["resourceType"]
    if resource_type == "Patient":
        return "people", [patient_number(resource["id"]), resource["gender"][0], _day(resource["birthDate"])]
    number = patient_number(resource["subject"]["reference"])
    if resource_type == "Encounter":
        period = resource["period"]
        return "visits", [
            number,
            first_coding(resource["type"][0])[1],
            _day(period["start"]),
            _day(period["end"]),
        ]
    if resource_type == "Condition":
        system, code = first_coding(resource["code"])
        dates = _day(resource["onsetDateTime"]), _day(resource["recordedDate"])
        return "diagnoses", [number, code, "SNOMED" if system == SNOMED else "ICD10", *dates]
    if resource_type == "MedicationRequest":
        _, code = first_coding(resource["medicationCodeableConcept"])
        return "prescriptions", [number, code, _day(resource["authoredOn"])]
    code, date = first_coding(resource["code"])[1], _day(resource["effectiveDateTime"])
    if "valueCodeableConcept" in resource:
        return "checkups", [number, date, "NA", smoking_words[first_coding(resource["valueCodeableConcept"])]]
    value = resource["valueQuantity"]
    text_value = str(value["value"]).replace(".", ",")
    if code in _WIDE_COLUMNS:
        return "checkups", [number, date, text_value, "NA"]
    return "measurements", [number, code, text_value, value.get("code", ""), date]


def patient_number(name: str) -> str:
    """Return the number in a synthetic patient's identifier, as spreadsheets and OMOP tables use it."""
    return name.rsplit("-", 1)[1]


def first_coding(concept: dict[str, Any]) -> tuple[str, str]:
    """Return the first coding of a concept, as spreadsheets and OMOP tables use it."""
    first = concept["coding"][0]
    return first["system"], first["code"]


def _day(text: str) -> str:
    timestamp = datetime.fromisoformat(text)
    return timestamp.strftime("%d.%m.%Y" if len(text) == 10 else "%d.%m.%Y %H:%M")
