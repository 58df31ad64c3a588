"""Tables on disk: CSV, Parquet and NDJSON in; the released table out, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from abaton.anonymity.equivalence_classes import Table
from abaton.anonymity.release import Release
from abaton.anonymity.settings import AnonymitySettings
from abaton.anonymity.table_encoding import as_text, check_columns, collect, leaf_codes
from abaton.atomic_files import replacing
from abaton.errors import AbatonError, SettingsError

FORMATS = (".csv", ".tsv", ".parquet", ".ndjson", ".jsonl")


def scan(path: Path, *, separator: str = "") -> pl.LazyFrame:
    """Open a table without reading it: CSV or TSV with a header line, Parquet, or one JSON object per line.

    Args:
        path: The file; its ending says what it is.
        separator: Of a CSV; empty means found from the header line.

    Raises:
        SettingsError: The file is not there, not a table, or of another kind.
    """
    kind = _kind(path)
    if not path.is_file():
        raise SettingsError("the table is not there", where=str(path), remedy="check the path")
    try:
        if kind in (".csv", ".tsv"):
            # Every cell stays the text it is: 007 is a code, not a seven.
            frame = pl.scan_csv(path, separator=separator or separator_of(path), infer_schema=False)
        else:
            frame = (
                pl.scan_parquet(path)
                if kind == ".parquet"
                else pl.scan_ndjson(path, infer_schema_length=None)
            )
        frame.collect_schema()
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError):
        raise _unreadable(path) from None
    return frame


def separator_of(path: Path) -> str:
    """The sign between the cells of a CSV's header line: comma, semicolon, tab or bar."""
    with path.open("rb") as file:
        header = file.readline(1_000_000)
    return max(",;\t|", key=lambda sign: header.count(sign.encode()))


def write(
    frame: pl.LazyFrame,
    table: Table,
    shown: Release,
    settings: AnonymitySettings,
    path: Path,
    *,
    separator: str = ",",
) -> list[str]:
    """Write what a release shows of a table, row by row in the table's order; left-out rows are not written.

    Only quasi-identifiers, sensitive columns and the columns the study keeps are written. The file appears
    when it is complete.

    Args:
        frame: The table as scanned.
        table: The same table, counted.
        shown: What may be shown of it.
        settings: What the study asks.
        path: Where to write; its ending says as what.
        separator: For a CSV.

    Returns:
        The columns of the table that were left out.
    """
    released = recoded_frame(frame, table, shown, settings)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as begun:
            if _kind(path) in (".csv", ".tsv"):
                released.sink_csv(begun, separator="\t" if _kind(path) == ".tsv" else separator)
            elif _kind(path) == ".parquet":
                released.sink_parquet(begun)
            else:
                released.sink_ndjson(begun)
    except (pl.exceptions.PolarsError, OSError):
        raise AbatonError(
            "the released table cannot be written", where=str(path), remedy="check the folder and its space"
        ) from None
    return [name for name in frame.collect_schema().names() if name not in settings.columns]


def recoded_frame(
    frame: pl.LazyFrame, table: Table, shown: Release, settings: AnonymitySettings
) -> pl.LazyFrame:
    """The released table: each record's combination is looked up, and its quasi-identifiers renamed."""
    schema = frame.collect_schema()
    check_columns(schema.names(), settings.columns)
    columns = [quasi.column for quasi in settings.quasi_identifiers]
    codes, renamed = [], []
    book: dict[str, pl.Series] = {}
    texts = {name: as_text(name, schema[name]) for name in columns}
    values = collect(frame.select([text.unique().implode() for text in texts.values()]))
    for i, ((name, text), made) in enumerate(zip(texts.items(), table.ladders, strict=True)):
        places = leaf_codes(made, values[name][0].to_list(), settings.missing)
        code = text.replace_strict(list(places), list(places.values()), return_dtype=pl.Int32)
        codes.append(code.alias(f"__code{i}"))
        book[f"__code{i}"] = pl.Series(table.codes[i][shown.kept], dtype=pl.Int32)
        if shown.node is not None and shown.node[i] == 0 and schema[name] != pl.String:
            # Shown as it is: the column keeps its type, and all ways to write "not known" become one.
            unknown = [place for place, label in enumerate(made.labels[0]) if label is None]
            known = ~pl.col(f"__code{i}").is_in(unknown)
            renamed.append(pl.when(known).then(pl.col(name)).otherwise(None).alias(name))
            continue
        book[f"__name{i}"] = pl.Series(shown.names[i], dtype=pl.String).gather(shown.places[i][shown.kept])
        renamed.append(pl.col(f"__name{i}").alias(name))
    keys = [f"__code{i}" for i in range(len(columns))]
    joined = frame.with_columns(codes).join(
        pl.LazyFrame(book), on=keys, how="inner", maintain_order="left", nulls_equal=True
    )
    others = [name for name in schema.names() if name in settings.columns and name not in columns]
    shape = {name: i for i, name in enumerate(schema.names())}
    chosen = [*zip(columns, renamed, strict=True), *((name, pl.col(name)) for name in others)]
    return joined.select([column for _, column in sorted(chosen, key=lambda pair: shape[pair[0]])])


def _kind(path: Path) -> str:
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise SettingsError(
            f"'{path.suffix or path.name}' is not a kind of table known here",
            where=str(path),
            remedy=f"use {', '.join(FORMATS)}",
        )
    return kind


def _unreadable(path: Path) -> SettingsError:
    return SettingsError(
        "the file is not the table its ending says it is",
        where=str(path),
        remedy="check the file and its header",
    )
