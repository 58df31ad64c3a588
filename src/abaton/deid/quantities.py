"""Quantities: kept with a UCUM unit, with ages capped and numbers that may be personal identifiers dropped.

A quantity with a UCUM unit may have more than six digits (a viral load has nine), because record numbers have no
unit.
"""

from __future__ import annotations

import math
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from abaton.deid.ages import is_age_range, per_year, time_unit_code
from abaton.deid.context import ElementPosition, Handler, SiblingCounter, TransformContext, absent_extension
from abaton.errors import SettingsError
from abaton.fhir.ucum import is_unit, strip_annotations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from abaton.deid.methods import Settings

QUANTITIES = frozenset({"Quantity", "Age", "Count", "Distance", "Duration"})
UCUM = "http://unitsofmeasure.org"
_COMPARATORS = frozenset({"<", "<=", ">=", ">"})
_MAX_SHORT, _MIN_LONG_DIGITS = (
    1e6,
    9,
)  # shorter numbers are not checked; personal numbers of many countries have nine digits
_MAX_CACHED = 4_096


def measure(settings: Settings, node: ElementPosition) -> Handler:
    """Keep a Quantity with a UCUM unit; ages over the cap become one class, long numbers are dropped."""
    if node.type not in QUANTITIES:
        raise SettingsError(
            f"the method 'measure' does not apply to {node.path}, which is not a quantity",
            remedy="correct the rule",
        )
    cap = int(settings.get("cap", "0"))
    limit = 10.0 ** int(settings.get("digits", "300"))
    is_age = node.type == "Age" or is_age_range(node.path)
    siblings = SiblingCounter(node, ("value", "comparator", "system", "code"), "text beside a number")
    unit_only = siblings.of(("unit",))
    known_units: set[str] = set()  # known units that are not units of time

    def run(value: Any, context: TransformContext) -> Any:
        if value.__class__ is not dict:
            return context.drop(node, "malformed")
        number: Any = value.get("value")
        system, code = value.get("system"), value.get("code")
        is_number = number.__class__ is float or number.__class__ is int
        is_known = is_number and len(value) == 4 and code.__class__ is str and code in known_units
        if is_known and system == UCUM and -_MAX_SHORT < number < _MAX_SHORT and "unit" in value:
            context.log_shape_drops(unit_only)
            return {"value": number, "system": UCUM, "code": code}
        quantity: dict[str, Any] = {"value": number} if is_number else {}
        unit = value.get("unit")
        if code is not None and context.codes.is_kept(system, code):
            quantity["system"], quantity["code"] = system, code
            if system == UCUM and len(known_units) < _MAX_CACHED and not is_age and not per_year(code):
                known_units.add(code)
        elif system == UCUM and code.__class__ is str and (bare_code := strip_annotations(code)) is not None:
            quantity["system"], quantity["code"] = UCUM, bare_code
            context.drop(node, "annotation in a unit")
        elif unit.__class__ is str:
            _keep_unit(quantity, unit)
        if len(value) == 4 and len(quantity) == 3 and unit is not None:
            context.log_shape_drops(unit_only)
        elif len(value) != len(quantity):
            comparator = value.get("comparator")
            if comparator.__class__ is str and comparator in _COMPARATORS:
                quantity["comparator"] = comparator
            context.log_shape_drops(siblings.of(tuple(value)))
            if "extension" in value and not quantity:
                return {"extension": absent_extension()} if value["extension"] == absent_extension() else None
        if is_number and not -limit < number < limit:
            unit_code = quantity.get("code") if quantity.get("system") == UCUM else quantity.get("unit")
            if unit_code is None or (is_long(number) and not is_plausible(number, unit_code, context.raw)):
                return context.drop(node, "number too long")
        if is_number and cap:
            # The original unit counts, also if it is not kept.
            unit_code = quantity.get("code") or quantity.get("unit") or code or unit
            units_per_year = per_year(unit_code) if unit_code.__class__ is str else 0.0
            has_unknown_unit = unit is not None and "unit" not in quantity and "code" not in quantity
            if is_age and number > cap and not units_per_year and has_unknown_unit:
                return context.drop(node, "age in an unknown unit")
            units_per_year = units_per_year or (1.0 if is_age else 0.0)
            if units_per_year and number > cap * units_per_year:
                quantity["value"] = math.ceil((cap + 1) * units_per_year)
        if quantity:
            return quantity
        return context.drop(node, "empty")

    return run


def _keep_unit(quantity: dict[str, Any], unit: str) -> None:
    """Keep the unit of a Quantity: unchanged if it is UCUM, as a code if it is a word for a unit of time."""
    time_code = time_unit_code(unit)
    if is_unit(unit):
        quantity["unit"] = unit
    elif (bare_unit := strip_annotations(unit)) is not None:
        quantity["unit"] = bare_unit
    elif time_code is not None:
        quantity["system"], quantity["code"] = UCUM, time_code


def is_long(number: float) -> bool:
    """Return whether the number of a quantity has as many digits as a telephone, insurance or record number.

    >>> is_long(123456789), is_long(1234567.89), is_long(168.94285714285715), is_long(1e22)
    (True, True, False, True)
    """
    size = abs(number)
    if size < _MAX_SHORT or size == math.inf:
        return size == math.inf
    text = str(int(size)) if size == int(size) else repr(size)
    return sum(character.isdigit() for character in text) >= _MIN_LONG_DIGITS


@cache
def _ranges() -> dict[tuple[str, str], tuple[float, float]]:
    """Return the plausible ranges of quantities with large values, by LOINC code and unit."""
    ranges: dict[tuple[str, str], tuple[float, float]] = {}
    text = files("abaton.deid").joinpath("plausible.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        fields = line.partition("#")[0].split()
        if fields:
            code, unit, low, high = fields
            ranges[code, unit] = (float(low), float(high))
    return ranges


def is_plausible(number: float, unit: str, resource: dict[str, Any]) -> bool:
    """Return whether a long number is plausible for the quantity that its resource measures.

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
        for item in coding if coding.__class__ is list else ():
            if item.__class__ is dict and item.get("system") == "http://loinc.org":
                yield str(item.get("code"))
