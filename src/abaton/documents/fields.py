"""The small values that documents are made of: texts, days, spans of time, codes."""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from datetime import date
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from abaton.documents.line_numbers import KeyPath

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SPAN = re.compile(r"P(?:(\d{1,5})([YMWD])|T(\d{1,5})(H))")
_PARTIAL = re.compile(r"(\d{4})(?:-(\d{2}))?")


def fault(what: str, remedy: str) -> PydanticCustomError:
    """An error about a value that says what is wrong and what to do."""
    return PydanticCustomError("document", "{what}", {"what": what, "remedy": remedy})


def faults(found: Sequence[tuple[KeyPath, str, str]]) -> PydanticCustomError:
    """Several errors at once, each with its place within the part that is checked."""
    first, *rest = found
    context = {"path": first[0], "what": first[1], "remedy": first[2], "more": rest}
    return PydanticCustomError("document", "{what}", context)


def without_empty(value: Any) -> Any:
    """Plain tables and lists without what is absent or empty."""
    if isinstance(value, dict):
        kept = {key: without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not None and item not in ("", [], {})}
    return [without_empty(item) for item in value] if isinstance(value, list | tuple) else value


def _plain_text(text: str) -> str:
    if _CONTROL.search(text):
        raise fault("control characters are not text", "remove them")
    if not text.strip():
        raise fault("the text is empty", "write it, or leave the key out")
    return text.replace("\r\n", "\n").strip()


def _span(text: str) -> str:
    match = _SPAN.fullmatch(text)
    if not match or int(match[1] or match[3]) == 0:
        raise fault("this is not a span of time", "write one number and a unit: P5Y, P6M, P2W, P30D or PT12H")
    return text


def _first_day(value: Any) -> Any:
    """A year or a month begins on its first day."""
    match = _PARTIAL.fullmatch(value) if isinstance(value, str) else None
    return day(f"{match[1]}-{match[2] or '01'}-01" if match else value)


def _last_day(value: Any) -> Any:
    """A year or a month ends on its last day."""
    match = _PARTIAL.fullmatch(value) if isinstance(value, str) else None
    first = _first_day(value)
    if not match or not isinstance(first, date):
        return first
    month = int(match[2] or 12)
    return first.replace(month=month, day=calendar.monthrange(first.year, month)[1])


def day(value: Any) -> Any:
    """A moment counts as its day: studies are planned in days."""
    if not isinstance(value, str):
        return value
    try:
        return date.fromisoformat(value[:10] if value[10:11] == "T" else value)
    except ValueError:
        raise fault("this is not a date", "write it as YYYY-MM-DD") from None


Text = Annotated[str, AfterValidator(_plain_text)]
Name = Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9_]{0,62}$")]
Span = Annotated[str, AfterValidator(_span)]
Start = Annotated[date, BeforeValidator(_first_day)]
End = Annotated[date, BeforeValidator(_last_day)]
Day = Annotated[date, BeforeValidator(day)]


class Part(BaseModel):
    """A part of a document: unchangeable, and without any key that is not known."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, ser_json_inf_nan="constants")


class Match(StrEnum):
    """How a code is compared: it is the same, or it only begins alike (I50 finds I50.1)."""

    EXACT = "exact"
    STARTS_WITH = "startsWith"


class Term(Part):
    """A code of a terminology, with the words people use for it.

    >>> Term(system="http://loinc.org", code="8310-5").matches("http://loinc.org", "8310-5")
    True
    """

    system: Text
    code: Text
    display: Text | None = None
    match: Match = Match.EXACT

    def matches(self, system: object, code: object) -> bool:
        """Whether a record's code is meant by this one."""
        if system != self.system or not isinstance(code, str):
            return False
        return code.startswith(self.code) if self.match is Match.STARTS_WITH else code == self.code


class Period(Part):
    """The days from start to end, both included; an open side has no limit."""

    start: Start | None = None
    end: End | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.start is None and self.end is None:
            raise fault("the period has neither start nor end", "give at least one of them as YYYY-MM-DD")
        if self.start and self.end and self.start > self.end:
            raise fault("the period ends before it starts", "swap start and end")
        return self


def before(moment: date, span: str) -> date:
    """The day that lies a span of time before another; hours count as the days they touch.

    >>> before(date(2026, 3, 31), "P1M").isoformat()
    '2026-02-28'
    """
    match = _SPAN.fullmatch(span)
    assert match is not None
    number, unit = int(match[1] or match[3]), match[2] or match[4]
    if unit in "YM":
        months = moment.year * 12 + moment.month - 1 - number * (12 if unit == "Y" else 1)
        if months < 12:
            return date.min
        year, month = divmod(months, 12)
        return date(year, month + 1, min(moment.day, calendar.monthrange(year, month + 1)[1]))
    days = {"W": 7 * number, "D": number, "H": -(-number // 24)}[unit]
    return date.fromordinal(max(1, moment.toordinal() - days))


def days(span: str) -> int:
    """How many days a span of time has; a year has 365.25 days, a month a twelfth of it, hours are rounded up.

    >>> days("P1Y"), days("P6M"), days("P2W")
    (365, 183, 14)
    """
    match = _SPAN.fullmatch(span)
    assert match is not None
    number, unit = int(match[1] or match[3]), match[2] or match[4]
    sizes = {"Y": 365.25, "M": 365.25 / 12, "W": 7.0, "D": 1.0}
    return -(-number // 24) if unit == "H" else round(number * sizes[unit])
