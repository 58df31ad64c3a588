"""A database in OMOP's model, opened for reading alone: PostgreSQL, DuckDB, SQLite, or a folder of CSV and Parquet."""

from __future__ import annotations

import contextlib
import gzip
import tempfile
import uuid
from collections.abc import Generator, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from abaton.errors import SettingsError, StoreError
from abaton.site.sources.omop.cdm_schema import kind_of

BATCH = 5_000
"""How many rows of a table are held at a time."""

_MEMORY = "256MB"  # beyond which DuckDB sorts on disk
_BUFFER = (
    8 << 20
)  # of a CSV file; all tables are open at once, and DuckDB's own size leaves too little to sort in
_EXTRA = "pip install 'abaton[omop]' for DuckDB and folders, or 'abaton[postgres]' for PostgreSQL"
_NOT_OF_ITS_TYPE = ("ConversionException", "InvalidInputException", "DataError", "InvalidTextRepresentation")
_NUMBERS = frozenset((int, float, Decimal))
_ENDINGS = (".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz")
_NOTHING = "('', 'NULL', 'null', 'NA', 'NaN', '\\N')"  # how tools write that there is nothing


class OmopDatabase:
    """The tables of one instance of the common data model.

    Args:
        address: ``postgresql+psycopg://…``, ``duckdb:///file``, ``sqlite:///file``, or a folder of files.
        cdm: The schema of the clinical tables; the database's usual one if empty.
        vocabulary: The schema of the vocabulary tables; that of the clinical tables if empty.
    """

    def __init__(self, address: str | Path, cdm: str = "", vocabulary: str = "") -> None:
        self._schemas = {True: vocabulary or cdm or None, False: cdm or None}
        self._columns: dict[str, tuple[str, ...]] = {}
        self._kept: list[sql.Connection] = []
        self._engine: sql.Engine | None = None
        self._files: dict[str, Path] = {}
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self.name = str(address)
        try:
            with self.plainly():
                self._engine = self._folder(address) if isinstance(address, Path) else self._server(address)
                self._kept.append(self._connected())
                if self._kept[-1].dialect.name == "sqlite":
                    self._kept[-1].exec_driver_sql("PRAGMA schema_version")  # only now is the file looked at
        except BaseException:
            self.close()  # nobody has a handle on what is refused
            raise

    def _server(self, address: str) -> sql.Engine:
        try:
            url = make_url(address)
        except ArgumentError:
            raise SettingsError(
                "this is not the address of a database",
                where="records.database",
                remedy="write postgresql+psycopg://host/name, duckdb:///file or sqlite:///file",
            ) from None
        self.name = url.render_as_string(hide_password=True)
        backend, file = url.get_backend_name(), url.database or ""
        if backend in ("sqlite", "duckdb") and not Path(file).is_file():
            raise SettingsError(
                "the database is not there", where=self.name, remedy="correct records.database"
            )
        more: dict[str, Any] = {"hide_parameters": True, "poolclass": NullPool}
        if backend == "sqlite":
            url = url.set(database=f"file:{Path(file).resolve()}").update_query_dict(
                {"mode": "ro", "uri": "true"}
            )
        if backend == "duckdb":
            more["connect_args"] = {"read_only": True, "config": self._limits()}
        if backend == "postgresql":
            more |= {"isolation_level": "REPEATABLE READ", "execution_options": {"postgresql_readonly": True}}
        return self._made(url, more)

    def _made(self, url: sql.URL, more: dict[str, Any]) -> sql.Engine:
        try:
            return sql.create_engine(url, **more)
        except (ArgumentError, NoSuchModuleError, ModuleNotFoundError):
            raise SettingsError(
                "this kind of database cannot be used", where=self.name, remedy=_EXTRA
            ) from None

    def _folder(self, folder: Path) -> sql.Engine:
        """Files as the tables of a database that lives in memory alone; the files are read where they are."""
        self._files = {
            path.name.lower().split(".")[0]: path
            for path in sorted(folder.iterdir(), reverse=True)
            if path.name.lower().endswith(_ENDINGS) and path.stat().st_size
        } if folder.is_dir() else {}  # fmt: skip
        if "person" not in self._files:
            raise SettingsError(
                "the folder has no table 'person'",
                where=str(folder),
                remedy="name a folder with person.csv or person.parquet and the other tables of the model",
            )
        how = {"poolclass": NullPool, "connect_args": {"config": self._limits()}}
        engine = self._made(sql.make_url(f"duckdb:///:memory:{uuid.uuid4().hex}"), how)
        keep = engine.connect()
        self._kept.append(keep)
        for name, path in self._files.items():
            try:
                self._view(keep, name, path)
            except DBAPIError:
                raise _unreadable(path) from None
        keep.commit()
        return engine

    def _limits(self) -> dict[str, str]:
        """How much DuckDB may hold; what it sorts beyond that lies in a private folder, which is removed."""
        self._scratch = tempfile.TemporaryDirectory(prefix="abaton-")
        return {"memory_limit": _MEMORY, "temp_directory": self._scratch.name, "threads": "1"}

    def _view(self, connection: sql.Connection, name: str, path: Path) -> None:
        files = _reader(path)
        asked = f"DESCRIBE SELECT * FROM {files}"  # noqa: S608
        listed = ", ".join(
            f"{_typed(column, kind, kind_of(column.lower()))} AS {column.lower()}"
            for column, kind, *_ in connection.exec_driver_sql(asked)
            if column.isidentifier()
        )
        connection.exec_driver_sql(f'CREATE VIEW "{name}" AS SELECT {listed} FROM {files}')  # noqa: S608

    def _wrong(self) -> SettingsError | StoreError:
        """What of a folder cannot be read, looked for when reading has failed: a file, or a column of one."""
        for name, path in self._files.items():
            with self._connected() as connection:
                for column in self.columns(name):
                    try:
                        asked = f'SELECT count({column}) FROM "{name}"'  # noqa: S608
                        connection.exec_driver_sql(asked).all()
                    except DBAPIError as error:
                        connection.rollback()
                        if type(error.orig).__name__ != "ConversionException":
                            return _unreadable(path)
                        return StoreError(
                            f"the column '{column}' holds something that is not the number or date it should be",
                            where=str(path),
                            remedy="correct it; dates are written 2020-12-31 or 20201231",
                        )
        return StoreError("a table holds something that cannot be read", where=self.name, remedy="correct it")

    def table(self, name: str, columns: Sequence[str]) -> sql.TableClause:
        """A table with some of its columns."""
        vocabulary = name.startswith("concept")
        return sql.table(name, *map(sql.column, columns), schema=self._schemas[vocabulary])

    def columns(self, name: str) -> tuple[str, ...]:
        """The columns of a table; none if there is no such table."""
        if name not in self._columns:
            asked: sql.Select[Any] = (
                sql.select(sql.literal_column("*")).select_from(self.table(name, ())).limit(0)
            )
            with self.plainly(), self._connected() as connection:
                try:
                    found = tuple(connection.execute(asked).keys())
                except DBAPIError as error:
                    if error.connection_invalidated or not _answers(connection):
                        raise
                    found = ()
                self._columns[name] = tuple(key.lower() for key in found)
        return self._columns[name]

    @property
    def is_typed(self) -> bool:
        """Whether columns are sure to have the model's types: SQLite asks for none, and DuckDB guesses on loading."""
        return self._kept[-1].dialect.name not in ("sqlite", "duckdb") or bool(self._files)

    def rows(self, asked: sql.Select[Any]) -> list[Any]:
        """All rows of a small answer."""
        with self.plainly():
            return list(self._kept[-1].execute(asked))

    def stream(self, asked: sql.Select[Any]) -> Generator[Any]:
        """The rows of a large answer, some thousand at a time, by a cursor that stays at the server."""
        how = {"stream_results": True, "yield_per": BATCH}
        with (
            self.plainly(),
            self._reading() as connection,
            connection.execute(asked, execution_options=how) as found,
        ):
            names = enumerate(column.name for column in asked.selected_columns)
            numbers = [(at, name) for at, name in names if kind_of(name) in ("BIGINT", "DOUBLE")]
            for rows in found.partitions():
                yield from rows if self.is_typed else self._numbered(rows, numbers)

    def _numbered(self, rows: Sequence[Any], numbers: Sequence[tuple[int, str]]) -> Iterator[Any]:
        """Rows of columns that may hold anything: an empty text is nothing, any other that is no number is refused."""
        for row in rows:
            for at, name in numbers:
                cell = row[at]
                if cell is None or cell.__class__ in _NUMBERS:
                    continue
                if cell != "":
                    raise StoreError(
                        f"the column '{name}' holds something that is not a number",
                        where=self.name,
                        remedy="correct it, or load the tables with the model's types",
                    )
                row = (*row[:at], None, *row[at + 1 :])
            yield row

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sql.Connection]:
        """The one connection, so that all tables are read as they were at one moment; DuckDB needs one for each."""
        if self._kept[-1].dialect.name != "duckdb":
            yield self._kept[-1]
            return
        with self._connected() as connection:
            yield connection

    def _connected(self) -> sql.Connection:
        assert self._engine is not None  # it is there from the beginning on
        return self._engine.connect()

    @contextlib.contextmanager
    def plainly(self) -> Iterator[None]:
        """Whatever the database complains about becomes one line without content."""
        try:
            yield
        except DBAPIError as error:
            words = type(error.orig).__name__
            if words in _NOT_OF_ITS_TYPE and self._files:
                raise self._wrong() from None
            if words in _NOT_OF_ITS_TYPE:
                raise StoreError(
                    "a table holds something that is not the number or date it should be",
                    where=self.name,
                    remedy="load the files into a database with the model's types to see which",
                ) from None
            raise StoreError(
                "the database does not answer, or went away", where=self.name, remedy=f"try again ({words})"
            ) from None
        except SQLAlchemyError as error:
            raise StoreError(
                "the database cannot be read", where=self.name, remedy=f"check it ({type(error).__name__})"
            ) from None

    def close(self) -> None:
        """Let the database go."""
        for connection in self._kept:
            with contextlib.suppress(SQLAlchemyError):
                connection.close()
        self._kept.clear()
        if self._engine is not None:
            self._engine.dispose()
        if self._scratch is not None:
            self._scratch.cleanup()


def _answers(connection: sql.Connection) -> bool:
    """Whether a database is still there after it said no."""
    try:
        connection.rollback()
        connection.execute(sql.select(1))
    except SQLAlchemyError:
        return False
    return True


def _unreadable(path: Path) -> SettingsError:
    return SettingsError(
        "this file cannot be read as a table",
        where=str(path),
        remedy="give Parquet, or CSV in UTF-8 with the names of the columns first and as many cells in every line",
    )


def _reader(path: Path) -> str:
    """How DuckDB reads a file; nothing but its place and how it is cut is told to it."""
    place = str(path).replace("'", "''")
    if path.name.lower().endswith(".parquet"):
        return f"read_parquet('{place}')"
    with gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb") as stream:
        first = stream.readline(1 << 16)
    cut = max((b"\t", b",", b";", b"|"), key=first.count).decode()
    # Vocabularies come with tabulators, and with quotation marks that mean nothing unless the names have them, too.
    quote = "" if cut == "\t" and b'"' not in first else '"'
    how = f"header = true, all_varchar = true, delim = '{cut}', quote = '{quote}', buffer_size = {_BUFFER}"
    return f"read_csv('{place}', {how})"


def _typed(column: str, kind: str, wanted: str) -> str:
    """The SQL by which a column becomes what the model says that it is; text in the ways in which tools write it."""
    if kind != "VARCHAR":
        return f'CAST("{column}" AS {wanted})'
    if wanted == "VARCHAR":
        return f"NULLIF(\"{column}\", '')"
    text = f'CASE WHEN trim("{column}") NOT IN {_NOTHING} THEN trim("{column}") END'
    if wanted == "BIGINT":  # a column with gaps is written with decimals by tools that know no other gaps
        text = f"regexp_replace({text}, '[.]0+$', '')"
    if wanted in ("DATE", "TIMESTAMP"):
        compact = f"regexp_replace({text}, '^(\\d{{4}})(\\d\\d)(\\d\\d)$', '\\1-\\2-\\3')"
        text = f"CAST({compact} AS TIMESTAMP)"
    return f"CAST({text} AS {wanted})"
