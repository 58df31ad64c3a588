"""Scaling by statistics that the federation computes without sharing rows.

A site gives three numbers per column: how many values, their sum, and the sum of their squares. From those of all sites
follow the mean and the deviation of the whole. What fewer subjects than the floor have is not given at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import Refused, SettingsError
from abaton.features.table import Column, Table

_FLAT = 1e-12
"""A variance below this part of the mean's square is rounding: the column is constant."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Of one column: how many values there are, their sum, and the sum of their squares."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    @property
    def mean(self) -> float:
        """The mean; 0 if nobody has a value."""
        return self.total / self.count if self.count else 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation; 1 for a constant column, which scaling then leaves at 0."""
        if not self.count:
            return 1.0
        variance = self.squares / self.count - self.mean**2
        return sqrt(variance) if variance > _FLAT * max(1e-300, self.mean**2) else 1.0


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a site, or the federation, tells about its columns; nothing else has to leave for scaling.

    >>> site = Statistics({"age": Moments(10, 500.0, 25_250.0)})
    >>> both = pooled([site, site])
    >>> both.of["age"].mean, round(both.of["age"].deviation, 6)
    (50.0, 5.0)
    """

    of: dict[str, Moments]


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """A table ready for a learner: no gaps, numbers around 0.

    Attributes:
        columns: The names of the columns.
        x: float32, one row per subject.
        y: Classes as int64, or values as float32; of times two columns: the time, and 1 for an event or 0 for none.
        classes: The names of the classes; none for values and times.
        subjects: Whose row it is.
    """

    columns: tuple[str, ...]
    x: NDArray[np.float32]
    y: NDArray[Any]
    classes: tuple[str, ...]
    subjects: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.subjects)

    def __repr__(self) -> str:
        return f"Scaled({len(self.columns)} columns)"


def statistics(table: Table) -> Statistics:
    """What a site tells: only columns that are scaled or filled with a mean, only if enough subjects have a value.

    Raises:
        Refused: The whole table has fewer subjects than the floor.
    """
    if len(table) < table.floor:
        raise Refused(
            f"the table has fewer than {table.floor} subjects",
            where="statistics",
            remedy="nothing can be told of so few; the site cannot take part yet",
        )
    made = {}
    for i, column in enumerate(table.columns):
        if column.pooled:
            made[column.name] = _moments(column, table.x[:, i], table.floor)
    return Statistics(made)


def _moments(column: Column, values: NDArray[np.float64], floor: int) -> Moments:
    known = values[~np.isnan(values)]
    yes = int(np.count_nonzero(known))
    # The sum of a yes-or-no column is a count of people: few of either kind are not told.
    if len(known) < floor or (not column.measured and (0 < yes < floor or 0 < len(known) - yes < floor)):
        return Moments()
    return Moments(len(known), fsum(known), fsum(known * known))


def pooled(sites: Iterable[Statistics]) -> Statistics:
    """The statistics of all sites together; the same in whatever order they come.

    Raises:
        SettingsError: The sites do not speak of the same columns.
    """
    given = list(sites)
    if not given:
        raise SettingsError("there are no statistics", where="pooling", remedy="ask at least one site")
    names = list(given[0].of)
    if any(list(each.of) != names for each in given):
        raise SettingsError(
            "the sites tell of different columns", where="pooling", remedy="give all sites the same study"
        )
    return Statistics({name: _sum([each.of[name] for each in given]) for name in names})


def _sum(parts: Sequence[Moments]) -> Moments:
    return Moments(
        sum(part.count for part in parts),
        fsum(part.total for part in parts),
        fsum(part.squares for part in parts),
    )


def scaled(table: Table, federation: Statistics) -> Scaled:
    """Fill gaps with the federation's means and bring measured columns to mean 0 and deviation 1.

    Raises:
        SettingsError: The statistics are of another plan.
    """
    wanted = [column.name for column in table.columns if column.pooled]
    if wanted != list(federation.of):
        raise SettingsError(
            "the statistics do not belong to this table",
            where="scaling",
            remedy="use those of the same study",
        )
    x = table.x.copy()
    for i, column in enumerate(table.columns):
        if not column.pooled:
            continue
        moments, values = federation.of[column.name], x[:, i]
        values[np.isnan(values)] = moments.mean
        if column.measured:
            x[:, i] = (values - moments.mean) / moments.deviation
    y = table.y if table.classes else table.y.astype(np.float32)
    names = tuple(column.name for column in table.columns)
    return Scaled(names, x.astype(np.float32), y, table.classes, table.subjects)
