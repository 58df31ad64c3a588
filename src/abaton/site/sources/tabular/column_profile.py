"""What the first rows of a table look like: which columns hold dates, numbers, codes or a few words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC
from itertools import islice
from pathlib import Path
from statistics import median

from abaton.errors import Refused
from abaton.fhir.partial_dates import from_form, from_iso
from abaton.fhir.terminology import ATC, ICD10, LOINC, SNOMED, TERMINOLOGIES
from abaton.site.sources.tabular.cell_parser import MISSING, CellError, number
from abaton.site.sources.tabular.data_dictionary import Names, words
from abaton.site.sources.tabular.mapping import FilesPart
from abaton.site.sources.tabular.table_reader import TableFile

ROWS = 5_000
"""How many rows are looked at."""
FEW, OFTEN = 12, 5  # so many words at most, each seen so often, are categories; others may be names
_FORMS = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d.%m.%y", "%Y%m%d")
_TIMES = ("", " %H:%M", " %H:%M:%S")
_CODES = {"loinc": LOINC, "icd10": ICD10, "atc": ATC, "snomed": SNOMED}


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of one column.

    Attributes:
        name: What it is called.
        dates: The forms of its dates; ``iso`` for ISO 8601. Empty if it holds none.
        decimal: The decimal sign of its numbers; empty if it holds none.
        middle: The middle of its numbers.
        system: The short name of the code system that its words are codes of; empty if there is none.
        words: Its words, if they are few and often; otherwise none.
        unsure: Whether its dates may be read in two ways.
    """

    name: str
    dates: tuple[str, ...] = ()
    decimal: str = ""
    middle: float = 0.0
    system: str = ""
    words: tuple[str, ...] = ()
    unsure: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen of a file."""

    file: str
    delimiter: str
    encoding: str
    columns: tuple[Seen, ...]

    def named(self, names: Names, *, dates: bool | None = None) -> str | None:
        """The first column with one of some names; of dates, or of anything else, if that is asked."""
        for each in self.columns:
            if words(each.name) in names and (dates is None or bool(each.dates) is dates):
                return each.name
        return None

    def column(self, name: str) -> Seen:
        """What was seen of a column."""
        return next(each for each in self.columns if each.name == name)


def sample(path: Path) -> Sample:
    """Look at the first rows of a file.

    Raises:
        Refused: The file is not a table that can be read; with the line.
    """
    for encoding in ("utf-8", "cp1252"):
        try:
            file = TableFile(path, FilesPart(encoding=encoding))
            rows = [cells for _, cells in islice(file.rows(), ROWS)]
            break
        except Refused as error:
            if encoding != "utf-8" or "text" not in error.what:
                raise
    found = [
        _seen(name, [cell for row in rows if (cell := row[place].strip()).lower() not in MISSING])
        for place, name in enumerate(file.columns)
    ]
    return Sample(path.name, file.delimiter, encoding, tuple(found))


def _seen(name: str, cells: list[str]) -> Seen:
    if not cells:
        return Seen(name)
    dates, unsure = _dates(cells)
    if dates:
        return Seen(name, dates=dates, unsure=unsure)
    counts = Counter(cells)
    few = tuple(sorted(counts)) if len(counts) <= FEW and min(counts.values()) >= OFTEN else ()
    for sign in ".,":
        try:
            values = [number(cell, sign)[1] for cell in cells]
        except CellError:
            continue
        return Seen(name, decimal=sign, middle=median(values), system=_system(cells), words=few)
    return Seen(name, system=_system(cells), words=few)


def _dates(cells: list[str]) -> tuple[tuple[str, ...], bool]:
    """The forms in which all cells are dates, days before months; and whether months before days would do, too."""
    some = list(dict.fromkeys(cells))
    if all(len(cell) >= 10 and from_iso(cell, UTC) for cell in some):
        return ("iso",), False
    found = []
    for form in _FORMS:
        forms = tuple(
            form + time for time in _TIMES if any(from_form(cell, form + time, UTC) for cell in some)
        )
        if forms and all(any(from_form(cell, each, UTC) for each in forms) for cell in some):
            found.append(forms)
    if not found or (found[0][0] == "%Y%m%d" and not all(cell[:2] in ("19", "20") for cell in some)):
        return (), False
    return found[0], len(found) > 1


def _system(cells: list[str]) -> str:
    """The code system that nearly all cells have the form of."""
    for name, address in _CODES.items():
        known = TERMINOLOGIES[address]
        if sum(known(cell) for cell in cells) >= 0.95 * len(cells):
            return name
    return ""
