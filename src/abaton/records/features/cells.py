"""From a subject's rows to dated values: rows chosen, units converted, codes recognised, and what failed counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from abaton.features.data_quality import Reason, known_system
from abaton.records.features.joins import Dated
from abaton.records.features.moments import Moment, moment
from abaton.features.specification import Category, FollowUp, Meaning, Measured, Source, Where, means
from abaton.records.features.rows import Cells
from abaton.records.fhir.conversion import convert
from abaton.records.fhir.ucum import read_unit


@dataclass(slots=True)
class Counts:
    """What was found wrong with an input's rows, by reason and by code system.

    ``passed_over`` are the systems of rows that a filter did not find, if the filter knows none of them.
    """

    rows: int = 0
    reasons: Counter[Reason] = field(default_factory=Counter)
    systems: Counter[str] = field(default_factory=Counter)
    passed_over: Counter[str] = field(default_factory=Counter)


def chosen(
    rows: Iterable[Cells], source: Source | FollowUp, until: Moment | None, counts: Counts
) -> Iterator[Cells]:
    """The rows that count: those that the filter finds and that did not happen after the index date."""
    for row in rows:
        if source.where is not None and not _passes(row, source.where, counts):
            continue
        if until is not None and source.when is not None:
            then = when(row, source)
            if then is None or then.first > until.last:
                continue
        counts.rows += 1
        yield row


def when(row: Cells, source: Source | FollowUp) -> Moment | None:
    """When a row happened, if the source says which column tells it."""
    text = row.get(source.when) if source.when else None
    return moment(text) if isinstance(text, str) else None


def numbers(rows: Iterable[Cells], source: Measured, counts: Counts) -> list[Dated[float]]:
    """The numbers of a column, all in one unit."""
    made: list[Dated[float]] = []
    for row in rows:
        value = row.get(source.column or "")
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            counts.reasons[Reason.NO_VALUE] += 1
            continue
        told: float | None = float(value)
        if source.unit is not None:
            found = row.get(source.unit_column or "")
            if not isinstance(found, str):
                counts.reasons[Reason.NO_UNIT] += 1
                continue
            told = convert(float(value), found, source.unit, molar_mass=source.molar_mass)
            if told is None:
                known = read_unit(found) is not None
                counts.reasons[Reason.OTHER_UNIT if known else Reason.UNKNOWN_UNIT] += 1
                continue
        assert told is not None
        made.append((when(row, source), told))
    return made


def categories(
    rows: Iterable[Cells], source: Source, known: Sequence[Category], counts: Counts
) -> list[Dated[int]]:
    """The categories of a column, by their place in the list; one past its end is "other"."""
    made: list[Dated[int]] = []
    for row in rows:
        pairs = _pairs(row, source.column or "", source.system_column)
        if not pairs:
            counts.reasons[Reason.NO_VALUE] += 1
            continue
        places = [place for pair in pairs for place, each in enumerate(known) if means(each, *pair)]
        if not places:
            foreign = _foreign(pairs, known) if source.system_column is not None else set()
            counts.systems.update(foreign)
            counts.reasons[Reason.OTHER_CODE] += not foreign
        made.append((when(row, source), places[0] if places else len(known)))
    return made


def flags(rows: Iterable[Cells], source: Source, counts: Counts) -> list[Dated[bool]]:
    """The truth values of a column; without a column every row is a yes."""
    made: list[Dated[bool]] = []
    for row in rows:
        value = True if source.column is None else row.get(source.column)
        if isinstance(value, bool):
            made.append((when(row, source), value))
        else:
            counts.reasons[Reason.NO_VALUE] += 1
    return made


def dates(rows: Iterable[Cells], column: str, counts: Counts) -> list[Dated[str]]:
    """The dates of a column, each at its own moment."""
    made: list[Dated[str]] = []
    for row in rows:
        text = row.get(column)
        then = moment(text) if isinstance(text, str) else None
        if then is None:
            counts.reasons[Reason.NO_DATE] += 1
        else:
            made.append((then, str(text)))
    return made


def _passes(row: Cells, where: Where, counts: Counts) -> bool:
    pairs = _pairs(row, where.column, where.system_column)
    if any(means(where, *pair) for pair in pairs):
        return True
    if where.system_column is not None:
        counts.passed_over.update(_foreign(pairs, (where,)))
    return False


def _pairs(row: Cells, column: str, system: str | None) -> list[tuple[str | None, str]]:
    """A cell's codes with their systems; a cell may be a list. Without a system column, systems are not asked for."""
    cell, where = row.get(column), row.get(system) if system else None
    cells: list[Any] = cell if isinstance(cell, list) else [cell]
    wheres: list[Any] = where if isinstance(where, list) else [where] * len(cells)
    return [
        (None if system is None else str(space or ""), str(code))
        for code, space in zip(cells, wheres, strict=False)
        if isinstance(code, str | int) and not isinstance(code, bool)
    ]


def _foreign(pairs: Sequence[tuple[str | None, str]], known: Sequence[Meaning]) -> set[str]:
    """The systems of a cell's codes if the study uses none of them, as they may be told."""
    ours = {term.system for each in known for term in each.codes}
    found = {system for system, _ in pairs}
    return {known_system(system or None) for system in found} if not found & ours else set()
