"""Re-identification of one subject for a stated purpose, with two signatures and an audit entry.

The data controller signs a request with one pseudonym, purpose, ticket and validity. A second person signs an
approval of exactly that request. The holder of the data controller's private key gets the identity after the audit
entry is on disk. A request is valid once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import sqlalchemy as sql

from abaton.canonical_json import canonical_digest
from abaton.errors import SettingsError
from abaton.governance.audit_log import AuditEntry, AuditLog
from abaton.governance.identifiers import is_name
from abaton.governance.keys import KeySet
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.governance.senders import Sender, SenderRegistry, SenderRole
from abaton.governance.signed_statements import Statement, StatementSigner, sign_statement, verify_statement
from abaton.governance.timestamps import earliest_time, to_timestamp
from abaton.governance.vault import SealedRow, Vault, requests

REQUEST = "reidentification-request"


APPROVAL = "reidentification-approval"


MAX_VALIDITY = timedelta(days=7)


_TICKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,39}\Z")


class VaultPurpose(StrEnum):
    """Purpose of a re-identification."""

    INCIDENTAL_FINDING = "incidental-finding"
    SAFETY = "safety"
    SUBJECT_REQUEST = "subject-request"
    LEGAL_OBLIGATION = "legal-obligation"
    DATA_QUALITY = "data-quality"


@dataclass(frozen=True, slots=True)
class ReidentificationRequest:
    """Content of a re-identification request."""

    study: str
    pseudonym: str
    purpose: VaultPurpose
    ticket: str

    def __post_init__(self) -> None:
        is_valid = is_name(self.study) and is_name(self.pseudonym) and len(self.pseudonym) <= 64
        if not is_valid or not _TICKET.match(self.ticket):
            raise SettingsError(
                "the study, the pseudonym or the ticket is invalid",
                remedy="give a study, a pseudonym and a ticket of up to 40 letters and digits",
            )


def request(
    signer: StatementSigner,
    details: ReidentificationRequest,
    when: datetime,
    valid_for: timedelta = timedelta(days=1),
) -> Statement:
    """Sign a re-identification request for one pseudonym, as the data controller."""
    if not timedelta() < valid_for <= MAX_VALIDITY:
        raise SettingsError(
            f"the validity is {valid_for}, not between 0 and 7 days", remedy="use at most 7 days"
        )
    body = {
        "role": SenderRole.DATA_CONTROLLER.value,
        "study": details.study,
        "pseudonym": details.pseudonym,
        "purpose": details.purpose.value,
        "ticket": details.ticket,
        "at": to_timestamp(when),
        "until": to_timestamp(when + valid_for),
    }
    return sign_statement(signer, REQUEST, body)


def approve(signer: StatementSigner, signed_request: Statement, when: datetime) -> Statement:
    """Sign the approval of exactly this re-identification request, as a second person."""
    return sign_statement(
        signer, APPROVAL, {"request": canonical_digest(signed_request), "at": to_timestamp(when)}
    )


def reidentify(
    vault: Vault,
    audit: AuditLog,
    senders: SenderRegistry,
    key_set: KeySet,
    signed_request: Statement,
    approval: Statement,
    when: datetime,
) -> str:
    """Return the re-identified subject of a pseudonym; the audit entry is written before decryption.

    Args:
        vault: The mapping table.
        audit: The audit log.
        senders: Register with the roles of both signers.
        key_set: Private keys of the data controller.
        signed_request: The signed request.
        approval: The signed approval of a second person.
        when: The current time.
    """
    request_digest = canonical_digest(signed_request) if isinstance(signed_request, dict) else ""
    requester = str(signed_request.get("signer", "")) if isinstance(signed_request, dict) else ""
    try:
        details, signers = _check_signatures(senders, signed_request, approval, when)
        row = vault.row_by_pseudonym(details.study, details.pseudonym)
        if row is None:
            raise DeniedError(
                RefusalCode.NOT_FOUND, f"study '{details.study}' has no such pseudonym", where="vault"
            )
        _use_once(vault, request_digest, details, signers, when)
    except DeniedError as error:
        known = requester if senders.owner(requester) else ""
        audit.append(AuditEntry("subject-reidentified", error.code.value, actor=known), when)
        raise
    audit.append(_audit_entry(request_digest, details, signers, row), when)
    return vault.open(row, key_set)


def _audit_entry(
    request_digest: str, details: ReidentificationRequest, signers: tuple[Sender, Sender], row: SealedRow
) -> AuditEntry:
    requester, approver = signers
    detail = {
        "request": request_digest,
        "purpose": details.purpose.value,
        "approver": approver.key_set.signing_key.id,
    }
    return AuditEntry(
        "subject-reidentified",
        actor=requester.key_set.signing_key.id,
        subject=row.subject_pseudonym,
        study=details.study,
        detail=detail,
    )


def _check_signatures(
    senders: SenderRegistry, signed_request: Statement, approval: Statement, when: datetime
) -> tuple[ReidentificationRequest, tuple[Sender, Sender]]:
    requester = _SignerLookup(senders, SenderRole.DATA_CONTROLLER)
    approver = _SignerLookup(senders, SenderRole.APPROVER, SenderRole.DATA_CONTROLLER)
    body = verify_statement(signed_request, REQUEST, requester)
    approval_body = verify_statement(approval, APPROVAL, approver)
    if approval_body.get("request") != canonical_digest(signed_request):
        raise DeniedError(
            RefusalCode.NOT_APPROVED, "the approval refers to another request", where="re-identification"
        )
    first, second = requester.sender(), approver.sender()
    if first.name == second.name or body.get("role") != SenderRole.DATA_CONTROLLER.value:
        raise DeniedError(
            RefusalCode.NOT_APPROVED,
            "the request and the approval are signed by the same person",
            where="re-identification",
        )
    start, end = earliest_time(body.get("at")), earliest_time(body.get("until"))
    if start is None or end is None or not start <= when < end or end - start > MAX_VALIDITY:
        raise DeniedError(
            RefusalCode.EXPIRED, "the request is not valid at this time", where="re-identification"
        )
    return _parse_request(body), (first, second)


def _parse_request(body: dict[str, Any]) -> ReidentificationRequest:
    try:
        return ReidentificationRequest(
            body["study"], body["pseudonym"], VaultPurpose(body["purpose"]), body["ticket"]
        )
    except (KeyError, TypeError, ValueError, SettingsError):
        raise DeniedError(
            RefusalCode.MALFORMED, "the request has missing or invalid fields", where="re-identification"
        ) from None


def _use_once(
    vault: Vault,
    request_digest: str,
    details: ReidentificationRequest,
    signers: tuple[Sender, Sender],
    when: datetime,
) -> None:
    values = {
        "request": request_digest,
        "purpose": details.purpose.value,
        "ticket": details.ticket,
        "requester": signers[0].key_set.signing_key.id,
        "approver": signers[1].key_set.signing_key.id,
        "recorded_at": to_timestamp(when),
    }

    def work(connection: sql.Connection) -> bool:
        known = connection.scalar(sql.select(requests.c.request).where(requests.c.request == request_digest))
        if known is None:
            connection.execute(requests.insert().values(**values))
        return known is None

    if not vault.database.write(work, lock=f"request/{request_digest}"):
        raise DeniedError(RefusalCode.REPLAYED, "the request was used already", where="re-identification")


class _SignerLookup:
    """Lookup of a signing key among senders with some roles; remembers the key."""

    def __init__(self, senders: SenderRegistry, *roles: SenderRole) -> None:
        self.senders, self.roles, self.key = senders, roles, ""

    def __call__(self, key_id: str) -> Any:
        key = self.senders.signing_key(key_id, *self.roles)
        self.key = key_id
        return None if key is None else key.verify

    def sender(self) -> Sender:
        owner = self.senders.owner(self.key)
        assert owner is not None
        return owner
