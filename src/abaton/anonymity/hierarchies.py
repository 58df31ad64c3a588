"""Generalisation hierarchies: every value of a column with its increasingly coarse names.

Names come from a file or the study document, or are derived from numbers, codes and dates. A spec of the study document
becomes a :class:`Hierarchy` once the column's values are known. Invariants: (1) level 0 is the value itself; (2) values
that share a name on one level share it on every coarser level; (3) a missing value is a separate value and is merged
with others only on the last level, if that has one name.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from abaton.anonymity.settings import (
    BandHierarchy,
    BinHierarchy,
    DateHierarchy,
    FileHierarchy,
    FlatHierarchy,
    HierarchySpec,
    PrefixHierarchy,
    QuasiIdentifier,
    TableHierarchy,
)
from abaton.errors import SettingsError

STAR = "*"
_DATE = re.compile(r"(\d{4})(?:-(\d{2})(?:-\d{2}(?:[T ].*)?)?)?")


def generalisation_rows(
    spec: HierarchySpec, present: list[str], folder: Path, where: str
) -> list[tuple[str, ...]]:
    """Return the rows of a hierarchy, one per value, coarser to the right: as listed, or derived."""
    match spec:
        case FileHierarchy(file=file, separator=separator):
            return _check_row_lengths(_read(folder / file, separator, where), where)
        case TableHierarchy(rows=rows):
            return _check_row_lengths(list(rows), where)
        case BinHierarchy(bins=widths, origin=origin):
            ranges = [partial(_range, width=width, origin=origin) for width in widths]
            return _numeric(present, ranges, where)
        case BandHierarchy(bands=levels):
            return _numeric(present, [partial(_band, edges=edges) for edges in levels], where)
        case PrefixHierarchy(prefix=keep):
            return [(v, *(v[:n] + STAR * max(len(v) - n, 0) for n in keep), STAR) for v in present]
        case DateHierarchy(dates=levels):
            dates = [(value, _DATE.fullmatch(value)) for value in present]
            _check_all_valid(
                sum(match is None for _, match in dates), len(present), "a date (YYYY-MM-DD)", where
            )
            return [(v, *(_period(d[1], d[2], lv) for lv in levels), STAR) for v, d in dates if d]
        case FlatHierarchy():
            return [(value, STAR) for value in present]


def _read(path: Path, separator: str, where: str) -> list[tuple[str, ...]]:
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            "the hierarchy file cannot be read",
            where=f"{where}: {path}",
            remedy="check the path and its encoding",
        ) from error
    lines = [line for line in lines if line.strip()]
    delimiter = separator or max(";,\t|", key=lambda sign: lines[0].count(sign) if lines else 0)
    return [tuple(cell.strip() for cell in row) for row in csv.reader(lines, delimiter=delimiter)]


def _check_row_lengths(rows: list[tuple[str, ...]], where: str) -> list[tuple[str, ...]]:
    if not rows:
        raise SettingsError("the hierarchy is empty", where=where, remedy="list one value per line")
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise SettingsError(
                f"line {number} has {len(row)} levels, the first one has {len(rows[0])}",
                where=where,
                remedy="give every value the same number of levels",
            )
    return rows


def _numeric(
    present: list[str], levels: Sequence[Callable[[float], str]], where: str
) -> list[tuple[str, ...]]:
    parsed = [_parse_number(value) for value in present]
    _check_all_valid(parsed.count(None), len(present), "a number", where)
    unique = sorted({number for number in parsed if number is not None})
    return [(f"{x:.15g}", *(level(x) for level in levels), STAR) for x in unique]


def _parse_number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if np.isfinite(number) else None


def _check_all_valid(invalid: int, total: int, description: str, where: str) -> None:
    if invalid:
        raise SettingsError(
            f"{invalid} of {total} distinct values of the table are not {description}",
            where=where,
            remedy="correct the column, or list the texts for unknown values under missing_values",
        )


def _range(x: float, width: float, origin: float) -> str:
    low = origin + (x - origin) // width * width
    if width.is_integer() and origin.is_integer():
        return f"{low:.0f}-{low + width - 1:.0f}" if width > 1 else f"{low:.0f}"
    return f"[{low:.12g}, {low + width:.12g})"


def _band(x: float, edges: tuple[float, ...]) -> str:
    index = sum(edge <= x for edge in edges)
    if index == 0:
        return f"<{edges[0]:.12g}"
    if index == len(edges):
        return f">={edges[-1]:.12g}"
    low, high = edges[index - 1], edges[index]
    is_integer = low.is_integer() and high.is_integer()
    return f"{low:.0f}-{high - 1:.0f}" if is_integer else f"[{low:.12g}, {high:.12g})"


def _period(year: str, month: str | None, level: str) -> str:
    if level == "month" and month:
        return f"{year}-{month}"
    if level == "quarter" and month:
        return f"{year}-Q{(int(month) + 2) // 3}"
    return {"decade": f"{year[:3]}0s", "century": f"{year[:2]}00s"}.get(level, year)


def count_levels(spec: HierarchySpec) -> int:
    """Return the number of levels of a derived hierarchy, including the values themselves."""
    sample = {BinHierarchy: "0", BandHierarchy: "0", DateHierarchy: "2000"}.get(type(spec), "")
    return len(generalisation_rows(spec, [sample], Path(), "")[0])


Label = str | None
"""A name on a level; ``None`` is a missing value."""

_INTEGER = re.compile(r"(-?(?:0|[1-9]\d*))(?:\.0+)?")


@dataclass(frozen=True, slots=True, eq=False)
class Hierarchy:
    """Values of a column and their names on every level, from the value itself to the coarsest.

    Attributes:
        column: the column's name.
        labels: ``labels[level][code]`` is the name of a code; level 0 has the values, ordered so that neighbours
            share their coarser names.
        ancestors: ``ancestors[level][leaf]`` is the code of a value on that level.
        leaves: ``leaves[level][code]`` is the number of values of the domain that a code covers.
        is_numeric: whether values are numbers, so that 7, 7.0 and 7.00 are one value.
        covers: per level, the approximate number of values per name, independent of the data; none where the study
            document lists the values.
    """

    column: str
    labels: tuple[tuple[Label, ...], ...]
    ancestors: tuple[NDArray[np.int32], ...]
    leaves: tuple[NDArray[np.int64], ...]
    is_numeric: bool = False
    covers: tuple[int, ...] | None = None

    @property
    def height(self) -> int:
        """Number of the coarsest level of the hierarchy."""
        return len(self.labels) - 1

    @property
    def size(self) -> int:
        """Number of values in the domain of the hierarchy."""
        return int(self.leaves[0].sum())

    def shares(self, level: int) -> NDArray[np.float64]:
        """Return for every value of the hierarchy the share of the domain that its name on a level covers."""
        share: NDArray[np.float64] = self.leaves[level][self.ancestors[level]] / self.size
        return share


def build_hierarchy(
    quasi: QuasiIdentifier,
    values: Sequence[Label],
    *,
    folder: Path = Path(),
    missing_values: Iterable[str] = (),
) -> Hierarchy:
    """Build the generalisation hierarchy of a column from its spec and the values that occur in it.

    Args:
        quasi: the column and its hierarchy.
        values: the distinct values as text; ``None`` is a missing one.
        folder: the folder of hierarchy files with relative paths, that of the study document.
        missing_values: texts that mean a missing value in a hierarchy file.

    Raises:
        SettingsError: Values are not in the hierarchy, or it is not nested.

    >>> from abaton.anonymity import BinHierarchy
    >>> build_hierarchy(QuasiIdentifier("age", BinHierarchy((10.0,))), ["7", "23", "21"]).labels
    (('7', '21', '23'), ('0-9', '20-29'), ('*',))
    """
    present = [value for value in values if value is not None]
    where = f"hierarchy of column '{quasi.column}'"
    rows = generalisation_rows(quasi.hierarchy, present, folder, where)
    absent = {"", *missing_values}
    chains: dict[Label, tuple[Label, ...]] = {}
    for row in rows:
        leaf = None if row[0] in absent else row[0]
        if leaf in chains:
            raise SettingsError("a value is listed twice", where=where, remedy="keep one line per value")
        chains[leaf] = (leaf, *row[1:])
    if None not in chains and len(present) < len(values):
        chains[None] = _missing_chain(list(chains.values()), quasi.hierarchy)
    _check_nested(chains.values(), where)
    is_numeric = isinstance(quasi.hierarchy, BinHierarchy | BandHierarchy)
    if not is_numeric:
        _check_present(chains, present, where)
    ordered = sorted(chains.values(), key=_by_number if is_numeric else chain_sort_key)
    hierarchy = hierarchy_from_chains(quasi.column, ordered, [1] * len(ordered))
    return replace(hierarchy, is_numeric=is_numeric, covers=_covers(quasi.hierarchy, hierarchy.height))


def _covers(spec: HierarchySpec, height: int) -> tuple[int, ...] | None:
    """Return the values per name on each level of a derived hierarchy; None for a listed one."""
    if isinstance(spec, FileHierarchy | TableHierarchy):
        return None
    widths = [1.0, *(spec.bins if isinstance(spec, BinHierarchy) else ())]
    return tuple(max(2**level, int(widths[min(level, len(widths) - 1)])) for level in range(height + 1))


def map_to_leaves(hierarchy: Hierarchy, values: Iterable[Label]) -> dict[Label, int]:
    """Return the leaf of the hierarchy of each value: by its text, or by its number (63.0 is 63)."""
    codes = {label: code for code, label in enumerate(hierarchy.labels[0])}
    if hierarchy.is_numeric:
        return {value: codes[None if value is None else f"{float(value):.15g}"] for value in values}
    text_of_number = _spellings(hierarchy.labels[0])
    return {
        value: codes[value] if value in codes else codes[text_of_number[_number_text(value)]]
        for value in values
    }


def _spellings(labels: Iterable[Label]) -> dict[Label, Label]:
    """Return the text of each integer value of a hierarchy; the first text applies."""
    text_of_number: dict[Label, Label] = {}
    for label in labels:
        text_of_number.setdefault(_number_text(label), label)
    return text_of_number


def _number_text(value: Label) -> Label:
    """Return an integer's canonical text in hierarchies: 63.0 and 63 are equal, 063 is a different code."""
    match = _INTEGER.fullmatch(value) if value is not None else None
    return match[1] if match else value


def _missing_chain(chains: list[tuple[Label, ...]], spec: HierarchySpec) -> tuple[Label, ...]:
    # A column without values has the same levels as at other sites.
    height = len(chains[0]) if chains else count_levels(spec)
    tops: set[Label] = {chain[-1] for chain in chains} or {STAR}
    top = next(iter(tops)) if len(tops) == 1 and height > 1 else None
    return (*[None] * (height - 1), top)


def _check_present(chains: dict[Label, tuple[Label, ...]], present: list[str], where: str) -> None:
    text_of_number = _spellings(chains)
    invalid = sum(value not in chains and _number_text(value) not in text_of_number for value in present)
    if invalid:
        raise SettingsError(
            f"{invalid} of {len(present)} distinct values of the table are not in the hierarchy",
            where=where,
            remedy="add them to the hierarchy, or list the texts for unknown values under missing_values",
        )


def _check_nested(chains: Iterable[tuple[Label, ...]], where: str) -> None:
    parents: dict[tuple[int, Label], Label] = {}
    for chain in chains:
        for level in range(len(chain) - 1):
            if parents.setdefault((level, chain[level]), chain[level + 1]) != chain[level + 1]:
                raise SettingsError(
                    f"a name of level {level} has two different names on level {level + 1}",
                    where=where,
                    remedy="give values with a common name the same coarser names",
                )


def chain_sort_key(chain: tuple[Label, ...]) -> list[tuple[bool, float, str]]:
    """Return the sort key of a chain of a hierarchy: coarsest name first, leading numbers by size."""
    key = []
    for label in (*reversed(chain[1:]), chain[0]):
        number = re.match(r"-?\d+(?:\.\d+)?", label or "")
        key.append((label is None, float(number[0]) if number else -np.inf, label or ""))
    return key


def _by_number(chain: tuple[Label, ...]) -> tuple[bool, float, str]:
    """Return the sort key of a numeric chain of a hierarchy: by size, the missing value last."""
    return chain[0] is None, float(chain[0] or "inf"), chain[0] or ""


def hierarchy_from_chains(
    column: str, chains: Sequence[tuple[Label, ...]], weights: Sequence[int]
) -> Hierarchy:
    """Build a hierarchy from its chains of names and the number of domain values of each chain."""
    labels: list[tuple[Label, ...]] = []
    ancestors: list[NDArray[np.int32]] = []
    leaves: list[NDArray[np.int64]] = []
    for level in range(len(chains[0]) if chains else 1):
        codes: dict[Label, int] = {}
        step = np.array([codes.setdefault(chain[level], len(codes)) for chain in chains], np.int32)
        labels.append(tuple(codes))
        ancestors.append(step)
        leaves.append(np.bincount(step, weights, len(codes)).astype(np.int64))
    return Hierarchy(column, tuple(labels), tuple(ancestors), tuple(leaves))
