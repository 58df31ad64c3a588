"""Criteria against records: every criterion must be known to hold.

Laws:
(1) pure: the same criteria, records and day give the same judgement;
(2) what is not known is not eligible, and the verdict says why;
(3) no reason ever holds a value of a record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any

from abaton.documents.fields import Period, Term
from abaton.fhir.partial_dates import Stay
from abaton.study.criteria import Criterion, Eligibility
from abaton.study.eligibility.evidence import (
    NO,
    YES,
    Answer,
    Finding,
    Records,
    Resource,
    Source,
    birth,
    both,
    each,
    either,
    negated,
    same_or_no,
    the_patient,
    trusted,
    unknown,
    when,
)


def during(when: Stay | None, period: Period | None) -> Finding:
    """Whether something took place in a period, at least for a day."""
    if period is None:
        return YES
    if when is None:
        return unknown("a matching record has no usable date")
    start, end = period.start or date.min, period.end or date.max
    if when.began.last <= end and when.ended.first >= start and _together(when, start, end):
        return YES
    if when.began.first > end or when.ended.last < start:
        return NO
    return unknown("a matching record's date is too coarse or too open")


def _together(when: Stay, start: date, end: date) -> bool:
    """One coarse date is one day, so all of its days must lie inside; two dates may each be coarse."""
    return when.began != when.ended or (when.began.first >= start and when.ended.last <= end)


def completed(born: date, day: date, unit: str) -> int:
    """The completed years, months, weeks or days between birth and a day.

    >>> completed(date(2000, 2, 29), date(2026, 2, 28), "a")
    25
    """
    if unit in ("d", "wk"):
        return (day - born).days // (7 if unit == "wk" else 1)
    months = (day.year - born.year) * 12 + day.month - born.month - (day.day < born.day)
    return months // 12 if unit == "a" else months


_SAID = {Answer.NO: "not met", Answer.UNKNOWN: "unknown"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the records say about one criterion (numbered from 1, as in the document)."""

    number: int
    what: str
    answer: Answer
    reason: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a subject may take part, with the verdict on every criterion."""

    verdicts: tuple[Verdict, ...]

    @property
    def eligible(self) -> bool:
        """Whether every criterion is known to hold."""
        return all(verdict.answer is Answer.YES for verdict in self.verdicts)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why not, one line for every criterion that is not known to hold."""
        return tuple(
            f"criterion {verdict.number} ({verdict.what}) is {_SAID[verdict.answer]}: {verdict.reason}"
            for verdict in self.verdicts
            if verdict.answer is not Answer.YES
        )


def judge(eligibility: Eligibility, records: Iterable[Resource], today: date) -> Judgement:
    """Judge one subject's records.

    Args:
        eligibility: The study's criteria.
        records: The subject's FHIR resources, parsed; Bundles are opened.
        today: The day on which ages are counted and open periods end.

    Returns:
        The judgement, with one verdict for each criterion.

    >>> from abaton.study.criteria import Criterion
    >>> adults = Eligibility(criteria=(Criterion(what="age", low=18),))
    >>> judge(adults, [{"resourceType": "Patient", "birthDate": "1980"}], date(2026, 1, 1)).eligible
    True
    """
    sorted_records = Records.of(records)
    verdicts = []
    for number, criterion in enumerate(eligibility.criteria, 1):
        finding = _finding(criterion, sorted_records, today)
        if criterion.exclude:
            finding = negated(finding)
        verdicts.append(Verdict(number, criterion.what, finding.answer, finding.reason))
    return Judgement(tuple(verdicts))


def _finding(criterion: Criterion, records: Records, today: date) -> Finding:
    if criterion.what == "age":
        return _age(criterion, records, today)
    if criterion.what == "sex":
        return _sex(criterion, records)
    if criterion.what == "location":
        return _location(criterion, records)
    if criterion.what == "lifespan":
        return unknown("records do not tell an expected lifespan")
    if criterion.bounded and criterion.what != "observation":
        return unknown("a number on this kind of record cannot be judged")
    if criterion.flag is not None and criterion.what != "observation":
        return _presence(criterion, records, today)
    return either(
        both(
            _matches(criterion, records, entry, source), during(when(entry, source, today), criterion.period)
        )
        for entry, source in records.entries(criterion.what)
    )


def _presence(criterion: Criterion, records: Records, today: date) -> Finding:
    """Whether there is any record of the kind at all."""
    found = either(
        both(trusted(entry), during(when(entry, source, today), criterion.period))
        for entry, source in records.entries(criterion.what)
    )
    return found if criterion.flag else negated(found)


def _matches(criterion: Criterion, records: Records, entry: Resource, source: Source) -> Finding:
    if criterion.what == "observation":
        parts = [entry, *each(entry, "component")]
        return either(_measured(criterion, records, part, source) for part in parts)
    return both(coded(criterion.codes, records.codings(entry, source), entry), trusted(entry))


def coded(terms: tuple[Term, ...], codings: list[Resource], entry: Resource) -> Finding:
    """Whether a record's codings include one of the terms."""
    if any(term.matches(coding.get("system"), coding.get("code")) for term in terms for coding in codings):
        return YES
    if not codings:
        return unknown("a record carries no code")
    # What an Observation is called rarely has a name in a second system; diagnoses, drugs and procedures do.
    systems = {term.system for term in terms}
    if entry.get("resourceType") == "Observation" or any(c.get("system") in systems for c in codings):
        return NO
    return unknown("a record is coded in another system")


def _measured(criterion: Criterion, records: Records, part: Resource, source: Source) -> Finding:
    codings = records.codings(part, source)
    if not any(term.matches(c.get("system"), c.get("code")) for term in criterion.codes for c in codings):
        return NO
    if criterion.flag is not None:
        value = part.get("valueBoolean")
        return same_or_no(value == criterion.flag) if isinstance(value, bool) else unknown(_NO_VALUE)
    if criterion.values:
        inside = each(part.get("valueCodeableConcept"), "coding")
        return coded(criterion.values, inside, {}) if inside else unknown(_NO_VALUE)
    return _number(criterion, part)


_NO_VALUE = "a matching observation has no usable value"


def _number(criterion: Criterion, part: Resource) -> Finding:
    """Whether a measured number lies within the bounds; '< 5' may lie on either side of 3."""
    for name in ("valueQuantity", "valueInteger", "valueRange"):
        if name in part:
            amount = _amount(part[name], criterion.unit)
            if amount is None:
                return unknown("a matching observation is measured in another unit, or not in numbers")
            return _within(criterion, *amount)
    return unknown(_NO_VALUE)


def _amount(value: Any, unit: str | None) -> tuple[float, float] | None:
    """The lowest and the highest number that a value may mean."""
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


def _within(criterion: Criterion, lowest: float, highest: float) -> Finding:
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
        return YES
    return NO if highest < low or lowest > high else unknown("a value is too coarse to tell")


def _age(criterion: Criterion, records: Records, today: date) -> Finding:
    born = birth(records)
    if born is None or born.first > today:
        return unknown("the birth date is missing or unusable, or there is not exactly one Patient")
    unit, period = criterion.unit or "a", criterion.period
    first = period.start if period and period.start else today
    last = period.end if period and period.end else today
    # Over a period any age that was reached counts, so the ages of all its days are candidates.
    youngest, oldest = (completed(born.last, first, unit), completed(born.first, first, unit))
    if first >= last:
        return _within(criterion, max(youngest, 0), max(oldest, 0))
    ages = range(max(youngest, 0), max(completed(born.first, last, unit), 0) + 1)
    sure = range(max(oldest, 0), max(completed(born.last, last, unit), 0) + 1)
    if any(_within(criterion, age, age) is YES for age in sure):
        return YES
    possible = any(_within(criterion, age, age) is YES for age in ages)
    return unknown("the birth date is too coarse to tell") if possible else NO


def _sex(criterion: Criterion, records: Records) -> Finding:
    patient = the_patient(records)
    gender = patient.get("gender") if patient else None
    if gender not in ("male", "female", "other"):
        return unknown("the sex is not recorded, or there is not exactly one Patient")
    return same_or_no(gender in criterion.sex)


def _location(criterion: Criterion, records: Records) -> Finding:
    """Whether the subject lives in one of the places; only like is compared with like."""
    patient = the_patient(records)
    addresses = each(patient, "address")
    places = {str(a[name]).casefold() for a in addresses for name in ("country", "state") if a.get(name)}
    if not places:
        return unknown("no address with a country or a region is recorded")
    wanted = {name.casefold() for term in criterion.codes for name in (term.code, term.display) if name}
    if places & wanted:
        return YES
    countries = {str(a.get("country", "")).casefold() for a in addresses}
    alike = all(len(term.code) in {len(country) for country in countries} for term in criterion.codes)
    return NO if alike else unknown("the address is written in another way than the criterion")
