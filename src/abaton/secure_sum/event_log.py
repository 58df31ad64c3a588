"""Durable event log of a party to secure sums: events and attachments in one transaction, in memory or in a file.

A party writes what it decided before it answers. The file is an SQLite database that only its owner can read; a
transaction is on disk when it ends, also its directory entry, and deleted attachments are overwritten. Several
processes may use one file: a transaction excludes all others and first reads what they wrote.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pydantic import BaseModel

from abaton.atomic_files import map_os_errors
from abaton.errors import StoreError

_TIMEOUT_SECONDS = 60.0
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS attachments (name TEXT PRIMARY KEY, content BLOB NOT NULL)",
)


class LogTransaction(Protocol):
    """One transaction: everything in it becomes durable together, or nothing."""

    def events_after(self, position: int) -> list[bytes]:
        """Return the events after the first `position` ones; raise `StoreError` if there are fewer."""

    def append(self, event: bytes) -> None:
        """Add an event."""

    def attach(self, name: str, content: bytes) -> None:
        """Store or replace an attachment."""

    def attachment(self, name: str) -> bytes:
        """Return an attachment; raise `StoreError` if there is none."""

    def detach(self, name: str) -> None:
        """Delete an attachment."""


class EventLog(Protocol):
    """Durable log of one party in one run."""

    def transaction(self) -> AbstractContextManager[LogTransaction]:
        """Return a context manager that commits at its end, unless an exception leaves it."""

    def erase(self) -> None:
        """Delete everything, also secrets."""


class MemoryLog:
    """Event log in memory, for simulations and tests."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.attachments: dict[str, bytes] = {}

    @contextmanager
    def transaction(self) -> Iterator[LogTransaction]:
        """Yield a transaction that is committed at the end."""
        staged = _MemoryTransaction(list(self.events), dict(self.attachments))
        yield staged
        self.events, self.attachments = staged.events, staged.attachments

    def erase(self) -> None:
        """Delete everything."""
        self.events, self.attachments = [], {}


class _MemoryTransaction:
    def __init__(self, events: list[bytes], attachments: dict[str, bytes]) -> None:
        self.events, self.attachments = events, attachments

    def events_after(self, position: int) -> list[bytes]:
        if len(self.events) < position:
            raise _missing("events")
        return self.events[position:]

    def append(self, event: bytes) -> None:
        self.events.append(event)

    def attach(self, name: str, content: bytes) -> None:
        self.attachments[name] = content

    def attachment(self, name: str) -> bytes:
        if name not in self.attachments:
            raise _missing(name)
        return self.attachments[name]

    def detach(self, name: str) -> None:
        self.attachments.pop(name, None)


class FileLog:
    """Event log in a file.

    Args:
        path: File; created on first use, readable by its owner only. Secret and events belong together: a file
            restored from a backup may have forgotten what was opened, so do not restore it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def transaction(self) -> Iterator[LogTransaction]:
        """Yield a transaction that is on disk when it ends.

        Raises:
            StoreError: The file cannot be read or written.
        """
        with map_os_errors(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # SQLite gives its temporary files the permissions of this one.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        try:
            with closing(
                sqlite3.connect(self.path, timeout=_TIMEOUT_SECONDS, isolation_level=None)
            ) as connection:
                connection.execute("PRAGMA synchronous=EXTRA")
                connection.execute("PRAGMA secure_delete=ON")
                connection.execute("BEGIN IMMEDIATE")
                try:
                    for statement in _SCHEMA:
                        connection.execute(statement)
                    yield _FileTransaction(connection)
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
        except sqlite3.Error as error:
            raise StoreError(
                f"the secure-sum state is not readable or writable: {type(error).__name__}",
                where=str(self.path),
                remedy="free space and check its permissions; if it is damaged, leave the run and join another",
            ) from error

    def erase(self) -> None:
        """Delete the file and the temporary files of SQLite."""
        with map_os_errors(self.path.parent):
            for suffix in ("-journal", "-wal", "-shm", ""):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


class _FileTransaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def events_after(self, position: int) -> list[bytes]:
        ((count,),) = self._connection.execute("SELECT COALESCE(MAX(id), 0) FROM events")
        if count < position:
            raise _missing("events")
        rows = self._connection.execute("SELECT body FROM events WHERE id > ? ORDER BY id", (position,))
        return [bytes(body) for (body,) in rows]

    def append(self, event: bytes) -> None:
        self._connection.execute(
            "INSERT INTO events (id, body) SELECT COALESCE(MAX(id), 0) + 1, ? FROM events", (event,)
        )

    def attach(self, name: str, content: bytes) -> None:
        self._connection.execute("INSERT OR REPLACE INTO attachments VALUES (?, ?)", (name, content))

    def attachment(self, name: str) -> bytes:
        row = self._connection.execute("SELECT content FROM attachments WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise _missing(name)
        return bytes(row[0])

    def detach(self, name: str) -> None:
        self._connection.execute("DELETE FROM attachments WHERE name = ?", (name,))


def _missing(name: str) -> StoreError:
    return StoreError(
        f"'{name}' is missing", where="secure-sum state", remedy="leave the run and start another"
    )


_State = TypeVar("_State")
_Event = TypeVar("_Event", bound=BaseModel)
_Answer = TypeVar("_Answer")


class EventMachine(Generic[_State, _Event]):
    """State machine over a durable log: the state is the fold of all events, and events are written before answers.

    Args:
        log: Durable log; several processes may share it.
        initial: State before the first event.
        apply: Pure function from state and event to the next state.
        read: Returns the event of stored bytes.
        write: Returns the bytes of an event.
    """

    def __init__(
        self,
        log: EventLog,
        initial: _State,
        apply: Callable[[_State, _Event], _State],
        read: Callable[[bytes], _Event],
        write: Callable[[_Event], bytes],
    ) -> None:
        self._log, self._initial, self._apply, self._read, self._write = log, initial, apply, read, write
        self.state, self._position = initial, 0

    def transact(
        self, decide: Callable[[_State, LogTransaction], tuple[Sequence[_Event], _Answer]]
    ) -> _Answer:
        """Read what other processes wrote, decide, write the events, and return the answer.

        If the decision or the write fails, nothing is written and the state stays as it was.
        """
        with self._log.transaction() as transaction:
            for raw in transaction.events_after(self._position):
                self._advance(self._stored_event(raw))
            events, answer = decide(self.state, transaction)
            for event in events:
                transaction.append(self._write(event))
        for event in events:
            self._advance(event)
        return answer

    def erase(self) -> None:
        """Delete the log and forget the state."""
        self._log.erase()
        self.state, self._position = self._initial, 0

    def _stored_event(self, raw: bytes) -> _Event:
        try:
            return self._read(raw)
        except ValueError:  # its message would have the content, which may be a secret
            raise StoreError(
                "an event is damaged", where="secure-sum state", remedy="leave the run and start another"
            ) from None

    def _advance(self, event: _Event) -> None:
        self.state, self._position = self._apply(self.state, event), self._position + 1
