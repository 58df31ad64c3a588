"""Elements of a resource that a view reads, derived from its definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from abaton.errors import SettingsError, did_you_mean
from abaton.fhir.bundles import SUBJECT_ELEMENTS
from abaton.fhir.elements import child_elements, element_table, resource_types
from abaton.fhirpath.functions import LAMBDAS
from abaton.fhirpath.parser import (
    CallNode,
    IndexNode,
    LiteralNode,
    MemberNode,
    NegationNode,
    Node,
    OperationNode,
    ThisNode,
    VariableNode,
    parse_expression,
)

_SUBJECT = "subject of the resource"
_ROOT_VARIABLES = ("resource", "context", "rootResource")
_IDENTITY_FUNCTIONS = frozenset({"where", "ofType", "first", "last", "single"})


def elements_read_by(definition: Mapping[str, Any]) -> frozenset[str]:
    """Return the required elements of a view: the top-level elements of the resource that its paths read.

    >>> path = "code.coding.where(system = 'a' and code = %resource.status).exists()"
    >>> column = {"name": "x", "path": "value.ofType(Quantity).value"}
    >>> sorted(elements_read_by({"where": [{"path": path}], "select": [{"column": [column]}]}))
    ['code', 'status', 'value']
    """
    elements: set[str] = set()
    for condition in definition.get("where", ()):
        elements |= _elements_of(parse_expression(condition["path"]), root=True)
    for select in definition.get("select", ()):
        elements |= _select(select, root=True)
    if _SUBJECT in elements:
        known = element_table().get(definition.get("resource", ""), {})
        elements = elements - {_SUBJECT} | {name for name in SUBJECT_ELEMENTS if name in known}
    return frozenset(elements)


def check_elements(definition: Mapping[str, Any]) -> None:
    """Refuse a view that requires a resource type or element that R4 does not have.

    Raises:
        SettingsError: With the closest name.
    """
    resource = str(definition.get("resource"))
    if resource not in resource_types():
        raise SettingsError(
            "this is not an R4 resource type",
            where="resource",
            remedy=did_you_mean(resource, resource_types(), "see the definitions of FHIR R4"),
        )
    fields = element_table()[resource]
    for name in sorted(elements_read_by(definition)):
        if not child_elements(fields, name) and name != "resourceType":
            raise SettingsError(
                f"an element that a path reads is not in {resource}",
                where="select",
                remedy=did_you_mean(
                    name, {element.stem for element in fields.values()}, "see the definitions of FHIR R4"
                ),
            )


def _select(select: Mapping[str, Any], *, root: bool) -> set[str]:
    elements: set[str] = set()
    paths = [select[key] for key in ("forEach", "forEachOrNull") if key in select] + list(
        select.get("repeat", ())
    )
    inner = root
    for path in paths:
        node = parse_expression(path)
        elements |= _elements_of(node, root=root)
        inner = root and _is_root(node, root=root)
    for column in select.get("column", ()):
        elements |= _elements_of(parse_expression(column["path"]), root=inner)
    for part in (*select.get("select", ()), *select.get("unionAll", ())):
        elements |= _select(part, root=inner)
    return elements


def _is_root(node: Node | None, *, root: bool) -> bool:
    """Return whether a path expression of a view is the resource itself rather than one of its elements."""
    match node:
        case None | ThisNode():
            return root
        case VariableNode(name):
            return name in _ROOT_VARIABLES
        case MemberNode(target, name):
            return root and target is None and name[0].isupper()
        case CallNode(target, name):
            return name in _IDENTITY_FUNCTIONS and _is_root(target, root=root)
        case IndexNode(target, _):
            return _is_root(target, root=root)
    return False


def _elements_of(node: Node | None, *, root: bool) -> set[str]:
    match node:
        case None | ThisNode() | LiteralNode() | VariableNode():
            return set()
        case MemberNode(target, name):
            if target is None and name[0].isupper():
                return set()
            return {name} if _is_root(target, root=root) else _elements_of(target, root=root)
        case CallNode(target, name, arguments):
            elements = _elements_of(target, root=root)
            if name == "extension" and _is_root(target, root=root):
                elements.add("extension")
            if name == "getReferenceKey" and _is_root(target, root=root):
                elements.add(_SUBJECT)
            if name in ("ofType", "getReferenceKey"):
                return elements  # the argument is the name of a type
            inner = _is_root(target, root=root) if name in LAMBDAS else root
            return elements.union(*(_elements_of(argument, root=inner) for argument in arguments))
        case IndexNode(target, at):
            return _elements_of(target, root=root) | _elements_of(at, root=root)
        case NegationNode(operand):
            return _elements_of(operand, root=root)
        case OperationNode(sign, left, right):
            elements = _elements_of(left, root=root)
            return elements if sign in ("is", "as") else elements | _elements_of(right, root=root)
    return set()
