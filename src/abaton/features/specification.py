"""Features: which columns of which views become which inputs of a model, and what is learned from them.

The settings are the study document's table ``[features]`` itself: one model, read, checked and written back as it
stands. With the views it makes one :class:`Plan`, the same at every site.

Invariants:
(1) everything here is frozen and made of plain values;
(2) the order of inputs and categories is the order of the study document: it is the order of the columns;
(3) two sites with the same plan make the same columns, whatever their records hold.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from abaton.documents.fields import Day, Name, Part, Span, Term, Text, fault
from abaton.documents.fields import days as days_of
from abaton.fhir.ucum import convertible, read_unit


class Kind(StrEnum):
    """What an input is: a measured number, one of some categories, an age, yes or no, or how many."""

    NUMBER = "number"
    CATEGORY = "category"
    AGE = "age"
    FLAG = "flag"
    COUNT = "count"


class Join(StrEnum):
    """How several rows of one subject become one value."""

    LATEST = "latest"
    EARLIEST = "earliest"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    COUNT = "count"
    ANY = "any"


class Missing(StrEnum):
    """What stands for a value that is not there: the federation's mean, a constant, or the subject is left out."""

    MEAN = "mean"
    CONSTANT = "constant"
    DROP = "drop"


class Outcome(StrEnum):
    """What is learned: whether a row exists, a class by codes, a side of a threshold, a value, an event in time.

    ``event`` is whether it happens within a time, ``time`` how long it takes until it happens.
    """

    ANY = "any"
    CLASSES = "classes"
    THRESHOLD = "threshold"
    VALUE = "value"
    EVENT = "event"
    TIME = "time"


_JOINS: dict[Kind, tuple[Join, ...]] = {
    Kind.NUMBER: (Join.LATEST, Join.EARLIEST, Join.MEAN, Join.MIN, Join.MAX),
    Kind.CATEGORY: (Join.LATEST, Join.EARLIEST, Join.ANY),
    Kind.AGE: (Join.LATEST, Join.EARLIEST),
    Kind.FLAG: (Join.ANY, Join.LATEST, Join.EARLIEST),
    Kind.COUNT: (Join.COUNT,),
}
_ORDERED = (Join.LATEST, Join.EARLIEST)


class Where(Part):
    """Only rows count whose column holds one of the codes or values."""

    column: Text
    system_column: Text | None = None
    codes: tuple[Term, ...] = ()
    values: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.codes and not self.values:
            raise fault("the filter names neither codes nor values", "write codes = [...] or values = [...]")
        return self


class Category(Part):
    """A category or class, and the codes or plain values that mean it."""

    name: Text
    codes: tuple[Term, ...] = ()
    values: tuple[Text, ...] = ()


Meaning = Where | Category
"""Something that has codes and values."""


def means(meaning: Meaning, system: str | None, code: str) -> bool:
    """Whether a cell means a category or is found by a filter; without its system it is compared by code alone.

    >>> means(Category(name="female", values=("female",)), None, "female")
    True
    """
    return code in meaning.values or any(
        term.matches(term.system if system is None else system, code) for term in meaning.codes
    )


def _check_categories(categories: tuple[Category, ...], least: int) -> None:
    names = [category.name for category in categories]
    if len(names) < least or len(set(names)) < len(names) or {"other", "missing"} & set(names):
        raise fault(
            "the list of categories or classes is too short, repeats itself or uses 'other' or 'missing'",
            f"give at least {least}, each with its own name",
        )
    meant = [
        (category.name, key)
        for category in categories
        for key in (*((term.system, term.code) for term in category.codes), *category.values)
    ]
    keys = [key for _, key in meant]
    twice = next((name for name, key in meant if keys.count(key) > 1), None)
    if twice is not None or not all(category.codes or category.values for category in categories):
        raise fault(
            f"a code means nothing, or two things (see '{twice or categories[0].name}')",
            "give each category codes or values of its own",
        )


class Source(Part):
    """Where values come from: a view, its columns, which rows, and how those of one subject are joined."""

    view: Name
    column: Text | None = None
    system_column: Text | None = None
    when: Text | None = None
    where: Where | None = None
    join: Join | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.join in _ORDERED and self.when is None and not self._dates_itself:
            raise fault(f"'{self.join}' needs to know when", "name the column with the date: when = '...'")
        return self

    @property
    def _dates_itself(self) -> bool:
        """Whether the column is the date that the rows are ordered by."""
        return False

    @property
    def columns(self) -> dict[str, str]:
        """The columns that are named, by the key that names them."""
        keys = {"column": self.column, "system_column": self.system_column, "when": self.when}
        return {key: name for key, name in keys.items() if name is not None}


class IndexDate(Source):
    """The date of each subject to which ages and events refer."""

    column: Text

    @property
    def _dates_itself(self) -> bool:
        return True

    @model_validator(mode="after")
    def _joined(self) -> Self:
        if self.join not in (None, *_ORDERED):
            raise fault("a date is the earliest or the latest", "write join = 'earliest' or 'latest'")
        return self


class Measured(Source):
    """Rows whose column may be a number with a unit."""

    unit: Text | None = None
    unit_column: Text | None = None
    molar_mass: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _units(self) -> Self:
        if (self.unit is None) != (self.unit_column is None):
            raise fault(
                "'unit' and 'unit_column' belong together",
                "name the unit that is wanted and the column that tells which one it is",
            )
        if self.unit is not None and read_unit(self.unit) is None:
            raise fault("this is not a unit of UCUM", "write for example mm[Hg], mg/dL, a or {score}")
        if self.molar_mass is not None and not convertible("mol", "g", molar_mass=self.molar_mass):
            raise fault("this molar mass cannot be used", "give grams per mole")
        return self

    @property
    def columns(self) -> dict[str, str]:
        """The columns that are named, by the key that names them."""
        return super().columns | ({"unit_column": self.unit_column} if self.unit_column else {})


class Input(Measured):
    """One input of the model."""

    name: Name
    kind: Kind
    wrong_unit: Literal["missing", "refuse"] = "missing"
    categories: tuple[Category, ...] = ()
    at: Day | None = None
    band: float | None = Field(None, gt=0)
    missing: Missing = Missing.MEAN
    fill: float | str | None = None
    indicator: bool = False
    after_index: bool = False

    @property
    def _dates_itself(self) -> bool:
        return getattr(self, "kind", None) is Kind.AGE

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        kind = self.kind
        if kind in (Kind.NUMBER, Kind.CATEGORY, Kind.AGE) and self.column is None:
            raise fault(f"kind '{kind}' needs a column", "name the column with the value: column = '...'")
        if kind is Kind.COUNT and self.column is not None:
            raise fault("rows are counted, not a column", "remove 'column', and choose rows by 'where'")
        if self.join is not None and self.join not in _JOINS[kind]:
            ways = ", ".join(_JOINS[kind])
            raise fault(f"kind '{kind}' cannot be joined by '{self.join}'", f"choose {ways}")
        for key, kinds in _OWN_KEYS.items():
            if getattr(self, key) and kind not in kinds:
                raise fault(f"'{key}' does not belong to kind '{kind}'", f"remove '{key}'")
        if kind is Kind.CATEGORY:
            _check_categories(self.categories, 1)
        return self._filled()

    def _filled(self) -> Self:
        never = self.kind is Kind.COUNT or (self.kind is Kind.FLAG and self.column is None)
        if never and (self.missing is not Missing.MEAN or self.indicator):
            raise fault("without a row this is 0, so it is never missing", "remove 'missing' and 'indicator'")
        if (self.missing is Missing.CONSTANT) != (self.fill is not None):
            raise fault("'fill' belongs to missing = 'constant'", "give both or neither")
        if self.kind is Kind.CATEGORY:
            fits = self.fill is None or self.fill in [category.name for category in self.categories]
        else:
            fits = self.fill is None or isinstance(self.fill, int | float)
        if not fits:
            raise fault("'fill' is not a value of this input", "give a number, or the name of a category")
        if self.missing is Missing.DROP and self.indicator:
            raise fault("a subject that is left out needs no indicator", "remove 'indicator'")
        return self


_OWN_KEYS: dict[str, tuple[Kind, ...]] = {
    "categories": (Kind.CATEGORY,),
    "system_column": (Kind.CATEGORY,),
    "unit": (Kind.NUMBER,),
    "molar_mass": (Kind.NUMBER,),
    "at": (Kind.AGE,),
    "band": (Kind.NUMBER, Kind.AGE),
}


class FollowUp(Part):
    """Rows that say until when a subject was watched: the latest of contacts, the earliest of deaths."""

    view: Name
    when: Text
    where: Where | None = None


class Label(Measured):
    """What is learned: a class, a value, whether an event happens within a time, or how long it takes."""

    name: Name = "label"
    kind: Outcome
    classes: tuple[Category, ...] = ()
    above: float | None = None
    window: Span | None = None
    follow_up: FollowUp | None = None
    death: FollowUp | None = None

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        given = {
            key
            for key in ("column", "classes", "above", "window", "follow_up", "death", "unit")
            if getattr(self, key) not in (None, ())
        }
        needed, allowed = _LABELS[self.kind]
        if missing := needed - given:
            raise fault(f"a label of kind '{self.kind}' needs '{sorted(missing)[0]}'", "add it")
        if strange := given - needed - allowed:
            raise fault(
                f"'{sorted(strange)[0]}' does not belong to a label of kind '{self.kind}'", "remove it"
            )
        if self.kind is Outcome.CLASSES:
            _check_categories(self.classes, 2)
        if self.kind in DATED and self.when is None:
            raise fault("an event needs its date", "name the column: when = '...'")
        numeric = self.kind in (Outcome.THRESHOLD, Outcome.VALUE)
        ways = _JOINS[Kind.NUMBER] if numeric else _ORDERED if self.kind is Outcome.CLASSES else ()
        if self.join is not None and self.join not in ways:
            told = f"choose {', '.join(ways)}" if ways else "remove 'join'"
            raise fault(f"a label of kind '{self.kind}' is not joined by '{self.join}'", told)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes; none for a value or a time."""
        if self.kind in (Outcome.VALUE, Outcome.TIME):
            return ()
        return tuple(each.name for each in self.classes) or ("no", "yes")

    @property
    def days(self) -> int | None:
        """How many days after the index date an event counts, or people are watched."""
        return days_of(self.window) if self.window else None


_LABELS: dict[Outcome, tuple[set[str], set[str]]] = {
    Outcome.ANY: (set(), set()),
    Outcome.CLASSES: ({"column", "classes"}, set()),
    Outcome.THRESHOLD: ({"column", "above"}, {"unit"}),
    Outcome.VALUE: ({"column"}, {"unit"}),
    Outcome.EVENT: ({"window"}, {"follow_up"}),
    Outcome.TIME: ({"window", "follow_up"}, {"death"}),
}
"""For each kind of label the keys that it needs, and those that it may have."""

DATED = (Outcome.EVENT, Outcome.TIME)
"""What is counted from an index date."""


class Features(Part):
    """From the columns of views to arrays: one row per subject, the same columns at every site."""

    subject: Text = "subject"
    cohort: Name | None = None
    index: IndexDate | None = None
    inputs: Annotated[tuple[Input, ...], Field(min_length=1)]
    label: Label

    @model_validator(mode="after")
    def _whole(self) -> Self:
        names = [each.name for each in self.inputs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise fault(f"two inputs are called '{twice}'", "give each its own name")
        if self.label.name in names:
            raise fault(f"the label and an input are both called '{self.label.name}'", "rename one of them")
        dateless = self.index is None
        if dateless and self.label.kind in DATED:
            raise fault("an event is counted from an index date", "add [index]")
        if dateless and any(each.kind is Kind.AGE and each.at is None for each in self.inputs):
            raise fault("an age needs a day at which it is told", "add 'at' to the input, or [index]")
        return self


class Plan(Features):
    """The features together with the views they are read from, and the smallest number of subjects that may be told."""

    views: dict[str, Any] = Field(repr=False)
    floor: int = 5
