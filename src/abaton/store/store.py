"""The store: every run with its journal and models, in one folder that can be copied, backed up and read again.

How a run is named by a person: its name, a part of it, its number, or `latest`.
"""

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

from abaton.atomic_files import writing
from abaton.errors import SettingsError, StoreError
from abaton.store import schema
from abaton.store.database import Database
from abaton.store.model_files import Models

LATEST = "latest"
_NUMBER = re.compile(r"#?([0-9]+)")
_SHOWN = 5  # candidates that a refusal names


def place_of(names: Sequence[str], text: str, where: str) -> int:
    """Which of some runs is meant, the oldest first; its number is its place, counted from 1.

    A whole name always means that run, then `latest`, then a number (`3` or `#3`), then any part that one name has.

    >>> place_of(["heart-01", "heart-02"], "#2", "store"), place_of(["heart-01", "lungs"], "lun", "store")
    (1, 1)

    Raises:
        SettingsError: None is meant, or more than one.
    """
    if text in names:
        return names.index(text)
    if text == LATEST and names:
        return len(names) - 1
    if (number := _NUMBER.fullmatch(text)) and 1 <= int(number[1]) <= len(names):
        return int(number[1]) - 1
    found = [place for place, name in enumerate(names) if text and text in name]
    if len(found) == 1:
        return found[0]
    if not found:
        raise SettingsError(
            f"there is no run '{text}'", where=where, remedy="list the runs with 'abaton runs'"
        )
    shown = ", ".join(f"{names[place]} (#{place + 1})" for place in found[-_SHOWN:])
    more = f" and {len(found) - _SHOWN} older ones" if len(found) > _SHOWN else ""
    raise SettingsError(
        f"'{text}' fits {len(found)} runs", where=where, remedy=f"name one of {shown}{more}, or its number"
    )


def default_folder() -> Path:
    """Where the store is unless told otherwise: ABATON_STORE, or the user's data folder."""
    chosen = os.environ.get("ABATON_STORE")
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(chosen) if chosen else Path(data) / "abaton"


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run as the store knows it."""

    run: str
    created: str
    engine: str
    recipe: Mapping[str, Any]
    layout: str
    status: str
    result: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One published version of a community model."""

    version: int
    at: float
    digest: str
    metrics: Mapping[str, float]


class Store:
    """Runs, journals and models: a database, and files named by their content in a folder.

    Args:
        folder: Where models and payloads are, and the embedded database.
        url: Another database for runs and journals, such as ``postgresql+psycopg://…``.
    """

    def __init__(self, folder: Path, url: str | None = None) -> None:
        if not isinstance(folder, Path):  # a text could as well be the address of a database
            raise SettingsError(
                f"the store's folder is a {type(folder).__qualname__}",
                where="store",
                remedy="give a pathlib.Path, and the address of a database as Store(folder, url)",
            )
        self.folder = folder
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # updates of single sites lie here
            if not os.access(folder, os.W_OK):
                raise PermissionError(13, "Permission denied")
        self.vectors = Models(folder / "models")
        self._database = Database(url or folder / "abaton.db", schema.metadata, durable=False)
        self._database.write(self._check_form, lock="form")

    def _check_form(self, connection: sql.Connection) -> None:
        found = connection.scalar(sql.select(schema.about.c.schema))
        if found is None:
            connection.execute(schema.about.insert().values(schema=schema.VERSION))
        elif found != schema.VERSION:
            raise StoreError(
                f"the store has form {found}, this version of Abaton reads form {schema.VERSION}",
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
        """Let go of the database."""
        self._database.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sql.Connection]:
        """A transaction; whatever the database complains about becomes one clear line."""
        with self._database.transaction(write=False) as connection:
            yield connection

    def add_run(self, row: RunRow) -> None:
        """Enter a new run."""
        with self.reading() as connection:
            try:
                connection.execute(schema.runs.insert().values(**{f: getattr(row, f) for f in row.__slots__}))
            except IntegrityError:
                raise SettingsError(
                    f"there is already a run '{row.run}'", remedy="choose another name"
                ) from None

    def finish_run(self, run: str, status: str, result: Mapping[str, Any]) -> None:
        """Write down how a run ended."""
        with self.reading() as connection:
            chosen = schema.runs.update().where(schema.runs.c.run == run)
            connection.execute(chosen.values(status=status, result=dict(result)))

    def runs(self) -> list[RunRow]:
        """All runs, the oldest first."""
        with self.reading() as connection:
            rows = connection.execute(
                sql.select(schema.runs).order_by(schema.runs.c.created, schema.runs.c.run)
            )
            return [RunRow(**row) for row in rows.mappings()]

    def known(self, name: str) -> RunRow | None:
        """The run of exactly this name, if there is one."""
        chosen = sql.select(schema.runs).where(schema.runs.c.run == name)
        with self.reading() as connection:
            found = connection.execute(chosen).mappings().first()
        return RunRow(**found) if found else None

    def run(self, name: str) -> RunRow:
        """One run by its name, a part of it that no other has, its number, or `latest`."""
        exact = self.known(name)
        if exact is not None:
            return exact
        rows = self.runs()
        return rows[place_of([row.run for row in rows], name, f"store {self.folder}")]

    def models(self, run: str) -> list[ModelRow]:
        """The published versions of a run's community model."""
        table = schema.models
        with self.reading() as connection:
            columns = (table.c.version, table.c.at, table.c.digest, table.c.metrics)
            rows = connection.execute(
                sql.select(*columns).where(table.c.run == run).order_by(table.c.version)
            )
            return [ModelRow(**row) for row in rows.mappings()]

    def payload_file(self, run: str) -> Path:
        """Where the payloads of a run lie."""
        return self.folder / "payloads" / f"{run}.pack"

    def checkpoint_folder(self, run: str) -> Path:
        """Where a run in real time writes what it goes on from after a crash; nothing is there once it has ended."""
        return self.folder / "checkpoints" / run

    @contextlib.contextmanager
    def holding(self, run: str) -> Iterator[None]:
        """Hold a run while working on it, so that no second process does; let go at the end or at a crash."""
        path = self._lock_file(run)
        with writing(path.parent):
            path.parent.mkdir(exist_ok=True)
            handle = path.open("a")
        with handle:
            if not _lock(handle.fileno(), fcntl.LOCK_EX, _PATIENT):
                raise StoreError(
                    f"run '{run}' is being worked on by another process", remedy="wait for it to end"
                )
            yield

    def is_held(self, run: str) -> bool:
        """Whether a process is working on a run at this moment."""
        path = self._lock_file(run)
        if not path.exists():
            return False
        with path.open() as handle:
            return not _lock(handle.fileno(), fcntl.LOCK_SH, _BRIEF)

    def _lock_file(self, run: str) -> Path:
        return self.folder / "locks" / f"{run}.lock"


_BRIEF = (0.0, 0.02, 0.1)  # seconds: somebody who only looks holds a lock for microseconds
_PATIENT = (*_BRIEF, 0.4, 1.0, 1.5)  # what a killed process has forked holds it, too, and ends soon


def _lock(handle: int, kind: int, pauses: Iterable[float]) -> bool:
    for pause in pauses:
        time.sleep(pause)
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except OSError:
            continue
        return True
    return False
