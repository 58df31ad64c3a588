"""Parsers of cells: numbers, dates, units. Errors do not contain the cell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import tzinfo
from functools import lru_cache
from math import isfinite

from abaton.fhir.partial_dates import normalise_iso_date, parse_date_format
from abaton.fhir.ucum import parse_unit

_NUMBER_PATTERNS = {
    sign: re.compile(
        rf"(<=|>=|<|>|≤|≥)?\s*([+-]?(?:\d+(?:{re.escape(sign)}\d*)?|{re.escape(sign)}\d+)(?:[eE][+-]?\d{{1,3}})?)"
    )
    for sign in ".,"
}
_COMPARATORS = {"≤": "<=", "≥": ">="}
# Common spellings of units in spreadsheets, and their UCUM codes.
UNIT_SPELLINGS: Mapping[str, str] = {
    "mmHg": "mm[Hg]",
    "mm Hg": "mm[Hg]",
    "mg/dl": "mg/dL",
    "g/dl": "g/dL",
    "g/l": "g/L",
    "mmol/l": "mmol/L",
    "µmol/l": "umol/L",
    "µmol/L": "umol/L",
    "μmol/L": "umol/L",
    "umol/l": "umol/L",
    "U/l": "U/L",
    "kg/m²": "kg/m2",
    "bpm": "/min",
    "1/min": "/min",
    "°C": "Cel",
    "years": "a",
    "Jahre": "a",
}
MISSING_VALUES = frozenset(
    [
        "",
        "na",
        "n/a",
        "#n/a",
        "#na",
        "nan",
        "null",
        "none",
        "nil",
        "?",
        "-",
        "--",
        ".",
        "missing",
        "#wert!",
        "#value!",
    ]
)
"""Spellings of a missing value, in lower case."""
TRUE_VALUES = frozenset(["1", "yes", "y", "true", "t", "x", "ja", "j", "oui", "si", "sí"])
FALSE_VALUES = frozenset(["0", "no", "n", "false", "f", "nein", "non"])
SEX_SPELLINGS: Mapping[str, str] = {
    **dict.fromkeys(("m", "male", "man", "mann", "männlich", "maennlich", "homme", "masculin"), "male"),
    **dict.fromkeys(("f", "w", "female", "woman", "frau", "weiblich", "femme", "féminin"), "female"),
    **dict.fromkeys(("o", "other", "d", "divers"), "other"),
    **dict.fromkeys(("u", "unknown", "unbekannt"), "unknown"),
}


class CellError(ValueError):
    """Cell that cannot be parsed, with a remedy; the message does not contain the cell."""

    def __init__(self, what: str, remedy: str) -> None:
        self.what, self.remedy = what, remedy
        super().__init__(what)


def parse_number(text: str, decimal: str) -> tuple[str | None, float]:
    """Parse a number in a table cell, with its comparator, if any; thousands separators are not allowed.

    >>> parse_number(">89", "."), parse_number("5,4", ",")
    (('>', 89.0), (None, 5.4))
    """
    match = _NUMBER_PATTERNS[decimal].fullmatch(text)
    if match is None:
        other = "," if decimal == "." else "."
        if other in text and _NUMBER_PATTERNS[other].fullmatch(text):
            raise CellError(
                f"a number contains '{other}'",
                f"set decimal = '{other}' under [files], or export numbers without thousands separators",
            )
        raise CellError("the cell is not a number", "correct it, or add the text to 'missing'")
    value = float(match[2].replace(",", "."))
    if not isfinite(value):
        raise CellError("the number is too large", "correct it")
    return _COMPARATORS.get(match[1], match[1]), value


def parse_date(text: str, date_formats: Iterable[str], zone: tzinfo) -> str:
    """Parse a date or time in a table cell to FHIR text; without formats, ISO 8601 is expected.

    >>> from datetime import UTC
    >>> parse_date("2023-03-01", (), UTC)
    '2023-03-01'
    """
    for date_format in date_formats:
        if date_text := parse_date_format(text, date_format, zone):
            return date_text
    if not date_formats and (date_text := normalise_iso_date(text, zone)):
        return date_text
    raise CellError(
        "the cell is not a valid date in one of the configured formats",
        "correct it, or add its format to 'dates' under [files], such as '%d.%m.%Y'",
    )


def parse_birth_date(text: str, date_formats: Iterable[str], zone: tzinfo) -> str:
    """Parse a date of birth in a table cell; refuse a two-digit year whose century is ambiguous."""
    date_text = parse_date(text, date_formats, zone)[:10]
    if date_text >= "2000" and any(
        "%y" in date_format and parse_date_format(text, date_format, zone) for date_format in date_formats
    ):
        raise CellError(
            "the century of a two-digit birth year is ambiguous",
            "export dates of birth with four-digit years",
        )
    return date_text


@lru_cache(maxsize=1024)
def to_ucum(text: str, translations: tuple[tuple[str, str], ...]) -> str:
    """Parse a unit in a table cell to UCUM: by a translation of the mapping, a common spelling, or UCUM itself.

    >>> to_ucum("mmHg", ()), to_ucum("mg/dL", ())
    ('mm[Hg]', 'mg/dL')
    """
    unit = dict(translations).get(text) or UNIT_SPELLINGS.get(text) or text
    if parse_unit(unit) is None:
        raise CellError("the unit is not a UCUM unit", "map it under [units], such as \"mg%\" = 'mg/dL'")
    return unit


@lru_cache(maxsize=1 << 14)
def normalise_text(text: str) -> str:
    """Return the text of a table cell for comparison, with numbers in shortest form, so that 1.0 equals 1.

    >>> normalise_text("1.0"), normalise_text("1,50"), normalise_text("Never")
    ('1', '1.5', 'Never')
    """
    try:
        value = float(text.replace(",", ".", 1))
    except ValueError:
        return text
    return f"{value:.12g}" if isfinite(value) else text
