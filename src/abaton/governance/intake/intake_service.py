"""What the service works with: the inbox, the uploads to it, its limits, and time.

An upload is announced with its size, by one sender, within that sender's room.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.inbox import Inbox
from abaton.governance.senders import (
    WINDOW,
    WITHDRAWAL_WINDOW,
    Asked,
    SenderRole,
    authenticate,
    forget_nonces,
)
from abaton.governance.signed_statements import Statement
from abaton.governance.identifiers import Denied, RefusalCode, stamp
from abaton.store import insert_new


@dataclass(frozen=True, slots=True)
class Room:
    """How much one sender may have at the centre.

    Args:
        upload: The bytes of one envelope.
        open: The envelopes that are under way at once.
        total: The bytes of all envelopes together, those under way included.
    """

    upload: int = 1 << 30
    open: int = 64
    total: int = 1 << 40


@dataclass(frozen=True, slots=True)
class Account:
    """What one sender has at the centre."""

    envelopes: int
    bytes: int
    open: int
    open_bytes: int


class Uploads:
    """The uploads to one inbox."""

    def __init__(self, inbox: Inbox, room: Room) -> None:
        self.inbox, self.room, self.database = inbox, room, inbox.database

    def announce(
        self, digest: str, size: int, sender: str, when: datetime, *, room: Room | None = None
    ) -> int:
        """Begin an upload, or find one that was begun; how many bytes of it have arrived."""
        table, room = schema.uploads, room or self.room
        if size > room.upload:
            raise Denied(
                RefusalCode.TOO_LARGE, "the envelope is larger than this centre takes", where="upload"
            )

        def work(connection: sql.Connection) -> None:
            known = sql.select(table.c.sender, table.c.size).where(table.c.digest == digest)
            if connection.execute(known).first() is None:
                now = _account(connection, sender)
                if now.open >= room.open or now.bytes + now.open_bytes + size > room.total:
                    raise Denied(RefusalCode.QUOTA, "the sender has no room left here", where="upload")
                row = {"digest": digest, "sender": sender, "size": size, "begun": stamp(when)}
                insert_new(connection, table, [row])
            if tuple(connection.execute(known).one()) != (sender, size):
                raise Denied(RefusalCode.NOT_YOURS, "the upload was announced otherwise", where="upload")

        if self.inbox.settled(digest, sender) is None:
            self.database.write(work, lock=f"uploads/{sender}")
        return self.received(digest, sender)

    def received(self, digest: str, sender: str) -> int:
        """How many bytes of an upload have arrived; all of them if it was taken already."""
        receipt = self.inbox.settled(digest, sender)
        if receipt is not None:
            return int(receipt["body"]["size"])
        self._size(digest, sender)
        return self.inbox.uploaded(digest)

    def add(self, digest: str, offset: int, data: bytes, sender: str) -> int:
        """Add bytes at the place where an upload stands; how many there are now."""
        size = self._size(digest, sender)
        if offset + len(data) > size:
            raise Denied(RefusalCode.TOO_LARGE, "there is more of it than was announced", where="upload")
        received = self.inbox.add_part(digest, offset, data)
        try:
            self._size(digest, sender)
        except Denied:  # a deletion order has taken the upload away meanwhile: nothing of it may come back
            self.inbox.drop_part(digest)
            raise
        return received

    def finish(self, digest: str, sender: str, key: str, when: datetime) -> Statement:
        """Take a complete upload and return the receipt; once more, and the receipt is the same."""
        settled = self.inbox.settled(digest, sender)
        if settled is None:
            size = self._size(digest, sender)
            if self.inbox.uploaded(digest) < size:
                raise Denied(RefusalCode.TRUNCATED, "not all of the upload has arrived", where="upload")
        try:
            receipt = self.inbox.accept(digest, when, by=key)
        except Denied:
            self.inbox.drop_part(digest)
            self._forget(digest, sender)
            raise
        self._forget(digest, sender)
        return receipt

    def give_up(self, digest: str, sender: str) -> None:
        """Let go of an upload and of its bytes."""
        self._size(digest, sender)
        self.inbox.drop_part(digest)
        self._forget(digest, sender)

    def account(self, sender: str) -> Account:
        """What a sender has here."""
        return self.database.read(lambda connection: _account(connection, sender))

    def _forget(self, digest: str, sender: str) -> None:
        table = schema.uploads
        chosen = table.delete().where(table.c.digest == digest, table.c.sender == sender)
        self.database.write(lambda connection: connection.execute(chosen))

    def _size(self, digest: str, sender: str) -> int:
        table = schema.uploads
        chosen = sql.select(table.c.size).where(table.c.digest == digest, table.c.sender == sender)
        found = self.database.read(lambda connection: connection.scalar(chosen))
        if found is None:
            raise Denied(RefusalCode.NOT_FOUND, "no such upload was announced", where="upload")
        return int(found)


def _account(connection: sql.Connection, sender: str) -> Account:
    inbox, uploads, keys = schema.inbox, schema.uploads, schema.sender_keys
    theirs = sql.select(keys.c.key).where(keys.c.name == sender)

    def counted() -> Iterator[int]:
        for table, chosen in ((inbox, inbox.c.sender.in_(theirs)), (uploads, uploads.c.sender == sender)):
            query = sql.select(sql.func.count(), sql.func.coalesce(sql.func.sum(table.c.size), 0)).where(
                chosen
            )
            yield from (int(number) for number in connection.execute(query).one())

    return Account(*counted())


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of the service anybody may use.

    Args:
        part: The most bytes of one part of an upload.
        body: The most bytes of any other request.
        held: The most bytes of all requests that are being read or answered.
        room: What one sender may have at the centre.
        person_room: What one person may have there.
        enrolments: People who may enrol in a minute from one address.
        head_seconds: How long the head of a request may take to arrive.
        body_seconds: How long its body may take.
        read_seconds: How long an answer may wait to be read.
        request_seconds: How long a request may take altogether.
        sender_rate: Requests a second of one sender, in the long run.
        address_rate: Requests a second from one address, signed or not.
        burst: How many seconds' worth of requests may come at once.
        concurrent: Requests that are worked on at once.
        waiting: Requests that may wait for their turn; more are sent away.
        connections: Open connections, from everybody.
        each: Open connections from one address.
    """

    part: int = 1 << 20
    body: int = 1 << 18
    held: int = 1 << 27
    room: Room = field(default_factory=Room)
    person_room: Room = field(default_factory=lambda: Room(1 << 26, 4, 1 << 28))
    enrolments: float = 30
    head_seconds: float = 10
    body_seconds: float = 60
    read_seconds: float = 30
    request_seconds: float = 120
    sender_rate: float = 50
    address_rate: float = 100
    burst: float = 4
    concurrent: int = 16
    waiting: int = 128
    connections: int = 1024
    each: int = 128


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the sender's name, the key that signed the request, and in which role."""

    name: str
    key: str
    role: SenderRole = SenderRole.SITE


def _now() -> datetime:
    return datetime.now(UTC)


class Centre:
    """A research centre as the service sees it.

    Args:
        inbox: The inbox, with the governance database and the centre's signing key.
        limits: How much of it anybody may use.
        now: The time.
        tick: Seconds that only go forward, for rates.
    """

    def __init__(
        self,
        inbox: Inbox,
        limits: Limits | None = None,
        *,
        now: Callable[[], datetime] = _now,
        tick: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inbox, self.limits, self.now, self.tick = inbox, limits or Limits(), now, tick
        self.uploads = Uploads(inbox, self.limits.room)
        self._forgot = tick()

    def room_of(self, caller: Caller) -> Room:
        """What a caller may have at the centre."""
        return self.limits.person_room if caller.role is SenderRole.PERSON else self.limits.room

    def caller(self, stated: tuple[str, str], asked: Asked) -> Caller:
        """Who signed a request; refused unless it is a site or a person who is known, now, for the first time."""
        senders = self.inbox.senders
        key = authenticate(
            stated,
            asked,
            lambda found: senders.signing(found, SenderRole.SITE, SenderRole.PERSON),
            self.inbox.database,
            self.now(),
            WITHDRAWAL_WINDOW if asked.path.endswith("/v1/withdrawals") else WINDOW,
        )
        if self.tick() > self._forgot + WINDOW.total_seconds():
            self._forgot = self.tick()
            forget_nonces(self.inbox.database, self.now())
        owner = senders.owner(key)
        assert owner is not None
        return Caller(owner.name, key, owner.role)
