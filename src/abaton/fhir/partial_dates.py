"""Partial dates of FHIR: a year, a year and month, a date or a dateTime, with bounds, comparison and time zones.

A comparison that the precision of the dates does not decide returns None (unknown).
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple

MIN_YEAR, MAX_YEAR = 1800, 2199
"""Years of plausible records."""

_PARTIAL_DATE = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d))?)?", re.ASCII)
_OFFSET = re.compile(r"([+-])(0\d|1[0-4]):([0-5]\d)")


class PartialDate(NamedTuple):
    """First and last possible date, and the second of the day if it is known.

    Partial dates compare by their first date, so a year comes before the dates in it.
    """

    first: date
    last: date
    second: int = -1

    def is_in_window(self, index: PartialDate, days: int) -> bool | None:
        """Return whether this partial date is in the days after an index date; None if a date is too coarse.

        >>> index = parse_partial_date("2020-01-01")
        >>> parse_partial_date("2020-01-31").is_in_window(index, 30), parse_partial_date("2020").is_in_window(index, 30)
        (True, None)
        """
        if self.first > index.last and self.last <= add_days(index.first, days):
            return True
        if self.first > add_days(index.last, days) or self.last <= index.first:
            return False
        return None


class PartialPeriod(NamedTuple):
    """Start and end of a period, each a partial date."""

    start: PartialDate
    end: PartialDate


ANY_DATE = PartialDate(date.min, date.max)


@lru_cache(maxsize=65_536)
def parse_partial_date(text: str) -> PartialDate | None:
    """Parse a FHIR date, dateTime or instant to a partial date; a time with a zone is converted to UTC.

    >>> parse_partial_date("2020-02").last.isoformat()
    '2020-02-29'
    >>> parse_partial_date("2020-02-03T23:30:00-02:00").first.isoformat(), parse_partial_date("soon")
    ('2020-02-04', None)
    """
    if "T" not in text:
        return parse_local_date(text)
    try:
        timestamp = datetime.fromisoformat(text)
        if timestamp.tzinfo is not None:
            timestamp = timestamp.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return PartialDate(
        timestamp.date(), timestamp.date(), timestamp.hour * 3600 + timestamp.minute * 60 + timestamp.second
    )


def parse_local_date(value: object) -> PartialDate | None:
    """Parse the date of a FHIR date or dateTime as written, without its time and time zone.

    >>> parse_local_date("2020-02").last.isoformat(), parse_local_date("2020-02-03T23:30:00-02:00").first.isoformat()
    ('2020-02-29', '2020-02-03')
    """
    text = value if isinstance(value, str) else ""
    match = _PARTIAL_DATE.fullmatch(text[:10] if text[10:11] == "T" else text)
    if match is None:
        return None
    year, month, day = (int(digits) if digits else None for digits in match.groups())
    try:
        first = date(year or 0, 1 if month is None else month, 1 if day is None else day)
        last_month = 12 if month is None else month
        last_day = calendar.monthrange(first.year, last_month)[1] if day is None else day
        return PartialDate(first, date(first.year, last_month, last_day))
    except ValueError:
        return None


def resource_period(
    resource: Mapping[str, Any], elements: tuple[str, ...], today: date
) -> PartialPeriod | None:
    """Return the period of the first of the named elements with a FHIR date; an open period ends today."""
    for name in elements:
        value = resource.get(name)
        if isinstance(value, Mapping):
            start, end = parse_local_date(value.get("start")), parse_local_date(value.get("end"))
            if start or end:
                open_end = PartialDate(today, today) if "end" not in value else ANY_DATE
                return PartialPeriod(start or ANY_DATE, end or open_end)
        elif day := parse_local_date(value):
            return PartialPeriod(day, day)
    return None


def add_days(day: date, days: int) -> date:
    """Return the date a number of days later, for windows of partial dates; at most the largest date."""
    return day + timedelta(min(days, (date.max - day).days))


def parse_year(value: Any) -> int | None:
    """Return the year of a FHIR date of any precision, or None.

    >>> parse_year("1936-05-01"), parse_year("May 1936")
    (1936, None)
    """
    if value.__class__ is not str or not (len(value) == 4 or value[4:5] == "-"):
        return None
    digits = value[:4]
    return int(digits) if len(digits) == 4 and digits.isascii() and digits.isdigit() else None


def age_in_years(birth: str, day: str) -> int | None:
    """Return the age in completed years between two FHIR dates; a partial date counts from its first day.

    >>> age_in_years("1950-06-15", "2020-06-14"), age_in_years("1950", "2020-06")
    (69, 70)
    """
    try:
        start, end = (date.fromisoformat((text + "-01-01"[len(text) - 4 :])[:10]) for text in (birth, day))
    except ValueError:
        return None
    years = end.year - start.year - ((end.month, end.day) < (start.month, start.day))
    return years if years >= 0 else None


def shift_date(value: str, days: int) -> str:
    """Return a FHIR partial date a number of days earlier, in its precision and without time.

    >>> shift_date("2020-03-01T10:00:00Z", 1), shift_date("2020-03", 30)
    ('2020-02-29', '2020-02')
    """
    # A partial date is shifted from its middle day and truncated again.
    precision = len(value) if len(value) in (4, 7) else 10
    day = value[:precision] + {4: "-07-01", 7: "-15", 10: ""}[precision]
    return (date.fromisoformat(day) - timedelta(days=days)).isoformat()[:precision]


def periods_overlap(start: str, end: str, low: str, high: str) -> bool:
    """Return whether two periods of partial FHIR dates overlap; an empty side is open.

    >>> periods_overlap("2020", "2020", "2020-06-01", ""), periods_overlap("2019", "2019", "2020-06-01", "")
    (True, False)
    """
    # Partial dates are compared in the coarser precision: "2020" overlaps a range that starts on 2020-06-01.
    if not start and not end:
        return False
    after = not low or not end or end[: min(10, len(low))] >= low[: min(10, len(end))]
    before = not high or not start or start[: min(10, len(high))] <= high[: min(10, len(start))]
    return after and before


@lru_cache(maxsize=64)
def parse_time_zone(name: str) -> tzinfo | None:
    """Return the time zone for FHIR dateTimes by name or UTC offset, or None.

    >>> parse_time_zone("+02:00"), parse_time_zone("Z"), parse_time_zone("Nowhere/At_All")
    (datetime.timezone(datetime.timedelta(seconds=7200)), datetime.timezone.utc, None)
    """
    if name in ("Z", "UTC"):
        return UTC
    if match := _OFFSET.fullmatch(name):
        offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return timezone(offset if match[1] == "+" else -offset)
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # de-identification in a browser works without it

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def to_fhir_datetime(timestamp: datetime, zone: tzinfo) -> str:
    """Format a timestamp as a FHIR dateTime; without a zone it is in `zone`.

    >>> to_fhir_datetime(datetime(2023, 3, 1, 9), timezone(timedelta(hours=2)))
    '2023-03-01T09:00:00+02:00'
    """
    aware = timestamp if timestamp.tzinfo is not None else timestamp.replace(tzinfo=zone)
    return aware.replace(microsecond=0).isoformat()


@lru_cache(maxsize=1 << 16)
def normalise_iso_date(text: str, zone: tzinfo) -> str | None:
    """Convert an ISO 8601 year, month, date or dateTime to FHIR; return None if it is invalid.

    >>> [normalise_iso_date(text, UTC) for text in ("2023-03-01 09:30", "2023-03", "2023-02-30")]
    ['2023-03-01T09:30:00+00:00', '2023-03', None]
    """
    if len(text) <= 10:
        day = parse_local_date(text)
        return text if day is not None and is_plausible_year(day.first.year) else None
    if text[4] != "-" or text[7] != "-":
        return None
    try:
        timestamp = datetime.fromisoformat(text)
    except ValueError:
        return None
    return to_fhir_datetime(timestamp, zone) if is_plausible_year(timestamp.year) else None


@lru_cache(maxsize=1 << 16)
def parse_date_format(text: str, form: str, zone: tzinfo) -> str | None:
    """Convert a date in a ``strptime`` format to FHIR; return None if it is invalid.

    >>> parse_date_format("01.03.2023", "%d.%m.%Y", UTC), parse_date_format("31.04.2023", "%d.%m.%Y", UTC)
    ('2023-03-01', None)

    A year of two digits is the latest one that is not in the future, since records are in the past.

    >>> parse_date_format("01.03.68", "%d.%m.%y", UTC), parse_date_format("01.03.21", "%d.%m.%y", UTC)
    ('1968-03-01', '2021-03-01')
    """
    try:
        timestamp = datetime.strptime(text, form)
        if "%y" in form and timestamp.year > datetime.now(UTC).year:
            timestamp = timestamp.replace(year=timestamp.year - 100)
    except ValueError:
        return None
    if not is_plausible_year(timestamp.year):
        return None
    has_time = "%H" in form or "%I" in form
    return to_fhir_datetime(timestamp, zone) if has_time else timestamp.date().isoformat()


def is_plausible_year(year: int) -> bool:
    """Return whether a FHIR date may have this year."""
    return MIN_YEAR <= year <= MAX_YEAR
