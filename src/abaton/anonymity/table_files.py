"""Tables on disk: reading of CSV, Parquet and NDJSON, and atomic writing of a release."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from abaton.anonymity.equivalence_classes import EncodedTable
from abaton.anonymity.release import TableRelease
from abaton.anonymity.settings import AnonymitySettings
from abaton.anonymity.table_encoding import check_columns, collect_streaming, leaf_codes, to_text
from abaton.atomic_files import atomic_write
from abaton.errors import AbatonError, SettingsError

FORMATS = (".csv", ".tsv", ".parquet", ".ndjson", ".jsonl")


def scan(path: Path, *, separator: str = "") -> pl.LazyFrame:
    """Open a table file lazily: CSV or TSV with a header line, Parquet, or one JSON object per line.

    Args:
        path: the file; its suffix is the format.
        separator: of a CSV; by default detected from the header line.

    Raises:
        SettingsError: The file does not exist, is not a table, or has another format.
    """
    suffix = _check_suffix(path)
    if not path.is_file():
        raise SettingsError("the table does not exist", where=str(path), remedy="check the path")
    try:
        if suffix in (".csv", ".tsv"):
            # Cells stay text: 007 is a code and not a number.
            frame = pl.scan_csv(path, separator=separator or separator_of(path), infer_schema=False)
        else:
            frame = (
                pl.scan_parquet(path)
                if suffix == ".parquet"
                else pl.scan_ndjson(path, infer_schema_length=None)
            )
        frame.collect_schema()
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError):
        raise _unreadable(path) from None
    return frame


def separator_of(path: Path) -> str:
    """Return the separator of a CSV file's header line: comma, semicolon, tab or bar."""
    with path.open("rb") as file:
        header = file.readline(1_000_000)
    return max(",;\t|", key=lambda separator: header.count(separator.encode()))


def write(
    frame: pl.LazyFrame,
    table: EncodedTable,
    release: TableRelease,
    settings: AnonymitySettings,
    path: Path,
    *,
    separator: str = ",",
) -> list[str]:
    """Write an anonymised table to a file, row by row in the table's order, without suppressed rows.

    Only quasi-identifiers, sensitive columns and passthrough columns are written. The file appears when it is complete.

    Args:
        frame: the scanned table.
        table: the encoded table.
        release: the release.
        settings: the study's settings.
        path: the output file; its suffix is the format.
        separator: of a CSV.

    Returns:
        The columns that were dropped.
    """
    released = recoded_frame(frame, table, release, settings)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary_path:
            if _check_suffix(path) in (".csv", ".tsv"):
                released.sink_csv(
                    temporary_path, separator="\t" if _check_suffix(path) == ".tsv" else separator
                )
            elif _check_suffix(path) == ".parquet":
                released.sink_parquet(temporary_path)
            else:
                released.sink_ndjson(temporary_path)
    except (pl.exceptions.PolarsError, OSError):
        raise AbatonError(
            "the released table cannot be written",
            where=str(path),
            remedy="check the folder and the free disk space",
        ) from None
    return [name for name in frame.collect_schema().names() if name not in settings.columns]


def recoded_frame(
    frame: pl.LazyFrame, table: EncodedTable, release: TableRelease, settings: AnonymitySettings
) -> pl.LazyFrame:
    """Return the anonymised table to write: quasi-identifiers become the names of their combination."""
    schema = frame.collect_schema()
    check_columns(schema.names(), settings.columns)
    columns = [quasi.column for quasi in settings.quasi_identifiers]
    codes, renamed = [], []
    lookup: dict[str, pl.Series] = {}
    texts = {name: to_text(name, schema[name]) for name in columns}
    values = collect_streaming(frame.select([text.unique().implode() for text in texts.values()]))
    for i, ((name, text), hierarchy) in enumerate(zip(texts.items(), table.hierarchies, strict=True)):
        leaves = leaf_codes(hierarchy, values[name][0].to_list(), settings.missing_values)
        code = text.replace_strict(list(leaves), list(leaves.values()), return_dtype=pl.Int32)
        codes.append(code.alias(f"__code{i}"))
        lookup[f"__code{i}"] = pl.Series(table.codes[i][release.retained], dtype=pl.Int32)
        if release.node is not None and release.node[i] == 0 and schema[name] != pl.String:
            # Unchanged: the column keeps its type, and all texts for a missing value become null.
            missing = [code for code, label in enumerate(hierarchy.labels[0]) if label is None]
            is_present = ~pl.col(f"__code{i}").is_in(missing)
            renamed.append(pl.when(is_present).then(pl.col(name)).otherwise(None).alias(name))
            continue
        lookup[f"__name{i}"] = pl.Series(release.names[i], dtype=pl.String).gather(
            release.indices[i][release.retained]
        )
        renamed.append(pl.col(f"__name{i}").alias(name))
    keys = [f"__code{i}" for i in range(len(columns))]
    joined = frame.with_columns(codes).join(
        pl.LazyFrame(lookup), on=keys, how="inner", maintain_order="left", nulls_equal=True
    )
    others = [name for name in schema.names() if name in settings.columns and name not in columns]
    positions = {name: i for i, name in enumerate(schema.names())}
    selected = [*zip(columns, renamed, strict=True), *((name, pl.col(name)) for name in others)]
    return joined.select([column for _, column in sorted(selected, key=lambda pair: positions[pair[0]])])


def _check_suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise SettingsError(
            f"'{path.suffix or path.name}' is not a supported table format",
            where=str(path),
            remedy=f"use {', '.join(FORMATS)}",
        )
    return suffix


def _unreadable(path: Path) -> SettingsError:
    return SettingsError(
        "the content of the file does not match its suffix",
        where=str(path),
        remedy="check the file and its header",
    )
