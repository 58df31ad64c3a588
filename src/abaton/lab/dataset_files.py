"""Files of labelled data as plain arrays: NumPy archives, tables, text by speaker, and the heart study's four files.

Every reader gives a `Raw`: inputs and labels as they are in the file. Nothing is ever unpickled, and no error holds
what a row contains.
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

WINDOW = 80  # characters that a text model sees at once

_KEYS = {
    "x_train": ("x_train", "train_images", "x"),
    "y_train": ("y_train", "train_labels", "y"),
    "x_test": ("x_test", "test_images"),
    "y_test": ("y_test", "test_labels"),
    "groups": ("groups_train", "writer_train", "writer"),
    "classes": ("classes",),
}


@dataclass(frozen=True, slots=True, eq=False)
class Raw:
    """Inputs and labels as a file holds them.

    Attributes:
        x_train, y_train, x_test, y_test: inputs and labels, row by row.
        groups: the writer, hospital or role of each training row, where the file knows it.
        classes: the names of the classes, if labels are numbers that count them.
    """

    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    groups: NDArray[Any] | None = None
    classes: tuple[str, ...] = ()


def read_npz(path: Path) -> Raw:
    """A NumPy archive with x_train, y_train, x_test and y_test.

    Without a test set every fifth writer is held out, or, where no writers are known, every fifth row of each class.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            found = {
                key: archive[name] for key, names in _KEYS.items() for name in names if name in archive.files
            }
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        raise unreadable(path, "a NumPy archive without Python objects") from error
    split = "x_test" in found or "y_test" in found
    needed = ("x_train", "y_train", *(("x_test", "y_test") if split else ()))
    if missing := [key for key in needed if key not in found]:
        raise SettingsError(
            f"the archive has no {' and no '.join(missing)}",
            where=str(path),
            remedy="save it with np.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)",
        )
    classes = tuple(str(name) for name in found.pop("classes", ()))
    found = {key: value.reshape(-1) if key.startswith("y") else value for key, value in found.items()}
    if split:
        return Raw(**found, classes=classes)
    x, y, groups = found["x_train"], found["y_train"], found.get("groups")
    if len(x) != len(y) or (groups is not None and len(groups) != len(y)):
        raise unreadable(path, "an archive with as many inputs as labels and groups")
    # Whoever is tested should never have been seen.
    test = every(y, 5) if groups is None else np.unique(groups, return_inverse=True)[1] % 5 == 4
    return Raw(x[~test], y[~test], x[test], y[test], None if groups is None else groups[~test], classes)


def read_table(paths: list[Path], label: str, group: str | None) -> Raw:
    """A table in CSV, or one for training and one for the test.

    Of a single table, every fifth row of each class is for the test. Columns of numbers are used as they are, with
    gaps; columns of up to 32 words become one column a word.
    """
    import polars as pl

    try:
        frames = [pl.read_csv(path, infer_schema_length=None, **_written(path)) for path in paths]
        whole = pl.concat(frames, how="vertical_relaxed")
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError):
        # The parser's own words may quote a row.
        raise unreadable(paths[0], "a table in CSV whose first line names the columns") from None
    for column in (label, *([group] if group else [])):
        if column not in whole.columns:
            raise SettingsError(
                f"there is no column '{column}'",
                where=str(paths[0]),
                remedy=f"name one of {', '.join(whole.columns[:12])} with --label and --group",
            )
    y = whole[label].cast(pl.String).fill_null("").to_numpy().astype(str)
    who = None if group is None else whole[group].cast(pl.String).fill_null("").to_numpy().astype(str)
    columns = [_columns(whole[name], paths[0]) for name in whole.columns if name not in (label, group)]
    if not columns:
        raise SettingsError("the table has no column to learn from", where=str(paths[0]), remedy="add some")
    x = np.concatenate(columns, axis=1)
    test = np.arange(len(whole)) >= len(frames[0]) if len(paths) == 2 else every(y, 5)
    return Raw(x[~test], y[~test], x[test], y[test], None if who is None else who[~test])


def _written(path: Path) -> dict[str, Any]:
    """How a table is written: a spreadsheet of many countries has semicolons, and commas within numbers."""
    with path.open("rb") as stream:
        first = stream.readline(1 << 16)
    marks = first.count(b";") > first.count(b",")
    return {"separator": ";", "decimal_comma": True} if marks else {}


def _columns(series: Any, path: Path) -> NDArray[np.float32]:
    import polars as pl

    if series.dtype.is_numeric() or series.dtype == pl.Boolean:
        values: NDArray[np.float32] = series.cast(pl.Float32).to_numpy().astype(np.float32)
        return values[:, None]
    words = series.cast(pl.String).fill_null("").to_numpy().astype(str)
    found, place = np.unique(words, return_inverse=True)
    if len(found) > 32:
        raise SettingsError(
            f"column '{series.name}' has {len(found)} different words",
            where=str(path),
            remedy="leave it out, or turn it into numbers",
        )
    flags: NDArray[np.float32] = (place[:, None] == np.arange(len(found))).astype(np.float32)
    return flags


def read_speech(path: Path) -> Raw:
    """Text by speaker: windows of 80 characters, to each character the one that follows, and who speaks.

    Symbol 0 is any character that the training text does not have.
    """
    try:
        speakers = json.loads(gzip.decompress(path.read_bytes()))
        texts = {
            part: {str(who): "\n".join(said[part]) for who, said in speakers.items()}
            for part in ("train", "test")
        }
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(path, "compressed JSON: speaker -> train, test -> lines") from error
    symbols = sorted(set("".join(texts["train"].values())))
    code = {ord(symbol): i + 1 for i, symbol in enumerate(symbols)}
    x_train, y_train, groups = _windows(texts["train"].items(), code)
    x_test, y_test, _ = _windows(texts["test"].items(), code)
    return Raw(x_train, y_train, x_test, y_test, groups, ("other", *(repr(s)[1:-1] for s in symbols)))


def _windows(
    texts: Iterable[tuple[str, str]], code: dict[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]:
    parts, groups = [np.empty((0, WINDOW + 1), np.int64)], []
    for who, text in texts:
        symbols = np.array([code.get(ord(symbol), 0) for symbol in text], dtype=np.int64)
        count = max(0, (len(symbols) - 1) // WINDOW)
        starts = WINDOW * np.arange(count)
        parts.append(symbols[starts[:, None] + np.arange(WINDOW + 1)])
        groups += [who] * count
    windows = np.concatenate(parts)
    return (
        np.ascontiguousarray(windows[:, :-1]),
        np.ascontiguousarray(windows[:, 1:]),
        np.array(groups, dtype=str),
    )


def read_heart(paths: dict[str, Path]) -> Raw:
    """The heart study of four hospitals: 13 measurements with gaps, and whether the vessels are narrowed.

    Every fourth patient of each hospital and finding is held out for the test.
    """
    tables, hospitals = [], []
    for hospital, path in paths.items():
        try:
            table = np.genfromtxt(path, delimiter=",", missing_values="?", dtype=np.float64, ndmin=2)
        except (OSError, ValueError) as error:
            raise unreadable(path, "rows of 14 numbers or question marks") from error
        if table.shape[1] != 14:
            raise unreadable(path, "rows of 14 numbers or question marks")
        tables.append(table)
        hospitals += [hospital] * len(table)
    whole, who = np.concatenate(tables), np.array(hospitals)
    y = (whole[:, 13] > 0).astype(np.int64)
    test = every(np.char.add(who, y.astype(str)), 4)
    x = whole[:, :13]
    return Raw(x[~test], y[~test], x[test], y[test], who[~test], ("healthy", "ill"))


def every(kinds: NDArray[Any], n: int) -> NDArray[np.bool_]:
    """Every n-th row of each kind.

    >>> every(np.array(["a", "b", "a", "b", "b"]), 2).tolist()
    [False, False, True, True, False]
    """
    chosen = np.zeros(len(kinds), dtype=bool)
    for kind in np.unique(kinds):
        chosen[np.flatnonzero(kinds == kind)[n - 1 :: n]] = True
    return chosen


def unreadable(path: Path, expected: str) -> SettingsError:
    """The error for a file that is not what it should be."""
    return SettingsError("this file cannot be read", where=str(path), remedy=f"it should be {expected}")
