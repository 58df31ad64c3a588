"""Retention: find and delete what a study may no longer keep; suitable for a nightly job.

A study that has ended is closed. After its retention period everything is deleted at site and centre: envelopes,
vault rows with their keys, consents, cohorts, completed withdrawals and receipts, and with a subject's last study the
general opt-in. The study document, the received sequence numbers and the audit log stay; they contain pseudonyms at
most. Pending withdrawals continue. Incomplete uploads and orphaned row keys are deleted. Enforcement is idempotent.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.audit_log import AuditEntry, append_in
from abaton.governance.consent_registry import ConsentRegistry
from abaton.governance.consent_status import PublishedStudy, in_chunks, latest_consents_in, read_consent
from abaton.governance.http_signatures import forget_nonces
from abaton.governance.outbox import Outbox
from abaton.governance.timestamps import parse_timestamp, to_timestamp
from abaton.governance.vault import Vault
from abaton.store import Database

STALE_UPLOAD = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class RetentionDue:
    """Kind, study and number of items whose retention period is over."""

    item: str
    study: str
    count: int


@dataclass(frozen=True, slots=True)
class RetentionTargets:
    """Stores that retention applies to.

    Args:
        database: The governance database.
        folder: Folder of the inbox, if any.
        outbox: The outbox, if any.
        vault: The mapping table, if any.
    """

    database: Database
    folder: Path | None = None
    outbox: Outbox | None = None
    vault: Vault | None = None


def due_items(targets: RetentionTargets, when: datetime) -> list[RetentionDue]:
    """Return what has to be deleted at this time by the retention periods; nothing is changed."""
    due: list[RetentionDue] = []
    for study in ConsentRegistry(targets.database).studies():
        if _is_over(study.ends, when) and not study.closed:
            due.append(RetentionDue("study-to-close", study.study, 1))
        if _is_over(study.keep_until, when):
            due += [
                RetentionDue(item, study.study, n) for item, n in _counts(targets, study.study).items() if n
            ]
    stale = _stale_uploads(targets, when)
    return [*due, RetentionDue("stale-uploads", "", len(stale))] if stale else due


def enforce(targets: RetentionTargets, when: datetime) -> list[RetentionDue]:
    """Enforce the retention periods: delete what is due and return it; resumes after an interruption."""
    due = due_items(targets, when)
    registry = ConsentRegistry(targets.database)
    for study in registry.studies():
        if _is_over(study.ends, when) or _is_over(study.keep_until, when):
            registry.close(study.study, when)
        if _is_over(study.keep_until, when) and any(_counts(targets, study.study).values()):
            _delete_study(targets, study, when)
    for path in _stale_uploads(targets, when):
        path.unlink(missing_ok=True)
    _forget_old(targets.database, when)
    if targets.outbox is not None:
        targets.outbox.sweep()  # files of envelopes that are no longer listed
    if targets.vault is not None:
        orphan_keys = targets.vault.sweep()
        due += [RetentionDue("orphan-row-keys", "", orphan_keys)] if orphan_keys else []
    return due


def _is_over(text: str, when: datetime) -> bool:
    return bool(text) and when >= parse_timestamp(text)


_STUDY_TABLES = {
    "received-envelopes": schema.inbox,
    "queued-envelopes": schema.outbox,
    "consents": schema.consents,
    "subjects": schema.subjects,
    "cohorts": schema.snapshots,
    "rounds": schema.rounds,
    "marked-rounds": schema.marked_rounds,
    "form-consents": schema.form_consents,
    "consent-receipts": schema.consent_receipts,
    "deletion-receipts": schema.deletions,
    "withdrawals": schema.withdrawals,
    "citizens": schema.citizens,
    "admission-codes": schema.admissions,
}


def _study_rows(table: sql.Table, study: str) -> sql.ColumnElement[bool]:
    """Return the rows of a study to delete after its retention period; of withdrawals only completed ones."""
    in_study = table.c.study == study
    return in_study & (table.c.step == schema.DONE) if table is schema.withdrawals else in_study


def _counts(targets: RetentionTargets, study: str) -> dict[str, int]:
    def work(connection: sql.Connection) -> dict[str, int]:
        return {
            item: int(connection.scalar(sql.select(sql.func.count()).where(_study_rows(table, study))) or 0)
            for item, table in _STUDY_TABLES.items()
        }

    def opt_ins(connection: sql.Connection) -> int:
        return len(_removable_opt_ins(connection, study))

    counts = targets.database.read(work)
    counts["general-opt-ins"] = targets.database.read(opt_ins)
    return counts | ({"vault-rows": targets.vault.count(study)} if targets.vault else {})


def _removable_opt_ins(connection: sql.Connection, study: str) -> list[str]:
    """Return subjects of only this study whose general opt-in ends with its retention; a refusal stays."""
    table = schema.subjects
    other_studies = sql.select(table.c.subject).where(table.c.study != study)
    selection = sql.select(table.c.subject).where(
        table.c.study == study, table.c.subject.not_in(other_studies)
    )
    subjects = list(connection.scalars(selection))
    opt_ins = latest_consents_in(connection, subjects, "")
    return sorted(
        subject for subject, text in opt_ins.items() if read_consent(text).get("status") == "active"
    )


def _delete_study(targets: RetentionTargets, study: PublishedStudy, when: datetime) -> None:
    """Delete everything of a study after its retention period: row keys, then rows, files and lists."""
    if targets.vault is not None:
        targets.vault.destroy_study(study.study)
    counts = _counts(targets, study.study)
    folder = targets.folder

    def work(connection: sql.Connection) -> None:
        inbox, members, snapshots = schema.inbox, schema.members, schema.snapshots
        if folder is not None:
            for digest in connection.scalars(sql.select(inbox.c.digest).where(inbox.c.study == study.study)):
                (folder / digest).unlink(missing_ok=True)
                (folder / f"{digest}.part").unlink(missing_ok=True)
        study_snapshots = sql.select(snapshots.c.snapshot).where(snapshots.c.study == study.study)
        for table in (members, schema.snapshot_removals):
            connection.execute(table.delete().where(table.c.snapshot.in_(study_snapshots)))
        consents = schema.consents
        for chunk in in_chunks(_removable_opt_ins(connection, study.study)):
            general = (consents.c.study == "") & consents.c.subject.in_(chunk)
            connection.execute(consents.delete().where(general))
        for table in _STUDY_TABLES.values():
            connection.execute(table.delete().where(_study_rows(table, study.study)))
        detail: dict[str, str | int] = {item: n for item, n in counts.items() if n}
        append_in(connection, AuditEntry("study-expired", study=study.study, detail=detail), when)

    targets.database.write(work, lock=f"study/{study.study}")
    targets.database.scrub(schema.members, schema.snapshot_removals, *_STUDY_TABLES.values())


def _forget_old(database: Database, when: datetime) -> None:
    """Delete uploads announced but never received, and expired nonces, as part of retention."""
    table = schema.uploads
    deletion = table.delete().where(table.c.started_at < to_timestamp(when - STALE_UPLOAD))
    database.write(lambda connection: connection.execute(deletion))
    forget_nonces(database, when)


def _stale_uploads(targets: RetentionTargets, when: datetime) -> list[Path]:
    if targets.folder is None or not targets.folder.is_dir():
        return []
    before = (when - STALE_UPLOAD).timestamp()
    return sorted(path for path in targets.folder.glob("*.part") if path.stat().st_mtime < before)
