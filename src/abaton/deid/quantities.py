"""Quantities: a measured number stays with a unit of UCUM, unless it may be an age over 89 or a person's number."""

from __future__ import annotations

import math
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from abaton.deid.ages import is_age_range, per_year, spelt_time
from abaton.deid.context import Beside, Handler, Node, Scope, masked
from abaton.errors import SettingsError
from abaton.fhir.ucum import is_unit, without_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from abaton.deid.methods import Settings

QUANTITIES = frozenset({"Quantity", "Age", "Count", "Distance", "Duration"})
UCUM = "http://unitsofmeasure.org"
_COMPARATORS = frozenset({"<", "<=", ">=", ">"})
_SHORT, _LONG = 1e6, 9  # below a million nothing is long; nine digits are a person's number in many countries
_MOST = 4_096


def measure(settings: Settings, node: Node) -> Handler:
    """Keep a measured number with a unit of UCUM; ages over the cap become one class, long numbers go."""
    if node.type not in QUANTITIES:
        raise SettingsError(
            f"the method 'measure' cannot be used on {node.path}: it is no quantity",
            remedy="correct the rule",
        )
    cap = int(settings.get("cap", "0"))
    most = 10.0 ** int(settings.get("digits", "300"))
    is_age = node.type == "Age" or is_age_range(node.path)
    beside = Beside(node, ("value", "comparator", "system", "code"), "text beside a number")
    unit_only = beside.of(("unit",))
    usual: set[str] = set()  # units that are known and no time

    def run(value: Any, scope: Scope) -> Any:
        if value.__class__ is not dict:
            return scope.drop(node, "malformed")
        number: Any = value.get("value")
        system, code = value.get("system"), value.get("code")
        plain = number.__class__ is float or number.__class__ is int
        known = plain and len(value) == 4 and code.__class__ is str and code in usual
        if known and system == UCUM and -_SHORT < number < _SHORT and "unit" in value:
            scope.seen(unit_only)
            return {"value": number, "system": UCUM, "code": code}
        made: dict[str, Any] = {"value": number} if plain else {}
        unit = value.get("unit")
        if code is not None and scope.codes.knows(system, code):
            made["system"], made["code"] = system, code
            if system == UCUM and len(usual) < _MOST and not is_age and not per_year(code):
                usual.add(code)
        elif system == UCUM and code.__class__ is str and (bare := without_words(code)) is not None:
            made["system"], made["code"] = UCUM, bare
            scope.drop(node, "words in a unit")
        elif unit.__class__ is str:
            _put_unit(made, unit)
        if len(value) == 4 and len(made) == 3 and unit is not None:
            scope.seen(unit_only)
        elif len(value) != len(made):
            comparator = value.get("comparator")
            if comparator.__class__ is str and comparator in _COMPARATORS:
                made["comparator"] = comparator
            scope.seen(beside.of(tuple(value)))
            if "extension" in value and not made:
                return {"extension": masked()} if value["extension"] == masked() else None
        if plain and not -most < number < most:
            told = made.get("code") if made.get("system") == UCUM else made.get("unit")
            if told is None or (is_long(number) and not is_plausible(number, told, scope.raw)):
                return scope.drop(node, "number too long")
        if plain and cap:
            # What the unit was counts, even if too much is written beside it for it to stay.
            told = made.get("code") or made.get("unit") or code or unit
            each = per_year(told) if told.__class__ is str else 0.0
            strange = unit is not None and "unit" not in made and "code" not in made
            if is_age and number > cap and not each and strange:
                return scope.drop(node, "age in a unit that is not understood")
            each = each or (1.0 if is_age else 0.0)
            if each and number > cap * each:
                made["value"] = math.ceil((cap + 1) * each)
        if made:
            return made
        return scope.drop(node, "empty")

    return run


def _put_unit(made: dict[str, Any], unit: str) -> None:
    """Keep a unit that is written out: as it is if it is one of UCUM, as its code if it is a time in plain words."""
    time = spelt_time(unit)
    if is_unit(unit):
        made["unit"] = unit
    elif (bare := without_words(unit)) is not None:
        made["unit"] = bare
    elif time is not None:
        made["system"], made["code"] = UCUM, time


def is_long(number: float) -> bool:
    """Whether a number has as many digits as a telephone, insurance or record number.

    >>> is_long(123456789), is_long(1234567.89), is_long(168.94285714285715), is_long(1e22)
    (True, True, False, True)
    """
    size = abs(number)
    if size < _SHORT or size == math.inf:
        return size == math.inf
    text = str(int(size)) if size == int(size) else repr(size)
    return sum(sign.isdigit() for sign in text) >= _LONG


@cache
def _ranges() -> dict[tuple[str, str], tuple[float, float]]:
    """By code of LOINC and unit: between which numbers a measurement lies that is counted in hundreds of millions."""
    made: dict[tuple[str, str], tuple[float, float]] = {}
    text = files("abaton.deid").joinpath("plausible.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            code, unit, low, high = words
            made[code, unit] = (float(low), float(high))
    return made


def is_plausible(number: float, unit: str, resource: dict[str, Any]) -> bool:
    """Whether a long number is one that the measurement its resource names may have.

    >>> count = {"resourceType": "Observation", "code": {"coding": [{"system": "http://loinc.org", "code": "777-3"}]}}
    >>> is_plausible(250_000_000_000, "/L", count), is_plausible(123456789, "/L", count), is_plausible(4e11, "m", count)
    (True, False, False)
    """
    ranges = _ranges()
    for code in _codes(resource):
        low, high = ranges.get((code, unit), (1.0, 0.0))
        # A count of cells is known to a few digits; a record number is exact to the last.
        if low <= number <= high and float(f"{number:.4g}") == number:
            return True
    return False


def _codes(resource: dict[str, Any]) -> Iterator[str]:
    components = resource.get("component")
    for part in (resource, *(components if components.__class__ is list else ())):
        concept = part.get("code") if part.__class__ is dict else None
        coding = concept.get("coding") if concept.__class__ is dict else None
        for each in coding if coding.__class__ is list else ():
            if each.__class__ is dict and each.get("system") == "http://loinc.org":
                yield str(each.get("code"))
