"""Field types of documents: texts, dates, durations, codes and periods."""

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
_DURATION = re.compile(r"P(?:(\d{1,5})([YMWD])|T(\d{1,5})(H))")
_YEAR_OR_MONTH = re.compile(r"(\d{4})(?:-(\d{2}))?")


def field_error(what: str, remedy: str) -> PydanticCustomError:
    """Return the pydantic error of a document field, with fact and remedy."""
    return PydanticCustomError("document", "{what}", {"what": what, "remedy": remedy})


def field_errors(errors: Sequence[tuple[KeyPath, str, str]]) -> PydanticCustomError:
    """Combine several errors of document fields, each with its path in the section, into one pydantic error."""
    first, *remaining = errors
    context = {"path": first[0], "what": first[1], "remedy": first[2], "more": remaining}
    return PydanticCustomError("document", "{what}", context)


def without_empty(value: Any) -> Any:
    """Return the fields of a document, tables and lists, without absent or empty values."""
    if isinstance(value, dict):
        nonempty = {key: without_empty(item) for key, item in value.items()}
        return {key: item for key, item in nonempty.items() if item is not None and item not in ("", [], {})}
    return [without_empty(item) for item in value] if isinstance(value, list | tuple) else value


def _clean_text(text: str) -> str:
    if _CONTROL.search(text):
        raise field_error("the text contains control characters", "remove them")
    if not text.strip():
        raise field_error("the text is empty", "write it, or remove the key")
    return text.replace("\r\n", "\n").strip()


def _check_duration(text: str) -> str:
    match = _DURATION.fullmatch(text)
    if not match or int(match[1] or match[3]) == 0:
        raise field_error(
            "this is not a duration", "write one number and a unit: P5Y, P6M, P2W, P30D or PT12H"
        )
    return text


def _first_day(value: Any) -> Any:
    """Return the first day of a year or month in a date field of a document."""
    match = _YEAR_OR_MONTH.fullmatch(value) if isinstance(value, str) else None
    return parse_date(f"{match[1]}-{match[2] or '01'}-01" if match else value)


def _last_day(value: Any) -> Any:
    """Return the last day of a year or month in a date field of a document."""
    match = _YEAR_OR_MONTH.fullmatch(value) if isinstance(value, str) else None
    first = _first_day(value)
    if not match or not isinstance(first, date):
        return first
    month = int(match[2] or 12)
    return first.replace(month=month, day=calendar.monthrange(first.year, month)[1])


def parse_date(value: Any) -> Any:
    """Parse a date field of a document; a dateTime is reduced to its date."""
    if not isinstance(value, str):
        return value
    try:
        return date.fromisoformat(value[:10] if value[10:11] == "T" else value)
    except ValueError:
        raise field_error("this is not a date", "write it as YYYY-MM-DD") from None


Text = Annotated[str, AfterValidator(_clean_text)]
Name = Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9_]{0,62}$")]
Duration = Annotated[str, AfterValidator(_check_duration)]
StartDate = Annotated[date, BeforeValidator(_first_day)]
EndDate = Annotated[date, BeforeValidator(_last_day)]
DateField = Annotated[date, BeforeValidator(parse_date)]


class Section(BaseModel):
    """Table of a document: immutable, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, ser_json_inf_nan="constants")


class CodePrefix(StrEnum):
    """Comparison of codes: equality, or equality of a prefix (I50 matches I50.1)."""

    EXACT = "exact"
    STARTS_WITH = "startsWith"


class Coding(Section):
    """Code of a terminology with its display text.

    >>> Coding(system="http://loinc.org", code="8310-5").matches("http://loinc.org", "8310-5")
    True
    """

    system: Text
    code: Text
    display: Text | None = None
    match: CodePrefix = CodePrefix.EXACT

    def matches(self, system: object, code: object) -> bool:
        """Return whether the coding in a document field matches a record's system and code."""
        if system != self.system or not isinstance(code, str):
            return False
        return code.startswith(self.code) if self.match is CodePrefix.STARTS_WITH else code == self.code


class DatePeriod(Section):
    """Period of dates, both ends included; a missing end is open."""

    start: StartDate | None = None
    end: EndDate | None = None

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.start is None and self.end is None:
            raise field_error(
                "the period has neither start nor end", "give at least one of them as YYYY-MM-DD"
            )
        if self.start and self.end and self.start > self.end:
            raise field_error("the period ends before it starts", "swap start and end")
        return self


def subtract_duration(day: date, duration: str) -> date:
    """Return the date that is a duration field (``P6M``) before another; hours are rounded up to days.

    >>> subtract_duration(date(2026, 3, 31), "P1M").isoformat()
    '2026-02-28'
    """
    match = _DURATION.fullmatch(duration)
    assert match is not None
    count, unit = int(match[1] or match[3]), match[2] or match[4]
    if unit in "YM":
        months = day.year * 12 + day.month - 1 - count * (12 if unit == "Y" else 1)
        if months < 12:
            return date.min
        year, month = divmod(months, 12)
        return date(year, month + 1, min(day.day, calendar.monthrange(year, month + 1)[1]))
    days = {"W": 7 * count, "D": count, "H": -(-count // 24)}[unit]
    return date.fromordinal(max(1, day.toordinal() - days))


def duration_days(duration: str) -> int:
    """Return the days of a duration field; a year has 365.25 days, a month a twelfth, hours are rounded up.

    >>> duration_days("P1Y"), duration_days("P6M"), duration_days("P2W")
    (365, 183, 14)
    """
    match = _DURATION.fullmatch(duration)
    assert match is not None
    count, unit = int(match[1] or match[3]), match[2] or match[4]
    sizes = {"Y": 365.25, "M": 365.25 / 12, "W": 7.0, "D": 1.0}
    return -(-count // 24) if unit == "H" else round(count * sizes[unit])
