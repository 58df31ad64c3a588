"""Append-only event journal of a run, and queries for its latest events.

Every event is written before it takes effect and is checked when the run is replayed.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from abaton.atomic_files import map_os_errors
from abaton.errors import StoreError
from abaton.store import schema
from abaton.store.database import insert_all
from abaton.store.model_files import Vector, content_digest, model_digest
from abaton.store.model_retention import RetentionRule
from abaton.store.payload_file import PayloadFile
from abaton.store.run_visibility import is_study_run
from abaton.store.store import ModelRow, Store

Row = tuple[str, Mapping[str, Any]]

_MAX_PENDING_EVENTS = 512
_MAX_PENDING_BYTES = 8 * 2**20
_MAX_WAIT_SECONDS = 0.25


class Journal:
    """Journal of one run: events, the payloads they reference, and published versions.

    A journal with stored events compares new events with them, so that a resumed run that deviates stops at once. Rows
    are written in batches, at the latest by `flush`. An engine that sends anything to another process flushes first;
    with the virtual clock nothing is sent, and what a crash loses is replayed.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.store, self.run = store, run
        self._clock, self._wall_clock, self._flushed = clock, wall_clock, clock()
        self._events: list[dict[str, Any]] = []
        self._models: list[dict[str, Any]] = []
        self._version_totals: list[dict[str, Any]] = []
        self._tasks: list[dict[str, Any]] = []
        self._commits: list[dict[str, Any]] = []
        self._retention: RetentionRule | None = None
        self._window: deque[tuple[int, str]] = deque()
        self._unwritten: dict[str, tuple[Vector, str]] = {}
        with store.reading() as connection:
            self.stored_events = 1 + _last(connection, schema.events, run)
            positions, newest, self._recorded_sequence = {}, -1, -1
            if self.stored_events:  # no other rows are written before the first event
                rows = connection.execute(sql.select(schema.payloads).where(schema.payloads.c.run == run))
                positions = {row.digest: (row.offset, row.size) for row in rows}
                newest = _last(connection, schema.models, run, "version")
                self._recorded_sequence = max(
                    _last(connection, schema.tasks, run), _last(connection, schema.commits, run)
                )
        self.payloads = PayloadFile(store.payload_file(run), positions)
        self._newest, self._versions = newest, dict[int, str]()
        self._replayed = self.rows() if self.stored_events else iter(())
        self.length = 0

    def rows(self, after: int = -1) -> Iterator[Row]:
        """Yield the journal's events after a sequence number, in order."""
        table = schema.events
        query = (
            sql.select(table.c.type, table.c.body).where(table.c.run == self.run).order_by(table.c.sequence)
        )
        while True:
            with self.store.reading() as connection:
                page = query.add_columns(table.c.sequence).where(table.c.sequence > after).limit(1000)
                rows = connection.execute(page).all()
            yield from ((kind, body) for kind, body, _ in rows)
            if len(rows) < 1000:
                return
            after = rows[-1][2]

    def skip(self, events: int = 0, last_event_digest: str = "") -> Iterator[Row]:
        """Skip the journal's events that a checkpoint covers, and return those that follow.

        Args:
            events: Number of events to skip.
            last_event_digest: `last_event_digest()` at that event.
        """
        if not 0 <= events <= self.stored_events or self._event_digest(events) != last_event_digest:
            raise StoreError(
                f"the checkpoint of run '{self.run}' covers {events} events that do not match the journal",
                where=f"journal of {self.run}, {self.stored_events} events",
            )
        self.length, self._replayed = events, self.rows(events - 1)
        return self.rows(events - 1)

    def last_event_digest(self) -> str:
        """Flush the journal, and return the digest of its last event."""
        self.flush()
        return self._event_digest(self.length)

    def _event_digest(self, events: int) -> str:
        table = schema.events
        query = sql.select(table.c.type, table.c.body).where(
            table.c.run == self.run, table.c.sequence == events - 1
        )
        with self.store.reading() as connection:
            row = connection.execute(query).first()
        return "" if row is None else content_digest(json.dumps([*row], sort_keys=True).encode())

    def append(self, event_type: str, body: Mapping[str, Any]) -> None:
        """Append an event to the journal, or check it against the stored one while replaying."""
        if self.length < self.stored_events:
            if next(self._replayed) != (event_type, body):
                raise StoreError(
                    f"run '{self.run}' deviates from its journal at event {self.length}",
                    where=f"journal of {self.run}",
                    remedy="resume it with the same version of Abaton and the same data, or start a new run",
                )
        else:
            row = {
                "run": self.run,
                "sequence": self.length,
                "timestamp": body["timestamp"],
                "type": event_type,
                "body": body,
            }
            self._events.append(row)
            full = (
                len(self._events) >= _MAX_PENDING_EVENTS or self.payloads.pending_bytes >= _MAX_PENDING_BYTES
            )
            if full or self._clock() - self._flushed > _MAX_WAIT_SECONDS:
                self.flush()
        self.length += 1

    def is_published(self, version: int, digest: str) -> bool:
        """Return whether the journal has a version; raise a `StoreError` if its digest differs."""
        if version > self._newest:
            return False
        if version not in self._versions:  # read only the versions that are replayed
            self._versions |= self._digests(schema.models.c.version >= version)
        if self._versions.get(version) != digest:
            raise StoreError(
                f"version {version} of run '{self.run}' differs from the stored one",
                where=f"journal of {self.run}",
                remedy="resume it with the same version of Abaton and the same data, or start a new run",
            )
        return True

    def resume_after(self, version: int, digest: str) -> None:
        """Continue the journal after the latest version of a checkpoint.

        Raises:
            StoreError: It is not stored with that digest.
        """
        if not self.is_published(version, digest):
            raise StoreError(f"there is no version {version}", where=f"journal of {self.run}")
        if self._retention is not None:
            table, first = schema.models, version - self._retention.last
            digests = self._digests(sql.and_(table.c.version > first, table.c.version <= version))
            self._window = deque(sorted(digests.items()))

    def _digests(self, condition: sql.ColumnElement[bool]) -> dict[int, str]:
        """Return the digests of the journal's versions that match a condition."""
        table = schema.models
        with self.store.reading() as connection:
            rows = connection.execute(
                sql.select(table.c.version, table.c.digest).where(table.c.run == self.run, condition)
            )
            return {row.version: row.digest for row in rows}

    def retain(self, retention: RetentionRule) -> None:
        """Set the journal's rule for the versions whose model files are retained from now on."""
        self._retention = retention

    def store_model(self, version: int, vector: Vector, layout_digest: str) -> str:
        """Store the journal's latest version, new or replayed, and return its digest.

        With a retention rule, files are written by the next flush, since most versions never need one.
        """
        if self._retention is None:
            return self.store.model_files.put(vector, layout_digest)
        digest = model_digest(vector)
        self._window.append((version, digest))
        self._unwritten[digest] = (vector, layout_digest)
        while len(self._window) > self._retention.last:
            old, name = self._window.popleft()
            if not self._retention.keeps(old, version) and all(name != other for _, other in self._window):
                if name in self._unwritten:
                    del self._unwritten[name]
                else:
                    self._remove(old, name)
        return digest

    def _remove(self, version: int, digest: str) -> None:
        """Remove the model file of a journal's version, unless another version or run references it."""
        table = schema.models
        other_versions = sql.select(table.c.version).where(
            table.c.digest == digest, (table.c.run != self.run) | (table.c.version != version)
        )
        with self.store.reading() as connection:
            shared = connection.execute(other_versions.limit(1)).first() is not None
        if not shared:
            with map_os_errors(self.store.folder):
                self.store.model_files.path(digest).unlink(missing_ok=True)

    def publish(self, model: ModelRow, *, updates: int = 0, size: int = 0) -> None:
        """Append a published version to the journal with the number and size of the updates so far."""
        self._models.append({"run": self.run, **{f: getattr(model, f) for f in model.__slots__}})
        row = {"version": model.version, "sequence": self.length - 1, "updates": updates, "bytes": size}
        self._version_totals.append({"run": self.run, "wall_time": self._wall_clock(), **row})

    def record_activity(
        self, tasks: Iterable[Mapping[str, Any]], commits: Iterable[Mapping[str, Any]]
    ) -> None:
        """Append the tasks and commits that followed from the journal's last event, unless already stored."""
        sequence = self.length - 1
        if sequence > self._recorded_sequence:
            key = {"run": self.run, "sequence": sequence}
            self._tasks += ({**key, **task} for task in tasks)
            self._commits += ({**key, "wall_time": self._wall_clock(), **commit} for commit in commits)

    def task_started_at(self, task: str) -> float | None:
        """Return the start time of a task in the journal, or None if it is not stored."""
        table = schema.tasks
        query = sql.select(table.c.timestamp).where(table.c.run == self.run, table.c.task == task)
        with self.store.reading() as connection:
            return connection.scalar(query)

    def flush(self) -> None:
        """Write all pending rows of the journal: payloads first, then the events that reference them."""
        if not (
            self._events or self._unwritten or self._tasks or self._commits or self.payloads.pending_bytes
        ):
            return  # a replayed journal has nothing new
        for vector, layout_digest in self._unwritten.values():
            self.store.model_files.put(vector, layout_digest)
        self._unwritten = {}
        positions = [
            {"run": self.run, "digest": digest, "offset": offset, "size": size}
            for digest, (offset, size) in self.payloads.write().items()
        ]
        with self.store.reading() as connection:
            for table, rows in (
                (schema.payloads, positions),
                (schema.events, self._events),
                (schema.models, self._models),
                (schema.version_totals, self._version_totals),
                (schema.tasks, self._tasks),
                (schema.commits, self._commits),
            ):
                insert_all(connection, table, rows)
        self._events, self._models, self._version_totals, self._flushed = [], [], [], self._clock()
        self._tasks, self._commits = [], []


def _last(connection: sql.Connection, table: sql.Table, run: str, counter: str = "sequence") -> int:
    last = connection.scalar(sql.select(sql.func.max(table.c[counter])).where(table.c.run == run))
    return -1 if last is None else int(last)


_SHOWN = ("payload_bytes", "group", "reason", "note", "name", "task")
"""Fields of an event that are shown; validation counts and cohorts are not."""

_COUNTS = ("steps", "examples")
"""Further fields that are shown where examples are not subjects."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """Event of the journal with the fields that may be shown."""

    sequence: int
    timestamp: float
    type: str
    learner: str
    detail: Mapping[str, Any]


def latest_events(
    store: Store,
    run: str,
    *,
    types: Sequence[str] = (),
    learner: str = "",
    before: int | None = None,
    limit: int = 50,
) -> list[EventRow]:
    """Return the latest events of a run's journal, newest first, optionally of some types and one learner."""
    table = schema.events
    shown = _SHOWN if is_study_run(store.run(run).recipe) else (*_COUNTS, *_SHOWN)
    query = sql.select(table).where(table.c.run == run)
    if types:
        query = query.where(table.c.type.in_(types))
    if learner:
        query = query.where(table.c.body["learner"].as_string() == learner)
    if before is not None:
        query = query.where(table.c.sequence < before)
    with store.reading() as connection:
        rows = connection.execute(query.order_by(table.c.sequence.desc()).limit(limit)).all()
    return [
        EventRow(
            row.sequence, row.timestamp, row.type, row.body.get("learner", ""),
            {key: row.body[key] for key in shown if row.body.get(key) not in (None, "")},
        )
        for row in rows
    ]  # fmt: skip


def count_event_types(store: Store, run: str, *, until: float | None = None) -> dict[str, int]:
    """Return the number of journal events of each type, optionally up to a time of the run's clock."""
    table = schema.events
    query = sql.select(table.c.type, sql.func.count()).where(table.c.run == run).group_by(table.c.type)
    if until is not None:
        query = query.where(table.c.timestamp <= until)
    with store.reading() as connection:
        return {kind: number for kind, number in connection.execute(query.order_by(table.c.type))}
