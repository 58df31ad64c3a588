"""Tables of any make: polars, pandas, Arrow, lists of rows, columns by name, or a file; told back in the same make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from abaton.errors import SettingsError

Back = Callable[[pl.DataFrame], Any]


def taken(table: Any) -> tuple[pl.LazyFrame, Back]:
    """A table as polars knows it, and how to give a table back in the make it came in.

    Args:
        table: A polars frame; a pandas or Arrow table, or anything else with the dataframe interchange; a list of rows
            (a dict each); a dict of columns; or the path of a CSV, TSV, Parquet or NDJSON file. A file, and a make
            that nobody knows here, come back as a polars frame.

    Raises:
        SettingsError: It is none of these, or its rows are not alike.

    >>> frame, back = taken([{"age": 31}, {"age": 34}])
    >>> back(frame.collect())
    [{'age': 31}, {'age': 34}]
    """
    if isinstance(table, pl.LazyFrame):
        return table, pl.DataFrame.lazy
    if isinstance(table, str | PathLike):
        from abaton.anonymity.table_files import scan

        return scan(Path(table)), _same
    try:
        return _frame(table).lazy(), _back(table)
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError):
        # The reason is not passed on: it quotes cells.
        raise SettingsError(
            "the table cannot be read",
            where=type(table).__name__,
            remedy="give a polars, pandas or Arrow table, a list of dicts or a dict of lists, all rows alike",
        ) from None


def _frame(table: Any) -> pl.DataFrame:
    if isinstance(table, pl.DataFrame):
        return table
    if isinstance(table, Mapping):
        return pl.DataFrame(dict(table))
    if isinstance(table, Sequence) and all(isinstance(row, Mapping) for row in table):
        return pl.DataFrame([dict(row) for row in table], infer_schema_length=None)
    if hasattr(table, "__arrow_c_stream__"):
        return pl.DataFrame(table)
    if hasattr(table, "__dataframe__"):
        return pl.from_dataframe(table)
    raise TypeError


def _back(table: Any) -> Back:
    make = type(table).__module__.partition(".")[0]
    if isinstance(table, Mapping):
        return lambda made: made.to_dict(as_series=False)
    if isinstance(table, Sequence):
        return pl.DataFrame.to_dicts
    if make == "pandas":
        return lambda made: import_module("pandas").DataFrame(made.to_dict(as_series=False))
    if make == "pyarrow":
        return lambda made: import_module("pyarrow").table(made)
    return _same


def _same(made: pl.DataFrame) -> pl.DataFrame:
    return made
