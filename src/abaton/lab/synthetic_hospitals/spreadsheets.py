"""The invented hospitals as spreadsheets: semicolons, decimal commas, days and times as their clerks write them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

from abaton.lab.synthetic_hospitals.fhir_records import SNOMED, smoking_codes
from abaton.lab.synthetic_hospitals.patients import HOSPITALS

COLUMNS = {
    "people": ("patient", "sex", "born"),
    "checkups": ("patient", "date", "bmi", "smoking"),
    "diagnoses": ("patient", "code", "system", "onset", "recorded"),
    "measurements": ("patient", "code", "value", "unit", "taken"),
    "prescriptions": ("patient", "code", "prescribed"),
    "visits": ("patient", "code", "start", "end"),
}
_WIDE = {"39156-5": "bmi", "72166-2": "smoking"}
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
born = "born"

[[tables]]                      # a wide table: a column for each thing
file = "checkups.csv"
subject = "patient"
when = "date"
[tables.columns]
bmi = { code = "loinc|39156-5", unit = "kg/m2" }
smoking = { code = "loinc|72166-2", values = {SMOKING} }

[[tables]]                      # a long one: a row for each thing, named by a code
file = "measurements.csv"
subject = "patient"
when = "taken"
[tables.rows]
code = "code"
system = "loinc"
value = "value"
unit = "unit"

[[tables]]
file = "diagnoses.csv"
subject = "patient"
when = "onset"
[tables.rows]
type = "condition"
code = "code"
system_column = "system"
recorded = "recorded"

[[tables]]
file = "prescriptions.csv"
subject = "patient"
when = "prescribed"
[tables.rows]
type = "prescription"
code = "code"
system = "atc"

[[tables]]
file = "visits.csv"
subject = "patient"
when = "start"
[tables.rows]
type = "encounter"
code = "code"
system = "snomed"
end = "end"
"""


def mapping_text(name: str) -> str:
    """The mapping of one hospital's spreadsheets."""
    words = smoking_codes(answers=HOSPITALS[name].answers)
    short = {SNOMED: "snomed"}
    told = ", ".join(
        f'{word} = "{short.get(system, "loinc")}|{code}"' for word, (system, code) in words.items()
    )
    return _MAPPING.replace("{SMOKING}", f"{{ {told} }}")


def write_spreadsheets(folder: Path, name: str, records: Iterator[dict[str, Any]]) -> None:
    """Write one hospital's records as spreadsheets, and their mapping beside them.

    Args:
        folder: Where to.
        name: The hospital.
        records: Its records, as :func:`abaton.lab.synthetic_hospitals.records` makes them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = {codes: word for word, codes in smoking_codes(answers=HOSPITALS[name].answers).items()}
    with ExitStack() as stack:
        files = {}
        for table, columns in COLUMNS.items():
            # Excel begins with a byte order mark, and ends lines as its system does.
            stream = stack.enter_context(
                (folder / f"{table}.csv").open("w", encoding="utf-8-sig", newline="")
            )
            files[table] = csv.writer(stream, delimiter=";")
            files[table].writerow(columns)
        for resource in records:
            table, row = _row(resource, words)
            files[table].writerow(row)
    (folder / "mapping.toml").write_text(mapping_text(name), encoding="utf-8")


def _row(resource: dict[str, Any], words: dict[tuple[str, str], str]) -> tuple[str, list[Any]]:
    kind = resource["resourceType"]
    if kind == "Patient":
        return "people", [number_of(resource["id"]), resource["gender"][0], _day(resource["birthDate"])]
    who = number_of(resource["subject"]["reference"])
    if kind == "Encounter":
        period = resource["period"]
        return "visits", [who, coding(resource["type"][0])[1], _day(period["start"]), _day(period["end"])]
    if kind == "Condition":
        system, code = coding(resource["code"])
        dates = _day(resource["onsetDateTime"]), _day(resource["recordedDate"])
        return "diagnoses", [who, code, "SNOMED" if system == SNOMED else "ICD10", *dates]
    if kind == "MedicationRequest":
        _, code = coding(resource["medicationCodeableConcept"])
        return "prescriptions", [who, code, _day(resource["authoredOn"])]
    code, when = coding(resource["code"])[1], _day(resource["effectiveDateTime"])
    if "valueCodeableConcept" in resource:
        return "checkups", [who, when, "NA", words[coding(resource["valueCodeableConcept"])]]
    value = resource["valueQuantity"]
    told = str(value["value"]).replace(".", ",")
    if code in _WIDE:
        return "checkups", [who, when, told, "NA"]
    return "measurements", [who, code, told, value.get("code", ""), when]


def number_of(name: str) -> str:
    """The number of a person in the name that the hospital gives them."""
    return name.rsplit("-", 1)[1]


def coding(concept: dict[str, Any]) -> tuple[str, str]:
    """The first code of a thing."""
    first = concept["coding"][0]
    return first["system"], first["code"]


def _day(text: str) -> str:
    moment = datetime.fromisoformat(text)
    return moment.strftime("%d.%m.%Y" if len(text) == 10 else "%d.%m.%Y %H:%M")
