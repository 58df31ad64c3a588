"""Profiles of columns from the first rows of a file: dates, numbers, codes or categories."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC
from itertools import islice
from pathlib import Path
from statistics import median

from abaton.errors import RefusedError
from abaton.fhir.partial_dates import normalise_iso_date, parse_date_format
from abaton.fhir.terminology import ATC, ICD10, LOINC, SNOMED, TERMINOLOGIES
from abaton.site.sources.tabular.cell_parser import MISSING_VALUES, CellError, parse_number
from abaton.site.sources.tabular.data_dictionary import Names, name_tokens
from abaton.site.sources.tabular.mapping import FilesSection
from abaton.site.sources.tabular.table_reader import TabularFile

MAX_PROFILE_ROWS = 5_000
"""Rows that are read for a profile."""
# A column with more or rarer values may contain names and is not listed.
MAX_CATEGORIES, MIN_CATEGORY_COUNT = 12, 5
_DATE_FORMATS = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d.%m.%y", "%Y%m%d")
_TIME_FORMATS = ("", " %H:%M", " %H:%M:%S")
_CODE_SYSTEMS = {"loinc": LOINC, "icd10": ICD10, "atc": ATC, "snomed": SNOMED}


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """Profile of one column.

    Attributes:
        name: Name of the column.
        date_formats: Formats of its dates; ``iso`` for ISO 8601. Empty if it has none.
        decimal: Decimal sign of its numbers; empty if it has none.
        median: Median of its numbers.
        code_system: Short name of the code system of its codes; empty if it has none.
        categories: Its values, if there are few and all are frequent; otherwise empty.
        is_ambiguous: Whether day and month of its dates may be exchanged.
    """

    name: str
    date_formats: tuple[str, ...] = ()
    decimal: str = ""
    median: float = 0.0
    code_system: str = ""
    categories: tuple[str, ...] = ()
    is_ambiguous: bool = False


@dataclass(frozen=True, slots=True)
class FileProfile:
    """Profile of one file."""

    file: str
    delimiter: str
    encoding: str
    columns: tuple[ColumnProfile, ...]

    def find_column(self, names: Names, *, dates: bool | None = None) -> str | None:
        """Return the first profiled column with one of the names; with `dates`, only with or without dates."""
        for column in self.columns:
            if name_tokens(column.name) in names and (dates is None or bool(column.date_formats) is dates):
                return column.name
        return None

    def column(self, name: str) -> ColumnProfile:
        """Return the column profile of a name."""
        return next(column for column in self.columns if column.name == name)


def profile_file(path: Path) -> FileProfile:
    """Return the column profiles of a table file from its first rows.

    Raises:
        RefusedError: The file is not a valid table; with the line.
    """
    for encoding in ("utf-8", "cp1252"):
        try:
            file = TabularFile(path, FilesSection(encoding=encoding))
            rows = [cells for _, cells in islice(file.rows(), MAX_PROFILE_ROWS)]
            break
        except RefusedError as error:
            if encoding != "utf-8" or "text" not in error.what:
                raise
    columns = [
        _profile_column(
            name, [cell for row in rows if (cell := row[index].strip()).lower() not in MISSING_VALUES]
        )
        for index, name in enumerate(file.columns)
    ]
    return FileProfile(path.name, file.delimiter, encoding, tuple(columns))


def _profile_column(name: str, cells: list[str]) -> ColumnProfile:
    if not cells:
        return ColumnProfile(name)
    date_formats, is_ambiguous = _detect_date_formats(cells)
    if date_formats:
        return ColumnProfile(name, date_formats=date_formats, is_ambiguous=is_ambiguous)
    counts = Counter(cells)
    is_categorical = len(counts) <= MAX_CATEGORIES and min(counts.values()) >= MIN_CATEGORY_COUNT
    categories = tuple(sorted(counts)) if is_categorical else ()
    code_system = _detect_code_system(cells)
    for decimal in ".,":
        try:
            values = [parse_number(cell, decimal)[1] for cell in cells]
        except CellError:
            continue
        return ColumnProfile(
            name, decimal=decimal, median=median(values), code_system=code_system, categories=categories
        )
    return ColumnProfile(name, code_system=code_system, categories=categories)


def _detect_date_formats(cells: list[str]) -> tuple[tuple[str, ...], bool]:
    """Return the formats in which all cells of a column are dates, and whether day and month are ambiguous."""
    distinct = list(dict.fromkeys(cells))
    if all(len(cell) >= 10 and normalise_iso_date(cell, UTC) for cell in distinct):
        return ("iso",), False
    matches = []
    for date_format in _DATE_FORMATS:
        formats = tuple(
            date_format + time
            for time in _TIME_FORMATS
            if any(parse_date_format(cell, date_format + time, UTC) for cell in distinct)
        )
        if formats and all(any(parse_date_format(cell, text, UTC) for text in formats) for cell in distinct):
            matches.append(formats)
    if not matches or (matches[0][0] == "%Y%m%d" and not all(cell[:2] in ("19", "20") for cell in distinct)):
        return (), False
    return matches[0], len(matches) > 1


def _detect_code_system(cells: list[str]) -> str:
    """Return the code system whose pattern nearly all cells of a column match."""
    for name, url in _CODE_SYSTEMS.items():
        is_code = TERMINOLOGIES[url]
        if sum(is_code(cell) for cell in cells) >= 0.95 * len(cells):
            return name
    return ""
