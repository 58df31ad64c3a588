"""Turn the UCI heart disease files of four hospitals into FHIR R4, one folder of NDJSON per hospital.

    python examples/heart/convert.py FOLDER OUT

FOLDER holds processed.cleveland.data, processed.hungarian.data, processed.switzerland.data and processed.va.data
(Janosi, Steinbrunn, Pfisterer, Detrano 1988, CC BY 4.0, UCI Machine Learning Repository). The files have no names and
no dates, so the records have none. A question mark is a missing value, and so is a cholesterol or blood pressure of 0;
what is missing gets no Observation.

Codes are LOINC and SNOMED CT where one was found that means the same. The slope of the ST segment, the number of
vessels, the thallium scan, and that the heart rate is the highest under exercise are in a system of this example,
which the study document names, so that the de-identifier knows that they are codes.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HOSPITALS = {
    "cleveland": "cleveland",
    "hungary": "hungarian",
    "switzerland": "switzerland",
    "long-beach": "va",
}
COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
    "num",
)  # fmt: skip
ZERO_IS_MISSING = ("trestbps", "chol")

LOINC, SNOMED = "http://loinc.org", "http://snomed.info/sct"
OWN = "urn:abaton:examples:heart"
UCUM = "http://unitsofmeasure.org"

Coding = tuple[str, str, str]
CHEST_PAIN: dict[float, Coding] = {
    1: (SNOMED, "429559004", "Typical angina"),
    2: (SNOMED, "371807002", "Atypical angina"),
    3: (SNOMED, "274668005", "Non-cardiac chest pain"),
    4: (SNOMED, "161971004", "Chest pain not present"),
}
ECG: dict[float, Coding] = {
    0: (SNOMED, "164854000", "Electrocardiogram normal"),
    1: (SNOMED, "428750005", "Nonspecific ST-T abnormality on electrocardiogram"),
    2: (SNOMED, "164873001", "ECG: left ventricular hypertrophy"),
}
SLOPE: dict[float, Coding] = {
    1: (OWN, "slope-up", "upsloping"),
    2: (OWN, "slope-flat", "flat"),
    3: (OWN, "slope-down", "downsloping"),
}
THALLIUM: dict[float, Coding] = {
    3: (OWN, "thallium-normal", "normal"),
    6: (OWN, "thallium-fixed", "fixed defect"),
    7: (OWN, "thallium-reversible", "reversible defect"),
}
DISEASE: Coding = (SNOMED, "53741008", "Coronary arteriosclerosis")

Value = Callable[[float], dict[str, Any]]


def rows(file: Path) -> Iterator[dict[str, float | None]]:
    """The patients of one file; nothing where a value is missing."""
    with file.open(encoding="utf-8", newline="") as stream:
        for line in csv.reader(stream):
            if not line:
                continue
            row = {
                name: None if text.strip() in ("?", "") else float(text)
                for name, text in zip(COLUMNS, line, strict=True)
            }
            for name in ZERO_IS_MISSING:
                row[name] = row[name] or None
            yield row


def records(hospital: str, number: int, row: dict[str, float | None]) -> Iterator[dict[str, Any]]:
    """One patient as FHIR resources."""
    who = f"{hospital}-{number}"
    patient: dict[str, Any] = {"resourceType": "Patient", "id": who}
    if row["sex"] is not None:
        patient["gender"] = "male" if row["sex"] else "female"
    yield patient
    for name, (codes, value) in OBSERVATIONS.items():
        found = row[name]
        if found is not None:
            yield {
                "resourceType": "Observation",
                "id": f"{who}-{name}",
                "status": "final",
                "code": concept(*codes),
                "subject": {"reference": f"Patient/{who}"},
                **value(found),
            }
    if row["num"]:
        system = "http://terminology.hl7.org/CodeSystem/condition-"
        yield {
            "resourceType": "Condition",
            "id": f"{who}-disease",
            "clinicalStatus": {"coding": [{"system": f"{system}clinical", "code": "active"}]},
            "verificationStatus": {"coding": [{"system": f"{system}ver-status", "code": "confirmed"}]},
            "code": concept(DISEASE),
            "subject": {"reference": f"Patient/{who}"},
        }


def concept(*codes: Coding) -> dict[str, Any]:
    """A CodeableConcept of one or more codes."""
    return {"coding": [{"system": system, "code": code, "display": text} for system, code, text in codes]}


def measured(unit: str) -> Value:
    """A number with a unit of UCUM."""
    return lambda value: {
        "valueQuantity": {"value": plain(value), "unit": unit, "system": UCUM, "code": unit}
    }


def compared(limit: float, unit: str) -> Value:
    """Above a limit or not: what was measured is not in the files."""

    def value(above: float) -> dict[str, Any]:
        quantity = {"value": plain(limit), "unit": unit, "system": UCUM, "code": unit}
        return {"valueQuantity": {**quantity, "comparator": ">" if above else "<="}}

    return value


def coded(codes: dict[float, Coding]) -> Value:
    """One of some codes."""
    return lambda value: {"valueCodeableConcept": concept(codes[value])}


def plain(value: float) -> float:
    """A whole number without its decimal point."""
    return int(value) if value == int(value) else value


OBSERVATIONS: dict[str, tuple[tuple[Coding, ...], Value]] = {
    "age": (((LOINC, "30525-0", "Age"),), measured("a")),
    "cp": (((SNOMED, "29857009", "Chest pain"),), coded(CHEST_PAIN)),
    "trestbps": (((LOINC, "8480-6", "Systolic blood pressure"),), measured("mm[Hg]")),
    "chol": (
        ((LOINC, "2093-3", "Cholesterol [Mass/volume] in Serum or Plasma"),),
        measured("mg/dL"),
    ),
    "fbs": (
        ((LOINC, "1558-6", "Fasting glucose [Mass/volume] in Serum or Plasma"),),
        compared(120, "mg/dL"),
    ),
    "restecg": (((LOINC, "8601-7", "EKG impression"),), coded(ECG)),
    "thalach": (
        ((LOINC, "8867-4", "Heart rate"), (OWN, "highest-rate", "Highest heart rate under exercise")),
        measured("/min"),
    ),
    "exang": (
        ((SNOMED, "300995000", "Exercise-induced angina"),),
        lambda value: {"valueBoolean": bool(value)},
    ),
    "oldpeak": (((SNOMED, "429622005", "ST segment depression"),), measured("mm")),
    "slope": (((OWN, "slope", "Slope of the ST segment at the peak of exercise"),), coded(SLOPE)),
    "ca": (
        ((OWN, "vessels", "Major vessels coloured by fluoroscopy"),),
        lambda value: {"valueInteger": int(value)},
    ),
    "thal": (((OWN, "thallium", "Thallium scan"),), coded(THALLIUM)),
}


def convert(folder: Path, out: Path) -> dict[str, int]:
    """Write every hospital's records, and tell how many patients each has."""
    counts = {}
    for hospital, name in HOSPITALS.items():
        lines: dict[str, list[str]] = {}
        counts[hospital] = 0
        for number, row in enumerate(rows(folder / f"processed.{name}.data"), 1):
            counts[hospital] = number
            for resource in records(hospital, number, row):
                lines.setdefault(resource["resourceType"], []).append(json.dumps(resource))
        (out / hospital).mkdir(parents=True, exist_ok=True)
        for kind, texts in lines.items():
            (out / hospital / f"{kind}.ndjson").write_text("\n".join(texts) + "\n", encoding="utf-8")
    return counts


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/heart/convert.py FOLDER OUT")
    for site, patients in convert(Path(sys.argv[1]), Path(sys.argv[2])).items():
        sys.stdout.write(f"{site}\t{patients}\n")
