"""From a table on disk or in memory to its different combinations of quasi-identifiers, counted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abaton.anonymity.equivalence_classes import (
    Codes,
    People,
    Places,
    SensitiveCounts,
    Several,
    Table,
    compact,
    people_of,
    sizes,
)
from abaton.anonymity.hierarchies import Label, Ladder, aliases, ladder
from abaton.anonymity.privacy_models import class_counts
from abaton.anonymity.settings import AnonymitySettings, QuasiIdentifier, Sensitive
from abaton.errors import SettingsError

_WHOSE, _RECORDS = "\0whose", "\0records"
"""Names that no column of a table has."""


def encode(
    frame: pl.LazyFrame | pl.DataFrame, settings: AnonymitySettings, *, folder: Path = Path()
) -> Table:
    """Count the different combinations of quasi-identifiers and sensitive values of a table, and who has them.

    Rows without a subject are taken for rows of one and the same person: nobody can say that they are more.

    Args:
        frame: The table; only the columns named in the settings are read.
        settings: What the study asks.
        folder: Where hierarchy files lie.

    Raises:
        SettingsError: A column is missing, the table is empty, values are not in a hierarchy, or it is not said
            whose record a row is.
    """
    if settings.subject is None and not settings.rows_are_people:
        raise SettingsError(
            "it is not said whose record a row is, and k counts people",
            where="privacy.anonymity",
            remedy="name the column that tells people apart: subject = '...' (--subject), or say "
            "rows_are_people = true (--rows-are-people) if no two rows are of one person",
        )
    names = [q.column for q in settings.quasi_identifiers] + [s.column for s in settings.sensitive]
    lazy = frame.lazy()
    schema = lazy.collect_schema()
    check_columns(schema.names(), [*names, *settings.keep, *filter(None, [settings.subject])])
    texts = [as_text(name, schema[name]) for name in names]
    if settings.subject is not None:
        texts.append(_whose(settings.subject, schema[settings.subject], settings.missing))
        names.append(_WHOSE)
    tallies = collect(lazy.select(texts).group_by(names).agg(pl.len().alias(_RECORDS)))
    if tallies.height == 0:
        raise SettingsError("the table has no records", remedy="give a table with at least one record")
    ladders, codes = [], []
    for quasi in settings.quasi_identifiers:
        physical, values = _factorise(tallies[quasi.column])
        made = _ladder(quasi, values, settings.missing, folder)
        places = leaf_codes(made, values, settings.missing)
        ladders.append(made)
        codes.append(np.array(list(places.values()), np.int32)[physical])
    return _gather(tallies, settings, tuple(ladders), codes)


def collect(frame: pl.LazyFrame) -> pl.DataFrame:
    """Run a query in bounded memory; what goes wrong is told without quoting cells."""
    try:
        return frame.collect(engine="streaming")
    except pl.exceptions.PolarsError:
        remedy = "check that all its rows are alike"
        raise SettingsError("the table cannot be read to its end", remedy=remedy) from None


def as_text(column: str, kind: pl.DataType) -> pl.Expr:
    """A column as text, the way hierarchies name its values: 63.0 is 63 and NaN is missing."""
    cell = pl.col(column)
    if kind.is_nested():
        raise SettingsError("a column holds lists or records, not values", where=f"column '{column}'")
    if not kind.is_float():
        return cell.cast(pl.String)
    whole = cell.is_finite() & (cell == cell.floor()) & (cell.abs() < 2**53)
    number = cell.cast(pl.Int64, strict=False).cast(pl.String)
    text = pl.when(whole).then(number).otherwise(cell.cast(pl.String))
    return pl.when(cell.is_nan()).then(None).otherwise(text).alias(column)


def _whose(column: str, kind: pl.DataType, missing: Collection[str]) -> pl.Expr:
    """Whose record a row is: the subject's text without blanks around it; nobody's is an empty text."""
    text = as_text(column, kind).str.strip_chars().fill_null("")
    return pl.when(text.is_in(list(missing))).then(pl.lit("")).otherwise(text).alias(_WHOSE)


def clean(value: Label, missing: Collection[str]) -> Label:
    """A cell's value: blanks around it do not count, and some texts mean "not known"."""
    text = (value or "").strip()
    return None if not text or text in missing else text


def leaf_codes(made: Ladder, values: Sequence[Label], missing: Collection[str]) -> dict[Label, int]:
    """Which leaf of a ladder each cell text of a table is."""
    cleaned = {value: clean(value, missing) for value in values}
    places = aliases(made, set(cleaned.values()))
    return {value: places[text] for value, text in cleaned.items()}


def _ladder(
    quasi: QuasiIdentifier, values: Sequence[Label], missing: Collection[str], folder: Path
) -> Ladder:
    different = list(dict.fromkeys(clean(value, missing) for value in values))
    return ladder(quasi, different, folder=folder, missing=missing)


def check_columns(have: Sequence[str], asked: Sequence[str]) -> None:
    """Complain about columns the study names and the table does not have."""
    absent = [name for name in asked if name not in have]
    if absent:
        close = get_close_matches(absent[0], have, n=1, cutoff=0.6)
        guess = f"did you mean '{close[0]}'? " if close else ""
        raise SettingsError(
            f"the table has no column '{absent[0]}'",
            where="privacy.anonymity",
            remedy=f"{guess}its columns are {', '.join(have)}",
        )


def _gather(
    tallies: pl.DataFrame, settings: AnonymitySettings, ladders: tuple[Ladder, ...], codes: list[Codes]
) -> Table:
    """Merge rows that differ in people and sensitive values only, and keep those as counts beside them."""
    counts = tallies[_RECORDS].to_numpy().astype(np.int64)
    key = compact(codes, [len(made.labels[0]) for made in ladders])
    totals = sizes(key, counts).astype(np.int64)
    first = np.empty(len(totals), np.intp)
    first[key] = np.arange(len(key))
    person = None
    people = People(totals)
    if settings.subject is not None:
        person = tallies[_WHOSE].rank("dense").to_numpy().astype(np.intp) - 1
        people = people_of(person, key, len(totals))
    sensitive = []
    for asked in settings.sensitive:
        physical, values = _factorise(tallies[asked.column])
        texts = [clean(value, settings.missing) for value in values]
        ordered = ordered_values(texts, asked)
        place = {value: i for i, value in enumerate(ordered)}
        value = np.array([place[text] for text in texts], np.intp)[physical]
        if person is None:
            pairs, pair = np.unique(key * len(ordered) + value, return_inverse=True)
            tally = np.bincount(pair, weights=counts).astype(np.int64)
            sensitive.append(SensitiveCounts(asked, ordered, *np.divmod(pairs, len(ordered)), tally))
        else:
            sensitive.append(_of_people(SensitiveCounts(asked, ordered, key, value, counts), person))
    return Table(ladders, tuple(column[first] for column in codes), totals, people, tuple(sensitive))


def _of_people(found: SensitiveCounts, person: Places) -> SensitiveCounts:
    """From rows to people: who has one combination and one value is counted, who has more is listed."""
    width = len(found.values)
    pairs, pair = np.unique(found.tuples * width + found.codes, return_inverse=True)
    owned = np.unique(person * len(pairs) + pair)
    owner, pair = owned // len(pairs), owned % len(pairs)
    once = np.bincount(owner)[owner] == 1
    counts = np.bincount(pair[once], minlength=len(pairs))
    used = np.flatnonzero(counts)
    rest = pairs[pair[~once]]
    people = np.unique(owner[~once], return_inverse=True)[1]
    made = replace(
        found,
        tuples=pairs[used] // width,
        codes=pairs[used] % width,
        counts=counts[used],
        several=Several(rest // width, people, rest % width) if len(rest) else None,
    )
    if made.several is None:
        return made
    one = np.zeros(int(found.tuples.max()) + 1, np.intp)
    whole = class_counts(made, one, 1, np.ones(width))
    return replace(made, whole=np.bincount(whole.values, whole.counts, width).astype(np.int64))


def _factorise(column: pl.Series) -> tuple[NDArray[np.intp], list[Label]]:
    names: list[str] = sorted(column.drop_nulls().unique().to_list())
    values: list[Label] = list(names)
    physical = column.cast(pl.Enum(names)).to_physical().cast(pl.Int64)
    if column.null_count():
        physical = physical.fill_null(len(values))
        values.append(None)
    return physical.to_numpy().astype(np.intp), values


def ordered_values(values: Sequence[Label], asked: Sensitive) -> tuple[Label, ...]:
    """A sensitive column's different values from lowest to highest, a missing one last."""
    different = set(values)
    order: tuple[Label, ...] = asked.closeness.order if asked.closeness else ()
    if not order:
        return tuple(sorted(different, key=_rank))
    if strangers := len(different - {*order, None}):
        raise SettingsError(
            f"{strangers} values of the table are not in the order given",
            where=f"sensitive '{asked.column}'",
            remedy="list every value under closeness.order",
        )
    return tuple(value for value in (*order, None) if value in different)


def _rank(value: Label) -> tuple[bool, float, str]:
    try:
        number = float(value or "")
    except ValueError:
        number = np.inf
    return value is None, number, value or ""
