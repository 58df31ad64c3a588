"""Stored preparation of an unfinished study run: recoding, scaling, and the split of each row.

An interrupted run is resumed with the same recoding, scaling and split, also after withdrawals: the rows of withdrawn
subjects are missing, and all others stay in their split. Rows are identified by registry pseudonym and keyed digest, so
a resumed run can distinguish withdrawn subjects from changed records; the file contains no record values. It is removed
when the run ends.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from abaton.anonymity.federated_recoding import CombinationHistogram, RecodingChoice
from abaton.atomic_files import atomic_write, map_os_errors
from abaton.errors import RefusedError, StoreError
from abaton.features import ColumnMoments, ColumnStatistics, FeatureTable

SPLITS = ("train", "validation", "test")

RowIndices = NDArray[np.int64]
PseudonymFunction = Callable[[str], str]
"""Returns the registry pseudonym of a subject key."""


class RowAssignment(NamedTuple):
    """Subject, split and digest of one row of a site."""

    subject_pseudonym: str
    split: str
    digest: str


@dataclass(frozen=True, slots=True)
class CommonScale:
    """Common scaling: statistics over all sites, and mean and standard deviation of the values to predict."""

    columns: ColumnStatistics
    label: tuple[float, float]

    def to_row(self) -> dict[str, Any]:
        """Return the common scaling as JSON values of the stored preparation."""
        columns = {name: [m.count, m.sum, m.squared_sum] for name, m in self.columns.columns.items()}
        return {"columns": columns, "label": list(self.label)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> CommonScale:
        """Return the common scaling from the JSON values of the stored preparation."""
        mean, std = row["label"]
        return cls(
            ColumnStatistics({name: ColumnMoments(*moments) for name, moments in row["columns"].items()}),
            (mean, std),
        )


@dataclass(frozen=True, slots=True)
class PreparationState:
    """Preparation of a run.

    Attributes:
        recoding: The common recoding, if the study requires anonymity.
        histograms: The histograms of the sites that it was chosen from.
        scale: The common scaling.
        splits: Row assignments of every site that takes part, in row order.
    """

    recoding: RecodingChoice | None
    histograms: Mapping[str, CombinationHistogram]
    scale: CommonScale
    splits: Mapping[str, Sequence[RowAssignment]]

    def write(self, path: Path) -> None:
        """Write the preparation state of an unfinished run, readable by this account only."""
        row = {
            "recoding": self.recoding and self.recoding.row(),
            "histograms": {name: histogram.row() for name, histogram in self.histograms.items()},
            "scale": self.scale.to_row(),
            "splits": {
                name: [list(assignment) for assignment in assignments]
                for name, assignments in self.splits.items()
            },
        }
        with map_os_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with atomic_write(path, mode=0o600) as temporary_path:
                temporary_path.write_text(json.dumps(row))

    @classmethod
    def read(cls, path: Path) -> PreparationState | None:
        """Return the preparation state of an unfinished run, or None if there is no file.

        Raises:
            StoreError: The file is not readable.
        """
        if not path.exists():
            return None
        try:
            row = json.loads(path.read_text())
            splits = {
                name: [RowAssignment(*assignment) for assignment in assignments]
                for name, assignments in row["splits"].items()
            }
            recoding = None if row["recoding"] is None else RecodingChoice.from_row(row["recoding"])
            histograms = {
                name: CombinationHistogram.from_row(histogram)
                for name, histogram in row["histograms"].items()
            }
            return cls(recoding, histograms, CommonScale.from_row(row["scale"]), splits)
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                "the stored preparation of the run is not readable",
                where=str(path),
                remedy="restore the file from a backup, or start a new run",
            ) from error


def row_digests(table: FeatureTable, key: bytes) -> list[str]:
    """Return keyed digests of rows for the preparation state; values cannot be guessed without the key."""
    derived_key = hashlib.blake2b(key).digest()
    arrays = np.ascontiguousarray(table.x), np.ascontiguousarray(table.y)
    return [
        hashlib.blake2b(x.tobytes() + y.tobytes(), key=derived_key, digest_size=16).hexdigest()
        for x, y in zip(*arrays, strict=True)
    ]


def assign_rows(
    table: FeatureTable, splits: Mapping[str, RowIndices], key: bytes, pseudonym_for: PseudonymFunction
) -> list[RowAssignment]:
    """Return the row assignments of a split table as the preparation state stores them."""
    split_names = np.empty(len(table), object)
    for split, indices in splits.items():
        split_names[indices] = split
    digests = row_digests(table, key)
    return [
        RowAssignment(pseudonym_for(subject), split, digest)
        for subject, split, digest in zip(table.subjects, split_names, digests, strict=True)
    ]


def split_digest(assignments: Sequence[RowAssignment], columns: Sequence[str], key: bytes) -> str:
    """Return a keyed digest of the preparation state of a site, rows and splits, without pseudonyms."""
    digest = hashlib.blake2b(key=hashlib.blake2b(key).digest(), digest_size=32)
    rows = [[assignment.split, assignment.digest] for assignment in assignments]  # frozen: part of the bytes
    digest.update(json.dumps([list(columns), rows]).encode())
    return digest.hexdigest()


def restore_split(
    assignments: Sequence[RowAssignment],
    table: FeatureTable,
    key: bytes,
    pseudonym_for: PseudonymFunction,
    is_removed: Callable[[str], bool],
    site: str,
) -> dict[str, RowIndices]:
    """Restore the row indices of each split of a table from the preparation state of an interrupted run.

    Args:
        assignments: The rows at the start.
        table: The rows now.
        key: The site's key for digests.
        pseudonym_for: Returns the registry pseudonym of a subject key.
        is_removed: Returns whether the subject of a pseudonym was removed since.
        site: The site's name, for the error.

    Raises:
        RefusedError: A row is new, changed, or missing without a removal.
    """
    digests = row_digests(table, key)
    pseudonyms = [pseudonym_for(subject) for subject in table.subjects]
    has_pseudonyms = all(pseudonyms) and all(assignment.subject_pseudonym for assignment in assignments)
    if has_pseudonyms:
        stored = {assignment.subject_pseudonym: assignment for assignment in assignments}
        names = pseudonyms
    else:
        stored = {str(i): assignment for i, assignment in enumerate(assignments)}
        names = [str(i) for i in range(len(pseudonyms))]
    is_unchanged = all(
        name in stored and stored[name].digest == digest for name, digest in zip(names, digests, strict=True)
    )
    missing = stored.keys() - set(names)
    if not is_unchanged or any(not has_pseudonyms or not is_removed(name) for name in missing):
        raise RefusedError(
            f"the data of {site} differ from the start of the run",
            where="its records changed",
            remedy="start a new run",
        )
    split_names = np.array([stored[name].split for name in names], object)
    return {split: np.flatnonzero(split_names == split).astype(np.int64) for split in SPLITS}
