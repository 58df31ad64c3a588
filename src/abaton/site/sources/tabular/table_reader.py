"""Files of rows, as spreadsheets and databases export them: opened, cut into cells, with the line of each row."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, cast

from abaton.errors import Refused, SettingsError
from abaton.site.sources.tabular.mapping import FilesPart, TablePart

SIGNS = ",;\t|"
_NAMES = {"\t": "a tabulator"}
_ENDINGS = (".csv", ".tsv", ".txt", ".data", ".csv.gz", ".tsv.gz")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def tables_in(paths: Iterable[Path]) -> list[Path]:
    """The files of rows among files and folders, in the order of their names; what is not there is refused."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(
                each for each in path.iterdir() if each.is_file() and each.name.lower().endswith(_ENDINGS)
            )
        elif path.is_file():
            found.append(path)
        else:
            raise SettingsError("a table is not there", where=str(path), remedy="correct records.paths")
    if not found:
        raise SettingsError(
            "no table is there",
            where=str(next(iter(paths), "")),
            remedy="give files that end in .csv or .tsv",
        )
    return found


class TableFile:
    """One file of rows.

    Args:
        path: The file.
        how: How it is written.
        table: What the mapping says of it; without one, the first line names the columns.
    """

    def __init__(self, path: Path, how: FilesPart, table: TablePart | None = None) -> None:
        self.path, self._how, self._table = path, how, table
        self.name = path.name
        with self._opened() as stream:
            self.delimiter, self._skipped = self._sign(stream)
        self.columns = self._columns()

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Every row that is not empty, with the number of its line.

        Raises:
            Refused: A row has more or fewer cells than there are columns, or cannot be read; with its line.
        """
        wide, begun = len(self.columns), self._table is not None and bool(self._table.header)
        with self._opened() as stream:
            for _ in range(self._skipped):
                stream.readline()
            reader = csv.reader(stream, delimiter=self.delimiter, strict=True)
            try:
                for cells in reader:
                    if not begun:
                        begun = True
                        continue
                    # Spreadsheets write rows of empty cells below the last one.
                    if not any(cells) or not any(cell.strip() for cell in cells):
                        continue
                    if len(cells) == wide:
                        yield reader.line_num + self._skipped, cells
                    else:
                        raise self.refusal(
                            reader.line_num + self._skipped,
                            f"the row has {len(cells)} cells and the table {wide} columns",
                            "put texts that hold the delimiter into quotation marks, or write the right 'delimiter'",
                        )
            except csv.Error:
                line = reader.line_num + self._skipped
                raise self.refusal(
                    line, "a row cannot be read", "look for a quotation mark too many"
                ) from None
            except UnicodeDecodeError:
                raise self._not_text() from None
            except (EOFError, zlib.error, gzip.BadGzipFile):
                raise Refused(
                    "the file is not complete gzip", where=self.name, remedy="copy it again"
                ) from None

    def refusal(self, line: int, what: str, remedy: str, column: str = "") -> Refused:
        """Why a row cannot be read: its line and its column, never what stands there."""
        place = f"{self.name} line {line}" + (f", column '{column}'" if column else "")
        return Refused(what, where=place, remedy=remedy)

    def place(self, column: str) -> int:
        """Where a column stands."""
        return self.columns.index(column)

    def _opened(self) -> IO[str]:
        try:
            with self.path.open("rb") as raw:
                start = raw.read(2)
            if self.name.lower().endswith(".gz"):
                binary = cast("IO[bytes]", gzip.open(self.path, "rb"))  # noqa: SIM115 - closed with the text
            else:
                binary = self.path.open("rb")
        except OSError as error:
            raise SettingsError(
                "a table cannot be read", where=str(self.path), remedy=error.strerror or "check the file"
            ) from None
        encoding = "utf-16" if start in _UTF16 else self._how.encoding
        if encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
            encoding = "utf-8-sig"
        return io.TextIOWrapper(binary, encoding=encoding, newline="")

    def _sign(self, stream: IO[str]) -> tuple[str, int]:
        """What separates the cells, and how many lines before the first row say nothing else (Excel's ``sep=;``)."""
        try:
            first = stream.readline().rstrip("\r\n")
            if first.startswith("sep=") and len(first) == 5:
                return first[4], 1
            if self._how.delimiter is not None:
                return self._how.delimiter, 0
            return max(SIGNS, key=lambda sign: (_width(first, sign), -SIGNS.index(sign))), 0
        except UnicodeDecodeError:
            raise self._not_text() from None
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise Refused("the file is not complete gzip", where=self.name, remedy="copy it again") from None

    def _not_text(self) -> Refused:
        return Refused(
            f"the file is not {self._how.encoding} text",
            where=self.name,
            remedy="write the right 'encoding' under [files], for example cp1252",
        )

    def _columns(self) -> list[str]:
        if self._table is not None and self._table.header:
            return list(self._table.header)
        with self._opened() as stream:
            for _ in range(self._skipped):
                stream.readline()
            try:
                reader = csv.reader(stream, delimiter=self.delimiter)
                found = [cell.strip() for cell in next(reader, [])]
            except (csv.Error, UnicodeDecodeError):
                raise self.refusal(
                    1, "the names of the columns cannot be read", "look at the first line"
                ) from None
        for name in self._table.names if self._table is not None else ():
            if found.count(name) > 1:
                raise SettingsError(
                    f"two columns are called '{name}'", where=self.name, remedy="give each a name of its own"
                )
            if name not in found:
                raise self._lacks(name, found)
        return found

    def _lacks(self, name: str, found: list[str]) -> SettingsError:
        """What to say of a column that is not there: most often the cells are cut at the wrong sign."""
        sign = _NAMES.get(self.delimiter, f"'{self.delimiter}'")
        if not any(found):
            return SettingsError("the file is empty", where=self.name, remedy="export it again, or remove it")
        if len(found) < 2:
            other = next((each for each in SIGNS if each != self.delimiter and each in "".join(found)), "")
            remedy = (
                f"write delimiter = {other!r} under [files]"
                if other
                else "write the right 'delimiter' under [files]"
            )
            return SettingsError(
                f"cut at {sign} the file has only one column, and none called '{name}'",
                where=self.name,
                remedy=remedy,
            )
        return SettingsError(
            f"the file has no column '{name}'",
            where=self.name,
            remedy="correct the mapping or the first line; a file without names needs 'header'",
        )


def _width(line: str, sign: str) -> int:
    try:
        return len(next(csv.reader([line], delimiter=sign), []))
    except csv.Error:
        return 0
