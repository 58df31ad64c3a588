"""Encoding of a table as its distinct combinations of quasi-identifiers, with counts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abaton.anonymity.equivalence_classes import (
    Codes,
    EncodedTable,
    Indices,
    MultiValueSubjects,
    SensitiveCounts,
    SubjectIndex,
    class_sizes,
    index_subjects,
    number_rows,
)
from abaton.anonymity.hierarchies import Hierarchy, Label, build_hierarchy, map_to_leaves
from abaton.anonymity.privacy_models import class_counts
from abaton.anonymity.settings import AnonymitySettings, QuasiIdentifier, SensitiveAttribute
from abaton.errors import SettingsError, did_you_mean

_SUBJECT, _RECORDS = "\0subject", "\0records"
"""Column names that no table has."""


def encode(
    frame: pl.LazyFrame | pl.DataFrame, settings: AnonymitySettings, *, folder: Path = Path()
) -> EncodedTable:
    """Encode a table: count its combinations of quasi-identifiers and sensitive values, and their subjects.

    Rows without a subject count as rows of one subject, the safe assumption.

    Args:
        frame: the table; only the columns in the settings are read.
        settings: the study's settings.
        folder: the folder of hierarchy files.

    Raises:
        SettingsError: A column is missing, the table is empty, values are not in a hierarchy, or the subject of a row
            is not specified.
    """
    if settings.subject is None and not settings.one_row_per_subject:
        raise SettingsError(
            "neither subject nor one_row_per_subject is given, and k counts subjects",
            where="privacy.anonymity",
            remedy="give the column that identifies subjects: subject = '...' (--subject), or set "
            "one_row_per_subject = true (--one-row-per-subject) if no two rows belong to one subject",
        )
    names = [q.column for q in settings.quasi_identifiers] + [s.column for s in settings.sensitive]
    lazy = frame.lazy()
    schema = lazy.collect_schema()
    check_columns(schema.names(), [*names, *settings.passthrough_columns, *filter(None, [settings.subject])])
    texts = [to_text(name, schema[name]) for name in names]
    if settings.subject is not None:
        texts.append(_subject_expression(settings.subject, schema[settings.subject], settings.missing_values))
        names.append(_SUBJECT)
    records_by_row = collect_streaming(lazy.select(texts).group_by(names).agg(pl.len().alias(_RECORDS)))
    if records_by_row.height == 0:
        raise SettingsError("the table has no records", remedy="give a table with at least one record")
    hierarchies, codes = [], []
    for quasi in settings.quasi_identifiers:
        physical, values = _factorise(records_by_row[quasi.column])
        hierarchy = _hierarchy(quasi, values, settings.missing_values, folder)
        leaves = leaf_codes(hierarchy, values, settings.missing_values)
        hierarchies.append(hierarchy)
        codes.append(np.array(list(leaves.values()), np.int32)[physical])
    return _merge_rows(records_by_row, settings, tuple(hierarchies), codes)


def collect_streaming(frame: pl.LazyFrame) -> pl.DataFrame:
    """Run the query that encodes a table in bounded memory; errors do not quote cells."""
    try:
        return frame.collect(engine="streaming")
    except pl.exceptions.PolarsError:
        remedy = "check that all its rows have the same columns"
        raise SettingsError("the table cannot be read completely", remedy=remedy) from None


def to_text(column: str, data_type: pl.DataType) -> pl.Expr:
    """Encode a table's column as text in the form of hierarchies: 63.0 is 63 and NaN is missing."""
    cell = pl.col(column)
    if data_type.is_nested():
        raise SettingsError(
            "a column contains lists or records instead of values", where=f"column '{column}'"
        )
    if not data_type.is_float():
        return cell.cast(pl.String)
    is_integer = cell.is_finite() & (cell == cell.floor()) & (cell.abs() < 2**53)
    integer = cell.cast(pl.Int64, strict=False).cast(pl.String)
    text = pl.when(is_integer).then(integer).otherwise(cell.cast(pl.String))
    return pl.when(cell.is_nan()).then(None).otherwise(text).alias(column)


def _subject_expression(column: str, data_type: pl.DataType, missing: Collection[str]) -> pl.Expr:
    """Encode the subject of each row of a table as stripped text; empty if missing."""
    text = to_text(column, data_type).str.strip_chars().fill_null("")
    return pl.when(text.is_in(list(missing))).then(pl.lit("")).otherwise(text).alias(_SUBJECT)


def normalise_cell(value: Label, missing: Collection[str]) -> Label:
    """Return a cell of a table to encode without surrounding blanks; ``None`` if missing."""
    text = (value or "").strip()
    return None if not text or text in missing else text


def leaf_codes(hierarchy: Hierarchy, values: Sequence[Label], missing: Collection[str]) -> dict[Label, int]:
    """Encode each cell text of a table as the leaf of a hierarchy."""
    normalised = {value: normalise_cell(value, missing) for value in values}
    leaves = map_to_leaves(hierarchy, set(normalised.values()))
    return {value: leaves[text] for value, text in normalised.items()}


def _hierarchy(
    quasi: QuasiIdentifier, values: Sequence[Label], missing: Collection[str], folder: Path
) -> Hierarchy:
    distinct = list(dict.fromkeys(normalise_cell(value, missing) for value in values))
    return build_hierarchy(quasi, distinct, folder=folder, missing_values=missing)


def check_columns(present: Sequence[str], required: Sequence[str]) -> None:
    """Raise an error for a column that the settings name and the table to encode does not have."""
    absent = [name for name in required if name not in present]
    if absent:
        raise SettingsError(
            f"the table has no column '{absent[0]}'",
            where="privacy.anonymity",
            remedy=f"{did_you_mean(absent[0], present)} its columns are {', '.join(present)}".strip(),
        )


def _merge_rows(
    records_by_row: pl.DataFrame,
    settings: AnonymitySettings,
    hierarchies: tuple[Hierarchy, ...],
    codes: list[Codes],
) -> EncodedTable:
    """Merge encoded rows that differ only in subjects and sensitive values, and store these as counts."""
    counts = records_by_row[_RECORDS].to_numpy().astype(np.int64)
    key = number_rows(codes, [len(hierarchy.labels[0]) for hierarchy in hierarchies])
    totals = class_sizes(key, counts).astype(np.int64)
    first = np.empty(len(totals), np.intp)
    first[key] = np.arange(len(key))
    subject = None
    subjects = SubjectIndex(totals)
    if settings.subject is not None:
        subject = records_by_row[_SUBJECT].rank("dense").to_numpy().astype(np.intp) - 1
        subjects = index_subjects(subject, key, len(totals))
    sensitive = []
    for attribute in settings.sensitive:
        physical, values = _factorise(records_by_row[attribute.column])
        texts = [normalise_cell(value, settings.missing_values) for value in values]
        ordered = ordered_values(texts, attribute)
        index = {value: i for i, value in enumerate(ordered)}
        value = np.array([index[text] for text in texts], np.intp)[physical]
        if subject is None:
            pairs, pair = np.unique(key * len(ordered) + value, return_inverse=True)
            records = np.bincount(pair, weights=counts).astype(np.int64)
            sensitive.append(SensitiveCounts(attribute, ordered, *np.divmod(pairs, len(ordered)), records))
        else:
            sensitive.append(
                _count_subjects(SensitiveCounts(attribute, ordered, key, value, counts), subject)
            )
    return EncodedTable(
        hierarchies, tuple(column[first] for column in codes), totals, subjects, tuple(sensitive)
    )


def _count_subjects(row_counts: SensitiveCounts, subject: Indices) -> SensitiveCounts:
    """Convert row counts of an encoded table to subject counts; subjects with several values are listed."""
    width = len(row_counts.values)
    pairs, pair = np.unique(row_counts.combinations * width + row_counts.codes, return_inverse=True)
    owned = np.unique(subject * len(pairs) + pair)
    owner, pair = owned // len(pairs), owned % len(pairs)
    is_single = np.bincount(owner)[owner] == 1
    counts = np.bincount(pair[is_single], minlength=len(pairs))
    used = np.flatnonzero(counts)
    multiple = pairs[pair[~is_single]]
    subjects = np.unique(owner[~is_single], return_inverse=True)[1]
    subject_counts = replace(
        row_counts,
        combinations=pairs[used] // width,
        codes=pairs[used] % width,
        counts=counts[used],
        multi_value_subjects=MultiValueSubjects(multiple // width, subjects, multiple % width)
        if len(multiple)
        else None,
    )
    if subject_counts.multi_value_subjects is None:
        return subject_counts
    one_class = np.zeros(int(row_counts.combinations.max()) + 1, np.intp)
    totals = class_counts(subject_counts, one_class, 1, np.ones(width))
    value_totals = np.bincount(totals.values, totals.counts, width).astype(np.int64)
    return replace(subject_counts, value_totals=value_totals)


def _factorise(column: pl.Series) -> tuple[NDArray[np.intp], list[Label]]:
    names: list[str] = sorted(column.drop_nulls().unique().to_list())
    values: list[Label] = list(names)
    physical = column.cast(pl.Enum(names)).to_physical().cast(pl.Int64)
    if column.null_count():
        physical = physical.fill_null(len(values))
        values.append(None)
    return physical.to_numpy().astype(np.intp), values


def ordered_values(values: Sequence[Label], attribute: SensitiveAttribute) -> tuple[Label, ...]:
    """Return the distinct values of a sensitive column to encode, lowest first, a missing one last."""
    distinct = set(values)
    order: tuple[Label, ...] = attribute.closeness.order if attribute.closeness else ()
    if not order:
        return tuple(sorted(distinct, key=_rank))
    if unknown := len(distinct - {*order, None}):
        raise SettingsError(
            f"{unknown} values of the table are not in the given order",
            where=f"sensitive '{attribute.column}'",
            remedy="list every value under closeness.order",
        )
    return tuple(value for value in (*order, None) if value in distinct)


def _rank(value: Label) -> tuple[bool, float, str]:
    try:
        number = float(value or "")
    except ValueError:
        number = np.inf
    return value is None, number, value or ""
