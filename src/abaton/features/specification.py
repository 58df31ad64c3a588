"""Feature specification: which columns of which views become model inputs, and the label.

The settings are the ``[features]`` section of the study document. With the views they form one
:class:`ResolvedFeatureSpec`, the same at every site.

Invariants:
(1) everything here is frozen and consists of plain values;
(2) the order of inputs and categories in the study document is the order of the columns;
(3) two sites with the same specification build the same columns, whatever their records contain.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from math import log
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from abaton.documents.fields import (
    Coding,
    DateField,
    Duration,
    Name,
    Section,
    Text,
    duration_days,
    field_error,
)
from abaton.fhir.ucum import convertible, parse_unit


class InputKind(StrEnum):
    """Kind of an input: number, category, age, flag, or count of rows."""

    NUMBER = "number"
    CATEGORY = "category"
    AGE = "age"
    FLAG = "flag"
    COUNT = "count"


class Aggregation(StrEnum):
    """Aggregation of several rows of one subject to one value."""

    LATEST = "latest"
    EARLIEST = "earliest"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    COUNT = "count"
    ANY = "any"


class Imputation(StrEnum):
    """Replacement of a missing value: the federation's mean, a constant, or dropping the subject."""

    MEAN = "mean"
    CONSTANT = "constant"
    DROP = "drop"


class LabelKind(StrEnum):
    """Kind of a label: presence of a row, class, threshold, value, event in a window, or time to event."""

    ANY = "any"
    CLASSES = "classes"
    THRESHOLD = "threshold"
    VALUE = "value"
    EVENT = "event"
    TIME = "time"


_AGGREGATIONS: dict[InputKind, tuple[Aggregation, ...]] = {
    InputKind.NUMBER: (
        Aggregation.LATEST,
        Aggregation.EARLIEST,
        Aggregation.MEAN,
        Aggregation.MIN,
        Aggregation.MAX,
    ),
    InputKind.CATEGORY: (Aggregation.LATEST, Aggregation.EARLIEST, Aggregation.ANY),
    InputKind.AGE: (Aggregation.LATEST, Aggregation.EARLIEST),
    InputKind.FLAG: (Aggregation.ANY, Aggregation.LATEST, Aggregation.EARLIEST),
    InputKind.COUNT: (Aggregation.COUNT,),
}
_ORDERED = (Aggregation.LATEST, Aggregation.EARLIEST)


class RowFilter(Section):
    """Filter of rows by codes or values of a column."""

    column: Text
    system_column: Text | None = None
    codes: tuple[Coding, ...] = ()
    values: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _check_filter(self) -> Self:
        if not self.codes and not self.values:
            raise field_error(
                "the filter names neither codes nor values", "write codes = [...] or values = [...]"
            )
        return self


class Category(Section):
    """Category or class with its codes or values."""

    name: Text
    codes: tuple[Coding, ...] = ()
    values: tuple[Text, ...] = ()


CodeSet = RowFilter | Category
"""Filter or category with codes and values."""


def matches_code(codes: CodeSet, system: str | None, code: str) -> bool:
    """Return whether a cell matches a category or filter of a feature specification; no system: code only.

    >>> matches_code(Category(name="female", values=("female",)), None, "female")
    True
    """
    return code in codes.values or any(
        coding.matches(coding.system if system is None else system, code) for coding in codes.codes
    )


def _check_categories(categories: tuple[Category, ...], min_categories: int) -> None:
    names = [category.name for category in categories]
    if len(names) < min_categories or len(set(names)) < len(names) or {"other", "missing"} & set(names):
        raise field_error(
            "the list of categories or classes is too short, has duplicates or uses 'other' or 'missing'",
            f"give at least {min_categories}, each with its own name",
        )
    keys = [
        key
        for category in categories
        for key in (*((coding.system, coding.code) for coding in category.codes), *category.values)
    ]
    if len(set(keys)) < len(keys) or not all(category.codes or category.values for category in categories):
        raise field_error(
            "a category has no codes, or a code has two categories",
            "give each category its own codes or values",
        )


class ViewColumn(Section):
    """Source of values: view, columns, row filter, and aggregation per subject."""

    view: Name
    column: Text | None = None
    system_column: Text | None = None
    date_column: Text | None = None
    where: RowFilter | None = None
    aggregation: Aggregation | None = None

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.aggregation in _ORDERED and self.date_column is None and not self._is_date_column:
            raise field_error(
                f"'{self.aggregation}' has no date", "name the column with the date: date_column = '...'"
            )
        return self

    @property
    def _is_date_column(self) -> bool:
        """Return whether the column of a feature specification is the date by which rows are ordered."""
        return False

    @property
    def columns(self) -> dict[str, str]:
        """Return the view columns that a feature specification names, by key."""
        keys = {"column": self.column, "system_column": self.system_column, "date_column": self.date_column}
        return {key: name for key, name in keys.items() if name is not None}


class IndexDate(ViewColumn):
    """Index date of each subject, to which ages and events refer."""

    column: Text

    @property
    def _is_date_column(self) -> bool:
        return True

    @model_validator(mode="after")
    def _check_aggregation(self) -> Self:
        if self.aggregation not in (None, *_ORDERED):
            raise field_error(
                f"an index date is not aggregated by '{self.aggregation}'",
                "write aggregation = 'earliest' or 'latest'",
            )
        return self


class QuantityColumn(ViewColumn):
    """Source of numbers that may have a unit."""

    unit: Text | None = None
    unit_column: Text | None = None
    molar_mass: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _check_units(self) -> Self:
        if (self.unit is None) != (self.unit_column is None):
            raise field_error(
                "one of 'unit' and 'unit_column' is missing",
                "name the target unit and the column with the unit of each value",
            )
        if self.unit is not None and parse_unit(self.unit) is None:
            raise field_error("this is not a UCUM unit", "write for example mm[Hg], mg/dL, a or {score}")
        if self.molar_mass is not None and not convertible("mol", "g", molar_mass=self.molar_mass):
            raise field_error("this molar mass is out of range", "give grams per mole")
        return self

    @property
    def columns(self) -> dict[str, str]:
        """Return the view columns that a feature specification names, with that of the unit, by key."""
        return super().columns | ({"unit_column": self.unit_column} if self.unit_column else {})


class InputSpec(QuantityColumn):
    """One input of the model."""

    name: Name
    kind: InputKind
    on_unit_mismatch: Literal["missing", "refuse"] = "missing"
    categories: tuple[Category, ...] = ()
    reference_date: DateField | None = None
    band_width: float | None = Field(None, gt=0)
    spline: tuple[float, ...] = ()
    scale: Literal["log"] | None = None
    plausible: tuple[float, ...] = ()
    on_implausible: Literal["keep"] | None = None
    imputation: Imputation = Imputation.MEAN
    fill_value: float | str | None = None
    missing_indicator: bool = False
    after_index: bool = False

    @property
    def _is_date_column(self) -> bool:
        return getattr(self, "kind", None) is InputKind.AGE

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        kind = self.kind
        if kind in (InputKind.NUMBER, InputKind.CATEGORY, InputKind.AGE) and self.column is None:
            raise field_error(
                f"kind '{kind}' has no column", "name the column with the value: column = '...'"
            )
        if kind is InputKind.COUNT and self.column is not None:
            raise field_error("kind 'count' counts rows", "remove 'column', and select rows with 'where'")
        if self.aggregation is not None and self.aggregation not in _AGGREGATIONS[kind]:
            choices = ", ".join(_AGGREGATIONS[kind])
            raise field_error(f"kind '{kind}' is not aggregated by '{self.aggregation}'", f"choose {choices}")
        for key, kinds in _KEY_KINDS.items():
            if getattr(self, key) and kind not in kinds:
                raise field_error(f"'{key}' is not a key of kind '{kind}'", f"remove '{key}'")
        if kind is InputKind.CATEGORY:
            _check_categories(self.categories, 1)
        if self.plausible and (len(self.plausible) != 2 or self.plausible[0] >= self.plausible[1]):
            raise field_error(
                "'plausible' is not a range", "give the lowest and the highest value: plausible = [50, 300]"
            )
        if self.spline:
            _check_knots(self.spline, is_log=self.scale == "log")
        elif self.scale is not None:
            raise field_error("'scale' has no 'spline'", "declare knots: spline = [0.6, 1.0, 1.6]")
        return self._check_imputation()

    def _check_imputation(self) -> Self:
        is_never_missing = self.kind is InputKind.COUNT or (
            self.kind is InputKind.FLAG and self.column is None
        )
        if is_never_missing and (self.imputation is not Imputation.MEAN or self.missing_indicator):
            raise field_error(
                "without a row this input is 0, so it is never missing",
                "remove 'imputation' and 'missing_indicator'",
            )
        if (self.imputation is Imputation.CONSTANT) != (self.fill_value is not None):
            raise field_error(
                "one of 'fill_value' and imputation = 'constant' is missing", "give both or neither"
            )
        if self.kind is InputKind.CATEGORY:
            is_valid = self.fill_value in (None, *(category.name for category in self.categories))
        else:
            is_valid = self.fill_value is None or isinstance(self.fill_value, int | float)
        if not is_valid:
            raise field_error(
                "'fill_value' is not a value of this input", "give a number, or the name of a category"
            )
        if self.imputation is Imputation.DROP and self.missing_indicator:
            raise field_error(
                "'missing_indicator' has no effect on dropped subjects", "remove 'missing_indicator'"
            )
        return self


_KEY_KINDS: dict[str, tuple[InputKind, ...]] = {
    "categories": (InputKind.CATEGORY,),
    "system_column": (InputKind.CATEGORY,),
    "unit": (InputKind.NUMBER,),
    "molar_mass": (InputKind.NUMBER,),
    "reference_date": (InputKind.AGE,),
    "band_width": (InputKind.NUMBER, InputKind.AGE),
    "spline": (InputKind.NUMBER, InputKind.AGE, InputKind.COUNT),
    "scale": (InputKind.NUMBER, InputKind.AGE, InputKind.COUNT),
    "plausible": (InputKind.NUMBER, InputKind.AGE),
    "on_implausible": (InputKind.NUMBER, InputKind.AGE),
}
_MIN_KNOTS, _MAX_KNOTS = 3, 7
_MIN_KNOT_GAP = 0.01  # of the distance between the outer knots


def _check_knots(knots: tuple[float, ...], *, is_log: bool) -> None:
    if not _MIN_KNOTS <= len(knots) <= _MAX_KNOTS:
        raise field_error(
            f"a spline has {len(knots)} knots",
            f"give {_MIN_KNOTS} to {_MAX_KNOTS}, for example spline = [100, 120, 140, 160]",
        )
    if any(low >= high for low, high in pairwise(knots)):
        raise field_error("the knots of a spline do not increase", "sort them, each once")
    if is_log and knots[0] <= 0:
        raise field_error("a knot on a log scale is not positive", "give positive knots, or remove 'scale'")
    positions = [log(knot) for knot in knots] if is_log else list(knots)
    if min(high - low for low, high in pairwise(positions)) < _MIN_KNOT_GAP * (positions[-1] - positions[0]):
        raise field_error("two knots of a spline almost coincide", "space them out, or remove one")


class FollowUpSpec(Section):
    """Rows with dates of follow-up contacts (the latest counts) or deaths (the earliest counts)."""

    view: Name
    date_column: Text
    where: RowFilter | None = None


class LabelSpec(QuantityColumn):
    """Label of the model: a class, a value, an event in a window, or a time to event."""

    name: Name = "label"
    kind: LabelKind
    classes: tuple[Category, ...] = ()
    threshold: float | None = None
    outcome_window: Duration | None = None
    follow_up: FollowUpSpec | None = None
    death: FollowUpSpec | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        given = {
            key
            for key in ("column", "classes", "threshold", "outcome_window", "follow_up", "death", "unit")
            if getattr(self, key) not in (None, ())
        }
        required, allowed = _LABEL_KEYS[self.kind]
        if missing := required - given:
            raise field_error(f"a label of kind '{self.kind}' has no '{sorted(missing)[0]}'", "add it")
        if unexpected := given - required - allowed:
            raise field_error(
                f"'{sorted(unexpected)[0]}' is not a key of a label of kind '{self.kind}'", "remove it"
            )
        if self.kind is LabelKind.CLASSES:
            _check_categories(self.classes, 2)
        if self.kind in EVENT_LABELS and self.date_column is None:
            raise field_error("an event has no date", "name the column: date_column = '...'")
        aggregations: tuple[Aggregation, ...] = ()
        if self.kind in (LabelKind.THRESHOLD, LabelKind.VALUE):
            aggregations = _AGGREGATIONS[InputKind.NUMBER]
        elif self.kind is LabelKind.CLASSES:
            aggregations = _ORDERED
        if self.aggregation is not None and self.aggregation not in aggregations:
            remedy = f"choose {', '.join(aggregations)}" if aggregations else "remove 'aggregation'"
            raise field_error(
                f"a label of kind '{self.kind}' is not aggregated by '{self.aggregation}'", remedy
            )
        return self

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the class names of the label specification; empty for regression and survival."""
        if self.kind in (LabelKind.VALUE, LabelKind.TIME):
            return ()
        return tuple(category.name for category in self.classes) or ("no", "yes")

    @property
    def window_days(self) -> int | None:
        """Return the length of the outcome window of the label specification in days."""
        return duration_days(self.outcome_window) if self.outcome_window else None


_LABEL_KEYS: dict[LabelKind, tuple[set[str], set[str]]] = {
    LabelKind.ANY: (set(), set()),
    LabelKind.CLASSES: ({"column", "classes"}, set()),
    LabelKind.THRESHOLD: ({"column", "threshold"}, {"unit"}),
    LabelKind.VALUE: ({"column"}, {"unit"}),
    LabelKind.EVENT: ({"outcome_window"}, {"follow_up"}),
    LabelKind.TIME: ({"outcome_window", "follow_up"}, {"death"}),
}
"""Required and optional keys of each kind of label."""

EVENT_LABELS = (LabelKind.EVENT, LabelKind.TIME)
"""Labels that are counted from an index date."""


class FeatureSpec(Section):
    """Section ``[features]``: one row per subject, the same columns at every site."""

    subject: Text = "subject"
    cohort: Name | None = None
    index_date: IndexDate | None = None
    inputs: Annotated[tuple[InputSpec, ...], Field(min_length=1)]
    label: LabelSpec

    @model_validator(mode="after")
    def _check_names_and_dates(self) -> Self:
        names = [spec.name for spec in self.inputs]
        if len(set(names)) < len(names):
            raise field_error("two inputs have the same name", "give each its own name")
        if self.label.name in names:
            raise field_error(
                f"the label and an input are both called '{self.label.name}'", "rename one of them"
            )
        if self.index_date is not None:
            return self
        if self.label.kind in EVENT_LABELS:
            raise field_error("an event has no index date", "add [features.index_date]")
        if any(spec.kind is InputKind.AGE and spec.reference_date is None for spec in self.inputs):
            raise field_error(
                "an age has no reference date", "add 'reference_date' to the input, or [features.index_date]"
            )
        return self


class ResolvedFeatureSpec(FeatureSpec):
    """Feature specification with the views it reads and the minimum cell count."""

    views: dict[str, Any] = Field(repr=False)
    min_cell_count: int = 5
