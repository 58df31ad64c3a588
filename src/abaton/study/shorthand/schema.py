"""The short parts of a study document: inputs, outcome and index date, a line each."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from abaton.documents.fields import Day, Name, Part, Span, Text, fault, faults
from abaton.features.specification import Join, Kind
from abaton.study.shorthand.codes import HOMES, SYSTEMS, Coded, Codes, formed, not_formed

_MEASURED = ("value", "above", "number", "yes")
"""The columns of the view ``measurements`` that hold a value."""
_FLAGS = ("above", "yes")


def _of_known_systems(
    value: dict[str, dict[str, Codes]], info: ValidationInfo
) -> dict[str, dict[str, Codes]]:
    known = (info.context or {}).get("systems", SYSTEMS)
    if not value:
        raise fault("there are no categories", 'write categories = { snomed = { never = "266919005" } }')
    for system in value:
        if system not in known:
            raise fault(
                f"'{system}' is not the short name of a code system",
                f"use {', '.join(known)}, or name it under [systems]",
            )
        for text in (text for codes in value[system].values() for text in codes):
            if not formed(system, text):
                raise fault(*not_formed(system, text))
    return value


Categories = Annotated[dict[str, dict[Text, Codes]], AfterValidator(_of_known_systems)]
"""By the short name of a code system: the name of each category, and its code or codes."""


class Rows(Coded):
    """Which records are meant: those with one of the codes, in one view."""

    view: Name | None = None

    @property
    def home(self) -> str | None:
        """The view in which all the codes are usually found, if they have one in common."""
        homes = {HOMES[name] for name in self.systems}
        return next(iter(homes)) if len(homes) == 1 and not self.codes else None

    def found_in(self, hint: str | None = None) -> str:
        """The view that the rows come from."""
        view = self.view or hint or self.home
        if view is None:
            raise fault(
                "it is not said in which records to look for these codes"
                if self.systems or self.codes
                else "it names neither codes nor a view",
                "write for example view = 'diagnoses'; others are measurements, findings, medicines, procedures, "
                "vaccines and visits",
            )
        return view


class ShortIndex(Rows):
    """The day from which a person's age and events are counted: of the earliest or latest record with a code."""

    take: Literal["earliest", "latest"] = "earliest"

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        self.found_in()
        return self


class ShortFollowUp(Rows):
    """The records that show that a person was still watched."""

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        self.found_in()
        return self


class ShortInput(Rows):
    """One input of the model in a line: a measured number, categories, yes or no, how many, age or sex."""

    patient: Literal["age", "sex"] | None = None
    kind: Kind | None = None
    column: Text | None = None
    unit: Text | None = None
    molar_mass: float | None = None
    take: Join | None = None
    categories: Categories | None = None
    missing: Literal["mean", "constant", "drop"] | None = None
    fill: float | str | None = None
    indicator: bool = False
    wrong_unit: Literal["missing", "refuse"] | None = None
    at: Day | None = None
    band: float | None = None
    after_index: bool = False

    @model_validator(mode="after")
    def _clear(self) -> Self:
        if self.patient is not None:
            if self.systems or self.codes or self.view:
                raise fault("what a Patient says has no codes", "remove them, or remove 'patient'")
            return self
        if self.what is Kind.NUMBER and self.unit is None and self.column in (None, "value"):
            raise fault(
                "a measured number needs its unit",
                'write unit = "mm[Hg]"; column = "number" or "yes" for values without one; or kind = "flag" '
                "to ask only whether there is a record",
            )
        self.origin  # noqa: B018  the view must be clear
        return self

    @property
    def what(self) -> Kind:
        """The kind of the input, as it is said or as follows from its keys."""
        if self.kind is not None:
            return self.kind
        if self.categories is not None:
            return Kind.CATEGORY
        if self.column in _FLAGS:
            return Kind.FLAG
        return Kind.NUMBER if self.origin == "measurements" else Kind.FLAG

    @property
    def origin(self) -> str:
        """The view that it comes from."""
        if self.categories is not None:
            return self.found_in("findings")
        return self.found_in("measurements" if self.unit or self.column in _MEASURED else None)


class ShortOutcome(Rows):
    """What is learned, in a line: whether a record exists, comes within a time, after how long, or what it says."""

    patient: Literal["death"] | None = None
    within: Span | None = None
    up_to: Span | None = None
    follow_up: Annotated[Name | ShortFollowUp | None, Field(union_mode="left_to_right")] = None
    unit: Text | None = None
    molar_mass: float | None = None
    above: float | None = None
    take: Join | None = None
    classes: Categories | None = None

    @model_validator(mode="after")
    def _clear(self) -> Self:
        if self.patient is not None and (self.systems or self.codes or self.view):
            raise fault("what a Patient says has no codes", "remove them, or remove 'patient'")
        if self.follow_up is not None and self.within is None and self.up_to is None:
            raise fault(
                "'follow_up' belongs to 'within' or 'up_to'",
                "say within which time, within = 'P1Y', or for how long people are watched, up_to = 'P5Y'",
            )
        ways = {
            "within": self.within is not None,
            "up_to": self.up_to is not None,
            "classes": self.classes is not None,
            "unit": self.unit is not None,
        }
        if sum(ways.values()) > 1:
            raise fault(
                "the outcome is told in two ways", f"keep one of {', '.join(k for k in ways if ways[k])}"
            )
        if self.above is not None and self.unit is None:
            raise fault("'above' has no unit", 'write for example unit = "mm[Hg]", above = 140')
        if self.patient is None:
            self.origin  # noqa: B018  the view must be clear
        return self

    @property
    def origin(self) -> str:
        """The view that it comes from."""
        if self.patient is not None:
            return "deaths"
        hint = "findings" if self.classes is not None else "measurements" if self.unit else None
        return self.found_in(hint)


class ShortParts(Part):
    """All short parts of a document: names of code systems, inputs, the outcome and the index date."""

    systems: dict[Name, Text] = Field(default_factory=dict)
    inputs: dict[Name, ShortInput] = Field(default_factory=dict)
    outcome: dict[Name, ShortOutcome] = Field(default_factory=dict)
    index: ShortIndex | None = None

    @model_validator(mode="after")
    def _one_outcome(self) -> Self:
        for name in list(self.outcome)[1:]:
            raise faults([(("outcome", name), "a study learns one outcome", "keep one line of [outcome]")])
        return self

    @model_validator(mode="after")
    def _systems(self) -> Self:
        for name in self.systems:
            if name in SYSTEMS or name in ShortInput.model_fields or name in ShortOutcome.model_fields:
                raise fault(f"'{name}' already has a meaning", "choose another name under [systems]")
        return self


SHORT_KEYS = tuple(ShortParts.model_fields)
