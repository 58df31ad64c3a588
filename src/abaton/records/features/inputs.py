"""The value of every input for every subject, before it becomes columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor

from abaton.records.features import cells, joins
from abaton.records.features.cells import Counts
from abaton.records.features.moments import Moment, moment
from abaton.features.specification import FollowUp, Input, Join, Kind, Plan, Source
from abaton.records.features.rows import Cells, Rows
from abaton.records.fhir.dates import whole_years

Value = float | frozenset[int] | None
"""A number, the places of categories, or nothing."""

Gathered = Mapping[str, Rows]


@dataclass(frozen=True, slots=True)
class Index:
    """A subject's index date, as it is written and as it is known."""

    text: str
    at: Moment


def indices(plan: Plan, rows: Gathered, subjects: Sequence[str]) -> dict[str, Index]:
    """The index date of every subject that has one."""
    source = plan.index
    if source is None:
        return {}
    made = {}
    for subject in subjects:
        counts = Counts()
        mine = cells.chosen(of_subject(rows, source, subject), source, None, counts)
        found = cells.dates(mine, source.column or "", counts)
        texts = joins.at_one_moment(found, source.join or Join.EARLIEST)
        if texts and (at := moment(min(texts))) is not None:
            made[subject] = Index(min(texts), at)
    return made


def values(
    each: Input, rows: Gathered, subjects: Sequence[str], index: Mapping[str, Index], counts: Counts
) -> list[Value]:
    """The value of one input for every subject, in their order."""
    return [_value(each, of_subject(rows, each, subject), index.get(subject), counts) for subject in subjects]


def of_subject(rows: Gathered, source: Source | FollowUp, subject: str) -> Sequence[Cells]:
    """The rows of one subject in the view that a source names."""
    return rows[source.view].of.get(subject, ())


def _value(each: Input, rows: Sequence[Cells], index: Index | None, counts: Counts) -> Value:
    until = None if each.after_index or index is None else index.at
    mine = cells.chosen(rows, each, until, counts)
    match each.kind:
        case Kind.NUMBER:
            found = cells.numbers(mine, each, counts)
            return _banded(joins.number(found, each.join or Join.MEAN), each.band)
        case Kind.CATEGORY:
            return joins.category(cells.categories(mine, each, each.categories, counts), each.join)
        case Kind.AGE:
            return _banded(_age(each, list(mine), index, counts), each.band)
        case Kind.FLAG:
            held = joins.flag(cells.flags(mine, each, counts), each.join or Join.ANY)
            if held is None and each.column is None:
                held = False  # the absence of any record is a no
            return None if held is None else float(held)
        case Kind.COUNT:
            return float(sum(1 for _ in mine))


def _age(each: Input, rows: Sequence[Cells], index: Index | None, counts: Counts) -> float | None:
    found = cells.dates(rows, each.column or "", counts)
    texts = joins.at_one_moment(found, each.join or Join.EARLIEST)
    then = each.at.isoformat() if each.at is not None else index.text if index is not None else ""
    if not texts:
        return None
    years = whole_years(min(texts), then) if then else None
    return None if years is None else float(years)


def _banded(value: float | None, width: float | None) -> float | None:
    """The middle of the band that a number lies in: which number it was cannot be told any more."""
    return value if value is None or width is None else (floor(value / width) + 0.5) * width
