"""Schema of the shorthand: inputs, outcome and index date, one line each."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from abaton.documents.fields import DateField, Duration, Name, Section, Text, field_error, field_errors
from abaton.errors import shorten_name
from abaton.features.specification import Aggregation, InputKind
from abaton.study.shorthand.codes import (
    DEFAULT_VIEWS,
    SYSTEMS,
    Codes,
    ShortCodes,
    is_well_formed,
    malformed_code,
)

_VALUE_COLUMNS = ("value", "above", "number", "yes")
"""The columns of the view ``measurements`` that hold a value."""
_FLAG_COLUMNS = ("above", "yes")


def _check_categories(
    value: dict[str, dict[str, Codes]], info: ValidationInfo
) -> dict[str, dict[str, Codes]]:
    known = (info.context or {}).get("systems", SYSTEMS)
    if not value:
        raise field_error(
            "there are no categories", 'write categories = { snomed = { never = "266919005" } }'
        )
    for system in value:
        if system not in known:
            raise field_error(
                f"'{shorten_name(system)}' is not the short name of a code system",
                f"use {', '.join(SYSTEMS)}, or name it under [systems]",
            )
        for text in (text for codes in value[system].values() for text in codes):
            if not is_well_formed(system, text):
                raise field_error(*malformed_code(system))
    return value


Categories = Annotated[dict[str, dict[Text, Codes]], AfterValidator(_check_categories)]
"""Codes by the short name of a code system and the name of a category."""


class ShortRows(ShortCodes):
    """Selection of records by codes, in one view."""

    view: Name | None = None

    @property
    def default_view(self) -> str | None:
        """Return the default view of the codes in a shorthand line, if they have one in common."""
        views = {DEFAULT_VIEWS[name] for name in self.systems}
        return next(iter(views)) if len(views) == 1 and not self.codes else None

    def resolve_view(self, hint: str | None = None) -> str:
        """Return the view of the rows of a shorthand line: stated, or by its codes."""
        view = self.view or hint or self.default_view
        if view is None:
            raise field_error(
                "the codes have no common default view"
                if self.systems or self.codes
                else "neither codes nor a view are given",
                "write for example view = 'diagnoses'; others are measurements, findings, medicines, procedures, "
                "vaccines and visits",
            )
        return view


class ShortIndex(ShortRows):
    """Index date: the date of the earliest or latest record with a code."""

    aggregation: Literal["earliest", "latest"] = "earliest"

    @model_validator(mode="after")
    def _check_view(self) -> Self:
        self.resolve_view()
        return self


class ShortFollowUp(ShortRows):
    """Records that show that a subject was under observation."""

    @model_validator(mode="after")
    def _check_view(self) -> Self:
        self.resolve_view()
        return self


class ShortInput(ShortRows):
    """One model input: measured number, category, flag, count, age or sex."""

    patient: Literal["age", "sex"] | None = None
    kind: InputKind | None = None
    column: Text | None = None
    unit: Text | None = None
    molar_mass: float | None = None
    aggregation: Aggregation | None = None
    categories: Categories | None = None
    imputation: Literal["mean", "constant", "drop"] | None = None
    fill_value: float | str | None = None
    missing_indicator: bool = False
    on_unit_mismatch: Literal["missing", "refuse"] | None = None
    reference_date: DateField | None = None
    band_width: float | None = None
    spline: tuple[float, ...] = ()
    scale: Literal["log"] | None = None
    plausible: tuple[float, ...] = ()
    on_implausible: Literal["keep"] | None = None
    after_index: bool = False

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.patient is not None:
            if self.systems or self.codes or self.view:
                raise field_error("'patient' has no codes and no view", "remove them, or remove 'patient'")
            return self
        if self.input_kind is InputKind.NUMBER and self.unit is None and self.column in (None, "value"):
            raise field_error(
                "a measured number has no unit",
                'write unit = "mm[Hg]"; column = "number" or "yes" for values without one; or kind = "flag" '
                "for the presence of a record",
            )
        self.source_view  # noqa: B018  raises if there is no view
        return self

    @property
    def input_kind(self) -> InputKind:
        """Return the kind of a shorthand input, as stated or implied by its keys."""
        if self.kind is not None:
            return self.kind
        if self.categories is not None:
            return InputKind.CATEGORY
        if self.column in _FLAG_COLUMNS:
            return InputKind.FLAG
        return InputKind.NUMBER if self.source_view == "measurements" else InputKind.FLAG

    @property
    def source_view(self) -> str:
        """Return the view of a shorthand input."""
        if self.categories is not None:
            return self.resolve_view("findings")
        return self.resolve_view("measurements" if self.unit or self.column in _VALUE_COLUMNS else None)


class ShortOutcome(ShortRows):
    """Outcome: presence of a record, an event in a window, time to event, a value or a class."""

    patient: Literal["death"] | None = None
    outcome_window: Duration | None = None
    up_to: Duration | None = None
    follow_up: Annotated[Name | ShortFollowUp | None, Field(union_mode="left_to_right")] = None
    unit: Text | None = None
    molar_mass: float | None = None
    threshold: float | None = None
    aggregation: Aggregation | None = None
    classes: Categories | None = None

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.patient is not None and (self.systems or self.codes or self.view):
            raise field_error("'patient' has no codes and no view", "remove them, or remove 'patient'")
        if self.follow_up is not None and self.outcome_window is None and self.up_to is None:
            raise field_error(
                "'follow_up' has neither 'outcome_window' nor 'up_to'",
                "add outcome_window = 'P1Y' for an event, or up_to = 'P5Y' for a time to event",
            )
        given = {
            "outcome_window": self.outcome_window is not None,
            "up_to": self.up_to is not None,
            "classes": self.classes is not None,
            "unit": self.unit is not None,
        }
        if sum(given.values()) > 1:
            raise field_error(
                "the outcome has two definitions",
                f"keep one of {', '.join(key for key in given if given[key])}",
            )
        if self.threshold is not None and self.unit is None:
            raise field_error("'threshold' has no unit", 'write for example unit = "mm[Hg]", threshold = 140')
        if self.patient is None:
            self.source_view  # noqa: B018  raises if there is no view
        return self

    @property
    def source_view(self) -> str:
        """Return the view of a shorthand outcome."""
        if self.patient is not None:
            return "deaths"
        hint = "findings" if self.classes is not None else "measurements" if self.unit else None
        return self.resolve_view(hint)


class ShorthandSections(Section):
    """Shorthand sections of a document: code systems, inputs, outcome and index date."""

    systems: dict[Name, Text] = Field(default_factory=dict)
    inputs: dict[Name, ShortInput] = Field(default_factory=dict)
    outcome: dict[Name, ShortOutcome] = Field(default_factory=dict)
    index_date: ShortIndex | None = None

    @model_validator(mode="after")
    def _check_outcome(self) -> Self:
        for name in list(self.outcome)[1:]:
            raise field_errors(
                [(("outcome", name), "there are several outcomes", "keep one line of [outcome]")]
            )
        return self

    @model_validator(mode="after")
    def _check_systems(self) -> Self:
        for name in self.systems:
            if name in SYSTEMS or name in ShortInput.model_fields or name in ShortOutcome.model_fields:
                raise field_error(f"'{name}' is a reserved name", "choose another name under [systems]")
        return self


SHORTHAND_KEYS = tuple(ShorthandSections.model_fields)
