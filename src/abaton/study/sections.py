"""Sections of a study document: de-identification, disclosure control, consent, citizen page and views.

The settings belong to `deid` and `anonymity`; this module gives them a section and a table form in the document.
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
from abaton.deid.rule_compiler import CompiledRules
from abaton.deid.settings import DeidentificationSettings
from abaton.disclosure.levels import DisclosureLevel
from abaton.documents.fields import Name, Section, Text, field_error, field_errors, without_empty
from abaton.documents.line_numbers import KeyPath
from abaton.errors import SettingsError
from abaton.views.definition import ViewDefinition
from abaton.views.required_elements import elements_read_by

_ANONYMITY_KEY = re.compile(r"privacy\.anonymity((?:\.\w+|\[\d+\])*)")


def _anonymity_error(error: SettingsError) -> PydanticCustomError:
    """Convert an error of the anonymity section to one with a path in the study document."""
    match = _ANONYMITY_KEY.match(error.where)
    steps = [part.strip(".[]") for part in re.findall(r"\.\w+|\[\d+\]", match[1])] if match else []
    return _section_error(error, tuple(int(part) if part.isdigit() else part for part in steps))


def _section_error(error: SettingsError, path: KeyPath) -> PydanticCustomError:
    context = {"what": error.what, "remedy": error.remedy or "see docs/study-document.md", "path": path}
    return PydanticCustomError("document", "{what}", context)


def _anonymity(value: Any) -> AnonymitySettings:
    try:
        return settings_from(value)
    except SettingsError as error:
        raise _anonymity_error(error) from None


def _prepare_deidentification(value: Any) -> Any:
    """Convert the de-identification section: a rule's settings from a table to pairs, lists to tuples."""
    if not isinstance(value, dict):
        return value
    rules, opt_ins = value.get("rules"), value.get("opt_ins")
    table = {**value, **({"rules": tuple(_rule(rule) for rule in rules)} if isinstance(rules, list) else {})}
    return {**table, **({"opt_ins": tuple(opt_ins)} if isinstance(opt_ins, list) else {})}


def _rule(rule: Any) -> Any:
    if not isinstance(rule, dict) or not isinstance(rule.get("settings"), dict):
        return rule
    return {**rule, "settings": tuple((key, _setting_text(value)) for key, value in rule["settings"].items())}


def _setting_text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, int | float) else value


def _deidentification(value: Any, handler: Handler) -> Any:
    try:
        settings: DeidentificationSettings = handler(value)
    except SettingsError as error:
        raise _anonymity_error(error) from None
    for i, rule in enumerate(settings.rules):
        try:
            CompiledRules((rule,))
        except SettingsError as error:
            raise _section_error(error, ("rules", i)) from None
    return settings


def _deidentification_table(settings: DeidentificationSettings) -> dict[str, Any]:
    table: dict[str, Any] = asdict(settings)
    table["rules"] = [{**rule, "settings": dict(rule["settings"])} for rule in table["rules"]]
    return {key: value.value if isinstance(value, StrEnum) else value for key, value in table.items()}


DeidentificationField = Annotated[
    DeidentificationSettings,
    BeforeValidator(_prepare_deidentification),
    WrapValidator(_deidentification),
    PlainSerializer(_deidentification_table),
]
AnonymityField = Annotated[AnonymitySettings, PlainValidator(_anonymity), PlainSerializer(table_from)]


class PrivacySection(Section):
    """Disclosure control: level of what leaves a site, minimum cell count, and anonymity required of the table."""

    disclosure: DisclosureLevel = DisclosureLevel.NOISY
    min_cell_count: int = Field(5, ge=1)
    anonymity: AnonymityField | None = None

    @model_validator(mode="after")
    def _check_min_cell_count(self) -> Self:
        if self.anonymity is not None and self.anonymity.min_cell_count is not None:
            raise field_errors(
                [
                    (
                        ("anonymity", "min_cell_count"),
                        "'min_cell_count' belongs to [privacy]",
                        "write it under [privacy], where it applies to all releases",
                    )
                ]
            )
        return self


class ConsentStatement(StrEnum):
    """Statement that a consent text must contain."""

    EXPORTS_STAY = "exports-stay"
    MODELS_STAY = "models-stay"
    MODELS_ARE_SEEN = "models-are-seen"


DEFAULT_STATEMENTS = {
    ConsentStatement.EXPORTS_STAY: (
        "Anonymised data that has already left the site cannot be traced to you, and so it cannot be called "
        "back if you withdraw."
    ),
    ConsentStatement.MODELS_STAY: (
        "A model that was finished before you withdraw has learned from your data and cannot be called back; "
        "no later round of training uses your data."
    ),
    ConsentStatement.MODELS_ARE_SEEN: (
        "To judge its quality, the model trained on your site's data is shown to the other sites of the "
        "study, not only to the research centre."
    ),
}
"""Default wording of each statement; a study may use other wording."""


def required_statements(*, records: bool, updates: bool, anonymised: bool) -> tuple[ConsentStatement, ...]:
    """Return the statements that the consent section needs, by what leaves the sites and can be recalled."""
    statements = [ConsentStatement.EXPORTS_STAY] if records and anonymised else []
    return (
        *statements,
        *([ConsentStatement.MODELS_STAY, ConsentStatement.MODELS_ARE_SEEN] if updates else []),
    )


class ConsentSection(Section):
    """Consent text; every statement that applies to the study must be included."""

    language: Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")] = "en"
    text: Text
    statements: dict[ConsentStatement, Text] = Field(default_factory=dict)


Origin = Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?$")]
# Records are fetched over TLS; plain HTTP is allowed to the same device only, for tests.
_SECURE_ORIGIN = r"(https://[A-Za-z0-9.-]{1,253}|http://(127\.0\.0\.1|localhost))(:[0-9]{1,5})?"
SecureOrigin = Annotated[str, Field(pattern=f"^{_SECURE_ORIGIN}$")]


class CitizenHospital(Section):
    """Hospital at which citizens sign in and fetch their own records (SMART on FHIR).

    ``fhir`` is the URL of its FHIR server, ``client`` the client id of the page.
    """

    name: Text
    fhir: Annotated[str, Field(pattern=f"^{_SECURE_ORIGIN}(/[A-Za-z0-9._~-]{{1,64}}){{0,8}}$")]
    client: Annotated[str, Field(pattern=r"^[A-Za-z0-9._~:/-]{1,200}$")]


class CitizenSection(Section):
    """Participation of citizens with their own records.

    ``admission`` is ``code`` (one-time code from a hospital) or ``open``. ``origins`` are the web origins of the page;
    by default that of the centre's endpoint. ``sources`` are further origins from which the page may fetch records,
    such as SMART Health Links and sign-in servers.
    """

    admission: Literal["code", "open"] = "code"
    max_participants: int = Field(10_000, ge=1, le=10_000_000)
    origins: tuple[Origin, ...] = ()
    sources: tuple[SecureOrigin, ...] = ()
    hospitals: tuple[CitizenHospital, ...] = ()

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        """Return all foreign origins that the citizen section lets the page connect to.

        >>> hospital = CitizenHospital(name="A", fhir="https://fhir.example.org/r4", client="abaton")
        >>> CitizenSection(hospitals=[hospital]).allowed_origins
        ('https://fhir.example.org',)
        """
        urls = (*self.sources, *(hospital.fhir for hospital in self.hospitals))
        return tuple(sorted({"{0.scheme}://{0.netloc}".format(urlsplit(url)) for url in urls}))


_PATH_STEP = re.compile(r"([A-Za-z]+)|\[(\d+)\]")
_VIEW_KEY = re.compile(r"(?:select|where|constant)(?:\.[A-Za-z]+|\[\d+\])*")


def _prepare_view_part(value: dict[str, Any]) -> dict[str, Any]:
    part: dict[str, Any] = without_empty(value)
    if {"id", "extension"} & _keys(part):
        raise field_error("'id' and 'extension' have no effect in a view", "remove them from the view")
    return part


def _keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*(_keys(item) for item in value.values()))
    return set().union(*(_keys(item) for item in value)) if isinstance(value, list) else set()


ViewPart = Annotated[dict[str, Any], AfterValidator(_prepare_view_part)]


class ViewSection(Section):
    """View definition: rows of a table from resources of one type."""

    name: Name
    description: Text | None = None
    resource: Annotated[str, Field(pattern="^[A-Z][A-Za-z]{1,63}$")]
    constant: tuple[ViewPart, ...] = ()
    where: tuple[ViewPart, ...] = ()
    select: tuple[ViewPart, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_definition(self) -> Self:
        try:
            assert self.view
        except SettingsError as error:
            path = _view_key_path(error.where)
            where = "" if path else f" ({error.where})" if error.where else ""
            remedy = error.remedy or "correct the view definition"
            raise field_errors([(path, error.what + where, remedy)]) from None
        return self

    def definition(self) -> dict[str, Any]:
        """Return the HL7 ViewDefinition of a view section of a study document."""
        definition = {"name": self.name, "resource": self.resource, "constant": [*self.constant]}
        return without_empty({**definition, "where": [*self.where], "select": [*self.select]})  # type: ignore[no-any-return]

    @cached_property
    def view(self) -> ViewDefinition:
        """Return the compiled view of a view section of a study document."""
        return ViewDefinition.load(self.definition())

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns of a view section of a study document."""
        return tuple(column.name for column in self.view.columns)

    @property
    def elements(self) -> frozenset[str]:
        """Return the elements of the resource that a view section of a study document reads."""
        return elements_read_by(self.definition())


def _view_key_path(where: str) -> KeyPath:
    match = _VIEW_KEY.match(where)
    if match is None:
        return ()
    return tuple(int(number) if number else word for word, number in _PATH_STEP.findall(match[0]))
