"""A table as the search sees it: every different combination of quasi-identifiers once, with its count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.records.anonymity.hierarchies import Label, Ladder, aliases, ladder
from abaton.records.anonymity.settings import AnonymitySettings, Sensitive

if TYPE_CHECKING:
    import polars as pl

Codes = NDArray[np.int32]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SensitiveCounts:
    """How often each sensitive value occurs with each combination of quasi-identifiers."""

    asked: Sensitive
    values: tuple[Label, ...]
    """From lowest to highest; a missing value comes last."""
    tuples: NDArray[np.intp]
    codes: NDArray[np.intp]
    counts: Counts

    @property
    def overall(self) -> NDArray[np.float64]:
        """The share of every value in the whole table."""
        totals = np.bincount(self.codes, weights=self.counts, minlength=len(self.values))
        share: NDArray[np.float64] = totals / totals.sum()
        return share


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The different combinations of quasi-identifiers, how many records have each, and the sensitive values.

    Attributes:
        ladders: One per quasi-identifier.
        codes: One array per quasi-identifier: the leaf each combination has.
        counts: Records per combination.
        sensitive: One entry per sensitive column.
        sites: Which site each combination is from, where several are counted together.
        hidden: Records that sites kept to themselves: they count as left out.
    """

    ladders: tuple[Ladder, ...]
    codes: tuple[Codes, ...]
    counts: Counts
    sensitive: tuple[SensitiveCounts, ...] = ()
    sites: NDArray[np.intp] | None = None
    hidden: int = 0

    @property
    def records(self) -> int:
        """How many records the table has, hidden ones included."""
        return int(self.counts.sum()) + self.hidden

    def classes(self, node: Sequence[int]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """The class of every combination when each column is shown on a level, and every class's size."""
        key = compact(
            [
                made.steps[level][code]
                for made, code, level in zip(self.ladders, self.codes, node, strict=True)
            ],
            [len(made.labels[level]) for made, level in zip(self.ladders, node, strict=True)],
        )
        return key, sizes(key, self.counts)


def sizes(key: NDArray[np.intp], counts: Counts) -> NDArray[np.float64]:
    """Records per class; whole numbers, kept as floats because they are only compared and divided."""
    return np.bincount(key, weights=counts).astype(np.float64, copy=False)


def compact(columns: Sequence[NDArray[np.integer]], widths: Sequence[int]) -> NDArray[np.intp]:
    """Number the different rows of some code columns 0, 1, 2 … in the order of their codes.

    >>> compact([np.array([0, 1, 0]), np.array([2, 0, 2])], [2, 3]).tolist()
    [0, 1, 0]
    """

    def join(
        left: tuple[NDArray[np.intp], int], right: tuple[NDArray[np.integer], int]
    ) -> tuple[NDArray[np.intp], int]:
        return dense(left[0] * right[1] + right[0], left[1] * right[1])

    start = (np.zeros(len(columns[0]), np.intp), 1)
    return reduce(join, zip(columns, widths, strict=True), start)[0]


def dense(key: NDArray[np.intp], width: int) -> tuple[NDArray[np.intp], int]:
    """Renumber keys below a width so that none is unused; returns them and how many there are."""
    if width <= 4 * len(key) + 1024:
        used = np.zeros(width, bool)
        used[key] = True
        place = np.cumsum(used) - 1
        return place[key], int(place[-1]) + 1
    values, key = np.unique(key, return_inverse=True)
    return key, len(values)


def as_text(column: str, kind: pl.DataType, missing: Sequence[str]) -> pl.Expr:
    """A column as text, the way hierarchies name its values: 63.0 is 63, blanks and NaN are missing."""
    import polars as pl

    cell = pl.col(column)
    if kind.is_nested():
        raise SettingsError("a column holds lists or records, not values", where=f"column '{column}'")
    if kind.is_float():
        whole = cell.is_finite() & (cell == cell.floor()) & (cell.abs() < 2**53)
        text = (
            pl.when(whole)
            .then(cell.cast(pl.Int64, strict=False).cast(pl.String))
            .otherwise(cell.cast(pl.String))
        )
        text = pl.when(cell.is_nan()).then(None).otherwise(text)
    else:
        text = cell.cast(pl.String).str.strip_chars()
    return pl.when(text.is_in(["", *missing])).then(None).otherwise(text).alias(column)


def encode(
    frame: pl.LazyFrame | pl.DataFrame, settings: AnonymitySettings, *, folder: Path = Path()
) -> Table:
    """Count the different combinations of quasi-identifiers and sensitive values of a table.

    Args:
        frame: The table; only the columns named in the settings are read.
        settings: What the study asks.
        folder: Where hierarchy files lie.

    Raises:
        SettingsError: A column is missing, the table is empty, or values are not in a hierarchy.
    """
    import polars as pl

    names = [q.column for q in settings.quasi_identifiers] + [s.column for s in settings.sensitive]
    lazy = frame.lazy()
    schema = lazy.collect_schema()
    check_columns(schema.names(), [*names, *settings.keep])
    texts = [as_text(name, schema[name], settings.missing) for name in names]
    counting = lazy.select(texts).group_by(names).agg(pl.len().alias("__records"))
    try:
        tallies = counting.collect(engine="streaming")
    except pl.exceptions.PolarsError:
        # The part's own message may quote cells of the table.
        raise SettingsError(
            "the table cannot be read to its end", remedy="check that all its rows are alike"
        ) from None
    if tallies.height == 0:
        raise SettingsError("the table has no records", remedy="give a table with at least one record")
    counts = tallies["__records"].to_numpy().astype(np.int64)
    ladders, codes = [], []
    for quasi in settings.quasi_identifiers:
        physical, values = _factorise(tallies[quasi.column])
        made = ladder(quasi, values, folder=folder, missing=settings.missing)
        places = aliases(made, values)
        ladders.append(made)
        codes.append(np.array([places[value] for value in values], np.int32)[physical])
    return _gather(tallies, settings, tuple(ladders), codes, counts)


def check_columns(have: Sequence[str], asked: Sequence[str]) -> None:
    """Complain about columns the study names and the table does not have."""
    absent = [name for name in asked if name not in have]
    if absent:
        raise SettingsError(
            f"the table has no column '{absent[0]}'",
            where="privacy.anonymity",
            remedy=f"its columns are {', '.join(have)}",
        )


def _gather(
    tallies: pl.DataFrame,
    settings: AnonymitySettings,
    ladders: tuple[Ladder, ...],
    codes: list[Codes],
    counts: Counts,
) -> Table:
    """Merge rows that differ in sensitive values only, and keep those as counts beside them."""
    key = compact(codes, [len(made.labels[0]) for made in ladders])
    _, first = np.unique(key, return_index=True)
    totals = sizes(key, counts).astype(np.int64)
    sensitive = []
    for asked in settings.sensitive:
        physical, values = _factorise(tallies[asked.column])
        ordered = ordered_values(values, asked)
        place = {value: i for i, value in enumerate(ordered)}
        value = np.array([place[v] for v in values], np.intp)[physical]
        pairs, pair = np.unique(key * len(ordered) + value, return_inverse=True)
        tally = np.bincount(pair, weights=counts).astype(np.int64)
        sensitive.append(SensitiveCounts(asked, ordered, pairs // len(ordered), pairs % len(ordered), tally))
    return Table(ladders, tuple(column[first] for column in codes), totals, tuple(sensitive))


def _factorise(column: pl.Series) -> tuple[NDArray[np.intp], list[Label]]:
    import polars as pl

    names = column.drop_nulls().unique().sort()
    values: list[Label] = names.to_list()
    physical = column.cast(pl.Enum(names)).to_physical().cast(pl.Int64)
    if column.null_count():
        physical = physical.fill_null(len(values))
        values.append(None)
    return physical.to_numpy().astype(np.intp), values


def ordered_values(values: list[Label], asked: Sensitive) -> tuple[Label, ...]:
    """A sensitive column's values from lowest to highest, a missing one last."""
    order = asked.closeness.order if asked.closeness else ()
    if order and (strangers := sum(v is not None and v not in order for v in values)):
        raise SettingsError(
            f"{strangers} values of the table are not in the order given",
            where=f"sensitive '{asked.column}'",
            remedy="list every value under closeness.order",
        )
    return tuple(
        [*(v for v in order if v in values), *([None] if None in values else [])]
        if order
        else sorted(values, key=_rank)
    )


def _rank(value: Label) -> tuple[bool, float, str]:
    try:
        number = float(value or "")
    except ValueError:
        number = np.inf
    return value is None, number, value or ""
