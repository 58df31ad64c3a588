"""The feature plan: which columns of which views become which inputs of a model, and what is learned from them.

The study document is read and checked elsewhere; it ends in one :class:`Plan`, the same at every site.

Invariants:
(1) everything here is frozen and made of plain values;
(2) the order of inputs and categories is the order of the study document: it is the order of the columns;
(3) two sites with the same plan make the same columns, whatever their records hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from typing import Any


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
    """What is learned: whether a row exists, a class by codes, a side of a threshold, a value, an event in time."""

    ANY = "any"
    CLASSES = "classes"
    THRESHOLD = "threshold"
    VALUE = "value"
    EVENT = "event"


@dataclass(frozen=True, slots=True)
class Category:
    """One category, and the codes (system and code), beginnings of codes or plain values that mean it.

    >>> Category("female", values=("female",)).means(None, "female")
    True
    """

    name: str
    codes: tuple[tuple[str, str], ...] = ()
    beginnings: tuple[tuple[str, str], ...] = ()
    values: tuple[str, ...] = ()

    @property
    def systems(self) -> frozenset[str]:
        """The code systems that the category speaks of."""
        return frozenset(system for system, _ in (*self.codes, *self.beginnings))

    def means(self, system: str | None, code: str) -> bool:
        """Whether a cell means this category; a column without its system is compared by code alone."""
        if code in self.values:
            return True
        if any(code == known and system in (None, where) for where, known in self.codes):
            return True
        return any(code.startswith(known) and system in (None, where) for where, known in self.beginnings)


@dataclass(frozen=True, slots=True)
class Where:
    """Only rows count whose column holds one of the codes or values."""

    column: str
    chosen: Category
    system: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where values come from: a view, its columns, which rows, and how those of one subject are joined.

    Attributes:
        view: The view's name.
        column: The column with the value; none where only the rows count.
        system: The column with the code system of the value.
        unit: The column with the unit of the value.
        when: The column that says when, for `latest`, `earliest` and what happened before the index date.
        where: Only these rows count.
        join: How several rows of a subject become one value.
    """

    view: str
    column: str | None = None
    system: str | None = None
    unit: str | None = None
    when: str | None = None
    where: Where | None = None
    join: Join | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """One input of the model.

    Attributes:
        name: Its name; its columns are named after it.
        kind: What it is.
        source: Where its values come from.
        unit: The unit that every value is told in; none for a plain number.
        molar_mass: Grams per mole, to tell an amount of substance as a mass.
        refuse_units: Whether a wrong or missing unit makes the site's table unusable, instead of the value missing.
        categories: The categories, in order; whatever else is found goes to one more, "other".
        at: The day at which an age is told; none for the index date.
        band: Numbers and ages are told as the middle of a band of this width.
        missing: What stands for a value that is not there.
        fill: The constant, or the name of the category.
        indicator: Whether one more column says that the value was not there.
        after_index: Whether rows after the index date count too.
    """

    name: str
    kind: Kind
    source: Source
    unit: str | None = None
    molar_mass: float | None = None
    refuse_units: bool = False
    categories: tuple[Category, ...] = ()
    at: date | None = None
    band: float | None = None
    missing: Missing = Missing.MEAN
    fill: float | str | None = None
    indicator: bool = False
    after_index: bool = False


@dataclass(frozen=True, slots=True)
class Label:
    """What is learned.

    Attributes:
        name: Its name.
        kind: How it is made.
        source: Where it comes from; for an event, `when` is its date.
        classes: The classes, in order, for `classes`.
        above: The threshold: above it is class 1.
        unit, molar_mass: As for an input, where a number is compared or learned.
        days: How many days after the index date an event counts.
        follow_up: Until when a subject is known to have been watched: the latest `when` of these rows.
    """

    name: str
    kind: Outcome
    source: Source
    classes: tuple[Category, ...] = ()
    above: float | None = None
    unit: str | None = None
    molar_mass: float | None = None
    days: int | None = None
    follow_up: Source | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes; none for a value."""
        if self.kind is Outcome.VALUE:
            return ()
        return tuple(each.name for each in self.classes) or ("no", "yes")


@dataclass(frozen=True, slots=True)
class Plan:
    """From view columns to arrays: the same at every site of a study.

    Attributes:
        views: The view definitions, by name.
        inputs: The inputs, in order.
        label: What is learned.
        subject: The column of every view that says whose row it is.
        cohort: The view whose subjects make the rows; every subject of any view if not given.
        index: The date of each subject to which ages and events refer.
        floor: The smallest number of subjects that may be told.
    """

    views: Mapping[str, Any] = field(repr=False)
    inputs: tuple[Input, ...]
    label: Label
    subject: str = "subject"
    cohort: str | None = None
    index: Source | None = None
    floor: int = 5
