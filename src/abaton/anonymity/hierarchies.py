"""Generalisation hierarchies: every value of a column with its ever coarser names.

A spec from the study document becomes a :class:`Ladder` once the column's values are known. Invariants:
(1) level 0 is the value itself; (2) two values that share a name on one level share it on every coarser one;
(3) a missing value is a value of its own and joins the others only on the last level, if that has one name.

Coarser names for values: read from a file or the study document, or made from numbers, codes and dates.
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


def rows_of(spec: HierarchySpec, present: list[str], folder: Path, where: str) -> list[tuple[str, ...]]:
    """One row per value, coarser to the right: as listed, or made from the values that occur."""
    match spec:
        case FileHierarchy(file=file, separator=separator):
            return _even(_read(folder / file, separator, where), where)
        case TableHierarchy(rows=rows):
            return _even(list(rows), where)
        case BinHierarchy(bins=widths, origin=origin):
            ranges = [partial(_range, width=width, origin=origin) for width in widths]
            return _numeric(present, ranges, where)
        case BandHierarchy(bands=levels):
            return _numeric(present, [partial(_band, edges=edges) for edges in levels], where)
        case PrefixHierarchy(prefix=keep):
            return [(v, *(v[:n] + STAR * max(len(v) - n, 0) for n in keep), STAR) for v in present]
        case DateHierarchy(dates=levels):
            dates = [(value, _DATE.fullmatch(value)) for value in present]
            _all_fit(sum(found is None for _, found in dates), len(present), "a date (YYYY-MM-DD)", where)
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
    found = separator or max(";,\t|", key=lambda sign: lines[0].count(sign) if lines else 0)
    return [tuple(cell.strip() for cell in row) for row in csv.reader(lines, delimiter=found)]


def _even(rows: list[tuple[str, ...]], where: str) -> list[tuple[str, ...]]:
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
    numbers = [(value, _number(value)) for value in present]
    _all_fit(sum(number is None for _, number in numbers), len(present), "a number", where)
    unique = sorted({number for _, number in numbers if number is not None})
    return [(f"{x:.15g}", *(level(x) for level in levels), STAR) for x in unique]


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if np.isfinite(number) else None


def _all_fit(strangers: int, total: int, kind: str, where: str) -> None:
    if strangers:
        raise SettingsError(
            f"{strangers} of {total} different values of the table are not {kind}",
            where=where,
            remedy="correct the column, or name the ones that mean 'not known' under 'missing'",
        )


def _range(x: float, width: float, origin: float) -> str:
    low = origin + (x - origin) // width * width
    if width.is_integer() and origin.is_integer():
        return f"{low:.0f}-{low + width - 1:.0f}" if width > 1 else f"{low:.0f}"
    return f"[{low:.12g}, {low + width:.12g})"


def _band(x: float, edges: tuple[float, ...]) -> str:
    place = sum(edge <= x for edge in edges)
    if place == 0:
        return f"<{edges[0]:.12g}"
    if place == len(edges):
        return f">={edges[-1]:.12g}"
    low, high = edges[place - 1], edges[place]
    whole = low.is_integer() and high.is_integer()
    return f"{low:.0f}-{high - 1:.0f}" if whole else f"[{low:.12g}, {high:.12g})"


def _period(year: str, month: str | None, level: str) -> str:
    if level == "month" and month:
        return f"{year}-{month}"
    if level == "quarter" and month:
        return f"{year}-Q{(int(month) + 2) // 3}"
    return {"decade": f"{year[:3]}0s", "century": f"{year[:2]}00s"}.get(level, year)


def levels_of(spec: HierarchySpec) -> int:
    """How many levels a hierarchy has that is made from values, the values themselves included."""
    sample = {BinHierarchy: "0", BandHierarchy: "0", DateHierarchy: "2000"}.get(type(spec), "")
    return len(rows_of(spec, [sample], Path(), "")[0])


Label = str | None
"""A name on some level; ``None`` is "not known"."""

_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))(?:\.0+)?")


@dataclass(frozen=True, slots=True, eq=False)
class Ladder:
    """A column's values and their names on every level, from the value itself to the coarsest.

    Attributes:
        column: The column's name.
        labels: ``labels[level][code]`` is the name a code stands for; level 0 holds the values, ordered so
            that neighbours share their coarser names.
        steps: ``steps[level][leaf]`` is the code on that level of a value.
        leaves: ``leaves[level][code]`` is how many values of the domain a code covers.
        numeric: Whether values are numbers, so that 7, 7.0 and 7.00 are one.
        covers: Per level, about how many values a name stands for, told without looking at any; none where the study's
            document lists the values itself.
    """

    column: str
    labels: tuple[tuple[Label, ...], ...]
    steps: tuple[NDArray[np.int32], ...]
    leaves: tuple[NDArray[np.int64], ...]
    numeric: bool = False
    covers: tuple[int, ...] | None = None

    @property
    def height(self) -> int:
        """The coarsest level."""
        return len(self.labels) - 1

    @property
    def size(self) -> int:
        """How many values the domain has."""
        return int(self.leaves[0].sum())

    def shares(self, level: int) -> NDArray[np.float64]:
        """For every value, the share of the domain its name on a level covers: 1/size up to 1."""
        share: NDArray[np.float64] = self.leaves[level][self.steps[level]] / self.size
        return share


def ladder(
    quasi: QuasiIdentifier, values: Sequence[Label], *, folder: Path = Path(), missing: Iterable[str] = ()
) -> Ladder:
    """Build the ladder of a column from its hierarchy and the values that occur in it.

    Args:
        quasi: The column and its hierarchy.
        values: The distinct values, as text; ``None`` is a missing one.
        folder: Where hierarchy files named without a folder lie: beside the study document.
        missing: Texts that stand for a missing value in a hierarchy's file.

    Raises:
        SettingsError: Values are not in the hierarchy, or it is not a hierarchy.

    >>> from abaton.anonymity import BinHierarchy
    >>> ladder(QuasiIdentifier("age", BinHierarchy((10.0,))), ["7", "23", "21"]).labels
    (('7', '21', '23'), ('0-9', '20-29'), ('*',))
    """
    present = [value for value in values if value is not None]
    where = f"hierarchy of column '{quasi.column}'"
    rows = rows_of(quasi.hierarchy, present, folder, where)
    absent = {"", *missing}
    chains: dict[Label, tuple[Label, ...]] = {}
    for row in rows:
        leaf = None if row[0] in absent else row[0]
        if leaf in chains:
            raise SettingsError("a value is listed twice", where=where, remedy="keep one line per value")
        chains[leaf] = (leaf, *row[1:])
    if None not in chains and len(present) < len(values):
        chains[None] = _missing_chain(list(chains.values()), quasi.hierarchy)
    _check_nested(chains.values(), where)
    numeric = isinstance(quasi.hierarchy, BinHierarchy | BandHierarchy)
    if not numeric:
        _check_present(chains, present, where)
    ordered = sorted(chains.values(), key=_by_number if numeric else by_name)
    made = ladder_of(quasi.column, ordered, [1] * len(ordered))
    return replace(made, numeric=numeric, covers=_covers(quasi.hierarchy, made.height))


def _covers(spec: HierarchySpec, height: int) -> tuple[int, ...] | None:
    """How many values the names of each level stand for: the width of a range, or twice as many as a level below."""
    if isinstance(spec, FileHierarchy | TableHierarchy):
        return None
    widths = [1.0, *(spec.bins if isinstance(spec, BinHierarchy) else ())]
    return tuple(max(2**level, int(widths[min(level, len(widths) - 1)])) for level in range(height + 1))


def aliases(made: Ladder, values: Iterable[Label]) -> dict[Label, int]:
    """Which leaf each value of a table is: by its text, or by the number it spells (63.0 is 63)."""
    codes = {label: code for code, label in enumerate(made.labels[0])}
    if made.numeric:
        return {value: codes[None if value is None else f"{float(value):.15g}"] for value in values}
    spelled = _spellings(made.labels[0])
    return {
        value: codes[value] if value in codes else codes[spelled[_number_text(value)]] for value in values
    }


def _spellings(labels: Iterable[Label]) -> dict[Label, Label]:
    """How a hierarchy writes each of its values that is a whole number; the first spelling counts."""
    spelled: dict[Label, Label] = {}
    for label in labels:
        spelled.setdefault(_number_text(label), label)
    return spelled


def _number_text(value: Label) -> Label:
    """63.0 and 63 are one number; 063 stays a code of its own."""
    whole = _WHOLE.fullmatch(value) if value is not None else None
    return whole[1] if whole else value


def _missing_chain(chains: list[tuple[Label, ...]], spec: HierarchySpec) -> tuple[Label, ...]:
    # A column without a single value still has the levels that the other sites see.
    height = len(chains[0]) if chains else levels_of(spec)
    tops: set[Label] = {chain[-1] for chain in chains} or {STAR}
    top = next(iter(tops)) if len(tops) == 1 and height > 1 else None
    return (*[None] * (height - 1), top)


def _check_present(chains: dict[Label, tuple[Label, ...]], present: list[str], where: str) -> None:
    spelled = _spellings(chains)
    strangers = sum(value not in chains and _number_text(value) not in spelled for value in present)
    if strangers:
        raise SettingsError(
            f"{strangers} of {len(present)} different values of the table are not in the hierarchy",
            where=where,
            remedy="add them to the hierarchy, or name the ones that mean 'not known' under 'missing'",
        )


def _check_nested(chains: Iterable[tuple[Label, ...]], where: str) -> None:
    parents: dict[tuple[int, Label], Label] = {}
    for chain in chains:
        for level in range(len(chain) - 1):
            if parents.setdefault((level, chain[level]), chain[level + 1]) != chain[level + 1]:
                raise SettingsError(
                    f"a name of level {level} has two different names on level {level + 1}",
                    where=where,
                    remedy="values that share a name must share all coarser ones",
                )


def by_name(chain: tuple[Label, ...]) -> list[tuple[bool, float, str]]:
    """Coarsest name first, names that start with a number by its size: so Mondrian may cut anywhere."""
    key = []
    for label in (*reversed(chain[1:]), chain[0]):
        number = re.match(r"-?\d+(?:\.\d+)?", label or "")
        key.append((label is None, float(number[0]) if number else -np.inf, label or ""))
    return key


def _by_number(chain: tuple[Label, ...]) -> tuple[bool, float, str]:
    """By size, the missing value last."""
    return chain[0] is None, float(chain[0] or "inf"), chain[0] or ""


def ladder_of(column: str, chains: Sequence[tuple[Label, ...]], weights: Sequence[int]) -> Ladder:
    """A ladder from its values' chains of names and how many values of the domain each stands for."""
    labels: list[tuple[Label, ...]] = []
    steps: list[NDArray[np.int32]] = []
    leaves: list[NDArray[np.int64]] = []
    for level in range(len(chains[0]) if chains else 1):
        codes: dict[Label, int] = {}
        step = np.array([codes.setdefault(chain[level], len(codes)) for chain in chains], np.int32)
        labels.append(tuple(codes))
        steps.append(step)
        leaves.append(np.bincount(step, weights, len(codes)).astype(np.int64))
    return Ladder(column, tuple(labels), tuple(steps), tuple(leaves))
