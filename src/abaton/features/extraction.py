"""From a subject's rows to dated values: rows chosen, units converted, codes recognised, and what failed counted.

Joins: the rows of one subject become one value.

Every join gives the same whatever the order in which records were read. Rows of the same moment count alike: of
numbers the mean is taken, of categories the most frequent, and of equally frequent ones the first in the study's list.
So with dates cut to their year, `latest` is the mean of the latest year.

From de-identified records to the rows of each view, sorted by subject.

The value of every input for every subject, before it becomes columns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, fsum, isfinite
from typing import Any, TypeVar

from abaton.errors import AbatonError, Refused
from abaton.features.data_quality import Reason, known_system
from abaton.features.specification import (
    Category,
    FollowUp,
    Input,
    Join,
    Kind,
    Meaning,
    Measured,
    Plan,
    Source,
    Where,
    means,
)
from abaton.fhir.bundles import opened
from abaton.fhir.partial_dates import Moment, moment, whole_years
from abaton.fhir.ucum import convert, read_unit
from abaton.record_types import Deidentified
from abaton.views.definition import View

T = TypeVar("T")
Dated = tuple[Moment | None, T]


def at_one_moment(rows: Sequence[Dated[T]], join: Join | None) -> list[T]:
    """The values of the latest or earliest moment; all of them for any other join.

    A row without a date counts only if no row has one.
    """
    if join not in (Join.LATEST, Join.EARLIEST):
        return [value for _, value in rows]
    dated = [(then, value) for then, value in rows if then is not None]
    if not dated:
        return [value for _, value in rows]
    chosen = (max if join is Join.LATEST else min)(then for then, _ in dated)
    return [value for then, value in dated if then == chosen]


def number(rows: Sequence[Dated[float]], join: Join | None) -> float | None:
    """One number out of several, or nothing.

    >>> number([(None, 1.0), (None, 4.0)], Join.MAX), number([], Join.MEAN)
    (4.0, None)
    """
    values = at_one_moment(rows, join)
    if join is Join.COUNT:
        return float(len(values))
    if not values:
        return None
    if join is Join.MIN:
        return min(values)
    if join is Join.MAX:
        return max(values)
    return fsum(values) / len(values)


def category(rows: Sequence[Dated[int]], join: Join | None) -> frozenset[int] | None:
    """Which categories a subject is in, by their place in the list: one, or with `any` all that were found.

    >>> sorted(category([(None, 2), (None, 1), (None, 2)], None)), category([], None)
    ([2], None)
    """
    values = at_one_moment(rows, join)
    if not values:
        return None
    if join is Join.ANY:
        return frozenset(values)
    return frozenset([min(set(values), key=lambda place: (-values.count(place), place))])


def flag(rows: Sequence[Dated[bool]], join: Join | None) -> bool | None:
    """Whether something holds: at any time, or at the latest or earliest moment at which it was told."""
    values = at_one_moment(rows, join)
    return any(values) if values else None


Cells = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one view: each subject's, how many belong to nobody, and how many records it cannot read."""

    of: Mapping[str, list[Cells]]
    nobody: int
    unread: int

    def __repr__(self) -> str:
        return "Rows(…)"  # rows are people


class Gatherer:
    """Makes the rows of every view of a plan; the views are compiled once."""

    def __init__(self, plan: Plan) -> None:
        self._subject = plan.subject
        self._views = {name: View.load(definition) for name, definition in plan.views.items()}
        self._by_type: dict[str, list[tuple[str, View, list[str]]]] = defaultdict(list)
        for name, view in self._views.items():
            self._by_type[view.resource].append((name, view, [column.name for column in view.columns]))

    def __call__(self, records: Iterable[Deidentified]) -> dict[str, Rows]:
        """The rows of every view, in one pass over the records.

        Raises:
            Refused: A record has not been de-identified.
        """
        found: dict[str, dict[str, list[Cells]]] = {name: defaultdict(list) for name in self._views}
        nobody, unread = Counter[str](), Counter[str]()
        for resource in _once(_resources(records)):
            for name, view, columns in self._by_type.get(resource.get("resourceType", ""), ()):
                try:
                    rows = view.rows(resource)
                except AbatonError:
                    unread[name] += (
                        1  # what is wrong with the record is its content: only that it is, is told
                    )
                    continue
                for row in rows:
                    cells = dict(zip(columns, row, strict=True))
                    whose = cells.get(self._subject)
                    if isinstance(whose, str) and whose:
                        found[name][whose].append(cells)
                    else:
                        nobody[name] += 1
        return {name: Rows(dict(found[name]), nobody[name], unread[name]) for name in self._views}


def _once(resources: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every resource once: exports overlap, and a visit that stands in two files is one visit."""
    seen: set[tuple[str, str]] = set()
    for resource in resources:
        key = (resource.get("resourceType", ""), resource.get("id", ""))
        if key[1] and key in seen:
            continue
        seen.add(key)
        yield resource


def _resources(records: Iterable[Deidentified]) -> Iterator[dict[str, Any]]:
    for record in records:
        if not isinstance(record, Deidentified):
            raise Refused(
                "a record that was not de-identified cannot become a feature",
                where="features",
                remedy="pass it through the de-identifier first",
            )
        yield from opened(record.content)


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
        mine = chosen(of_subject(rows, source, subject), source, None, counts)
        found = dates(mine, source.column or "", counts)
        texts = at_one_moment(found, source.join or Join.EARLIEST)
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
    mine = chosen(rows, each, until, counts)
    match each.kind:
        case Kind.NUMBER:
            found = numbers(mine, each, counts)
            return _banded(number(found, each.join or Join.MEAN), each.band)
        case Kind.CATEGORY:
            return category(categories(mine, each, each.categories, counts), each.join)
        case Kind.AGE:
            return _banded(_age(each, list(mine), index, counts), each.band)
        case Kind.FLAG:
            held = flag(flags(mine, each, counts), each.join or Join.ANY)
            if held is None and each.column is None:
                held = False  # the absence of any record is a no
            return None if held is None else float(held)
        case Kind.COUNT:
            return float(sum(1 for _ in mine))


def _age(each: Input, rows: Sequence[Cells], index: Index | None, counts: Counts) -> float | None:
    found = dates(rows, each.column or "", counts)
    texts = at_one_moment(found, each.join or Join.EARLIEST)
    then = each.at.isoformat() if each.at is not None else index.text if index is not None else ""
    if not texts:
        return None
    years = whole_years(min(texts), then) if then else None
    return None if years is None else float(years)


def _banded(value: float | None, width: float | None) -> float | None:
    """The middle of the band that a number lies in: which number it was cannot be told any more."""
    return value if value is None or width is None else (floor(value / width) + 0.5) * width
