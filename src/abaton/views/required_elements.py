"""Which elements of a resource a view reads, told from its definition alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from abaton.errors import SettingsError
from abaton.fhir.bundles import SUBJECTS
from abaton.fhir.elements import children, resources, table
from abaton.fhirpath.functions import LAMBDAS
from abaton.fhirpath.parser import (
    Call,
    Index,
    Literal,
    Member,
    Negative,
    Node,
    Operation,
    This,
    Variable,
    read,
)

_ABOUT = "whom it is about"
_WHOLE = ("resource", "context", "rootResource")
_SAME = frozenset({"where", "ofType", "first", "last", "single"})


def elements(definition: Mapping[str, Any]) -> frozenset[str]:
    """The elements of the resource itself that the paths of a view begin with.

    >>> path = "code.coding.where(system = 'a' and code = %resource.status).exists()"
    >>> column = {"name": "x", "path": "value.ofType(Quantity).value"}
    >>> sorted(elements({"where": [{"path": path}], "select": [{"column": [column]}]}))
    ['code', 'status', 'value']
    """
    found: set[str] = set()
    for condition in definition.get("where", ()):
        found |= _reads(read(condition["path"]), root=True)
    for select in definition.get("select", ()):
        found |= _select(select, root=True)
    if _ABOUT in found:
        has = table().get(definition.get("resource", ""), {})
        found = found - {_ABOUT} | {name for name in SUBJECTS if name in has}
    return frozenset(found)


def check_elements(definition: Mapping[str, Any]) -> None:
    """Refuse a view of a resource, or with a path to an element, that R4 does not have: it would always be empty.

    Raises:
        SettingsError: With the nearest name that there is.
    """
    resource = str(definition.get("resource"))
    if resource not in resources():
        raise SettingsError(
            f"R4 has no resource type '{resource}'", where="resource", remedy=_nearest(resource, resources())
        )
    fields = table()[resource]
    for name in sorted(elements(definition)):
        if not children(fields, name) and name != "resourceType":
            raise SettingsError(
                f"{resource} has no element '{name}'",
                where="select",
                remedy=_nearest(name, {element.stem for element in fields.values()}),
            )


def _nearest(name: str, known: Collection[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else "see the definitions of FHIR R4"


def _select(select: Mapping[str, Any], *, root: bool) -> set[str]:
    found: set[str] = set()
    paths = [select[key] for key in ("forEach", "forEachOrNull") if key in select] + list(
        select.get("repeat", ())
    )
    inner = root
    for path in paths:
        node = read(path)
        found |= _reads(node, root=root)
        inner = root and _is_root(node, root=root)
    for column in select.get("column", ()):
        found |= _reads(read(column["path"]), root=inner)
    for part in (*select.get("select", ()), *select.get("unionAll", ())):
        found |= _select(part, root=inner)
    return found


def _is_root(node: Node | None, *, root: bool) -> bool:
    """Whether an expression is the resource itself."""
    match node:
        case None | This():
            return root
        case Variable(name):
            return name in _WHOLE
        case Member(target, name):
            return root and target is None and name[0].isupper()
        case Call(target, name):
            return name in _SAME and _is_root(target, root=root)
        case Index(target, _):
            return _is_root(target, root=root)
    return False


def _reads(node: Node | None, *, root: bool) -> set[str]:
    match node:
        case None | This() | Literal() | Variable():
            return set()
        case Member(target, name):
            if target is None and name[0].isupper():
                return set()
            return {name} if _is_root(target, root=root) else _reads(target, root=root)
        case Call(target, name, arguments):
            found = _reads(target, root=root)
            if name == "extension" and _is_root(target, root=root):
                found.add("extension")
            if name == "getReferenceKey" and _is_root(target, root=root):
                found.add(_ABOUT)
            if name in ("ofType", "getReferenceKey"):
                return found  # their argument is the name of a type
            inner = _is_root(target, root=root) if name in LAMBDAS else root
            return found.union(*(_reads(argument, root=inner) for argument in arguments))
        case Index(target, at):
            return _reads(target, root=root) | _reads(at, root=root)
        case Negative(operand):
            return _reads(operand, root=root)
        case Operation(sign, left, right):
            found = _reads(left, root=root)
            return found if sign in ("is", "as") else found | _reads(right, root=root)
    return set()
