"""Readers of labelled data files: NumPy archives, tables, text by speaker, and the four files of the heart study.

Every reader returns a `RawDataSet` with inputs and labels as in the file. Nothing is unpickled, and no error
contains the content of a row.
"""

from __future__ import annotations

import gzip
import json
import lzma
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError

WINDOW = 80  # characters of one text example

_KEYS = {
    "x_train": ("x_train", "train_images", "x"),
    "y_train": ("y_train", "train_labels", "y"),
    "x_test": ("x_test", "test_images"),
    "y_test": ("y_test", "test_labels"),
    "groups": ("groups_train", "writer_train", "writer"),
    "classes": ("classes",),
}


@dataclass(frozen=True, slots=True, eq=False)
class RawDataSet:
    """Inputs and labels as stored in a file.

    Attributes:
        x_train, y_train, x_test, y_test: inputs and labels, row by row.
        groups: the writer, hospital or role of each training row, where the file has it.
        classes: the names of the classes, if labels are integers.
    """

    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    groups: NDArray[Any] | None = None
    classes: tuple[str, ...] = ()


def read_npz(path: Path) -> RawDataSet:
    """Read a data set file: a NumPy archive with x_train, y_train, x_test and y_test.

    Without a test set every fifth writer is held out or, without writers, every fifth row of each class.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {
                key: archive[name] for key, names in _KEYS.items() for name in names if name in archive.files
            }
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        raise unreadable_file_error(path, "a NumPy archive without Python objects") from error
    split = "x_test" in arrays or "y_test" in arrays
    needed = ("x_train", "y_train", *(("x_test", "y_test") if split else ()))
    if missing := [key for key in needed if key not in arrays]:
        raise SettingsError(
            f"the archive has no {' and no '.join(missing)}",
            where=str(path),
            remedy="save it with np.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)",
        )
    classes = tuple(str(name) for name in arrays.pop("classes", ()))
    arrays = {key: value.reshape(-1) if key.startswith("y") else value for key, value in arrays.items()}
    if split:
        return RawDataSet(**arrays, classes=classes)
    x, y, groups = arrays["x_train"], arrays["y_train"], arrays.get("groups")
    if len(x) != len(y) or (groups is not None and len(groups) != len(y)):
        raise unreadable_file_error(path, "an archive with as many inputs as labels and groups")
    # Writers of the test set must not be in the training set.
    test = every_nth_row(y, 5) if groups is None else np.unique(groups, return_inverse=True)[1] % 5 == 4
    return RawDataSet(
        x[~test], y[~test], x[test], y[test], None if groups is None else groups[~test], classes
    )


def read_table(paths: list[Path], label: str, group: str | None) -> RawDataSet:
    """Read a data set from a CSV file, or from one for training and one for testing.

    Of a single table, every fifth row of each class is held out. Numeric columns are used as they are, with missing
    values; text columns with up to 32 values are one-hot encoded.
    """
    import polars as pl

    try:
        frames = [pl.read_csv(path, infer_schema_length=None, **_csv_dialect(path)) for path in paths]
        table = pl.concat(frames, how="vertical_relaxed")
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError):
        # The parser's message may contain a row.
        raise unreadable_file_error(paths[0], "a table in CSV whose first line names the columns") from None
    for column in (label, *([group] if group else [])):
        if column not in table.columns:
            raise SettingsError(
                f"there is no column '{column}'",
                where=str(paths[0]),
                remedy=f"name one of {', '.join(table.columns[:12])} with --label and --group",
            )
    y = table[label].cast(pl.String).fill_null("").to_numpy().astype(str)
    groups = None if group is None else table[group].cast(pl.String).fill_null("").to_numpy().astype(str)
    columns = [_encode_column(table[name], paths[0]) for name in table.columns if name not in (label, group)]
    if not columns:
        raise SettingsError(
            "the table has no column to learn from",
            where=str(paths[0]),
            remedy="add a feature column",
        )
    x = np.concatenate(columns, axis=1)
    test = np.arange(len(table)) >= len(frames[0]) if len(paths) == 2 else every_nth_row(y, 5)
    return RawDataSet(x[~test], y[~test], x[test], y[test], None if groups is None else groups[~test])


def _csv_dialect(path: Path) -> dict[str, Any]:
    """Return separator and decimal sign of a data set's CSV file; many use semicolons and decimal commas."""
    with path.open("rb") as stream:
        first = stream.readline(1 << 16)
    has_semicolons = first.count(b";") > first.count(b",")
    return {"separator": ";", "decimal_comma": True} if has_semicolons else {}


def _encode_column(series: Any, path: Path) -> NDArray[np.float32]:
    import polars as pl

    if series.dtype.is_numeric() or series.dtype == pl.Boolean:
        values: NDArray[np.float32] = series.cast(pl.Float32).to_numpy().astype(np.float32)
        return values[:, None]
    texts = series.cast(pl.String).fill_null("").to_numpy().astype(str)
    categories, codes = np.unique(texts, return_inverse=True)
    if len(categories) > 32:
        raise SettingsError(
            f"column '{series.name}' has {len(categories)} different values",
            where=str(path),
            remedy="remove the column, or encode it as numbers",
        )
    flags: NDArray[np.float32] = (codes[:, None] == np.arange(len(categories))).astype(np.float32)
    return flags


def read_speech(path: Path) -> RawDataSet:
    """Read a text data set by speaker: windows of 80 characters, the next character of each, and the speaker.

    Symbol 0 is any character that the training text does not have.
    """
    try:
        speakers = json.loads(gzip.decompress(path.read_bytes()))
        texts = {
            part: {
                str(speaker): "\n".join(lines_by_split[part]) for speaker, lines_by_split in speakers.items()
            }
            for part in ("train", "test")
        }
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable_file_error(path, "compressed JSON: speaker -> train, test -> lines") from error
    symbols = sorted(set("".join(texts["train"].values())))
    code = {ord(symbol): i + 1 for i, symbol in enumerate(symbols)}
    x_train, y_train, groups = _windows(texts["train"].items(), code)
    x_test, y_test, _ = _windows(texts["test"].items(), code)
    return RawDataSet(x_train, y_train, x_test, y_test, groups, ("other", *(repr(s)[1:-1] for s in symbols)))


def _windows(
    texts: Iterable[tuple[str, str]], code: dict[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]:
    parts, groups = [np.empty((0, WINDOW + 1), np.int64)], []
    for speaker, text in texts:
        symbols = np.array([code.get(ord(symbol), 0) for symbol in text], dtype=np.int64)
        count = max(0, (len(symbols) - 1) // WINDOW)
        starts = WINDOW * np.arange(count)
        parts.append(symbols[starts[:, None] + np.arange(WINDOW + 1)])
        groups += [speaker] * count
    windows = np.concatenate(parts)
    return (
        np.ascontiguousarray(windows[:, :-1]),
        np.ascontiguousarray(windows[:, 1:]),
        np.array(groups, dtype=str),
    )


def read_heart(paths: dict[str, Path]) -> RawDataSet:
    """Read the heart data set files of four hospitals: 13 measurements, and coronary artery disease.

    Every fourth patient of each hospital and label is held out for the test.
    """
    tables, hospitals = [], []
    for hospital, path in paths.items():
        try:
            table = np.genfromtxt(path, delimiter=",", missing_values="?", dtype=np.float64, ndmin=2)
        except (OSError, ValueError) as error:
            raise unreadable_file_error(path, "rows of 14 numbers or question marks") from error
        if table.shape[1] != 14:
            raise unreadable_file_error(path, "rows of 14 numbers or question marks")
        tables.append(table)
        hospitals += [hospital] * len(table)
    rows, groups = np.concatenate(tables), np.array(hospitals)
    y = (rows[:, 13] > 0).astype(np.int64)
    test = every_nth_row(np.char.add(groups, y.astype(str)), 4)
    x = rows[:, :13]
    return RawDataSet(x[~test], y[~test], x[test], y[test], groups[~test], ("healthy", "ill"))


def every_nth_row(labels: NDArray[Any], n: int) -> NDArray[np.bool_]:
    """Return a mask of every n-th row of each label in a data set file, to hold out for the test.

    >>> every_nth_row(np.array(["a", "b", "a", "b", "b"]), 2).tolist()
    [False, False, True, True, False]
    """
    selected = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        selected[np.flatnonzero(labels == label)[n - 1 :: n]] = True
    return selected


def unreadable_file_error(path: Path, expected: str) -> SettingsError:
    """Return the error for a malformed data set file."""
    return SettingsError("the file cannot be read", where=str(path), remedy=f"give {expected}")
