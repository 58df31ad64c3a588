"""FHIRPath expressions compiled to closures from a collection to a collection.

Invariants:
(1) a compiled path does not change its input;
(2) unknown functions and undefined constants are refused at compilation;
(3) errors contain no content of records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from abaton.fhir.elements import element_table
from abaton.fhirpath.functions import FUNCTIONS, LAMBDAS, compute_boundary, reference_key, type_predicate
from abaton.fhirpath.operators import OPERATORS, Items
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
    refuse_expression,
)


@dataclass(slots=True)
class EvaluationScope:
    """Environment of an evaluation: row index and resource."""

    row: int = 0
    resource: Any = None


Path = Callable[[Items, EvaluationScope], Items]

_TEMPORAL = {"date", "dateTime", "instant", "time"}


def compile_path(text: str, constants: Mapping[str, object], *, fhir_type: str = "") -> Path:
    """Compile a FHIRPath expression to a closure.

    Args:
        text: The FHIRPath expression.
        constants: Constants of the view.
        fhir_type: Declared type of the column, which distinguishes date and dateTime where the path does not.

    Returns:
        The closure.

    >>> compile_path("name.family.first()", {})([{"name": [{"family": "F1"}, {"family": "F2"}]}], EvaluationScope())
    ['F1']
    """
    return _Compiler(constants, fhir_type).node(parse_expression(text))


@cache
def choice_elements() -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the R4 choice elements that the FHIRPath compiler resolves, by stem, with names and types."""
    types_by_path: dict[str, dict[str, str]] = {}
    for fields in element_table().values():
        for element in fields.values():
            if element.is_choice:
                types_by_path.setdefault(element.stem, {})[element.name] = element.type
    return {stem: tuple(names.items()) for stem, names in types_by_path.items()}


@cache
def temporal_elements() -> dict[str, str]:
    """Return the elements to which the FHIRPath compiler gives a date type by name, such as ``birthDate``."""
    names_by_type: dict[str, set[str]] = {}
    for fields in element_table().values():
        for element in fields.values():
            if element.type in _TEMPORAL:
                # An instant is a complete dateTime; for boundaries they are the same type.
                fhir_type = "dateTime" if element.type == "instant" else element.type
                names_by_type.setdefault(element.name, set()).add(fhir_type)
    return {name: types.pop() for name, types in names_by_type.items() if len(types) == 1}


class _Compiler:
    def __init__(self, constants: Mapping[str, object], fhir_type: str) -> None:
        self.constants, self.fhir_type = constants, fhir_type

    def node(self, node: Node | None) -> Path:
        match node:
            case None | ThisNode():
                return lambda focus, scope: focus
            case LiteralNode(values):
                constant = list(values)
                return lambda focus, scope: constant
            case MemberNode():
                return self.member(node)
            case CallNode():
                return self.call(node)
            case IndexNode(target, at):
                return self.index(self.node(target), self.node(at))
            case VariableNode(name):
                return self.variable(name)
            case NegationNode(operand):
                inner = self.node(operand)
                minus = OPERATORS["-"]
                return lambda focus, scope: minus([0], inner(focus, scope))
            case OperationNode(operator, left, right):
                return self.operation(operator, left, right)

    def member(self, node: MemberNode) -> Path:
        name = node.name
        if node.target is None and name[0].isupper():
            test = type_predicate(name)
            return lambda focus, scope: [item for item in focus if test(item)]
        select = _member_selector(name)
        if node.target is None:
            return lambda focus, scope: select(focus)
        target = self.node(node.target)
        return lambda focus, scope: select(target(focus, scope))

    def index(self, target: Path, at: Path) -> Path:
        def run(focus: Items, scope: EvaluationScope) -> Items:
            position = at(focus, scope)
            if len(position) != 1 or not isinstance(position[0], int):
                refuse_expression("an index is not a single integer")
            return target(focus, scope)[position[0] : position[0] + 1] if position[0] >= 0 else []

        return run

    def variable(self, name: str) -> Path:
        if name == "rowIndex":
            return lambda focus, scope: [scope.row]
        if name in ("resource", "context", "rootResource"):
            return lambda focus, scope: [scope.resource]
        if name not in self.constants:
            refuse_expression("a constant is not defined")
        constant = [self.constants[name]]
        return lambda focus, scope: constant

    def operation(self, operator: str, left: Node, right: Node) -> Path:
        first = self.node(left)
        if operator in ("is", "as"):
            matching = self.of_type(left, self.type_name(right))
            if operator == "is":
                return lambda focus, scope: [bool(matching(focus, scope))] if first(focus, scope) else []
            return matching
        compute, second = OPERATORS[operator], self.node(right)
        return lambda focus, scope: compute(first(focus, scope), second(focus, scope))

    def call(self, node: CallNode) -> Path:
        name, arguments = node.name, node.arguments
        if name == "ofType":
            return self.of_type(node.target, self.type_name(self.only_argument(node)))
        if name == "extension":
            return self.extension(node)
        if name in ("lowBoundary", "highBoundary"):
            return self.boundary(node)
        target = self.node(node.target)
        if name == "getReferenceKey":
            fhir_type = self.type_name(self.only_argument(node)) if arguments else ""
            return lambda focus, scope: reference_key(target(focus, scope), fhir_type)
        if name == "where" and len(arguments) == 1 and (text_equality := _text_equality(arguments[0])):
            key, expected = text_equality
            return lambda focus, scope: [item for item in target(focus, scope) if _has(item, key, expected)]
        if name in LAMBDAS and len(arguments) == 1:
            apply, inner = LAMBDAS[name], self.node(arguments[0])
            return lambda focus, scope: apply(target(focus, scope), lambda item: inner([item], scope))
        function = FUNCTIONS.get((name, len(arguments)))
        if function is None:
            known = sorted({known for known, _ in FUNCTIONS} | set(LAMBDAS))
            refuse_expression(
                f"a function with {len(arguments)} arguments is not known; known functions are {', '.join(known)}"
            )
        compiled = [self.node(argument) for argument in arguments]
        if not compiled:
            return lambda focus, scope: function(target(focus, scope))
        return lambda focus, scope: function(
            target(focus, scope), *(argument(focus, scope) for argument in compiled)
        )

    def only_argument(self, node: CallNode) -> Node:
        if len(node.arguments) != 1:
            refuse_expression(f"{node.name}() takes one argument")
        return node.arguments[0]

    def type_name(self, node: Node) -> str:
        if isinstance(node, MemberNode) and (node.target is None or isinstance(node.target, MemberNode)):
            return node.name
        refuse_expression("the name of a type is expected")

    def of_type(self, target: Node | None, fhir_type: str) -> Path:
        """Compile FHIRPath's ``ofType()``; the name of a choice element contains its type."""
        if isinstance(target, MemberNode) and target.name in choice_elements():
            key = target.name + fhir_type[0].upper() + fhir_type[1:]
            parent = self.node(target.target)
            return lambda focus, scope: _members(parent(focus, scope), key)
        test, inner = type_predicate(fhir_type), self.node(target)
        return lambda focus, scope: [item for item in inner(focus, scope) if test(item)]

    def extension(self, node: CallNode) -> Path:
        """Compile FHIRPath's ``extension(url)``; those of a primitive element are in its sibling ``_name``."""
        name = self.node(self.only_argument(node))
        target = node.target
        extended = (
            self.with_primitive_extensions(target) if isinstance(target, MemberNode) else self.node(target)
        )

        def run(focus: Items, scope: EvaluationScope) -> Items:
            expected = name(focus, scope)
            extensions = _members(extended(focus, scope), "extension")
            return [item for item in extensions if item.__class__ is dict and [item.get("url")] == expected]

        return run

    def with_primitive_extensions(self, node: MemberNode) -> Path:
        parent, select, sibling = self.node(node.target), _member_selector(node.name), f"_{node.name}"

        def run(focus: Items, scope: EvaluationScope) -> Items:
            parents = parent(focus, scope)
            return [*select(parents), *_members(parents, sibling)]

        return run

    def boundary(self, node: CallNode) -> Path:
        target = node.target
        fhir_type = self.fhir_type if self.fhir_type in _TEMPORAL else ""
        if isinstance(target, CallNode) and target.name == "ofType" and len(target.arguments) == 1:
            fhir_type = self.type_name(target.arguments[0])
        elif isinstance(target, MemberNode):
            fhir_type = temporal_elements().get(target.name, fhir_type)
        fhir_type = fhir_type[:1].lower() + fhir_type[1:]
        high, inner = node.name == "highBoundary", self.node(target)

        def run(focus: Items, scope: EvaluationScope) -> Items:
            boundaries = [compute_boundary(item, fhir_type, high=high) for item in inner(focus, scope)]
            return [item for item in boundaries if item is not None]

        return run


def _text_equality(node: Node) -> tuple[str, str] | None:
    """Return element and text of a condition to compile, ``element = 'text'``, the most frequent one."""
    match node:
        case OperationNode("=", MemberNode(None, name), LiteralNode((text,))) if (
            name[0].islower() and name not in choice_elements()
        ):
            return (name, text) if text.__class__ is str else None
    return None


def _has(item: Any, key: str, expected: str) -> bool:
    if item.__class__ is not dict:
        return False
    value = item.get(key)
    return bool(value == expected) or (value.__class__ is list and value == [expected])


def _members(items: Items, key: str) -> Items:
    """Return the values of a key in all objects, as a step of a compiled FHIRPath selects them."""
    members: Items = []
    for item in items:
        if item.__class__ is dict:
            value = item.get(key)
            if value.__class__ is list:
                members += [element for element in value if element is not None]
            elif value is not None:
                members.append(value)
    return members


def _member_selector(name: str) -> Callable[[Items], Items]:
    """Compile a FHIRPath step to the selector of an element; for a choice element, of any of its names."""
    names = choice_elements().get(name)
    if names is None:
        return lambda items: _members(items, name)
    keys = tuple(key for key, _ in names)

    def select(items: Items) -> Items:
        members: Items = []
        for item in items:
            if item.__class__ is dict:
                value = item.get(name)
                if value is None:
                    value = next((item[key] for key in keys if key in item), None)
                if value.__class__ is list:
                    members += [element for element in value if element is not None]
                elif value is not None:
                    members.append(value)
        return members

    return select
