"""How people are protected: de-identification of each record, and anonymity of the whole table.

Both are the settings of other rooms; here they get a place in the study document and a form as a table.

What a person reads before saying yes.

How people may take part with their own records, on the citizen's page.

The views of a study: HL7's view definitions (*SQL on FHIR v2*), written into the document.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WrapValidator,
    model_validator,
)
from pydantic import ValidatorFunctionWrapHandler as Handler
from pydantic_core import PydanticCustomError

from abaton.anonymity import AnonymitySettings, settings_from, table_from
from abaton.deid.rule_compiler import Plan
from abaton.deid.settings import Deidentification
from abaton.documents.fields import Name, Part, Text, fault, faults, without_empty
from abaton.documents.line_numbers import KeyPath
from abaton.errors import SettingsError
from abaton.views.definition import View
from abaton.views.required_elements import elements

_ANONYMITY_KEY = re.compile(r"privacy\.anonymity((?:\.\w+|\[\d+\])*)")


def _placed(error: SettingsError) -> PydanticCustomError:
    """Settings of other rooms complain in their own words; here they get a place in the document."""
    match = _ANONYMITY_KEY.match(error.where)
    within = [part.strip(".[]") for part in re.findall(r"\.\w+|\[\d+\]", match[1])] if match else []
    return _complaint(error, tuple(int(part) if part.isdigit() else part for part in within))


def _complaint(error: SettingsError, path: KeyPath) -> PydanticCustomError:
    context = {"what": error.what, "remedy": error.remedy or "see docs/study-document.md", "path": path}
    return PydanticCustomError("document", "{what}", context)


def _anonymity(value: Any) -> AnonymitySettings:
    try:
        return settings_from(value)
    except SettingsError as error:
        raise _placed(error) from None


def _with_pairs(value: Any) -> Any:
    """A rule's settings are a table for people and pairs for the de-identifier; lists become unchangeable."""
    if not isinstance(value, dict):
        return value
    rules, allow = value.get("rules"), value.get("allow")
    made = {**value, **({"rules": tuple(_rule(rule) for rule in rules)} if isinstance(rules, list) else {})}
    return {**made, **({"allow": tuple(allow)} if isinstance(allow, list) else {})}


def _rule(rule: Any) -> Any:
    if not isinstance(rule, dict) or not isinstance(rule.get("settings"), dict):
        return rule
    return {**rule, "settings": tuple((key, _word(value)) for key, value in rule["settings"].items())}


def _word(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, int | float) else value


def _deidentification(value: Any, handler: Handler) -> Any:
    try:
        made: Deidentification = handler(value)
    except SettingsError as error:
        raise _placed(error) from None
    for i, rule in enumerate(made.rules):
        try:
            Plan((rule,))
        except SettingsError as error:
            raise _complaint(error, ("rules", i)) from None
    return made


def _deidentification_table(made: Deidentification) -> dict[str, Any]:
    table: dict[str, Any] = asdict(made)
    table["rules"] = [{**rule, "settings": dict(rule["settings"])} for rule in table["rules"]]
    return {key: value.value if isinstance(value, StrEnum) else value for key, value in table.items()}


Protection = Annotated[
    Deidentification,
    BeforeValidator(_with_pairs),
    WrapValidator(_deidentification),
    PlainSerializer(_deidentification_table),
]
Anonymity = Annotated[AnonymitySettings, PlainValidator(_anonymity), PlainSerializer(table_from)]


class Privacy(Part):
    """What is asked of the whole table before it may be used."""

    anonymity: Anonymity | None = None


class Statement(StrEnum):
    """What a person must have been told before consenting."""

    EXPORTS_STAY = "exports-stay"
    MODELS_STAY = "models-stay"
    MODELS_ARE_SEEN = "models-are-seen"


WORDING = {
    Statement.EXPORTS_STAY: (
        "Anonymised data that has already left the site cannot be traced to you, and so it cannot be called "
        "back if you withdraw."
    ),
    Statement.MODELS_STAY: (
        "A model that was finished before you withdraw has learned from your data and cannot be called back; "
        "no later round of training uses your data."
    ),
    Statement.MODELS_ARE_SEEN: (
        "To judge its quality, the model trained on your site's data is shown to the other sites of the "
        "study, not only to the research centre."
    ),
}
"""The wording that Abaton proposes for each statement; a study may use its own words."""


def to_be_told(*, records: bool, updates: bool, anonymised: bool) -> tuple[Statement, ...]:
    """What people must be told, given what leaves the sites and whether it can be called back."""
    told = [Statement.EXPORTS_STAY] if records and anonymised else []
    return (*told, *([Statement.MODELS_STAY, Statement.MODELS_ARE_SEEN] if updates else []))


class Consent(Part):
    """What a person reads before saying yes. Every statement that applies to the study must be there."""

    language: Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")] = "en"
    text: Text
    statements: dict[Statement, Text] = Field(default_factory=dict)


Origin = Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?$")]
# Records come over lines that nobody reads along; plain ones lead to the same device alone, for trials.
_SAFE = r"(https://[A-Za-z0-9.-]{1,253}|http://(127\.0\.0\.1|localhost))(:[0-9]{1,5})?"
Source = Annotated[str, Field(pattern=f"^{_SAFE}$")]


class Hospital(Part):
    """A hospital at which people may sign in and fetch their own records themselves (SMART on FHIR).

    ``fhir`` is the address of its FHIR server, ``client`` the name under which the hospital knows the page.
    """

    name: Text
    fhir: Annotated[str, Field(pattern=f"^{_SAFE}(/[A-Za-z0-9._~-]{{1,64}}){{0,8}}$")]
    client: Annotated[str, Field(pattern=r"^[A-Za-z0-9._~:/-]{1,200}$")]


class Persons(Part):
    """How people may take part with their own records.

    ``admission`` is ``code`` (whoever has a one-time code from a hospital or a letter) or ``open`` (anybody). ``most``
    is the largest number of people. ``origins`` are the web addresses from which the page may be used; none named
    means that of the centre's endpoint alone. ``hospitals`` are those at which people may fetch their records, and
    ``sources`` are further web addresses from which the page may fetch them: of SMART Health Links, and of a
    hospital's sign-in if it is not at its FHIR server.
    """

    admission: Literal["code", "open"] = "code"
    most: int = Field(10_000, ge=1, le=10_000_000)
    origins: tuple[Origin, ...] = ()
    sources: tuple[Source, ...] = ()
    hospitals: tuple[Hospital, ...] = ()

    @property
    def reached(self) -> tuple[str, ...]:
        """Every web address besides its own that the page may talk to.

        >>> Persons(hospitals=[Hospital(name="A", fhir="https://fhir.example.org/r4", client="abaton")]).reached
        ('https://fhir.example.org',)
        """
        addresses = (*self.sources, *(hospital.fhir for hospital in self.hospitals))
        return tuple(sorted({"{0.scheme}://{0.netloc}".format(urlsplit(each)) for each in addresses}))


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
