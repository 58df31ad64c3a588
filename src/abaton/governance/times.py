"""Times as text: the one form that Abaton writes, and the forms of FHIR that it reads."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from abaton.errors import SettingsError

_FHIR = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:T(\d\d):(\d\d):(\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d))?)?)?\Z", re.ASCII
)


def stamp(when: datetime) -> str:
    """A moment as text in UTC; such texts sort as the moments do.

    >>> stamp(datetime(2026, 3, 1, 13, 0, tzinfo=UTC))
    '2026-03-01T13:00:00.000Z'
    """
    if when.tzinfo is None:
        raise SettingsError("a time without a time zone is not clear", remedy="give one in UTC")
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(text: str) -> datetime:
    """The moment that a text of :func:`stamp` stands for."""
    return datetime.fromisoformat(text)


def first_moment(text: object) -> datetime | None:
    """The first moment of a FHIR dateTime, or nothing if it is none; days without a time are days of UTC.

    >>> first_moment("2026-03").isoformat()
    '2026-03-01T00:00:00+00:00'
    """
    found = _FHIR.match(text) if isinstance(text, str) else None
    if found is None:
        return None
    year, month, day, hour = found.group(1, 2, 3, 4)
    try:
        if hour is not None:
            return datetime.fromisoformat(found.group()).astimezone(UTC)
        return datetime(int(year), int(month or 1), int(day or 1), tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def last_moment(text: object) -> datetime | None:
    """The first moment after a FHIR dateTime as the end of a period: the end belongs to the period.

    >>> last_moment("2026-12").isoformat()
    '2027-01-01T00:00:00+00:00'
    """
    start = first_moment(text)
    if start is None or not isinstance(text, str):
        return None
    try:
        if len(text) == 4:
            return start.replace(year=start.year + 1)
        if len(text) == 7:
            return (start + timedelta(days=31)).replace(day=1)
        return start + (timedelta(days=1) if len(text) == 10 else timedelta(microseconds=1))
    except (ValueError, OverflowError):
        return None


def day_start(day: date) -> datetime:
    """The first moment of a day."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def day_end(day: date) -> datetime:
    """The first moment after a day."""
    return day_start(day) + timedelta(days=1)
