"""Inbox of the research centre: received envelopes, still sealed, each with a signed receipt.

Invariants:
(1) records stay sealed as sent; the opening key need not be on this machine;
(2) an envelope is accepted only from a registered sender, for a published study and its current document, sealed to an
accepted key, about a subject whose consent to sending is in force at that time;
(3) a sender's sequence number is used once: the same envelope gets the same receipt, another one is a replay;
(4) the receipt is issued after envelope and list entry are on disk;
(5) a deletion order is executed once, open uploads included, and nothing of the subject is accepted afterwards
without a new consent.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sql

from abaton.canonical_json import canonical_digest as fingerprint
from abaton.governance import schema
from abaton.governance.audit_log import AuditEntry, AuditLog, append_in
from abaton.governance.citizen_enrolment import CitizenRegistry
from abaton.governance.consent import ConsentAction, ConsentQuery, DenialReason
from abaton.governance.consent_registry import ConsentRegistry
from abaton.governance.consent_status import (
    consented_after,
    sending_decision_in,
    study_in,
    subject_lock,
    withdraw_consent_in,
)
from abaton.governance.envelope_format import FrameReader, read_preamble
from abaton.governance.identifiers import is_digest
from abaton.governance.keys import KeySet, PrivateKey, PublicKeySet
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.governance.sealed_envelope import (
    EnvelopeInfo,
    inspect_envelope,
    open_envelope,
    pieces_in,
    pieces_of,
    sync_folder,
)
from abaton.governance.senders import SenderRegistry, SenderRole, check_custodian
from abaton.governance.signed_statements import (
    DeletionOrder,
    Statement,
    read_order,
    write_deletion_receipt,
    write_receipt,
)
from abaton.governance.timestamps import earliest_time, to_timestamp
from abaton.store import Database

MAX_ENVELOPE_BYTES = 1 << 30
GRACE = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class ReceivedEnvelope:
    """List entry of a received envelope."""

    digest: str
    sender: str
    study: str
    sequence: int
    subject: str
    size: int
    received_at: str


class Inbox:
    """Inbox in a folder, with its list in a database.

    Args:
        folder: Folder of the envelopes, named by digest.
        database: Governance database of the centre.
        key_set: Public keys of the centre that envelopes must be sealed to.
        signer: Key that signs receipts.
        grace: Period after a key rotation in which envelopes to the old key are accepted.
        max_bytes: Largest envelope.
    """

    def __init__(
        self,
        folder: Path,
        database: Database,
        key_set: PublicKeySet,
        signer: PrivateKey,
        *,
        grace: timedelta = GRACE,
        max_bytes: int = MAX_ENVELOPE_BYTES,
    ) -> None:
        self.folder, self.database, self.key_set, self.signer = folder, database, key_set, signer
        self.grace, self.max_bytes = grace, max_bytes
        self.senders, self.registry, self.audit = (
            SenderRegistry(database),
            ConsentRegistry(database),
            AuditLog(database),
        )
        self.citizens = CitizenRegistry(database, signer)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    # uploads

    def received_bytes(self, digest: str) -> int:
        """Return the number of received bytes of an upload to the inbox, at which it resumes."""
        try:
            return self._partial_path(digest).stat().st_size
        except FileNotFoundError:
            return 0

    def append_chunk(self, digest: str, offset: int, data: bytes) -> int:
        """Append bytes to an upload in the inbox at its current end and return the new size."""
        if offset + len(data) > self.max_bytes:
            self._partial_path(digest).unlink(missing_ok=True)
            raise DeniedError(
                RefusalCode.TOO_LARGE, f"the envelope is larger than {self.max_bytes} bytes", where="upload"
            )
        with self._locked_upload(digest, os.O_RDWR | os.O_CREAT) as file:
            if offset != file.seek(0, os.SEEK_END):
                raise DeniedError(
                    RefusalCode.OFFSET_MISMATCH,
                    "the chunk does not start at the end of the received bytes",
                    where="upload",
                )
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return offset + len(data)

    def discard_upload(self, digest: str) -> None:
        """Delete an incomplete upload from the inbox."""
        self._partial_path(digest).unlink(missing_ok=True)

    # envelopes

    def accept(self, digest: str, when: datetime, caller_key: str = "") -> Statement:
        """Verify a complete upload to the inbox and return the receipt; a refused one is deleted and audited.

        Args:
            digest: Digest of the envelope.
            when: The current time.
            caller_key: Key of the caller, which must have sealed the envelope; empty to skip this check.
        """
        earlier_receipt = self._receipt(digest)
        if earlier_receipt is not None:
            self.path(digest)  # complete a move that a crash interrupted
            self.discard_upload(digest)
            return earlier_receipt
        sender = ""
        try:
            with self._locked_upload(digest, os.O_RDWR) as file:
                info = inspect_envelope(pieces_in(file), self._sender_key)
                sender = info.header.sender
                if caller_key and sender != caller_key:
                    raise DeniedError(
                        RefusalCode.FORGED,
                        "the envelope is signed by another key than the request",
                        where="upload",
                    )
                check_custodian(self.database, info.header.subject, self._owner(sender))
                self.citizens.check_subject(self._owner(sender), info.header.subject, info.header.study)
                if info.digest != digest:
                    raise DeniedError(
                        RefusalCode.TAMPERED, "the upload differs from its announced digest", where="upload"
                    )
                self.key_set.accepted_sealing_key(info.header.recipient, to_timestamp(when - self.grace))
                receipt = self._store(info, when)
                self.path(digest)
        except DeniedError as error:
            earlier_receipt = self._receipt(digest)
            if earlier_receipt is not None:  # a concurrent request completed the same upload
                return earlier_receipt
            if error.code is not RefusalCode.TRUNCATED:  # the remaining bytes may follow
                self.discard_upload(digest)
            self.audit.append(AuditEntry("envelope-refused", error.code.value, actor=sender), when)
            raise
        return receipt

    def _store(self, info: EnvelopeInfo, when: datetime) -> Statement:
        header, owner = info.header, self._owner(info.header.sender)

        def work(connection: sql.Connection) -> Statement:
            earlier = self._earlier_receipt(connection, info)
            if earlier is not None:
                return earlier
            reason = self._decision(connection, info, owner, when)
            if not reason.permits:
                raise DeniedError(
                    RefusalCode.NO_CONSENT, f"sending is not allowed: {reason.value}", reason=reason.value
                )
            receipt = write_receipt(self.signer, info, when)
            key = {"sender": header.sender, "study": header.study, "sequence": header.sequence}
            row = {**key, "digest": info.digest}
            text = json.dumps(receipt, sort_keys=True)
            connection.execute(schema.received_sequences.insert().values(**row, receipt=text))
            details = {"subject": header.subject, "size": info.size, "received_at": to_timestamp(when)}
            connection.execute(schema.inbox.insert().values(**row, **details))
            entry = AuditEntry(
                "envelope-received",
                actor=header.sender,
                subject=header.subject,
                study=header.study,
                detail={"digest": info.digest, "size": info.size},
            )
            append_in(connection, entry, when)
            return receipt

        return self.database.write(work, lock=subject_lock(header.subject))

    def _earlier_receipt(self, connection: sql.Connection, info: EnvelopeInfo) -> Statement | None:
        header, table = info.header, schema.received_sequences
        selection = sql.select(table.c.digest, table.c.receipt).where(
            table.c.sender == header.sender,
            table.c.study == header.study,
            table.c.sequence == header.sequence,
        )
        row = connection.execute(selection).first()
        if row is None:
            return None
        if row.digest != info.digest:
            raise DeniedError(
                RefusalCode.REPLAYED, "the sender has used this sequence number already", where="upload"
            )
        return _parse_statement(row.receipt)

    def _decision(
        self, connection: sql.Connection, info: EnvelopeInfo, owner: str, when: datetime
    ) -> DenialReason:
        header = info.header
        published = study_in(connection, header.study)
        if published is None:
            raise DeniedError(RefusalCode.WRONG_STUDY, "the study is not published here", where="upload")
        if published.document != header.document:
            raise DeniedError(
                RefusalCode.WRONG_DOCUMENT,
                "the envelope refers to another version of the study document",
                where="upload",
            )
        if not header.subject:
            return DenialReason.NO_SUBJECT
        reason = sending_decision_in(
            connection, ConsentQuery(header.subject, header.study, header.document, ConsentAction.SEND), when
        )
        if reason.permits:  # after a new consent, a later deletion order is a new order
            deletion = _deletion_row(header.study, header.subject, owner)
            connection.execute(schema.deletions.delete().where(deletion))
        return reason

    def delete(self, order_statement: object, when: datetime) -> Statement:
        """Execute a signed deletion order on the inbox; a repeated order gets the same signed receipt."""
        signer: list[str] = []

        def find(key_id: str) -> Any:
            signer.append(key_id)
            key = self._sender_key(key_id)
            return None if key is None else key.verify

        order = read_order(order_statement, find)
        receipt = self._execute_order(order, fingerprint(order_statement), signer[0], when)
        self.database.scrub(schema.inbox, schema.uploads)
        return receipt

    def delete_by_recovery(self, order_statement: object, when: datetime) -> Statement:
        """Execute a deletion order on the inbox that is signed with a citizen's recovery key, from any device."""
        order, key = self.citizens.read_recovery_order(order_statement)
        receipt = self._execute_order(order, fingerprint(order_statement), key, when)
        self.database.scrub(schema.inbox)
        return receipt

    def _execute_order(self, order: DeletionOrder, order_digest: str, key: str, when: datetime) -> Statement:
        """Delete from the inbox what the owner of a verified key has sent about the subject of an order."""
        owner = self._owner(key)
        check_custodian(self.database, order.subject, owner)
        self.citizens.check_subject(owner, order.subject, order.study)
        return self.database.write(
            lambda connection: self._delete(connection, order, order_digest, owner, key, when),
            lock=subject_lock(order.subject),
        )

    def _delete(
        self,
        connection: sql.Connection,
        order: DeletionOrder,
        order_digest: str,
        owner: str,
        key: str,
        when: datetime,
    ) -> Statement:
        table, deletions = schema.inbox, schema.deletions
        deletion = _deletion_row(order.study, order.subject, owner)
        earlier = connection.scalar(sql.select(deletions.c.receipt).where(deletion))
        if earlier is not None and _parse_statement(earlier)["body"].get("order") == order_digest:
            return _parse_statement(earlier)  # already executed; another order is another withdrawal
        if consented_after(connection, order.subject, order.study, order.at):
            raise DeniedError(
                RefusalCode.REPLAYED, "the subject consented again after this order", where="deletion order"
            )
        withdraw_consent_in(
            connection, order.subject, order.study, when, withdrawn_at=earliest_time(order.at)
        )
        keys = sql.select(schema.sender_keys.c.key).where(schema.sender_keys.c.name == owner)
        sender_rows = (
            (table.c.study == order.study) & (table.c.subject == order.subject) & table.c.sender.in_(keys)
        )
        digests = list(connection.scalars(sql.select(table.c.digest).where(sender_rows)))
        for digest in digests:  # files first: after a crash this step is repeated
            self._partial_path(digest).unlink(missing_ok=True)
            (self.folder / digest).unlink(missing_ok=True)
        connection.execute(table.delete().where(sender_rows))
        self._discard_open_uploads(connection, order, owner)
        receipt = write_deletion_receipt(self.signer, order, order_digest, owner, len(digests), when)
        connection.execute(deletions.delete().where(deletion))
        text = json.dumps(receipt, sort_keys=True)
        values = {"study": order.study, "subject": order.subject, "sender": owner}
        connection.execute(deletions.insert().values(**values, receipt=text))
        detail: dict[str, str | int] = {"records": len(digests)}
        entry = AuditEntry(
            "records-deleted", actor=key, subject=order.subject, study=order.study, detail=detail
        )
        append_in(connection, entry, when)
        return receipt

    def _discard_open_uploads(self, connection: sql.Connection, order: DeletionOrder, owner: str) -> None:
        """Delete the sender's open inbox uploads about the subject, and those whose subject is not known yet."""
        table = schema.uploads
        for digest in list(connection.scalars(sql.select(table.c.digest).where(table.c.sender == owner))):
            path = self._partial_path(digest)
            try:
                header = read_preamble(FrameReader(pieces_of(path))).header if path.exists() else None
            except DeniedError:
                is_of_subject = True
            else:
                is_of_subject = header is not None and (header.study, header.subject) == (
                    order.study,
                    order.subject,
                )
            if is_of_subject:
                path.unlink(missing_ok=True)
                connection.execute(table.delete().where(table.c.digest == digest))

    def received(self, study: str) -> list[ReceivedEnvelope]:
        """Return the envelopes of a study in the inbox, in order of arrival."""
        table = schema.inbox
        selection = (
            sql.select(table).where(table.c.study == study).order_by(table.c.received_at, table.c.digest)
        )
        rows = self.database.read(lambda connection: connection.execute(selection).mappings().all())
        return [ReceivedEnvelope(**row) for row in rows]

    def path(self, digest: str) -> Path:
        """Return the path of an envelope listed in the inbox; completes the move if a crash interrupted it."""
        path = self.folder / _checked_digest(digest)
        if not path.exists() and self._is_listed(digest):
            with contextlib.suppress(FileNotFoundError):
                self._partial_path(digest).replace(path)
                sync_folder(self.folder)
        return path

    def _is_listed(self, digest: str) -> bool:
        selection = sql.select(schema.inbox.c.digest).where(schema.inbox.c.digest == digest)
        return self.database.read(lambda connection: connection.scalar(selection)) is not None

    def open_content(self, envelope: ReceivedEnvelope, key_set: KeySet) -> Iterator[bytes]:
        """Yield the records of an envelope in the inbox, given the centre's keys; use nothing before the end."""
        stream = open_envelope(pieces_of(self.path(envelope.digest)), key_set, self._any_sender_key)
        return (piece for piece in stream if isinstance(piece, bytes))

    def receipt_of(self, digest: str, sender: str) -> Statement | None:
        """Return the receipt of an envelope that the sender has sent to the inbox before, if any."""
        table, keys = schema.received_sequences, schema.sender_keys
        sender_key_ids = sql.select(keys.c.key).where(keys.c.name == sender)
        selection = sql.select(table.c.receipt).where(
            table.c.digest == _checked_digest(digest), table.c.sender.in_(sender_key_ids)
        )
        text = self.database.read(lambda connection: connection.scalar(selection))
        return _parse_statement(text) if text else None

    def _receipt(self, digest: str) -> Statement | None:
        selection = sql.select(schema.received_sequences.c.receipt).where(
            schema.received_sequences.c.digest == _checked_digest(digest)
        )
        text = self.database.read(lambda connection: connection.scalar(selection))
        return None if text is None else _parse_statement(text)

    @contextlib.contextmanager
    def _locked_upload(self, digest: str, flags: int) -> Iterator[IO[bytes]]:
        """Open an upload in the inbox under an exclusive lock, since the same upload may arrive twice at once."""
        path = self._partial_path(digest)
        try:
            handle = os.open(path, flags | os.O_NOFOLLOW, 0o600)  # do not follow symbolic links
        except FileNotFoundError:
            raise DeniedError(
                RefusalCode.NOT_FOUND, "no bytes of this upload were received", where="upload"
            ) from None
        with os.fdopen(handle, "r+b") as file:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not _is_same_file(path, handle):
                raise DeniedError(
                    RefusalCode.NOT_FOUND,
                    "the upload was completed or abandoned concurrently",
                    where="upload",
                )
            yield file

    def _partial_path(self, digest: str) -> Path:
        return self.folder / f"{_checked_digest(digest)}.part"

    def _owner(self, key_id: str) -> str:
        owner = self.senders.owner(key_id)
        return owner.name if owner else ""

    def _sender_key(self, key_id: str) -> Any:
        return self.senders.signing_key(key_id, SenderRole.SITE, SenderRole.CITIZEN)

    def _any_sender_key(self, key_id: str) -> Any:
        owner = self.senders.owner(key_id)  # accepted envelopes stay readable after the sender rotates keys
        return owner.key_set.key(key_id) if owner else None


def _deletion_row(study: str, subject: str, sender: str) -> sql.ColumnElement[bool]:
    table = schema.deletions
    return (table.c.study == study) & (table.c.subject == subject) & (table.c.sender == sender)


def _is_same_file(path: Path, handle: int) -> bool:
    """Return whether an open inbox upload still has this file name; it may be removed at any time."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _checked_digest(digest: str) -> str:
    if not is_digest(digest):  # it becomes a file name
        raise DeniedError(
            RefusalCode.MALFORMED,
            "an upload is identified by a SHA-256 digest in hexadecimal",
            where="upload",
        )
    return digest


def _parse_statement(text: str) -> Statement:
    statement: Statement = json.loads(text)
    return statement


def record_sequence(
    database: Database, info: EnvelopeInfo, when: datetime, *, allow_reopen: bool = False
) -> None:
    """Record the sequence number of an envelope in the inbox; a used number is refused as a replay.

    Args:
        database: Governance database of the recipient.
        info: The verified envelope.
        when: The current time.
        allow_reopen: Whether the same envelope may be opened again, as after a crash.
    """
    header, table = info.header, schema.received_sequences
    key = {"sender": header.sender, "study": header.study, "sequence": header.sequence}

    def work(connection: sql.Connection) -> None:
        selection = sql.select(table.c.digest).where(*(table.c[name] == value for name, value in key.items()))
        known_digest = connection.scalar(selection)
        if known_digest is not None and not (allow_reopen and known_digest == info.digest):
            raise DeniedError(
                RefusalCode.REPLAYED, "the sender has used this sequence number already", where="envelope"
            )
        if known_digest is None:
            connection.execute(table.insert().values(**key, digest=info.digest, receipt=""))
        entry = AuditEntry(
            "envelope-opened", actor=header.sender, study=header.study, detail={"digest": info.digest}
        )
        append_in(connection, entry, when)

    database.write(work, lock=f"received_sequences/{header.sender}/{header.study}")
