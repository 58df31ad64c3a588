"""When something happened: FHIR's dates, whole or in part, put in order and measured apart."""

from __future__ import annotations

import calendar
import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

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
