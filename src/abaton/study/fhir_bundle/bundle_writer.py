"""From a study document to an InteropEHRate Bundle: valid FHIR R4, with everything the document says."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from abaton.deid.settings import Mechanism
from abaton.study.document import Centre, Document, Questionnaire, Study
from abaton.study.fhir_bundle import primitives
from abaton.study.fhir_bundle.data_requirement import data_requirement, timing
from abaton.study.fhir_bundle.group_resource import group
from abaton.study.fhir_bundle.primitives import coding, concept, period, telecoms, to_extension, without_none

_WORDS = {Mechanism.ANONYMISE: "anonymization", Mechanism.PSEUDONYMISE: "pseudonymization"}


def write_bundle(study: Study) -> dict[str, Any]:
    """The study as a collection: ResearchStudy, Group, Location, Endpoint and Questionnaires."""
    resources = [
        _research_study(study),
        group(study.eligibility),
        _location(study.centre),
        _endpoint(study.centre),
        *(made.resource for made in study.questionnaires if made.resource),
    ]
    base = study.centre.endpoint.url.rstrip("/")
    return {
        "resourceType": "Bundle",
        "id": _fhir_id(study.study.id),
        "language": study.study.language,
        "type": "collection",
        # References are relative, so they resolve against the address of the service (FHIR R4, 2.36.4.1).
        "entry": [
            {"fullUrl": f"{base}/{made['resourceType']}/{made['id']}", "resource": made} for made in resources
        ],
    }


def _fhir_id(name: str) -> str:
    """A FHIR id: at most 64 letters, digits, points and dashes."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name)[:64]


def _research_study(study: Study) -> dict[str, Any]:
    head = study.study
    identifier = without_none({"system": head.system, "value": head.id})
    words = [f"<p>{escape(part, quote=False)}</p>" for part in (head.title, head.question) if part]
    return without_none(
        {
            "resourceType": "ResearchStudy",
            "id": _fhir_id(head.id),
            "meta": {"profile": [primitives.STUDY]},
            "language": head.language,
            "text": {
                "status": "extensions",
                "div": f'<div xmlns="http://www.w3.org/1999/xhtml">{"".join(words)}</div>',
            },
            "extension": _extensions(study),
            "identifier": [identifier],
            "title": head.title,
            "status": head.status.value,
            "primaryPurposeType": {"coding": [{"system": primitives.PURPOSES, "code": head.purpose.value}]},
            "condition": [concept(term) for term in head.conditions],
            "contact": [
                without_none({"name": contact.name, "telecom": telecoms(contact.telecom)})
                for contact in study.contacts
            ],
            "relatedArtifact": [_artifact(document) for document in study.documents],
            "location": [concept(term) for term in head.regions],
            "description": head.question,
            "enrollment": [{"reference": "Group/cohort"}],
            "period": period(head.period),
            "site": [{"reference": "Location/centre"}],
        }
    )


def _extensions(study: Study) -> list[dict[str, Any]]:
    mechanism = {
        "system": primitives.ANONYMISATION_TYPES,
        "code": _WORDS[study.deidentification.mechanism],
        "display": _WORDS[study.deidentification.mechanism].capitalize(),
    }
    requirements = [
        {"url": "DataRequirement", "valueDataRequirement": data_requirement(made)} for made in study.data
    ]
    return [
        {"url": primitives.ENROLMENT, "valuePeriod": period(study.study.enrolment)},
        {"url": primitives.ANONYMISATION, "valueCoding": mechanism},
        {"url": primitives.DATA_SET, "extension": requirements},
        *(_asked(made) for made in study.questionnaires),
        to_extension(primitives.DETAILS, _details(study)),
    ]


def _details(study: Study) -> dict[str, Any]:
    """What the guide has no code for."""
    content = study.content()
    head, protection = content["study"], dict(content["deidentification"])
    protection.pop("mechanism")
    made = {key: head.get(key) for key in ("version", "legal_basis", "shares", "retention")}
    made |= {
        "deidentification": protection,
        "privacy": content.get("privacy"),
        **{key: content.get(key) for key in ("views", "features", "learning", "consent", "persons")},
    }
    return without_none(made)


def _asked(made: Questionnaire) -> dict[str, Any]:
    return {
        "url": primitives.QUESTIONNAIRE,
        "extension": [
            {"url": "Questionnaire", "valueReference": {"reference": made.reference}},
            {"url": "Deadline", "valueDateTime": made.deadline.isoformat()},
            {"url": "ReminderFrequency", "valueTiming": timing(made.reminder)},
        ],
    }


def _artifact(made: Document) -> dict[str, Any]:
    document = {
        "contentType": made.content_type,
        "language": made.language,
        "data": made.data,
        "url": made.url,
        "title": made.title,
        "creation": made.created.isoformat() if made.created else None,
    }
    return {"type": "documentation", "document": without_none(document)}


def _location(centre: Centre) -> dict[str, Any]:
    identifier = without_none({"system": centre.system, "value": centre.id})
    address = centre.address.model_dump()
    names = {"lines": "line", "postcode": "postalCode", "kind": "type"}
    return without_none(
        {
            "resourceType": "Location",
            "id": "centre",
            "meta": {"profile": [primitives.CENTRE]},
            "identifier": [identifier] if identifier else None,
            "name": centre.name,
            "type": [concept(term) for term in centre.kinds],
            "telecom": telecoms(centre.telecom),
            "address": without_none(
                {
                    names.get(key, key): list(value) if key == "lines" else value
                    for key, value in address.items()
                }
            ),
            "endpoint": [{"reference": "Endpoint/endpoint"}],
        }
    )


def _endpoint(centre: Centre) -> dict[str, Any]:
    made = centre.endpoint
    return without_none(
        {
            "resourceType": "Endpoint",
            "id": "endpoint",
            "status": made.status,
            "connectionType": coding(made.connection),
            "name": made.name,
            "payloadType": [concept(term) for term in made.payloads],
            "address": made.url,
        }
    )
