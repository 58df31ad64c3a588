"""Outbox of a site: sealed envelopes that wait for a receipt.

Invariants:
(1) an envelope contains the records of one subject, so that a withdrawal can delete it;
(2) a sequence number is used once, also after a crash or a deletion;
(3) nothing is queued for a subject whose consent to sending is not in force at that time;
(4) after the centre's receipt the local copy is deleted and the receipt stays.
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
from abaton.governance.audit_log import AuditEntry, append_in
from abaton.governance.consent import ConsentAction, ConsentQuery
from abaton.governance.consent_status import sending_decision_in, subject_lock
from abaton.governance.envelope_format import EnvelopeHeader
from abaton.governance.identifiers import is_pseudonym
from abaton.governance.keys import PrivateKey, PublicKey
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.governance.sealed_envelope import inspect_envelope, pieces_of, seal_file
from abaton.governance.signed_statements import Find, Statement, TransferReceipt, read_receipt
from abaton.governance.timestamps import to_timestamp
from abaton.store import Database


@dataclass(frozen=True, slots=True)
class QueuedEnvelope:
    """List entry of an envelope in the outbox."""

    study: str
    sequence: int
    subject: str
    digest: str
    size: int
    created: str
    content_digest: str
    receipt: str


class Outbox:
    """Outbox in a folder, with its list in a database."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder, self.database = folder, database
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def put(
        self,
        query: ConsentQuery,
        content: Iterable[bytes],
        signer: PrivateKey,
        recipient: PublicKey,
        when: datetime,
        random_bytes: Callable[[int], bytes],
    ) -> QueuedEnvelope:
        """Seal a subject's records and queue them in the outbox; refused unless consent to sending is in force.

        Args:
            query: Subject, study and digest of the study document.
            content: The de-identified records.
            signer: Signing key of the site.
            recipient: Sealing key of the centre.
            when: The current time.
            random_bytes: Source of random bytes.
        """
        if not is_pseudonym(query.subject):
            raise SettingsError(
                "an envelope needs the pseudonym of one subject",
                remedy="seal each subject's records separately",
            )
        sequence = self.database.write(
            lambda connection: _next_sequence(connection, query.study), lock=f"outbox/{query.study}"
        )
        header = EnvelopeHeader(
            query.study, query.document, signer.id, recipient.id, sequence, query.subject, to_timestamp(when)
        )
        path, content_hash = self._path(query.study, sequence), hashlib.sha256()
        seal_file(
            _hash_while_reading(content, content_hash), path, header, signer, recipient, random_bytes(32)
        )
        info = inspect_envelope(pieces_of(path), {signer.id: signer.public}.get)
        size, content_digest = info.size, content_hash.hexdigest()
        row = QueuedEnvelope(
            query.study, sequence, query.subject, info.digest, size, to_timestamp(when), content_digest, ""
        )
        sending_query = ConsentQuery(query.subject, query.study, query.document, ConsentAction.SEND)

        def work(connection: sql.Connection) -> None:
            reason = sending_decision_in(connection, sending_query, when)
            if not reason.permits:
                raise DeniedError(
                    RefusalCode.NO_CONSENT, f"sending is not allowed: {reason.value}", reason=reason.value
                )
            connection.execute(schema.outbox.insert().values(**{f: getattr(row, f) for f in row.__slots__}))
            entry = AuditEntry(
                "envelope-queued", subject=query.subject, study=query.study, detail={"digest": row.digest}
            )
            append_in(connection, entry, when)

        try:
            self.database.write(work, lock=subject_lock(query.subject))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return row

    def has_content(self, study: str, subject: str, content_digest: str) -> bool:
        """Return whether the subject's latest envelope of a study in the outbox has this content, sent or not."""
        table = schema.outbox
        selection = sql.select(table.c.content_digest).where(
            table.c.study == study, table.c.subject == subject
        )
        latest = selection.order_by(table.c.sequence.desc()).limit(1)
        return self.database.read(lambda connection: connection.scalar(latest)) == content_digest

    def waiting(self) -> list[QueuedEnvelope]:
        """Return the envelopes in the outbox without a receipt, oldest first."""
        return self._rows(schema.outbox.c.receipt == "")

    def all(self) -> list[QueuedEnvelope]:
        """Return all envelopes listed in the outbox, sent or not."""
        return self._rows(sql.true())

    def path(self, queued: QueuedEnvelope) -> Path:
        """Return the path of an envelope in the outbox until its receipt is stored."""
        return self._path(queued.study, queued.sequence)

    def store_receipt(
        self, queued: QueuedEnvelope, statement: Statement, find: Find, when: datetime
    ) -> TransferReceipt:
        """Verify and store the centre's receipt in the outbox, then delete the local envelope; idempotent."""
        receipt = read_receipt(statement, find)
        same = (receipt.study, receipt.sequence, receipt.digest, receipt.size)
        if same != (queued.study, queued.sequence, queued.digest, queued.size):
            raise DeniedError(RefusalCode.FORGED, "the receipt refers to another envelope", where="receipt")

        def work(connection: sql.Connection) -> None:
            table = schema.outbox
            update = table.update().where(
                table.c.study == queued.study, table.c.sequence == queued.sequence, table.c.receipt == ""
            )
            if connection.execute(update.values(receipt=json.dumps(statement, sort_keys=True))).rowcount:
                detail = {"digest": queued.digest}
                entry = AuditEntry(
                    "receipt-stored", subject=queued.subject, study=queued.study, detail=detail
                )
                append_in(connection, entry, when)

        self.database.write(work, lock=subject_lock(queued.subject))
        self.path(queued).unlink(missing_ok=True)
        return receipt

    def delete_subject(self, study: str, subject: str) -> int:
        """Delete a subject's envelopes of a study from the outbox, files first; return the number of list entries."""
        condition = (schema.outbox.c.study == study) & (schema.outbox.c.subject == subject)

        def work(connection: sql.Connection) -> int:
            rows = connection.execute(sql.select(schema.outbox).where(condition)).all()
            for row in rows:
                self._path(row.study, row.sequence).unlink(missing_ok=True)
            connection.execute(schema.outbox.delete().where(condition))
            return len(rows)

        count = self.database.write(work, lock=subject_lock(subject))
        self.database.scrub(schema.outbox)  # also after a crash between deletion and scrubbing
        return count

    def sweep(self) -> int:
        """Delete outbox files left by a crash before listing or after the receipt."""
        waiting_names = {self.path(queued).name for queued in self.waiting()}
        stale = [path for path in self.folder.iterdir() if path.name not in waiting_names]
        for path in stale:
            path.unlink(missing_ok=True)
        return len(stale)

    def _path(self, study: str, sequence: int) -> Path:
        # A study identifier may contain any character, so it is not part of a path.

        return self.folder / f"{hashlib.sha256(study.encode()).hexdigest()[:16]}-{sequence}.sealed"

    def _rows(self, condition: sql.ColumnElement[bool]) -> list[QueuedEnvelope]:
        table = schema.outbox
        ordered = sql.select(table).where(condition).order_by(table.c.study, table.c.sequence)
        rows = self.database.read(lambda connection: connection.execute(ordered).mappings().all())
        return [QueuedEnvelope(**row) for row in rows]


def _hash_while_reading(content: Iterable[bytes], content_hash: hashlib._Hash) -> Iterator[bytes]:
    for piece in content:
        content_hash.update(piece)
        yield piece


def _next_sequence(connection: sql.Connection, study: str) -> int:
    table = schema.counters
    last = connection.scalar(sql.select(table.c.last).where(table.c.study == study))
    if last is None:
        connection.execute(table.insert().values(study=study, last=1))
        return 1
    connection.execute(table.update().where(table.c.study == study).values(last=last + 1))
    return int(last) + 1
