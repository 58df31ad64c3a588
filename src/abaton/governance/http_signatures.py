"""RFC 9421 signatures of requests to the intake, with Ed25519 (``docs/intake.md``).

A signature covers method, path, query, body digest (RFC 9530) and the centre's key, with time and nonce. A request is
thus valid at one centre, for one operation, within a time window and once, and the caller is known before the body is
read. Only one fixed component list is accepted, since a general parser would process every form before
authentication.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.keys import PublicKey
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.governance.signed_statements import StatementSigner
from abaton.governance.timestamps import to_timestamp
from abaton.store import Database, insert_new

WINDOW = timedelta(minutes=5)


WITHDRAWAL_WINDOW = timedelta(days=1) + WINDOW
"""Window for withdrawals: a clock that is a day off must not prevent one, and a replay has no effect."""


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
class SignedRequest:
    """Signed components of a request, in the order of :data:`COMPONENTS`.

    Args:
        method: HTTP method.
        path: Path as in the request line.
        query: Query with its question mark, which is present also if the query is empty.
        content: ``Content-Digest`` of the body (RFC 9530).
        centre: Id of the centre's signing key, which restricts the request to one centre.
    """

    method: str
    path: str
    query: str
    content: str
    centre: str

    @classmethod
    def of(cls, centre: str, method: str, path: str, query: str, body: bytes) -> SignedRequest:
        """Return the components of an HTTP request with this body that its signature covers.

        >>> SignedRequest.of("ed25519:A", "GET", "/v1/usage", "", b"").content[:20]
        'sha-256=:47DEQpj8HBS'
        """
        return cls(method, path, f"?{query}", content_digest(body), centre)

    def signed(self, parameters: str) -> bytes:
        """Return the bytes of an HTTP request to sign."""
        values = (self.method, self.path, self.query, self.content, self.centre)
        return signature_base(zip(COMPONENTS, values, strict=True), parameters)


def content_digest(body: bytes) -> str:
    """Return the ``Content-Digest`` of a body (RFC 9530, SHA-256)."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def signature_base(components: Iterable[tuple[str, str]], parameters: str) -> bytes:
    r"""Return the signature base (RFC 9421, section 2.5): a line per component, then the parameters.

    >>> signature_base([("@method", "GET")], '("@method")')
    b'"@method": GET\n"@signature-params": ("@method")'
    """
    lines = [f'"{name}": {value}' for name, value in (*components, ("@signature-params", parameters))]
    return "\n".join(lines).encode("latin-1")


def signed_headers(
    signer: StatementSigner, request: SignedRequest, when: datetime, nonce: bytes
) -> dict[str, str]:
    """Return the HTTP signature headers of a request (RFC 9421); the nonce is 16 random bytes."""
    created, nonce_hex = int(when.timestamp()), nonce.hex()
    values = f'created={created};keyid="{signer.id}";alg="ed25519";nonce="{nonce_hex}";tag="abaton-intake"'
    parameters = f"{_COVERED};{values}"  # frozen: part of the bytes
    signature = base64.b64encode(signer.sign(request.signed(parameters))).decode()
    return {
        "content-digest": request.content,
        "abaton-centre": request.centre,
        "signature-input": f"abaton={parameters}",
        "signature": f"abaton=:{signature}:",
    }


def authenticate(
    signature_headers: tuple[str, str],
    request: SignedRequest,
    find: Callable[[str], PublicKey | None],
    database: Database,
    when: datetime,
    window: timedelta = WINDOW,
) -> str:
    """Verify an HTTP signature; return the key id, refused unless registered, current and not seen before.

    Args:
        signature_headers: The headers ``Signature-Input`` and ``Signature``.
        request: Signed components of the request as received; its body may still be in transit.
        find: Returns the sender's signing key by id; None if it is not accepted.
        database: Governance database, which stores the nonces.
        when: The current time.
        window: Largest difference between the sender's clock and this one.
    """
    parameters_match, signature = (
        _INPUT.fullmatch(signature_headers[0]),
        _SIGNATURE.fullmatch(signature_headers[1]),
    )
    if parameters_match is None or signature is None:
        raise DeniedError(RefusalCode.UNSIGNED, "the request is not signed", where=_WHERE)
    parameters, created, key_id, nonce = parameters_match.groups()
    key = find(key_id)
    if key is None:
        raise DeniedError(RefusalCode.UNKNOWN_SENDER, "the signing key is not registered", where=_WHERE)
    if not key.verify(base64.b64decode(signature[1]), request.signed(parameters)):
        raise DeniedError(RefusalCode.FORGED, "the signature does not verify for this request", where=_WHERE)
    created_at = datetime.fromtimestamp(int(created), UTC)
    if abs(created_at - when) > window:
        raise DeniedError(
            RefusalCode.EXPIRED,
            "the request's time is outside the accepted window: check the clock",
            where=_WHERE,
        )
    if not _is_new(database, key_id, nonce, to_timestamp(created_at)):
        raise DeniedError(RefusalCode.REPLAYED, "the nonce was used before", where=_WHERE)
    return key_id


def _is_new(database: Database, key: str, nonce: str, created_at: str) -> bool:
    """Return whether the nonce of an HTTP signature is new and store it; it is on disk when this returns."""
    table = schema.nonces

    def work(connection: sql.Connection) -> bool:
        known = sql.select(table.c.nonce).where(table.c.key == key, table.c.nonce == nonce)
        if connection.scalar(known) is not None:
            return False
        insert_new(connection, table, [{"key": key, "nonce": nonce, "created_at": created_at}])
        return True

    return database.write(work, lock=f"nonce/{key}/{nonce}")


def forget_nonces(database: Database, when: datetime) -> int:
    """Delete the nonces of expired HTTP signatures and return their number."""
    table = schema.nonces
    deletion = table.delete().where(table.c.created_at < to_timestamp(when - 2 * WINDOW))
    return database.write(lambda connection: int(connection.execute(deletion).rowcount))
