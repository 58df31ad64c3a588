"""The inbox of a research centre: sealed envelopes as they came, each with a signed receipt.

Invariants:
(1) records lie here sealed, as they were sent; the key that opens them need not be on this machine;
(2) an envelope is taken only from a known sender, for a published study and its current document, sealed to a key that
is still taken, about a person whose consent to sending is in force at that moment;
(3) a sender's number counts once: the same envelope again gets the same receipt, another one is a replay;
(4) the receipt is given when the envelope is on the disk and on the list, and not before;
(5) a deletion order is carried out once, uploads that are under way included, and nothing of that person is taken
afterwards without a new yes.
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

from abaton.canonical_json import digest as fingerprint
from abaton.governance import schema
from abaton.governance.audit_log import Audit, Entry, append_in
from abaton.governance.consent import Action, Ask, Reason
from abaton.governance.keys import PrivateKey, PublicRing, Ring
from abaton.governance.citizen_enrolment import Persons
from abaton.governance.consent_registry import Registry
from abaton.governance.sealed_envelope import (
    Looked,
    Pieces,
    look,
    opened,
    pieces_in,
    pieces_of,
    read_preamble,
    sync_folder,
)
from abaton.governance.senders import SenderRole, Senders, check_keeper
from abaton.governance.consent_status import said_yes_after, sending_in, study_in, subject_lock, withdraw_in
from abaton.governance.signed_statements import Order, Statement, read_order, write_deleted, write_receipt
from abaton.governance.identifiers import Denied, RefusalCode, first_moment, is_digest, stamp
from abaton.store import Database

MOST_BYTES = 1 << 30
GRACE = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Received:
    """An envelope on the list."""

    digest: str
    sender: str
    study: str
    sequence: int
    subject: str
    size: int
    received: str


class Inbox:
    """The inbox in a folder, with its list in a database.

    Args:
        folder: Where envelopes lie, named by their fingerprint.
        database: The governance database of the centre.
        ring: The centre's public keys, those that envelopes must be sealed to.
        signer: The key that signs receipts.
        grace: How long after a change of keys envelopes to the old key are still taken.
        most_bytes: The largest envelope.
    """

    def __init__(
        self,
        folder: Path,
        database: Database,
        ring: PublicRing,
        signer: PrivateKey,
        *,
        grace: timedelta = GRACE,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.folder, self.database, self.ring, self.signer = folder, database, ring, signer
        self.grace, self.most_bytes = grace, most_bytes
        self.senders, self.registry, self.audit = Senders(database), Registry(database), Audit(database)
        self.persons = Persons(database, signer)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    # uploads in parts

    def uploaded(self, digest: str) -> int:
        """How many bytes of an upload have arrived; an upload goes on from there."""
        try:
            return self._part(digest).stat().st_size
        except FileNotFoundError:
            return 0

    def add_part(self, digest: str, offset: int, data: bytes) -> int:
        """Add bytes to an upload at the place where it stands, and return how many there are now."""
        if offset + len(data) > self.most_bytes:
            self._part(digest).unlink(missing_ok=True)
            raise Denied(
                RefusalCode.TOO_LARGE, "the envelope is larger than this centre takes", where="upload"
            )
        with self._held(digest, os.O_RDWR | os.O_CREAT) as file:
            if offset != file.seek(0, os.SEEK_END):
                raise Denied(
                    RefusalCode.OUT_OF_STEP, "the part does not follow on what has arrived", where="upload"
                )
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return offset + len(data)

    def drop_part(self, digest: str) -> None:
        """Give an upload up."""
        self._part(digest).unlink(missing_ok=True)

    # envelopes

    def accept(self, digest: str, when: datetime, by: str = "") -> Statement:
        """Take a complete upload and return the receipt; whatever is refused is deleted and audited.

        Args:
            digest: The envelope's fingerprint.
            when: The time now.
            by: The key of whoever brings it, which must be the one that sealed it; empty if nobody asks.
        """
        settled = self._settled(digest)
        if settled is not None:
            self.path(digest)  # a crash may have come before the file was in its place
            self.drop_part(digest)
            return settled
        sender = ""
        try:
            with self._held(digest, os.O_RDWR) as file:
                looked = look(pieces_in(file), self._site)
                sender = looked.header.sender
                if by and sender != by:
                    raise Denied(
                        RefusalCode.FORGED, "the envelope is not by the one who brings it", where="upload"
                    )
                check_keeper(self.database, looked.header.subject, self._owner(sender))
                self.persons.check(self._owner(sender), looked.header.subject, looked.header.study)
                if looked.digest != digest:
                    raise Denied(
                        RefusalCode.TAMPERED, "the upload is not what it was announced as", where="upload"
                    )
                self.ring.accepts(looked.header.recipient, stamp(when - self.grace))
                receipt = self._take(looked, when)
                self.path(digest)
        except Denied as error:
            settled = self._settled(digest)
            if settled is not None:  # the same upload was completed by somebody else meanwhile
                return settled
            if error.code is not RefusalCode.TRUNCATED:  # the rest may still come
                self.drop_part(digest)
            self.audit.append(Entry("envelope-refused", error.code.value, actor=sender), when)
            raise
        return receipt

    def _take(self, looked: Looked, when: datetime) -> Statement:
        head, owner = looked.header, self._owner(looked.header.sender)

        def work(connection: sql.Connection) -> Statement:
            known = self._known(connection, looked)
            if known is not None:
                return known
            reason = self._reason(connection, looked, owner, when)
            if not reason.allows:
                raise Denied(
                    RefusalCode.NO_CONSENT, f"sending is not allowed: {reason.value}", reason=reason.value
                )
            receipt = write_receipt(self.signer, looked, when)
            key = {"sender": head.sender, "study": head.study, "sequence": head.sequence}
            row = {**key, "digest": looked.digest}
            text = json.dumps(receipt, sort_keys=True)
            connection.execute(schema.ledger.insert().values(**row, receipt=text))
            more = {"subject": head.subject, "size": looked.size, "received": stamp(when)}
            connection.execute(schema.inbox.insert().values(**row, **more))
            entry = Entry(
                "envelope-received",
                actor=head.sender,
                about=head.subject,
                study=head.study,
                detail={"digest": looked.digest, "size": looked.size},
            )
            append_in(connection, entry, when)
            return receipt

        return self.database.write(work, lock=subject_lock(head.subject))

    def _known(self, connection: sql.Connection, looked: Looked) -> Statement | None:
        head, table = looked.header, schema.ledger
        chosen = sql.select(table.c.digest, table.c.receipt).where(
            table.c.sender == head.sender, table.c.study == head.study, table.c.sequence == head.sequence
        )
        row = connection.execute(chosen).first()
        if row is None:
            return None
        if row.digest != looked.digest:
            raise Denied(RefusalCode.REPLAYED, "this sender has used this number already", where="upload")
        return _statement(row.receipt)

    def _reason(self, connection: sql.Connection, looked: Looked, owner: str, when: datetime) -> Reason:
        head = looked.header
        found = study_in(connection, head.study)
        if found is None:
            raise Denied(RefusalCode.WRONG_STUDY, "there is no such study here", where="upload")
        if found.document != head.document:
            raise Denied(RefusalCode.WRONG_DOCUMENT, "the study has another document now", where="upload")
        if not head.subject:
            return Reason.NO_SUBJECT
        reason = sending_in(connection, Ask(head.subject, head.study, head.document, Action.SEND), when)
        if reason.allows:  # whoever withdrew before has said yes again: a later order is a new one
            gone = _deletion(head.study, head.subject, owner)
            connection.execute(schema.deletions.delete().where(gone))
        return reason

    def delete(self, order_statement: object, when: datetime) -> Statement:
        """Carry out a signed deletion order and return the signed receipt; the same order again gets the same one."""
        signer: list[str] = []

        def find(key_id: str) -> Any:
            signer.append(key_id)
            key = self._site(key_id)
            return None if key is None else key.verify

        order = read_order(order_statement, find)
        receipt = self._carry_out(order, fingerprint(order_statement), signer[0], when)
        self.database.scrub(schema.inbox, schema.uploads)
        return receipt

    def delete_by_recovery(self, order_statement: object, when: datetime) -> Statement:
        """Carry out a deletion order that a person signed with the key on paper, on whatever device."""
        order, key = self.persons.by_recovery(order_statement)
        receipt = self._carry_out(order, fingerprint(order_statement), key, when)
        self.database.scrub(schema.inbox)
        return receipt

    def _carry_out(self, order: Order, ordered: str, key: str, when: datetime) -> Statement:
        """Delete what an order names of what the owner of a key has sent; whose signature it bears is known."""
        owner = self._owner(key)
        check_keeper(self.database, order.subject, owner)
        self.persons.check(owner, order.subject, order.study)
        return self.database.write(
            lambda connection: self._delete(connection, order, ordered, owner, key, when),
            lock=subject_lock(order.subject),
        )

    def _delete(
        self, connection: sql.Connection, order: Order, ordered: str, owner: str, key: str, when: datetime
    ) -> Statement:
        table, done = schema.inbox, schema.deletions
        gone = _deletion(order.study, order.subject, owner)
        known = connection.scalar(sql.select(done.c.receipt).where(gone))
        if known is not None and _statement(known)["body"].get("order") == ordered:
            return _statement(known)  # an order that was carried out before; another one is another no
        if said_yes_after(connection, order.subject, order.study, order.at):
            raise Denied(
                RefusalCode.REPLAYED, "the person has said yes again since this order", where="deletion order"
            )
        withdraw_in(connection, order.subject, order.study, when, said=first_moment(order.at))
        keys = sql.select(schema.sender_keys.c.key).where(schema.sender_keys.c.name == owner)
        theirs = (
            (table.c.study == order.study) & (table.c.subject == order.subject) & table.c.sender.in_(keys)
        )
        digests = list(connection.scalars(sql.select(table.c.digest).where(theirs)))
        for digest in digests:  # files first: a crash from here on only repeats this
            self._part(digest).unlink(missing_ok=True)
            (self.folder / digest).unlink(missing_ok=True)
        connection.execute(table.delete().where(theirs))
        self._drop_unfinished(connection, order, owner)
        receipt = write_deleted(self.signer, order, ordered, owner, len(digests), when)
        connection.execute(done.delete().where(gone))
        text = json.dumps(receipt, sort_keys=True)
        values = {"study": order.study, "subject": order.subject, "sender": owner}
        connection.execute(done.insert().values(**values, receipt=text))
        detail: dict[str, str | int] = {"records": len(digests)}
        entry = Entry("records-deleted", actor=key, about=order.subject, study=order.study, detail=detail)
        append_in(connection, entry, when)
        return receipt

    def _drop_unfinished(self, connection: sql.Connection, order: Order, owner: str) -> None:
        """Let go of a sender's uploads under way that are about the person, or do not say yet about whom they are."""
        table = schema.uploads
        for digest in list(connection.scalars(sql.select(table.c.digest).where(table.c.sender == owner))):
            part = self._part(digest)
            try:
                head = read_preamble(Pieces(pieces_of(part))).header if part.exists() else None
            except Denied:
                about = True
            else:
                about = head is not None and (head.study, head.subject) == (order.study, order.subject)
            if about:
                part.unlink(missing_ok=True)
                connection.execute(table.delete().where(table.c.digest == digest))

    def received(self, study: str) -> list[Received]:
        """The envelopes of a study, in the order in which they came."""
        table = schema.inbox
        chosen = sql.select(table).where(table.c.study == study).order_by(table.c.received, table.c.digest)
        rows = self.database.read(lambda connection: connection.execute(chosen).mappings().all())
        return [Received(**row) for row in rows]

    def path(self, digest: str) -> Path:
        """Where an envelope on the list lies; one whose upload was taken just before a crash is moved there now."""
        path = self.folder / _checked(digest)
        if not path.exists() and self._is_listed(digest):
            with contextlib.suppress(FileNotFoundError):
                self._part(digest).replace(path)
                sync_folder(self.folder)
        return path

    def _is_listed(self, digest: str) -> bool:
        chosen = sql.select(schema.inbox.c.digest).where(schema.inbox.c.digest == digest)
        return self.database.read(lambda connection: connection.scalar(chosen)) is not None

    def content(self, received: Received, ring: Ring) -> Iterator[bytes]:
        """The records in an envelope, for the holder of the centre's private keys; not to be used before its end."""
        stream = opened(pieces_of(self.path(received.digest)), ring, self._ever)
        return (piece for piece in stream if isinstance(piece, bytes))

    def settled(self, digest: str, sender: str) -> Statement | None:
        """The receipt of an envelope that a sender has brought before, if any."""
        table, keys = schema.ledger, schema.sender_keys
        theirs = sql.select(keys.c.key).where(keys.c.name == sender)
        chosen = sql.select(table.c.receipt).where(
            table.c.digest == _checked(digest), table.c.sender.in_(theirs)
        )
        found = self.database.read(lambda connection: connection.scalar(chosen))
        return _statement(found) if found else None

    def _settled(self, digest: str) -> Statement | None:
        chosen = sql.select(schema.ledger.c.receipt).where(schema.ledger.c.digest == _checked(digest))
        found = self.database.read(lambda connection: connection.scalar(chosen))
        return None if found is None else _statement(found)

    @contextlib.contextmanager
    def _held(self, digest: str, flags: int) -> Iterator[IO[bytes]]:
        """An upload that nobody else adds to or takes meanwhile; the same one may come twice at once."""
        path = self._part(digest)
        try:
            handle = os.open(path, flags | os.O_NOFOLLOW, 0o600)  # nobody's link leads a part elsewhere
        except FileNotFoundError:
            raise Denied(
                RefusalCode.NOT_FOUND, "nothing of this upload has arrived", where="upload"
            ) from None
        with os.fdopen(handle, "r+b") as file:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not _is_at(path, handle):
                raise Denied(
                    RefusalCode.NOT_FOUND, "the upload was completed or given up meanwhile", where="upload"
                )
            yield file

    def _part(self, digest: str) -> Path:
        return self.folder / f"{_checked(digest)}.part"

    def _owner(self, key_id: str) -> str:
        owner = self.senders.owner(key_id)
        return owner.name if owner else ""

    def _site(self, key_id: str) -> Any:
        return self.senders.signing(key_id, SenderRole.SITE, SenderRole.PERSON)

    def _ever(self, key_id: str) -> Any:
        owner = self.senders.owner(key_id)  # what was taken once stays readable after the sender changed keys
        return owner.ring.key(key_id) if owner else None


def _deletion(study: str, subject: str, sender: str) -> sql.ColumnElement[bool]:
    table = schema.deletions
    return (table.c.study == study) & (table.c.subject == subject) & (table.c.sender == sender)


def _is_at(path: Path, handle: int) -> bool:
    """Whether an open file still has this name; asked in one step, for it may go at any moment."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _checked(digest: str) -> str:
    if not is_digest(digest):  # it becomes the name of a file
        raise Denied(RefusalCode.MALFORMED, "an upload is named by its fingerprint", where="upload")
    return digest


def _statement(text: str) -> Statement:
    found: Statement = json.loads(text)
    return found


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
            raise Denied(RefusalCode.REPLAYED, "this sender has used this number already", where="ledger")
        if known is None:
            connection.execute(table.insert().values(**key, digest=looked.digest, receipt=""))
        entry = Entry(
            "envelope-opened", actor=head.sender, study=head.study, detail={"digest": looked.digest}
        )
        append_in(connection, entry, when)

    database.write(work, lock=f"ledger/{head.sender}/{head.study}")
