"""A study as the page tells it: facts without sentences, for which the page has words in several languages."""

from __future__ import annotations

from datetime import date
from typing import Any

from abaton.documents.fields import Match, Period, Term
from abaton.study.criteria import Criterion
from abaton.study.data_requirements import Requirement
from abaton.study.document import Study
from abaton.study.eligibility.evidence import SOURCES

Json = dict[str, Any]


def told(study: Study, today: date) -> Json:
    """What a person has to know of a study before saying yes.

    Args:
        study: The study.
        today: The day on which it is read.
    """
    head, centre, persons = study.study, study.centre, study.persons
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
        "shares": [share.value for share in head.shares],
        "centre": centre.name,
        "place": ", ".join(part for part in (centre.address.city, centre.address.country) if part),
        "contacts": [
            {"name": contact.name or "", "ways": [way.value for way in contact.telecom]}
            for contact in study.contacts
        ],
        "from": _day(head.period.start),
        "until": _day(head.period.end),
        "kept_until": end.date().isoformat() if end else "",
        "open": _is_open(head.enrolment, today) and head.status.value == "active",
        "admission": persons.admission if persons else "",
        "origins": list(persons.origins) if persons else [],
        "reached": list(persons.reached) if persons else [],
        "hospitals": [hospital.model_dump() for hospital in persons.hospitals] if persons else [],
        "kinds": _kinds(study),
        "endpoint": centre.endpoint.url,
        "criteria": [_criterion(each) for each in study.eligibility.criteria],
        "needs": [_need(each) for each in study.data],
        "mechanism": study.deidentification.mechanism.value,
        "dates": study.deidentification.dates.value,
        "consent": study.consent.text if study.consent else "",
        "statements": {
            name.value: words for name, words in (study.consent.statements if study.consent else {}).items()
        },
    }


def _kinds(study: Study) -> list[str]:
    """The types of records that the study reads; a hospital is asked for no others."""
    asked = {"Patient", *(each.type for each in study.data)}
    return sorted(asked.union(*(SOURCES.get(each.what, ()) for each in study.eligibility.criteria)))


def _day(day: date | None) -> str:
    return day.isoformat() if day else ""


def _is_open(period: Period, today: date) -> bool:
    return (period.start is None or period.start <= today) and (period.end is None or today <= period.end)


def _term(term: Term) -> str:
    return term.display or f"{term.code}{'…' if term.match is Match.STARTS_WITH else ''}"


def _criterion(item: Criterion) -> Json:
    bounds = dict(zip(("low", "high", "above", "below", "equals"), item.bounds, strict=True))
    return {
        "what": item.what,
        "exclude": item.exclude,
        "terms": [_term(term) for term in (*item.codes, *item.values)],
        "sex": list(item.sex),
        "bounds": {name: f"{bound:g}" for name, bound in bounds.items() if bound is not None},
        "unit": item.unit or "",
    }


def _need(item: Requirement) -> Json:
    return {
        "type": item.type,
        "function": item.function.value,
        "elements": list(item.elements),
        "terms": [_term(term) for rule in item.codes for term in rule.any],
    }
