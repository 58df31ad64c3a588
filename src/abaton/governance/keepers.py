"""Who speaks for a person at the centre: the sender who brought the first consent, and nobody else.

A site knows its people by tags that only it can make, but tags can be read on the outside of envelopes. Without this
list a second site could withdraw, or send in the name of, somebody it has merely seen.
"""

from __future__ import annotations

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.refusals import Code, Denied
from abaton.store import Database, insert_new


def claim_in(connection: sql.Connection, subject: str, sender: str) -> None:
    """Speak for a person from now on; refused if somebody else does already."""
    insert_new(connection, schema.keepers, [{"subject": subject, "sender": sender}])
    _check(connection, subject, sender)


def check_keeper(database: Database, subject: str, sender: str) -> None:
    """Refuse a sender who is not the one that speaks for a person; whom nobody has claimed anybody may bring."""
    database.read(lambda connection: _check(connection, subject, sender))


def _check(connection: sql.Connection, subject: str, sender: str) -> None:
    chosen = sql.select(schema.keepers.c.sender).where(schema.keepers.c.subject == subject)
    keeper = connection.scalar(chosen)
    if keeper is not None and keeper != sender:
        raise Denied(Code.NOT_YOURS, "another sender speaks for this person", where="subject")
