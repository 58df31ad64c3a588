"""The views of a study: HL7's view definitions (*SQL on FHIR v2*), written into the document."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from abaton.documents.line_numbers import KeyPath
from abaton.documents.fields import Name, Part, Text, fault, faults, without_empty
from abaton.errors import SettingsError
from abaton.views.definition import View
from abaton.views.required_elements import elements

_STEP = re.compile(r"([A-Za-z]+)|\[(\d+)\]")
_VIEW_KEY = re.compile(r"(?:select|where|constant)(?:\.[A-Za-z]+|\[\d+\])*")


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = without_empty(value)
    if {"id", "extension"} & _keys(made):
        raise fault("'id' and 'extension' add nothing to a table", "remove them from the view")
    return made


def _keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*(_keys(item) for item in value.values()))
    return set().union(*(_keys(item) for item in value)) if isinstance(value, list) else set()


Piece = Annotated[dict[str, Any], AfterValidator(_plain)]


class ViewTable(Part):
    """A view definition: from resources of one type to the rows of a table."""

    name: Name
    description: Text | None = None
    resource: Annotated[str, Field(pattern="^[A-Z][A-Za-z]{1,63}$")]
    constant: tuple[Piece, ...] = ()
    where: tuple[Piece, ...] = ()
    select: tuple[Piece, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _compiled(self) -> Self:
        try:
            assert self.view
        except SettingsError as error:
            path = _path(error.where)
            where = "" if path else f" ({error.where})" if error.where else ""
            remedy = error.remedy or "correct the view definition"
            raise faults([(path, error.what + where, remedy)]) from None
        return self

    def definition(self) -> dict[str, Any]:
        """The view definition as HL7 writes it."""
        made = {"name": self.name, "resource": self.resource, "constant": [*self.constant]}
        return without_empty({**made, "where": [*self.where], "select": [*self.select]})  # type: ignore[no-any-return]

    @cached_property
    def view(self) -> View:
        """The view, compiled."""
        return View.load(self.definition())

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(column.name for column in self.view.columns)

    @property
    def elements(self) -> frozenset[str]:
        """The elements of the resource that it reads."""
        return elements(self.definition())


def _path(where: str) -> KeyPath:
    match = _VIEW_KEY.match(where)
    if match is None:
        return ()
    return tuple(int(number) if number else word for word, number in _STEP.findall(match[0]))
