"""Rule tables: paths of elements and methods; the first matching rule applies.

A path is a subset of FHIRPath::

    Patient.birthDate                           an element of a resource type
    Observation.value                           every value[x]
    nodesByType('HumanName')                    every element of a type
    nodesByType('Coding').display               a child of these elements
    Patient.telecom.where(system='phone').value only where a sibling has a value

Other expressions and elements that are not in R4 are refused when the table is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from abaton.deid.settings import DeidentificationRule
from abaton.errors import SettingsError
from abaton.fhir.elements import child_elements, element_table, is_primitive, resource_types

_ROOT = re.compile(r"nodesByType\('([A-Za-z]\w*)'\)|([A-Z]\w*)")
_STEP = re.compile(r"\.(?:where\(([a-z]\w*(?:\.[a-z]\w*)*)\s*=\s*'([^']*)'\)|([a-z]\w*))")


@dataclass(frozen=True, slots=True)
class PathCondition:
    """Condition of a path: a child of the current element must have this value.

    >>> PathCondition(("system",), "phone").holds({"system": "phone"})
    True
    """

    names: tuple[str, ...]
    value: str

    def holds(self, node: Any) -> bool:
        """Return whether the where() condition of a rule path is satisfied."""
        nodes = [node]
        for name in self.names:
            inner: list[Any] = []
            for item in nodes:
                child = item.get(name) if isinstance(item, dict) else None
                inner.extend(child if isinstance(child, list) else () if child is None else (child,))
            nodes = inner
        return any(_text(item) == self.value for item in nodes)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


Step = str | PathCondition


@dataclass(frozen=True, slots=True)
class RulePath:
    """Parsed path: its root, its steps, the types of its elements, and the types of their parents."""

    by_type: bool
    root: str
    steps: tuple[Step, ...]
    types: frozenset[str]
    parent_types: frozenset[str]

    @property
    def text(self) -> str:
        """Path of a de-identification rule as text."""
        start = f"nodesByType('{self.root}')" if self.by_type else self.root
        names = (
            f".where({'.'.join(step.names)}='{step.value}')"
            if isinstance(step, PathCondition)
            else f".{step}"
            for step in self.steps
        )
        return start + "".join(names)


def read_path(text: str) -> RulePath:
    """Parse the path of a de-identification rule; raise an error if it is invalid.

    >>> read_path("nodesByType('Coding').display").types
    frozenset({'string'})
    """
    start = _ROOT.match(text)
    if start is None:
        _refuse_path("start with a resource type or nodesByType('Type')")
    by_type, root = start[1] is not None, start[1] or start[2]
    _check_root(root, by_type)
    steps: list[Step] = []
    types, owners = frozenset({root}), frozenset({""})
    position = start.end()
    while position < len(text):
        step = _STEP.match(text, position)
        if step is None:
            _refuse_path("only element names and where(name='value') are supported")
        if step[3]:
            steps.append(step[3])
            owners, types = types, _child_types(types, step[3])
        else:
            steps.append(PathCondition(tuple(step[1].split(".")), step[2]))
            inner = types
            for name in step[1].split("."):
                inner = _child_types(inner, name)
        position = step.end()
    return RulePath(by_type, root, tuple(steps), types, owners)


def _check_root(root: str, by_type: bool) -> None:  # noqa: FBT001
    known = resource_types() | {"Resource", "DomainResource"}
    if (by_type and not (root in element_table() or _is_primitive_type(root))) or (by_type and root in known):
        _refuse_path("nodesByType has an unknown R4 data type")
    if not by_type and root not in known:
        _refuse_path("its resource type is not in R4")


def _is_primitive_type(type_name: str) -> bool:
    return any(
        element.type == type_name for fields in element_table().values() for element in fields.values()
    )


def _child_types(types: frozenset[str], name: str) -> frozenset[str]:
    element_types: set[str] = set()
    for type_name in types:
        fields = element_table().get(type_name, {})
        element_types.update(element.type for element in child_elements(fields, name))
    if not element_types:
        _refuse_path("R4 has no such element there")
    return frozenset(element_types)


def _refuse_path(problem: str) -> NoReturn:
    raise SettingsError(f"the rule path is invalid: {problem}", remedy="correct the rule table")


@dataclass(frozen=True, slots=True)
class ParsedRule:
    """Parsed rule of a table."""

    path: RulePath
    method: str
    settings: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Name of the de-identification rule in counts: method and path."""
        return f"{self.method} {self.path.text}"

    @property
    def matches_primitives_only(self) -> bool:
        """Whether the de-identification rule matches primitive values only."""
        return all(is_primitive(type_name) for type_name in self.path.types)


def parse_rules(rules: Iterable[DeidentificationRule]) -> tuple[ParsedRule, ...]:
    """Parse the rules of a rule table; raise an error if a path is invalid."""
    return tuple(ParsedRule(read_path(rule.path), rule.method, rule.settings) for rule in rules)


def read_table(text: str) -> tuple[DeidentificationRule, ...]:
    """Read a rule table of lines ``path  method  name=value …``; ``#`` starts a comment.

    >>> read_table("Patient.birthDate  generalise to=year  # keep the year")[0].settings
    (('to', 'year'),)
    """
    rules = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = _tokens(line.partition("#")[0])
        if not fields:
            continue
        if len(fields) < 2 or any("=" not in token for token in fields[2:]):
            raise SettingsError(
                f"line {number} of the rule table is not 'path method name=value'", remedy="correct the line"
            )
        pairs = (token.partition("=") for token in fields[2:])
        rules.append(
            DeidentificationRule(fields[0], fields[1], tuple((name, value) for name, _, value in pairs))
        )
    return tuple(rules)


def _tokens(line: str) -> Sequence[str]:
    # A quoted value of a where() may contain spaces.
    return re.findall(r"(?:[^\s']|'[^']*')+", line)
