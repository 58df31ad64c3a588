"""Citizens who take part with their own key, one key per study.

Invariants:
(1) a citizen is a pseudonym and a key created on the citizen's device for one study; two studies cannot be linked;
(2) enrolment proves possession of the key and needs a one-time code unless admission is open, up to the maximum number;
(3) a citizen acts only for their own pseudonym in their own study;
(4) the recovery key, written on paper, can only order the deletion.

Codes are stored as digests. A repeated enrolment gets the same receipt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.audit_log import AuditEntry, append_in
from abaton.governance.consent_status import study_in
from abaton.governance.http_signatures import WINDOW
from abaton.governance.identifiers import base32_text, is_digest, is_pseudonym
from abaton.governance.keys import KeyKind, PublicKey, PublicKeySet, verifier
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.governance.senders import SenderRegistry, SenderRole, claim_subject, register_in
from abaton.governance.signed_statements import (
    DELETION_ORDER,
    DeletionOrder,
    Statement,
    StatementSigner,
    read_order,
    sign_statement,
    verify_statement,
)
from abaton.governance.timestamps import earliest_time, to_timestamp
from abaton.store import Database

ENROLMENT = "person-enrolment"
ENROLLED = "person-receipt"
_WHERE = "enrolment"
_FIELDS = {"study", "document", "subject", "keys", "recovery", "code", "page", "at"}


@dataclass(frozen=True, slots=True)
class EnrolmentReceipt:
    """The centre's confirmation of a citizen's key, with study and build of the page."""

    study: str
    document: str
    subject: str
    sender: str
    page: str
    at: str


def sender_name(subject: str) -> str:
    """Return the sender name of an enrolled citizen, which contains only the pseudonym.

    >>> sender_name("A" * 26)
    'person/AAAAAAAAAAAAAAAAAAAAAAAAAA'
    """
    return f"person/{subject}"  # frozen: part of the bytes


def issue_codes(
    database: Database,
    study: str,
    count: int,
    random_bytes: Callable[[int], bytes],
    when: datetime,
    days: int = 90,
) -> list[str]:
    """Create one-time codes for the enrolment of citizens in a study; only their digests are stored."""
    codes = [base32_text(random_bytes(20)) for _ in range(count)]
    rows = [
        {"code": _code_digest(study, code), "study": study, "valid_until": _expiry(when, days)}
        for code in codes
    ]

    def work(connection: sql.Connection) -> None:
        if study_in(connection, study) is None:
            raise DeniedError(
                RefusalCode.WRONG_STUDY, f"study '{study}' is not published here", where="enrolment codes"
            )
        if rows:
            connection.execute(schema.admissions.insert(), rows)
        append_in(connection, AuditEntry("codes-issued", study=study, detail={"count": count}), when)

    database.write(work, lock=f"study/{study}")
    return codes


def _expiry(when: datetime, days: int) -> str:
    return to_timestamp(when + timedelta(days=days))


def _code_digest(study: str, code: str) -> str:
    label = f"abaton-admission-1\0{study}\0{code}"  # frozen: part of the bytes
    return hashlib.sha256(label.encode()).hexdigest()


class CitizenRegistry:
    """Citizens of one database.

    Args:
        database: Governance database of the centre.
        signer: Key that signs receipts.
    """

    def __init__(self, database: Database, signer: StatementSigner) -> None:
        self.database, self.signer = database, signer

    def enrol(self, statement: object, when: datetime) -> Statement:
        """Enrol a citizen: register the citizen's key and return the signed receipt."""
        body, key_set, recovery = _read_enrolment(statement, when)

        def work(connection: sql.Connection) -> Statement:
            row = connection.execute(_citizen_row(body["study"], body["subject"])).first()
            if row is not None:
                return _earlier_receipt(row, key_set, recovery)
            self._admit(connection, body, when)
            register_in(connection, key_set, SenderRole.CITIZEN, when)
            claim_subject(connection, body["subject"], key_set.name)
            fields = {name: body[name] for name in ("study", "document", "subject", "page")}
            receipt = sign_statement(
                self.signer,
                ENROLLED,
                asdict(EnrolmentReceipt(**fields, sender=key_set.signing_key.id, at=to_timestamp(when))),
            )
            connection.execute(
                schema.citizens.insert().values(
                    study=body["study"],
                    subject=body["subject"],
                    sender=key_set.name,
                    recovery=json.dumps(recovery.row(), sort_keys=True),
                    receipt=json.dumps(receipt, sort_keys=True),
                )
            )
            detail = {"page": body["page"]}
            entry = AuditEntry(
                "citizen-enrolled",
                actor=key_set.signing_key.id,
                subject=body["subject"],
                study=body["study"],
                detail=detail,
            )
            append_in(connection, entry, when)
            return receipt

        return self.database.write(work, lock=f"citizens/{body['study']}")

    def _admit(self, connection: sql.Connection, body: dict[str, Any], when: datetime) -> None:
        published = study_in(connection, body["study"])
        section = json.loads(published.content).get("citizens") if published else None
        if published is None or section is None:
            raise DeniedError(
                RefusalCode.WRONG_STUDY,
                "the study is not published here or does not admit citizens",
                where=_WHERE,
            )
        if not published.is_open(when):
            raise DeniedError(
                RefusalCode.NO_CONSENT, "the study is closed", where=_WHERE, reason="study-closed"
            )
        if published.document != body["document"]:
            raise DeniedError(
                RefusalCode.WRONG_DOCUMENT,
                "the enrolment refers to another version of the study document",
                where=_WHERE,
            )
        persons, codes = schema.citizens, schema.admissions
        count = sql.select(sql.func.count()).where(persons.c.study == body["study"])
        if int(connection.scalar(count) or 0) >= int(section["max_participants"]):
            raise DeniedError(
                RefusalCode.QUOTA, "the study has its maximum number of participants", where=_WHERE
            )
        if section["admission"] == "open":
            return
        used = codes.delete().where(
            codes.c.code == _code_digest(body["study"], body["code"]),
            codes.c.valid_until > to_timestamp(when),
        )
        if connection.execute(used).rowcount != 1:
            raise DeniedError(
                RefusalCode.NOT_APPROVED, "the enrolment code is unknown or already used", where=_WHERE
            )

    def check_subject(self, sender: str, subject: str, study: str) -> None:
        """Raise an error if an enrolled citizen acts for another subject or study; sites are not checked."""
        if not sender.startswith("person/"):
            return
        table = schema.citizens
        selection = sql.select(table.c.study, table.c.subject).where(table.c.sender == sender)
        row = self.database.read(lambda connection: connection.execute(selection).first())
        if row is None or row.subject != subject or study not in ("", row.study):
            raise DeniedError(
                RefusalCode.WRONG_SENDER, "a citizen acts for their own pseudonym only", where="subject"
            )

    def read_recovery_order(self, statement: object) -> tuple[DeletionOrder, str]:
        """Return a deletion order signed with a citizen's recovery key, and the citizen's signing key id."""
        try:
            body = statement["body"]  # type: ignore[index]
            selection = _citizen_row(str(body["study"]), str(body["subject"]))
        except (KeyError, TypeError):
            raise DeniedError(
                RefusalCode.MALFORMED, "this is not a signed statement", where=DELETION_ORDER
            ) from None
        row = self.database.read(lambda connection: connection.execute(selection).first())
        if row is None:
            raise DeniedError(
                RefusalCode.UNKNOWN_SENDER, "the signing key is not registered", where=DELETION_ORDER
            )
        order = read_order(statement, verifier([PublicKey.read(json.loads(row.recovery))]))
        owner = SenderRegistry(self.database).find(row.sender)
        assert owner is not None
        return order, owner.key_set.signing_key.id


def _citizen_row(study: str, subject: str) -> sql.Select[Any]:
    table = schema.citizens
    return sql.select(table).where(table.c.study == study, table.c.subject == subject)


def _earlier_receipt(row: sql.Row[Any], key_set: PublicKeySet, recovery: PublicKey) -> Statement:
    """Return the receipt of a citizen's earlier enrolment with the same keys; other keys are refused."""
    receipt: Statement = json.loads(row.receipt)
    if receipt["body"]["sender"] != key_set.signing_key.id or json.loads(row.recovery) != recovery.row():
        raise DeniedError(
            RefusalCode.WRONG_SENDER, "the pseudonym is registered with another key", where=_WHERE
        )
    return receipt


def _read_enrolment(statement: object, when: datetime) -> tuple[dict[str, Any], PublicKeySet, PublicKey]:
    """Verify a citizen's enrolment statement, which is signed with the key it contains."""
    try:
        key_set = PublicKeySet.read(statement["body"]["keys"])  # type: ignore[index]
    except (KeyError, TypeError):
        raise DeniedError(RefusalCode.MALFORMED, "this is not an enrolment", where=_WHERE) from None
    body = verify_statement(statement, ENROLMENT, verifier([key_set.signing_key]))
    texts = {name: body.get(name) for name in _FIELDS - {"keys", "recovery"}}
    is_valid = set(body) == _FIELDS and all(
        isinstance(text, str) and len(text) <= 200 for text in texts.values()
    )
    if not is_valid or not is_pseudonym(body["subject"]) or not is_digest(body["page"]):
        raise DeniedError(
            RefusalCode.MALFORMED, "the enrolment has missing, unknown or invalid fields", where=_WHERE
        )
    recovery = PublicKey.read(body["recovery"])
    if (
        key_set.name != sender_name(body["subject"])
        or recovery.kind is not KeyKind.SIGN
        or len(key_set.keys) != 2
    ):
        raise DeniedError(
            RefusalCode.MALFORMED,
            "the enclosed keys are not one signing, one sealing and one recovery key of the citizen",
            where=_WHERE,
        )
    if recovery.id == key_set.signing_key.id:
        raise DeniedError(RefusalCode.MALFORMED, "the recovery key equals the signing key", where=_WHERE)
    timestamp = earliest_time(body["at"])
    if timestamp is None or abs(timestamp - when) > WINDOW:
        raise DeniedError(
            RefusalCode.EXPIRED,
            "the enrolment's time is too far from the centre's clock",
            where=_WHERE,
        )
    return body, key_set, recovery
