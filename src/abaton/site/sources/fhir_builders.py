"""Builders of FHIR R4 resources from rows of tables and OMOP."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

from abaton.fhir.terminology import UCUM

Json = dict[str, Any]
Codes = Iterable[tuple[str, str]]
"""Codings: system and code of each."""

_HL7_SYSTEMS = "http://terminology.hl7.org/CodeSystem/"
_ID = re.compile(r"[A-Za-z0-9\-.]{1,64}")
_ENCODED_PREFIX = "id."


def fhir_id(text: str) -> str:
    """Build a valid FHIR id; text with other characters is encoded in hexadecimal or hashed.

    >>> fhir_id("4711-a"), fhir_id("47/11")
    ('4711-a', 'id.34372f3131')
    """
    if _ID.fullmatch(text) and not text.startswith(_ENCODED_PREFIX):
        return text
    encoded = _ENCODED_PREFIX + text.encode().hex()
    if len(encoded) <= 64:
        return encoded
    return _ENCODED_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:60]


def build_concept(codes: Codes) -> Json:
    """Build a FHIR CodeableConcept.

    >>> build_concept([("http://loinc.org", "8480-6")])
    {'coding': [{'system': 'http://loinc.org', 'code': '8480-6'}]}
    """
    return {"coding": [{"system": system, "code": code} for system, code in codes]}


def build_quantity(value: float, unit: str | None = None, comparator: str | None = None) -> Json:
    """Build a FHIR Quantity with an optional UCUM unit and comparator."""
    quantity: Json = {"value": int(value) if value == int(value) else value}
    if comparator:
        quantity["comparator"] = comparator
    if unit:
        quantity |= {"unit": unit, "system": UCUM, "code": unit}
    return quantity


def build_patient(patient_id: str, sex: str | None, birth_date: str | None, death_date: str | None) -> Json:
    """Build a FHIR Patient."""
    resource: Json = {"resourceType": "Patient", "id": patient_id}
    if sex:
        resource["gender"] = sex
    if birth_date:
        resource["birthDate"] = birth_date
    if death_date:
        resource["deceasedDateTime"] = death_date
    return resource


def build_observation(resource_id: str, patient_id: str, codes: Codes, date: str | None, value: Json) -> Json:
    """Build a FHIR Observation; ``value`` is an element such as ``valueQuantity``."""
    resource = {
        "resourceType": "Observation",
        "id": resource_id,
        "status": "final",
        "code": build_concept(codes),
    }
    resource["subject"] = _subject_reference(patient_id)
    if date:
        resource["effectiveDateTime"] = date
    return resource | value


def build_condition(
    resource_id: str,
    patient_id: str,
    codes: Codes,
    onset: str | None,
    end: str | None = None,
    recorded: str | None = None,
) -> Json:
    """Build a FHIR Condition, which is resolved if it has an end."""
    resource: Json = {
        "resourceType": "Condition",
        "id": resource_id,
        "clinicalStatus": build_concept(
            [(f"{_HL7_SYSTEMS}condition-clinical", "resolved" if end else "active")]
        ),
        "verificationStatus": build_concept([(f"{_HL7_SYSTEMS}condition-ver-status", "confirmed")]),
        "code": build_concept(codes),
        "subject": _subject_reference(patient_id),
    }
    for element, text in (("onsetDateTime", onset), ("abatementDateTime", end), ("recordedDate", recorded)):
        if text:
            resource[element] = text
    return resource


def build_encounter(
    resource_id: str, patient_id: str, codes: Codes, start: str | None, end: str | None, encounter_class: str
) -> Json:
    """Build a FHIR Encounter; the class is a code of v3 ActCode (AMB, EMER, IMP …), or empty if unknown."""
    system, code = ("v3-ActCode", encounter_class) if encounter_class else ("v3-NullFlavor", "UNK")
    resource: Json = {
        "resourceType": "Encounter",
        "id": resource_id,
        "status": "finished",
        "class": {"system": f"{_HL7_SYSTEMS}{system}", "code": code},
    }
    if codings := build_concept(codes)["coding"]:
        resource["type"] = [{"coding": codings}]
    resource["subject"] = _subject_reference(patient_id)
    if start or end:
        resource["period"] = _period(start, end)
    return resource


def build_medication(
    resource_type: str, resource_id: str, patient_id: str, codes: Codes, date: str | None, end: str | None
) -> Json:
    """Build a FHIR MedicationRequest, -Administration, -Dispense or -Statement."""
    resource: Json = {"resourceType": resource_type, "id": resource_id, "status": "completed"}
    if resource_type == "MedicationRequest":
        resource |= {"status": "active", "intent": "order"}
    resource["medicationCodeableConcept"] = build_concept(codes)
    resource["subject"] = _subject_reference(patient_id)
    if date and resource_type == "MedicationRequest":
        resource["authoredOn"] = date
    elif date and resource_type == "MedicationDispense":
        resource["whenHandedOver"] = date
    elif date and end:
        resource["effectivePeriod"] = _period(date, end)
    elif date:
        resource["effectiveDateTime"] = date
    return resource


def build_procedure(
    resource_id: str, patient_id: str, codes: Codes, date: str | None, end: str | None = None
) -> Json:
    """Build a FHIR Procedure."""
    resource: Json = {
        "resourceType": "Procedure",
        "id": resource_id,
        "status": "completed",
        "code": build_concept(codes),
    }
    resource["subject"] = _subject_reference(patient_id)
    if date and end:
        resource["performedPeriod"] = _period(date, end)
    elif date:
        resource["performedDateTime"] = date
    return resource


def build_device(
    resource_id: str, patient_id: str, codes: Codes, date: str | None, end: str | None
) -> tuple[Json, Json]:
    """Build a FHIR Device and its DeviceUseStatement."""
    device: Json = {
        "resourceType": "Device",
        "id": resource_id,
        "type": build_concept(codes),
        "patient": _subject_reference(patient_id),
    }
    use: Json = {
        "resourceType": "DeviceUseStatement",
        "id": resource_id,
        "status": "completed" if end else "active",
    }
    use["subject"] = _subject_reference(patient_id)
    use["device"] = {"reference": f"Device/{resource_id}"}
    if date:
        use["timingPeriod"] = _period(date, end)
    return device, use


def _subject_reference(patient_id: str) -> Json:
    return {"reference": f"Patient/{patient_id}"}


def _period(start: str | None, end: str | None) -> Json:
    return {key: text for key, text in (("start", start), ("end", end)) if text}
