"""Senders: whose keys count, for which person each speaks, and how their requests are signed.

Keys are compared by people over another channel before they are entered. Newer keys of the same sender must follow from
those that are known. The sender who brought the first consent speaks for a person at the centre, and nobody else: tags
can be read on the outside of envelopes, and without this list a second site could withdraw, or send in the name of,
somebody it has merely seen.

Every request to the centre is signed by RFC 9421 with Ed25519: its method, path and query, the fingerprint of its body
(RFC 9530) and the centre's key, with the time and a number that is used once. So a request works at one centre, for one
thing, within one window of time, and a single time; and who asks is known before the body is read. The bytes are told
in ``docs/intake.md``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.audit_log import Entry, append_in
from abaton.governance.keys import PublicKey, PublicRing
from abaton.governance.signed_statements import Signer
from abaton.governance.identifiers import Denied, RefusalCode, stamp
from abaton.store import Database, insert_new


class SenderRole(StrEnum):
    """What somebody may do with his signature."""

    SITE = "site"
    CENTRE = "centre"
    CONTROLLER = "controller"
    APPROVER = "approver"
    WITNESS = "witness"
    PERSON = "person"


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
        self.database.write(
            lambda connection: enter_in(connection, ring, role, when), lock=f"sender/{ring.name}"
        )

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


def enter_in(connection: sql.Connection, ring: PublicRing, role: SenderRole, when: datetime) -> None:
    """Enter somebody's public keys in a transaction that goes on."""
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
    append_in(connection, Entry("sender-entered", actor=ring.signing.id, detail={"role": role.value}), when)


def _find(connection: sql.Connection, name: str) -> Sender | None:
    row = connection.execute(sql.select(schema.senders).where(schema.senders.c.name == name)).first()
    return None if row is None else _read(row)


def _read(row: sql.Row[tuple[str, ...]]) -> Sender:
    ring = PublicRing.read(json.loads(row.ring))
    return Sender(row.name, SenderRole(row.role), ring, row.since, row.until)


def claim_in(connection: sql.Connection, subject: str, sender: str) -> None:
    """Speak for a person from now on; refused if somebody else does already."""
    insert_new(connection, schema.keepers, [{"subject": subject, "sender": sender}])
    _check_keeper(connection, subject, sender)


def check_keeper(database: Database, subject: str, sender: str) -> None:
    """Refuse a sender who is not the one that speaks for a person; whom nobody has claimed anybody may bring."""
    database.read(lambda connection: _check_keeper(connection, subject, sender))


def _check_keeper(connection: sql.Connection, subject: str, sender: str) -> None:
    chosen = sql.select(schema.keepers.c.sender).where(schema.keepers.c.subject == subject)
    keeper = connection.scalar(chosen)
    if keeper is not None and keeper != sender:
        raise Denied(RefusalCode.NOT_YOURS, "another sender speaks for this person", where="subject")


WINDOW = timedelta(minutes=5)
WITHDRAWAL_WINDOW = timedelta(days=1) + WINDOW
"""A clock that is wrong by a day must not keep anybody in; a withdrawal that is made again does nothing."""
COMPONENTS = ("@method", "@path", "@query", "content-digest", "abaton-centre")
_COVERED = "(" + " ".join(f'"{name}"' for name in COMPONENTS) + ")"
_INPUT = re.compile(
    rf'abaton=({re.escape(_COVERED)};created=(\d{{10}});keyid="(ed25519:[A-Z2-7]{{26}})";alg="ed25519"'
    r';nonce="([0-9a-f]{32})";tag="abaton-intake")',
    re.ASCII,
)
_SIGNATURE = re.compile(r"abaton=:([A-Za-z0-9+/]{86}==):", re.ASCII)
_WHERE = "request"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for: the components that are signed, in the order of :data:`COMPONENTS`.

    Args:
        method: The HTTP method.
        path: The path, as it stands in the first line of the request.
        query: The query with its question mark, which stands alone if there is none.
        content: The ``Content-Digest`` of the body (RFC 9530).
        centre: The id of the centre's signing key: a request works at one centre.
    """

    method: str
    path: str
    query: str
    content: str
    centre: str

    @classmethod
    def of(cls, centre: str, method: str, path: str, query: str, body: bytes) -> Asked:
        """What a request with some body asks for.

        >>> Asked.of("ed25519:A", "GET", "/v1/account", "", b"").content[:20]
        'sha-256=:47DEQpj8HBS'
        """
        return cls(method, path, f"?{query}", content_digest(body), centre)

    def signed(self, parameters: str) -> bytes:
        """The bytes that are signed."""
        values = (self.method, self.path, self.query, self.content, self.centre)
        return signature_base(zip(COMPONENTS, values, strict=True), parameters)


def content_digest(body: bytes) -> str:
    """The ``Content-Digest`` of a body (RFC 9530): a SHA-256 fingerprint."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def signature_base(components: Iterable[tuple[str, str]], parameters: str) -> bytes:
    r"""The bytes of a message that are signed (RFC 9421, section 2.5): a line for each component, then the parameters.

    >>> signature_base([("@method", "GET")], '("@method")')
    b'"@method": GET\n"@signature-params": ("@method")'
    """
    lines = [f'"{name}": {value}' for name, value in (*components, ("@signature-params", parameters))]
    return "\n".join(lines).encode("latin-1")


def signed_headers(signer: Signer, asked: Asked, when: datetime, nonce: bytes) -> dict[str, str]:
    """The headers that sign a request (RFC 9421); the nonce is 16 random bytes."""
    created, number = int(when.timestamp()), nonce.hex()
    parameters = (
        f'{_COVERED};created={created};keyid="{signer.id}";alg="ed25519";nonce="{number}";tag="abaton-intake"'
    )
    signature = base64.b64encode(signer.sign(asked.signed(parameters))).decode()
    return {
        "content-digest": asked.content,
        "abaton-centre": asked.centre,
        "signature-input": f"abaton={parameters}",
        "signature": f"abaton=:{signature}:",
    }


def authenticate(
    stated: tuple[str, str],
    asked: Asked,
    find: Callable[[str], PublicKey | None],
    database: Database,
    when: datetime,
    window: timedelta = WINDOW,
) -> str:
    """The id of the key that signed a request, which counts now and has not been seen before; else it is refused.

    Args:
        stated: The headers ``Signature-Input`` and ``Signature``.
        asked: What the request asks for, as it arrived; its body may still be on its way.
        find: The sender's signing key by its id, or nothing if it does not count.
        database: The governance database, which keeps the nonces.
        when: The time now.
        window: How far the sender's clock may be from ours.
    """
    told, signature = _INPUT.fullmatch(stated[0]), _SIGNATURE.fullmatch(stated[1])
    if told is None or signature is None:
        raise Denied(RefusalCode.UNSIGNED, "the request is not signed", where=_WHERE)
    parameters, created, key_id, nonce = told.groups()
    key = find(key_id)
    if key is None:
        raise Denied(RefusalCode.UNKNOWN_SENDER, "nobody here knows who signed", where=_WHERE)
    if not key.verify(base64.b64decode(signature[1]), asked.signed(parameters)):
        raise Denied(RefusalCode.FORGED, "the signature does not fit the request", where=_WHERE)
    at = datetime.fromtimestamp(int(created), UTC)
    if abs(at - when) > window:
        raise Denied(
            RefusalCode.EXPIRED, "the request is not of this moment: the clocks differ", where=_WHERE
        )
    if not _is_new(database, key_id, nonce, stamp(at)):
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
