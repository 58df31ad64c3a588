"""Governance in numbers that may be looked at every day: ranges of people, ages, lengths; never anybody.

An exact number that is shown every day gives a single person away by its changes. Numbers of people are therefore told
as ranges as wide as the smallest count, and zero is in the first of them.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.cohorts import members_in
from abaton.governance.consents import Action, Ask, Reason, judge
from abaton.governance.registry import Registry
from abaton.governance.standing import Published
from abaton.governance.times import moment
from abaton.governance.withdrawal import CascadeStep
from abaton.store import Database

FLOOR = 5


@dataclass(frozen=True, slots=True)
class Cohort:
    """The newest cohort of a study for one purpose: when it was taken, and how many people are in it."""

    purpose: str
    at: str
    people: str


@dataclass(frozen=True, slots=True)
class StudyCensus:
    """One study in numbers.

    Attributes:
        study: its name, title and version; since when and until when it runs, and whether it is open.
        in_force, expired, withdrawn, other: how many consents are so today, as ranges.
        pending: how many withdrawals are under way, as a range; since how many days the oldest of them.
        cohorts: the newest of each purpose.
    """

    study: str
    title: str
    version: int
    published: str
    ends: str
    is_open: bool
    in_force: str
    expired: str
    withdrawn: str
    other: str
    pending: str
    oldest_days: int | None
    cohorts: tuple[Cohort, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """The audit chain: how many entries it has, and when the newest was written."""

    length: int
    newest: str


def told(number: int, floor: int = FLOOR) -> str:
    """A number of people as the range it lies in.

    >>> told(0), told(4), told(5), told(123), told(123, 10)
    ('0–4', '0–4', '5–9', '120–124', '120–129')
    """
    low = number // floor * floor
    return f"{low}–{low + floor - 1}"


def census(database: Database, when: datetime) -> list[StudyCensus]:
    """All studies of a governance database, in numbers."""
    return [_study(database, found, when) for found in Registry(database).studies()]


def chain(database: Database) -> Chain:
    """The audit chain, at a glance; whether it is sound is told by :func:`abaton.governance.verify`."""
    table = schema.audit
    chosen = sql.select(table.c.sequence, table.c.body).order_by(table.c.sequence.desc()).limit(1)
    last = database.read(lambda connection: connection.execute(chosen).first())
    if last is None:
        return Chain(0, "")
    try:
        newest = str(json.loads(last.body)["at"])
    except (ValueError, KeyError, TypeError):
        newest = "unreadable"
    return Chain(last.sequence + 1, newest)


def _study(database: Database, found: Published, when: datetime) -> StudyCensus:
    content = json.loads(found.content)
    floor = max(FLOOR, _floor(content))
    counted = database.read(lambda connection: _consents(connection, found, when))
    pending, oldest = database.read(lambda connection: _pending(connection, found.study))
    groups = (Reason.IN_FORCE, Reason.EXPIRED, Reason.WITHDRAWN)
    in_force, expired, withdrawn = (told(counted[reason], floor) for reason in groups)
    rest = told(sum(counted.values()) - sum(counted[reason] for reason in groups), floor)
    title = content.get("study", {}).get("title") if isinstance(content.get("study"), dict) else None
    cohorts = database.read(lambda connection: _cohorts(connection, found.study, floor))
    days = (when - moment(oldest)).days if oldest else None
    return StudyCensus(
        found.study, str(title or found.study), found.version, found.published, found.ends, found.is_open(when),
        in_force, expired, withdrawn, rest, told(pending, floor), days, cohorts,
    )  # fmt: skip


def _floor(content: dict[str, object]) -> int:
    part = content.get("deidentification")
    floor = part.get("count_floor") if isinstance(part, dict) else None
    return floor if isinstance(floor, int) else FLOOR


def _consents(connection: sql.Connection, found: Published, when: datetime) -> Counter[Reason]:
    """How many of those who ever said yes to a study stand where, by their newest consents alone."""
    table, subjects = schema.consents, schema.subjects
    chosen = sql.select(table.c.subject, table.c.study, table.c.resource).where(
        table.c.study.in_(("", found.study))
    )
    newest = {(r.subject, r.study): r.resource for r in connection.execute(chosen.order_by(table.c.version))}
    left = set(
        connection.scalars(
            sql.select(subjects.c.subject).where(
                subjects.c.study == found.study, subjects.c.state == "withdrawn"
            )
        )
    )
    out = set(connection.scalars(sql.select(schema.opt_outs.c.subject)))
    counted: Counter[Reason] = Counter()
    for (subject, study), resource in newest.items():
        if not study:
            continue
        reason = judge(_read(resource), Ask(subject, study, found.document, Action.COLLECT), when)
        if subject in out:
            reason = Reason.OPTED_OUT
        elif subject in left:
            reason = Reason.WITHDRAWN
        elif reason.allows and not judge(_read(newest.get((subject, ""), "")), Ask(subject), when).allows:
            reason = Reason.NOT_OPTED_IN
        counted[reason] += 1
    return counted


def _read(resource: str) -> object:
    try:
        return json.loads(resource)
    except ValueError:
        return {}


def _pending(connection: sql.Connection, study: str) -> tuple[int, str]:
    table = schema.withdrawals
    chosen = sql.select(sql.func.count(), sql.func.min(table.c.since)).where(
        table.c.study == study, table.c.step != CascadeStep.DONE.value
    )
    number, oldest = connection.execute(chosen).one()
    return number, oldest or ""


def _cohorts(connection: sql.Connection, study: str, floor: int) -> tuple[Cohort, ...]:
    snapshots = schema.snapshots
    chosen = sql.select(snapshots).where(snapshots.c.study == study).order_by(snapshots.c.at)
    newest = {row.purpose: row for row in connection.execute(chosen)}
    made = []
    for purpose, row in sorted(newest.items()):
        made.append(Cohort(purpose, row.at, told(len(members_in(connection, row.snapshot)), floor)))
    return tuple(made)
