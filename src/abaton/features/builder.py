"""From de-identified records to a site's table, with a report of what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import Refused
from abaton.features.data_quality import Finding, Reason, Report, masked
from abaton.features.extraction import Counts, Gathered, Gatherer, Rows, Value, indices, values
from abaton.features.labels import Labelled, labels
from abaton.features.specification import Input, Missing, Outcome, Plan
from abaton.features.table import Table, columns, encode
from abaton.record_types import Deidentified

_UNITS = (Reason.NO_UNIT, Reason.UNKNOWN_UNIT, Reason.OTHER_UNIT)


@dataclass(frozen=True, slots=True)
class Featurised:
    """A site's table, if its records can fill one, and the report of what is missing.

    ``rows`` and ``lost`` count subjects with and without a row, the latter each once under its first reason. They
    are exact: whoever prints them masks them.
    """

    table: Table | None
    report: Report
    rows: int = field(default=0, repr=False)
    lost: Counter[str] = field(default_factory=Counter, repr=False)


def featurise(plan: Plan, records: Iterable[Deidentified], *, labelled: bool = True) -> Featurised:
    """Make a site's table: one row per subject, in the order of their new identities.

    Args:
        plan: The study's feature plan.
        records: De-identified records of any type, in any order; a type checker refuses others.
        labelled: Whether only subjects count whose label is known; of people for whom it is to be foretold it is not.

    Returns:
        The table, or none if the records cannot fill it, and the report in either case.
    """
    return featurise_people(plan, (records,), labelled=labelled)


def featurise_people(
    plan: Plan, people: Iterable[Iterable[Deidentified]], *, labelled: bool = True
) -> Featurised:
    """Make a site's table of records that come person by person, or some people at a time, and let them go at once.

    Memory grows with the rows of the table, and not with the records that they are made of.

    Raises:
        Refused: Records of some people say something of somebody who has a row already.
    """
    found = {name: Counts() for name in (*(each.name for each in plan.inputs), plan.label.name)}
    made, gathered = _Made(plan, labelled=labelled), Gatherer(plan)
    for records in people:
        made.add(plan, gathered(records), found)
    subjects, held, told, rows = made.in_order()
    kept = _kept(plan, held, told)
    table = _table(plan, subjects, held, told, kept)
    findings = (
        *_on_rows(plan, rows),
        *(finding for each in plan.inputs for finding in _on_input(plan, each, found[each.name])),
        *_on_dropped(plan, held, len(subjects)),
        *(_on_label(plan, found[plan.label.name], told, table) if labelled else ()),
        *_on_cohort(plan, table),
    )
    total = len(subjects)
    gone = tuple(
        (each.name, masked(sum(value is None for value in mine), plan.floor, of=total))
        for each, mine in zip(plan.inputs, held, strict=True)
    )
    rows_told = masked(len(table), plan.floor, of=total)
    report = Report(masked(total, plan.floor), rows_told, gone, findings)
    lost = _lost(plan, held, told, kept)
    return Featurised(table if report.usable else None, report, len(table), lost)


class _Made:
    """What was made so far: subjects, their values and labels, and the rows that no view could place."""

    def __init__(self, plan: Plan, *, labelled: bool) -> None:
        self._labelled = labelled
        self.subjects: dict[str, int] = {}
        self.held: list[list[Value]] = [[] for _ in plan.inputs]
        self.told: list[Labelled] = []
        self.nobody, self.unread = Counter[str](), Counter[str]()

    def add(self, plan: Plan, rows: Gathered, found: Mapping[str, Counts]) -> None:
        """Take in the rows of some people."""
        subjects = _cohort(plan, rows)
        if not self.subjects.keys().isdisjoint(subjects):
            raise Refused(
                "a view of the study makes rows of people whom a record is not about",
                where="[[views]]",
                remedy="let the column 'subject' be the person that a record is about",
            )
        self.subjects |= {subject: len(self.subjects) + i for i, subject in enumerate(subjects)}
        index = indices(plan, rows, subjects)
        for each, mine in zip(plan.inputs, self.held, strict=True):
            mine += values(each, rows, subjects, index, found[each.name])
        if self._labelled:
            self.told += labels(plan.label, rows, subjects, index, found[plan.label.name])
        else:
            timed = plan.label.kind is Outcome.TIME
            self.told += [(0.0, 0.0) if timed else 0.0] * len(subjects)  # nobody's: it is not known yet
        for name, one in rows.items():
            self.nobody[name] += one.nobody
            self.unread[name] += one.unread

    def in_order(self) -> tuple[tuple[str, ...], list[list[Value]], list[Labelled], Gathered]:
        """Everybody in the order of their new identities, with what is told of them."""
        order = sorted(self.subjects)
        places = [self.subjects[subject] for subject in order]
        held = [[mine[place] for place in places] for mine in self.held]
        rows = {name: Rows({}, self.nobody[name], self.unread[name]) for name in self.nobody}
        return tuple(order), held, [self.told[place] for place in places], rows


def _lost(
    plan: Plan, held: Sequence[Sequence[Value]], told: Sequence[Labelled], kept: Sequence[bool]
) -> Counter[str]:
    """Why subjects have no row: the label first, then the first input without which they are left out."""
    must = [
        (each.name, values)
        for each, values in zip(plan.inputs, held, strict=True)
        if each.missing is Missing.DROP
    ]
    found: Counter[str] = Counter()
    for i, label in enumerate(told):
        if isinstance(label, Reason):
            found[f"{plan.label.name}: {label.value}"] += 1
        elif not kept[i]:
            found[f"{next(name for name, values in must if values[i] is None)}: {Reason.NO_VALUE.value}"] += 1
    return found


def _cohort(plan: Plan, rows: Gathered) -> tuple[str, ...]:
    if plan.cohort is not None:
        return tuple(sorted(rows[plan.cohort].of))
    return tuple(sorted({subject for each in rows.values() for subject in each.of}))


def _kept(plan: Plan, held: Sequence[Sequence[Value]], told: Sequence[Labelled]) -> list[bool]:
    must = [values for each, values in zip(plan.inputs, held, strict=True) if each.missing is Missing.DROP]
    return [
        not isinstance(label, Reason) and all(values[i] is not None for values in must)
        for i, label in enumerate(told)
    ]


def _table(
    plan: Plan,
    subjects: Sequence[str],
    held: Sequence[Sequence[Value]],
    told: Sequence[Labelled],
    kept: Sequence[bool],
) -> Table:
    rows = [i for i, yes in enumerate(kept) if yes]
    blocks = [encode(each, [values[i] for i in rows]) for each, values in zip(plan.inputs, held, strict=True)]
    kind = np.float64 if plan.label.kind in (Outcome.VALUE, Outcome.TIME) else np.int64
    y: NDArray[Any] = np.array([told[i] for i in rows], dtype=kind)
    if plan.label.kind is Outcome.TIME:
        y = y.reshape(-1, 2)
    x = np.concatenate(blocks, axis=1) if blocks else np.zeros((len(rows), 0))
    whose = tuple(subjects[i] for i in rows)
    return Table(columns(plan), x, y, plan.label.names, whose, plan.floor, plan.label.name)


def _on_rows(plan: Plan, rows: Gathered) -> Iterator[Finding]:
    for name, each in rows.items():
        if each.nobody:
            yield Finding(f"view {name}", Reason.NO_SUBJECT, masked(each.nobody, plan.floor))
        if each.unread:
            yield Finding(f"view {name}", Reason.NOT_READ, masked(each.unread, plan.floor))


def _on_input(plan: Plan, each: Input, counts: Counts) -> Iterator[Finding]:
    if not counts.rows:
        yield Finding(each.name, Reason.NO_ROWS, "0")
    yield from _on_counts(each.name, counts, plan.floor, fatal=each.wrong_unit == "refuse")


def _on_counts(name: str, counts: Counts, floor: int, *, fatal: bool = False) -> Iterator[Finding]:
    for reason, count in sorted((+counts.reasons).items()):
        yield Finding(name, reason, masked(count, floor), fatal=fatal and reason in _UNITS)
    # Rows in other systems that a filter passed over are news only if it let none through.
    strange = counts.systems if counts.rows else counts.systems + counts.passed_over
    for system, count in sorted(strange.items()):
        yield Finding(name, Reason.OTHER_SYSTEM, masked(count, floor), system=system)


def _on_dropped(plan: Plan, held: Sequence[Sequence[Value]], total: int) -> Iterator[Finding]:
    for each, values_ in zip(plan.inputs, held, strict=True):
        gone = sum(value is None for value in values_)
        if gone and each.missing is Missing.DROP:
            yield Finding(each.name, Reason.DROPPED, masked(gone, plan.floor, of=total))


def _on_label(plan: Plan, counts: Counts, told: Sequence[Labelled], table: Table) -> Iterator[Finding]:
    yield from _on_counts(plan.label.name, counts, plan.floor)
    without = Counter(label for label in told if isinstance(label, Reason))
    for reason, count in sorted(without.items()):
        yield Finding(plan.label.name, reason, masked(count, plan.floor, of=len(told)))
    if len(table) and table.classes and len(np.unique(table.y)) < 2:
        yield Finding(plan.label.name, Reason.ONE_CLASS, masked(len(table), plan.floor))
    if len(table) and table.timed and not table.y[:, 1].any():
        yield Finding(plan.label.name, Reason.NO_EVENT, masked(len(table), plan.floor))


def _on_cohort(plan: Plan, table: Table) -> Iterator[Finding]:
    if not len(table):
        yield Finding("cohort", Reason.EMPTY_COHORT, "0", fatal=True)
    elif len(table) < plan.floor:
        yield Finding("cohort", Reason.TOO_FEW, masked(len(table), plan.floor), fatal=True)
