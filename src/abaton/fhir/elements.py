"""The R4 element table: which elements every FHIR type has, of which type, how often.

The table is made from the R4 4.0.1 definitions and shipped as text, one line per type (see ``elements.txt``):
``name:type`` followed by ``!`` if required, ``*`` if repeating, ``^`` if part of the summary, ``/1`` for a
choice that must be made, ``/0`` for one that may. An empty type means a block of its own, named
``Parent.name``.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Element(NamedTuple):
    """One element of a type."""

    name: str
    type: str
    required: bool
    many: bool
    summary: bool
    choice: bool

    @property
    def stem(self) -> str:
        """The name of a choice without its type: ``value`` for ``valueQuantity``."""
        if not self.choice:
            return self.name
        return self.name[: -len(self.type)] if self.name.endswith(_capital(self.type)) else self.name


Fields = dict[str, Element]


def _capital(name: str) -> str:
    return name[0].upper() + name[1:]


def _element(parent: str, word: str) -> Element:
    name, _, rest = word.partition(":")
    rest, _, choice = rest.partition("/")
    kind = rest.rstrip("!*^")
    marks = rest[len(kind) :]
    required = "!" in marks or choice == "1"
    return Element(name, kind or f"{parent}.{name}", required, "*" in marks, "^" in marks, bool(choice))


@cache
def table() -> dict[str, Fields]:
    """Every R4 type with its elements, in the order of the specification.

    >>> table()["Patient"]["birthDate"].type
    'date'
    """
    text = files("abaton.fhir").joinpath("elements.txt").read_text(encoding="utf-8")
    made: dict[str, Fields] = {}
    for line in text.splitlines():
        parent, *words = line.split(" ")
        made[parent] = {element.name: element for element in (_element(parent, word) for word in words)}
    return made


@cache
def resources() -> frozenset[str]:
    """The names of all R4 resource types.

    >>> "Patient" in resources(), "HumanName" in resources()
    (True, False)
    """
    abstract = {"Resource", "DomainResource"}
    return frozenset(
        name for name, fields in table().items() if "implicitRules" in fields and name not in abstract
    )


def is_primitive(type_name: str) -> bool:
    """Whether a type is a plain value (a string, a number, a date)."""
    return type_name[0].islower()


def is_resource_slot(type_name: str) -> bool:
    """Whether an element holds a whole resource (``contained``, ``Bundle.entry.resource``)."""
    return type_name in ("Resource", "DomainResource") or type_name in resources()


def children(fields: Fields, name: str) -> list[Element]:
    """The elements that a step finds: by name, or every type of a choice."""
    exact = fields.get(name)
    if exact is not None:
        return [exact]
    return [element for element in fields.values() if element.choice and element.stem == name]
