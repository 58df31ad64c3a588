"""FHIR dates: a year, a month, a day or a moment, read as far as they go."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any


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
