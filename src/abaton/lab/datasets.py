"""Labelled data sets for the lab: by name, from a file of the user, or drawn from a seed.

Named sets lie in a folder that is given, or that ABATON_DATA names; none of them comes with Abaton. What is loaded is
shared: learners get views of it (`abaton.lab.sites`), never copies.

Arrays that were expensive to make, kept as files and mapped into memory: read once, shared by all processes.

A labelled set of small images drawn from a seed: no files, so that everything in the lab runs anywhere.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.lab.dataset_files import Raw, read_heart, read_npz, read_speech, read_table
from abaton.lab.image_transforms import Preparation, prepare
from abaton.learners import Examples

_FORM = 1  # of what is kept; another number makes everything again


def fingerprint(files: Sequence[Path], how: str) -> str:
    """A name for what is made from these files in this way; it changes when a file does."""
    made = hashlib.sha256(f"{_FORM}\x1f{how}".encode())
    for file in files:
        about = file.stat()
        made.update(f"\x1f{file.resolve()}\x1f{about.st_size}\x1f{about.st_mtime_ns}".encode())
    return made.hexdigest()[:24]


def recall(place: Path) -> dict[str, NDArray[Any]] | None:
    """The arrays kept in a folder, mapped into memory; None if they are not there or not whole.

    What is written to them stays in this process: PyTorch wants arrays that could be written to.
    """
    try:
        return {
            path.stem: np.load(path, mmap_mode="c", allow_pickle=False)
            for path in sorted(place.glob("*.npy"))
        } or None
    except (OSError, ValueError, EOFError):
        return None


def keep(place: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Keep arrays in a folder, all or none of them; a cache that cannot be written is done without."""
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        half = Path(tempfile.mkdtemp(prefix=".half-", dir=place.parent))
        try:
            for name, array in arrays.items():
                np.save(half / f"{name}.npy", array, allow_pickle=False)
            shutil.rmtree(place, ignore_errors=True)
            half.replace(place)
        finally:
            shutil.rmtree(half, ignore_errors=True)


CLASSES, SIDE, WRITERS = 10, 8, 40


def synthetic(seed: int = 1990, *, train: int = 4000, test: int = 1000) -> Raw:
    """Signs of ten kinds by forty writers, 8x8 grey pixels; each kind is written in one of two ways.

    >>> drawn = synthetic(train=100, test=20)
    >>> drawn.x_train.shape, np.bincount(drawn.y_train).tolist()
    ((100, 8, 8), [10, 10, 10, 10, 10, 10, 10, 10, 10, 10])
    """
    rng = np.random.default_rng([seed, 8])
    signs = _smooth(rng, (CLASSES, 2))
    hands = 0.5 * _smooth(rng, (WRITERS,))
    count = train + test
    kinds = np.arange(count) % CLASSES
    writers = rng.integers(0, WRITERS, count)
    ways = rng.integers(0, 2, count)
    ink = signs[kinds, ways] + hands[writers] + 1.5 * rng.standard_normal((count, SIDE, SIDE))
    pixels = np.clip(128 + 40 * ink, 0, 255).astype(np.uint8)
    order = np.concatenate([rng.permutation(train), train + rng.permutation(test)])
    x, y, who = pixels[order], kinds[order], writers[order]
    return Raw(x[:train], y[:train], x[train:], y[train:], who[:train], tuple("ABCDEFGHIJ"))


def _smooth(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Random patterns without sharp edges, of spread 1: a few slow waves in both directions."""
    place = (np.arange(SIDE) + 0.5) * np.pi / SIDE
    waves = np.cos(np.arange(4)[:, None] * place)
    pattern: NDArray[np.float64] = waves.T @ rng.standard_normal((*shape, 4, 4)) @ waves
    pattern /= pattern.std(axis=(-2, -1), keepdims=True)
    return pattern


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """Labelled examples for training and for the test.

    Attributes:
        name: what it is called.
        train: what the learners share out among them.
        test: what nobody trains on.
        classes: the names of the classes; a label is a place in this list.
        groups: the writer, hospital or role of each training row, where it is known.
    """

    name: str
    train: Examples
    test: Examples
    classes: tuple[str, ...]
    groups: NDArray[Any] | None = None

    @property
    def labels(self) -> NDArray[np.int64]:
        """One class a training row, for partitions; of a text window, its last character."""
        y: NDArray[np.int64] = self.train.y
        return y if y.ndim == 1 else y[:, -1]


@dataclass(frozen=True, slots=True)
class Known:
    """A data set with a name: the files it needs, what it is, and who its rows come from."""

    files: tuple[str, ...]
    what: str
    groups: str
    read: Callable[[tuple[Path, ...]], Raw]


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a user's table hold the label and, if any, the hospital or person."""

    label: str = "label"
    group: str | None = None


def _npz(folder: str, name: str, what: str, groups: str = "") -> Known:
    return Known((f"{folder}/{name}.npz",), what, groups, lambda paths: read_npz(paths[0]))


_HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")

KNOWN: Mapping[str, Known] = {
    "synthetic": Known((), "4,000 + 1,000 drawn images 8x8, 10 classes", "writer", lambda _: synthetic()),
    "cifar10_20k": _npz("vision", "cifar10_20k", "20,000 + 5,000 colour images 32x32, 10 classes"),
    "cifar100_10k": _npz("vision", "cifar100_10k", "10,000 + 2,000 colour images 32x32, 100 classes"),
    "mnist_by_writer": _npz(
        "vision", "mnist_by_writer", "60,000 + 10,000 digits 28x28, 10 classes, 539 writers", "writer"
    ),
    "emnist_balanced_small_by_writer": _npz(
        "vision",
        "emnist_balanced_small_by_writer",
        "2,000 + 2,000 characters 28x28, 47 classes, 1,491 writers",
        "writer",
    ),
    "chars74k_hnd62_by_writer": _npz(
        "vision",
        "chars74k_hnd62_by_writer",
        "2,728 + 682 characters 28x28, 62 classes, 44 + 11 writers",
        "writer",
    ),
    "hand62_scans": _npz("vision", "hand62_scans", "4,960 + 1,240 scanned characters 28x28, 62 classes"),
    "pneumoniamnist": _npz("medical", "pneumoniamnist", "4,708 + 624 chest X-rays 28x28, 2 classes"),
    "shakespeare": Known(
        ("text/shakespeare_by_role.json.gz",),
        "windows of 80 characters by 715 roles, the next character after each",
        "role",
        lambda paths: read_speech(paths[0]),
    ),
    "heart": Known(
        tuple(f"heart/processed.{name}.data" for name in _HOSPITALS),
        "920 patients of four hospitals, 13 measurements, 2 classes",
        "hospital",
        lambda paths: read_heart(dict(zip(_HOSPITALS, paths, strict=True))),
    ),
}


def load(
    name: str,
    *,
    folder: Path | None = None,
    how: Preparation | None = Preparation(),  # noqa: B008
    columns: Columns = Columns(),  # noqa: B008
    cache: Path | None = None,
) -> DataSet:
    """Load a data set by name, or from a file or folder of the user.

    Args:
        name: one of `KNOWN`; or a path: an archive (.npz), a table (.csv), or a folder with one archive, with one
            table, or with train.csv and test.csv.
        folder: where named sets lie; if not given, the environment variable ABATON_DATA says it.
        how: how inputs are made ready; None leaves them as the file has them. Text is never changed.
        columns: the label and group columns of a table.
        cache: a folder that keeps what was made ready; the next time it is mapped into memory instead of read again.

    >>> load("synthetic", how=Preparation(flat=True)).train.x.shape
    (4000, 64)
    """
    files = _files(name, folder) if name in KNOWN else _files_of_user(Path(name))
    place = cache / fingerprint(files, repr((how, columns))) if cache is not None and files else None
    kept = recall(place) if place is not None else None
    if kept is None:
        raw = KNOWN[name].read(files) if name in KNOWN else _read(files, columns)
        kept = _ready(Path(name).stem, raw, how)
        if place is not None:
            keep(place, kept)
    return DataSet(
        Path(name).stem,
        Examples(kept["x_train"], kept["y_train"]),
        Examples(kept["x_test"], kept["y_test"]),
        tuple(kept["classes"].tolist()),
        kept.get("groups"),
    )


def missing(name: str, folder: Path | None = None) -> list[str]:
    """The files that a named set needs and that are not there."""
    return [file for file in KNOWN[name].files if _find(file, _folder(folder)) is None]


def _folder(folder: Path | None) -> Path | None:
    named = os.environ.get("ABATON_DATA")
    return folder if folder is not None else Path(named) if named else None


def _find(file: str, folder: Path | None) -> Path | None:
    if folder is None:
        return None
    return next((path for path in (folder / file, folder / Path(file).name) if path.is_file()), None)


def _files(name: str, folder: Path | None) -> tuple[Path, ...]:
    place = _folder(folder)
    found = [_find(file, place) for file in KNOWN[name].files]
    lost = [file for file, path in zip(KNOWN[name].files, found, strict=True) if path is None]
    if lost:
        raise SettingsError(
            f"the data set '{name}' needs {' and '.join(lost)}, which is not there",
            where=str(place) if place else "no data folder was named",
            remedy="name the folder with --folder or ABATON_DATA, or use 'synthetic', which needs no file",
        )
    return tuple(path for path in found if path is not None)


def _files_of_user(path: Path) -> tuple[Path, ...]:
    if path.is_dir():
        archives, tables = sorted(path.glob("*.npz")), sorted(path.glob("*.csv"))
        if [table.name for table in tables] == ["test.csv", "train.csv"] and not archives:
            return tables[1], tables[0]
        if len(archives) + len(tables) != 1:
            raise SettingsError(
                f"the folder has {len(archives)} archives and {len(tables)} tables",
                where=str(path),
                remedy="put one .npz file, one .csv file, or train.csv and test.csv into it, or name the file",
            )
        path = (archives + tables)[0]
    if path.is_file() and (path.suffix == ".npz" or ".csv" in path.suffixes):
        return (path,)
    raise SettingsError(
        f"there is no data set '{path}'",
        remedy=f"use {', '.join(KNOWN)}, or the path of an .npz or .csv file",
    )


def _read(files: tuple[Path, ...], columns: Columns) -> Raw:
    if files[0].suffix == ".npz":
        return read_npz(files[0])
    return read_table(list(files), columns.label, columns.group)


def _ready(name: str, raw: Raw, how: Preparation | None) -> dict[str, NDArray[Any]]:
    for part, x, y in (("training", raw.x_train, raw.y_train), ("test", raw.x_test, raw.y_test)):
        if len(x) != len(y) or not len(x):
            raise SettingsError(
                f"there are {len(x)} {part} inputs and {len(y)} {part} labels",
                where=f"data set '{name}'",
                remedy="give each row exactly one label, and some rows",
            )
    if raw.groups is not None and len(raw.groups) != len(raw.y_train):
        raise SettingsError(
            f"there are {len(raw.y_train)} training rows and {len(raw.groups)} groups",
            where=f"data set '{name}'",
            remedy="give each training row exactly one group",
        )
    y_train, y_test, classes = _codes(raw)
    if how is None or raw.y_train.ndim > 1:
        x_train, x_test = raw.x_train, raw.x_test
    else:
        x_train, x_test = prepare(raw.x_train, raw.x_test, how)
    made: dict[str, NDArray[Any]] = {
        "x_train": x_train,
        "y_train": y_train,
        "x_test": x_test,
        "y_test": y_test,
    }
    made["classes"] = np.array(classes, dtype=str)
    return made if raw.groups is None else made | {"groups": raw.groups}


def _codes(raw: Raw) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    if raw.classes and raw.y_train.dtype.kind in "iu":
        most = max(int(raw.y_train.max()), int(raw.y_test.max()))
        if most < len(raw.classes) and min(raw.y_train.min(), raw.y_test.min()) >= 0:
            return raw.y_train.astype(np.int64), raw.y_test.astype(np.int64), raw.classes
    if raw.y_train.dtype.kind not in "iuUSb":
        raise SettingsError(
            f"labels are of type {raw.y_train.dtype}",
            where="data set",
            remedy="label each row with a whole number or a word",
        )
    found, codes = np.unique(np.concatenate([raw.y_train, raw.y_test]), return_inverse=True)
    codes = codes.astype(np.int64)
    return codes[: len(raw.y_train)], codes[len(raw.y_train) :], tuple(str(name) for name in found)
