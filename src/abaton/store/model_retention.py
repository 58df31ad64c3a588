"""Which community models are kept: the last ones, one in so many, and the final one; the others are removed.

The journal and the list of versions with their digests and metrics stay whole. Files are named by content and shared:
one that any other run, or a version that is kept, still names is left where it is. A run that has not ended keeps all
its payloads, so that it can be resumed; model files are not needed for that. What a run that has ended
left of its checkpoints, if the process was killed at that very moment, goes, too.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sql

from abaton.atomic_files import writing
from abaton.errors import SettingsError, StoreError
from abaton.store import schema
from abaton.store.store import ModelRow, RunRow, Store


@dataclass(frozen=True, slots=True)
class Keep:
    """What is kept of a run's versions.

    Attributes:
        last: so many of the newest.
        every: also those whose number is a multiple of this; 0 for none.

    >>> [version for version in range(11) if Keep(last=2, every=4).keeps(version, newest=10)]
    [0, 4, 8, 9, 10]
    """

    last: int = 5
    every: int = 0

    def __post_init__(self) -> None:
        if self.last < 1:
            raise SettingsError(
                f"last is {self.last}", where="retention", remedy="keep at least 1: the final model"
            )
        if self.every < 0:
            raise SettingsError(f"every is {self.every}", where="retention", remedy="use 0 or more")

    def keeps(self, version: int, newest: int) -> bool:
        """Whether a version is kept when another one is the newest."""
        return version > newest - self.last or (self.every > 0 and version % self.every == 0)


@dataclass(frozen=True, slots=True)
class Pruning:
    """What is removed of one run.

    Attributes:
        run: whose.
        models: the versions whose files are removed.
        payloads: the file of payloads, if it is removed.
        checkpoints: the folder of checkpoints, if there is one to remove.
        bytes: how much space that frees.
    """

    run: str
    models: tuple[ModelRow, ...]
    payloads: Path | None
    checkpoints: Path | None
    bytes: int


def plan(store: Store, row: RunRow, keep: Keep) -> Pruning:
    """What pruning a run would remove; nothing is done yet."""
    versions = store.models(row.run)
    newest = versions[-1].version if versions else 0
    kept = {m.digest for m in versions if keep.keeps(m.version, newest)} | _named_elsewhere(store, row.run)
    gone: dict[str, ModelRow] = {}
    for model in versions:
        if model.digest not in kept and store.vectors.path(model.digest).exists():
            gone.setdefault(model.digest, model)
    pack = store.payload_file(row.run)
    left, ended = store.checkpoint_folder(row.run), row.status != "running"
    payloads = pack if ended and pack.exists() else None
    checkpoints = left if ended and left.exists() else None
    files = [store.vectors.path(digest) for digest in gone] + ([payloads] if payloads else [])
    files += checkpoints.iterdir() if checkpoints else ()
    size = sum(file.stat().st_size for file in files)
    return Pruning(row.run, tuple(gone.values()), payloads, checkpoints, size)


def prune(store: Store, pruning: Pruning) -> None:
    """Remove what was planned; a run that somebody works on is left alone."""
    with store.holding(pruning.run), writing(store.folder):
        row = store.run(pruning.run)
        if (pruning.payloads or pruning.checkpoints) and row.status == "running":
            raise StoreError(f"run '{row.run}' has not ended", remedy="resume it first, or plan again")
        if pruning.payloads is not None:
            with store.reading() as connection:
                connection.execute(schema.payloads.delete().where(schema.payloads.c.run == row.run))
            pruning.payloads.unlink(missing_ok=True)
        if pruning.checkpoints is not None:
            shutil.rmtree(pruning.checkpoints)
        for model in pruning.models:
            store.vectors.path(model.digest).unlink(missing_ok=True)


def _named_elsewhere(store: Store, run: str) -> set[str]:
    table = schema.models
    with store.reading() as connection:
        return set(connection.scalars(sql.select(table.c.digest).where(table.c.run != run).distinct()))
