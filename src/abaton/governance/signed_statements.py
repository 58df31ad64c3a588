"""Signed statements: receipts, deletion orders, approvals, checkpoints and key rotations.

A statement is a JSON object with ``format``, ``kind``, ``body``, ``signer`` (id of the signing key) and ``signature``
(Ed25519 over a fixed prefix and the canonical JSON of the other four). Verification names the expected kind, so that no
statement is accepted in place of another.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from abaton.canonical_json import to_canonical_json
from abaton.errors import AbatonError
from abaton.governance.identifiers import is_digest, is_name, is_pseudonym
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.governance.timestamps import to_timestamp

if TYPE_CHECKING:
    from abaton.governance.sealed_envelope import EnvelopeInfo

FORMAT = "abaton-statement/1"
_PREFIX = b"abaton-statement-1\0"  # frozen: part of the bytes

Statement = dict[str, Any]


class StatementSigner(Protocol):
    """Key that signs statements."""

    @property
    def id(self) -> str:
        """Id of the key that signs a statement."""

    def sign(self, data: bytes) -> bytes:
        """Return the Ed25519 signature of the data of a statement."""


Verify = Callable[[bytes, bytes], bool]
"""Verification function: (signature, data) to validity."""


def sign_statement(signer: StatementSigner, kind: str, body: Mapping[str, Any]) -> Statement:
    """Return a signed statement."""
    unsigned = {"format": FORMAT, "kind": kind, "body": dict(body), "signer": signer.id}
    signature = signer.sign(_PREFIX + to_canonical_json(unsigned))
    return {**unsigned, "signature": base64.b64encode(signature).decode()}


def verify_statement(statement: object, kind: str, find: Callable[[str], Verify | None]) -> dict[str, Any]:
    """Return the body of a valid signed statement of the expected kind; anything else is refused.

    Args:
        statement: The statement to verify.
        kind: Its expected kind.
        find: Returns the verification function of a signing key by id; None if the key is not accepted.
    """
    where = f"statement '{kind}'"
    if not isinstance(statement, dict) or set(statement) != {"format", "kind", "body", "signer", "signature"}:
        raise DeniedError(RefusalCode.MALFORMED, "the data are not a signed statement", where=where)
    body, signer, signature = statement["body"], statement["signer"], statement["signature"]
    if statement["format"] != FORMAT or not isinstance(body, dict) or not isinstance(signer, str):
        raise DeniedError(RefusalCode.MALFORMED, "the signed statement is malformed", where=where)
    if statement["kind"] != kind:
        raise DeniedError(RefusalCode.FORGED, "the statement has another kind", where=where)
    verify = find(signer)
    if verify is None:
        raise DeniedError(RefusalCode.UNKNOWN_SENDER, "the signing key is not registered", where=where)
    try:
        raw = base64.b64decode(signature, validate=True) if isinstance(signature, str) else b""
        data = _PREFIX + to_canonical_json({k: v for k, v in statement.items() if k != "signature"})
    except (binascii.Error, ValueError, RecursionError, AbatonError):
        raise DeniedError(RefusalCode.MALFORMED, "the signed statement is malformed", where=where) from None
    if not verify(raw, data):
        raise DeniedError(RefusalCode.FORGED, "the signature does not verify", where=where)
    return body


RECEIPT = "receipt"
DELETION_ORDER = "deletion-order"
DELETION_RECEIPT = "deletion-receipt"
CONSENT_RECEIPT = "consent-receipt"

Find = Callable[[str], Verify | None]
"""Lookup of the verification function of a signing key by id; None if the key is not accepted."""


@dataclass(frozen=True, slots=True)
class TransferReceipt:
    """The centre's confirmation that an envelope is complete and on its disk."""

    digest: str
    study: str
    sender: str
    sequence: int
    size: int
    at: str


def write_receipt(signer: StatementSigner, info: EnvelopeInfo, when: datetime) -> Statement:
    """Sign a statement that is the receipt of an envelope."""
    header = info.header
    receipt = TransferReceipt(
        info.digest, header.study, header.sender, header.sequence, info.size, to_timestamp(when)
    )
    return sign_statement(signer, RECEIPT, asdict(receipt))


def read_receipt(statement: object, find: Find) -> TransferReceipt:
    """Verify the signed statement that is the centre's receipt of an envelope."""
    return _parse_body(TransferReceipt, verify_statement(statement, RECEIPT, find))


@dataclass(frozen=True, slots=True)
class DeletionOrder:
    """Order to delete all records of one subject in one study."""

    study: str
    subject: str
    at: str


def write_order(signer: StatementSigner, study: str, subject: str, when: datetime) -> Statement:
    """Sign a statement that orders a deletion; the same order and time give the same bytes."""
    return sign_statement(signer, DELETION_ORDER, asdict(DeletionOrder(study, subject, to_timestamp(when))))


def read_order(statement: object, find: Find) -> DeletionOrder:
    """Verify the signed statement of a deletion order."""
    order = _parse_body(DeletionOrder, verify_statement(statement, DELETION_ORDER, find))
    if not is_name(order.study) or not is_pseudonym(order.subject):
        raise DeniedError(
            RefusalCode.MALFORMED, "the order has no valid study and subject", where=DELETION_ORDER
        )
    return order


@dataclass(frozen=True, slots=True)
class DeletionReceipt:
    """The centre's confirmation that all records of a subject in a study from one sender are deleted."""

    study: str
    subject: str
    sender: str
    order: str
    records: int
    at: str


def write_deletion_receipt(
    signer: StatementSigner,
    order: DeletionOrder,
    order_digest: str,
    sender: str,
    records: int,
    when: datetime,
) -> Statement:
    """Sign the receipt statement of an executed deletion order, identified by the digest of the order."""
    receipt = DeletionReceipt(order.study, order.subject, sender, order_digest, records, to_timestamp(when))
    return sign_statement(signer, DELETION_RECEIPT, asdict(receipt))


def read_deletion_receipt(statement: object, find: Find) -> DeletionReceipt:
    """Verify the signed statement that is the centre's deletion receipt."""
    return _parse_body(DeletionReceipt, verify_statement(statement, DELETION_RECEIPT, find))


@dataclass(frozen=True, slots=True)
class ConsentReceipt:
    """The centre's confirmation of a consent, identified by digest."""

    subject: str
    study: str
    document: str
    consent: str
    at: str


def read_consent_receipt(statement: object, find: Find) -> ConsentReceipt:
    """Verify the signed statement that is the centre's consent receipt."""
    return _parse_body(ConsentReceipt, verify_statement(statement, CONSENT_RECEIPT, find))


T = TypeVar("T", TransferReceipt, DeletionOrder, DeletionReceipt, ConsentReceipt)


def _parse_body(kind: type[T], body: dict[str, Any]) -> T:
    names = {field.name: field.type for field in fields(kind)}
    is_valid = set(names) == set(body) and all(
        type(body[name]) is (int if annotation == "int" else str) for name, annotation in names.items()
    )
    if not is_valid or ("digest" in body and not is_digest(body["digest"])):
        raise DeniedError(
            RefusalCode.MALFORMED,
            "the statement body has missing, unknown or invalid fields",
            where=kind.__name__,
        )
    return kind(**body)
