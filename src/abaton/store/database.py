"""A database by its address: SQLite in a file by default, PostgreSQL where there is a server.

Invariants:
(1) a change is whole or not at all, and survives a crash once it was reported as done;
(2) on SQLite writers queue up (``BEGIN IMMEDIATE``), so what a writer has read still holds when it writes;
(3) on PostgreSQL whoever reads in order to write names a lock and queues up behind its other holders;
(4) what was deleted and scrubbed is not in the database's files any more (see :meth:`Database.scrub` for
what a server keeps).

The version of some tables, written beside them: a database of another version is refused before it is touched.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import sqlalchemy as sql
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, IntegrityError, NoSuchModuleError, OperationalError

from abaton.errors import SettingsError, StoreError

T = TypeVar("T")

_BUSY_SECONDS = 60
_TRIES = 12
_AGAIN = {"40001", "40P01"}  # PostgreSQL: could not serialise, deadlock


class Database:
    """The tables of one part of Abaton, at an address.

    Args:
        url: ``postgresql+psycopg://…``, ``sqlite:///file`` or just the path of a file.
        metadata: The tables; those that are missing are made.
        durable: Whether a change must survive a power cut (else: a crash of the process only).
    """

    def __init__(self, url: str | Path, metadata: sql.MetaData, *, durable: bool = True) -> None:
        self.url = _address(url)
        self.name = self.url.render_as_string(hide_password=True)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._engine = self._connect(durable=durable)
        self.metadata = metadata
        try:
            self.write(lambda connection: metadata.create_all(connection), lock="tables")
        except BaseException:
            self._engine.dispose()  # nobody has a handle on what is refused, so nobody else could close it
            raise

    def _connect(self, *, durable: bool) -> sql.Engine:
        try:
            if not self.is_sqlite:
                more: dict[str, Any] = {"pool_pre_ping": True, "pool_size": 8, "max_overflow": 24}
                return sql.create_engine(self.url, hide_parameters=True, **more)
            wait = {"timeout": _BUSY_SECONDS}
            engine = sql.create_engine(self.url, hide_parameters=True, connect_args=wait, pool_size=8)
            _private_file(self.url.database or "")  # only for an address that can be used
        except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
            raise SettingsError(
                f"a database at '{self.name}' cannot be used",
                remedy="give a file, or postgresql+psycopg://… after installing abaton[postgres]",
            ) from error
        sql.event.listen(engine, "connect", _prepare_durable if durable else _prepare)
        sql.event.listen(engine, "begin", _begin)
        return engine

    def write(self, work: Callable[[sql.Connection], T], *, lock: str = "") -> T:
        """Do some work as one change; it may be done anew if the server asks for it, so it must be repeatable.

        Args:
            work: What to do, given a connection.
            lock: What to hold meanwhile; needed by work that reads what it then changes.
        """
        for left in reversed(range(_TRIES)):
            try:
                with self.transaction(write=True) as connection:
                    if lock:
                        hold(connection, lock)
                    return work(connection)
            except _Again:
                if not left:
                    raise StoreError(
                        "the database is too busy", where=self.name, remedy="try again"
                    ) from None
        raise AssertionError

    def read(self, work: Callable[[sql.Connection], T]) -> T:
        """Do some work that changes nothing."""
        with self.transaction(write=False) as connection:
            return work(connection)

    @contextlib.contextmanager
    def transaction(self, *, write: bool) -> Iterator[sql.Connection]:
        """One transaction; whatever the database complains about becomes one clear line without content."""
        with (
            self._plainly(),
            self._engine.connect().execution_options(abaton_write=write) as connection,
            connection.begin(),
        ):
            yield connection

    @contextlib.contextmanager
    def _plainly(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError:
            raise
        except (
            OperationalError,
            sqlite3.OperationalError,
        ) as error:  # the latter while a connection is prepared
            if getattr(getattr(error, "orig", None), "sqlstate", None) in _AGAIN:
                raise _Again from error
            raise StoreError(
                f"the store cannot be used: {_told(error, self.is_sqlite)}",
                where=self.name,
                remedy="check that it is there, has space, and that you may write to it",
            ) from error
        except DatabaseError as error:
            raise StoreError(
                f"the store's database is damaged or not of this form: {_told(error, self.is_sqlite)}",
                where=self.name,
                remedy="restore it from a backup, or move it away and start again",
            ) from error

    def scrub(self, *tables: sql.Table) -> None:
        """Make what was deleted go from the database's files.

        SQLite overwrites what is deleted; this empties the write-ahead log and rewrites the file. PostgreSQL
        rewrites the tables; its own write-ahead log and backups keep old bytes until they are recycled, which
        is why what must be unreadable at once is encrypted under a key that is kept elsewhere and destroyed.
        """
        with (
            self._plainly(),
            self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        ):
            if not self.is_sqlite:
                for table in tables:
                    connection.execute(sql.text(f'VACUUM (FULL) "{table.name}"'))
                return
            connection.execute(sql.text("VACUUM"))
            busy = connection.execute(sql.text("PRAGMA wal_checkpoint(TRUNCATE)")).scalar()
        if busy:
            raise StoreError(
                "somebody still reads what was deleted", where=self.name, remedy="try again soon"
            )

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


class _Again(Exception):
    """The server asks to do the transaction anew."""


def hold(connection: sql.Connection, lock: str) -> None:
    """Queue up behind the other holders of a lock until the transaction ends."""
    if connection.dialect.name != "sqlite":  # there a writer is alone anyway
        number = int.from_bytes(hashlib.sha256(lock.encode()).digest()[:8], "big", signed=True)
        connection.execute(sql.text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})


def insert_new(connection: sql.Connection, table: sql.Table, rows: list[dict[str, Any]]) -> None:
    """Insert rows and pass over those that are there already."""
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as insert_sqlite

        connection.execute(insert_sqlite(table).on_conflict_do_nothing(), rows)
    else:
        from sqlalchemy.dialects.postgresql import insert as insert_postgres

        connection.execute(insert_postgres(table).on_conflict_do_nothing(), rows)


def insert_all(connection: sql.Connection, table: sql.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that have a value for each column of a table.

    The values go to the driver as they are: preparing thousands of rows one by one, as a statement that may leave
    columns out would need it, takes longer than writing them.
    """
    if rows:
        statement, values, written = _insertion(table, connection.dialect.name)
        told = [values(row) for row in rows]
        if written:
            told = [(*one[:-1], json.dumps(one[-1])) for one in told]
        connection.exec_driver_sql(statement, told)


@lru_cache
def _insertion(table: sql.Table, dialect: str) -> tuple[str, Callable[[Mapping[str, Any]], Any], bool]:
    """A statement, how to take its values out of a row, and whether the last of them is written as JSON."""
    names = [column.name for column in table.columns]
    *others, last = (isinstance(column.type, sql.JSON) for column in table.columns)
    assert not any(others), "only the last column holds JSON"
    quoted = ", ".join(f'"{name}"' for name in names)
    marks = ", ".join(["?" if dialect == "sqlite" else "%s"] * len(names))
    return f'INSERT INTO "{table.name}" ({quoted}) VALUES ({marks})', itemgetter(*names), last  # noqa: S608


def _address(url: str | Path) -> sql.URL:
    text = str(url)
    try:
        made = make_url(text) if "://" in text else sql.URL.create("sqlite", database=text)
    except ArgumentError as error:
        raise SettingsError(
            "the address of a database is not understood",
            remedy="give a file, sqlite:///file or postgresql+psycopg://user@host/name",
        ) from error
    if made.get_backend_name() not in {"sqlite", "postgresql"} or (
        made.get_backend_name() == "sqlite" and made.database in {None, "", ":memory:"}
    ):
        raise SettingsError(
            "only SQLite files and PostgreSQL can hold a store",
            remedy="give a file or postgresql+psycopg://…",
        )
    return made


def _private_file(name: str) -> None:
    path = Path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot write: {error.strerror}", where=name, remedy="choose a place you may write to"
        ) from error


def _told(error: DatabaseError | sqlite3.Error, is_sqlite: bool) -> str:  # noqa: FBT001
    if isinstance(error, sqlite3.Error):
        return str(error)
    # A server's message may quote the values of a row; SQLite's never does.
    return str(error.orig) if is_sqlite else type(error.orig).__name__


def _prepare(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions are begun by us, see _begin
    # With a write-ahead log a killed process loses nothing that was committed, and readers never wait.
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def _prepare_durable(connection: Any, record: Any) -> None:
    _prepare(connection, record)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")


def _begin(connection: sql.Connection) -> None:
    writes = connection.get_execution_options().get("abaton_write")
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def mark_version(metadata: sql.MetaData, what: str, version: int, remedy: str) -> sql.Table:
    """Have a version stand in a table of its own, and refuse a database in which another one stands.

    Tables that are there without any mark are of version 1: they were made before versions were written down.

    Args:
        metadata: The tables.
        what: What they are, in a word or two.
        version: The version that this Abaton reads and writes.
        remedy: What to do with a database of an earlier version.
    """
    others = list(metadata.tables)
    mark = sql.Table(
        f"{what.replace(' ', '_')}_tables",
        metadata,
        sql.Column("name", sql.Text, primary_key=True),
        sql.Column("version", sql.Integer, nullable=False),
    )

    def check(_target: Any, connection: sql.Connection, **_more: Any) -> None:
        there = sql.inspect(connection)
        if there.has_table(mark.name):
            found = connection.scalar(sql.select(mark.c.version).where(mark.c.name == what))
        else:
            found = 1 if any(there.has_table(name) for name in others) else None
        if found is not None and found != version:
            raise StoreError(
                f"the {what} tables are of version {found}, and this Abaton knows version {version}",
                where=connection.engine.url.render_as_string(hide_password=True),
                remedy=remedy if found < version else "use a newer Abaton",
            )

    def note(_target: Any, connection: sql.Connection, **_more: Any) -> None:
        known = sql.select(mark.c.version).where(mark.c.name == what)
        if connection.scalar(known) is None:
            connection.execute(mark.insert().values(name=what, version=version))

    sql.event.listen(metadata, "before_create", check)
    sql.event.listen(metadata, "after_create", note)
    return mark
