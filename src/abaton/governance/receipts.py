"""The statements that pass between a site and a research centre: receipts, deletion orders and their receipts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

from abaton.governance.refusals import Code, Denied
from abaton.governance.seal import Looked
from abaton.governance.statements import Signer, Statement, Verify, check, state
from abaton.governance.tags import is_digest, is_name, is_tag
from abaton.governance.times import stamp

RECEIPT = "receipt"
ORDER = "deletion-order"
DELETED = "deletion-receipt"

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
        raise Denied(Code.MALFORMED, "the order names nobody", where=ORDER)
    return order


@dataclass(frozen=True, slots=True)
class Deleted:
    """The centre has deleted everything of a person in a study that came from one sender."""

    study: str
    subject: str
    sender: str
    records: int
    at: str


def write_deleted(signer: Signer, order: Order, sender: str, records: int, when: datetime) -> Statement:
    """Confirm that an order was carried out."""
    made = Deleted(order.study, order.subject, sender, records, stamp(when))
    return state(signer, DELETED, asdict(made))


def read_deleted(statement: object, find: Find) -> Deleted:
    """A deletion receipt that the centre has signed."""
    return _made(Deleted, check(statement, DELETED, find))


T = TypeVar("T", Receipt, Order, Deleted)


def _made(kind: type[T], body: dict[str, Any]) -> T:
    names = {field.name: field.type for field in fields(kind)}
    sound = set(names) == set(body) and all(
        type(body[name]) is (int if said == "int" else str) for name, said in names.items()
    )
    if not sound or ("digest" in body and not is_digest(body["digest"])):
        raise Denied(Code.MALFORMED, "a statement says other things than it should", where=kind.__name__)
    return kind(**body)
