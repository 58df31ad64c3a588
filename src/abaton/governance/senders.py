"""The senders that are known: whose public keys count, in which role, and until when.

Signed requests: who asks the centre for what, once, and now.

Every request to the centre carries an ``Authorization`` header with the id of the sender's signing key, the time, a
number that is used once and a signature. What is signed names the centre, the method, the target and the fingerprint
of the body, so that a request works at one centre, for one thing, within one window of time, and a single time. The
bytes are told in ``docs/intake.md``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import sqlalchemy as sql

from abaton.canonical import canonical
from abaton.governance import schema
from abaton.governance.audit import Entry, append_in
from abaton.governance.keys import PublicKey, PublicRing
from abaton.governance.refusals import Denied, RefusalCode
from abaton.governance.statements import Signer
from abaton.governance.times import moment, stamp
from abaton.store import Database, insert_new


class SenderRole(StrEnum):
    """What somebody may do with his signature."""

    SITE = "site"
    CENTRE = "centre"
    CONTROLLER = "controller"
    APPROVER = "approver"
    WITNESS = "witness"


@dataclass(frozen=True, slots=True)
class Sender:
    """Somebody whose keys are known."""

    name: str
    role: SenderRole
    ring: PublicRing
    since: str
    until: str


class Senders:
    """The register of senders in one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def enter(self, ring: PublicRing, role: SenderRole, when: datetime) -> None:
        """Enter somebody's public keys, or the newer keys of somebody known: they must follow from the old ones."""

        def work(connection: sql.Connection) -> None:
            known = _find(connection, ring.name)
            if known is not None:
                PublicRing.read(ring.row(), trusted=known.ring.signing.id)
                if known.until or known.role is not role or len(ring.keys) < len(known.ring.keys):
                    raise Denied(RefusalCode.RETIRED_KEY, "these keys cannot be entered under this name")
            row = json.dumps(ring.row(), sort_keys=True)
            table = schema.senders
            connection.execute(table.delete().where(table.c.name == ring.name))
            values = {"name": ring.name, "role": role.value, "ring": row, "until": ""}
            since = known.since if known else stamp(when)
            connection.execute(table.insert().values(**values, since=since))
            keys = [{"key": key.id, "name": ring.name} for key in ring.keys]
            insert_new(connection, schema.sender_keys, keys)
            append_in(
                connection, Entry("sender-entered", actor=ring.signing.id, detail={"role": role.value}), when
            )

        self.database.write(work, lock=f"sender/{ring.name}")

    def dismiss(self, name: str, when: datetime) -> None:
        """From now on nothing that this sender signs is taken."""

        def work(connection: sql.Connection) -> None:
            known = _find(connection, name)
            if known is not None and not known.until:
                table = schema.senders
                connection.execute(table.update().where(table.c.name == name).values(until=stamp(when)))
                append_in(connection, Entry("sender-dismissed", actor=known.ring.signing.id), when)

        self.database.write(work, lock=f"sender/{name}")

    def find(self, name: str) -> Sender | None:
        """A sender by name."""
        return self.database.read(lambda connection: _find(connection, name))

    def everybody(self) -> list[Sender]:
        """All senders, by name."""
        chosen = sql.select(schema.senders).order_by(schema.senders.c.name)
        rows = self.database.read(lambda connection: connection.execute(chosen).all())
        return [_read(row) for row in rows]

    def signing(self, key_id: str, *roles: SenderRole) -> PublicKey | None:
        """The signing key with an id, if it is in use by somebody who is not dismissed and has one of the roles."""
        owner = self.owner(key_id)
        if owner is None or owner.until or (roles and owner.role not in roles):
            return None
        key = owner.ring.signing
        return key if key.id == key_id else None

    def owner(self, key_id: str) -> Sender | None:
        """Whose key it is."""
        table = schema.sender_keys
        chosen = sql.select(table.c.name).where(table.c.key == key_id)

        def work(connection: sql.Connection) -> Sender | None:
            name = connection.scalar(chosen)
            return None if name is None else _find(connection, name)

        return self.database.read(work)


def _find(connection: sql.Connection, name: str) -> Sender | None:
    row = connection.execute(sql.select(schema.senders).where(schema.senders.c.name == name)).first()
    return None if row is None else _read(row)


def _read(row: sql.Row[tuple[str, ...]]) -> Sender:
    ring = PublicRing.read(json.loads(row.ring))
    return Sender(row.name, SenderRole(row.role), ring, row.since, row.until)


WINDOW = timedelta(minutes=5)
_PREFIX = b"abaton-request-1\0"
_HEADER = re.compile(
    r'Abaton key="(ed25519:[A-Z2-7]{26})", time="(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)", '
    r'nonce="([0-9a-f]{32})", signature="([A-Za-z0-9+/]{86}==)"',
    re.ASCII,
)
_WHERE = "request"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for.

    Args:
        centre: The id of the centre's signing key.
        method: The HTTP method.
        target: Path and query, as they stand in the first line of the request.
        body: The SHA-256 fingerprint of the body.
    """

    centre: str
    method: str
    target: str
    body: str

    @classmethod
    def of(cls, centre: str, method: str, target: str, body: bytes) -> Asked:
        """What a request with some body asks for.

        >>> Asked.of("ed25519:A", "GET", "/v1/account", b"").body[:8]
        'e3b0c442'
        """
        return cls(centre, method, target, hashlib.sha256(body).hexdigest())

    def signed(self, time: str, nonce: str) -> bytes:
        """The bytes that are signed."""
        told = {"centre": self.centre, "method": self.method, "target": self.target, "body": self.body}
        return _PREFIX + canonical({**told, "time": time, "nonce": nonce})


def authorisation(signer: Signer, asked: Asked, when: datetime, nonce: bytes) -> str:
    """The value of the ``Authorization`` header; the nonce is 16 random bytes."""
    time, number = stamp(when), nonce.hex()
    signature = base64.b64encode(signer.sign(asked.signed(time, number))).decode()
    return f'Abaton key="{signer.id}", time="{time}", nonce="{number}", signature="{signature}"'


def authenticate(
    header: str, asked: Asked, find: Callable[[str], PublicKey | None], database: Database, when: datetime
) -> str:
    """The id of the key that signed a request, which counts now and has not been seen before; else it is refused.

    Args:
        header: The ``Authorization`` header.
        asked: What the request asks for, as it arrived.
        find: The sender's signing key by its id, or nothing if it does not count.
        database: The governance database, which keeps the nonces.
        when: The time now.
    """
    read = _HEADER.fullmatch(header)
    if read is None:
        raise Denied(RefusalCode.UNSIGNED, "the request is not signed", where=_WHERE)
    key_id, time, nonce, signature = read.groups()
    key = find(key_id)
    if key is None:
        raise Denied(RefusalCode.UNKNOWN_SENDER, "nobody here knows who signed", where=_WHERE)
    if not key.verify(base64.b64decode(signature), asked.signed(time, nonce)):
        raise Denied(RefusalCode.FORGED, "the signature does not fit the request", where=_WHERE)
    try:
        late = abs(moment(time) - when) > WINDOW
    except ValueError:
        late = True
    if late:
        raise Denied(RefusalCode.EXPIRED, "the request is not of this moment", where=_WHERE)
    if not _is_new(database, key_id, nonce, time):
        raise Denied(RefusalCode.REPLAYED, "the request was made before", where=_WHERE)
    return key_id


def _is_new(database: Database, key: str, nonce: str, time: str) -> bool:
    """Whether a nonce is used for the first time; it is on the disk when this returns."""
    table = schema.nonces

    def work(connection: sql.Connection) -> bool:
        known = sql.select(table.c.nonce).where(table.c.key == key, table.c.nonce == nonce)
        if connection.scalar(known) is not None:
            return False
        insert_new(connection, table, [{"key": key, "nonce": nonce, "at": time}])
        return True

    return database.write(work, lock=f"nonce/{key}/{nonce}")


def forget_nonces(database: Database, when: datetime) -> int:
    """Delete nonces of requests that are too old to be taken anyway; how many there were."""
    table = schema.nonces
    chosen = table.delete().where(table.c.at < stamp(when - 2 * WINDOW))
    return database.write(lambda connection: int(connection.execute(chosen).rowcount))
