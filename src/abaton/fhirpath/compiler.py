"""FHIRPath expressions, compiled once into closures from a collection to a collection.

Invariants:
(1) a compiled path never changes what it is given;
(2) what views do not have (an unknown function, an undefined constant) is refused here, before any record;
(3) no error holds a record's content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from abaton.fhir.elements import table
from abaton.fhirpath.functions import FUNCTIONS, LAMBDAS, boundary, reference_key, type_test
from abaton.fhirpath.operators import OPERATORS, Items
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
    refuse,
)


@dataclass(slots=True)
class Scope:
    """What an expression may see besides its focus: the row's number and the whole resource."""

    row: int = 0
    resource: Any = None


Path = Callable[[Items, Scope], Items]

_TEMPORAL = {"date", "dateTime", "instant", "time"}


def compile_path(text: str, constants: Mapping[str, object], *, kind: str = "") -> Path:
    """Compile an expression.

    Args:
        text: The FHIRPath.
        constants: The view's constants.
        kind: The declared type of the column, which tells a date from a dateTime where the path does not.

    Returns:
        The closure.

    >>> compile_path("name.family.first()", {})([{"name": [{"family": "F1"}, {"family": "F2"}]}], Scope())
    ['F1']
    """
    return _Compiler(text, constants, kind).node(read(text))


@cache
def choices() -> dict[str, tuple[tuple[str, str], ...]]:
    """Every choice element of R4 without its type, with the names it may have and the type each means."""
    made: dict[str, dict[str, str]] = {}
    for fields in table().values():
        for element in fields.values():
            if element.choice:
                made.setdefault(element.stem, {})[element.name] = element.type
    return {stem: tuple(names.items()) for stem, names in made.items()}


@cache
def temporal() -> dict[str, str]:
    """Every element that is of one temporal type wherever R4 has it: ``birthDate`` a date, ``end`` a dateTime."""
    made: dict[str, set[str]] = {}
    for fields in table().values():
        for element in fields.values():
            if element.type in _TEMPORAL:
                # An instant is a dateTime that is always whole: for boundaries the two are one type.
                kind = "dateTime" if element.type == "instant" else element.type
                made.setdefault(element.name, set()).add(kind)
    return {name: types.pop() for name, types in made.items() if len(types) == 1}


class _Compiler:
    def __init__(self, text: str, constants: Mapping[str, object], kind: str) -> None:
        self.text, self.constants, self.kind = text, constants, kind

    def node(self, node: Node | None) -> Path:
        match node:
            case None | This():
                return lambda focus, scope: focus
            case Literal(values):
                fixed = list(values)
                return lambda focus, scope: fixed
            case Member():
                return self.member(node)
            case Call():
                return self.call(node)
            case Index(target, at):
                return self.index(self.node(target), self.node(at))
            case Variable(name):
                return self.variable(name)
            case Negative(operand):
                inner = self.node(operand)
                minus = OPERATORS["-"]
                return lambda focus, scope: minus([0], inner(focus, scope))
            case Operation(sign, left, right):
                return self.operation(sign, left, right)

    def member(self, node: Member) -> Path:
        name = node.name
        if node.target is None and name[0].isupper():
            test = type_test(name)
            return lambda focus, scope: [item for item in focus if test(item)]
        pick = _picker(name)
        if node.target is None:
            return lambda focus, scope: pick(focus)
        target = self.node(node.target)
        return lambda focus, scope: pick(target(focus, scope))

    def index(self, target: Path, at: Path) -> Path:
        text = self.text

        def run(focus: Items, scope: Scope) -> Items:
            place = at(focus, scope)
            if len(place) != 1 or not isinstance(place[0], int):
                refuse(text, "an index is not one whole number")
            return target(focus, scope)[place[0] : place[0] + 1] if place[0] >= 0 else []

        return run

    def variable(self, name: str) -> Path:
        if name == "rowIndex":
            return lambda focus, scope: [scope.row]
        if name in ("resource", "context", "rootResource"):
            return lambda focus, scope: [scope.resource]
        if name not in self.constants:
            refuse(self.text, f"the constant '%{name}' is not defined")
        fixed = [self.constants[name]]
        return lambda focus, scope: fixed

    def operation(self, sign: str, left: Node, right: Node) -> Path:
        first = self.node(left)
        if sign in ("is", "as"):
            those = self.of_type(left, self.type_name(right))
            if sign == "is":
                return lambda focus, scope: [bool(those(focus, scope))] if first(focus, scope) else []
            return those
        compute, second = OPERATORS[sign], self.node(right)
        return lambda focus, scope: compute(first(focus, scope), second(focus, scope))

    def call(self, node: Call) -> Path:
        name, arguments = node.name, node.arguments
        if name == "ofType":
            return self.of_type(node.target, self.type_name(self.only(node)))
        if name == "extension":
            return self.extension(node)
        if name in ("lowBoundary", "highBoundary"):
            return self.boundary(node)
        target = self.node(node.target)
        if name == "getReferenceKey":
            kind = self.type_name(self.only(node)) if arguments else ""
            return lambda focus, scope: reference_key(target(focus, scope), kind)
        if name == "where" and len(arguments) == 1 and (same_text := _same_text(arguments[0])):
            key, wanted = same_text
            return lambda focus, scope: [item for item in target(focus, scope) if _has(item, key, wanted)]
        if name in LAMBDAS and len(arguments) == 1:
            apply, inner = LAMBDAS[name], self.node(arguments[0])
            return lambda focus, scope: apply(target(focus, scope), lambda item: inner([item], scope))
        function = FUNCTIONS.get((name, len(arguments)))
        if function is None:
            known = sorted({known for known, _ in FUNCTIONS} | set(LAMBDAS))
            refuse(
                self.text, f"there is no function {name}() with {len(arguments)} arguments; known are {known}"
            )
        compiled = [self.node(argument) for argument in arguments]
        if not compiled:
            return lambda focus, scope: function(target(focus, scope))
        return lambda focus, scope: function(target(focus, scope), *(one(focus, scope) for one in compiled))

    def only(self, node: Call) -> Node:
        if len(node.arguments) != 1:
            refuse(self.text, f"{node.name}() takes one argument")
        return node.arguments[0]

    def type_name(self, node: Node) -> str:
        if isinstance(node, Member) and (node.target is None or isinstance(node.target, Member)):
            return node.name
        refuse(self.text, "a type's name is expected")

    def of_type(self, target: Node | None, kind: str) -> Path:
        """Only what is of a type; a choice element says its type in its name."""
        if isinstance(target, Member) and target.name in choices():
            key = target.name + kind[0].upper() + kind[1:]
            before = self.node(target.target)
            return lambda focus, scope: _plain(before(focus, scope), key)
        test, inner = type_test(kind), self.node(target)
        return lambda focus, scope: [item for item in inner(focus, scope) if test(item)]

    def extension(self, node: Call) -> Path:
        """Extensions by their name; those of a plain value stand beside it, under ``_name``."""
        name = self.node(self.only(node))
        target = node.target
        found = self.with_shadow(target) if isinstance(target, Member) else self.node(target)

        def run(focus: Items, scope: Scope) -> Items:
            wanted = name(focus, scope)
            held = _plain(found(focus, scope), "extension")
            return [item for item in held if item.__class__ is dict and [item.get("url")] == wanted]

        return run

    def with_shadow(self, node: Member) -> Path:
        before, pick, shadow = self.node(node.target), _picker(node.name), f"_{node.name}"

        def run(focus: Items, scope: Scope) -> Items:
            holders = before(focus, scope)
            return [*pick(holders), *_plain(holders, shadow)]

        return run

    def boundary(self, node: Call) -> Path:
        target = node.target
        kind = self.kind if self.kind in _TEMPORAL else ""
        if isinstance(target, Call) and target.name == "ofType" and len(target.arguments) == 1:
            kind = self.type_name(target.arguments[0])
        elif isinstance(target, Member):
            kind = temporal().get(target.name, kind)
        kind = kind[:1].lower() + kind[1:]
        high, inner = node.name == "highBoundary", self.node(target)

        def run(focus: Items, scope: Scope) -> Items:
            found = [boundary(item, kind, high=high) for item in inner(focus, scope)]
            return [item for item in found if item is not None]

        return run


def _same_text(node: Node) -> tuple[str, str] | None:
    """The element and the text of ``element = 'text'``, by far the most frequent condition."""
    match node:
        case Operation("=", Member(None, name), Literal((text,))) if (
            name[0].islower() and name not in choices()
        ):
            return (name, text) if text.__class__ is str else None
    return None


def _has(item: Any, key: str, wanted: str) -> bool:
    if item.__class__ is not dict:
        return False
    value = item.get(key)
    return bool(value == wanted) or (value.__class__ is list and value == [wanted])


def _plain(items: Items, key: str) -> Items:
    """The values under a key of every object."""
    made: Items = []
    for item in items:
        if item.__class__ is dict:
            value = item.get(key)
            if value.__class__ is list:
                made += [each for each in value if each is not None]
            elif value is not None:
                made.append(value)
    return made


def _picker(name: str) -> Callable[[Items], Items]:
    """The step to an element; without a type, a choice element is whichever of its names is there."""
    names = choices().get(name)
    if names is None:
        return lambda items: _plain(items, name)
    keys = tuple(key for key, _ in names)

    def pick(items: Items) -> Items:
        made: Items = []
        for item in items:
            if item.__class__ is dict:
                value = item.get(name)
                if value is None:
                    value = next((item[key] for key in keys if key in item), None)
                if value.__class__ is list:
                    made += [each for each in value if each is not None]
                elif value is not None:
                    made.append(value)
        return made

    return pick
