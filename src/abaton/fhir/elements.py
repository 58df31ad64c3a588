"""R4 element table: the elements of every FHIR type, their types and cardinalities.

The table comes from the R4 4.0.1 definitions and ships as text, one line per type (see ``elements.txt``):
``name:type`` followed by ``!`` if required, ``*`` if repeating, ``^`` if part of the summary, ``/1`` for a required
choice, ``/0`` for an optional one. An empty type is a backbone element named ``Parent.name``.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import NamedTuple


class ElementDefinition(NamedTuple):
    """One element of a type."""

    name: str
    type: str
    is_required: bool
    is_list: bool
    in_summary: bool
    is_choice: bool

    @property
    def stem(self) -> str:
        """Return the name of a choice element without its type: ``value`` for ``valueQuantity``."""
        if not self.is_choice:
            return self.name
        return self.name[: -len(self.type)] if self.name.endswith(_capital(self.type)) else self.name


Fields = dict[str, ElementDefinition]


def _capital(name: str) -> str:
    return name[0].upper() + name[1:]


def _element(parent: str, entry: str) -> ElementDefinition:
    name, _, remainder = entry.partition(":")
    remainder, _, choice = remainder.partition("/")
    type_name = remainder.rstrip("!*^")
    marks = remainder[len(type_name) :]
    required = "!" in marks or choice == "1"
    return ElementDefinition(
        name, type_name or f"{parent}.{name}", required, "*" in marks, "^" in marks, bool(choice)
    )


@cache
def element_table() -> dict[str, Fields]:
    """Return the R4 element definitions: every type with its elements, in the order of the specification.

    >>> element_table()["Patient"]["birthDate"].type
    'date'
    """
    text = files("abaton.fhir").joinpath("elements.txt").read_text(encoding="utf-8")
    types: dict[str, Fields] = {}
    for line in text.splitlines():
        parent, *entries = line.split(" ")
        types[parent] = {element.name: element for element in (_element(parent, entry) for entry in entries)}
    return types


@cache
def resource_types() -> frozenset[str]:
    """Return the names of all resource types in the R4 element table.

    >>> "Patient" in resource_types(), "HumanName" in resource_types()
    (True, False)
    """
    abstract = {"Resource", "DomainResource"}
    return frozenset(
        name for name, fields in element_table().items() if "implicitRules" in fields and name not in abstract
    )


def is_primitive(type_name: str) -> bool:
    """Return whether the type of an R4 element is primitive (a string, a number, a date)."""
    return type_name[0].islower()


def is_resource_slot(type_name: str) -> bool:
    """Return whether an R4 element holds a resource (``contained``, ``Bundle.entry.resource``)."""
    return type_name in ("Resource", "DomainResource") or type_name in resource_types()


def child_elements(fields: Fields, name: str) -> list[ElementDefinition]:
    """Return the R4 elements that a path step matches: by name, or every type of a choice element."""
    exact = fields.get(name)
    if exact is not None:
        return [exact]
    return [element for element in fields.values() if element.is_choice and element.stem == name]
