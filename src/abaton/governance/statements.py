"""Signed statements: receipts, orders, approvals, checkpoints and changes of keys, all of one form.

A statement is a JSON object with ``format``, ``kind``, ``body``, ``signer`` (the signing key's id) and
``signature`` (Ed25519 over a fixed prefix and the canonical form of the other four). Whoever checks a statement says
which kind is expected, so that no statement can pass for another.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from abaton.canonical import canonical
from abaton.errors import AbatonError
from abaton.governance.refusals import Code, Denied

FORMAT = "abaton-statement/1"
_PREFIX = b"abaton-statement-1\0"

Statement = dict[str, Any]


class Signer(Protocol):
    """Somebody who can sign."""

    @property
    def id(self) -> str:
        """The id of the signing key."""

    def sign(self, data: bytes) -> bytes:
        """The Ed25519 signature of some bytes."""


Verify = Callable[[bytes, bytes], bool]
"""Whether a signature belongs to some bytes: (signature, data)."""


def state(signer: Signer, kind: str, body: Mapping[str, Any]) -> Statement:
    """Sign a statement."""
    unsigned = {"format": FORMAT, "kind": kind, "body": dict(body), "signer": signer.id}
    signature = signer.sign(_PREFIX + canonical(unsigned))
    return {**unsigned, "signature": base64.b64encode(signature).decode()}


def check(statement: object, kind: str, find: Callable[[str], Verify | None]) -> dict[str, Any]:
    """The body of a genuine statement of the expected kind; anything else is refused.

    Args:
        statement: What claims to be a statement.
        kind: What it must be.
        find: The check of a signing key by its id, or nothing if the key does not count.
    """
    where = f"statement '{kind}'"
    if not isinstance(statement, dict) or set(statement) != {"format", "kind", "body", "signer", "signature"}:
        raise Denied(Code.MALFORMED, "this is not a signed statement", where=where)
    body, signer, signature = statement["body"], statement["signer"], statement["signature"]
    if statement["format"] != FORMAT or not isinstance(body, dict) or not isinstance(signer, str):
        raise Denied(Code.MALFORMED, "this is not a signed statement of this form", where=where)
    if statement["kind"] != kind:
        raise Denied(Code.FORGED, "a statement of another kind was given", where=where)
    verify = find(signer)
    if verify is None:
        raise Denied(Code.UNKNOWN_SENDER, "nobody here knows who signed", where=where)
    try:
        raw = base64.b64decode(signature, validate=True) if isinstance(signature, str) else b""
        data = _PREFIX + canonical({k: v for k, v in statement.items() if k != "signature"})
    except (binascii.Error, ValueError, RecursionError, AbatonError):
        raise Denied(Code.MALFORMED, "this is not a signed statement of this form", where=where) from None
    if not verify(raw, data):
        raise Denied(Code.FORGED, "the signature does not fit", where=where)
    return body
