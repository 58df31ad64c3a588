"""What is asked of a FHIR server: only the types the study needs, and only matching records where that is safe.

A filter is sent to the server only when it cannot change the answer: the records that it leaves out would be left
out here as well. Records that eligibility is judged by are never filtered there, because a record that is coded in
another system must be seen to be known as unknown. Days are widened by one on either side, since a server may
count them in another time zone; the exact filter is applied here again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from abaton.deid.settings import CodeFilter, DateFilter, Need, Want
from abaton.study.criteria import Eligibility
from abaton.study.eligibility.evidence import SOURCES

Parameters = tuple[tuple[str, str], ...]

_CODES = {
    ("AllergyIntolerance", "code"): "code",
    ("Condition", "code"): "code",
    ("DiagnosticReport", "code"): "code",
    ("Encounter", "class"): "class",
    ("Encounter", "type"): "type",
    ("Immunization", "vaccineCode"): "vaccine-code",
    ("MedicationRequest", "medicationCodeableConcept"): "code",
    ("Observation", "category"): "category",
    ("Observation", "code"): "code",
    ("Observation", "component.code"): "component-code",
    ("Procedure", "code"): "code",
}
_DATES = {
    ("Condition", "onset"): "onset-date",
    ("Condition", "recordedDate"): "recorded-date",
    ("DiagnosticReport", "effective"): "date",
    ("Encounter", "period"): "date",
    ("Immunization", "occurrence"): "date",
    ("MedicationRequest", "authoredOn"): "authoredon",
    ("Observation", "effective"): "date",
    ("Procedure", "performed"): "date",
}
_FORMS = ("DateTime", "Period", "Instant")
_MOST = 1500  # characters of one filter; longer addresses are cut off by some servers


@dataclass(frozen=True, slots=True)
class Query:
    """One search: a resource type and its parameters."""

    type: str
    parameters: Parameters = ()


def types_of(need: Need, eligibility: Eligibility | None) -> frozenset[str]:
    """The resource types that have to be read for a study."""
    return need.types | judged_by(eligibility) | {"Patient"}


def read_for(need: Need, eligibility: Eligibility | None, known: Iterable[str]) -> frozenset[str]:
    """Of the resource types that a source can make, those that have to be read; all if the study names no list."""
    types = frozenset(known)
    return types & types_of(need, eligibility) | {"Patient"} if need.wants else types | {"Patient"}


def judged_by(eligibility: Eligibility | None) -> frozenset[str]:
    """The resource types by which eligibility is judged, and those that they refer to for their code."""
    asked = {criterion.what for criterion in eligibility.criteria} if eligibility else set()
    found = {kind for what in asked for kind in SOURCES.get(what, ())}
    return frozenset(found | {"Patient"} | ({"Medication"} if "medication" in asked else set()))


def queries(need: Need, eligibility: Eligibility) -> tuple[Query, ...]:
    """All searches for a study, each once; a type that is searched without a filter is searched only so."""
    whole = judged_by(eligibility)
    made: list[Query] = []
    for name in sorted(types_of(need, eligibility)):
        lines = [_parameters(want) for want in need.wants_of(name)]
        free = name in whole or not lines or () in lines
        made += [Query(name)] if free else [Query(name, each) for each in dict.fromkeys(lines)]
    return tuple(made)


def _parameters(want: Want) -> Parameters:
    found = [pair for each in want.codes for pair in _coded(want.type, each)]
    found += [pair for each in want.dates for pair in _dated(want.type, each)]
    return tuple(found)


def _coded(kind: str, wanted: CodeFilter) -> Iterator[tuple[str, str]]:
    if any(code.begins for code in wanted.codes):
        return  # R4 has no search for how a code begins
    name = _CODES.get((kind, wanted.path))
    value = ",".join(
        f"{_escaped(code.system)}|{_escaped(code.code)}" if code.system else _escaped(code.code)
        for code in wanted.codes
    )
    if name and len(value) <= _MOST:
        yield name, value


def _dated(kind: str, wanted: DateFilter) -> Iterator[tuple[str, str]]:
    path = wanted.path
    for form in _FORMS:
        path = path.removesuffix(form)
    name = _DATES.get((kind, wanted.path)) or _DATES.get((kind, path))
    if name and wanted.start:
        yield name, f"ge{_moved(wanted.start, -1)}"
    if name and wanted.end:
        yield name, f"le{_moved(wanted.end, 1)}"


def _moved(day: str, days: int) -> str:
    try:
        return (date.fromisoformat(day[:10]) + timedelta(days=days)).isoformat()
    except (ValueError, OverflowError):
        return day[:4]


def _escaped(text: str) -> str:
    r"""A part of a search value: the signs that separate values are escaped (R4 search, 3.1.1.5.7).

    >>> _escaped("a|b,c")
    'a\\|b\\,c'
    """
    for sign in "\\$,|":
        text = text.replace(sign, f"\\{sign}")
    return text
