"""Evaluation of eligibility criteria on a subject's records.

Invariants:
(1) pure: the same criteria, records and date give the same result;
(2) a subject with an unknown criterion is not eligible, and the result states the reason;
(3) no reason contains a value of a record.

A Condition, Procedure or medication coded only in other systems is unknown; an Observation is not, because an observed
quantity rarely has a second code. Any matching record in the period counts, not only the latest, as InteropEHRate's
guide requires.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any

from abaton.documents.fields import Coding, DatePeriod
from abaton.fhir.partial_dates import PartialPeriod
from abaton.study.criteria import Criterion, Eligibility
from abaton.study.eligibility.evidence import (
    MET,
    NOT_MET,
    CriterionFinding,
    EvidenceSource,
    Resource,
    SubjectEvidence,
    Ternary,
    all_of,
    any_of,
    birth_date,
    confirmed,
    finding_of,
    list_items,
    negate,
    only_patient,
    record_period,
    unknown,
)


def during(dates: PartialPeriod | None, period: DatePeriod | None) -> CriterionFinding:
    """Evaluate whether a record meets a criterion's period, for at least one day."""
    if period is None:
        return MET
    if dates is None:
        return unknown("a matching record has no valid date")
    start, end = period.start or date.min, period.end or date.max
    if dates.start.last <= end and dates.end.first >= start and _is_within(dates, start, end):
        return MET
    if dates.start.first > end or dates.end.last < start:
        return NOT_MET
    return unknown("a matching record's date is too coarse or too open")


def _is_within(dates: PartialPeriod, start: date, end: date) -> bool:
    """Return whether a coarse date is in a criterion's period with all its days; two may each be coarse."""
    return dates.start != dates.end or (dates.start.first >= start and dates.end.last <= end)


def completed_units(birth: date, day: date, unit: str) -> int:
    """Return a subject's age for an age criterion: completed years, months, weeks or days.

    >>> completed_units(date(2000, 2, 29), date(2026, 2, 28), "a")
    25
    """
    if unit in ("d", "wk"):
        return (day - birth).days // (7 if unit == "wk" else 1)
    months = (day.year - birth.year) * 12 + day.month - birth.month - (day.day < birth.day)
    return months // 12 if unit == "a" else months


@dataclass(frozen=True, slots=True)
class CriterionResult:
    """Result of one criterion (numbered from 1, as in the document)."""

    number: int
    type: str
    answer: Ternary
    reason: str


@dataclass(frozen=True, slots=True)
class EligibilityResult:
    """Eligibility of a subject, with the result of every criterion."""

    results: tuple[CriterionResult, ...]

    @property
    def eligible(self) -> bool:
        """Return whether the subject meets every evaluated criterion."""
        return all(result.answer is Ternary.MET for result in self.results)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return one line for every evaluated criterion that is not met or unknown."""
        return tuple(
            f"criterion {result.number} ({result.type}) is {result.answer.value}: {result.reason}"
            for result in self.results
            if result.answer is not Ternary.MET
        )


def evaluate_eligibility(
    eligibility: Eligibility, records: Iterable[Resource], today: date
) -> EligibilityResult:
    """Evaluate the eligibility criteria on one subject's records.

    Args:
        eligibility: The study's criteria.
        records: The subject's parsed FHIR resources; Bundles are split.
        today: The date for ages and open periods.

    Returns:
        The result of every criterion.

    >>> from abaton.study.criteria import Criterion
    >>> adults = Eligibility(criteria=(Criterion(type="age", low=18),))
    >>> evaluate_eligibility(adults, [{"resourceType": "Patient", "birthDate": "1980"}], date(2026, 1, 1)).eligible
    True
    """
    sorted_records = SubjectEvidence.from_records(records)
    results = []
    for number, criterion in enumerate(eligibility.criteria, 1):
        finding = _finding(criterion, sorted_records, today)
        if criterion.exclude:
            finding = negate(finding)
        results.append(CriterionResult(number, criterion.type, finding.answer, finding.reason))
    return EligibilityResult(tuple(results))


def _finding(criterion: Criterion, records: SubjectEvidence, today: date) -> CriterionFinding:
    if criterion.type == "age":
        return _age(criterion, records, today)
    if criterion.type == "sex":
        return _sex(criterion, records)
    if criterion.type == "location":
        return _location(criterion, records)
    if criterion.type == "lifespan":
        return unknown("records do not contain an expected lifespan")
    if criterion.has_bounds and criterion.type != "observation":
        return unknown("records of this type have no number to compare")
    if criterion.flag is not None and criterion.type != "observation":
        return _presence(criterion, records, today)
    return any_of(
        all_of(
            _matches(criterion, records, entry, source),
            during(record_period(entry, source, today), criterion.period),
        )
        for entry, source in records.entries(criterion.type)
    )


def _presence(criterion: Criterion, records: SubjectEvidence, today: date) -> CriterionFinding:
    """Evaluate a criterion that requires any record of a type."""
    finding = any_of(
        all_of(confirmed(entry), during(record_period(entry, source, today), criterion.period))
        for entry, source in records.entries(criterion.type)
    )
    return finding if criterion.flag else negate(finding)


def _matches(
    criterion: Criterion, records: SubjectEvidence, entry: Resource, source: EvidenceSource
) -> CriterionFinding:
    if criterion.type == "observation":
        parts = [entry, *list_items(entry, "component")]
        return any_of(_measured(criterion, records, part, source) for part in parts)
    return all_of(coded(criterion.codes, records.codings(entry, source), entry), confirmed(entry))


def coded(codes: tuple[Coding, ...], codings: list[Resource], entry: Resource) -> CriterionFinding:
    """Evaluate whether a record's codings include one of the criterion's codes."""
    if any(code.matches(coding.get("system"), coding.get("code")) for code in codes for coding in codings):
        return MET
    if not codings:
        return unknown("a record has no code")
    # An Observation rarely has a code in a second system; diagnoses, medication and procedures do.
    systems = {code.system for code in codes}
    if entry.get("resourceType") == "Observation" or any(c.get("system") in systems for c in codings):
        return NOT_MET
    return unknown("a record is coded in another system")


def _measured(
    criterion: Criterion, records: SubjectEvidence, part: Resource, source: EvidenceSource
) -> CriterionFinding:
    codings = records.codings(part, source)
    if not any(code.matches(c.get("system"), c.get("code")) for code in criterion.codes for c in codings):
        return NOT_MET
    if criterion.flag is not None:
        value = part.get("valueBoolean")
        return finding_of(value == criterion.flag) if isinstance(value, bool) else unknown(_NO_VALUE)
    if criterion.values:
        answers = list_items(part.get("valueCodeableConcept"), "coding")
        return coded(criterion.values, answers, {}) if answers else unknown(_NO_VALUE)
    return _number(criterion, part)


_NO_VALUE = "a matching observation has no valid value"


def _number(criterion: Criterion, part: Resource) -> CriterionFinding:
    """Evaluate whether a measured number is within a criterion's bounds; '< 5' may be on either side of 3."""
    for name in ("valueQuantity", "valueInteger", "valueRange"):
        if name in part:
            amount = _amount(part[name], criterion.unit)
            if amount is None:
                return unknown("a matching observation has another unit or is not a number")
            return _within(criterion, *amount)
    return unknown(_NO_VALUE)


def _amount(value: Any, unit: str | None) -> tuple[float, float] | None:
    """Return the smallest and largest number that a value may mean when a criterion is evaluated."""
    if isinstance(value, dict) and ("low" in value or "high" in value):
        sides = [_amount(value[side], unit) if side in value else None for side in ("low", "high")]
        if any(side in value and amount is None for side, amount in zip(("low", "high"), sides, strict=True)):
            return None
        return (sides[0][0] if sides[0] else -math.inf), (sides[1][1] if sides[1] else math.inf)
    number = value.get("value") if isinstance(value, dict) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    if unit is not None and (
        not isinstance(value, dict) or unit not in (value.get("code"), value.get("unit"))
    ):
        return None
    comparator = str(value.get("comparator", "")) if isinstance(value, dict) else ""
    return {
        "<": (-math.inf, math.nextafter(number, -math.inf)),
        "<=": (-math.inf, number),
        ">=": (number, math.inf),
        ">": (math.nextafter(number, math.inf), math.inf),
    }.get(comparator, (number, number))


def _within(criterion: Criterion, lowest: float, highest: float) -> CriterionFinding:
    low, high = -math.inf, math.inf
    if criterion.equals is not None:
        low = high = criterion.equals
    if criterion.low is not None:
        low = criterion.low
    if criterion.high is not None:
        high = criterion.high
    if criterion.above is not None:
        low = math.nextafter(criterion.above, math.inf)
    if criterion.below is not None:
        high = math.nextafter(criterion.below, -math.inf)
    if low <= lowest and highest <= high:
        return MET
    return NOT_MET if highest < low or lowest > high else unknown("a value is too coarse")


def _age(criterion: Criterion, records: SubjectEvidence, today: date) -> CriterionFinding:
    birth = birth_date(records)
    if birth is None or birth.first > today:
        return unknown("the birth date is missing or invalid, or there is not exactly one Patient")
    unit, period = criterion.unit or "a", criterion.period
    first = period.start if period and period.start else today
    last = period.end if period and period.end else today
    # Any age reached in the period counts.
    youngest, oldest = (completed_units(birth.last, first, unit), completed_units(birth.first, first, unit))
    if first >= last:
        return _within(criterion, max(youngest, 0), max(oldest, 0))
    ages = range(max(youngest, 0), max(completed_units(birth.first, last, unit), 0) + 1)
    certain = range(max(oldest, 0), max(completed_units(birth.last, last, unit), 0) + 1)
    if any(_within(criterion, age, age) is MET for age in certain):
        return MET
    is_possible = any(_within(criterion, age, age) is MET for age in ages)
    return unknown("the birth date is too coarse") if is_possible else NOT_MET


def _sex(criterion: Criterion, records: SubjectEvidence) -> CriterionFinding:
    patient = only_patient(records)
    gender = patient.get("gender") if patient else None
    if gender not in ("male", "female", "other"):
        return unknown("the sex is not recorded, or there is not exactly one Patient")
    return finding_of(gender in criterion.sex)


def _location(criterion: Criterion, records: SubjectEvidence) -> CriterionFinding:
    """Evaluate the location criterion: the subject lives in a region; only codes of equal form are compared."""
    patient = only_patient(records)
    addresses = list_items(patient, "address")
    regions = {str(a[name]).casefold() for a in addresses for name in ("country", "state") if a.get(name)}
    if not regions:
        return unknown("no address with a country or a region is recorded")
    names = {name.casefold() for code in criterion.codes for name in (code.code, code.display) if name}
    if regions & names:
        return MET
    lengths = {len(str(a.get("country", ""))) for a in addresses}
    same_form = all(len(code.code) in lengths for code in criterion.codes)
    return NOT_MET if same_form else unknown("the address and the criterion use different codes")
