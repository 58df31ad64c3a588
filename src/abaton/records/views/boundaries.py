"""The least and the greatest value that an imprecise number, date or time may stand for (FHIRPath 3.0)."""

from __future__ import annotations

import calendar
import re
from decimal import Decimal
from typing import Any

_DATE = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d))?)?")
_TIME = re.compile(r"(\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?")
_ZONE = re.compile(r"(Z|[+-]\d\d:\d\d)$")


def boundary(value: Any, kind: str, *, high: bool) -> Any:
    """The boundary of a value, or nothing if it has none.

    Args:
        value: A number, or a date or time as FHIR writes it.
        kind: Its FHIR type where it is known, because "2010-10-10" may be a date or a dateTime.
        high: The greatest instead of the least.

    Returns:
        A value of the same type.

    >>> boundary(1.0, "", high=False), boundary("1970-06", "date", high=True)
    (0.95, '1970-06-30')
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return _number(value, high=high)
    if not isinstance(value, str):
        return None
    if kind == "time" or (not kind and _TIME.fullmatch(value) and ":" in value):
        return _time(value, high=high)
    if kind == "date" or (not kind and "T" not in value):
        return _date(value, high=high)
    return _date_time(value, high=high)


def _number(value: float, *, high: bool) -> float:
    digits = Decimal(repr(value))
    exponent = digits.as_tuple().exponent
    step = Decimal(5).scaleb((exponent if isinstance(exponent, int) else 0) - 1)
    return float(digits + step if high else digits - step)


def _date(value: str, *, high: bool) -> str | None:
    match = _DATE.fullmatch(value)
    if not match:
        return None
    month = int(match[2] or (12 if high else 1))
    if not 1 <= month <= 12 or not int(match[1]):
        return None
    last = calendar.monthrange(int(match[1]), month)[1]
    day = int(match[3] or (last if high else 1))
    return f"{match[1]}-{month:02d}-{day:02d}"


def _time(value: str, *, high: bool) -> str | None:
    match = _TIME.fullmatch(value)
    if not match:
        return None
    minute, second = (part or ("59" if high else "00") for part in match.groups()[1:3])
    fraction = (match[4] or "").ljust(3, "9" if high else "0")
    return f"{match[1]}:{minute}:{second}.{fraction}"


def _date_time(value: str, *, high: bool) -> str | None:
    day, _, clock = value.partition("T")
    zone = _ZONE.search(clock)
    made_day = _date(day, high=high)
    made_clock = _time(_ZONE.sub("", clock) or ("23" if high else "00"), high=high)
    if made_day is None or made_clock is None:
        return None
    # Without a zone the moment may be anywhere on earth: earliest in +14:00, latest in -12:00.
    return f"{made_day}T{made_clock}{zone[1] if zone else '-12:00' if high else '+14:00'}"
