"""Store of all runs with their journals and models in one folder; a run is found by name, part or number."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError

from abaton.atomic_files import map_os_errors
from abaton.errors import SettingsError, StoreError
from abaton.store import schema
from abaton.store.database import Database
from abaton.store.model_files import ModelFiles

LATEST = "latest"
_NUMBER = re.compile(r"#?([0-9]+)")
_SHOWN = 5  # candidates named in an error


def find_run(names: Sequence[str], text: str, where: str) -> int:
    """Return the index of the run in the store that a text refers to; `names` start with the oldest run.

    A full name takes precedence, then `latest`, then a number from 1 (`3` or `#3`), then a part of exactly one name.

    >>> find_run(["heart-01", "heart-02"], "#2", "store"), find_run(["heart-01", "lungs"], "lun", "store")
    (1, 1)

    Raises:
        SettingsError: No run matches, or more than one.
    """
    if text in names:
        return names.index(text)
    if text == LATEST and names:
        return len(names) - 1
    if (number := _NUMBER.fullmatch(text)) and 1 <= int(number[1]) <= len(names):
        return int(number[1]) - 1
    matches = [index for index, name in enumerate(names) if text and text in name]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise SettingsError(
            f"there is no run '{text}'", where=where, remedy="list the runs with 'abaton runs'"
        )
    shown = ", ".join(f"{names[index]} (#{index + 1})" for index in matches[-_SHOWN:])
    more = f" and {len(matches) - _SHOWN} older ones" if len(matches) > _SHOWN else ""
    raise SettingsError(
        f"'{text}' matches {len(matches)} runs",
        where=where,
        remedy=f"use one of {shown}{more}, or its number",
    )


def default_folder() -> Path:
    """Return the default folder of the store: ABATON_STORE, or the user's data folder."""
    configured = os.environ.get("ABATON_STORE")
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(configured) if configured else Path(data) / "abaton"


@dataclass(frozen=True, slots=True)
class RunRow:
    """Row of a run."""

    run: str
    created: str
    engine: str
    recipe: Mapping[str, Any]
    layout: str
    status: str
    result: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ModelRow:
    """Row of a published version of a community model."""

    version: int
    timestamp: float
    digest: str
    metrics: Mapping[str, float]


class Store:
    """Runs, journals and models: a database, and files named by their content.

    Args:
        folder: Folder of models, payloads and the embedded database.
        url: Another database for runs and journals, such as ``postgresql+psycopg://…``.
    """

    def __init__(self, folder: Path, url: str | None = None) -> None:
        if not isinstance(folder, Path):  # a string could also be a database URL
            raise SettingsError(
                f"the store's folder is a {type(folder).__qualname__}",
                where="store",
                remedy="give a pathlib.Path, and a database URL as Store(folder, url)",
            )
        self.folder = folder
        with map_os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # contains updates of single sites
            if not os.access(folder, os.W_OK):
                raise PermissionError(13, "Permission denied")
        self.model_files = ModelFiles(folder / "models")
        self._database = Database(url or folder / "abaton.db", schema.metadata, durable=False)
        self._database.write(self._check_schema, lock="form")

    def _check_schema(self, connection: sql.Connection) -> None:
        stored_version = connection.scalar(sql.select(schema.schema_info.c.schema))
        if stored_version is None:
            connection.execute(schema.schema_info.insert().values(schema=schema.VERSION))
        elif stored_version != schema.VERSION:
            raise StoreError(
                f"the store has schema version {stored_version}, this version of Abaton reads {schema.VERSION}",
                where=self._database.name,
                remedy="use the version of Abaton that wrote it, or another folder with --store",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the store and its database."""
        self._database.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sql.Connection]:
        """Open a transaction of the store; database errors become a `StoreError`."""
        with self._database.transaction(write=False) as connection:
            yield connection

    def add_run(self, row: RunRow) -> None:
        """Add a new run to the store."""
        with self.reading() as connection:
            try:
                connection.execute(schema.runs.insert().values(**{f: getattr(row, f) for f in row.__slots__}))
            except IntegrityError:
                raise SettingsError(
                    f"there is already a run '{row.run}'", remedy="use another name"
                ) from None

    def finish_run(self, run: str, status: str, result: Mapping[str, Any]) -> None:
        """Store the status and the result of a finished run."""
        with self.reading() as connection:
            statement = schema.runs.update().where(schema.runs.c.run == run)
            connection.execute(statement.values(status=status, result=dict(result)))

    def runs(self) -> list[RunRow]:
        """Return all runs of the store, the oldest first."""
        with self.reading() as connection:
            rows = connection.execute(
                sql.select(schema.runs).order_by(schema.runs.c.created, schema.runs.c.run)
            )
            return [RunRow(**row) for row in rows.mappings()]

    def get_run(self, name: str) -> RunRow | None:
        """Return the store's run with exactly this name, or None."""
        query = sql.select(schema.runs).where(schema.runs.c.run == name)
        with self.reading() as connection:
            row = connection.execute(query).mappings().first()
        return RunRow(**row) if row else None

    def run(self, name: str) -> RunRow:
        """Return a run of the store by its name, a unique part of it, its number, or `latest`."""
        exact = self.get_run(name)
        if exact is not None:
            return exact
        rows = self.runs()
        return rows[find_run([row.run for row in rows], name, f"store {self.folder}")]

    def models(self, run: str) -> list[ModelRow]:
        """Return the published versions of a run's community model in the store."""
        table = schema.models
        with self.reading() as connection:
            columns = (table.c.version, table.c.timestamp, table.c.digest, table.c.metrics)
            rows = connection.execute(
                sql.select(*columns).where(table.c.run == run).order_by(table.c.version)
            )
            return [ModelRow(**row) for row in rows.mappings()]

    def payload_file(self, run: str) -> Path:
        """Return the path of a run's payload file in the store's folder."""
        return self.folder / "payloads" / f"{run}.pack"

    def checkpoint_folder(self, run: str) -> Path:
        """Return the store's checkpoint folder of a run in real time; it is removed when the run ends."""
        return self.folder / "checkpoints" / run

    @contextlib.contextmanager
    def lock_run(self, run: str) -> Iterator[None]:
        """Lock a run of the store against other processes; the lock is released at the end or at a crash."""
        path = self._lock_file(run)
        with map_os_errors(path.parent):
            path.parent.mkdir(exist_ok=True)
            handle = path.open("a")
        with handle:
            if not _lock(handle.fileno(), fcntl.LOCK_EX, _LONG_WAITS):
                raise StoreError(f"run '{run}' is in use by another process", remedy="wait until it ends")
            yield

    def is_locked(self, run: str) -> bool:
        """Return whether a process has locked a run of the store."""
        path = self._lock_file(run)
        if not path.exists():
            return False
        with path.open() as handle:
            return not _lock(handle.fileno(), fcntl.LOCK_SH, _SHORT_WAITS)

    def _lock_file(self, run: str) -> Path:
        return self.folder / "locks" / f"{run}.lock"


_SHORT_WAITS = (0.0, 0.02, 0.1)  # seconds: `is_locked` holds a lock for microseconds
_LONG_WAITS = (*_SHORT_WAITS, 0.4, 1.0, 1.5)  # children of a killed process hold the lock until they end


def _lock(handle: int, kind: int, pauses: Iterable[float]) -> bool:
    for pause in pauses:
        time.sleep(pause)
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except OSError:
            continue
        return True
    return False
