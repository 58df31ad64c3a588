"""Signed statements: receipts, orders, approvals, checkpoints and changes of keys, all of one form.

A statement is a JSON object with ``format``, ``kind``, ``body``, ``signer`` (the signing key's id) and
``signature`` (Ed25519 over a fixed prefix and the canonical form of the other four). Whoever checks a statement says
which kind is expected, so that no statement can pass for another.

The statements that pass between a site and a research centre: receipts, deletion orders and their receipts.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from abaton.canonical_json import canonical
from abaton.errors import AbatonError
from abaton.governance.identifiers import Denied, RefusalCode, is_digest, is_name, is_tag, stamp

if TYPE_CHECKING:
    from abaton.governance.sealed_envelope import Looked

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
        raise Denied(RefusalCode.MALFORMED, "this is not a signed statement", where=where)
    body, signer, signature = statement["body"], statement["signer"], statement["signature"]
    if statement["format"] != FORMAT or not isinstance(body, dict) or not isinstance(signer, str):
        raise Denied(RefusalCode.MALFORMED, "this is not a signed statement of this form", where=where)
    if statement["kind"] != kind:
        raise Denied(RefusalCode.FORGED, "a statement of another kind was given", where=where)
    verify = find(signer)
    if verify is None:
        raise Denied(RefusalCode.UNKNOWN_SENDER, "nobody here knows who signed", where=where)
    try:
        raw = base64.b64decode(signature, validate=True) if isinstance(signature, str) else b""
        data = _PREFIX + canonical({k: v for k, v in statement.items() if k != "signature"})
    except (binascii.Error, ValueError, RecursionError, AbatonError):
        raise Denied(
            RefusalCode.MALFORMED, "this is not a signed statement of this form", where=where
        ) from None
    if not verify(raw, data):
        raise Denied(RefusalCode.FORGED, "the signature does not fit", where=where)
    return body


RECEIPT = "receipt"
ORDER = "deletion-order"
DELETED = "deletion-receipt"
CONFIRMED = "consent-receipt"

Find = Callable[[str], Verify | None]
"""The check of a signing key by its id, or nothing if the key does not count."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The centre has an envelope, whole and on its disk."""

    digest: str
    study: str
    sender: str
    sequence: int
    size: int
    at: str


def write_receipt(signer: Signer, looked: Looked, when: datetime) -> Statement:
    """Confirm that an envelope has arrived."""
    head = looked.header
    receipt = Receipt(looked.digest, head.study, head.sender, head.sequence, looked.size, stamp(when))
    return state(signer, RECEIPT, asdict(receipt))


def read_receipt(statement: object, find: Find) -> Receipt:
    """A receipt that the centre has signed."""
    return _made(Receipt, check(statement, RECEIPT, find))


@dataclass(frozen=True, slots=True)
class Order:
    """A site orders everything of one person in one study to be deleted."""

    study: str
    subject: str
    at: str


def write_order(signer: Signer, study: str, subject: str, when: datetime) -> Statement:
    """Order the deletion of a person's records; the same order at the same time gives the same bytes."""
    return state(signer, ORDER, asdict(Order(study, subject, stamp(when))))


def read_order(statement: object, find: Find) -> Order:
    """An order that a site has signed."""
    order = _made(Order, check(statement, ORDER, find))
    if not is_name(order.study) or not is_tag(order.subject):
        raise Denied(RefusalCode.MALFORMED, "the order names nobody", where=ORDER)
    return order


@dataclass(frozen=True, slots=True)
class Deleted:
    """The centre has deleted everything of a person in a study that came from one sender, by one order."""

    study: str
    subject: str
    sender: str
    order: str
    records: int
    at: str


def write_deleted(
    signer: Signer, order: Order, ordered: str, sender: str, records: int, when: datetime
) -> Statement:
    """Confirm that an order was carried out: this very one, known by the fingerprint of its statement."""
    made = Deleted(order.study, order.subject, sender, ordered, records, stamp(when))
    return state(signer, DELETED, asdict(made))


def read_deleted(statement: object, find: Find) -> Deleted:
    """A deletion receipt that the centre has signed."""
    return _made(Deleted, check(statement, DELETED, find))


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The centre has a consent: whose, to what, which one by its fingerprint, and since when."""

    subject: str
    study: str
    document: str
    consent: str
    at: str


def read_confirmed(statement: object, find: Find) -> Confirmed:
    """A confirmation that the centre has signed."""
    return _made(Confirmed, check(statement, CONFIRMED, find))


T = TypeVar("T", Receipt, Order, Deleted, Confirmed)


def _made(kind: type[T], body: dict[str, Any]) -> T:
    names = {field.name: field.type for field in fields(kind)}
    sound = set(names) == set(body) and all(
        type(body[name]) is (int if said == "int" else str) for name, said in names.items()
    )
    if not sound or ("digest" in body and not is_digest(body["digest"])):
        raise Denied(
            RefusalCode.MALFORMED, "a statement says other things than it should", where=kind.__name__
        )
    return kind(**body)
