"""Uploads that are under way: announced with their size, by one sender, within that sender's room."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.inbox import Inbox
from abaton.governance.refusals import Code, Denied
from abaton.governance.statements import Statement
from abaton.governance.times import stamp
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

    def announce(self, digest: str, size: int, sender: str, when: datetime) -> int:
        """Begin an upload, or find one that was begun; how many bytes of it have arrived."""
        table = schema.uploads
        if size > self.room.upload:
            raise Denied(Code.TOO_LARGE, "the envelope is larger than this centre takes", where="upload")

        def work(connection: sql.Connection) -> None:
            known = sql.select(table.c.sender, table.c.size).where(table.c.digest == digest)
            if connection.execute(known).first() is None:
                now = _account(connection, sender)
                if now.open >= self.room.open or now.bytes + now.open_bytes + size > self.room.total:
                    raise Denied(Code.QUOTA, "the sender has no room left here", where="upload")
                row = {"digest": digest, "sender": sender, "size": size, "begun": stamp(when)}
                insert_new(connection, table, [row])
            if tuple(connection.execute(known).one()) != (sender, size):
                raise Denied(Code.NOT_YOURS, "the upload was announced otherwise", where="upload")

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
            raise Denied(Code.TOO_LARGE, "there is more of it than was announced", where="upload")
        return self.inbox.add_part(digest, offset, data)

    def finish(self, digest: str, sender: str, key: str, when: datetime) -> Statement:
        """Take a complete upload and return the receipt; once more, and the receipt is the same."""
        settled = self.inbox.settled(digest, sender)
        if settled is None:
            size = self._size(digest, sender)
            if self.inbox.uploaded(digest) < size:
                raise Denied(Code.TRUNCATED, "not all of the upload has arrived", where="upload")
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
            raise Denied(Code.NOT_FOUND, "no such upload was announced", where="upload")
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
