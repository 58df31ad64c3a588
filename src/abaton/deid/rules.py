"""The rule table: which elements a rule finds, and what happens to them. The first match wins.

A path is a small part of FHIRPath::

    Patient.birthDate                           an element of a resource type
    Observation.value                           every value[x]
    nodesByType('HumanName')                    every element of a type, wherever it is
    nodesByType('Coding').display               an element of these
    Patient.telecom.where(system='phone').value only where a neighbour has a value

Anything else is refused when the table is loaded, and so is an element that R4 does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from abaton.errors import SettingsError
from abaton.deid.settings import Rule
from abaton.fhir.elements import children, is_primitive, resources, table

_ROOT = re.compile(r"nodesByType\('([A-Za-z]\w*)'\)|([A-Z]\w*)")
_STEP = re.compile(r"\.(?:where\(([a-z]\w*(?:\.[a-z]\w*)*)\s*=\s*'([^']*)'\)|([a-z]\w*))")


@dataclass(frozen=True, slots=True)
class Where:
    """A condition on the element a path has reached: a neighbour must have this value.

    >>> Where(("system",), "phone").holds({"system": "phone"})
    True
    """

    names: tuple[str, ...]
    value: str

    def holds(self, node: Any) -> bool:
        """Whether the condition is met."""
        found = [node]
        for name in self.names:
            inner: list[Any] = []
            for each in found:
                child = each.get(name) if isinstance(each, dict) else None
                inner.extend(child if isinstance(child, list) else () if child is None else (child,))
            found = inner
        return any(_text(each) == self.value for each in found)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


Step = str | Where


@dataclass(frozen=True, slots=True)
class Path:
    """A path that has been understood: where it starts, its steps, the types it can end at, and in which."""

    by_type: bool
    root: str
    steps: tuple[Step, ...]
    ends: frozenset[str]
    owners: frozenset[str]

    @property
    def text(self) -> str:
        """The path as it is written."""
        start = f"nodesByType('{self.root}')" if self.by_type else self.root
        names = (
            f".where({'.'.join(step.names)}='{step.value}')" if isinstance(step, Where) else f".{step}"
            for step in self.steps
        )
        return start + "".join(names)


def read_path(text: str) -> Path:
    """Understand a path, or refuse it.

    >>> read_path("nodesByType('Coding').display").ends
    frozenset({'string'})
    """
    start = _ROOT.match(text)
    if start is None:
        _refuse(text, "it must start with a resource type or nodesByType('Type')")
    by_type, root = start[1] is not None, start[1] or start[2]
    _check_root(text, root, by_type)
    steps: list[Step] = []
    types, owners = frozenset({root}), frozenset({""})
    position = start.end()
    while position < len(text):
        step = _STEP.match(text, position)
        if step is None:
            _refuse(text, "it may only have element names and where(name='value')")
        if step[3]:
            steps.append(step[3])
            owners, types = types, _below(text, types, step[3])
        else:
            steps.append(Where(tuple(step[1].split(".")), step[2]))
            inner = types
            for name in step[1].split("."):
                inner = _below(text, inner, name)
        position = step.end()
    return Path(by_type, root, tuple(steps), types, owners)


def _check_root(text: str, root: str, by_type: bool) -> None:  # noqa: FBT001
    known = resources() | {"Resource", "DomainResource"}
    if (by_type and not (root in table() or _is_used(root))) or (by_type and root in known):
        _refuse(text, "nodesByType names no R4 data type")
    if not by_type and root not in known:
        _refuse(text, "it names no R4 resource type")


def _is_used(primitive: str) -> bool:
    return any(element.type == primitive for fields in table().values() for element in fields.values())


def _below(text: str, types: frozenset[str], name: str) -> frozenset[str]:
    found: set[str] = set()
    for type_name in types:
        fields = table().get(type_name, {})
        found.update(element.type for element in children(fields, name))
    if not found:
        _refuse(text, f"R4 has no element '{name}' there")
    return frozenset(found)


def _refuse(text: str, why: str) -> NoReturn:
    raise SettingsError(f'the rule path "{text}" is not understood: {why}', remedy="correct the rule table")


@dataclass(frozen=True, slots=True)
class Line:
    """One understood line of the table."""

    path: Path
    method: str
    settings: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """How the line is named in a tally."""
        return f"{self.method} {self.path.text}"

    @property
    def primitive(self) -> bool:
        """Whether the line can only end at plain values."""
        return all(is_primitive(end) for end in self.path.ends)


def understand(rules: Iterable[Rule]) -> tuple[Line, ...]:
    """Understand a whole table, or refuse it."""
    return tuple(Line(read_path(rule.path), rule.method, rule.settings) for rule in rules)


def read_table(text: str) -> tuple[Rule, ...]:
    """Read a table written as ``path  method  name=value …``, one rule per line; ``#`` starts a remark.

    >>> read_table("Patient.birthDate  generalise to=year  # keep the year")[0].settings
    (('to', 'year'),)
    """
    rules = []
    for number, line in enumerate(text.splitlines(), 1):
        words = _words(line.partition("#")[0])
        if not words:
            continue
        if len(words) < 2 or any("=" not in word for word in words[2:]):
            raise SettingsError(
                f"rule line {number} is not 'path method name=value'", remedy="correct the table"
            )
        pairs = (word.partition("=") for word in words[2:])
        rules.append(Rule(words[0], words[1], tuple((name, value) for name, _, value in pairs)))
    return tuple(rules)


def _words(line: str) -> Sequence[str]:
    # A quoted part of a where() may hold spaces.
    return re.findall(r"(?:[^\s']|'[^']*')+", line)
