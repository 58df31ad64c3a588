"""The receiver's ledger: which numbers of which senders were used, so that nothing is taken in twice unnoticed."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.audit import Entry, append_in
from abaton.governance.refusals import Code, Denied
from abaton.governance.seal import Looked
from abaton.store import Database


def use_number(database: Database, looked: Looked, when: datetime, *, again: bool = False) -> None:
    """Enter an envelope's number in the ledger; a number that was used before is refused as a replay.

    Args:
        database: The governance database of the receiver.
        looked: The envelope, checked.
        when: The time now.
        again: Whether the very same envelope may be opened once more, as after a crash.
    """
    head, table = looked.header, schema.ledger
    key = {"sender": head.sender, "study": head.study, "sequence": head.sequence}

    def work(connection: sql.Connection) -> None:
        chosen = sql.select(table.c.digest).where(*(table.c[name] == value for name, value in key.items()))
        known = connection.scalar(chosen)
        if known is not None and not (again and known == looked.digest):
            raise Denied(Code.REPLAYED, "this sender has used this number already", where="ledger")
        if known is None:
            connection.execute(table.insert().values(**key, digest=looked.digest, receipt=""))
        entry = Entry(
            "envelope-opened", actor=head.sender, study=head.study, detail={"digest": looked.digest}
        )
        append_in(connection, entry, when)

    database.write(work, lock=f"ledger/{head.sender}/{head.study}")
