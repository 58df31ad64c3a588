"""An invented person as FHIR R4 resources, written the way their hospital writes: its codes, its units."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

from abaton.lab.synthetic_hospitals.patients import Hospital, Person

SNOMED = "http://snomed.info/sct"
LOINC = "http://loinc.org"
ICD10 = "http://hl7.org/fhir/sid/icd-10"
ATC = "http://www.whocc.no/atc"
UCUM = "http://unitsofmeasure.org"
_TERMS = "http://terminology.hl7.org/CodeSystem/"
# Whoever meets these records outside is told that they are made for testing.
_TEST = {"security": [{"system": f"{_TERMS}v3-ActReason", "code": "HTEST", "display": "test health data"}]}

_FAMILY = ("Sample", "Specimen", "Exemplar", "Mockup", "Placeholder", "Testcase")
_GIVEN = (("Iason", "Aeson", "Linos", "Chiron"), ("Panacea", "Hygieia", "Epione", "Iaso"))

HYPERTENSION = ((SNOMED, "38341003", "Hypertensive disorder"), (ICD10, "I10", "Essential hypertension"))
DIABETES = ((SNOMED, "44054006", "Diabetes mellitus type 2"), (ICD10, "E11.9", "Type 2 diabetes mellitus"))
FAILURE = ((SNOMED, "84114007", "Heart failure"), (ICD10, "I50.9", "Heart failure, unspecified"))
_SMOKING = {
    "daily": (
        (SNOMED, "449868002", "Smokes tobacco daily"),
        (LOINC, "LA18976-3", "Current every day smoker"),
    ),
    "former": ((SNOMED, "8517006", "Ex-smoker"), (LOINC, "LA15920-4", "Former smoker")),
    "never": ((SNOMED, "266919005", "Never smoked tobacco"), (LOINC, "LA18978-9", "Never smoker")),
}
# Total cholesterol and creatinine: the code and unit of a mass, those of an amount, and what one unit of mass is.
_LABORATORY = {
    "cholesterol": (("2093-3", "mg/dL"), ("14647-2", "mmol/L"), 1 / 38.665),
    "creatinine": (("2160-0", "mg/dL"), ("14682-9", "umol/L"), 88.42),
}


def smoking_codes(*, answers: bool) -> dict[str, tuple[str, str]]:
    """How smoking is written: each word, and its system and code."""
    return {word: terms[answers][:2] for word, terms in _SMOKING.items()}


def resources(name: str, hospital: Hospital, number: int, person: Person) -> Iterator[dict[str, Any]]:
    """Everything that a hospital has written about one person."""
    who = f"{name}-{number}"
    made = [
        _patient(name, who, number, person),
        *_encounters(who, person),
        *_conditions(who, hospital, person),
        *_observations(who, hospital, person),
        *_medications(who, person),
    ]
    counts: dict[str, int] = {}
    for resource in made:
        kind = resource["resourceType"]
        counts[kind] = counts.get(kind, 0) + 1
        if kind != "Patient":
            resource["id"] = f"{who}-{kind[:3].lower()}{counts[kind]}"
        resource["meta"] = _TEST
        yield resource


def _patient(name: str, who: str, number: int, person: Person) -> dict[str, Any]:
    family = f"{_FAMILY[number % len(_FAMILY)]}{number}"
    return {
        "resourceType": "Patient",
        "id": who,
        "identifier": [
            {"system": f"http://{name}.example/patients", "value": f"{name[:2].upper()}{number:06d}"}
        ],
        "name": [{"family": family, "given": [_GIVEN[person.female][number % 4]]}],
        "telecom": [{"system": "phone", "value": f"+30 000 {number:06d}"}],
        "gender": "female" if person.female else "male",
        "birthDate": person.born.isoformat(),
        "address": [{"line": [f"Sample Street {number}"], "city": name.capitalize(), "country": "GR"}],
    }


def _at(person: Person, day: int, hour: int = 9) -> str:
    then = date.fromordinal(person.checkup.toordinal() + day)
    return f"{then.isoformat()}T{hour:02d}:00:00+02:00"


def _coding(system: str, code: str, display: str) -> dict[str, Any]:
    return {"coding": [{"system": system, "code": code, "display": display}], "text": display}


def _encounters(who: str, person: Person) -> Iterator[dict[str, Any]]:
    visits = [(day, "EMER", ("4525004", "Emergency department patient visit")) for day in person.visits]
    visits.append((0, "AMB", ("185349003", "Encounter for check up")))
    visits.append((person.watched, "AMB", ("390906007", "Follow-up encounter")))
    for day, kind, (code, display) in visits:
        yield {
            "resourceType": "Encounter",
            "status": "finished",
            "class": {"system": f"{_TERMS}v3-ActCode", "code": kind},
            "type": [_coding(SNOMED, code, display)],
            "subject": {"reference": f"Patient/{who}"},
            "period": {"start": _at(person, day), "end": _at(person, day, 11)},
        }


def _conditions(who: str, hospital: Hospital, person: Person) -> Iterator[dict[str, Any]]:
    found: list[tuple[int, tuple[tuple[str, str, str], ...]]] = [(-900, HYPERTENSION)]
    if person.diabetes:
        found.append((-800, DIABETES))
    if person.event is not None:
        found.append((person.event, FAILURE))
    for day, terms in found:
        yield {
            "resourceType": "Condition",
            "clinicalStatus": {"coding": [{"system": f"{_TERMS}condition-clinical", "code": "active"}]},
            "verificationStatus": {
                "coding": [{"system": f"{_TERMS}condition-ver-status", "code": "confirmed"}]
            },
            "code": _coding(*terms[hospital.icd]),
            "subject": {"reference": f"Patient/{who}"},
            "onsetDateTime": _at(person, day)[:10],
            "recordedDate": _at(person, day),
        }


def _observations(who: str, hospital: Hospital, person: Person) -> Iterator[dict[str, Any]]:
    unitless = hospital.unitless and (person.born.toordinal() % 100) < 100 * hospital.unitless
    for day, value in person.systolic:
        quantity = _quantity(round(value), "mm[Hg]")
        yield _observation(
            who,
            ("8480-6", "Systolic blood pressure"),
            _at(person, day),
            {"valueQuantity": {"value": round(value)} if unitless else quantity},
        )
    for name, (mass, amount, factor) in _LABORATORY.items():
        value = getattr(person, name)
        if value is not None:
            code, unit = amount if hospital.si else mass
            told = value * factor if hospital.si else value
            yield _observation(
                who, (code, name), _at(person, -3), {"valueQuantity": _quantity(round(told, 2), unit)}
            )
    if person.bmi is not None:
        quantity = _quantity(round(person.bmi, 1), "kg/m2")
        yield _observation(who, ("39156-5", "Body mass index"), _at(person, 0), {"valueQuantity": quantity})
    if person.smoking is not None:
        status = {"valueCodeableConcept": _coding(*_SMOKING[person.smoking][hospital.answers])}
        yield _observation(who, ("72166-2", "Tobacco smoking status"), _at(person, 0), status)


def _quantity(value: float, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit, "system": UCUM, "code": unit}


def _observation(who: str, code: tuple[str, str], when: str, value: dict[str, Any]) -> dict[str, Any]:
    return {
        "resourceType": "Observation",
        "status": "final",
        "code": _coding(LOINC, *code),
        "subject": {"reference": f"Patient/{who}"},
        "effectiveDateTime": when,
        **value,
    }


def _medications(who: str, person: Person) -> Iterator[dict[str, Any]]:
    prescribed = [("C09AA05", "ramipril")] + ([("C03CA01", "furosemide")] if person.diuretic else [])
    for code, display in prescribed:
        yield {
            "resourceType": "MedicationRequest",
            "status": "active",
            "intent": "order",
            "medicationCodeableConcept": _coding(ATC, code, display),
            "subject": {"reference": f"Patient/{who}"},
            "authoredOn": _at(person, -30)[:10],
        }
