"""Cohort snapshots of collections, transfers and training rounds, and subject counts for display.

A cohort is a list of registry pseudonyms with one digest. Counts are given as ranges as wide as `min_cell_count`, with
zero in the first range, because two exact counts on consecutive days reveal a single withdrawal.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import sqlalchemy as sql

from abaton.canonical_json import canonical_digest
from abaton.governance import schema
from abaton.governance.audit_log import AuditEntry, append_in
from abaton.governance.consent import ConsentAction, ConsentQuery, DenialReason, evaluate_consent
from abaton.governance.consent_registry import ConsentRegistry
from abaton.governance.consent_status import PublishedStudy
from abaton.governance.timestamps import parse_timestamp, to_timestamp
from abaton.store import Database, insert_new


@dataclass(frozen=True, slots=True)
class CohortSnapshot:
    """Subjects whose consent was in force at one time for one purpose.

    The id is the digest of study, document, purpose and members, so equal cohorts have equal ids. `candidates` and
    `eligible` are the inputs, kept so that an unchanged cohort is recognised without reading consents.
    """

    id: str
    study: str
    document: str
    purpose: ConsentAction
    taken_at: str
    members: tuple[str, ...]
    candidates: Sequence[str] | None = field(default=None, repr=False, compare=False)
    eligible: frozenset[str] = field(default=frozenset(), repr=False, compare=False)


def take_snapshot(
    registry: ConsentRegistry,
    study: str,
    purpose: ConsentAction,
    when: datetime,
    candidates: Sequence[str] | None = None,
    last: CohortSnapshot | None = None,
) -> CohortSnapshot:
    """Take a cohort snapshot: record which candidates have a consent in force now.

    Args:
        registry: The consent registry.
        study: The study.
        purpose: The action that follows.
        when: The current time.
        candidates: Sorted pseudonyms of the subjects in question; all subjects if None.
        last: The previous snapshot, if any.
    """

    def work(connection: sql.Connection) -> CohortSnapshot:
        document, eligible = registry.eligible_subjects_in(connection, study, purpose, when)
        if (
            last is not None
            and _is_same(last, document, candidates, eligible)
            and _is_stored(connection, last.id)
        ):
            snapshot = replace(last, taken_at=to_timestamp(when))
        else:
            subjects = sorted(eligible) if candidates is None else candidates
            included = tuple(subject for subject in subjects if subject in eligible)
            members = hashlib.sha256("\n".join(included).encode()).hexdigest()
            identity = {"study": study, "document": document, "purpose": purpose.value, "members": members}
            snapshot = CohortSnapshot(
                canonical_digest(identity),
                study,
                document,
                purpose,
                to_timestamp(when),
                included,
                candidates,
                eligible,
            )
            _store_snapshot(connection, snapshot, last)
        detail: dict[str, str | int] = {
            "snapshot": snapshot.id, "members": len(snapshot.members), "purpose": purpose.value,
        }  # fmt: skip
        append_in(connection, AuditEntry("cohort-taken", study=study, detail=detail), when)
        return snapshot

    return registry.database.write(work, lock=f"cohort/{study}")


def _is_same(
    last: CohortSnapshot, document: str, candidates: Sequence[str] | None, eligible: frozenset[str]
) -> bool:
    return last.eligible is eligible and last.document == document and last.candidates == candidates


def _is_stored(connection: sql.Connection, snapshot: str) -> bool:
    table = schema.snapshots
    return connection.scalar(sql.select(table.c.taken_at).where(table.c.snapshot == snapshot)) is not None


def _store_snapshot(
    connection: sql.Connection, snapshot: CohortSnapshot, last: CohortSnapshot | None
) -> None:
    """Store a cohort snapshot in full, or as a small difference from the previous one."""
    if _is_stored(connection, snapshot.id):
        return
    before = frozenset(last.members) if last is not None and _is_stored(connection, last.id) else frozenset()
    now = frozenset(snapshot.members)
    added, removed = now - before, before - now
    base = last.id if last is not None and len(added) + len(removed) < len(now) // 2 else ""
    if not base:
        added, removed = now, frozenset()
    row = {
        "snapshot": snapshot.id,
        "study": snapshot.study,
        "document": snapshot.document,
        "purpose": snapshot.purpose.value,
    }
    connection.execute(schema.snapshots.insert().values(**row, taken_at=snapshot.taken_at, base=base))
    if added:
        rows = [{"snapshot": snapshot.id, "subject": subject, "removed_at": ""} for subject in sorted(added)]
        connection.execute(schema.members.insert(), rows)
    if removed:
        removal_rows = [{"snapshot": snapshot.id, "subject": subject} for subject in sorted(removed)]
        connection.execute(schema.snapshot_removals.insert(), removal_rows)


def snapshot_members(database: Database, snapshot_id: str) -> list[str]:
    """Return the subjects in a cohort snapshot, without those removed since."""
    return database.read(lambda connection: sorted(members_in(connection, snapshot_id)))


def members_in(connection: sql.Connection, snapshot: str) -> set[str]:
    """Return the subjects in a cohort snapshot inside a transaction."""
    members, removals = schema.members, schema.snapshot_removals
    included: set[str] = set()
    known: set[str] = set()
    for snapshot_id in _base_chain(
        connection, snapshot
    ):  # the latest snapshot first: it decides for its subjects
        selection = sql.select(members.c.subject, members.c.removed_at).where(
            members.c.snapshot == snapshot_id
        )
        for subject, removed_at in connection.execute(selection):
            if subject not in known and not removed_at:
                included.add(subject)
            known.add(subject)
        known |= set(
            connection.scalars(sql.select(removals.c.subject).where(removals.c.snapshot == snapshot_id))
        )
    return included


def _base_chain(connection: sql.Connection, snapshot: str) -> Iterator[str]:
    """Yield a cohort snapshot, the snapshot it is a difference from, and so on."""
    table = schema.snapshots
    while snapshot:
        yield snapshot
        selection = sql.select(table.c.base).where(table.c.snapshot == snapshot)
        snapshot = str(connection.scalar(selection) or "")


def record_round(
    database: Database, run: str, round_number: int, snapshot: CohortSnapshot, when: datetime
) -> None:
    """Record the cohort of a training round; idempotent."""

    def work(connection: sql.Connection) -> None:
        row = {"study": snapshot.study, "run": run, "round": round_number}
        insert_new(
            connection, schema.rounds, [{**row, "snapshot": snapshot.id, "recorded_at": to_timestamp(when)}]
        )

    database.write(work)


def rounds_with(database: Database, study: str, subject: str) -> list[tuple[str, int]]:
    """Return the training rounds whose cohort contains a subject, as (run, round)."""
    rounds, snapshots, members, removals = (
        schema.rounds,
        schema.snapshots,
        schema.members,
        schema.snapshot_removals,
    )

    def work(connection: sql.Connection) -> list[tuple[str, int]]:
        bases_query = sql.select(snapshots.c.snapshot, snapshots.c.base).where(snapshots.c.study == study)
        bases = {row.snapshot: row.base for row in connection.execute(bases_query)}
        added = sql.select(members.c.snapshot).where(members.c.subject == subject)
        removed = sql.select(removals.c.snapshot).where(removals.c.subject == subject)
        membership = dict.fromkeys(connection.scalars(removed), False) | dict.fromkeys(
            connection.scalars(added), True
        )
        selection = sql.select(rounds).where(rounds.c.study == study).order_by(rounds.c.run, rounds.c.round)
        return [
            (row.run, row.round)
            for row in connection.execute(selection)
            if _is_member(row.snapshot, bases, membership)
        ]

    return database.read(work)


def _is_member(snapshot: str, bases: Mapping[str, str], membership: dict[str, bool]) -> bool:
    """Return whether a subject is in a cohort snapshot or inherits membership from its base; memoised."""
    visited = []
    while snapshot and snapshot not in membership:
        visited.append(snapshot)
        snapshot = bases.get(snapshot, "")
    is_member = membership.get(snapshot, False)
    membership |= dict.fromkeys(visited, is_member)
    return is_member


def mark_rounds(database: Database, study: str, subject: str, when: datetime) -> list[tuple[str, int]]:
    """Mark the training rounds whose cohort contains a withdrawn subject, for retraining; return them."""
    used = rounds_with(database, study, subject)
    if used:
        rows = [
            {
                "study": study,
                "run": run,
                "round": round_number,
                "subject": subject,
                "marked_at": to_timestamp(when),
            }
            for run, round_number in used
        ]
        database.write(lambda connection: insert_new(connection, schema.marked_rounds, rows))
    return marked_rounds(database, study, subject)


def marked_rounds(database: Database, study: str, subject: str) -> list[tuple[str, int]]:
    """Return the rounds of a study that are marked because their cohort contained a withdrawn subject."""
    table = schema.marked_rounds
    selection = sql.select(table.c.run, table.c.round).where(
        table.c.study == study, table.c.subject == subject
    )
    ordered = selection.order_by(table.c.run, table.c.round)
    return database.read(lambda connection: [(row.run, row.round) for row in connection.execute(ordered)])


def remove_from_cohorts(database: Database, study: str, subject: str, when: datetime) -> None:
    """Remove a subject from all cohorts of a study; past membership stays recorded to find the rounds."""
    members, snapshots = schema.members, schema.snapshots
    study_snapshots = sql.select(snapshots.c.snapshot).where(snapshots.c.study == study)
    update = members.update().where(
        members.c.subject == subject, members.c.removed_at == "", members.c.snapshot.in_(study_snapshots)
    )
    database.write(lambda connection: connection.execute(update.values(removed_at=to_timestamp(when))))


MIN_CELL_COUNT = 5


@dataclass(frozen=True, slots=True)
class CohortSummary:
    """Latest cohort of a study for one purpose: time, and number of subjects as a range."""

    purpose: str
    taken_at: str
    subjects: str


@dataclass(frozen=True, slots=True)
class StudyCounts:
    """Counts of one study.

    Attributes:
        study: Its id; with title, version, period and whether it is open.
        in_force, expired, withdrawn, other: Numbers of consents, as ranges.
        pending: Number of pending withdrawals, as a range, and the age of the oldest in days.
        cohorts: Latest cohort of each purpose.
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
    oldest_pending_days: int | None
    cohorts: tuple[CohortSummary, ...]


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """Length of the audit log and time of the latest entry."""

    length: int
    newest: str


def count_range(count: int, min_cell_count: int = MIN_CELL_COUNT) -> str:
    """Return the range of width `min_cell_count` that contains a count of a study's consents or cohort.

    >>> count_range(0), count_range(4), count_range(5), count_range(123), count_range(123, 10)
    ('0–4', '0–4', '5–9', '120–124', '120–129')
    """
    low = count // min_cell_count * min_cell_count
    return f"{low}–{low + min_cell_count - 1}"


def study_counts(database: Database, when: datetime) -> list[StudyCounts]:
    """Return the counts of consents, withdrawals and cohorts of all studies of a governance database."""
    return [_count_study(database, study, when) for study in ConsentRegistry(database).studies()]


def summarise_audit_log(database: Database) -> AuditSummary:
    """Return length and latest entry of the audit log, for display beside the cohort counts."""
    table = schema.audit
    selection = sql.select(table.c.sequence, table.c.body).order_by(table.c.sequence.desc()).limit(1)
    last = database.read(lambda connection: connection.execute(selection).first())
    if last is None:
        return AuditSummary(0, "")
    try:
        newest = str(json.loads(last.body)["at"])
    except (ValueError, KeyError, TypeError):
        newest = "unreadable"
    return AuditSummary(last.sequence + 1, newest)


def _count_study(database: Database, study: PublishedStudy, when: datetime) -> StudyCounts:
    content = json.loads(study.content)
    min_cell_count = max(MIN_CELL_COUNT, _min_cell_count(content))
    counts = database.read(lambda connection: _count_consents(connection, study, when))
    pending, oldest = database.read(lambda connection: _count_pending(connection, study.study))
    groups = (DenialReason.IN_FORCE, DenialReason.EXPIRED, DenialReason.WITHDRAWN)
    in_force, expired, withdrawn = (count_range(counts[reason], min_cell_count) for reason in groups)
    other = count_range(sum(counts.values()) - sum(counts[reason] for reason in groups), min_cell_count)
    title = content.get("study", {}).get("title") if isinstance(content.get("study"), dict) else None
    cohorts = database.read(lambda connection: _latest_cohorts(connection, study.study, min_cell_count))
    days = (when - parse_timestamp(oldest)).days if oldest else None
    return StudyCounts(
        study.study, str(title or study.study), study.version, study.published, study.ends, study.is_open(when),
        in_force, expired, withdrawn, other, count_range(pending, min_cell_count), days, cohorts,
    )  # fmt: skip


def _min_cell_count(content: dict[str, object]) -> int:
    section = content.get("privacy")
    min_cell_count = section.get("min_cell_count") if isinstance(section, dict) else None
    return min_cell_count if isinstance(min_cell_count, int) else MIN_CELL_COUNT


def _count_consents(
    connection: sql.Connection, published: PublishedStudy, when: datetime
) -> Counter[DenialReason]:
    """Count the subjects of a study by the decision of their latest consents, for display with its cohorts."""
    table, subjects = schema.consents, schema.subjects
    selection = sql.select(table.c.subject, table.c.study, table.c.resource).where(
        table.c.study.in_(("", published.study))
    )
    latest = {
        (r.subject, r.study): r.resource for r in connection.execute(selection.order_by(table.c.version))
    }
    withdrawn = set(
        connection.scalars(
            sql.select(subjects.c.subject).where(
                subjects.c.study == published.study, subjects.c.state == "withdrawn"
            )
        )
    )
    opted_out = set(connection.scalars(sql.select(schema.opt_outs.c.subject)))
    counts: Counter[DenialReason] = Counter()
    for (subject, study), resource in latest.items():
        if not study:
            continue
        reason = evaluate_consent(
            _read(resource), ConsentQuery(subject, study, published.document, ConsentAction.COLLECT), when
        )
        if subject in opted_out:
            reason = DenialReason.OPTED_OUT
        elif subject in withdrawn:
            reason = DenialReason.WITHDRAWN
        elif (
            reason.permits
            and not evaluate_consent(
                _read(latest.get((subject, ""), "")), ConsentQuery(subject), when
            ).permits
        ):
            reason = DenialReason.NOT_OPTED_IN
        counts[reason] += 1
    return counts


def _read(resource: str) -> object:
    try:
        return json.loads(resource)
    except ValueError:
        return {}


def _count_pending(connection: sql.Connection, study: str) -> tuple[int, str]:
    table = schema.withdrawals
    selection = sql.select(sql.func.count(), sql.func.min(table.c.opened_at)).where(
        table.c.study == study, table.c.step != schema.DONE
    )
    count, oldest = connection.execute(selection).one()
    return count, oldest or ""


def _latest_cohorts(connection: sql.Connection, study: str, min_cell_count: int) -> tuple[CohortSummary, ...]:
    snapshots = schema.snapshots
    selection = sql.select(snapshots).where(snapshots.c.study == study).order_by(snapshots.c.taken_at)
    latest = {row.purpose: row for row in connection.execute(selection)}
    summaries = []
    for purpose, row in sorted(latest.items()):
        summaries.append(
            CohortSummary(
                purpose, row.taken_at, count_range(len(members_in(connection, row.snapshot)), min_cell_count)
            )
        )
    return tuple(summaries)
