"""The table of a site: one row per subject, one column per number that a model reads.

Invariants:
(1) rows stand in the order of the subjects' new identities, whatever the order of the records;
(2) columns depend on the plan alone;
(3) a value that the study fills with the federation's mean is NaN until scaling fills it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.features.extraction import Value
from abaton.features.specification import Input, Kind, Missing, Plan

OTHER = "other"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table: its input, whether it is a measured number, and whether its statistics are pooled."""

    name: str
    input: str
    measured: bool = False
    pooled: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The features of one site. Made from de-identified records only, and still about people: it never leaves.

    Attributes:
        columns: What each column is.
        x: One row per subject, float64; NaN where the federation's mean belongs.
        y: Classes as whole numbers, or values; of times two columns: days, and 1 for an event or 0 for none until then.
        classes: The names of the classes; none for values and times.
        subjects: Whose row it is, by the study's new identity.
        floor: The smallest number of subjects that may be told.
        label: The name of what is learned.
    """

    columns: tuple[Column, ...]
    x: NDArray[np.float64]
    y: NDArray[Any]
    classes: tuple[str, ...]
    subjects: tuple[str, ...]
    floor: int = 5
    label: str = "label"

    def __len__(self) -> int:
        return len(self.subjects)

    @property
    def timed(self) -> bool:
        """Whether it is learned how long it takes until something happens."""
        return self.y.ndim == 2

    def __repr__(self) -> str:
        return f"Table({len(self.columns)} columns)"  # rows are people, and their number may be small

    def without(self, subjects: frozenset[str]) -> Table:
        """The same table without some subjects, for example those who have withdrawn."""
        kept = np.array([subject not in subjects for subject in self.subjects], dtype=bool)
        names = tuple(subject for subject in self.subjects if subject not in subjects)
        return replace(self, x=self.x[kept], y=self.y[kept], subjects=names)


def columns(plan: Plan) -> tuple[Column, ...]:
    """The columns of a plan's table, the same at every site."""
    return tuple(column for each in plan.inputs for column in _columns(each))


def _columns(each: Input) -> Iterator[Column]:
    mean = each.missing is Missing.MEAN
    if each.kind is Kind.CATEGORY:
        for name in (*(category.name for category in each.categories), OTHER):
            yield Column(f"{each.name}={name}", each.name, pooled=mean)
    else:
        measured = each.kind in (Kind.NUMBER, Kind.AGE, Kind.COUNT)
        gaps = each.kind is not Kind.FLAG or each.column is not None
        yield Column(each.name, each.name, measured=measured, pooled=measured or (mean and gaps))
    if each.indicator:
        yield Column(f"{each.name} missing", each.name)


def encode(each: Input, values: Sequence[Value]) -> NDArray[np.float64]:
    """The columns of one input; missing numbers are filled with the constant, or left as NaN."""
    width = sum(1 for _ in _columns(each))
    made = np.full((len(values), width), np.nan)
    names = [category.name for category in each.categories]
    for row, value in enumerate(values):
        if value is None and each.missing is Missing.CONSTANT:
            value = _constant(each, names)
        if isinstance(value, frozenset):
            made[row, :] = 0.0
            made[row, sorted(value)] = 1.0
        elif value is not None:
            made[row, 0] = value
    if each.indicator:
        made[:, -1] = [value is None for value in values]
    return made


def _constant(each: Input, names: Sequence[str]) -> Value:
    if each.kind is Kind.CATEGORY:
        return frozenset([names.index(str(each.fill))] if each.fill in names else [])
    return float(each.fill) if isinstance(each.fill, int | float) else 0.0


def groups(table: Table, name: str, bands: Sequence[float] = ()) -> tuple[str, ...]:
    """The group of every row, for results per group: its category, yes or no, or the band its number lies in.

    Args:
        table: The table, before scaling.
        name: The input that makes the groups.
        bands: Where one band ends and the next begins, for numbers.

    Returns:
        One name per row; "missing" where the input is.
    """
    places = [i for i, column in enumerate(table.columns) if column.input == name]
    mine = [i for i in places if table.columns[i].name != f"{name} missing"]
    block = table.x[:, mine]
    if len(mine) > 1:
        names = [table.columns[i].name.removeprefix(f"{name}=") for i in mine]
        return tuple(names[int(row.argmax())] if np.nansum(row) else "missing" for row in block)
    told = [(low, high, _band(low, high)) for low, high in pairwise((-inf, *bands, inf))]
    if not bands:
        return tuple("missing" if np.isnan(v) else "yes" if v > 0 else "no" for v in block[:, 0])
    return tuple(next((text for low, high, text in told if low <= v < high), "missing") for v in block[:, 0])


def group_names(columns: Sequence[Column], name: str, bands: Sequence[float] = ()) -> tuple[str, ...]:
    """All groups that `groups` can find by an input."""
    mine = [c for c in columns if c.input == name and c.name != f"{name} missing"]
    if len(mine) > 1:
        return (*(c.name.removeprefix(f"{name}=") for c in mine), "missing")
    if not bands:
        return ("no", "yes", "missing")
    return (*(_band(low, high) for low, high in pairwise((-inf, *bands, inf))), "missing")


def _band(low: float, high: float) -> str:
    if low == -inf:
        return f"below {high:g}"
    return f"{low:g} and above" if high == inf else f"{low:g} to {high:g}"
