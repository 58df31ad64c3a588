"""Small synthetic hospital: patients with hypertension and their blood pressures."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

from tests.study.full_studies import long_starter

from abaton.study import Study, study_from_toml

ICD = "http://hl7.org/fhir/sid/icd-10-cm"
LOINC = "http://loinc.org"
TODAY = date(2026, 11, 16)


def study(**changes: str) -> Study:
    """Return the template study with parts of its text replaced."""
    text = long_starter(TODAY)
    for old, new in changes.items():
        assert PIECES[old] in text
        text = text.replace(PIECES[old], new)
    return study_from_toml(text)


PIECES = {
    "preset": 'preset = "default"              # or "paper"',
    "missing": 'imputation = "mean"       ',
    "indicator": "missing_indicator = true        # one more column says that it was missing",
    "cohort": 'cohort = "patients"',
    "elements": 'elements = ["code", "value", "component", "effective"]',
    "subject": """{ name = "subject", path = "subject.getReferenceKey(Patient)" },
  { name = "date",""",
    "dates": 'dates = "year"                  # or "shift", "remove"',
}


def patient(number: int | str, birth: str = "1960-05-01", **more: object) -> dict[str, object]:
    return {"resourceType": "Patient", "id": f"p{number}", "gender": "female", "birthDate": birth, **more}


def condition(number: int | str, code: str = "I10", system: str = ICD) -> dict[str, object]:
    return {
        "resourceType": "Condition",
        "id": f"c{number}",
        "subject": {"reference": f"Patient/p{number}"},
        "code": {"coding": [{"system": system, "code": code}]},
    }


def pressure(
    number: int | str, value: float = 141.0, when: str = "2026-03-04", name: str = "o"
) -> dict[str, object]:
    return {
        "resourceType": "Observation",
        "id": f"{name}{number}",
        "status": "final",
        "subject": {"reference": f"Patient/p{number}"},
        "code": {"coding": [{"system": LOINC, "code": "8480-6"}]},
        "effectiveDateTime": when,
        "valueQuantity": {
            "value": value,
            "system": "http://unitsofmeasure.org",
            "code": "mm[Hg]",
            "unit": "mmHg",
        },
    }


def cohort_resources(*numbers: int) -> list[dict[str, object]]:
    """Return resources of eligible patients with all required data."""
    return [build(number) for build in (patient, condition, pressure) for number in numbers]


def failing(*numbers: int) -> list[dict[str, object]]:
    """Return heart failures of patients."""
    return [{**condition(number, "I50.9"), "id": f"f{number}"} for number in numbers]


def write(folder: Path, resources: list[dict[str, object]]) -> Path:
    """Write one NDJSON file per resource type."""
    folder.mkdir(exist_ok=True)
    for kind in sorted({str(resource["resourceType"]) for resource in resources}):
        lines = [json.dumps(resource) for resource in resources if resource["resourceType"] == kind]
        (folder / f"{kind}.ndjson").write_text("\n".join(lines) + "\n")
    return folder


def lines(resources: list[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(resource).encode() + b"\n" for resource in resources)
