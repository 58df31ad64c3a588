"""Coded values and measures: only what can be nothing else than a code or a unit stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from abaton.errors import SettingsError
from abaton.records.scope import MASKED_URL, Handler, Node, Scope, masked
from abaton.records.ucum import is_unit
from abaton.records.vocabulary import ABSENT, binding, is_known

if TYPE_CHECKING:
    from abaton.records.methods import Settings

_COMPARATORS = frozenset({"<", "<=", ">=", ">"})
_YEARS = frozenset({"a", "years", "year", "yr", "y"})
_REMEMBERED = 65_536


class Codes:
    """Remembers which codes are known; a study's own codes count as known."""

    def __init__(self, named: frozenset[tuple[str, str]] = frozenset()) -> None:
        self._named = named
        self._known: dict[Any, bool] = {}

    def __call__(self, system: Any, code: Any) -> bool:
        """Whether a code may stay."""
        try:
            found = self._known.get((system, code))
        except TypeError:  # a list or an object where a text belongs
            return False
        return self._look_up(system, code) if found is None else found

    def _look_up(self, system: Any, code: Any) -> bool:
        text = system.__class__ is str and code.__class__ is str
        known = text and (is_known(system, code) or (system, code) in self._named)
        if len(self._known) < _REMEMBERED:
            self._known[system, code] = known
        return known


def terminology(_: Settings, node: Node) -> Handler:
    """Keep a code of a public terminology, and nothing beside it."""
    if node.type == "Coding":
        return _coding(node)
    if node.type == "code":
        return _code(node, binding(node.parent, node.name))
    raise SettingsError(
        f"the method 'terminology' cannot be used on {node.path}: it is not coded", remedy="correct the rule"
    )


def _coding(node: Node) -> Handler:
    def run(value: Any, scope: Scope) -> Any:
        if value.__class__ is not dict:
            return scope.drop(node, "malformed")
        system, code = value.get("system"), value.get("code")
        if len(value) > 2:
            scope.seen[node, "coding", tuple(value)] += 1
        if scope.document.codes(system, code):
            return {"system": system, "code": code}
        return scope.drop(node, "code of no public terminology")

    return run


def _code(node: Node, known: Callable[[str], bool] | None) -> Handler:
    if known is None:
        return lambda v, scope: scope.drop(node, "code without a list")

    def run(value: Any, scope: Scope) -> Any:
        if value.__class__ is str and known(value):
            return value
        return scope.drop(node, "code not on its list")

    return run


def measure(settings: Settings, node: Node) -> Handler:
    """Keep a measured number with a unit of UCUM; ages over the cap become one class."""
    if node.type not in ("Quantity", "Age", "Count", "Distance", "Duration"):
        raise SettingsError(
            f"the method 'measure' cannot be used on {node.path}: it is no quantity",
            remedy="correct the rule",
        )
    cap = int(settings.get("cap", "0"))
    is_age = node.type == "Age"

    def run(value: Any, scope: Scope) -> Any:
        if value.__class__ is not dict:
            return scope.drop(node, "malformed")
        made: dict[str, Any] = {}
        number, system, code = value.get("value"), value.get("system"), value.get("code")
        if number.__class__ is int or number.__class__ is float:
            made["value"] = number
        comparator = value.get("comparator")
        if comparator is not None and comparator.__class__ is str and comparator in _COMPARATORS:
            made["comparator"] = comparator
        unit = value.get("unit")
        if scope.document.codes(system, code):
            made["system"], made["code"] = system, code
        elif unit.__class__ is str and is_unit(unit):
            made["unit"] = unit
        if len(value) != len(made):
            scope.seen[node, "measure", tuple(value)] += 1
            if "extension" in value and not made:
                return _masked(value["extension"])
        if cap and made.get("value", 0) > cap and (is_age or code in _YEARS or unit in _YEARS):
            made["value"] = cap + 1
        if made:
            return made
        return scope.drop(node, "empty")

    return run


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
