"""Short ways to make de-identified records and feature plans in a test."""

from __future__ import annotations

from typing import Any

from abaton.records import Deidentified
from abaton.features import Input, Kind, Label, Outcome, Plan

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


def patient(who: str, **more: Any) -> Deidentified:
    return Deidentified({"resourceType": "Patient", "id": who, **more})


def value(
    who: str, number: float | None, unit: str | None = "mm[Hg]", when: str | None = None
) -> Deidentified:
    content: dict[str, Any] = {"resourceType": "Observation", "subject": {"reference": f"Patient/{who}"}}
    quantity = {"value": number, "code": unit}
    content["valueQuantity"] = {key: item for key, item in quantity.items() if item is not None}
    if when:
        content["effectiveDateTime"] = when
    return Deidentified(content)


def condition(who: str, code: str, system: str = SNOMED, when: str | None = None) -> Deidentified:
    content: dict[str, Any] = {
        "resourceType": "Condition",
        "subject": {"reference": f"Patient/{who}"},
        "code": {"coding": [{"system": system, "code": code}]},
    }
    if when:
        content["onsetDateTime"] = when
    return Deidentified(content)


def visit(who: str, when: str) -> Deidentified:
    return Deidentified(
        {"resourceType": "Encounter", "subject": {"reference": f"Patient/{who}"}, "period": {"start": when}}
    )


PRESSURE = Input(
    name="pressure", kind=Kind.NUMBER, view="values", column="value", unit="mm[Hg]", unit_column="unit"
)
ILL = Label(name="ill", kind=Outcome.ANY, view="codes")


def plan(*inputs: Input, label: Label = ILL, **more: Any) -> Plan:
    made = {"cohort": "patients", "floor": 1, **more}
    return Plan(views=VIEWS, inputs=inputs or (PRESSURE,), label=label, **made)
