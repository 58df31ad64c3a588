"""Description of the cohort for a run at level `exact`: characteristics, events per parameter, attrition.

Values are those after de-identification and common recoding, before imputation. Counts below `min_cell_count` are
suppressed, and further counts so that none follows from the totals. On a network nothing of this is released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.disclosure.attrition import RELEASED_STAGES, AttritionStage, attrition_cell, attrition_steps
from abaton.features import FeatureTable, Imputation, InputSpec, model_columns
from abaton.study import Study
from abaton.study_run.preparation import PreparedSite, PreparedSites, SplitTable

ALL = "all sites"
_MAX_SKEWNESS = 1.0  # a more skewed input is described by its median
_NOT_COUNTED = "not counted"

Counts = NDArray[np.int64]
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class _Characteristic:
    """Input or outcome of all subjects: one column of numbers, or one column of 0 and 1 for each level."""

    name: str
    levels: tuple[str, ...]  # empty for a number
    values: Values  # NaN where missing
    is_missing: NDArray[np.bool_]
    counts_missing: bool = True


def describe_cohort(
    study: Study, prepared: PreparedSites, subjects: Mapping[str, frozenset[str]], parameters: int
) -> dict[str, Any]:
    """Return the description of the cohort as JSON values: characteristics by site, events per parameter, attrition.

    Args:
        study: The study.
        prepared: The sites on this machine.
        subjects: Subjects of each site whose rows may be used.
        parameters: Number of parameters of the model.
    """
    tables = {
        split.ingest.name: _in_force(split.table, subjects[split.ingest.name]) for split in prepared.splits
    }
    threshold = max(site.min_cell_count for site in prepared.sites)
    return {
        "characteristics": baseline_characteristics(study, tables, threshold),
        "events_per_parameter": events_per_parameter(prepared, subjects, parameters, threshold),
        "attrition": {
            site.name: complete_attrition(split, site, subjects[site.name])
            for split, site in zip(prepared.splits, prepared.sites, strict=True)
            if split.ingest.cohort is not None
        },
    }


def _in_force(table: FeatureTable, subjects: frozenset[str]) -> FeatureTable:
    return table.without(frozenset(table.subjects) - subjects)


def baseline_characteristics(
    study: Study, tables: Mapping[str, FeatureTable], min_cell_count: int
) -> dict[str, Any]:
    """Return the cohort's characteristics by site and overall, with standardised differences and missing values.

    A standardised difference compares a site with all other sites; of an input with several levels it is that of
    Yang and Dalton (2012).
    """
    tables = {name: table for name, table in tables.items() if len(table) >= min_cell_count}
    if not tables:
        return {"sites": {}, "rows": []}
    site_of = np.concatenate([np.full(len(table), i) for i, table in enumerate(tables.values())])
    rows = [
        row
        for characteristic in _characteristics(study, list(tables.values()))
        for row in _describe(characteristic, site_of, list(tables), min_cell_count)
    ]
    sizes = {name: len(table) for name, table in tables.items()}
    return {"sites": {**sizes, ALL: sum(sizes.values())}, "rows": rows}


def _characteristics(study: Study, tables: Sequence[FeatureTable]) -> list[_Characteristic]:
    assert study.features is not None
    first, x = tables[0], np.concatenate([table.x for table in tables])
    y = np.concatenate([table.y for table in tables])
    missing = np.zeros(len(x), bool)
    if first.is_survival:
        characteristics = [
            _Characteristic(f"{first.label}: events", ("yes",), y[:, 1:].astype(float), missing)
        ]
    elif first.classes:
        levels = first.classes[1:] if len(first.classes) == 2 else first.classes
        codes = [first.classes.index(level) for level in levels]
        characteristics = [
            _Characteristic(first.label, levels, np.stack([y == code for code in codes], 1) * 1.0, missing)
        ]
    else:
        characteristics = [_Characteristic(first.label, (), y[:, None].astype(float), missing)]
    names = [column.name for column in first.columns]
    for spec in study.features.inputs:
        columns = [
            i
            for i, c in enumerate(first.columns)
            if c.input == spec.name and c.name != f"{spec.name} missing"
        ]
        indicator = names.index(f"{spec.name} missing") if f"{spec.name} missing" in names else None
        characteristics.append(_input_characteristic(spec, x, columns, names, indicator))
    return characteristics


def _input_characteristic(
    spec: InputSpec, x: Values, columns: Sequence[int], names: Sequence[str], indicator: int | None
) -> _Characteristic:
    prefix = f"{spec.name}="
    label = spec.name if spec.unit is None else f"{spec.name}, {spec.unit}"
    if names[columns[0]].startswith(prefix):
        columns = [i for i in columns if np.nansum(x[:, i]) > 0] or columns[:1]  # levels that occur
        levels, block = tuple(names[i].removeprefix(prefix) for i in columns), x[:, columns]
    else:
        block = x[:, columns[:1]]
        is_binary = not np.isin(block[~np.isnan(block)], (0.0, 1.0), invert=True).any()
        levels = ("yes",) if is_binary and spec.kind.value == "flag" else ()
    is_missing = np.asarray(np.isnan(block).any(1))
    if indicator is not None:
        is_missing = is_missing | (x[:, indicator] > 0)
    elif names[columns[0]].startswith(prefix):
        is_missing = is_missing | (np.nansum(block, axis=1) == 0)
    block = np.where(is_missing[:, None], np.nan, block)
    is_counted = spec.imputation is not Imputation.CONSTANT or indicator is not None or bool(levels)
    return _Characteristic(label, levels, block, is_missing, is_counted)


def _describe(
    characteristic: _Characteristic, site_of: NDArray[Any], names: Sequence[str], min_cell_count: int
) -> list[dict[str, Any]]:
    """Return the rows of one characteristic of the cohort: a number, or each level."""
    members = [site_of == i for i in range(len(names))]
    missing = np.array([characteristic.is_missing[rows].sum() for rows in members])
    known = np.array([rows.sum() for rows in members]) - missing
    if characteristic.levels:
        counts = np.array([np.nansum(characteristic.values[rows], axis=0) for rows in members]).T.astype(int)
        complement = (known - counts)[:1] if len(counts) == 1 else np.empty((0, len(names)), int)
        cells = np.vstack([counts, complement, missing])
        is_suppressed = suppressed_cells(cells, min_cell_count)
        texts = [
            [
                _format_fraction(n, k, min_cell_count, is_hidden=hide)
                for n, k, hide in zip(row, known, hidden, strict=True)
            ]
            for row, hidden in zip(counts, is_suppressed[: len(counts)], strict=True)
        ]
        totals = [_format_fraction(row.sum(), known.sum(), min_cell_count) for row in counts]
        statistics = ["n (%)"] * len(counts)
    else:
        is_suppressed = suppressed_cells(np.vstack([known, missing]), min_cell_count)
        values = characteristic.values[:, 0]
        is_skewed = abs(_skewness(values[~np.isnan(values)])) > _MAX_SKEWNESS
        texts = [
            [
                _format_number(values[rows][~np.isnan(values[rows])], min_cell_count, is_skewed=is_skewed)
                for rows in members
            ]
        ]
        totals = [_format_number(values[~np.isnan(values)], min_cell_count, is_skewed=is_skewed)]
        statistics = ["median (IQR)" if is_skewed else "mean (SD)"]
    missing_texts = {name: _NOT_COUNTED for name in (*names, ALL)}
    if characteristic.counts_missing:
        sizes = known + missing
        missing_texts = {
            name: _format_fraction(n, size, min_cell_count, is_hidden=hide)
            for name, n, size, hide in zip(names, missing, sizes, is_suppressed[-1], strict=True)
        } | {ALL: _format_fraction(missing.sum(), sizes.sum(), min_cell_count)}
    differences = {
        name: None if is_suppressed[:, i].any() else standardised_difference(
            characteristic.values[rows & ~characteristic.is_missing],
            characteristic.values[~rows & ~characteristic.is_missing],
        )
        for i, (name, rows) in enumerate(zip(names, members, strict=True))
    }  # fmt: skip
    return [
        {
            "input": characteristic.name,
            "level": level,
            "statistic": statistic,
            "cells": dict(zip(names, row, strict=True)) | {ALL: total},
            "missing": missing_texts if first else {},
            "differences": differences if first else {},
        }
        for level, statistic, row, total, first in zip(
            characteristic.levels or ("",),
            statistics,
            texts,
            totals,
            (True, *[False] * len(texts)),
            strict=False,
        )
    ]


def standardised_difference(one: Values, other: Values) -> float | None:
    """Return the standardised difference of a characteristic between two groups of a cohort; None if undefined.

    Args:
        one: Rows of the first group; one column of numbers, or a column of 0 and 1 for each level.
        other: Rows of the second group.

    >>> standardised_difference(np.array([[1.0], [3.0]]), np.array([[2.0], [4.0]]))
    -0.7071067811865475
    """
    if min(len(one), len(other)) < 2:
        return None
    difference = one.mean(0) - other.mean(0)
    is_binary = np.isin(one, (0, 1)).all() and np.isin(other, (0, 1)).all()
    ddof = 0 if is_binary else 1
    covariance = np.atleast_2d((np.cov(one.T, ddof=ddof) + np.cov(other.T, ddof=ddof)) / 2)
    if len(difference) == 1:
        spread = float(np.sqrt(covariance[0, 0]))
        if spread <= 1e-12 * max(1.0, abs(float(one.mean()))):
            return 0.0 if difference[0] == 0 else None
        return float(difference[0]) / spread
    solution = np.linalg.pinv(covariance, rcond=1e-10, hermitian=True) @ difference
    if np.abs(covariance @ solution - difference).max() > 1e-8:
        return None  # a level separates the groups
    return float(np.sqrt(max(float(difference @ solution), 0.0)))


def suppressed_cells(counts: Counts, min_cell_count: int) -> NDArray[np.bool_]:
    """Return which counts of a cohort's table are suppressed, so that none follows from row and column totals.

    >>> suppressed_cells(np.array([[3, 20, 30], [40, 9, 50]]), 5).astype(int).tolist()
    [[1, 1, 0], [1, 1, 0]]
    """
    is_suppressed = (counts > 0) & (counts < min_cell_count)
    changed = True
    while changed:
        changed = False
        for cells, hidden in ((counts, is_suppressed), (counts.T, is_suppressed.T)):
            for row, row_hidden in zip(cells, hidden, strict=True):
                candidates = np.flatnonzero(~row_hidden & (row > 0))
                if row_hidden.sum() == 1 and len(candidates):
                    row_hidden[candidates[row[candidates].argmin()]] = changed = True
    return is_suppressed


def _format_fraction(count: int, total: int, min_cell_count: int, *, is_hidden: bool = False) -> str:
    if 0 < count < min_cell_count:
        return f"<{min_cell_count}"
    if is_hidden:
        return f"≥{min_cell_count}"
    return f"{count} ({100 * count / total:.1f} %)" if total else "–"


def _format_number(values: Values, min_cell_count: int, *, is_skewed: bool) -> str:
    if len(values) < min_cell_count:
        return f"<{min_cell_count} known" if len(values) else "–"
    if is_skewed:
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        return f"{middle:.4g} ({low:.4g} to {high:.4g})"
    return f"{values.mean():.4g} ({values.std(ddof=1):.3g})"


def _skewness(values: Values) -> float:
    spread = values.std() if len(values) else 0.0
    return float((((values - values.mean()) / spread) ** 3).mean()) if spread > 0 else 0.0


def events_per_parameter(
    prepared: PreparedSites, subjects: Mapping[str, frozenset[str]], parameters: int, min_cell_count: int
) -> dict[str, Any]:
    """Return the training events of the cohort per parameter of the model, and per input column, by site and overall.

    Events are subjects of the rarest class, or with an event; for regression all subjects.
    """
    counts = []
    for site in prepared.sites:
        train = site.rows.train
        used = np.array([subject in subjects[site.name] for subject in train.subjects], bool)
        y = train.y[used]
        counts.append(
            np.bincount(y, minlength=len(prepared.classes)) if prepared.classes
            else np.array([y[:, 1].sum() if y.ndim == 2 else len(y)], int)
        )  # fmt: skip
    by_class = np.array(counts, int)
    events = by_class[:, int(by_class.sum(0).argmin())]
    hidden = suppressed_cells(events[None], min_cell_count)[0]
    columns = len(model_columns(prepared.columns))

    def row(count: int, *, is_hidden: bool = False) -> dict[str, Any]:
        if is_hidden or 0 < count < min_cell_count:
            sign = "<" if count < min_cell_count else "≥"
            return {"events": f"{sign}{min_cell_count}", "per_parameter": None, "per_column": None}
        return {"events": str(count), "per_parameter": count / parameters, "per_column": count / columns}

    names = [site.name for site in prepared.sites]
    is_survival = not prepared.classes and prepared.sites[0].rows.train.y.ndim == 2
    return {
        "unit": "events" if prepared.classes or is_survival else "subjects",
        "parameters": parameters,
        "columns": columns,
        "sites": {
            name: row(int(n), is_hidden=bool(h)) for name, n, h in zip(names, events, hidden, strict=True)
        }
        | {ALL: row(int(events.sum()))},
    }


def complete_attrition(
    split: SplitTable, site: PreparedSite, subjects: frozenset[str]
) -> list[dict[str, Any]]:
    """Return the attrition of a site's cohort from consented to evaluated as JSON values; small counts suppressed."""
    assert split.ingest.cohort is not None
    counts = {name: len(patients) for name, patients in split.ingest.cohort.cells.items()}
    in_force = {
        name: sum(subject in subjects for subject in table.subjects)
        for name, table in (
            ("training", site.rows.train), ("validation", site.rows.validation), ("test", site.test)
        )
    }  # fmt: skip
    anonymised, total = len(split.table), sum(in_force.values())
    removed = "consent withdrawn during the run" if total else "not released at the end of the run"
    rows = counts.pop(attrition_cell(AttritionStage.ROWS))
    counts |= {
        attrition_cell(AttritionStage.ANONYMOUS, "suppressed for k-anonymity"): rows - anonymised,
        attrition_cell(AttritionStage.IN_FORCE, removed): anonymised - total,
        attrition_cell(AttritionStage.EVALUATED, "used for training"): in_force["training"],
        attrition_cell(AttritionStage.EVALUATED, "used for validation"): in_force["validation"],
        attrition_cell(AttritionStage.EVALUATED): in_force["test"],
    }
    stages = (*RELEASED_STAGES, AttritionStage.ANONYMOUS, AttritionStage.IN_FORCE, AttritionStage.EVALUATED)
    threshold = site.min_cell_count
    suppressed = [name for name, n in counts.items() if 0 < n < threshold]
    known = {name: n for name, n in counts.items() if name not in suppressed}
    return attrition_steps(stages, known, suppressed, threshold, is_noisy=False)
