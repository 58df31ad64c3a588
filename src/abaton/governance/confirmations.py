"""At a site: which consents the centre has confirmed, each with the receipt that it signed."""

from __future__ import annotations

import json
from datetime import datetime

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.audit import Entry, append_in
from abaton.governance.enrolling import Confirmed, read_confirmed
from abaton.governance.receipts import Find
from abaton.governance.refusals import Code, Denied
from abaton.governance.standing import subject_lock
from abaton.governance.statements import Statement
from abaton.store import Database


def is_confirmed(database: Database, subject: str, study: str, consent: str) -> bool:
    """Whether the centre has confirmed this very consent of a person, known by its fingerprint."""
    table = schema.acknowledged
    chosen = sql.select(table.c.consent).where(table.c.subject == subject, table.c.study == study)
    return database.read(lambda connection: connection.scalar(chosen)) == consent


def keep_confirmation(
    database: Database, asked: tuple[str, str, str], statement: Statement, find: Find, when: datetime
) -> Confirmed:
    """Check a confirmation and keep it; one for something else is refused.

    Args:
        database: The governance database of the site.
        asked: The person, the study and the fingerprint of the consent that was sent.
        statement: What the centre answered.
        find: The centre's signing key by its id.
        when: The time now.
    """
    confirmed = read_confirmed(statement, find)
    subject, study, consent = asked
    if (confirmed.subject, confirmed.study, confirmed.consent) != asked:
        raise Denied(Code.FORGED, "the confirmation is for something else", where="consent")
    row = {"subject": subject, "study": study, "consent": consent}

    def work(connection: sql.Connection) -> None:
        table = schema.acknowledged
        connection.execute(table.delete().where(table.c.subject == subject, table.c.study == study))
        connection.execute(table.insert().values(**row, receipt=json.dumps(statement, sort_keys=True)))
        append_in(connection, Entry("consent-confirmed", about=subject, study=study), when)

    database.write(work, lock=subject_lock(subject))
    return confirmed
