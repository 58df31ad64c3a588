"""What stands in one cell of a table: a number, a date, a unit; read right, or refused without showing it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import tzinfo
from functools import lru_cache
from math import isfinite

from abaton.fhir.partial_dates import from_form, from_iso
from abaton.fhir.ucum import read_unit

_NUMBER = {
    sign: re.compile(
        rf"(<=|>=|<|>|≤|≥)?\s*([+-]?(?:\d+(?:{re.escape(sign)}\d*)?|{re.escape(sign)}\d+)(?:[eE][+-]?\d{{1,3}})?)"
    )
    for sign in ".,"
}
_SIGNS = {"≤": "<=", "≥": ">="}
# How units are written in spreadsheets, where UCUM writes them otherwise.
WRITTEN: Mapping[str, str] = {
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
MISSING = frozenset(
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
"""What stands for nothing, whatever the case of its letters."""
YES = frozenset(["1", "yes", "y", "true", "t", "x", "ja", "j", "oui", "si", "sí"])
NO = frozenset(["0", "no", "n", "false", "f", "nein", "non"])
SEXES: Mapping[str, str] = {
    **dict.fromkeys(("m", "male", "man", "mann", "männlich", "maennlich", "homme", "masculin"), "male"),
    **dict.fromkeys(("f", "w", "female", "woman", "frau", "weiblich", "femme", "féminin"), "female"),
    **dict.fromkeys(("o", "other", "d", "divers"), "other"),
    **dict.fromkeys(("u", "unknown", "unbekannt"), "unknown"),
}


class CellError(ValueError):
    """A cell that cannot be read: what is wrong, and what to do; never what stands in it."""

    def __init__(self, what: str, remedy: str) -> None:
        self.what, self.remedy = what, remedy
        super().__init__(what)


def number(text: str, decimal: str) -> tuple[str | None, float]:
    """A number and the sign before it, if there is one; thousands are not set apart.

    >>> number(">89", "."), number("5,4", ",")
    (('>', 89.0), (None, 5.4))
    """
    match = _NUMBER[decimal].fullmatch(text)
    if match is None:
        other = "," if decimal == "." else "."
        if other in text and _NUMBER[other].fullmatch(text):
            raise CellError(
                f"a number is written with '{other}'",
                f"write decimal = '{other}' under [files] if that is meant, or export without signs between thousands",
            )
        raise CellError("this is not a number", "correct it, or name what stands for nothing under 'missing'")
    found = float(match[2].replace(",", "."))
    if not isfinite(found):
        raise CellError("the number is too large", "correct it")
    return _SIGNS.get(match[1], match[1]), found


def moment(text: str, forms: Iterable[str], zone: tzinfo) -> str:
    """A date or a time as FHIR writes it; without a form of the mapping's own, ISO 8601 is meant.

    >>> from datetime import UTC
    >>> moment("2023-03-01", (), UTC)
    '2023-03-01'
    """
    for form in forms:
        if made := from_form(text, form, zone):
            return made
    if not forms and (made := from_iso(text, zone)):
        return made
    raise CellError(
        "there is no such date, or it is written in another form",
        "correct it, or name its form under [files], as dates = ['%d.%m.%Y']",
    )


def birth(text: str, forms: Iterable[str], zone: tzinfo) -> str:
    """A date of birth; one whose year has two digits is refused where it may be a child's or an old person's."""
    made = moment(text, forms, zone)[:10]
    if made >= "2000" and any("%y" in form and from_form(text, form, zone) for form in forms):
        raise CellError(
            "a year of two digits does not say its century", "export births with years of four digits"
        )
    return made


@lru_cache(maxsize=1024)
def unit_of(text: str, own: tuple[tuple[str, str], ...]) -> str:
    """The unit of UCUM that a text means: the mapping's translation, a usual spelling, or UCUM itself.

    >>> unit_of("mmHg", ()), unit_of("mg/dL", ())
    ('mm[Hg]', 'mg/dL')
    """
    found = dict(own).get(text) or WRITTEN.get(text) or text
    if read_unit(found) is None:
        raise CellError(
            "the unit is not one of UCUM", "say what it means under [units], as \"mg%\" = 'mg/dL'"
        )
    return found


@lru_cache(maxsize=1 << 14)
def plain(text: str) -> str:
    """A text as it is compared: a whole number without its decimals, so that 1.0 is 1.

    >>> plain("1.0"), plain("1,50"), plain("Never")
    ('1', '1.5', 'Never')
    """
    try:
        made = float(text.replace(",", ".", 1))
    except ValueError:
        return text
    return f"{made:.12g}" if isfinite(made) else text
