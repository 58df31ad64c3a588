"""Labelled data sets for the lab: by name, from a user's file, or synthetic from a seed.

Named sets are in a given folder or in ABATON_DATA; none is shipped with Abaton. Loaded arrays are shared: learners
get views (`abaton.lab.partition`). Prepared arrays are cached as files and mapped into memory, so that processes
share them. The synthetic set of small images needs no files, so that everything in the lab runs anywhere.
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
from abaton.lab.dataset_files import RawDataSet, read_heart, read_npz, read_speech, read_table
from abaton.lab.image_transforms import ImagePreprocessing, prepare
from abaton.models import Examples

_CACHE_VERSION = 1  # version of the cached arrays


def fingerprint(files: Sequence[Path], preparation: str) -> str:
    """Return a digest of a data set's files and preparation; it changes when a file does."""
    digest = hashlib.sha256(f"{_CACHE_VERSION}\x1f{preparation}".encode())
    for file in files:
        stat = file.stat()
        digest.update(f"\x1f{file.resolve()}\x1f{stat.st_size}\x1f{stat.st_mtime_ns}".encode())
    return digest.hexdigest()[:24]


def load_cached(cache_path: Path) -> dict[str, NDArray[Any]] | None:
    """Return the cached arrays of a data set, mapped into memory; None if they are missing or incomplete.

    Writes stay in this process: PyTorch requires writable arrays.
    """
    try:
        return {
            path.stem: np.load(path, mmap_mode="c", allow_pickle=False)
            for path in sorted(cache_path.glob("*.npy"))
        } or None
    except (OSError, ValueError, EOFError):
        return None


def store_cached(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Cache the arrays of a data set in a folder, all or none; a cache that cannot be written is skipped."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary_folder = Path(tempfile.mkdtemp(prefix=".half-", dir=path.parent))
        try:
            for name, array in arrays.items():
                np.save(temporary_folder / f"{name}.npy", array, allow_pickle=False)
            shutil.rmtree(path, ignore_errors=True)
            temporary_folder.replace(path)
        finally:
            shutil.rmtree(temporary_folder, ignore_errors=True)


CLASSES, SIDE, WRITERS = 10, 8, 40


def synthetic(seed: int = 1990, *, train: int = 4000, test: int = 1000) -> RawDataSet:
    """Return the synthetic data set: 8x8 images of ten classes by forty writers; two variants of each class.

    >>> drawn = synthetic(train=100, test=20)
    >>> drawn.x_train.shape, np.bincount(drawn.y_train).tolist()
    ((100, 8, 8), [10, 10, 10, 10, 10, 10, 10, 10, 10, 10])
    """
    rng = np.random.default_rng([seed, 8])
    signs = _smooth_patterns(rng, (CLASSES, 2))
    hands = 0.5 * _smooth_patterns(rng, (WRITERS,))
    count = train + test
    labels = np.arange(count) % CLASSES
    writers = rng.integers(0, WRITERS, count)
    variants = rng.integers(0, 2, count)
    ink = signs[labels, variants] + hands[writers] + 1.5 * rng.standard_normal((count, SIDE, SIDE))
    pixels = np.clip(128 + 40 * ink, 0, 255).astype(np.uint8)
    order = np.concatenate([rng.permutation(train), train + rng.permutation(test)])
    x, y, groups = pixels[order], labels[order], writers[order]
    return RawDataSet(x[:train], y[:train], x[train:], y[train:], groups[:train], tuple("ABCDEFGHIJ"))


def _smooth_patterns(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return smooth random patterns for the synthetic data set: a few low frequencies in both directions."""
    angles = (np.arange(SIDE) + 0.5) * np.pi / SIDE
    waves = np.cos(np.arange(4)[:, None] * angles)
    pattern: NDArray[np.float64] = waves.T @ rng.standard_normal((*shape, 4, 4)) @ waves
    pattern /= pattern.std(axis=(-2, -1), keepdims=True)
    return pattern


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """Labelled examples for training and test.

    Attributes:
        name: name of the data set.
        train: examples that are partitioned over the learners.
        test: held-out examples.
        classes: the names of the classes; a label is an index into them.
        groups: the writer, hospital or role of each training row, where known.
    """

    name: str
    train: Examples
    test: Examples
    classes: tuple[str, ...]
    groups: NDArray[Any] | None = None

    @property
    def labels(self) -> NDArray[np.int64]:
        """Class of each training row of the data set, for partitions; the last character of a text window."""
        y: NDArray[np.int64] = self.train.y
        return y if y.ndim == 1 else y[:, -1]


@dataclass(frozen=True, slots=True)
class NamedDataSet:
    """Data set with a name: its files, a description and the origin of its rows."""

    files: tuple[str, ...]
    description: str
    groups: str
    read: Callable[[tuple[Path, ...]], RawDataSet]


@dataclass(frozen=True, slots=True)
class DataSetColumns:
    """Columns of a user's table with the label and, if any, the hospital or subject."""

    label: str = "label"
    group: str | None = None


def _npz(folder: str, name: str, what: str, groups: str = "") -> NamedDataSet:
    return NamedDataSet((f"{folder}/{name}.npz",), what, groups, lambda paths: read_npz(paths[0]))


_HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")

DATA_SETS: Mapping[str, NamedDataSet] = {
    "synthetic": NamedDataSet(
        (), "4,000 + 1,000 synthetic images 8x8, 10 classes", "writer", lambda _: synthetic()
    ),
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
    "shakespeare": NamedDataSet(
        ("text/shakespeare_by_role.json.gz",),
        "windows of 80 characters by 715 roles, the next character after each",
        "role",
        lambda paths: read_speech(paths[0]),
    ),
    "heart": NamedDataSet(
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
    preparation: ImagePreprocessing | None = ImagePreprocessing(),  # noqa: B008
    columns: DataSetColumns = DataSetColumns(),  # noqa: B008
    cache: Path | None = None,
) -> DataSet:
    """Load a data set by name, or from a file or folder.

    Args:
        name: one of `DATA_SETS`, or a path: an archive (.npz), a table (.csv), or a folder with one archive, one table,
            or train.csv and test.csv.
        folder: folder of named sets; by default the environment variable ABATON_DATA.
        preparation: preparation of inputs; None leaves them as in the file. Text is not changed.
        columns: the label and group columns of a table.
        cache: folder for prepared arrays, which are mapped into memory the next time.

    >>> load("synthetic", preparation=ImagePreprocessing(flat=True)).train.x.shape
    (4000, 64)
    """
    files = _files(name, folder) if name in DATA_SETS else _user_files(Path(name))
    cache_path = (
        cache / fingerprint(files, repr((preparation, columns))) if cache is not None and files else None
    )
    cached = load_cached(cache_path) if cache_path is not None else None
    if cached is None:
        raw = DATA_SETS[name].read(files) if name in DATA_SETS else _read(files, columns)
        cached = _prepare_arrays(Path(name).stem, raw, preparation)
        if cache_path is not None:
            store_cached(cache_path, cached)
    return DataSet(
        Path(name).stem,
        Examples(cached["x_train"], cached["y_train"]),
        Examples(cached["x_test"], cached["y_test"]),
        tuple(cached["classes"].tolist()),
        cached.get("groups"),
    )


def missing_files(name: str, folder: Path | None = None) -> list[str]:
    """Return the files that a named data set needs and that are missing."""
    return [file for file in DATA_SETS[name].files if _find(file, _folder(folder)) is None]


def _folder(folder: Path | None) -> Path | None:
    named = os.environ.get("ABATON_DATA")
    return folder if folder is not None else Path(named) if named else None


def _find(file: str, folder: Path | None) -> Path | None:
    if folder is None:
        return None
    return next((path for path in (folder / file, folder / Path(file).name) if path.is_file()), None)


def _files(name: str, folder: Path | None) -> tuple[Path, ...]:
    data_dir = _folder(folder)
    paths = [_find(file, data_dir) for file in DATA_SETS[name].files]
    missing = [file for file, path in zip(DATA_SETS[name].files, paths, strict=True) if path is None]
    if missing:
        raise SettingsError(
            f"the data set '{name}' needs {' and '.join(missing)}, which does not exist",
            where=str(data_dir) if data_dir else "no data folder is set",
            remedy="set the folder with --folder or ABATON_DATA, or use 'synthetic', which needs no file",
        )
    return tuple(path for path in paths if path is not None)


def _user_files(path: Path) -> tuple[Path, ...]:
    if path.is_dir():
        archives, tables = sorted(path.glob("*.npz")), sorted(path.glob("*.csv"))
        if [table.name for table in tables] == ["test.csv", "train.csv"] and not archives:
            return tables[1], tables[0]
        if len(archives) + len(tables) != 1:
            raise SettingsError(
                f"the folder has {len(archives)} archives and {len(tables)} tables",
                where=str(path),
                remedy="put one .npz file, one .csv file, or train.csv and test.csv into it, or give a path",
            )
        path = (archives + tables)[0]
    if path.is_file() and (path.suffix == ".npz" or ".csv" in path.suffixes):
        return (path,)
    raise SettingsError(
        f"there is no data set '{path}'",
        remedy=f"use {', '.join(DATA_SETS)}, or the path of an .npz or .csv file",
    )


def _read(files: tuple[Path, ...], columns: DataSetColumns) -> RawDataSet:
    if files[0].suffix == ".npz":
        return read_npz(files[0])
    return read_table(list(files), columns.label, columns.group)


def _prepare_arrays(
    name: str, raw: RawDataSet, preparation: ImagePreprocessing | None
) -> dict[str, NDArray[Any]]:
    for part, x, y in (("training", raw.x_train, raw.y_train), ("test", raw.x_test, raw.y_test)):
        if len(x) != len(y) or not len(x):
            raise SettingsError(
                f"there are {len(x)} {part} inputs and {len(y)} {part} labels",
                where=f"data set '{name}'",
                remedy="give at least one row, and each row exactly one label",
            )
    if raw.groups is not None and len(raw.groups) != len(raw.y_train):
        raise SettingsError(
            f"there are {len(raw.y_train)} training rows and {len(raw.groups)} groups",
            where=f"data set '{name}'",
            remedy="give each training row exactly one group",
        )
    y_train, y_test, classes = _encode_labels(raw)
    if preparation is None or raw.y_train.ndim > 1:
        x_train, x_test = raw.x_train, raw.x_test
    else:
        x_train, x_test = prepare(raw.x_train, raw.x_test, preparation)
    arrays: dict[str, NDArray[Any]] = {
        "x_train": x_train,
        "y_train": y_train,
        "x_test": x_test,
        "y_test": y_test,
    }
    arrays["classes"] = np.array(classes, dtype=str)
    return arrays if raw.groups is None else arrays | {"groups": raw.groups}


def _encode_labels(raw: RawDataSet) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    if raw.classes and raw.y_train.dtype.kind in "iu":
        largest_code = max(int(raw.y_train.max()), int(raw.y_test.max()))
        if largest_code < len(raw.classes) and min(raw.y_train.min(), raw.y_test.min()) >= 0:
            return raw.y_train.astype(np.int64), raw.y_test.astype(np.int64), raw.classes
    if raw.y_train.dtype.kind not in "iuUSb":
        raise SettingsError(
            f"labels are of type {raw.y_train.dtype}",
            where="data set",
            remedy="label each row with an integer or text",
        )
    classes, codes = np.unique(np.concatenate([raw.y_train, raw.y_test]), return_inverse=True)
    codes = codes.astype(np.int64)
    return codes[: len(raw.y_train)], codes[len(raw.y_train) :], tuple(str(name) for name in classes)
