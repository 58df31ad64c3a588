"""State of the intake service: inbox, uploads, limits and clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.http_signatures import (
    WINDOW,
    WITHDRAWAL_WINDOW,
    SignedRequest,
    authenticate,
    forget_nonces,
)
from abaton.governance.inbox import Inbox
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.governance.senders import SenderRole
from abaton.governance.signed_statements import Statement
from abaton.governance.timestamps import to_timestamp
from abaton.store import insert_new


@dataclass(frozen=True, slots=True)
class SenderQuota:
    """Storage that one sender may use at the centre.

    Args:
        upload_bytes: Size of one envelope.
        open_uploads: Number of concurrent uploads.
        total_bytes: Size of all envelopes, open uploads included.
    """

    upload_bytes: int = 1 << 30
    open_uploads: int = 64
    total_bytes: int = 1 << 40


@dataclass(frozen=True, slots=True)
class SenderUsage:
    """Storage that one sender uses at the centre."""

    envelopes: int
    bytes: int
    pending: int
    pending_bytes: int


class Uploads:
    """Uploads to one inbox, each announced with its size by one sender within its quota."""

    def __init__(self, inbox: Inbox, quota: SenderQuota) -> None:
        self.inbox, self.quota, self.database = inbox, quota, inbox.database

    def announce(
        self, digest: str, size: int, sender: str, when: datetime, *, quota: SenderQuota | None = None
    ) -> int:
        """Start or resume an upload to the intake service and return the number of received bytes."""
        table, quota = schema.uploads, quota or self.quota
        if size > quota.upload_bytes:
            raise DeniedError(
                RefusalCode.TOO_LARGE,
                f"the envelope is larger than {quota.upload_bytes} bytes",
                where="upload",
            )

        def work(connection: sql.Connection) -> None:
            known = sql.select(table.c.sender, table.c.size).where(table.c.digest == digest)
            if connection.execute(known).first() is None:
                usage = _sender_usage(connection, sender)
                if (
                    usage.pending >= quota.open_uploads
                    or usage.bytes + usage.pending_bytes + size > quota.total_bytes
                ):
                    raise DeniedError(RefusalCode.QUOTA, "the sender's quota is exhausted", where="upload")
                row = {"digest": digest, "sender": sender, "size": size, "started_at": to_timestamp(when)}
                insert_new(connection, table, [row])
            if tuple(connection.execute(known).one()) != (sender, size):
                raise DeniedError(
                    RefusalCode.WRONG_SENDER,
                    "the upload was announced by another sender or with another size",
                    where="upload",
                )

        if self.inbox.receipt_of(digest, sender) is None:
            self.database.write(work, lock=f"uploads/{sender}")
        return self.received_bytes(digest, sender)

    def received_bytes(self, digest: str, sender: str) -> int:
        """Return the received bytes of a sender's upload to the intake service; all of them if it was accepted."""
        receipt = self.inbox.receipt_of(digest, sender)
        if receipt is not None:
            return int(receipt["body"]["size"])
        self._announced_bytes(digest, sender)
        return self.inbox.received_bytes(digest)

    def add(self, digest: str, offset: int, data: bytes, sender: str) -> int:
        """Append bytes to a sender's upload to the intake service and return the number of received bytes."""
        size = self._announced_bytes(digest, sender)
        if offset + len(data) > size:
            raise DeniedError(RefusalCode.TOO_LARGE, "the upload exceeds its announced size", where="upload")
        received = self.inbox.append_chunk(digest, offset, data)
        try:
            self._announced_bytes(digest, sender)
        except DeniedError:  # a concurrent deletion order removed the upload: nothing of it may reappear
            self.inbox.discard_upload(digest)
            raise
        return received

    def finish(self, digest: str, sender: str, key: str, when: datetime) -> Statement:
        """Accept a sender's complete upload to the intake service and return the receipt; idempotent."""
        earlier_receipt = self.inbox.receipt_of(digest, sender)
        if earlier_receipt is None:
            size = self._announced_bytes(digest, sender)
            if self.inbox.received_bytes(digest) < size:
                raise DeniedError(
                    RefusalCode.TRUNCATED,
                    "the upload is incomplete",
                    where="upload",
                )
        try:
            receipt = self.inbox.accept(digest, when, caller_key=key)
        except DeniedError:
            self.inbox.discard_upload(digest)
            self._forget(digest, sender)
            raise
        self._forget(digest, sender)
        return receipt

    def abandon(self, digest: str, sender: str) -> None:
        """Delete a sender's upload to the intake service and its bytes."""
        self._announced_bytes(digest, sender)
        self.inbox.discard_upload(digest)
        self._forget(digest, sender)

    def usage(self, sender: str) -> SenderUsage:
        """Return the storage that a sender uses of the intake service's quota."""
        return self.database.read(lambda connection: _sender_usage(connection, sender))

    def _forget(self, digest: str, sender: str) -> None:
        table = schema.uploads
        deletion = table.delete().where(table.c.digest == digest, table.c.sender == sender)
        self.database.write(lambda connection: connection.execute(deletion))

    def _announced_bytes(self, digest: str, sender: str) -> int:
        table = schema.uploads
        selection = sql.select(table.c.size).where(table.c.digest == digest, table.c.sender == sender)
        size = self.database.read(lambda connection: connection.scalar(selection))
        if size is None:
            raise DeniedError(RefusalCode.NOT_FOUND, "the upload was not announced", where="upload")
        return int(size)


def _sender_usage(connection: sql.Connection, sender: str) -> SenderUsage:
    inbox, uploads, keys = schema.inbox, schema.uploads, schema.sender_keys
    sender_key_ids = sql.select(keys.c.key).where(keys.c.name == sender)

    def count_rows() -> Iterator[int]:
        for table, condition in (
            (inbox, inbox.c.sender.in_(sender_key_ids)),
            (uploads, uploads.c.sender == sender),
        ):
            query = sql.select(sql.func.count(), sql.func.coalesce(sql.func.sum(table.c.size), 0)).where(
                condition
            )
            yield from (int(value) for value in connection.execute(query).one())

    return SenderUsage(*count_rows())


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """Limits of the service.

    Args:
        chunk_bytes: Size of one chunk of an upload.
        body_bytes: Size of any other request body.
        memory_bytes: Size of all request bodies in memory.
        sender_quota: Quota of a site.
        citizen_quota: Quota of a citizen.
        enrolments_per_minute: Enrolments per minute from one address.
        header_seconds: Time for a request header.
        body_seconds: Time for a request body.
        read_seconds: Time that a response waits to be read.
        request_seconds: Time for a whole request.
        sender_rate: Requests per second of one sender, on average.
        address_rate: Requests per second from one address, signed or not.
        burst_seconds: Seconds' worth of requests that may arrive at once.
        concurrent: Requests processed concurrently.
        waiting: Requests that may wait; more are refused.
        connections: Open connections in total.
        connections_per_address: Open connections from one address.
    """

    chunk_bytes: int = 1 << 20
    body_bytes: int = 1 << 18
    memory_bytes: int = 1 << 27
    sender_quota: SenderQuota = field(default_factory=SenderQuota)
    citizen_quota: SenderQuota = field(default_factory=lambda: SenderQuota(1 << 26, 4, 1 << 28))
    enrolments_per_minute: float = 30
    header_seconds: float = 10
    body_seconds: float = 60
    read_seconds: float = 30
    request_seconds: float = 120
    sender_rate: float = 50
    address_rate: float = 100
    burst_seconds: float = 4
    concurrent: int = 16
    waiting: int = 128
    connections: int = 1024
    connections_per_address: int = 128


@dataclass(frozen=True, slots=True)
class IntakeCaller:
    """Authenticated caller: sender name, key of the request, and role."""

    name: str
    key: str
    role: SenderRole = SenderRole.SITE


def _now() -> datetime:
    return datetime.now(UTC)


class IntakeService:
    """Intake service of a research centre.

    Args:
        inbox: The inbox, with governance database and signing key.
        limits: Limits of the service.
        now: Clock.
        monotonic: Monotonic clock in seconds, for rates.
    """

    def __init__(
        self,
        inbox: Inbox,
        limits: IntakeLimits | None = None,
        *,
        now: Callable[[], datetime] = _now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inbox, self.limits, self.now, self.monotonic = inbox, limits or IntakeLimits(), now, monotonic
        self.uploads = Uploads(inbox, self.limits.sender_quota)
        self._nonces_deleted_at = monotonic()

    def quota_of(self, caller: IntakeCaller) -> SenderQuota:
        """Return the quota of a caller of the intake service."""
        return self.limits.citizen_quota if caller.role is SenderRole.CITIZEN else self.limits.sender_quota

    def authenticate_caller(self, signature_headers: tuple[str, str], request: SignedRequest) -> IntakeCaller:
        """Return the intake service's caller by the request signature: a registered site or citizen, or refused."""
        senders = self.inbox.senders
        key = authenticate(
            signature_headers,
            request,
            lambda key_id: senders.signing_key(key_id, SenderRole.SITE, SenderRole.CITIZEN),
            self.inbox.database,
            self.now(),
            WITHDRAWAL_WINDOW if request.path.endswith("/v1/withdrawals") else WINDOW,
        )
        if self.monotonic() > self._nonces_deleted_at + WINDOW.total_seconds():
            self._nonces_deleted_at = self.monotonic()
            forget_nonces(self.inbox.database, self.now())
        owner = senders.owner(key)
        assert owner is not None
        return IntakeCaller(owner.name, key, owner.role)
