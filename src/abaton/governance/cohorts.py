"""Cohorts: who was in, at each collection, sending and training round; and people in numbers that may be looked at.

A cohort is a list of tags with one fingerprint. An exact number of people that is shown every day gives a single
person away by its changes: numbers are therefore told as ranges as wide as the smallest count, with zero in the first.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import sqlalchemy as sql

from abaton.canonical_json import digest
from abaton.governance import schema
from abaton.governance.audit_log import Entry, append_in
from abaton.governance.consent import Action, Ask, Reason, judge
from abaton.governance.consent_registry import Registry
from abaton.governance.consent_status import Published
from abaton.governance.identifiers import moment, stamp
from abaton.store import Database, insert_new


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everybody whose consent was in force at one moment for one purpose.

    Its id is the fingerprint of study, document, purpose and members: the same people give the same id. What it was
    made from is kept with it, so that the next one of the same people costs no more than what has changed.
    """

    id: str
    study: str
    document: str
    purpose: Action
    at: str
    members: tuple[str, ...]
    among: Sequence[str] | None = field(default=None, repr=False, compare=False)
    allowed: frozenset[str] = field(default=frozenset(), repr=False, compare=False)


def take_snapshot(
    registry: Registry,
    study: str,
    purpose: Action,
    when: datetime,
    among: Sequence[str] | None = None,
    last: Snapshot | None = None,
) -> Snapshot:
    """Write down who is in at this moment: those whose consent is in force, among some people or all.

    Args:
        registry: The consents.
        study: The study.
        purpose: What is about to be done.
        when: The moment.
        among: The tags of those who come into question, sorted; everybody if not given.
        last: The snapshot that was taken before, if there is one.
    """

    def work(connection: sql.Connection) -> Snapshot:
        document, allowed = registry.who_may_in(connection, study, purpose, when)
        if last is not None and _is_same(last, document, among, allowed) and _is_kept(connection, last.id):
            made = replace(last, at=stamp(when))
        else:
            people = sorted(allowed) if among is None else among
            inside = tuple(subject for subject in people if subject in allowed)
            members = hashlib.sha256("\n".join(inside).encode()).hexdigest()
            about = {"study": study, "document": document, "purpose": purpose.value, "members": members}
            made = Snapshot(digest(about), study, document, purpose, stamp(when), inside, among, allowed)
            _keep(connection, made, last)
        detail: dict[str, str | int] = {
            "snapshot": made.id, "members": len(made.members), "purpose": purpose.value,
        }  # fmt: skip
        append_in(connection, Entry("cohort-taken", study=study, detail=detail), when)
        return made

    return registry.database.write(work, lock=f"cohort/{study}")


def _is_same(last: Snapshot, document: str, among: Sequence[str] | None, allowed: frozenset[str]) -> bool:
    return last.allowed is allowed and last.document == document and last.among == among


def _is_kept(connection: sql.Connection, snapshot: str) -> bool:
    table = schema.snapshots
    return connection.scalar(sql.select(table.c.at).where(table.c.snapshot == snapshot)) is not None


def _keep(connection: sql.Connection, made: Snapshot, last: Snapshot | None) -> None:
    """Write a snapshot down: whole, or by how it differs from the one before if that is little."""
    if _is_kept(connection, made.id):
        return
    before = frozenset(last.members) if last is not None and _is_kept(connection, last.id) else frozenset()
    now = frozenset(made.members)
    new, gone = now - before, before - now
    base = last.id if last is not None and len(new) + len(gone) < len(now) // 2 else ""
    if not base:
        new, gone = now, frozenset()
    row = {"snapshot": made.id, "study": made.study, "document": made.document, "purpose": made.purpose.value}
    connection.execute(schema.snapshots.insert().values(**row, at=made.at, base=base))
    if new:
        rows = [{"snapshot": made.id, "subject": subject, "left": ""} for subject in sorted(new)]
        connection.execute(schema.members.insert(), rows)
    if gone:
        out = [{"snapshot": made.id, "subject": subject} for subject in sorted(gone)]
        connection.execute(schema.leavers.insert(), out)


def members_of(database: Database, snapshot: str) -> list[str]:
    """Who is in a snapshot now: those who left it since are gone."""
    return database.read(lambda connection: sorted(members_in(connection, snapshot)))


def members_in(connection: sql.Connection, snapshot: str) -> set[str]:
    """The same inside a transaction."""
    members, leavers = schema.members, schema.leavers
    inside: set[str] = set()
    known: set[str] = set()
    for each in _line(connection, snapshot):  # the newest first: it decides about those whom it names
        here = sql.select(members.c.subject, members.c.left).where(members.c.snapshot == each)
        for subject, left in connection.execute(here):
            if subject not in known and not left:
                inside.add(subject)
            known.add(subject)
        known |= set(connection.scalars(sql.select(leavers.c.subject).where(leavers.c.snapshot == each)))
    return inside


def _line(connection: sql.Connection, snapshot: str) -> Iterator[str]:
    """A snapshot, the one it is told by, and so on."""
    table = schema.snapshots
    while snapshot:
        yield snapshot
        chosen = sql.select(table.c.base).where(table.c.snapshot == snapshot)
        snapshot = str(connection.scalar(chosen) or "")


def note_round(database: Database, run: str, number: int, snapshot: Snapshot, when: datetime) -> None:
    """Write down that a training round used a cohort; noting it twice is noting it once."""

    def work(connection: sql.Connection) -> None:
        row = {"study": snapshot.study, "run": run, "round": number}
        insert_new(connection, schema.rounds, [{**row, "snapshot": snapshot.id, "at": stamp(when)}])

    database.write(work)


def rounds_with(database: Database, study: str, subject: str) -> list[tuple[str, int]]:
    """The training rounds that used a person's records, as (run, round)."""
    rounds, snapshots, members, leavers = schema.rounds, schema.snapshots, schema.members, schema.leavers

    def work(connection: sql.Connection) -> list[tuple[str, int]]:
        told = sql.select(snapshots.c.snapshot, snapshots.c.base).where(snapshots.c.study == study)
        bases = {row.snapshot: row.base for row in connection.execute(told)}
        came = sql.select(members.c.snapshot).where(members.c.subject == subject)
        went = sql.select(leavers.c.snapshot).where(leavers.c.subject == subject)
        inside = dict.fromkeys(connection.scalars(went), False) | dict.fromkeys(
            connection.scalars(came), True
        )
        chosen = sql.select(rounds).where(rounds.c.study == study).order_by(rounds.c.run, rounds.c.round)
        return [
            (row.run, row.round)
            for row in connection.execute(chosen)
            if _is_inside(row.snapshot, bases, inside)
        ]

    return database.read(work)


def _is_inside(snapshot: str, bases: Mapping[str, str], inside: dict[str, bool]) -> bool:
    """Whether a person is in a snapshot that may be told by another; what is found is added to what is known."""
    way = []
    while snapshot and snapshot not in inside:
        way.append(snapshot)
        snapshot = bases.get(snapshot, "")
    found = inside.get(snapshot, False)
    inside |= dict.fromkeys(way, found)
    return found


def mark_rounds(database: Database, study: str, subject: str, when: datetime) -> list[tuple[str, int]]:
    """Mark the rounds that used a person who has withdrawn, and list them; those who retrain look for the marks."""
    found = rounds_with(database, study, subject)
    if found:
        rows = [
            {"study": study, "run": run, "round": number, "subject": subject, "at": stamp(when)}
            for run, number in found
        ]
        database.write(lambda connection: insert_new(connection, schema.marks, rows))
    return marked_rounds(database, study, subject)


def marked_rounds(database: Database, study: str, subject: str) -> list[tuple[str, int]]:
    """The rounds of a study that are marked because they used a person who has withdrawn since."""
    table = schema.marks
    chosen = sql.select(table.c.run, table.c.round).where(table.c.study == study, table.c.subject == subject)
    ordered = chosen.order_by(table.c.run, table.c.round)
    return database.read(lambda connection: [(row.run, row.round) for row in connection.execute(ordered)])


def leave_cohorts(database: Database, study: str, subject: str, when: datetime) -> None:
    """Take a person out of every cohort of a study; that he was in remains known, to find the rounds that used him."""
    members, snapshots = schema.members, schema.snapshots
    ours = sql.select(snapshots.c.snapshot).where(snapshots.c.study == study)
    chosen = members.update().where(
        members.c.subject == subject, members.c.left == "", members.c.snapshot.in_(ours)
    )
    database.write(lambda connection: connection.execute(chosen.values(left=stamp(when))))


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
        table.c.study == study, table.c.step != schema.DONE
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
