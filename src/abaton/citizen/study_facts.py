"""Study as language-neutral facts, for which the page has texts in several languages."""

from __future__ import annotations

from datetime import date
from typing import Any

from abaton.documents.fields import CodePrefix, Coding, DatePeriod
from abaton.study.criteria import Criterion
from abaton.study.data_requirements import RequirementSection
from abaton.study.document import Study
from abaton.study.eligibility.evidence import SOURCES

Json = dict[str, Any]


def study_facts_for_page(study: Study, today: date) -> Json:
    """Return the study facts that a citizen needs to know before consenting.

    Args:
        study: The study.
        today: Current date.
    """
    head, centre, citizens = study.study, study.centre, study.citizens
    end = study.keep_until
    return {
        "id": head.id,
        "hash": study.hash,
        "version": head.version,
        "language": head.language,
        "title": head.title,
        "question": head.question or "",
        "purpose": head.purpose.value,
        "legal_basis": head.legal_basis or "",
        "shared_data": [share.value for share in head.shared_data],
        "centre": centre.name,
        "location": ", ".join(part for part in (centre.address.city, centre.address.country) if part),
        "contacts": [
            {"name": contact.name or "", "telecom": [point.value for point in contact.telecom]}
            for contact in study.contacts
        ],
        "from": _day(head.period.start),
        "until": _day(head.period.end),
        "retained_until": end.date().isoformat() if end else "",
        "open": _is_open(head.enrolment, today) and head.status.value == "active",
        "admission": citizens.admission if citizens else "",
        "origins": list(citizens.origins) if citizens else [],
        "connect_origins": list(citizens.allowed_origins) if citizens else [],
        "hospitals": [hospital.model_dump() for hospital in citizens.hospitals] if citizens else [],
        "resource_types": _resource_types(study),
        "endpoint": centre.endpoint.url,
        "criteria": [_criterion(criterion) for criterion in study.eligibility.criteria],
        "requirements": [_requirement(requirement) for requirement in study.data],
        "mechanism": study.deidentification.mechanism.value,
        "dates": study.deidentification.dates.value,
        "consent": study.consent.text if study.consent else "",
        "statements": {
            name.value: text for name, text in (study.consent.statements if study.consent else {}).items()
        },
    }


def _resource_types(study: Study) -> list[str]:
    """Return the resource types that the study reads, as a fact for citizens; no others are requested."""
    types = {"Patient", *(requirement.type for requirement in study.data)}
    return sorted(types.union(*(SOURCES.get(criterion.type, ()) for criterion in study.eligibility.criteria)))


def _day(day: date | None) -> str:
    return day.isoformat() if day else ""


def _is_open(period: DatePeriod, today: date) -> bool:
    return (period.start is None or period.start <= today) and (period.end is None or today <= period.end)


def _coding_text(coding: Coding) -> str:
    return coding.display or f"{coding.code}{'…' if coding.match is CodePrefix.STARTS_WITH else ''}"


def _criterion(item: Criterion) -> Json:
    bounds = dict(zip(("low", "high", "above", "below", "equals"), item.bounds, strict=True))
    return {
        "what": item.type,
        "exclude": item.exclude,
        "codes": [_coding_text(coding) for coding in (*item.codes, *item.values)],
        "sex": list(item.sex),
        "bounds": {name: f"{bound:g}" for name, bound in bounds.items() if bound is not None},
        "unit": item.unit or "",
    }


def _requirement(item: RequirementSection) -> Json:
    return {
        "type": item.type,
        "function": item.purpose.value,
        "elements": list(item.elements),
        "codes": [_coding_text(term) for rule in item.codes for term in rule.any_of],
    }
