"""Anonymity of feature tables: k-anonymity over all sites, enforced before training.

Sites release how many of their subjects have each combination of quasi-identifiers (``[privacy.anonymity]``, whose
columns are inputs or the label), on the finest levels that are k-anonymous at the site alone.
:func:`~abaton.anonymity.federated_recoding.choose_recoding` finds the generalisation with the smallest loss over all
sites, and every site recodes its table. A number becomes the midpoint of its range, or the edge of an open range;
a suppressed value is missing; subjects outside classes of at least k are excluded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abaton.anonymity import AnonymitySettings
from abaton.anonymity.equivalence_classes import EncodedTable as Combinations
from abaton.anonymity.federated_recoding import (
    CombinationHistogram,
    RecodingChoice,
    apply_recoding,
    site_histogram,
)
from abaton.anonymity.release import TableRelease, release_levels
from abaton.anonymity.table_encoding import encode
from abaton.anonymity.table_files import recoded_frame
from abaton.disclosure.histograms import releasable_levels, suppress_histogram
from abaton.errors import RefusedError, SettingsError
from abaton.features.table import FeatureTable, row_groups

Floats = NDArray[np.float64]

_ROW, _SUBJECT = "row number", "row subject"
_INTEGER_RANGE = re.compile(r"(-?\d+)-(-?\d+)")
_HALF_OPEN_RANGE = re.compile(r"\[(\S+), (\S+)\)")
_OPEN_RANGE = re.compile(r"(?:<|>=)(\S+)")


def combination_histogram(table: FeatureTable, settings: AnonymitySettings) -> CombinationHistogram:
    """Count the subjects of a feature table per combination, for its anonymisation; small counts are suppressed."""
    encoded = encode(_frame(table, settings), _by_subject(settings))
    min_cell_count = _min_cell_count(table, settings)
    histogram = site_histogram(encoded, releasable_levels(encoded, settings, min_cell_count))
    return suppress_histogram(histogram, min_cell_count)


def anonymise_table(
    table: FeatureTable, released: CombinationHistogram, recoding: RecodingChoice, settings: AnonymitySettings
) -> FeatureTable:
    """Anonymise a site's feature table: recode to the ranges chosen for all sites, exclude other subjects.

    Args:
        table: The site's rows.
        released: The histogram that the site has released.
        recoding: The recoding chosen for all sites.
        settings: The study's anonymity settings.

    Raises:
        RefusedError: The ranges are finer than those the site has released.
    """
    frame = _frame(table, settings)
    encoded = encode(frame, _by_subject(settings))
    release = apply_recoding(encoded, released, recoding, _min_cell_count(table, settings))
    return _recode_rows(table, frame, encoded, release, settings)


def _min_cell_count(table: FeatureTable, settings: AnonymitySettings) -> int:
    return max(table.min_cell_count, settings.min_cell_count or 1)


def recode_new_rows(table: FeatureTable, levels: Sequence[int], settings: AnonymitySettings) -> FeatureTable:
    """Recode new feature rows to the anonymised ranges a model was trained with; no row is excluded.

    Args:
        table: The rows.
        levels: The level of every quasi-identifier.
        settings: The study's anonymity settings.
    """
    frame = _frame(table, settings)
    encoded = encode(frame, _by_subject(settings))
    release = release_levels(encoded, levels, np.ones(len(encoded.counts), bool))
    return _recode_rows(table, frame, encoded, release, settings)


def _recode_rows(
    table: FeatureTable,
    frame: pl.DataFrame,
    encoded: Combinations,
    release: TableRelease,
    settings: AnonymitySettings,
) -> FeatureTable:
    """Return the anonymised rows of a feature table with their ranges."""
    assert release.node is not None
    extended = replace(settings, passthrough_columns=(*settings.passthrough_columns, _ROW))
    rows = recoded_frame(frame.lazy(), encoded, release, extended).collect()
    retained = rows[_ROW].to_numpy()
    x = table.x[retained]
    for quasi, level in zip(settings.quasi_identifiers, release.node, strict=True):
        if level and quasi.column == table.label:
            raise RefusedError(
                f"the label '{quasi.column}' would be generalised to reach k-anonymity",
                where="privacy.anonymity",
                remedy="list it under sensitive instead of quasi_identifiers",
            )
        if level:
            _coarsen(table, x, quasi.column, rows[quasi.column].to_list())
    subjects = tuple(table.subjects[i] for i in retained)
    return replace(table.select(retained, subjects), x=x)


def _by_subject(settings: AnonymitySettings) -> AnonymitySettings:
    """Return the anonymity settings with the feature table's own subject column."""
    return replace(settings, subject=_SUBJECT, one_row_per_subject=False)


def _frame(table: FeatureTable, settings: AnonymitySettings) -> pl.DataFrame:
    """Return the feature columns named in the anonymity settings, one row per subject."""
    columns: dict[str, object] = {}
    for name in settings.columns:
        if name == table.label:
            columns[name] = _label_values(table)
        else:
            columns[name] = _column_values(table, name)
    return pl.DataFrame({**columns, _ROW: np.arange(len(table)), _SUBJECT: list(table.subjects)})


def _label_values(table: FeatureTable) -> list[str]:
    if table.is_survival:
        return ["yes" if event else "no" for event in table.y[:, 1]]
    return [table.classes[y] if table.classes else f"{y:.15g}" for y in table.y]


def _column_values(table: FeatureTable, name: str) -> list[str | None]:
    indices = _input_columns(table, name)
    if len(indices) == 1 and table.columns[indices[0]].is_numeric:
        return [None if np.isnan(value) else f"{value:.15g}" for value in table.x[:, indices[0]]]
    return [None if group == "missing" else group for group in row_groups(table, name)]


def _input_columns(table: FeatureTable, name: str) -> list[int]:
    indices = [
        i
        for i, column in enumerate(table.columns)
        if column.input == name and column.name != f"{name} missing"
    ]
    if not indices:
        raise SettingsError(
            f"'{name}' is neither an input nor the label",
            where="privacy.anonymity",
            remedy="use the names of inputs of [features]",
        )
    return indices


def _coarsen(table: FeatureTable, x: Floats, name: str, labels: list[str | None]) -> None:
    """Anonymise a feature: replace values by their ranges; the missing indicator follows the range."""
    indices = _input_columns(table, name)
    names = [table.columns[i].name.removeprefix(f"{name}=") for i in indices]
    is_numeric = len(indices) == 1 and table.columns[indices[0]].is_numeric
    flag = {"yes": [1.0], "no": [0.0]} if names == [name] else {}
    encodings = flag or {category: [float(category == other) for other in names] for category in names}
    for row, label in enumerate(labels):
        x[row, indices] = range_midpoint(label) if is_numeric else encodings.get(label or "", np.nan)
    missing = np.isnan(x[:, indices]).any(axis=1)
    for i, column in enumerate(table.columns):
        if column.name == f"{name} missing":
            x[:, i] = missing
        elif i in indices and not column.has_statistics:
            x[missing, i] = 0.0


def range_midpoint(label: str | None) -> float:
    """Return the number that represents an anonymised range in a feature; NaN for a suppressed one.

    >>> [range_midpoint(label) for label in ("30-39", "[0.5, 1)", ">=70", "41", "*")]
    [35.0, 0.75, 70.0, 41.0, nan]
    """
    text = label or ""
    if match := _INTEGER_RANGE.fullmatch(text):
        return (float(match[1]) + float(match[2]) + 1) / 2
    if match := _HALF_OPEN_RANGE.fullmatch(text):
        return (float(match[1]) + float(match[2])) / 2
    try:
        return float(match[1] if (match := _OPEN_RANGE.fullmatch(text)) else text)
    except ValueError:
        return float("nan")
