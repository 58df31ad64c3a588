"""Signed requests: who asks the centre for what, once, and now.

Every request to the centre carries an ``Authorization`` header with the id of the sender's signing key, the time, a
number that is used once and a signature. What is signed names the centre, the method, the target and the fingerprint
of the body, so that a request works at one centre, for one thing, within one window of time, and a single time. The
bytes are told in ``docs/intake.md``.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sql

from abaton.canonical import canonical
from abaton.governance import schema
from abaton.governance.keys import PublicKey
from abaton.governance.refusals import Code, Denied
from abaton.governance.statements import Signer
from abaton.governance.times import moment, stamp
from abaton.store import Database, insert_new

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
        raise Denied(Code.UNSIGNED, "the request is not signed", where=_WHERE)
    key_id, time, nonce, signature = read.groups()
    key = find(key_id)
    if key is None:
        raise Denied(Code.UNKNOWN_SENDER, "nobody here knows who signed", where=_WHERE)
    if not key.verify(base64.b64decode(signature), asked.signed(time, nonce)):
        raise Denied(Code.FORGED, "the signature does not fit the request", where=_WHERE)
    try:
        late = abs(moment(time) - when) > WINDOW
    except ValueError:
        late = True
    if late:
        raise Denied(Code.EXPIRED, "the request is not of this moment", where=_WHERE)
    if not _is_new(database, key_id, nonce, time):
        raise Denied(Code.REPLAYED, "the request was made before", where=_WHERE)
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
