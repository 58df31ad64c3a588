"""Read-only access to an OMOP CDM in PostgreSQL, DuckDB, SQLite, or a folder of CSV and Parquet files."""

from __future__ import annotations

import contextlib
import gzip
import tempfile
import uuid
from collections.abc import Generator, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sql
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from abaton.errors import SettingsError, StoreError
from abaton.site.sources.omop.cdm_schema import TABLE_NAMES, sql_type_of

BATCH_ROWS = 5_000
"""Rows of a table in memory at a time."""

_DUCKDB_MEMORY = "256MB"  # larger sorts use the disk
# All tables are open at once; with DuckDB's default buffers too little memory would remain for sorting.
_CSV_BUFFER_BYTES = 8 << 20
_INSTALL_HINT = "pip install 'abaton[omop]' for DuckDB and folders, or 'abaton[postgres]' for PostgreSQL"
_TYPE_ERRORS = ("ConversionException", "InvalidInputException", "DataError", "InvalidTextRepresentation")
_NUMBER_TYPES = frozenset((int, float, Decimal))
_SUFFIXES = (".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz")
_NULL_TEXTS = "('', 'NULL', 'null', 'NA', 'NaN', '\\N')"  # spellings of NULL in files


class OmopDatabase:
    """Tables of one OMOP instance.

    Args:
        address: ``postgresql+psycopg://…``, ``duckdb:///file``, ``sqlite:///file``, or a folder of files.
        cdm_schema: Schema of the clinical tables; the default schema of the database if empty.
        vocabulary_schema: Schema of the vocabulary tables; that of the clinical tables if empty.
    """

    def __init__(self, address: str | Path, cdm_schema: str = "", vocabulary_schema: str = "") -> None:
        self._schemas = {True: vocabulary_schema or cdm_schema or None, False: cdm_schema or None}
        self._columns: dict[str, tuple[str, ...]] = {}
        self._connections: list[sql.Connection] = []
        self._engine: sql.Engine | None = None
        self._files: dict[str, Path] = {}
        self._temporary_folder: tempfile.TemporaryDirectory[str] | None = None
        self.name = str(address)
        try:
            with self.translate_errors():
                self._engine = (
                    self._open_folder(address) if isinstance(address, Path) else self._open_server(address)
                )
                self._connections.append(self._connect())
                if self._connections[-1].dialect.name == "sqlite":
                    self._connections[-1].exec_driver_sql("PRAGMA schema_version")  # reads the file
        except BaseException:
            self.close()  # the caller gets no object to close
            raise

    def _open_server(self, address: str) -> sql.Engine:
        try:
            url = make_url(address)
        except ArgumentError:
            raise SettingsError(
                "records.database is not a database URL",
                where="records.database",
                remedy="use postgresql+psycopg://host/name, duckdb:///file or sqlite:///file",
            ) from None
        self.name = url.render_as_string(hide_password=True)
        backend, file = url.get_backend_name(), url.database or ""
        if backend in ("sqlite", "duckdb") and not Path(file).is_file():
            raise SettingsError(
                "the database file does not exist", where=self.name, remedy="correct records.database"
            )
        options: dict[str, Any] = {"hide_parameters": True, "poolclass": NullPool}
        if backend == "sqlite":
            url = url.set(database=f"file:{quote(str(Path(file).resolve()))}").update_query_dict(
                {"mode": "ro", "uri": "true"}
            )
        if backend == "duckdb":
            options["connect_args"] = {"read_only": True, "config": self._duckdb_limits()}
        if backend == "postgresql":
            options |= {
                "isolation_level": "REPEATABLE READ",
                "execution_options": {"postgresql_readonly": True},
            }
        return self._create_engine(url, options)

    def _create_engine(self, url: sql.URL, options: dict[str, Any]) -> sql.Engine:
        try:
            return sql.create_engine(url, **options)
        except (ArgumentError, NoSuchModuleError, ModuleNotFoundError):
            raise SettingsError(
                "no driver for this database is installed", where=self.name, remedy=_INSTALL_HINT
            ) from None

    def _open_folder(self, folder: Path) -> sql.Engine:
        """Open a folder of OMOP files as views of an in-memory database; the files are not copied."""
        self._files = {
            path.name.lower().split(".")[0]: path
            for path in sorted(folder.iterdir(), reverse=True)
            if path.name.lower().endswith(_SUFFIXES) and path.stat().st_size
            and path.name.lower().split(".")[0] in TABLE_NAMES
        } if folder.is_dir() else {}  # fmt: skip
        if "person" not in self._files:
            raise SettingsError(
                "the folder has no file of the table 'person'",
                where=str(folder),
                remedy="set records.paths to a folder with person.csv or person.parquet and the other CDM tables",
            )
        options = {"poolclass": NullPool, "connect_args": {"config": self._duckdb_limits()}}
        engine = self._create_engine(sql.make_url(f"duckdb:///:memory:{uuid.uuid4().hex}"), options)
        connection = engine.connect()
        self._connections.append(connection)
        for name, path in self._files.items():
            try:
                self._create_view(connection, name, self._link(name, path))
            except DBAPIError:
                raise _unreadable_file_error(path) from None
        connection.commit()
        return engine

    def _duckdb_limits(self) -> dict[str, str]:
        """Return DuckDB's memory limit and private sort folder for the OMOP database, removed on close."""
        self._temporary_folder = tempfile.TemporaryDirectory(prefix="abaton-")
        return {"memory_limit": _DUCKDB_MEMORY, "temp_directory": self._temporary_folder.name, "threads": "1"}

    def _link(self, name: str, path: Path) -> Path:
        """Return a link to a file of the OMOP folder under the name of its table.

        DuckDB takes some names of files and folders for patterns or for columns (``*.csv``, ``person_id=5``).
        """
        assert self._temporary_folder is not None
        suffix = next(ending for ending in _SUFFIXES if path.name.lower().endswith(ending))
        link = Path(self._temporary_folder.name) / "tables" / f"{name}{suffix}"
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(path.absolute())
        return link

    def _create_view(self, connection: sql.Connection, name: str, path: Path) -> None:
        source = _table_function(path)
        statement = f"DESCRIBE SELECT * FROM {source}"  # noqa: S608
        columns = ", ".join(
            f'{_cast_sql(column, file_type, sql_type_of(column.lower()))} AS "{column.lower()}"'
            for column, file_type, *_ in connection.exec_driver_sql(statement)
            if column.isidentifier()
        )
        connection.exec_driver_sql(f'CREATE VIEW "{name}" AS SELECT {columns} FROM {source}')  # noqa: S608

    def _find_bad_column(self) -> SettingsError | StoreError:
        """Return the error for the file or column that caused a read of the OMOP database folder to fail."""
        for name, path in self._files.items():
            with self._connect() as connection:
                for column in self.columns(name):
                    try:
                        statement = f'SELECT count("{column}") FROM "{name}"'  # noqa: S608
                        connection.exec_driver_sql(statement).all()
                    except DBAPIError as error:
                        connection.rollback()
                        if type(error.orig).__name__ != "ConversionException":
                            return _unreadable_file_error(path)
                        return StoreError(
                            f"the column '{column}' contains a value that is not a {sql_type_of(column)}",
                            where=str(path),
                            remedy="correct the value; write dates as 2020-12-31 or 20201231",
                        )
        return StoreError(
            "a table contains a value of another type", where=self.name, remedy="check the files"
        )

    def table(self, name: str, columns: Sequence[str]) -> sql.TableClause:
        """Return a table clause of the OMOP database with the given columns."""
        is_vocabulary = name.startswith("concept")
        return sql.table(name, *map(sql.column, columns), schema=self._schemas[is_vocabulary])

    def columns(self, name: str) -> tuple[str, ...]:
        """Return the columns of a table in the OMOP database; empty if the table does not exist."""
        if name not in self._columns:
            statement: sql.Select[Any] = (
                sql.select(sql.literal_column("*")).select_from(self.table(name, ())).limit(0)
            )
            with self.translate_errors(), self._connect() as connection:
                try:
                    names = tuple(connection.execute(statement).keys())
                except DBAPIError as error:
                    if error.connection_invalidated or not _is_alive(connection):
                        raise
                    names = ()
                self._columns[name] = tuple(key.lower() for key in names)
        return self._columns[name]

    @property
    def is_typed(self) -> bool:
        """Whether columns of the OMOP database have the CDM types; SQLite enforces none, DuckDB infers them."""
        return self._connections[-1].dialect.name not in ("sqlite", "duckdb") or bool(self._files)

    def fetch_all(self, statement: sql.Select[Any]) -> list[Any]:
        """Return all rows of a small result of the OMOP database."""
        with self.translate_errors():
            return list(self._connections[-1].execute(statement))

    def stream(self, statement: sql.Select[Any]) -> Generator[Any]:
        """Yield the rows of a large OMOP database result by a server-side cursor, `BATCH_ROWS` at a time."""
        options = {"stream_results": True, "yield_per": BATCH_ROWS}
        with (
            self.translate_errors(),
            self._reading() as connection,
            connection.execute(statement, execution_options=options) as result,
        ):
            names = enumerate(column.name for column in statement.selected_columns)
            numeric = [(index, name) for index, name in names if sql_type_of(name) in ("BIGINT", "DOUBLE")]
            for rows in result.partitions():
                yield from rows if self.is_typed else self._check_numbers(rows, numeric)

    def _check_numbers(self, rows: Sequence[Any], numeric: Sequence[tuple[int, str]]) -> Iterator[Any]:
        """Yield OMOP database rows with empty text in numeric columns as None; refuse other text there."""
        for row in rows:
            for index, name in numeric:
                cell = row[index]
                if cell is None or cell.__class__ in _NUMBER_TYPES:
                    continue
                if cell != "":
                    raise StoreError(
                        f"the column '{name}' contains text that is not a number",
                        where=self.name,
                        remedy="correct the value, or load the tables with the types of the CDM",
                    )
                row = (*row[:index], None, *row[index + 1 :])
            yield row

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sql.Connection]:
        """Use one OMOP database connection, so all tables are of one snapshot; DuckDB needs one per cursor."""
        if self._connections[-1].dialect.name != "duckdb":
            yield self._connections[-1]
            return
        with self._connect() as connection:
            yield connection

    def _connect(self) -> sql.Connection:
        assert self._engine is not None
        return self._engine.connect()

    @contextlib.contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Convert errors of the OMOP database to errors without data of records."""
        try:
            yield
        except DBAPIError as error:
            name = type(error.orig).__name__
            if name in _TYPE_ERRORS and self._files:
                raise self._find_bad_column() from None
            if name in _TYPE_ERRORS:
                raise StoreError(
                    "a table contains a value that is not a number or date as the CDM requires",
                    where=self.name,
                    remedy="load the tables with the types of the CDM to find the value",
                ) from None
            raise StoreError(
                f"the database does not respond ({name})",
                where=self.name,
                remedy="check the connection and try again",
            ) from None
        except SQLAlchemyError as error:
            raise StoreError(
                f"the database cannot be read ({type(error).__name__})",
                where=self.name,
                remedy="check records.database",
            ) from None

    def close(self) -> None:
        """Close all connections to the OMOP database and remove temporary files."""
        for connection in self._connections:
            with contextlib.suppress(SQLAlchemyError):
                connection.close()
        self._connections.clear()
        if self._engine is not None:
            self._engine.dispose()
        if self._temporary_folder is not None:
            self._temporary_folder.cleanup()


def _is_alive(connection: sql.Connection) -> bool:
    """Return whether a connection to the OMOP database works after an error."""
    try:
        connection.rollback()
        connection.execute(sql.select(1))
    except SQLAlchemyError:
        return False
    return True


def _unreadable_file_error(path: Path) -> SettingsError:
    return SettingsError(
        "the file is not a valid table",
        where=str(path),
        remedy="use Parquet, or CSV in UTF-8 with a header and the same number of cells in every line",
    )


def _table_function(path: Path) -> str:
    """Return the DuckDB table function that reads a file of an OMOP database folder by its link."""
    quoted_path = str(path).replace("'", "''")
    if path.name.lower().endswith(".parquet"):
        return f"read_parquet('{quoted_path}')"
    with gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb") as stream:
        header = stream.readline(1 << 16)
    delimiter = max((b"\t", b",", b";", b"|"), key=header.count).decode()
    # OMOP vocabulary files are tab-separated; their quotation marks are text unless the header is quoted.
    quote = "" if delimiter == "\t" and b'"' not in header else '"'
    options = f"header = true, all_varchar = true, delim = '{delimiter}', quote = '{quote}'"
    options += f", buffer_size = {_CSV_BUFFER_BYTES}"
    return f"read_csv('{quoted_path}', {options})"


def _cast_sql(column: str, file_type: str, sql_type: str) -> str:
    """Return the SQL expression that casts a column of an OMOP file to its CDM type."""
    if file_type != "VARCHAR":
        return f'CAST("{column}" AS {sql_type})'
    if sql_type == "VARCHAR":
        return f"NULLIF(\"{column}\", '')"
    text = f'CASE WHEN trim("{column}") NOT IN {_NULL_TEXTS} THEN trim("{column}") END'
    if sql_type == "BIGINT":  # some tools write integer columns with missing values as 1.0
        text = f"regexp_replace({text}, '[.]0+$', '')"
    if sql_type in ("DATE", "TIMESTAMP"):
        compact = f"regexp_replace({text}, '^(\\d{{4}})(\\d\\d)(\\d\\d)$', '\\1-\\2-\\3')"
        text = f"CAST({compact} AS TIMESTAMP)"
    return f"CAST({text} AS {sql_type})"
