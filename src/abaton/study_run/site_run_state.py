"""State of one run at a site: its prepared rows on disk, and the policy's record of requests and replies.

Processes may end at any time, so the de-identified rows are stored in the site's folder, readable by its account only.
The policy's record is in memory if the run is replayed, else on disk.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.atomic_files import atomic_write, map_os_errors
from abaton.engines.base import NOT_A_PARTICIPANT, CodedFailureError
from abaton.engines.site_state import LearnerDiskState
from abaton.features import FeatureColumn, FeatureTable, ScaledTable, SplineBasis
from abaton.layout import Vector
from abaton.site import LoadedSiteConfig
from abaton.study_run.consented_learner import SubjectRows, select_rows
from abaton.study_run.preparation import PreparedSite

_SPLITS = ("train", "validation", "test")


Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class PendingTable:
    """Table of a site until all sites have replied."""

    table: FeatureTable
    patient_ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StoredPreparation:
    """Prepared site with the values that all sites share."""

    site: PreparedSite
    classes: tuple[str, ...]
    label: tuple[float, float]
    seed: int
    secret: bytes
    cohort: str


def remove_subjects(site: PreparedSite, removed: frozenset[str]) -> PreparedSite:
    """Return a prepared site of the stored run state without some subjects."""

    def retained(table: ScaledTable) -> ScaledTable:
        return select_rows(
            table, np.array([subject not in removed for subject in table.subjects], dtype=bool)
        )

    is_retained = [subject not in removed for subject in site.test.subjects]
    return replace(
        site,
        patient_ids={key: patient for key, patient in site.patient_ids.items() if key not in removed},
        rows=SubjectRows(retained(site.rows.train), retained(site.rows.validation)),
        test=retained(site.test),
        groups={name: tuple(compress(labels, is_retained)) for name, labels in site.groups.items()},
        has_withdrawals=True,
    )


def delete_subject(runs: Path, file: LoadedSiteConfig, is_deleted: Callable[[str], bool]) -> None:
    """Delete patients from the stored state of all unfinished runs of a site."""
    for path in sorted(runs.iterdir()) if runs.is_dir() else ():
        if path.is_dir():
            folder = SiteRunFolder(path)
            with folder.locked():
                folder.delete_patients(file, is_deleted)


class SiteRunFolder:
    """Folder of a run at a site."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._table, self._preparation = folder / "table.safetensors", folder / "preparation.safetensors"

    @property
    def is_prepared(self) -> bool:
        """Whether the site's run folder has the rows of a prepared site."""
        return self._preparation.exists()

    def store_table(self, pending: PendingTable) -> None:
        """Store a table in the site's run folder until all sites have replied."""
        table = pending.table
        metadata = {
            "columns": [
                [c.name, c.input, c.is_numeric, c.has_statistics, c.spline.to_row() if c.spline else None]
                for c in table.columns
            ],
            "classes": table.classes,
            "subjects": table.subjects,
            "min_cell_count": table.min_cell_count,
            "label": table.label,
            "patient_ids": dict(pending.patient_ids),
        }
        arrays = {"x": table.x, "y": table.y}
        self._write(self._table, arrays | _weight_arrays("weights", table.weights), metadata)

    def pending_table(self) -> PendingTable:
        """Return the pending table from the site's run folder."""
        arrays, metadata = self._read(self._table)
        table = FeatureTable(
            tuple(
                replace(FeatureColumn(*column), spline=spline and SplineBasis.from_row(spline))
                for *column, spline in metadata["columns"]
            ),
            arrays["x"],
            arrays["y"],
            tuple(metadata["classes"]),
            tuple(metadata["subjects"]),
            metadata["min_cell_count"],
            metadata["label"],
            arrays.get("weights"),
        )
        return PendingTable(table, metadata["patient_ids"])

    def store_preparation(self, preparation: StoredPreparation) -> None:
        """Store a prepared site's rows in its run folder; delete the table that they were built from."""
        self._write_preparation(preparation)
        self._table.unlink(missing_ok=True)

    def load_preparation(self, file: LoadedSiteConfig) -> StoredPreparation:
        """Return the prepared site from its run folder.

        Raises:
            CodedFailureError: The site does not take part in the run.
        """
        arrays, metadata = self._read(self._preparation)
        columns, classes = tuple(metadata["columns"]), tuple(metadata["classes"])
        splits = {
            name: ScaledTable(
                columns,
                arrays[f"{name}/x"],
                arrays[f"{name}/y"],
                classes,
                tuple(metadata["subjects"][name]),
                arrays.get(f"{name}/weights"),
            )
            for name in _SPLITS
        }
        groups = {name: tuple(labels) for name, labels in metadata["groups"].items()}
        rows = SubjectRows(splits["train"], splits["validation"])
        site = PreparedSite(
            file,
            metadata["patient_ids"],
            rows,
            splits["test"],
            groups,
            metadata["min_cell_count"],
            metadata["digest"],
        )
        mean, std = metadata["label"]
        secret = bytes.fromhex(metadata["secret"])
        return StoredPreparation(site, classes, (mean, std), metadata["seed"], secret, metadata["cohort"])

    def store_characteristics(self, characteristics: Mapping[str, Any]) -> None:
        """Store the site's suppressed characteristics in its run folder, for its own report."""
        with atomic_write(self.folder / "characteristics.json", mode=0o600) as temporary_path:
            temporary_path.write_text(json.dumps(characteristics))

    def load_characteristics(self) -> dict[str, Any]:
        """Return the site's characteristics at the start of the run from its run folder."""
        characteristics: dict[str, Any] = json.loads((self.folder / "characteristics.json").read_text())
        return characteristics

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the site's run folder: prevent changes of the rows by other processes of the site."""
        with (self.folder / "rows.lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def delete_patients(self, file: LoadedSiteConfig, is_deleted: Callable[[str], bool]) -> None:
        """Delete patients from all files of the site's run folder; the caller holds :meth:`locked`.

        Args:
            file: The site's configuration.
            is_deleted: Returns whether a Patient id is to be deleted.
        """
        if self._table.exists():
            pending = self.pending_table()
            deleted = frozenset(key for key, patient in pending.patient_ids.items() if is_deleted(patient))
            if deleted:
                patient_ids = {
                    key: patient for key, patient in pending.patient_ids.items() if key not in deleted
                }
                self.store_table(PendingTable(pending.table.without(deleted), patient_ids))
        if self.is_prepared:
            preparation = self.load_preparation(file)
            deleted = frozenset(
                key for key, patient in preparation.site.patient_ids.items() if is_deleted(patient)
            )
            if deleted:
                self._write_preparation(replace(preparation, site=remove_subjects(preparation.site, deleted)))
                LearnerDiskState(self.folder, preparation.site.name).clear_learner_state()

    def delete(self) -> None:
        """Delete the site's run folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_preparation(self, preparation: StoredPreparation) -> None:
        site = preparation.site
        splits = {"train": site.rows.train, "validation": site.rows.validation, "test": site.test}
        arrays = {f"{name}/x": split.x for name, split in splits.items()}
        arrays |= {f"{name}/y": split.y for name, split in splits.items()}
        for name, split in splits.items():
            arrays |= _weight_arrays(f"{name}/weights", split.weights)
        metadata = {
            "columns": site.test.columns,
            "classes": preparation.classes,
            "subjects": {name: split.subjects for name, split in splits.items()},
            "groups": {name: list(labels) for name, labels in site.groups.items()},
            "patient_ids": dict(site.patient_ids),
            "min_cell_count": site.min_cell_count,
            "digest": site.digest,
            "label": list(preparation.label),
            "seed": preparation.seed,
            "secret": preparation.secret.hex(),
            "cohort": preparation.cohort,
        }
        self._write(self._preparation, arrays, metadata)

    def _write(self, path: Path, arrays: Arrays, metadata: Mapping[str, Any]) -> None:
        from safetensors.numpy import save

        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        contiguous = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
        with atomic_write(path, mode=0o600) as temporary_path:
            temporary_path.write_bytes(save(contiguous, metadata={"metadata": json.dumps(metadata)}))

    def _read(self, path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        from safetensors import safe_open

        if not path.exists():
            raise CodedFailureError(NOT_A_PARTICIPANT)
        with safe_open(path, "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return arrays, json.loads(file.metadata()["metadata"])


def _weight_arrays(name: str, weights: NDArray[Any] | None) -> dict[str, NDArray[Any]]:
    """Return the weights of rows as they are stored in the run folder: nothing if all are 1."""
    return {} if weights is None else {name: weights}


_MODEL_FILE = "last_model.f32"


class SiteRunState:
    """Record of the policy in one run.

    Args:
        run: The run's name.
        folder: Folder of the files, for engines with several processes; None keeps the record in memory.
    """

    def __init__(self, run: str, folder: Path | None = None) -> None:
        self.run, self._folder = run, folder
        self._row: dict[str, Any] = {
            "model_version": -1, "update_version": -1, "update_task": "", "max_update_norm": 0.0, "once": {},
            "refusals": 0,
        }  # fmt: skip
        self._model: Vector | None = None
        self._file_version: tuple[int, int] | None = None

    @property
    def last_model(self) -> tuple[int, Vector] | None:
        """The last version that the site received to train on, and its model, in the run state."""
        self._refresh()
        return None if self._model is None else (int(self._row["model_version"]), self._model)

    @property
    def last_update(self) -> tuple[int, str]:
        """The version of the last released update in the run state (-1 if there is none), and its task id."""
        self._refresh()
        return int(self._row["update_version"]), str(self._row["update_task"])

    @property
    def max_update_norm(self) -> float:
        """The largest norm of an update that the site released, in its run state."""
        self._refresh()
        return float(self._row["max_update_norm"])

    @property
    def refusal_count(self) -> int:
        """The number of tasks that the site refused, in its run state."""
        self._refresh()
        return int(self._row["refusals"])

    def record_model(self, version: int, model: Vector) -> None:
        """Record a model that the site received in its run state."""
        with self._changing() as row:
            row["model_version"], self._model = version, model

    def record_update(self, version: int, task_id: str, norm: float) -> None:
        """Record an update that the site released in its run state."""
        with self._changing() as row:
            row["update_version"], row["update_task"] = version, task_id
            row["max_update_norm"] = max(row["max_update_norm"], norm)

    def record_once(self, category: str, key: str, limit: int) -> bool:
        """Record a repeatable key in the site's run state; return False for a new key beyond the category's limit."""
        with self._changing() as row:
            keys = row["once"].setdefault(category, {})
            if key not in keys:
                if len(keys) >= limit:
                    return False
                keys[key] = 1
            return True

    def record_refusal(self) -> None:
        """Count a refusal in the site's run state."""
        with self._changing() as row:
            row["refusals"] += 1

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        with self._locked():
            self._refresh()
            before = self._model
            yield self._row
            if self._folder is not None:
                self._write(changed=self._model is not before)

    def _locked(self) -> Any:
        if self._folder is None:
            return nullcontext()
        return _lock(self._folder)

    @property
    def _file(self) -> Path:
        assert self._folder is not None
        return self._folder / "policy_state.json"

    def _refresh(self) -> None:
        """Read the site's run state again if another process of the site changed it."""
        if self._folder is None or not self._file.exists():
            return
        status = self._file.stat()
        if (version := (status.st_ino, status.st_mtime_ns)) != self._file_version:
            self._row, self._file_version = json.loads(self._file.read_text()), version
            model = self._folder / _MODEL_FILE
            self._model = np.frombuffer(model.read_bytes(), "<f4") if model.exists() else None

    def _write(self, *, changed: bool) -> None:
        assert self._folder is not None
        if changed and self._model is not None:
            with atomic_write(self._folder / _MODEL_FILE, mode=0o600, sync=False) as temporary_path:
                temporary_path.write_bytes(np.ascontiguousarray(self._model, "<f4").tobytes())
        with atomic_write(self._file, mode=0o600, sync=False) as temporary_path:
            temporary_path.write_text(json.dumps(self._row))
        status = self._file.stat()
        self._file_version = (status.st_ino, status.st_mtime_ns)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    with map_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (folder / "policy_state.lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
