"""Retention of community models: the last versions, every n-th version and the final one; the others are removed.

The journal and the list of versions with digests and metrics are kept. Files are named by content and shared: a file
that another run or a retained version references is kept. No model file is needed to resume a run, so retention may
remove any of them at any time. Updates are removed only from finished runs, with the checkpoints that a killed process
left behind.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sql

from abaton.atomic_files import map_os_errors
from abaton.errors import SettingsError, StoreError
from abaton.store import schema
from abaton.store.store import ModelRow, RunRow, Store


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """Versions of a run that are retained.

    Attributes:
        last: Number of latest versions.
        every: Interval of further versions that are retained; 0 for none.

    >>> [version for version in range(11) if RetentionRule(last=2, every=4).keeps(version, newest=10)]
    [0, 4, 8, 9, 10]
    """

    last: int = 5
    every: int = 0

    def __post_init__(self) -> None:
        if self.last < 1:
            raise SettingsError(
                f"last is {self.last}",
                where="retention",
                remedy="use last >= 1, which retains the final model",
            )
        if self.every < 0:
            raise SettingsError(f"every is {self.every}", where="retention", remedy="use every >= 0")

    def keeps(self, version: int, newest: int) -> bool:
        """Return whether the retention rule keeps a model version when `newest` is the latest."""
        return version > newest - self.last or (self.every > 0 and version % self.every == 0)


@dataclass(frozen=True, slots=True)
class PruneResult:
    """Files of one run to be removed.

    Attributes:
        run: Name of the run.
        models: Versions whose files are removed.
        payloads: Payload file, if it is removed.
        checkpoints: Checkpoint folder, if it is removed.
        bytes: Disk space that is freed.
    """

    run: str
    models: tuple[ModelRow, ...]
    payloads: Path | None
    checkpoints: Path | None
    bytes: int


def plan_pruning(store: Store, row: RunRow, retention: RetentionRule) -> PruneResult:
    """Return what the retention rule would remove from a run; remove nothing."""
    versions = store.models(row.run)
    newest = versions[-1].version if versions else 0
    retained = {m.digest for m in versions if retention.keeps(m.version, newest)} | _digests_of_other_runs(
        store, row.run
    )
    removed: dict[str, ModelRow] = {}
    for model in versions:
        if model.digest not in retained and store.model_files.path(model.digest).exists():
            removed.setdefault(model.digest, model)
    payload_file = store.payload_file(row.run)
    checkpoint_folder, is_finished = store.checkpoint_folder(row.run), row.status != "running"
    payloads = payload_file if is_finished and payload_file.exists() else None
    checkpoints = checkpoint_folder if is_finished and checkpoint_folder.exists() else None
    files = [store.model_files.path(digest) for digest in removed] + ([payloads] if payloads else [])
    files += checkpoints.iterdir() if checkpoints else ()
    size = sum(file.stat().st_size for file in files)
    return PruneResult(row.run, tuple(removed.values()), payloads, checkpoints, size)


def prune(store: Store, pruning: PruneResult) -> None:
    """Remove the model files that retention planned; raise a `StoreError` if another process uses the run."""
    with store.lock_run(pruning.run), map_os_errors(store.folder):
        row = store.run(pruning.run)
        if (pruning.payloads or pruning.checkpoints) and row.status == "running":
            raise StoreError(f"run '{row.run}' has not finished", remedy="resume it first, or plan again")
        if pruning.payloads is not None:
            with store.reading() as connection:
                connection.execute(schema.payloads.delete().where(schema.payloads.c.run == row.run))
            pruning.payloads.unlink(missing_ok=True)
        if pruning.checkpoints is not None:
            shutil.rmtree(pruning.checkpoints)
        for model in pruning.models:
            store.model_files.path(model.digest).unlink(missing_ok=True)


def _digests_of_other_runs(store: Store, run: str) -> set[str]:
    table = schema.models
    with store.reading() as connection:
        return set(connection.scalars(sql.select(table.c.digest).where(table.c.run != run).distinct()))
