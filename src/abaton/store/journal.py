"""The journal: every event of a run in order, written before it is acted on, checked when it is replayed.

The journal for a reader: the newest events first, by kind and learner.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from abaton.atomic_files import writing
from abaton.errors import StoreError
from abaton.store import schema
from abaton.store.database import insert_all
from abaton.store.model_files import Vector, digest_of, model_digest
from abaton.store.model_retention import Keep
from abaton.store.payload_file import Pack
from abaton.store.run_visibility import is_about_people
from abaton.store.store import ModelRow, Store

Row = tuple[str, Mapping[str, Any]]

_MOST_WAITING = 512
_MOST_BYTES = 8 * 2**20
_LONGEST_WAIT = 0.25


class Journal:
    """The journal of one run: its events, the payloads they name, and the versions that were published.

    A journal that already holds events compares what it is given with them: a resumed run that took another turn is
    stopped at once. Rows are written together, at the latest when `flush` is called. An engine that lets anything leave
    the process must flush first; under the virtual clock nothing leaves, and what a crash loses is replayed.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.store, self.run = store, run
        self._clock, self._wall, self._flushed = clock, wall, clock()
        self._events: list[dict[str, Any]] = []
        self._models: list[dict[str, Any]] = []
        self._milestones: list[dict[str, Any]] = []
        self._tasks: list[dict[str, Any]] = []
        self._commits: list[dict[str, Any]] = []
        self._keep: Keep | None = None
        self._window: deque[tuple[int, str]] = deque()
        self._unwritten: dict[str, tuple[Vector, str]] = {}
        with store.reading() as connection:
            self.known = 1 + _last(connection, schema.events, run)
            places, newest, self._noted = {}, -1, -1
            if self.known:  # nothing else is written down before the first event
                found = connection.execute(sql.select(schema.payloads).where(schema.payloads.c.run == run))
                places = {place.digest: (place.offset, place.size) for place in found}
                newest = _last(connection, schema.models, run, "version")
                self._noted = max(
                    _last(connection, schema.tasks, run), _last(connection, schema.commits, run)
                )
        self.payloads = Pack(store.payload_file(run), places)
        self._newest, self._versions = newest, dict[int, str]()
        self._replayed = self.rows() if self.known else iter(())
        self.length = 0

    def rows(self, after: int = -1) -> Iterator[Row]:
        """The events that are written down, in order, from the one after a sequence number on."""
        table = schema.events
        chosen = (
            sql.select(table.c.kind, table.c.body).where(table.c.run == self.run).order_by(table.c.sequence)
        )
        while True:
            with self.store.reading() as connection:
                part = chosen.add_columns(table.c.sequence).where(table.c.sequence > after).limit(1000)
                found = connection.execute(part).all()
            yield from ((kind, body) for kind, body, _ in found)
            if len(found) < 1000:
                return
            after = found[-1][2]

    def skip(self, events: int = 0, mark: str = "") -> Iterator[Row]:
        """Leave out the first events, which a checkpoint stands for; those that follow.

        Args:
            events: how many.
            mark: what `mark` said when there were so many.
        """
        if not 0 <= events <= self.known or self._mark_of(events) != mark:
            raise StoreError(
                f"the checkpoint of run '{self.run}' stands for {events} events that its journal does not have",
                where=f"journal of {self.run}, with {self.known} events",
            )
        self.length, self._replayed = events, self.rows(events - 1)
        return self.rows(events - 1)

    def mark(self) -> str:
        """A name for the newest event, as it is written down."""
        self.flush()
        return self._mark_of(self.length)

    def _mark_of(self, events: int) -> str:
        table = schema.events
        chosen = sql.select(table.c.kind, table.c.body).where(
            table.c.run == self.run, table.c.sequence == events - 1
        )
        with self.store.reading() as connection:
            found = connection.execute(chosen).first()
        return "" if found is None else digest_of(json.dumps([*found], sort_keys=True).encode())

    def append(self, kind: str, body: Mapping[str, Any]) -> None:
        """Write an event down, or check that it is the one that was written down."""
        if self.length < self.known:
            if next(self._replayed) != (kind, body):
                raise StoreError(
                    f"run '{self.run}' takes another turn than it did at event {self.length}",
                    where=f"journal of {self.run}",
                    remedy="resume it with the same version of Abaton and the same data, or start a new run",
                )
        else:
            row = {
                "run": self.run,
                "sequence": self.length,
                "at": body["at"],
                "kind": kind,
                "body": body,
            }
            self._events.append(row)
            full = len(self._events) >= _MOST_WAITING or self.payloads.waiting >= _MOST_BYTES
            if full or self._clock() - self._flushed > _LONGEST_WAIT:
                self.flush()
        self.length += 1

    def is_published(self, version: int, digest: str) -> bool:
        """Whether a version is written down already; it must then have come out with the same digest."""
        if version > self._newest:
            return False
        if version not in self._versions:  # of a long run, only what is replayed is read
            self._versions |= self._digests(schema.models.c.version >= version)
        if self._versions.get(version) != digest:
            raise StoreError(
                f"version {version} of run '{self.run}' does not come out as it did",
                where=f"journal of {self.run}",
                remedy="resume it with the same version of Abaton and the same data, or start a new run",
            )
        return True

    def take_up(self, version: int, digest: str) -> None:
        """Go on after a version that was the newest one at a checkpoint; versions before it are kept as they were.

        Raises:
            StoreError: It is not written down with that digest.
        """
        if not self.is_published(version, digest):
            raise StoreError(f"there is no version {version}", where=f"journal of {self.run}")
        if self._keep is not None:
            table, first = schema.models, version - self._keep.last
            found = self._digests(sql.and_(table.c.version > first, table.c.version <= version))
            self._window = deque(sorted(found.items()))

    def _digests(self, chosen: sql.ColumnElement[bool]) -> dict[int, str]:
        """The digests of some versions that are written down."""
        table = schema.models
        with self.store.reading() as connection:
            rows = connection.execute(
                sql.select(table.c.version, table.c.digest).where(table.c.run == self.run, chosen)
            )
            return {row.version: row.digest for row in rows}

    def retain(self, keep: Keep) -> None:
        """From now on, keep only the files of versions that are to be kept."""
        self._keep = keep

    def keep_model(self, version: int, vector: Vector, layout_digest: str) -> str:
        """Keep a version that is the newest now, be it for the first time or again; its digest.

        If not all versions are kept, files are written with the next flush: most versions never need one.
        """
        if self._keep is None:
            return self.store.vectors.put(vector, layout_digest)
        digest = model_digest(vector)
        self._window.append((version, digest))
        self._unwritten[digest] = (vector, layout_digest)
        while len(self._window) > self._keep.last:
            old, name = self._window.popleft()
            if not self._keep.keeps(old, version) and all(name != other for _, other in self._window):
                if name in self._unwritten:
                    del self._unwritten[name]
                else:
                    self._remove(old, name)
        return digest

    def _remove(self, version: int, digest: str) -> None:
        """Remove a version's file, unless another version or run has the same model."""
        table = schema.models
        elsewhere = sql.select(table.c.version).where(
            table.c.digest == digest, (table.c.run != self.run) | (table.c.version != version)
        )
        with self.store.reading() as connection:
            shared = connection.execute(elsewhere.limit(1)).first() is not None
        if not shared:
            with writing(self.store.folder):
                self.store.vectors.path(digest).unlink(missing_ok=True)

    def publish(self, model: ModelRow, *, updates: int = 0, size: int = 0) -> None:
        """Write down a new version of the community model, and how many updates of how many bytes led to it."""
        self._models.append({"run": self.run, **{f: getattr(model, f) for f in model.__slots__}})
        row = {"version": model.version, "sequence": self.length - 1, "updates": updates, "bytes": size}
        self._milestones.append({"run": self.run, "wall": self._wall(), **row})

    def note(self, tasks: Iterable[Mapping[str, Any]], commits: Iterable[Mapping[str, Any]]) -> None:
        """Write down what the controller decided at the newest event, for those who look on; what is known is kept."""
        sequence = self.length - 1
        if sequence > self._noted:
            mine = {"run": self.run, "sequence": sequence}
            self._tasks += ({**mine, **task} for task in tasks)
            self._commits += ({**mine, "wall": self._wall(), **commit} for commit in commits)

    def began(self, task: str) -> float | None:
        """When a learner was asked for a task, if that is written down."""
        table = schema.tasks
        chosen = sql.select(table.c.at).where(table.c.run == self.run, table.c.task == task)
        with self.store.reading() as connection:
            return connection.scalar(chosen)

    def flush(self) -> None:
        """Make everything so far survive a crash: payloads first, then the events that name them."""
        if not (self._events or self._unwritten or self._tasks or self._commits or self.payloads.waiting):
            return  # a journal that is replayed has nothing new to write
        for vector, layout_digest in self._unwritten.values():
            self.store.vectors.put(vector, layout_digest)
        self._unwritten = {}
        placed = [
            {"run": self.run, "digest": digest, "offset": offset, "size": size}
            for digest, (offset, size) in self.payloads.write().items()
        ]
        with self.store.reading() as connection:
            for table, rows in (
                (schema.payloads, placed),
                (schema.events, self._events),
                (schema.models, self._models),
                (schema.milestones, self._milestones),
                (schema.tasks, self._tasks),
                (schema.commits, self._commits),
            ):
                insert_all(connection, table, rows)
        self._events, self._models, self._milestones, self._flushed = [], [], [], self._clock()
        self._tasks, self._commits = [], []


def _last(connection: sql.Connection, table: sql.Table, run: str, counter: str = "sequence") -> int:
    found = connection.scalar(sql.select(sql.func.max(table.c[counter])).where(table.c.run == run))
    return -1 if found is None else int(found)


_SHOWN = ("size", "group", "reason", "what", "name", "task")
"""What is shown of an event: never what evaluators counted, never a cohort."""

_COUNTS = ("steps", "examples")
"""What is shown beyond it where examples are not people."""


@dataclass(frozen=True, slots=True)
class EventLine:
    """One event of the journal, with what may be shown of it."""

    sequence: int
    at: float
    kind: str
    learner: str
    detail: Mapping[str, Any]


def events_of(
    store: Store,
    run: str,
    *,
    kinds: Sequence[str] = (),
    learner: str = "",
    before: int | None = None,
    most: int = 50,
) -> list[EventLine]:
    """Events of a run, the newest first, of some kinds and of one learner if these are given."""
    table = schema.events
    shown = _SHOWN if is_about_people(store.run(run).recipe) else (*_COUNTS, *_SHOWN)
    chosen = sql.select(table).where(table.c.run == run)
    if kinds:
        chosen = chosen.where(table.c.kind.in_(kinds))
    if learner:
        chosen = chosen.where(table.c.body["learner"].as_string() == learner)
    if before is not None:
        chosen = chosen.where(table.c.sequence < before)
    with store.reading() as connection:
        rows = connection.execute(chosen.order_by(table.c.sequence.desc()).limit(most)).all()
    return [
        EventLine(
            row.sequence, row.at, row.kind, row.body.get("learner", ""),
            {key: row.body[key] for key in shown if row.body.get(key) not in (None, "")},
        )
        for row in rows
    ]  # fmt: skip


def kinds_of(store: Store, run: str, *, until: float | None = None) -> dict[str, int]:
    """How many events of each kind a run has, or had until a time of its clock."""
    table = schema.events
    chosen = sql.select(table.c.kind, sql.func.count()).where(table.c.run == run).group_by(table.c.kind)
    if until is not None:
        chosen = chosen.where(table.c.at <= until)
    with store.reading() as connection:
        return {kind: number for kind, number in connection.execute(chosen.order_by(table.c.kind))}
