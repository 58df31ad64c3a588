"""Retention: what a study may no longer keep is found, told and deleted, by a command that can run every night.

A study that has ended is closed: nothing more is collected or used for it. A study whose time of keeping is over loses
everything, at the site and at the centre: envelopes, rows of the vault with their keys, consents, cohorts, finished
withdrawals and receipts about people, and with a person's last study their wish to be told of studies. What stays is
the study's document, the ledger of used numbers and the audit chain, which hold tags at most; withdrawals that are
still under way go on to their end. Uploads that nobody completed and keys that belong to no row are swept up. Doing it
again finds nothing left to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.audit_log import Entry, append_in
from abaton.governance.outbox import Outbox
from abaton.governance.consent_registry import Registry
from abaton.governance.senders import forget_nonces
from abaton.governance.consent_status import Published, in_chunks, newest_of, read_consent
from abaton.governance.vault import Vault
from abaton.governance.identifiers import moment, stamp
from abaton.store import Database

STALE_UPLOAD = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Due:
    """Something whose time is over: what it is, of which study, and how many of it there are."""

    what: str
    study: str
    count: int


@dataclass(frozen=True, slots=True)
class Holdings:
    """Where the things are that retention looks at.

    Args:
        database: The governance database.
        folder: The folder of the inbox, if there is one.
        outbox: The outbox, if there is one.
        vault: The mapping table, if there is one.
    """

    database: Database
    folder: Path | None = None
    outbox: Outbox | None = None
    vault: Vault | None = None


def due(holdings: Holdings, when: datetime) -> list[Due]:
    """What has to go at this moment; nothing is changed."""
    found: list[Due] = []
    for study in Registry(holdings.database).studies():
        if _is_over(study.ends, when) and not study.closed:
            found.append(Due("study-to-close", study.study, 1))
        if _is_over(study.keep_until, when):
            found += [Due(what, study.study, n) for what, n in _counts(holdings, study.study).items() if n]
    stale = _stale(holdings, when)
    return [*found, Due("stale-uploads", "", len(stale))] if stale else found


def enforce(holdings: Holdings, when: datetime) -> list[Due]:
    """Delete what has to go, and tell what was deleted; interrupted, the next time goes on."""
    listed = due(holdings, when)
    registry = Registry(holdings.database)
    for study in registry.studies():
        if _is_over(study.ends, when) or _is_over(study.keep_until, when):
            registry.close(study.study, when)
        if _is_over(study.keep_until, when) and any(_counts(holdings, study.study).values()):
            _empty(holdings, study, when)
    for path in _stale(holdings, when):
        path.unlink(missing_ok=True)
    _forget_old(holdings.database, when)
    if holdings.outbox is not None:
        holdings.outbox.sweep()  # files of envelopes that are no longer on the list
    if holdings.vault is not None:
        swept = holdings.vault.sweep()
        listed += [Due("orphan-row-keys", "", swept)] if swept else []
    return listed


def _is_over(text: str, when: datetime) -> bool:
    return bool(text) and when >= moment(text)


_OF_STUDY = {
    "received-envelopes": schema.inbox,
    "queued-envelopes": schema.outbox,
    "consents": schema.consents,
    "subjects": schema.subjects,
    "cohorts": schema.snapshots,
    "rounds": schema.rounds,
    "marks": schema.marks,
    "consents-from-forms": schema.form_consents,
    "confirmations": schema.acknowledged,
    "deletion-receipts": schema.deletions,
    "withdrawals": schema.withdrawals,
    "persons": schema.persons,
    "admission-codes": schema.admissions,
}


def _of(table: sql.Table, study: str) -> sql.ColumnElement[bool]:
    """The rows of a study that go; of withdrawals only those that are done."""
    ours = table.c.study == study
    return ours & (table.c.step == schema.DONE) if table is schema.withdrawals else ours


def _counts(holdings: Holdings, study: str) -> dict[str, int]:
    def work(connection: sql.Connection) -> dict[str, int]:
        return {
            what: int(connection.scalar(sql.select(sql.func.count()).where(_of(table, study))) or 0)
            for what, table in _OF_STUDY.items()
        }

    def wishes(connection: sql.Connection) -> int:
        return len(_last_wishes(connection, study))

    counted = holdings.database.read(work)
    counted["general-opt-ins"] = holdings.database.read(wishes)
    return counted | ({"vault-rows": holdings.vault.count(study)} if holdings.vault else {})


def _last_wishes(connection: sql.Connection, study: str) -> list[str]:
    """The people of a study, and of no other, who wish to be told of studies; a no to all of them stays."""
    table = schema.subjects
    others = sql.select(table.c.subject).where(table.c.study != study)
    chosen = sql.select(table.c.subject).where(table.c.study == study, table.c.subject.not_in(others))
    people = list(connection.scalars(chosen))
    wished = newest_of(connection, people, "")
    return sorted(who for who, text in wished.items() if read_consent(text).get("status") == "active")


def _empty(holdings: Holdings, study: Published, when: datetime) -> None:
    """Everything of a study: row keys first, then rows, files, lists."""
    if holdings.vault is not None:
        holdings.vault.destroy_study(study.study)
    counted = _counts(holdings, study.study)
    folder = holdings.folder

    def work(connection: sql.Connection) -> None:
        inbox, members, snapshots = schema.inbox, schema.members, schema.snapshots
        if folder is not None:
            for digest in connection.scalars(sql.select(inbox.c.digest).where(inbox.c.study == study.study)):
                (folder / digest).unlink(missing_ok=True)
                (folder / f"{digest}.part").unlink(missing_ok=True)
        ours = sql.select(snapshots.c.snapshot).where(snapshots.c.study == study.study)
        for table in (members, schema.leavers):
            connection.execute(table.delete().where(table.c.snapshot.in_(ours)))
        consents = schema.consents
        for some in in_chunks(_last_wishes(connection, study.study)):
            general = (consents.c.study == "") & consents.c.subject.in_(some)
            connection.execute(consents.delete().where(general))
        for table in _OF_STUDY.values():
            connection.execute(table.delete().where(_of(table, study.study)))
        detail: dict[str, str | int] = {what: n for what, n in counted.items() if n}
        append_in(connection, Entry("study-expired", study=study.study, detail=detail), when)

    holdings.database.write(work, lock=f"study/{study.study}")
    holdings.database.scrub(schema.members, schema.leavers, *_OF_STUDY.values())


def _forget_old(database: Database, when: datetime) -> None:
    """Announcements of uploads that never came, and nonces of requests that are too old to be taken again."""
    table = schema.uploads
    chosen = table.delete().where(table.c.begun < stamp(when - STALE_UPLOAD))
    database.write(lambda connection: connection.execute(chosen))
    forget_nonces(database, when)


def _stale(holdings: Holdings, when: datetime) -> list[Path]:
    if holdings.folder is None or not holdings.folder.is_dir():
        return []
    before = (when - STALE_UPLOAD).timestamp()
    return sorted(path for path in holdings.folder.glob("*.part") if path.stat().st_mtime < before)
