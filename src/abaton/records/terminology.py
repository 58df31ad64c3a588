"""Coded values and measures: only what can be nothing else than a code or a unit stays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from abaton.errors import SettingsError
from abaton.records.scope import MASKED_URL, Beside, Dropped, Handler, Node, Scope, masked
from abaton.records.shapes import usual
from abaton.records.ucum import is_unit
from abaton.records.vocabulary import ABSENT, binding, is_known

if TYPE_CHECKING:
    from abaton.records.methods import Settings

_COMPARATORS = frozenset({"<", "<=", ">=", ">"})
# How many of a unit make a year: ages are told in all of these.
_PER_YEAR = {
    "a": 1.0,
    "a_j": 1.0,
    "mo": 12.0,
    "mo_j": 12.0,
    "wk": 52.1775,
    "d": 365.25,
    "h": 8766.0,
    "min": 525_960.0,
}
_SPELT = {
    **dict.fromkeys(
        ("y", "yr", "yrs", "year", "years", "yo", "jahr", "jahre", "ans", "anni", "años", "jaar"), "a"
    ),
    **dict.fromkeys(("month", "months", "mos", "monate", "mois", "mesi", "meses"), "mo"),
    **dict.fromkeys(("week", "weeks", "wks"), "wk"),
    **dict.fromkeys(("day", "days"), "d"),
}
_UCUM = "http://unitsofmeasure.org"
_REMEMBERED = 65_536


class Codes(dict[Any, dict[str, Any] | None]):
    """Remembers the concept that stays for a pair of system and code; nothing stays for an unknown pair.

    A study's own codes count as known. A concept is made once and shared by all records that hold it.

    >>> Codes()["http://loinc.org", "8310-5"]
    {'coding': [{'system': 'http://loinc.org', 'code': '8310-5'}]}
    >>> Codes(frozenset({("urn:x", "7")})).knows("urn:x", "7"), Codes().knows("urn:x", "7")
    (True, False)
    """

    def __init__(self, named: frozenset[tuple[str, str]] = frozenset()) -> None:
        super().__init__()
        self._named = named
        # Most codes have one system only: asking for the code alone saves a pair and its hash.
        self.by_code: dict[str, tuple[str, dict[str, Any]]] = {}

    def __missing__(self, pair: tuple[Any, Any]) -> dict[str, Any] | None:
        """Look a pair up for the first time."""
        system, code = pair
        text = system.__class__ is str and code.__class__ is str
        known = text and (is_known(system, code) or pair in self._named)
        made = {"coding": [{"system": system, "code": code}]} if known else None
        if len(self) < _REMEMBERED:
            self[pair] = made
            if made is not None:
                self.by_code.setdefault(code, (system, made))
        return made

    def knows(self, system: Any, code: Any) -> bool:
        """Whether a code may stay, whatever stands in the place of it."""
        try:
            return self[system, code] is not None
        except TypeError:  # a list or an object where a text belongs
            return False


def terminology(_: Settings, node: Node) -> Handler:
    """Keep a code of a public terminology, and nothing beside it."""
    if node.type == "Coding":
        return _coding(node)
    listed = binding(node.parent, node.name)
    if node.type == "code" or listed is not None:
        return _code(node, listed)
    raise SettingsError(
        f"the method 'terminology' cannot be used on {node.path}: it is not coded", remedy="correct the rule"
    )


def _coding(node: Node) -> Handler:
    beside = Beside(node, ("system", "code"), "text beside a code")
    display = beside.of(("display",))

    def run(value: Any, scope: Scope) -> Any:
        if value.__class__ is not dict:
            return scope.drop(node, "malformed")
        system, code = value.get("system"), value.get("code")
        if len(value) > 2:
            usual = len(value) == 3 and "display" in value
            scope.seen(display if usual else beside.of(tuple(value)))
        try:
            if scope.codes[system, code]:
                return {"system": system, "code": code}
        except TypeError:  # a list or an object where a text belongs
            pass
        return scope.drop(node, "code of no public terminology")

    return run


_CONCEPT = """\
try:
    (one,) = v["coding"]
    system, made = by_code[one["code"]]
    if system != one["system"]:
        made = None
except (KeyError, TypeError, ValueError):
    made = None
if made is None:
    made = $slow(v, scope)
elif len(one) == 3 and "display" in one:
    if len(v) == 2 and "text" in v:
        seen($both)
    elif len(v) == 1:
        seen($display)
    else:
        made = $slow(v, scope)
elif len(one) != 2 or len(v) != 1:
    made = $slow(v, scope)"""


def concept(node: Node, general: Handler) -> Handler:
    """A CodeableConcept with one known code, in one step; anything else goes the general way."""
    text = (f"{node.path}.text", "no rule")
    display = (f"{node.path}.coding.display", "text beside a code")
    beside = {(2, 3): Dropped((text, display)), (2, 2): Dropped((text,)), (1, 3): Dropped((display,))}

    def run(value: Any, scope: Scope) -> Any:
        try:
            (only,) = value["coding"]
            made = scope.codes[only["system"], only["code"]]
        except (KeyError, TypeError, ValueError):
            return general(value, scope)
        size, inner = len(value), len(only)
        if made is None or inner > 3 or (inner == 3 and "display" not in only):
            return general(value, scope)
        if size > 2 or (size == 2 and "text" not in value):
            return general(value, scope)
        if size + inner > 3:
            scope.seen(beside[size, inner])
        return made

    return usual(run, _CONCEPT, both=beside[2, 3], display=beside[1, 3])


def _code(node: Node, known: Callable[[str], bool] | None) -> Handler:
    if known is None:
        return lambda v, scope: scope.drop(node, "code without a list")

    def run(value: Any, scope: Scope) -> Any:
        if value.__class__ is str and known(value):
            return value
        return scope.drop(node, "code not on its list")

    return usual(run, "made = v if v.__class__ is str and $known(v) else $slow(v, scope)", known=known)


_MEASURE = """\
made = None
try:
    number, code, system = v["value"], v["code"], v["system"]
    if (
        len(v) == 4
        and v["unit"] is not None
        and (number.__class__ is float or number.__class__ is int)
        and (number <= $cap or code != "a")
        and by_code[code][0] == system == $ucum
    ):
        made = {"value": number, "system": system, "code": code}
        seen($unit)
except (KeyError, TypeError):
    pass
if made is None:
    made = $slow(v, scope)"""


def measure(settings: Settings, node: Node) -> Handler:
    """Keep a measured number with a unit of UCUM; ages over the cap become one class."""
    if node.type not in ("Quantity", "Age", "Count", "Distance", "Duration"):
        raise SettingsError(
            f"the method 'measure' cannot be used on {node.path}: it is no quantity",
            remedy="correct the rule",
        )
    cap = int(settings.get("cap", "0"))
    most = 10.0 ** int(settings.get("digits", "300"))
    is_age = node.type == "Age"
    beside = Beside(node, ("value", "comparator", "system", "code"), "text beside a number")
    unit_only = beside.of(("unit",))

    def run(value: Any, scope: Scope) -> Any:
        if value.__class__ is not dict:
            return scope.drop(node, "malformed")
        number, system, code = value.get("value"), value.get("system"), value.get("code")
        made: dict[str, Any] = {}
        if number.__class__ is int or number.__class__ is float:
            made["value"] = number
        unit = value.get("unit")
        if code is not None and scope.codes.knows(system, code):
            made["system"], made["code"] = system, code
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
                return _masked(value["extension"])
        measured = made.get("system") == _UCUM or "unit" in made
        if not measured and not -most < made.get("value", 0) < most:
            return scope.drop(node, "number too long")
        if cap and made.get("value", 0) > cap:
            told = made.get("code") or made.get("unit")
            made["value"] = _capped(made["value"], cap, told, is_age=is_age)
        if made:
            return made
        return scope.drop(node, "empty")

    if is_age:
        return run
    return usual(run, _MEASURE, unit=unit_only, cap=cap or math.inf, ucum=_UCUM)


def _put_unit(made: dict[str, Any], unit: str) -> None:
    """Keep a unit that is written out: as it is if it is one of UCUM, as its code if it is a time in plain words."""
    time = _SPELT.get(unit.strip().casefold())
    if is_unit(unit):
        made["unit"] = unit
    elif time is not None:
        made["system"], made["code"] = _UCUM, time


def _capped(number: float, cap: int, unit: str | None, *, is_age: bool) -> float:
    """A number, unless it is an age over the cap: those become one class, in the unit they were told in."""
    each = _PER_YEAR.get(unit or "", 1.0 if is_age else 0.0)
    if not is_age and each != 1.0:  # 500 days may be anything, 95 years are taken for an age
        return number
    return number if number <= cap * each else math.ceil((cap + 1) * each)


def _masked(extensions: Any) -> Any:
    return {"extension": masked()} if extensions == masked() else None


def absent_reason(extension: Any) -> Any:
    """The extension that says why a value is missing, if that is all it is."""
    if extension.__class__ is not dict or len(extension) != 2 or extension.get("url") != MASKED_URL:
        return None
    code = extension.get("valueCode")
    return (
        {"url": MASKED_URL, "valueCode": code} if code.__class__ is str and is_known(ABSENT, code) else None
    )
