"""Helpers that build de-identified records and feature specifications."""

from __future__ import annotations

from typing import Any

from abaton.features import InputKind, InputSpec, LabelKind, LabelSpec, ResolvedFeatureSpec
from abaton.record_types import DeidentifiedRecord

LOINC = "http://loinc.org"
SNOMED = "http://snomed.info/sct"
ICD = "http://hl7.org/fhir/sid/icd-10"

PATIENTS = {
    "resource": "Patient",
    "select": [
        {
            "column": [
                {"name": "subject", "path": "getResourceKey()"},
                {"name": "sex", "path": "gender"},
                {"name": "born", "path": "birthDate"},
            ]
        }
    ],
}
VALUES = {
    "resource": "Observation",
    "select": [
        {
            "column": [
                {"name": "subject", "path": "subject.getReferenceKey(Patient)"},
                {"name": "date", "path": "effective.ofType(dateTime)"},
                {"name": "value", "path": "value.ofType(Quantity).value"},
                {"name": "unit", "path": "value.ofType(Quantity).code"},
                {"name": "yes", "path": "value.ofType(boolean)"},
            ]
        }
    ],
}
CODES = {
    "resource": "Condition",
    "select": [
        {
            "column": [
                {"name": "subject", "path": "subject.getReferenceKey(Patient)"},
                {"name": "date", "path": "onset.ofType(dateTime)"},
            ]
        },
        {
            "forEach": "code.coding",
            "column": [{"name": "system", "path": "system"}, {"name": "code", "path": "code"}],
        },
    ],
}
VISITS = {
    "resource": "Encounter",
    "select": [
        {
            "column": [
                {"name": "subject", "path": "subject.getReferenceKey(Patient)"},
                {"name": "date", "path": "period.start"},
            ]
        }
    ],
}
VIEWS = {"patients": PATIENTS, "values": VALUES, "codes": CODES, "visits": VISITS}


def patient(who: str, **more: Any) -> DeidentifiedRecord:
    return DeidentifiedRecord({"resourceType": "Patient", "id": who, **more})


def value(
    who: str, number: float | None, unit: str | None = "mm[Hg]", when: str | None = None
) -> DeidentifiedRecord:
    content: dict[str, Any] = {"resourceType": "Observation", "subject": {"reference": f"Patient/{who}"}}
    quantity = {"value": number, "code": unit}
    content["valueQuantity"] = {key: item for key, item in quantity.items() if item is not None}
    if when:
        content["effectiveDateTime"] = when
    return DeidentifiedRecord(content)


def condition(who: str, code: str, system: str = SNOMED, when: str | None = None) -> DeidentifiedRecord:
    content: dict[str, Any] = {
        "resourceType": "Condition",
        "subject": {"reference": f"Patient/{who}"},
        "code": {"coding": [{"system": system, "code": code}]},
    }
    if when:
        content["onsetDateTime"] = when
    return DeidentifiedRecord(content)


def visit(who: str, when: str) -> DeidentifiedRecord:
    return DeidentifiedRecord(
        {"resourceType": "Encounter", "subject": {"reference": f"Patient/{who}"}, "period": {"start": when}}
    )


PRESSURE = InputSpec(
    name="pressure", kind=InputKind.NUMBER, view="values", column="value", unit="mm[Hg]", unit_column="unit"
)
ILL = LabelSpec(name="ill", kind=LabelKind.ANY, view="codes")


def plan(*inputs: InputSpec, label: LabelSpec = ILL, **more: Any) -> ResolvedFeatureSpec:
    settings = {"cohort": "patients", "min_cell_count": 1, **more}
    return ResolvedFeatureSpec(views=VIEWS, inputs=inputs or (PRESSURE,), label=label, **settings)
