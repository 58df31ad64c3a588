"""Feature table of a site: one row per subject, one column per model input value.

Invariants:
(1) rows are ordered by the subjects' pseudonyms, whatever the order of the records;
(2) columns depend on the specification only;
(3) a value to be imputed by the federation's mean is NaN until scaling.
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
from abaton.features.specification import Imputation, InputKind, InputSpec, ResolvedFeatureSpec
from abaton.features.splines import SplineBasis

OTHER = "other"


@dataclass(frozen=True, slots=True)
class FeatureColumn:
    """Column of the table: its input, whether it is numeric and has pooled statistics, and its spline.

    A column with a spline has the values of its input here, and becomes several columns when it is scaled.
    """

    name: str
    input: str
    is_numeric: bool = False
    has_statistics: bool = False
    spline: SplineBasis | None = None

    @property
    def model_columns(self) -> tuple[str, ...]:
        """Return the names of the columns that a model reads for this column of the feature table."""
        return (self.name,) if self.spline is None else self.spline.names(self.name)


@dataclass(frozen=True, slots=True, eq=False)
class FeatureTable:
    """Features of one site, built from de-identified records only; the table never leaves the site.

    Attributes:
        columns: The columns.
        x: One row per subject, float64; NaN where the federation's mean is imputed.
        y: Classes as integers, or values; for survival two columns: days, and 1 for an event or 0 for censored.
        classes: The names of the classes; empty for regression and survival.
        subjects: The pseudonym of each row's subject.
        min_cell_count: The smallest number of subjects that may be released.
        label: The name of the label.
        weights: Inverse probability of censoring weight of each row; None if all are 1.
    """

    columns: tuple[FeatureColumn, ...]
    x: NDArray[np.float64]
    y: NDArray[Any]
    classes: tuple[str, ...]
    subjects: tuple[str, ...]
    min_cell_count: int = 5
    label: str = "label"
    weights: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.subjects)

    @property
    def is_survival(self) -> bool:
        """Return whether the label of the feature table is a time to event."""
        return self.y.ndim == 2

    @property
    def unweighted_risk_ratio(self) -> float:
        """Return the fraction of cases in the feature table relative to the weighted one; 1 without weights."""
        cases = self.y == 1
        if self.weights is None or not cases.any():
            return 1.0
        return float(cases.mean() / np.average(cases, weights=self.weights))

    def __repr__(self) -> str:
        return f"FeatureTable({len(self.columns)} columns)"  # the number of rows may be small

    def without(self, subjects: frozenset[str]) -> FeatureTable:
        """Return the feature table without the given subjects, for example after withdrawals."""
        retained = np.array([subject not in subjects for subject in self.subjects], dtype=bool)
        names = tuple(subject for subject in self.subjects if subject not in subjects)
        return self.select(retained, names)

    def select(self, rows: NDArray[np.bool_] | NDArray[np.int64], subjects: tuple[str, ...]) -> FeatureTable:
        """Return some rows of the feature table, with their subjects."""
        weights = None if self.weights is None else self.weights[rows]
        return replace(self, x=self.x[rows], y=self.y[rows], subjects=subjects, weights=weights)


def feature_columns(spec: ResolvedFeatureSpec) -> tuple[FeatureColumn, ...]:
    """Return the columns of the feature table of a specification, the same at every site."""
    return tuple(column for input_spec in spec.inputs for column in _columns(input_spec))


def model_columns(columns: Sequence[FeatureColumn]) -> tuple[str, ...]:
    """Return the columns that a model reads: those of the feature table, with the columns of each spline.

    >>> age = FeatureColumn("age", "age", spline=SplineBasis((45.0, 62.0, 79.0)))
    >>> model_columns([age, FeatureColumn("sex", "sex")])
    ('age', "age'", 'sex')
    """
    return tuple(name for column in columns for name in column.model_columns)


def _columns(spec: InputSpec) -> Iterator[FeatureColumn]:
    by_mean = spec.imputation is Imputation.MEAN
    if spec.kind is InputKind.CATEGORY:
        for name in (*(category.name for category in spec.categories), OTHER):
            yield FeatureColumn(f"{spec.name}={name}", spec.name, has_statistics=by_mean)
    else:
        is_numeric = spec.kind in (InputKind.NUMBER, InputKind.AGE, InputKind.COUNT)
        may_be_missing = spec.kind is not InputKind.FLAG or spec.column is not None
        yield FeatureColumn(
            spec.name,
            spec.name,
            is_numeric=is_numeric,
            has_statistics=is_numeric or (by_mean and may_be_missing),
            spline=SplineBasis(spec.spline, spec.scale == "log") if spec.spline else None,
        )
    if spec.missing_indicator:
        yield FeatureColumn(f"{spec.name} missing", spec.name)


def encode_input(spec: InputSpec, values: Sequence[Value]) -> NDArray[np.float64]:
    """Return the columns of one input in the feature table; missing numbers become the fill value or NaN."""
    width = sum(1 for _ in _columns(spec))
    encoded = np.full((len(values), width), np.nan)
    names = [category.name for category in spec.categories]
    for row, value in enumerate(values):
        if value is None and spec.imputation is Imputation.CONSTANT:
            value = _constant(spec, names)
        if isinstance(value, frozenset):
            encoded[row, :] = 0.0
            encoded[row, sorted(value)] = 1.0
        elif value is not None:
            encoded[row, 0] = value
    if spec.missing_indicator:
        encoded[:, -1] = [value is None for value in values]
    return encoded


def _constant(spec: InputSpec, names: Sequence[str]) -> Value:
    if spec.kind is InputKind.CATEGORY:
        return frozenset([names.index(str(spec.fill_value))] if spec.fill_value in names else [])
    return float(spec.fill_value) if isinstance(spec.fill_value, int | float) else 0.0


def row_groups(table: FeatureTable, name: str, bands: Sequence[float] = ()) -> tuple[str, ...]:
    """Return the group of every row of a feature table: its category, yes or no, or the band of its number.

    Args:
        table: The table, before scaling.
        name: The input that defines the groups.
        bands: Boundaries between bands, for numbers.

    Returns:
        One name per row; "missing" for a missing value.
    """
    indices = [i for i, column in enumerate(table.columns) if column.input == name]
    value_indices = [i for i in indices if table.columns[i].name != f"{name} missing"]
    block = table.x[:, value_indices]
    if len(value_indices) > 1:
        names = [table.columns[i].name.removeprefix(f"{name}=") for i in value_indices]
        return tuple(names[int(row.argmax())] if np.nansum(row) else "missing" for row in block)
    band_names = [(low, high, _band_name(low, high)) for low, high in pairwise((-inf, *bands, inf))]
    if not bands:
        return tuple("missing" if np.isnan(v) else "yes" if v > 0 else "no" for v in block[:, 0])
    return tuple(
        next((text for low, high, text in band_names if low <= v < high), "missing") for v in block[:, 0]
    )


def group_names(columns: Sequence[FeatureColumn], name: str, bands: Sequence[float] = ()) -> tuple[str, ...]:
    """Return all groups of a feature table's input that `row_groups` can return."""
    value_columns = [c for c in columns if c.input == name and c.name != f"{name} missing"]
    if len(value_columns) > 1:
        return (*(c.name.removeprefix(f"{name}=") for c in value_columns), "missing")
    if not bands:
        return ("no", "yes", "missing")
    return (*(_band_name(low, high) for low, high in pairwise((-inf, *bands, inf))), "missing")


def _band_name(low: float, high: float) -> str:
    if low == -inf:
        return f"below {high:g}"
    return f"{low:g} and above" if high == inf else f"{low:g} to {high:g}"
