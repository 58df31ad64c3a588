"""Re-identification: one person, for a stated purpose, by two people, and never unseen.

The data controller signs a request that names one pseudonym, the purpose, a ticket and how long it holds. A second
person signs an approval of exactly that request. The holder of the controller's private key then gets the answer,
after the audit entry is on the disk. A request counts once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import sqlalchemy as sql

from abaton.canonical import digest
from abaton.errors import SettingsError
from abaton.governance.audit import Audit, Entry
from abaton.governance.refusals import Code, Denied
from abaton.governance.rings import Ring
from abaton.governance.senders import Role, Sender, Senders
from abaton.governance.statements import Signer, Statement, check, state
from abaton.governance.tags import is_name
from abaton.governance.times import first_moment, stamp
from abaton.governance.vault import SealedRow, Vault, requests

REQUEST = "reidentification-request"
APPROVAL = "reidentification-approval"
LONGEST = timedelta(days=7)
_TICKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,39}\Z")


class Purpose(StrEnum):
    """Why a person may be re-identified."""

    INCIDENTAL_FINDING = "incidental-finding"
    SAFETY = "safety"
    SUBJECT_REQUEST = "subject-request"
    LEGAL_OBLIGATION = "legal-obligation"
    DATA_QUALITY = "data-quality"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks for."""

    study: str
    pseudonym: str
    purpose: Purpose
    ticket: str

    def __post_init__(self) -> None:
        sound = is_name(self.study) and is_name(self.pseudonym) and len(self.pseudonym) <= 64
        if not sound or not _TICKET.match(self.ticket):
            raise SettingsError(
                "a request names a study, a pseudonym and a ticket",
                remedy="a ticket has up to 40 letters and digits",
            )


def request(signer: Signer, wish: Wish, when: datetime, lasts: timedelta = timedelta(days=1)) -> Statement:
    """The data controller asks who stands behind one pseudonym."""
    if not timedelta() < lasts <= LONGEST:
        raise SettingsError("a request lasts at most seven days", remedy="ask for less")
    body = {
        "role": Role.CONTROLLER.value,
        "study": wish.study,
        "pseudonym": wish.pseudonym,
        "purpose": wish.purpose.value,
        "ticket": wish.ticket,
        "at": stamp(when),
        "until": stamp(when + lasts),
    }
    return state(signer, REQUEST, body)


def approve(signer: Signer, asked: Statement, when: datetime) -> Statement:
    """A second person approves exactly this request."""
    return state(signer, APPROVAL, {"request": digest(asked), "at": stamp(when)})


def reidentify(
    vault: Vault,
    audit: Audit,
    senders: Senders,
    ring: Ring,
    asked: Statement,
    approved: Statement,
    when: datetime,
) -> str:
    """Who stands behind a pseudonym; the audit entry is written before the answer is known.

    Args:
        vault: The mapping table.
        audit: The chain that must tell of it.
        senders: The register in which the roles of the two people stand.
        ring: The data controller's private keys.
        asked: The signed request.
        approved: The signed approval of a second person.
        when: The time now.
    """
    seen = digest(asked) if isinstance(asked, dict) else ""
    requester = str(asked.get("signer", "")) if isinstance(asked, dict) else ""
    try:
        wish, people = _allowed(senders, asked, approved, when)
        row = vault.row_of(wish.study, wish.pseudonym)
        if row is None:
            raise Denied(Code.NOT_FOUND, "there is no such pseudonym in this study", where="vault")
        _use_once(vault, seen, wish, people, when)
    except Denied as error:
        known = requester if senders.owner(requester) else ""
        audit.append(Entry("subject-reidentified", error.code.value, actor=known), when)
        raise
    audit.append(_entry(seen, wish, people, row), when)
    return vault.open(row, ring)


def _entry(seen: str, wish: Wish, people: tuple[Sender, Sender], row: SealedRow) -> Entry:
    requester, approver = people
    detail = {"request": seen, "purpose": wish.purpose.value, "approver": approver.ring.signing.id}
    return Entry(
        "subject-reidentified",
        actor=requester.ring.signing.id,
        about=row.tag,
        study=wish.study,
        detail=detail,
    )


def _allowed(
    senders: Senders, asked: Statement, approved: Statement, when: datetime
) -> tuple[Wish, tuple[Sender, Sender]]:
    requester = _Signed(senders, Role.CONTROLLER)
    approver = _Signed(senders, Role.APPROVER, Role.CONTROLLER)
    body = check(asked, REQUEST, requester)
    approval = check(approved, APPROVAL, approver)
    if approval.get("request") != digest(asked):
        raise Denied(Code.NOT_APPROVED, "the approval is for another request", where="re-identification")
    first, second = requester.who(), approver.who()
    if first.name == second.name or body.get("role") != Role.CONTROLLER.value:
        raise Denied(Code.NOT_APPROVED, "one person cannot ask and approve", where="re-identification")
    start, end = first_moment(body.get("at")), first_moment(body.get("until"))
    if start is None or end is None or not start <= when < end or end - start > LONGEST:
        raise Denied(Code.EXPIRED, "the request does not hold now", where="re-identification")
    return _wish(body), (first, second)


def _wish(body: dict[str, Any]) -> Wish:
    try:
        return Wish(body["study"], body["pseudonym"], Purpose(body["purpose"]), body["ticket"])
    except (KeyError, TypeError, ValueError, SettingsError):
        raise Denied(
            Code.MALFORMED, "the request does not say all it must", where="re-identification"
        ) from None


def _use_once(vault: Vault, seen: str, wish: Wish, people: tuple[Sender, Sender], when: datetime) -> None:
    values = {
        "request": seen,
        "purpose": wish.purpose.value,
        "ticket": wish.ticket,
        "requester": people[0].ring.signing.id,
        "approver": people[1].ring.signing.id,
        "at": stamp(when),
    }

    def work(connection: sql.Connection) -> bool:
        known = connection.scalar(sql.select(requests.c.request).where(requests.c.request == seen))
        if known is None:
            connection.execute(requests.insert().values(**values))
        return known is None

    if not vault.database.write(work, lock=f"request/{seen}"):
        raise Denied(Code.REPLAYED, "this request was answered already", where="re-identification")


class _Signed:
    """Looks a signing key up among people of some roles, and remembers whose it was."""

    def __init__(self, senders: Senders, *roles: Role) -> None:
        self.senders, self.roles, self.key = senders, roles, ""

    def __call__(self, key_id: str) -> Any:
        found = self.senders.signing(key_id, *self.roles)
        self.key = key_id
        return None if found is None else found.verify

    def who(self) -> Sender:
        found = self.senders.owner(self.key)
        assert found is not None
        return found
