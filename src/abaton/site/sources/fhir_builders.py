"""Rows of other models as FHIR R4 resources: the few forms that tables and OMOP are turned into on their way in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

from abaton.fhir.terminology import UCUM

Json = dict[str, Any]
Codes = Iterable[tuple[str, str]]
"""A thing's codes: system and code of each."""

_TERMS = "http://terminology.hl7.org/CodeSystem/"
_ID = re.compile(r"[A-Za-z0-9\-.]{1,64}")
_WRITTEN = "id."


def identity(text: str) -> str:
    """The id of a person as FHIR allows it; a name with other signs is written in hexadecimal.

    >>> identity("4711-a"), identity("47/11")
    ('4711-a', 'id.34372f3131')
    """
    if _ID.fullmatch(text) and not text.startswith(_WRITTEN):
        return text
    made = _WRITTEN + text.encode().hex()
    if len(made) <= 64:
        return made
    return _WRITTEN + hashlib.sha256(text.encode()).hexdigest()[:60]


def concept(codes: Codes) -> Json:
    """A thing by its codes.

    >>> concept([("http://loinc.org", "8480-6")])
    {'coding': [{'system': 'http://loinc.org', 'code': '8480-6'}]}
    """
    return {"coding": [{"system": system, "code": code} for system, code in codes]}


def quantity(value: float, unit: str | None = None, comparator: str | None = None) -> Json:
    """A measured number with its unit in UCUM, if it has one, and the sign before it, if there is one."""
    made: Json = {"value": int(value) if value == int(value) else value}
    if comparator:
        made["comparator"] = comparator
    if unit:
        made |= {"unit": unit, "system": UCUM, "code": unit}
    return made


def patient(who: str, sex: str | None, born: str | None, died: str | None) -> Json:
    """A person."""
    made: Json = {"resourceType": "Patient", "id": who}
    if sex:
        made["gender"] = sex
    if born:
        made["birthDate"] = born
    if died:
        made["deceasedDateTime"] = died
    return made


def observation(name: str, who: str, codes: Codes, when: str | None, value: Json) -> Json:
    """Something that was measured or observed; the value is an element such as ``valueQuantity``."""
    made = {"resourceType": "Observation", "id": name, "status": "final", "code": concept(codes)}
    made["subject"] = _about(who)
    if when:
        made["effectiveDateTime"] = when
    return made | value


def condition(
    name: str, who: str, codes: Codes, onset: str | None, end: str | None = None, recorded: str | None = None
) -> Json:
    """A diagnosis; it is over if it has an end."""
    made: Json = {
        "resourceType": "Condition",
        "id": name,
        "clinicalStatus": concept([(f"{_TERMS}condition-clinical", "resolved" if end else "active")]),
        "verificationStatus": concept([(f"{_TERMS}condition-ver-status", "confirmed")]),
        "code": concept(codes),
        "subject": _about(who),
    }
    for key, told in (("onsetDateTime", onset), ("abatementDateTime", end), ("recordedDate", recorded)):
        if told:
            made[key] = told
    return made


def encounter(name: str, who: str, codes: Codes, start: str | None, end: str | None, setting: str) -> Json:
    """A visit or a stay; the setting is HL7's code (AMB, EMER, IMP …), empty if nobody knows."""
    known = ("v3-ActCode", setting) if setting else ("v3-NullFlavor", "UNK")
    made: Json = {
        "resourceType": "Encounter",
        "id": name,
        "status": "finished",
        "class": {"system": f"{_TERMS}{known[0]}", "code": known[1]},
    }
    if told := concept(codes)["coding"]:
        made["type"] = [{"coding": told}]
    made["subject"] = _about(who)
    if start or end:
        made["period"] = _period(start, end)
    return made


def medicine(kind: str, name: str, who: str, codes: Codes, when: str | None, end: str | None) -> Json:
    """A medicine that was prescribed, given, handed out or taken, by the type of resource that says which."""
    made: Json = {"resourceType": kind, "id": name, "status": "completed"}
    if kind == "MedicationRequest":
        made |= {"status": "active", "intent": "order"}
    made["medicationCodeableConcept"] = concept(codes)
    made["subject"] = _about(who)
    if when and kind == "MedicationRequest":
        made["authoredOn"] = when
    elif when and kind == "MedicationDispense":
        made["whenHandedOver"] = when
    elif when and end:
        made["effectivePeriod"] = _period(when, end)
    elif when:
        made["effectiveDateTime"] = when
    return made


def procedure(name: str, who: str, codes: Codes, when: str | None, end: str | None = None) -> Json:
    """Something that was done."""
    made: Json = {"resourceType": "Procedure", "id": name, "status": "completed", "code": concept(codes)}
    made["subject"] = _about(who)
    if when and end:
        made["performedPeriod"] = _period(when, end)
    elif when:
        made["performedDateTime"] = when
    return made


def device(name: str, who: str, codes: Codes, when: str | None, end: str | None) -> tuple[Json, Json]:
    """A device, and its use by a person."""
    thing: Json = {"resourceType": "Device", "id": name, "type": concept(codes), "patient": _about(who)}
    use: Json = {"resourceType": "DeviceUseStatement", "id": name, "status": "completed" if end else "active"}
    use["subject"] = _about(who)
    use["device"] = {"reference": f"Device/{name}"}
    if when:
        use["timingPeriod"] = _period(when, end)
    return thing, use


def _about(who: str) -> Json:
    return {"reference": f"Patient/{who}"}


def _period(start: str | None, end: str | None) -> Json:
    return {key: told for key, told in (("start", start), ("end", end)) if told}
