"""Reader of delimited text files, with the line number of each row."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, cast

from abaton.errors import RefusedError, SettingsError, shorten_name
from abaton.site.sources.tabular.mapping import FilesSection, TableSection

DELIMITERS = ",;\t|"
_DELIMITER_NAMES = {"\t": "tab"}
_SUFFIXES = (".csv", ".tsv", ".txt", ".data", ".csv.gz", ".tsv.gz")
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def find_tables(paths: Iterable[Path]) -> list[Path]:
    """Return the tables to read among files and folders, sorted by name within a folder; refuse missing ones."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += sorted(
                file for file in path.iterdir() if file.is_file() and file.name.lower().endswith(_SUFFIXES)
            )
        elif path.is_file():
            files.append(path)
        else:
            raise SettingsError("the file does not exist", where=str(path), remedy="correct records.paths")
    if not files:
        raise SettingsError(
            "the folder contains no table",
            where=str(next(iter(paths), "")),
            remedy=f"use files that end in {', '.join(_SUFFIXES)}",
        )
    return files


class TabularFile:
    """Delimited text file.

    Args:
        path: The file.
        files: Format of the files.
        table: Section of the mapping; None for a file whose first line has the column names.
    """

    def __init__(self, path: Path, files: FilesSection, table: TableSection | None = None) -> None:
        self.path, self._files, self._table = path, files, table
        self.name = path.name
        with self._open() as stream:
            self.delimiter, self._skipped_lines = self._detect_delimiter(stream)
        self.columns = self._read_columns()

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Read the table: yield every row that is not empty, with its line number.

        Raises:
            RefusedError: The number of cells differs from the number of columns, or a row is malformed.
        """
        width, has_read_header = len(self.columns), self._table is not None and bool(self._table.header)
        with self._open() as stream:
            for _ in range(self._skipped_lines):
                stream.readline()
            reader = csv.reader(stream, delimiter=self.delimiter, strict=True)
            try:
                for cells in reader:
                    if not has_read_header:
                        has_read_header = True
                        continue
                    # Spreadsheets write rows of empty cells below the last one.
                    if not any(cells) or not any(cell.strip() for cell in cells):
                        continue
                    if len(cells) == width:
                        yield reader.line_num + self._skipped_lines, cells
                    else:
                        raise self.row_error(
                            reader.line_num + self._skipped_lines,
                            f"the row has {len(cells)} cells but the table has {width} columns",
                            "quote texts that contain the delimiter, or correct files.delimiter",
                        )
            except csv.Error:
                line = reader.line_num + self._skipped_lines
                raise self.row_error(line, "the row is malformed", "check the quotation marks") from None
            except UnicodeDecodeError:
                raise self._encoding_error() from None
            except (EOFError, zlib.error, gzip.BadGzipFile):
                raise RefusedError(
                    "the gzip file is incomplete", where=self.name, remedy="copy it again"
                ) from None

    def row_error(self, line: int, what: str, remedy: str, column: str = "") -> RefusedError:
        """Return the error for a row of the table read, with line and column but without its content."""
        where = f"{self.name} line {line}" + (f", column '{shorten_name(column)}'" if column else "")
        return RefusedError(what, where=where, remedy=remedy)

    def column_index(self, column: str) -> int:
        """Return the index of a column in the table read."""
        return self.columns.index(column)

    def _open(self) -> IO[str]:
        try:
            with self.path.open("rb") as raw:
                start = raw.read(2)
            if self.name.lower().endswith(".gz"):
                binary = cast("IO[bytes]", gzip.open(self.path, "rb"))  # noqa: SIM115 - closed with the text
            else:
                binary = self.path.open("rb")
        except OSError as error:
            raise SettingsError(
                f"the table cannot be read: {error.strerror or type(error).__name__}",
                where=str(self.path),
                remedy="check the file",
            ) from None
        encoding = "utf-16" if start in _UTF16_MARKS else self._files.encoding
        if encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
            encoding = "utf-8-sig"
        return io.TextIOWrapper(binary, encoding=encoding, newline="")

    def _detect_delimiter(self, stream: IO[str]) -> tuple[str, int]:
        """Return the delimiter of a delimited text file, and the lines before its header (Excel's ``sep=;``)."""
        try:
            first = stream.readline().rstrip("\r\n")
            if first.startswith("sep=") and len(first) == 5:
                return first[4], 1
            if self._files.delimiter is not None:
                return self._files.delimiter, 0
            return max(
                DELIMITERS,
                key=lambda delimiter: (_cell_count(first, delimiter), -DELIMITERS.index(delimiter)),
            ), 0
        except UnicodeDecodeError:
            raise self._encoding_error() from None
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise RefusedError(
                "the gzip file is incomplete", where=self.name, remedy="copy it again"
            ) from None

    def _encoding_error(self) -> RefusedError:
        return RefusedError(
            f"the file is not {self._files.encoding} text",
            where=self.name,
            remedy="set encoding under [files], such as 'cp1252'",
        )

    def _read_columns(self) -> list[str]:
        if self._table is not None and self._table.header:
            return list(self._table.header)
        with self._open() as stream:
            for _ in range(self._skipped_lines):
                stream.readline()
            try:
                reader = csv.reader(stream, delimiter=self.delimiter)
                columns = [cell.strip() for cell in next(reader, [])]
            except (csv.Error, UnicodeDecodeError):
                raise self.row_error(1, "the column names are malformed", "check the first line") from None
        for name in self._table.column_names if self._table is not None else ():
            if columns.count(name) > 1:
                raise SettingsError(
                    f"two columns have the name '{shorten_name(name)}'",
                    where=self.name,
                    remedy="rename one of them",
                )
            if name not in columns:
                raise self._missing_column_error(name, columns)
        return columns

    def _missing_column_error(self, name: str, columns: list[str]) -> SettingsError:
        """Return the error for a column missing in the table read; the usual cause is a wrong delimiter."""
        name, delimiter = shorten_name(name), _DELIMITER_NAMES.get(self.delimiter, f"'{self.delimiter}'")
        if not any(columns):
            return SettingsError("the file is empty", where=self.name, remedy="export it again, or remove it")
        if len(columns) < 2:
            other = next(
                (sign for sign in DELIMITERS if sign != self.delimiter and sign in "".join(columns)), ""
            )
            remedy = f"set delimiter = {other!r} under [files]" if other else "set delimiter under [files]"
            return SettingsError(
                f"the file has no column '{name}'; with the delimiter {delimiter} it has only one column",
                where=self.name,
                remedy=remedy,
            )
        return SettingsError(
            f"the file has no column '{name}'",
            where=self.name,
            remedy="correct the mapping or the first line; set header for a file without column names",
        )


def _cell_count(line: str, delimiter: str) -> int:
    try:
        return len(next(csv.reader([line], delimiter=delimiter), []))
    except csv.Error:
        return 0
