"""Dates and times of tables and databases as FHIR writes them: a time of day needs a time zone, a date has none."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
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
