"""Coarser names for values: read from a file or the study document, or made from numbers, codes and dates."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from abaton.errors import SettingsError
from abaton.anonymity.settings import (
    BandHierarchy,
    BinHierarchy,
    DateHierarchy,
    FileHierarchy,
    FlatHierarchy,
    HierarchySpec,
    PrefixHierarchy,
    TableHierarchy,
)

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
