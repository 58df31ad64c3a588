"""UTC timestamps as text, and reading of FHIR dateTime values."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from abaton.errors import SettingsError, StoreError

_FHIR = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:T(\d\d):(\d\d):(\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d))?)?)?\Z", re.ASCII
)


def to_timestamp(when: datetime) -> str:
    """Return a UTC timestamp as text; texts sort in order of time.

    >>> to_timestamp(datetime(2026, 3, 1, 13, 0, tzinfo=UTC))
    '2026-03-01T13:00:00.000Z'
    """
    if when.tzinfo is None:
        raise SettingsError("the time has no time zone", remedy="give a time in UTC")
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_timestamp(text: str) -> datetime:
    """Return the time of a UTC timestamp that :func:`to_timestamp` wrote.

    Raises:
        StoreError: The stored text is damaged; the message does not contain it.
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise StoreError("a stored time is malformed", remedy="restore the database from a backup") from None


def earliest_time(text: object) -> datetime | None:
    """Return the first instant of a FHIR dateTime, or None if it is invalid; a date without a time is a UTC day.

    >>> earliest_time("2026-03").isoformat()
    '2026-03-01T00:00:00+00:00'
    """
    match = _FHIR.match(text) if isinstance(text, str) else None
    if match is None:
        return None
    year, month, day, hour = match.group(1, 2, 3, 4)
    try:
        if hour is not None:
            return datetime.fromisoformat(match.group()).astimezone(UTC)
        return datetime(int(year), int(month or 1), int(day or 1), tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def latest_time(text: object) -> datetime | None:
    """Return the first instant after a FHIR dateTime that ends a period; the end belongs to the period.

    >>> latest_time("2026-12").isoformat()
    '2027-01-01T00:00:00+00:00'
    """
    start = earliest_time(text)
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
    """Return the UTC timestamp of the first instant of a day, as a datetime."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def day_end(day: date) -> datetime:
    """Return the UTC timestamp of the first instant after a day, as a datetime."""
    return day_start(day) + timedelta(days=1)
