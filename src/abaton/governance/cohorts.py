"""Cohorts: who was in, at each collection, sending and training round, as a list of tags with one fingerprint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sql

from abaton.canonical import digest
from abaton.governance import schema
from abaton.governance.audit import Entry, append_in
from abaton.governance.consents import Action
from abaton.governance.registry import Registry
from abaton.governance.standing import allowed_in, study_in
from abaton.governance.times import stamp
from abaton.store import Database, insert_new


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everybody whose consent was in force at one moment for one purpose.

    Its id is the fingerprint of study, document, purpose and members: the same people give the same id.
    """

    id: str
    study: str
    document: str
    purpose: Action
    at: str
    members: tuple[str, ...]


def take_snapshot(
    registry: Registry, study: str, purpose: Action, when: datetime, among: Iterable[str] | None = None
) -> Snapshot:
    """Write down who is in at this moment: those whose consent is in force, among some people or all.

    Args:
        registry: The consents.
        study: The study.
        purpose: What is about to be done.
        when: The moment.
        among: The tags of those who come into question; everybody if not given.
    """
    candidates = sorted(set(registry.subjects(study) if among is None else among))

    def work(connection: sql.Connection) -> Snapshot:
        found = study_in(connection, study)
        document = found.document if found else ""
        allowed = allowed_in(connection, study, purpose, when)
        inside = tuple(subject for subject in candidates if subject in allowed)
        about = {"study": study, "document": document, "purpose": purpose.value, "members": list(inside)}
        made = Snapshot(digest(about), study, document, purpose, stamp(when), inside)
        row = {"snapshot": made.id, "study": study, "document": document, "purpose": purpose.value}
        insert_new(connection, schema.snapshots, [{**row, "at": made.at}])
        if inside:
            rows = [{"snapshot": made.id, "subject": subject, "left": ""} for subject in inside]
            insert_new(connection, schema.members, rows)
        detail: dict[str, str | int] = {"snapshot": made.id, "members": len(inside), "purpose": purpose.value}
        append_in(connection, Entry("cohort-taken", study=study, detail=detail), when)
        return made

    return registry.database.write(work, lock=f"cohort/{study}")


def who_may(registry: Registry, study: str, purpose: Action, when: datetime) -> tuple[str, frozenset[str]]:
    """The study's document and everybody whose consent is in force, without writing anything down."""

    def work(connection: sql.Connection) -> tuple[str, frozenset[str]]:
        found = study_in(connection, study)
        return found.document if found else "", allowed_in(connection, study, purpose, when)

    return registry.database.read(work)


def members_of(database: Database, snapshot: str) -> list[str]:
    """Who is in a snapshot now: those who left it since are gone."""
    table = schema.members
    chosen = sql.select(table.c.subject).where(table.c.snapshot == snapshot, table.c.left == "")
    return database.read(lambda connection: sorted(connection.scalars(chosen)))


def note_round(database: Database, run: str, number: int, snapshot: Snapshot, when: datetime) -> None:
    """Write down that a training round used a cohort; noting it twice is noting it once."""

    def work(connection: sql.Connection) -> None:
        row = {"study": snapshot.study, "run": run, "round": number}
        insert_new(connection, schema.rounds, [{**row, "snapshot": snapshot.id, "at": stamp(when)}])

    database.write(work)


def rounds_with(database: Database, study: str, subject: str) -> list[tuple[str, int]]:
    """The training rounds that used a person's records, as (run, round)."""
    rounds, members = schema.rounds, schema.members
    chosen = (
        sql.select(rounds.c.run, rounds.c.round)
        .join(members, members.c.snapshot == rounds.c.snapshot)
        .where(rounds.c.study == study, members.c.subject == subject)
        .order_by(rounds.c.run, rounds.c.round)
    )
    return database.read(lambda connection: [(row.run, row.round) for row in connection.execute(chosen)])


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
