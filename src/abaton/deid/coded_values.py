"""Coded values: only what can be nothing else than a code stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from abaton.deid.ages import TELLING, named_age
from abaton.deid.context import MASKED_URL, Beside, Dropped, Handler, Node, Scope
from abaton.errors import SettingsError
from abaton.fhir.terminology import ABSENT, binding, is_known

if TYPE_CHECKING:
    from abaton.deid.methods import Settings

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
        self.by_code: dict[str, tuple[str, dict[str, Any], bool]] = {}

    def __missing__(self, pair: tuple[Any, Any]) -> dict[str, Any] | None:
        """Look a pair up for the first time."""
        system, code = pair
        text = system.__class__ is str and code.__class__ is str
        known = text and (is_known(system, code) or pair in self._named)
        made = {"coding": [{"system": system, "code": code}]} if known else None
        if len(self) < _REMEMBERED:
            self[pair] = made
            if made is not None:
                self.by_code.setdefault(code, (system, made, code in TELLING))
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
                if code in TELLING:
                    scope.tells = True
                return {"system": system, "code": code}
        except TypeError:  # a list or an object where a text belongs
            pass
        return scope.drop(node, "code of no public terminology")

    return run


def concept(node: Node, general: Handler) -> Handler:
    """A CodeableConcept with one known code, in one step; anything else goes the general way."""
    text = (f"{node.path}.text", "no rule")
    display = (f"{node.path}.coding.display", "text beside a code")
    # By the sizes of the concept and of its code: what is dropped beside them.
    beside = {
        (1, 2): None,
        (1, 3): Dropped((display,)),
        (2, 2): Dropped((text,)),
        (2, 3): Dropped((text, display)),
    }
    sizes = {8 * outer + inner: dropped for (outer, inner), dropped in beside.items()}
    observed = node.path.endswith(("Observation.code", "Observation.component.code"))
    quiet: set[Any] = set()  # words that say nothing of an age: the same ones stand beside most codes

    def other(value: Any, scope: Scope) -> Any:
        if observed and named_age(value):
            scope.tells = True
        return general(value, scope)

    def run(value: Any, scope: Scope) -> Any:
        try:
            (only,) = value["coding"]
            outer, inner = len(value), len(only)
            dropped = sizes[8 * outer + inner]
            system, known, tells = scope.by_code[only["code"]]
            made = known if only["system"] == system else scope.codes[only["system"], only["code"]]
            if observed and (
                (outer == 2 and value["text"] not in quiet) or (inner == 3 and only["display"] not in quiet)
            ):
                if named_age(value):
                    scope.tells = True
                elif len(quiet) < _REMEMBERED:
                    quiet.update((value.get("text"), only.get("display")))
        except (KeyError, TypeError, ValueError):
            return other(value, scope)
        if tells:
            scope.tells = True
        if made is None:
            return other(value, scope)
        if dropped is not None:
            if (outer == 2 and "text" not in value) or (inner == 3 and "display" not in only):
                return other(value, scope)
            scope.seen(dropped)
        return made

    return run


def _code(node: Node, known: Callable[[str], bool] | None) -> Handler:
    if known is None:
        return lambda v, scope: scope.drop(node, "code without a list")

    def run(value: Any, scope: Scope) -> Any:
        if value.__class__ is str and known(value):
            return value
        return scope.drop(node, "code not on its list")

    return run


def absent_reason(extension: Any) -> Any:
    """The extension that says why a value is missing, if that is all it is."""
    if extension.__class__ is not dict or len(extension) != 2 or extension.get("url") != MASKED_URL:
        return None
    code = extension.get("valueCode")
    return (
        {"url": MASKED_URL, "valueCode": code} if code.__class__ is str and is_known(ABSENT, code) else None
    )
