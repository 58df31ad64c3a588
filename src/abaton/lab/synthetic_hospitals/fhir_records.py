"""FHIR R4 resources of a synthetic patient, with the codes and units of the hospital."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

from abaton.lab.synthetic_hospitals.patients import SyntheticHospital, SyntheticPatient

SNOMED = "http://snomed.info/sct"
LOINC = "http://loinc.org"
ICD10 = "http://hl7.org/fhir/sid/icd-10"
ATC = "http://www.whocc.no/atc"
UCUM = "http://unitsofmeasure.org"
_HL7_SYSTEMS = "http://terminology.hl7.org/CodeSystem/"
# The security label marks the records as test data.
_TEST_META = {
    "security": [{"system": f"{_HL7_SYSTEMS}v3-ActReason", "code": "HTEST", "display": "test health data"}]
}

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
# Total cholesterol and creatinine: code and unit of the mass, code and unit of the amount, and the conversion factor.
_LABORATORY = {
    "cholesterol": (("2093-3", "mg/dL"), ("14647-2", "mmol/L"), 1 / 38.665),
    "creatinine": (("2160-0", "mg/dL"), ("14682-9", "umol/L"), 88.42),
}


def smoking_codes(*, answers: bool) -> dict[str, tuple[str, str]]:
    """Return the system and code of each smoking status in the synthetic FHIR records."""
    return {word: codings[answers][:2] for word, codings in _SMOKING.items()}


def resources(
    name: str, hospital: SyntheticHospital, number: int, patient: SyntheticPatient
) -> Iterator[dict[str, Any]]:
    """Yield all FHIR resources of one synthetic patient."""
    patient_id = f"{name}-{number}"
    entries = [
        _patient(name, patient_id, number, patient),
        *_encounters(patient_id, patient),
        *_conditions(patient_id, hospital, patient),
        *_observations(patient_id, hospital, patient),
        *_medications(patient_id, patient),
    ]
    counts: dict[str, int] = {}
    for resource in entries:
        resource_type = resource["resourceType"]
        counts[resource_type] = counts.get(resource_type, 0) + 1
        if resource_type != "Patient":
            resource["id"] = f"{patient_id}-{resource_type[:3].lower()}{counts[resource_type]}"
        resource["meta"] = _TEST_META
        yield resource


def _patient(name: str, patient_id: str, number: int, patient: SyntheticPatient) -> dict[str, Any]:
    family = f"{_FAMILY[number % len(_FAMILY)]}{number}"
    return {
        "resourceType": "Patient",
        "id": patient_id,
        "identifier": [
            {"system": f"http://{name}.example/patients", "value": f"{name[:2].upper()}{number:06d}"}
        ],
        "name": [{"family": family, "given": [_GIVEN[patient.female][number % 4]]}],
        "telecom": [{"system": "phone", "value": f"+30 000 {number:06d}"}],
        "gender": "female" if patient.female else "male",
        "birthDate": patient.born.isoformat(),
        "address": [{"line": [f"Sample Street {number}"], "city": name.capitalize(), "country": "GR"}],
    }


def _timestamp(patient: SyntheticPatient, day: int, hour: int = 9) -> str:
    visit_date = date.fromordinal(patient.checkup.toordinal() + day)
    return f"{visit_date.isoformat()}T{hour:02d}:00:00+02:00"


def _coding(system: str, code: str, display: str) -> dict[str, Any]:
    return {"coding": [{"system": system, "code": code, "display": display}], "text": display}


def _encounters(patient_id: str, patient: SyntheticPatient) -> Iterator[dict[str, Any]]:
    visits = [(day, "EMER", ("4525004", "Emergency department patient visit")) for day in patient.visits]
    visits.append((0, "AMB", ("185349003", "Encounter for check up")))
    visits.append((patient.follow_up_days, "AMB", ("390906007", "Follow-up encounter")))
    for day, encounter_class, (code, display) in visits:
        yield {
            "resourceType": "Encounter",
            "status": "finished",
            "class": {"system": f"{_HL7_SYSTEMS}v3-ActCode", "code": encounter_class},
            "type": [_coding(SNOMED, code, display)],
            "subject": {"reference": f"Patient/{patient_id}"},
            "period": {"start": _timestamp(patient, day), "end": _timestamp(patient, day, 11)},
        }


def _conditions(
    patient_id: str, hospital: SyntheticHospital, patient: SyntheticPatient
) -> Iterator[dict[str, Any]]:
    conditions: list[tuple[int, tuple[tuple[str, str, str], ...]]] = [(-900, HYPERTENSION)]
    if patient.diabetes:
        conditions.append((-800, DIABETES))
    if patient.event is not None:
        conditions.append((patient.event, FAILURE))
    for day, codings in conditions:
        yield {
            "resourceType": "Condition",
            "clinicalStatus": {"coding": [{"system": f"{_HL7_SYSTEMS}condition-clinical", "code": "active"}]},
            "verificationStatus": {
                "coding": [{"system": f"{_HL7_SYSTEMS}condition-ver-status", "code": "confirmed"}]
            },
            "code": _coding(*codings[hospital.icd]),
            "subject": {"reference": f"Patient/{patient_id}"},
            "onsetDateTime": _timestamp(patient, day)[:10],
            "recordedDate": _timestamp(patient, day),
        }


def _observations(
    patient_id: str, hospital: SyntheticHospital, patient: SyntheticPatient
) -> Iterator[dict[str, Any]]:
    unitless = hospital.unitless and (patient.born.toordinal() % 100) < 100 * hospital.unitless
    for day, value in patient.systolic:
        quantity = _quantity(round(value), "mm[Hg]")
        yield _observation(
            patient_id,
            ("8480-6", "Systolic blood pressure"),
            _timestamp(patient, day),
            {"valueQuantity": {"value": round(value)} if unitless else quantity},
        )
    for name, (mass, amount, factor) in _LABORATORY.items():
        value = getattr(patient, name)
        if value is not None:
            code, unit = amount if hospital.si else mass
            reported = value * factor if hospital.si else value
            yield _observation(
                patient_id,
                (code, name),
                _timestamp(patient, -3),
                {"valueQuantity": _quantity(round(reported, 2), unit)},
            )
    if patient.bmi is not None:
        quantity = _quantity(round(patient.bmi, 1), "kg/m2")
        yield _observation(
            patient_id, ("39156-5", "Body mass index"), _timestamp(patient, 0), {"valueQuantity": quantity}
        )
    if patient.smoking is not None:
        status = {"valueCodeableConcept": _coding(*_SMOKING[patient.smoking][hospital.answers])}
        yield _observation(patient_id, ("72166-2", "Tobacco smoking status"), _timestamp(patient, 0), status)


def _quantity(value: float, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit, "system": UCUM, "code": unit}


def _observation(
    patient_id: str, code: tuple[str, str], timestamp: str, value: dict[str, Any]
) -> dict[str, Any]:
    return {
        "resourceType": "Observation",
        "status": "final",
        "code": _coding(LOINC, *code),
        "subject": {"reference": f"Patient/{patient_id}"},
        "effectiveDateTime": timestamp,
        **value,
    }


def _medications(patient_id: str, patient: SyntheticPatient) -> Iterator[dict[str, Any]]:
    prescribed = [("C09AA05", "ramipril")] + ([("C03CA01", "furosemide")] if patient.diuretic else [])
    for code, display in prescribed:
        yield {
            "resourceType": "MedicationRequest",
            "status": "active",
            "intent": "order",
            "medicationCodeableConcept": _coding(ATC, code, display),
            "subject": {"reference": f"Patient/{patient_id}"},
            "authoredOn": _timestamp(patient, -30)[:10],
        }
