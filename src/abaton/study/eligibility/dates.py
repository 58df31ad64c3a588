"""Dates in records: often coarse, sometimes open, and compared without guessing."""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping
from datetime import date
from typing import Any, NamedTuple

from abaton.documents.fields import Period
from abaton.study.eligibility.answers import NO, YES, Finding, unknown

_DATE = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2})(?:T.*)?)?)?", re.S)


class Days(NamedTuple):
    """The first and the last day that a coarse date may mean."""

    first: date
    last: date


class Stay(NamedTuple):
    """When something began and ended, each as the days it may have been."""

    began: Days
    ended: Days


EVER = Days(date.min, date.max)


def days(text: object) -> Days | None:
    """The days that a FHIR date may mean: a year is any of its days.

    >>> days("2020-02")[1].isoformat()
    '2020-02-29'
    """
    match = _DATE.fullmatch(text) if isinstance(text, str) else None
    if not match:
        return None
    year, month, day = (int(part) if part else None for part in match.groups())
    try:
        first = date(year or 0, month or 1, day or 1)
        end = month or 12
        return Days(first, date(first.year, end, day or calendar.monthrange(first.year, end)[1]))
    except ValueError:
        return None


def stay(resource: Mapping[str, Any], names: tuple[str, ...], today: date) -> Stay | None:
    """When the thing that a record tells of took place: the first of the named elements that is there."""
    for name in names:
        value = resource.get(name)
        if isinstance(value, Mapping):
            began, ended = days(value.get("start")), days(value.get("end"))
            if began or ended:
                # Without an end a period is still going on.
                return Stay(began or EVER, ended or (Days(today, today) if "end" not in value else EVER))
        elif found := days(value):
            return Stay(found, found)
    return None


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
