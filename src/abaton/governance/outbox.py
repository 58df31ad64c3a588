"""The outbox of a site: sealed envelopes that wait for a receipt.

Invariants:
(1) an envelope holds the records of one person, so that one person's withdrawal can take it back;
(2) a number is used once, also after a crash and after a deletion;
(3) nothing is queued for a person whose consent to sending is not in force at that moment;
(4) once the centre's receipt is in, the local copy is deleted and the receipt stays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import sqlalchemy as sql

from abaton.errors import SettingsError
from abaton.governance import schema
from abaton.governance.audit_log import Entry, append_in
from abaton.governance.consent import Action, Ask
from abaton.governance.keys import PrivateKey, PublicKey
from abaton.governance.sealed_envelope import Header, look, pieces_of, seal_file
from abaton.governance.consent_status import sending_in, subject_lock
from abaton.governance.signed_statements import Find, Receipt, Statement, read_receipt
from abaton.governance.identifiers import Denied, RefusalCode, is_tag, stamp
from abaton.store import Database


@dataclass(frozen=True, slots=True)
class Queued:
    """An envelope in the outbox."""

    study: str
    sequence: int
    subject: str
    digest: str
    size: int
    created: str
    content: str
    receipt: str


class Outbox:
    """The outbox in a folder, with its list in a database."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder, self.database = folder, database
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def put(
        self,
        ask: Ask,
        content: Iterable[bytes],
        signer: PrivateKey,
        recipient: PublicKey,
        when: datetime,
        draw: Callable[[int], bytes],
    ) -> Queued:
        """Seal a person's records for a study and queue them; refused unless consent to sending is in force.

        Args:
            ask: The person, the study and the fingerprint of its document.
            content: The de-identified records.
            signer: The site's signing key.
            recipient: The research centre's sealing key.
            when: The time now.
            draw: A source of random bytes.
        """
        if not is_tag(ask.subject):
            raise SettingsError("an envelope belongs to one person's tag", remedy="seal person by person")
        sequence = self.database.write(
            lambda connection: _next(connection, ask.study), lock=f"outbox/{ask.study}"
        )
        header = Header(ask.study, ask.document, signer.id, recipient.id, sequence, ask.subject, stamp(when))
        path, inside = self._path(ask.study, sequence), hashlib.sha256()
        seal_file(_noted(content, inside), path, header, signer, recipient, draw(32))
        looked = look(pieces_of(path), {signer.id: signer.public}.get)
        size, told = looked.size, inside.hexdigest()
        row = Queued(ask.study, sequence, ask.subject, looked.digest, size, stamp(when), told, "")
        sending = Ask(ask.subject, ask.study, ask.document, Action.SEND)

        def work(connection: sql.Connection) -> None:
            reason = sending_in(connection, sending, when)
            if not reason.allows:
                raise Denied(
                    RefusalCode.NO_CONSENT, f"sending is not allowed: {reason.value}", reason=reason.value
                )
            connection.execute(schema.outbox.insert().values(**{f: getattr(row, f) for f in row.__slots__}))
            entry = Entry(
                "envelope-queued", about=ask.subject, study=ask.study, detail={"digest": row.digest}
            )
            append_in(connection, entry, when)

        try:
            self.database.write(work, lock=subject_lock(ask.subject))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return row

    def has(self, study: str, subject: str, content: str) -> bool:
        """Whether the newest envelope of a person in a study holds this content already, sent or not."""
        table = schema.outbox
        chosen = sql.select(table.c.content).where(table.c.study == study, table.c.subject == subject)
        newest = chosen.order_by(table.c.sequence.desc()).limit(1)
        return self.database.read(lambda connection: connection.scalar(newest)) == content

    def waiting(self) -> list[Queued]:
        """The envelopes without a receipt, the oldest first."""
        return self._rows(schema.outbox.c.receipt == "")

    def all(self) -> list[Queued]:
        """Every envelope on the list, sent or not."""
        return self._rows(sql.true())

    def path(self, queued: Queued) -> Path:
        """Where an envelope lies until its receipt is in."""
        return self._path(queued.study, queued.sequence)

    def settle(self, queued: Queued, statement: Statement, find: Find, when: datetime) -> Receipt:
        """Take in the centre's receipt, then delete the local copy. Doing it twice is doing it once."""
        receipt = read_receipt(statement, find)
        same = (receipt.study, receipt.sequence, receipt.digest, receipt.size)
        if same != (queued.study, queued.sequence, queued.digest, queued.size):
            raise Denied(RefusalCode.FORGED, "the receipt is for something else", where="receipt")

        def work(connection: sql.Connection) -> None:
            table = schema.outbox
            chosen = table.update().where(
                table.c.study == queued.study, table.c.sequence == queued.sequence, table.c.receipt == ""
            )
            if connection.execute(chosen.values(receipt=json.dumps(statement, sort_keys=True))).rowcount:
                detail = {"digest": queued.digest}
                entry = Entry("receipt-kept", about=queued.subject, study=queued.study, detail=detail)
                append_in(connection, entry, when)

        self.database.write(work, lock=subject_lock(queued.subject))
        self.path(queued).unlink(missing_ok=True)
        return receipt

    def forget(self, study: str, subject: str) -> int:
        """Delete everything of a person in a study: files first, then the list. How many were on the list."""
        chosen = (schema.outbox.c.study == study) & (schema.outbox.c.subject == subject)

        def work(connection: sql.Connection) -> int:
            rows = connection.execute(sql.select(schema.outbox).where(chosen)).all()
            for row in rows:
                self._path(row.study, row.sequence).unlink(missing_ok=True)
            connection.execute(schema.outbox.delete().where(chosen))
            return len(rows)

        count = self.database.write(work, lock=subject_lock(subject))
        self.database.scrub(schema.outbox)  # also when a crash came between this and the deletion
        return count

    def sweep(self) -> int:
        """Delete files that a crash left behind before they were listed, or after they were settled."""
        kept = {self.path(queued).name for queued in self.waiting()}
        left = [path for path in self.folder.iterdir() if path.name not in kept]
        for path in left:
            path.unlink(missing_ok=True)
        return len(left)

    def _path(self, study: str, sequence: int) -> Path:
        # A study's name may hold anything, so it never becomes part of a path.
        return self.folder / f"{hashlib.sha256(study.encode()).hexdigest()[:16]}-{sequence}.sealed"

    def _rows(self, chosen: sql.ColumnElement[bool]) -> list[Queued]:
        table = schema.outbox
        ordered = sql.select(table).where(chosen).order_by(table.c.study, table.c.sequence)
        rows = self.database.read(lambda connection: connection.execute(ordered).mappings().all())
        return [Queued(**row) for row in rows]


def _noted(content: Iterable[bytes], inside: hashlib._Hash) -> Iterator[bytes]:
    for piece in content:
        inside.update(piece)
        yield piece


def _next(connection: sql.Connection, study: str) -> int:
    table = schema.counters
    last = connection.scalar(sql.select(table.c.last).where(table.c.study == study))
    if last is None:
        connection.execute(table.insert().values(study=study, last=1))
        return 1
    connection.execute(table.update().where(table.c.study == study).values(last=last + 1))
    return int(last) + 1
