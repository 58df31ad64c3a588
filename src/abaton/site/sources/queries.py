"""FHIR searches for the resource types, codes and dates that a study needs.

A filter is sent to the server only where it cannot change the result. Types that eligibility depends on are not
filtered, because a record in another code system makes a criterion unknown. Dates are widened by one day on either
side, since a server may use another time zone; the exact filter is applied at the site again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from abaton.deid.settings import CodeFilter, DataRequest, DataRequirement, DateFilter
from abaton.study.criteria import Eligibility
from abaton.study.eligibility.evidence import SOURCES

Parameters = tuple[tuple[str, str], ...]

_CODE_PARAMETERS = {
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
_DATE_PARAMETERS = {
    ("Condition", "onset"): "onset-date",
    ("Condition", "recordedDate"): "recorded-date",
    ("DiagnosticReport", "effective"): "date",
    ("Encounter", "period"): "date",
    ("Immunization", "occurrence"): "date",
    ("MedicationRequest", "authoredOn"): "authoredon",
    ("Observation", "effective"): "date",
    ("Procedure", "performed"): "date",
}
_DATE_SUFFIXES = ("DateTime", "Period", "Instant")
_MAX_FILTER_LENGTH = 1500  # characters; some servers truncate longer URLs


@dataclass(frozen=True, slots=True)
class FhirQuery:
    """FHIR search: resource type and search parameters."""

    type: str
    parameters: Parameters = ()


def required_types(request: DataRequest, eligibility: Eligibility | None) -> frozenset[str]:
    """Return the resource types that a source must be queried for in a study."""
    return request.types | eligibility_types(eligibility) | {"Patient"}


def source_types(
    request: DataRequest, eligibility: Eligibility | None, known: Iterable[str]
) -> frozenset[str]:
    """Return the types to query among those of a source; all of them if the study lists no requirements."""
    types = frozenset(known)
    return (
        types & required_types(request, eligibility) | {"Patient"}
        if request.requirements
        else types | {"Patient"}
    )


def eligibility_types(eligibility: Eligibility | None) -> frozenset[str]:
    """Return the resource types to query for eligibility, including Medications with their codes."""
    criteria = {criterion.type for criterion in eligibility.criteria} if eligibility else set()
    types = {resource_type for criterion in criteria for resource_type in SOURCES.get(criterion, ())}
    return frozenset(types | {"Patient"} | ({"Medication"} if "medication" in criteria else set()))


def build_fhir_queries(request: DataRequest, eligibility: Eligibility) -> tuple[FhirQuery, ...]:
    """Return the FHIR queries for a study without duplicates; an unfiltered query of a type replaces others."""
    unfiltered = eligibility_types(eligibility)
    queries: list[FhirQuery] = []
    for name in sorted(required_types(request, eligibility)):
        filters = [_search_parameters(requirement) for requirement in request.requirements_of(name)]
        if name in unfiltered or not filters or () in filters:
            queries.append(FhirQuery(name))
        else:
            queries += [FhirQuery(name, parameters) for parameters in dict.fromkeys(filters)]
    return tuple(queries)


def _search_parameters(requirement: DataRequirement) -> Parameters:
    pairs = [pair for codes in requirement.codes for pair in _code_parameters(requirement.type, codes)]
    pairs += [pair for dates in requirement.dates for pair in _date_parameters(requirement.type, dates)]
    return tuple(pairs)


def _code_parameters(resource_type: str, code_filter: CodeFilter) -> Iterator[tuple[str, str]]:
    if any(code.is_prefix for code in code_filter.codes):
        return  # R4 search has no prefix match of codes
    name = _CODE_PARAMETERS.get((resource_type, code_filter.path))
    value = ",".join(
        f"{_escape(code.system)}|{_escape(code.code)}" if code.system else _escape(code.code)
        for code in code_filter.codes
    )
    if name and len(value) <= _MAX_FILTER_LENGTH:
        yield name, value


def _date_parameters(resource_type: str, date_filter: DateFilter) -> Iterator[tuple[str, str]]:
    path = date_filter.path
    for suffix in _DATE_SUFFIXES:
        path = path.removesuffix(suffix)
    name = _DATE_PARAMETERS.get((resource_type, date_filter.path)) or _DATE_PARAMETERS.get(
        (resource_type, path)
    )
    if name and date_filter.start:
        yield name, f"ge{_shift_days(date_filter.start, -1)}"
    if name and date_filter.end:
        yield name, f"le{_shift_days(date_filter.end, 1)}"


def _shift_days(day: str, days: int) -> str:
    try:
        return (date.fromisoformat(day[:10]) + timedelta(days=days)).isoformat()
    except (ValueError, OverflowError):
        return day[:4]


def _escape(text: str) -> str:
    r"""Return a value of a FHIR query with its separators escaped (R4 search, 3.1.1.5.7).

    >>> _escape("a|b,c")
    'a\\|b\\,c'
    """
    for separator in "\\$,|":
        text = text.replace(separator, f"\\{separator}")
    return text
