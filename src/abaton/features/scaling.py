"""Scaling with statistics computed by the federation without sharing rows.

A site releases count, sum and sum of squares per column, from which mean and standard deviation over all sites follow.
The sum of a binary column is a count of subjects, so it is withheld if either value is rare. Sums of squares lose
precision where the mean is a million times the deviation; such a column is treated as constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import RefusedError, SettingsError
from abaton.features.splines import expand_splines
from abaton.features.table import FeatureColumn, FeatureTable, model_columns

_MIN_RELATIVE_VARIANCE = 1e-12
"""A smaller ratio of variance to squared mean is rounding: the column is constant."""


@dataclass(frozen=True, slots=True)
class ColumnMoments:
    """Count, sum and sum of squares of one column."""

    count: int = 0
    sum: float = 0.0
    squared_sum: float = 0.0

    @property
    def mean(self) -> float:
        """Return the mean of a column for scaling; 0 without values."""
        return self.sum / self.count if self.count else 0.0

    @property
    def std(self) -> float:
        """Return the standard deviation for scaling; 1 for a constant column, which is then mapped to 0."""
        if not self.count:
            return 1.0
        variance = self.squared_sum / self.count - self.mean**2
        return sqrt(variance) if variance > _MIN_RELATIVE_VARIANCE * max(1e-300, self.mean**2) else 1.0


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of the columns of a site or of the federation.

    >>> site = ColumnStatistics({"age": ColumnMoments(10, 500.0, 25_250.0)})
    >>> both = pool_statistics([site, site])
    >>> both.columns["age"].mean, round(both.columns["age"].std, 6)
    (50.0, 5.0)
    """

    columns: dict[str, ColumnMoments]


@dataclass(frozen=True, slots=True, eq=False)
class ScaledTable:
    """Table ready for a learner: no missing values, numbers centred at 0.

    Attributes:
        columns: The names of the columns.
        x: float32, one row per subject.
        y: Classes as int64, or values as float32; for survival two columns: time, and 1 for an event or 0 for censored.
        classes: The names of the classes; empty for regression and survival.
        subjects: The subject of each row.
        weights: Inverse probability of censoring weight of each row; None if all are 1.
    """

    columns: tuple[str, ...]
    x: NDArray[np.float32]
    y: NDArray[Any]
    classes: tuple[str, ...]
    subjects: tuple[str, ...]
    weights: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.subjects)

    def __repr__(self) -> str:
        return f"ScaledTable({len(self.columns)} columns)"


def column_statistics(table: FeatureTable) -> ColumnStatistics:
    """Return the scaling statistics that a site releases: of columns scaled or imputed, with enough values.

    Raises:
        RefusedError: The table has fewer subjects than the minimum cell count.
    """
    if len(table) < table.min_cell_count:
        raise RefusedError(
            f"the table has fewer than {table.min_cell_count} subjects",
            where="statistics",
            remedy="add subjects; no statistics are released for fewer",
        )
    columns = {}
    for i, column in enumerate(table.columns):
        if column.has_statistics:
            columns[column.name] = _column_moments(column, table.x[:, i], table.min_cell_count)
    return ColumnStatistics(columns)


def _column_moments(column: FeatureColumn, values: NDArray[np.float64], min_cell_count: int) -> ColumnMoments:
    known = values[~np.isnan(values)]
    nonzero = int(np.count_nonzero(known))
    # The sum of a binary column is a count of subjects: rare values are suppressed.
    if len(known) < min_cell_count or (
        not column.is_numeric and (0 < nonzero < min_cell_count or 0 < len(known) - nonzero < min_cell_count)
    ):
        return ColumnMoments()
    return ColumnMoments(len(known), fsum(known), fsum(known * known))


def pool_statistics(sites: Iterable[ColumnStatistics]) -> ColumnStatistics:
    """Pool the scaling statistics of all sites, independent of their order.

    Raises:
        SettingsError: The sites have different columns.
    """
    released = list(sites)
    if not released:
        raise SettingsError("no site has statistics", where="pooling", remedy="add at least one site")
    names = list(released[0].columns)
    if any(list(site.columns) != names for site in released):
        raise SettingsError(
            "the sites have different columns", where="pooling", remedy="use the same study at all sites"
        )
    return ColumnStatistics(
        {name: _sum_column_moments([site.columns[name] for site in released]) for name in names}
    )


def _sum_column_moments(column_moments: Sequence[ColumnMoments]) -> ColumnMoments:
    return ColumnMoments(
        sum(site.count for site in column_moments),
        fsum(site.sum for site in column_moments),
        fsum(site.squared_sum for site in column_moments),
    )


def scale_table(table: FeatureTable, federation: ColumnStatistics) -> ScaledTable:
    """Scale a feature table: impute by the federation's means, standardise numeric columns, expand splines.

    Raises:
        SettingsError: The statistics belong to another specification.
    """
    pooled_columns = [column.name for column in table.columns if column.has_statistics]
    if pooled_columns != list(federation.columns):
        raise SettingsError(
            "the statistics and the table have different columns",
            where="scaling",
            remedy="use statistics of the same study",
        )
    x = table.x.copy()
    for i, column in enumerate(table.columns):
        if not column.has_statistics:
            continue
        column_moments, values = federation.columns[column.name], x[:, i]
        values[np.isnan(values)] = column_moments.mean
        if column.is_numeric and column.spline is None:
            x[:, i] = (values - column_moments.mean) / column_moments.std
    y = table.y if table.classes else table.y.astype(np.float32)
    x = expand_splines(x, [column.spline for column in table.columns])
    names = model_columns(table.columns)
    return ScaledTable(names, x.astype(np.float32), y, table.classes, table.subjects, table.weights)
