"""Database by URL: an SQLite file by default, or a PostgreSQL server; with a check of the schema version.

Invariants:
(1) a transaction is atomic, and survives a crash once `write` has returned;
(2) on SQLite writers are serialised (``BEGIN IMMEDIATE``), so what a writer has read is still valid when it writes;
(3) on PostgreSQL a transaction that reads before it writes acquires a named advisory lock;
(4) deleted and scrubbed rows are no longer in the database's files (see :meth:`Database.scrub` for what a server
keeps).

A database of another schema version is refused before any change.
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
_RETRY_STATES = {"40001", "40P01"}  # PostgreSQL: serialisation failure, deadlock


class Database:
    """Database with a set of tables.

    Args:
        url: ``postgresql+psycopg://…``, ``sqlite:///file`` or the path of a file.
        metadata: The tables; missing ones are created.
        durable: Whether a transaction must survive a power cut (otherwise only a crash of the process).
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
            self._engine.dispose()  # no caller gets an object to close
            raise

    def _connect(self, *, durable: bool) -> sql.Engine:
        try:
            if not self.is_sqlite:
                more: dict[str, Any] = {"pool_pre_ping": True, "pool_size": 8, "max_overflow": 24}
                return sql.create_engine(self.url, hide_parameters=True, **more)
            wait = {"timeout": _BUSY_SECONDS}
            engine = sql.create_engine(self.url, hide_parameters=True, connect_args=wait, pool_size=8)
            _private_file(self.url.database or "")  # only for a valid URL
        except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
            raise SettingsError(
                f"there is no database driver for '{self.name}'",
                remedy="give a file, or postgresql+psycopg://… after installing abaton[postgres]",
            ) from error
        sql.event.listen(engine, "connect", _prepare_durable if durable else _prepare)
        sql.event.listen(engine, "begin", _begin)
        return engine

    def write(self, work: Callable[[sql.Connection], T], *, lock: str = "") -> T:
        """Call a function in a database write transaction; call it again after a serialisation failure.

        Args:
            work: Function of a connection; it must be repeatable.
            lock: Name of the lock to hold; needed if the function reads what it changes.
        """
        for attempts_left in reversed(range(_TRIES)):
            try:
                with self.transaction(write=True) as connection:
                    if lock:
                        acquire_lock(connection, lock)
                    return work(connection)
            except _RetryTransaction:
                if not attempts_left:
                    raise StoreError(
                        f"the transaction failed {_TRIES} times", where=self.name, remedy="try again"
                    ) from None
        raise AssertionError

    def read(self, work: Callable[[sql.Connection], T]) -> T:
        """Call a function in a read transaction of the database."""
        with self.transaction(write=False) as connection:
            return work(connection)

    @contextlib.contextmanager
    def transaction(self, *, write: bool) -> Iterator[sql.Connection]:
        """Open a database transaction; database errors become a `StoreError` without content of rows."""
        with (
            self._translate_errors(),
            self._engine.connect().execution_options(abaton_write=write) as connection,
            connection.begin(),
        ):
            yield connection

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError:
            raise
        # sqlite3.OperationalError is raised while a connection is prepared.
        except (OperationalError, sqlite3.OperationalError) as error:
            if getattr(getattr(error, "orig", None), "sqlstate", None) in _RETRY_STATES:
                raise _RetryTransaction from error
            raise StoreError(
                f"the store cannot be used: {_error_text(error, self.is_sqlite)}",
                where=self.name,
                remedy="check that it exists, has free space and is writable",
            ) from None  # a server's message may contain values of a row
        except DatabaseError as error:
            raise StoreError(
                f"the store's database is damaged or has another schema: {_error_text(error, self.is_sqlite)}",
                where=self.name,
                remedy="restore it from a backup, or move it away and start again",
            ) from None

    def scrub(self, *tables: sql.Table) -> None:
        """Remove deleted rows from the SQLite or PostgreSQL database's files.

        SQLite overwrites deleted rows; this empties the write-ahead log and rewrites the file. PostgreSQL rewrites the
        tables; its write-ahead log and backups keep old bytes until they are recycled, so data that must be unreadable
        at once is encrypted with a key that is stored separately and destroyed.
        """
        with (
            self._translate_errors(),
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
                "another process is reading deleted rows",
                where=self.name,
                remedy="try again when it has ended",
            )

    def close(self) -> None:
        """Close all connections of the database."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


class _RetryTransaction(Exception):
    """The server could not serialise the transaction."""


def acquire_lock(connection: sql.Connection, lock: str) -> None:
    """Acquire a named database lock until the transaction ends."""
    if connection.dialect.name != "sqlite":  # writers are already serialised there
        number = int.from_bytes(hashlib.sha256(lock.encode()).digest()[:8], "big", signed=True)
        connection.execute(sql.text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})


def insert_new(connection: sql.Connection, table: sql.Table, rows: list[dict[str, Any]]) -> None:
    """Insert rows into a database table and skip those that exist."""
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as insert_sqlite

        connection.execute(insert_sqlite(table).on_conflict_do_nothing(), rows)
    else:
        from sqlalchemy.dialects.postgresql import insert as insert_postgres

        connection.execute(insert_postgres(table).on_conflict_do_nothing(), rows)


def insert_all(connection: sql.Connection, table: sql.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that have a value for each column of a database table.

    The values are passed to the driver directly: preparing thousands of rows takes longer than writing them.
    """
    if rows:
        statement, values, last_is_json = _insertion(table, connection.dialect.name)
        parameters = [values(row) for row in rows]
        if last_is_json:
            parameters = [
                (*values_of_row[:-1], json.dumps(values_of_row[-1])) for values_of_row in parameters
            ]
        connection.exec_driver_sql(statement, parameters)


@lru_cache
def _insertion(table: sql.Table, dialect: str) -> tuple[str, Callable[[Mapping[str, Any]], Any], bool]:
    """Return the SQL insert statement, a function that extracts its values, and whether the last one is JSON."""
    names = [column.name for column in table.columns]
    *others, last = (isinstance(column.type, sql.JSON) for column in table.columns)
    assert not any(others), "only the last column holds JSON"
    quoted = ", ".join(f'"{name}"' for name in names)
    marks = ", ".join(["?" if dialect == "sqlite" else "%s"] * len(names))
    return f'INSERT INTO "{table.name}" ({quoted}) VALUES ({marks})', itemgetter(*names), last  # noqa: S608


def _address(url: str | Path) -> sql.URL:
    text = str(url)
    try:
        parsed = make_url(text) if "://" in text else sql.URL.create("sqlite", database=text)
    except ArgumentError as error:
        raise SettingsError(
            "the database URL is invalid",
            remedy="give a file, sqlite:///file or postgresql+psycopg://user@host/name",
        ) from error
    if parsed.get_backend_name() not in {"sqlite", "postgresql"} or (
        parsed.get_backend_name() == "sqlite" and parsed.database in {None, "", ":memory:"}
    ):
        raise SettingsError(
            "the database is neither an SQLite file nor PostgreSQL",
            remedy="give a file or postgresql+psycopg://…",
        )
    return parsed


def _private_file(name: str) -> None:
    path = Path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot write: {error.strerror}", where=name, remedy="use a path that you may write to"
        ) from error


def _error_text(error: DatabaseError | sqlite3.Error, is_sqlite: bool) -> str:  # noqa: FBT001
    if isinstance(error, sqlite3.Error):
        return str(error)
    # A server's message may contain values of a row; SQLite's does not.
    return str(error.orig) if is_sqlite else type(error.orig).__name__


def _prepare(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions start in _begin
    # With a write-ahead log a killed process loses no committed transaction, and readers do not wait.
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


def mark_version(metadata: sql.MetaData, label: str, version: int, remedy: str) -> sql.Table:
    """Store the schema version in a database table of its own, and refuse a database with another version.

    Existing tables without a version are of version 1.

    Args:
        metadata: The tables.
        label: Name of the tables in errors and of the version table.
        version: Version that this Abaton reads and writes.
        remedy: Remedy for a database of an earlier version.
    """
    others = list(metadata.tables)
    mark = sql.Table(
        f"{label.replace(' ', '_')}_tables",
        metadata,
        sql.Column("name", sql.Text, primary_key=True),
        sql.Column("version", sql.Integer, nullable=False),
    )

    def check(_target: Any, connection: sql.Connection, **_more: Any) -> None:
        there = sql.inspect(connection)
        if there.has_table(mark.name):
            stored_version = connection.scalar(sql.select(mark.c.version).where(mark.c.name == label))
        else:
            stored_version = 1 if any(there.has_table(name) for name in others) else None
        if stored_version is not None and stored_version != version:
            raise StoreError(
                f"the {label} tables have version {stored_version}, this version of Abaton reads {version}",
                where=connection.engine.url.render_as_string(hide_password=True),
                remedy=remedy if stored_version < version else "use a newer Abaton",
            )

    def note(_target: Any, connection: sql.Connection, **_more: Any) -> None:
        known = sql.select(mark.c.version).where(mark.c.name == label)
        if connection.scalar(known) is None:
            connection.execute(mark.insert().values(name=label, version=version))

    sql.event.listen(metadata, "before_create", check)
    sql.event.listen(metadata, "after_create", note)
    return mark
