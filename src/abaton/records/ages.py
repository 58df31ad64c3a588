"""Ages instead of dates: how old the subject was when something happened (the function ``ageFromDate``)."""

from __future__ import annotations

from datetime import date
from typing import Any

from abaton.records.scope import Scope

OLDEST = 89
_AGE = {"coding": [{"system": "http://loinc.org", "code": "30525-0"}]}


def whole_years(birth: str, then: str) -> int | None:
    """The age in whole years between two FHIR dates; a partial date counts from its first day.

    >>> whole_years("1950-06-15", "2020-06-14"), whole_years("1950", "2020-06")
    (69, 70)
    """
    try:
        born, day = (date.fromisoformat((text + "-01-01"[len(text) - 4 :])[:10]) for text in (birth, then))
    except ValueError:
        return None
    years = day.year - born.year - ((day.month, day.day) < (born.month, born.day))
    return years if years >= 0 else None


def age_at(elements: tuple[str, ...], scope: Scope) -> tuple[int | None, str]:
    """The subject's age when a resource happened, over 89 as one class, and the address of the subject."""
    names, subject = scope.names, scope.subject()
    births = {
        names.address(new): person.get("birthDate")
        for person, new in scope.document.entries
        if person.get("resourceType") == "Patient"
    }
    birth = births.get(subject)
    for name in elements:
        then = scope.raw.get(name)
        then = then.get("start") if isinstance(then, dict) else then
        if isinstance(birth, str) and isinstance(then, str):
            years = whole_years(birth, then)
            return (None if years is None else min(years, OLDEST + 1)), subject
    return None, subject


def age_observation(age: int, subject: str) -> dict[str, Any]:
    """An observation that says an age and nothing else."""
    return {
        "status": "final",
        "code": _AGE,
        "subject": {"reference": subject},
        "valueQuantity": {"value": age, "system": "http://unitsofmeasure.org", "code": "a"},
    }
