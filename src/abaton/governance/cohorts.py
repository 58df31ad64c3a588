"""Cohorts: who was in, at each collection, sending and training round, as a list of tags with one fingerprint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import sqlalchemy as sql

from abaton.canonical import digest
from abaton.governance import schema
from abaton.governance.audit import Entry, append_in
from abaton.governance.consents import Action
from abaton.governance.registry import Registry
from abaton.governance.times import stamp
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
            about = {"study": study, "document": document, "purpose": purpose.value, "members": list(inside)}
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


def marked_rounds(database: Database, study: str, subject: str = "") -> list[tuple[str, int]]:
    """The rounds of a study that used somebody who has withdrawn since."""
    table = schema.marks
    chosen = sql.select(table.c.run, table.c.round).where(table.c.study == study).distinct()
    if subject:
        chosen = chosen.where(table.c.subject == subject)
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
