"""Dates and times of tables and databases as FHIR writes them: a time of day needs a time zone, a date has none.

When something happened: FHIR's dates, whole or in part, put in order and measured apart.

FHIR dates: a year, a month, a day or a moment, read as far as they go.

Dates in records: often coarse, sometimes open, and compared without guessing.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_OFFSET = re.compile(r"([+-])(0\d|1[0-4]):([0-5]\d)")
_YEAR_MONTH = re.compile(r"(\d{4})(?:-(\d\d))?")
EARLIEST = 1800
"""Whatever is older than this year is a mistake."""


@lru_cache(maxsize=64)
def zone_of(name: str) -> tzinfo | None:
    """A time zone by its name or its distance from Greenwich; nothing if there is none of that name.

    >>> zone_of("+02:00"), zone_of("Z"), zone_of("Nowhere/At_All")
    (datetime.timezone(datetime.timedelta(seconds=7200)), datetime.timezone.utc, None)
    """
    if name in ("Z", "UTC"):
        return UTC
    if match := _OFFSET.fullmatch(name):
        ahead = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return timezone(ahead if match[1] == "+" else -ahead)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def told(moment: datetime, zone: tzinfo) -> str:
    """A moment as FHIR writes it; one without a zone is meant in the given one.

    >>> told(datetime(2023, 3, 1, 9), timezone(timedelta(hours=2)))
    '2023-03-01T09:00:00+02:00'
    """
    known = moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)
    return known.replace(microsecond=0).isoformat()


@lru_cache(maxsize=1 << 16)
def from_iso(text: str, zone: tzinfo) -> str | None:
    """A year, month, day or moment in the form of ISO 8601 as FHIR writes it; nothing if there is no such date.

    >>> from_iso("2023-03-01 09:30", UTC), from_iso("2023-03", UTC), from_iso("2023-02-30", UTC)
    ('2023-03-01T09:30:00+00:00', '2023-03', None)
    """
    if match := _YEAR_MONTH.fullmatch(text):
        return text if possible(int(match[1])) and 1 <= int(match[2] or 1) <= 12 else None
    if len(text) < 10 or text[4] != "-" or text[7] != "-":
        return None
    try:
        if len(text) == 10:
            return text if possible(date.fromisoformat(text).year) else None
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return told(moment, zone) if possible(moment.year) else None


@lru_cache(maxsize=1 << 16)
def from_form(text: str, form: str, zone: tzinfo) -> str | None:
    """A date or moment written in a form of ``strptime``; nothing if it is not, or if there is no such date.

    >>> from_form("01.03.2023", "%d.%m.%Y", UTC), from_form("31.04.2023", "%d.%m.%Y", UTC)
    ('2023-03-01', None)

    Of a year of two digits the century is not told; nothing was recorded in the future, so it is the last one.

    >>> from_form("01.03.68", "%d.%m.%y", UTC), from_form("01.03.21", "%d.%m.%y", UTC)
    ('1968-03-01', '2021-03-01')
    """
    try:
        moment = datetime.strptime(text, form)
        if "%y" in form and moment.year > datetime.now(UTC).year:
            moment = moment.replace(year=moment.year - 100)
    except ValueError:
        return None
    if not possible(moment.year):
        return None
    return told(moment, zone) if "%H" in form or "%I" in form else moment.date().isoformat()


def possible(year: int) -> bool:
    """Whether something may have happened in a year."""
    return EARLIEST <= year < 2200


_PARTIAL = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d))?)?")


class Moment(NamedTuple):
    """A moment as it is known: its first and last possible day, and the second of the day if that is known.

    Moments compare by their first day; a year therefore comes before the days in it.
    """

    first: date
    last: date
    second: int = -1


@lru_cache(maxsize=65_536)
def moment(text: str) -> Moment | None:
    """What a FHIR date, dateTime or instant says; nothing if it is none.

    >>> moment("2020-02").last.isoformat(), moment("2020-02-03T23:30:00-02:00").first.isoformat(), moment("soon")
    ('2020-02-29', '2020-02-04', None)
    """
    try:
        if "T" in text:
            then = datetime.fromisoformat(text)
            if then.tzinfo is not None:
                then = then.astimezone(UTC)
            return Moment(then.date(), then.date(), then.hour * 3600 + then.minute * 60 + then.second)
        match = _PARTIAL.fullmatch(text)
        if match is None:
            return None
        year, month, day = int(match[1]), int(match[2] or 0), int(match[3] or 0)
        if day:
            return Moment(date(year, month, day), date(year, month, day))
        end = month or 12
        last = date(year, end, calendar.monthrange(year, end)[1])
        return Moment(date(year, month or 1, 1), last)
    except (ValueError, OverflowError):
        return None


def within(event: Moment, index: Moment, days: int) -> bool | None:
    """Whether an event lies in the days after an index date; nothing if the dates are too coarse to say.

    >>> index = Moment(date(2020, 1, 1), date(2020, 1, 1))
    >>> within(Moment(date(2020, 1, 31), date(2020, 1, 31)), index, 30), within(moment("2020"), index, 30)
    (True, None)
    """
    if event.first > index.last and event.last <= plus(index.first, days):
        return True
    if event.first > plus(index.last, days) or event.last <= index.first:
        return False
    return None


def plus(day: date, days: int) -> date:
    """A day so many days later, at most the last day there is."""
    return day + timedelta(min(days, (date.max - day).days))


def year_of(value: Any) -> int | None:
    """The year of a FHIR date, or nothing if it is not one.

    >>> year_of("1936-05-01"), year_of("May 1936")
    (1936, None)
    """
    if value.__class__ is not str or not (len(value) == 4 or value[4:5] == "-"):
        return None
    head = value[:4]
    return int(head) if len(head) == 4 and head.isascii() and head.isdigit() else None


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


def moved(value: str, days: int) -> str:
    """A FHIR date so many days earlier, in the precision it had; the time of day goes.

    >>> moved("2020-03-01T10:00:00Z", 1), moved("2020-03", 30)
    ('2020-02-29', '2020-02')
    """
    # A partial date keeps its precision: it is moved as its middle day and cut again.
    precision = len(value) if len(value) in (4, 7) else 10
    whole = value[:precision] + {4: "-07-01", 7: "-15", 10: ""}[precision]
    return (date.fromisoformat(whole) - timedelta(days=days)).isoformat()[:precision]


def overlap(start: str, end: str, low: str, high: str) -> bool:
    """Whether two stretches of time touch; an empty side is open.

    >>> overlap("2020", "2020", "2020-06-01", ""), overlap("2019", "2019", "2020-06-01", "")
    (True, False)
    """
    # Partial dates are compared as far as both are known: "2020" lies within a range that starts on
    # 2020-06-01.
    if not start and not end:
        return False
    after = not low or not end or end[: min(10, len(low))] >= low[: min(10, len(end))]
    before = not high or not start or start[: min(10, len(high))] <= high[: min(10, len(start))]
    return after and before


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
