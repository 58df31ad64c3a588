"""Conversion of a study document to an InteropEHRate Bundle: valid FHIR R4 with the complete document."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from abaton.deid.settings import Mechanism
from abaton.study.document import AttachedDocument, Questionnaire, ResearchCentre, Study
from abaton.study.fhir_bundle import primitives
from abaton.study.fhir_bundle.data_requirement import timing, to_data_requirement
from abaton.study.fhir_bundle.group_resource import group
from abaton.study.fhir_bundle.primitives import coding, concept, period, telecoms, to_extension, without_none

_MECHANISM_CODES = {Mechanism.ANONYMISE: "anonymization", Mechanism.PSEUDONYMISE: "pseudonymization"}


def write_bundle(study: Study) -> dict[str, Any]:
    """Write a study as a FHIR Bundle of ResearchStudy, Group, Location, Endpoint and Questionnaires."""
    resources = [
        _research_study(study),
        group(study.eligibility),
        _location(study.centre),
        _endpoint(study.centre),
        *(resource.resource for resource in study.questionnaires if resource.resource),
    ]
    base = study.centre.endpoint.url.rstrip("/")
    return {
        "resourceType": "Bundle",
        "id": _fhir_id(study.study.id),
        "language": study.study.language,
        "type": "collection",
        # Relative references resolve against the URL of the service (FHIR R4, 2.36.4.1).
        "entry": [
            {"fullUrl": f"{base}/{resource['resourceType']}/{resource['id']}", "resource": resource}
            for resource in resources
        ],
    }


def _fhir_id(name: str) -> str:
    """Return the FHIR id of a resource to write to a study's Bundle: at most 64 letters, digits, points, dashes."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name)[:64]


def _research_study(study: Study) -> dict[str, Any]:
    identification = study.study
    identifier = without_none({"system": identification.system, "value": identification.id})
    paragraphs = [
        f"<p>{escape(part, quote=False)}</p>"
        for part in (identification.title, identification.question)
        if part
    ]
    return without_none(
        {
            "resourceType": "ResearchStudy",
            "id": _fhir_id(identification.id),
            "meta": {"profile": [primitives.STUDY]},
            "language": identification.language,
            "text": {
                "status": "extensions",
                "div": f'<div xmlns="http://www.w3.org/1999/xhtml">{"".join(paragraphs)}</div>',
            },
            "extension": _extensions(study),
            "identifier": [identifier],
            "title": identification.title,
            "status": identification.status.value,
            "primaryPurposeType": {
                "coding": [{"system": primitives.PURPOSES, "code": identification.purpose.value}]
            },
            "condition": [concept(code) for code in identification.conditions],
            "contact": [
                without_none({"name": contact.name, "telecom": telecoms(contact.telecom)})
                for contact in study.contacts
            ],
            "relatedArtifact": [_artifact(document) for document in study.documents],
            "location": [concept(code) for code in identification.regions],
            "description": identification.question,
            "enrollment": [{"reference": "Group/cohort"}],
            "period": period(identification.period),
            "site": [{"reference": "Location/centre"}],
        }
    )


def _extensions(study: Study) -> list[dict[str, Any]]:
    mechanism = {
        "system": primitives.ANONYMISATION_TYPES,
        "code": _MECHANISM_CODES[study.deidentification.mechanism],
        "display": _MECHANISM_CODES[study.deidentification.mechanism].capitalize(),
    }
    requirements = [
        {"url": "DataRequirement", "valueDataRequirement": to_data_requirement(item)} for item in study.data
    ]
    return [
        {"url": primitives.ENROLMENT, "valuePeriod": period(study.study.enrolment)},
        {"url": primitives.ANONYMISATION, "valueCoding": mechanism},
        {"url": primitives.DATA_SET, "extension": requirements},
        *(_questionnaire(item) for item in study.questionnaires),
        to_extension(primitives.DETAILS, _details(study)),
    ]


def _details(study: Study) -> dict[str, Any]:
    """Return the content of a study to write to Abaton's own extension, for which the guide has no codes."""
    content = study.content()
    identification, deidentification = content["study"], dict(content["deidentification"])
    deidentification.pop("mechanism")
    details = {key: identification.get(key) for key in ("version", "legal_basis", "shared_data", "retention")}
    details |= {
        "deidentification": deidentification,
        "privacy": content.get("privacy"),
        **{key: content.get(key) for key in ("views", "features", "learning", "consent", "citizens")},
    }
    return without_none(details)


def _questionnaire(questionnaire: Questionnaire) -> dict[str, Any]:
    return {
        "url": primitives.QUESTIONNAIRE,
        "extension": [
            {"url": "Questionnaire", "valueReference": {"reference": questionnaire.reference}},
            {"url": "Deadline", "valueDateTime": questionnaire.deadline.isoformat()},
            {"url": "ReminderFrequency", "valueTiming": timing(questionnaire.reminder)},
        ],
    }


def _artifact(attached: AttachedDocument) -> dict[str, Any]:
    document = {
        "contentType": attached.content_type,
        "language": attached.language,
        "data": attached.data,
        "url": attached.url,
        "title": attached.title,
        "creation": attached.created.isoformat() if attached.created else None,
    }
    return {"type": "documentation", "document": without_none(document)}


def _location(centre: ResearchCentre) -> dict[str, Any]:
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
            "type": [concept(code) for code in centre.types],
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


def _endpoint(centre: ResearchCentre) -> dict[str, Any]:
    endpoint = centre.endpoint
    return without_none(
        {
            "resourceType": "Endpoint",
            "id": "endpoint",
            "status": endpoint.status,
            "connectionType": coding(endpoint.connection),
            "name": endpoint.name,
            "payloadType": [concept(code) for code in endpoint.payloads],
            "address": endpoint.url,
        }
    )
