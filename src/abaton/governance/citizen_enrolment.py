"""People who take part themselves: enrolled with a key of their own for one study, and known by nothing else.

Invariants:
(1) a person is a tag and a key, made on their own device for one study; nothing joins two studies of one person;
(2) whoever enrols shows that they hold the key, and a one-time code unless the study lets anybody in, up to its number;
(3) a person speaks for their own tag in their own study, and for nobody else anywhere;
(4) the key on paper (the recovery key) can do one thing: order the deletion.

Codes are kept as fingerprints. The same enrolment again gets the same receipt.
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
from abaton.governance.audit_log import Entry, append_in
from abaton.governance.keys import Kind, PublicKey, PublicRing, verifier
from abaton.governance.senders import WINDOW, SenderRole, Senders, claim_in, enter_in
from abaton.governance.consent_status import study_in
from abaton.governance.signed_statements import ORDER, Order, Signer, Statement, check, read_order, state
from abaton.governance.identifiers import Denied, RefusalCode, first_moment, is_digest, is_tag, letters, stamp
from abaton.store import Database

ENROLMENT = "person-enrolment"
ENROLLED = "person-receipt"
_WHERE = "enrolment"
_FIELDS = {"study", "document", "subject", "keys", "recovery", "code", "page", "at"}


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The centre knows a person's key: for which study, and on which build of the page it was made."""

    study: str
    document: str
    subject: str
    sender: str
    page: str
    at: str


def person_name(subject: str) -> str:
    """How the sender is called that a person is: by the tag alone.

    >>> person_name("A" * 26)
    'person/AAAAAAAAAAAAAAAAAAAAAAAAAA'
    """
    return f"person/{subject}"


def make_codes(
    database: Database, study: str, number: int, draw: Callable[[int], bytes], when: datetime, days: int = 90
) -> list[str]:
    """Make one-time codes with which people may enrol in a study; only their fingerprints are kept."""
    codes = [letters(draw(20)) for _ in range(number)]
    rows = [{"code": _mark(study, code), "study": study, "until": _later(when, days)} for code in codes]

    def work(connection: sql.Connection) -> None:
        if study_in(connection, study) is None:
            raise Denied(RefusalCode.WRONG_STUDY, "there is no such study here", where="codes")
        if rows:
            connection.execute(schema.admissions.insert(), rows)
        append_in(connection, Entry("codes-made", study=study, detail={"number": number}), when)

    database.write(work, lock=f"study/{study}")
    return codes


def _later(when: datetime, days: int) -> str:
    return stamp(when + timedelta(days=days))


def _mark(study: str, code: str) -> str:
    return hashlib.sha256(f"abaton-admission-1\0{study}\0{code}".encode()).hexdigest()


class Persons:
    """The people of one database.

    Args:
        database: The governance database of the centre.
        signer: The key that signs receipts.
    """

    def __init__(self, database: Database, signer: Signer) -> None:
        self.database, self.signer = database, signer

    def enrol(self, statement: object, when: datetime) -> Statement:
        """Enter a person's key; the receipt that the centre has signed."""
        body, ring, recovery = _read(statement, when)

        def work(connection: sql.Connection) -> Statement:
            row = connection.execute(_of(body["study"], body["subject"])).first()
            if row is not None:
                return _again(row, ring, recovery)
            self._admit(connection, body, when)
            enter_in(connection, ring, SenderRole.PERSON, when)
            claim_in(connection, body["subject"], ring.name)
            made = {name: body[name] for name in ("study", "document", "subject", "page")}
            receipt = state(
                self.signer, ENROLLED, asdict(Enrolled(**made, sender=ring.signing.id, at=stamp(when)))
            )
            connection.execute(
                schema.persons.insert().values(
                    study=body["study"],
                    subject=body["subject"],
                    sender=ring.name,
                    recovery=json.dumps(recovery.row(), sort_keys=True),
                    receipt=json.dumps(receipt, sort_keys=True),
                )
            )
            detail = {"page": body["page"]}
            entry = Entry(
                "person-enrolled",
                actor=ring.signing.id,
                about=body["subject"],
                study=body["study"],
                detail=detail,
            )
            append_in(connection, entry, when)
            return receipt

        return self.database.write(work, lock=f"persons/{body['study']}")

    def _admit(self, connection: sql.Connection, body: dict[str, Any], when: datetime) -> None:
        found = study_in(connection, body["study"])
        rules = json.loads(found.content).get("persons") if found else None
        if found is None or rules is None:
            raise Denied(RefusalCode.WRONG_STUDY, "there is no study here that people may join", where=_WHERE)
        if not found.is_open(when):
            raise Denied(RefusalCode.NO_CONSENT, "the study is closed", where=_WHERE, reason="study-closed")
        if found.document != body["document"]:
            raise Denied(RefusalCode.WRONG_DOCUMENT, "the study has another document now", where=_WHERE)
        persons, codes = schema.persons, schema.admissions
        count = sql.select(sql.func.count()).where(persons.c.study == body["study"])
        if int(connection.scalar(count) or 0) >= int(rules["most"]):
            raise Denied(RefusalCode.QUOTA, "as many people as the study takes are in it", where=_WHERE)
        if rules["admission"] == "open":
            return
        used = codes.delete().where(
            codes.c.code == _mark(body["study"], body["code"]), codes.c.until > stamp(when)
        )
        if connection.execute(used).rowcount != 1:
            raise Denied(RefusalCode.NOT_APPROVED, "the code is not known, or was used before", where=_WHERE)

    def check(self, sender: str, subject: str, study: str) -> None:
        """Refuse a person who speaks for another tag or in another study than their own; sites are not meant."""
        if not sender.startswith("person/"):
            return
        table = schema.persons
        chosen = sql.select(table.c.study, table.c.subject).where(table.c.sender == sender)
        row = self.database.read(lambda connection: connection.execute(chosen).first())
        if row is None or row.subject != subject or study not in ("", row.study):
            raise Denied(RefusalCode.NOT_YOURS, "a person speaks for nobody else", where="subject")

    def by_recovery(self, statement: object) -> tuple[Order, str]:
        """A deletion order that was signed with the key on paper, and the signing key of the person it speaks for."""
        try:
            body = statement["body"]  # type: ignore[index]
            chosen = _of(str(body["study"]), str(body["subject"]))
        except (KeyError, TypeError):
            raise Denied(RefusalCode.MALFORMED, "this is not a signed statement", where=ORDER) from None
        row = self.database.read(lambda connection: connection.execute(chosen).first())
        if row is None:
            raise Denied(RefusalCode.UNKNOWN_SENDER, "nobody here knows who signed", where=ORDER)
        order = read_order(statement, verifier([PublicKey.read(json.loads(row.recovery))]))
        owner = Senders(self.database).find(row.sender)
        assert owner is not None
        return order, owner.ring.signing.id


def _of(study: str, subject: str) -> sql.Select[Any]:
    table = schema.persons
    return sql.select(table).where(table.c.study == study, table.c.subject == subject)


def _again(row: sql.Row[Any], ring: PublicRing, recovery: PublicKey) -> Statement:
    """The receipt of a person who is known, if the keys are the same; somebody else's tag cannot be taken over."""
    receipt: Statement = json.loads(row.receipt)
    if receipt["body"]["sender"] != ring.signing.id or json.loads(row.recovery) != recovery.row():
        raise Denied(RefusalCode.NOT_YOURS, "this tag has another key already", where=_WHERE)
    return receipt


def _read(statement: object, when: datetime) -> tuple[dict[str, Any], PublicRing, PublicKey]:
    """An enrolment that was signed with the very key that it brings, now."""
    try:
        ring = PublicRing.read(statement["body"]["keys"])  # type: ignore[index]
    except (KeyError, TypeError):
        raise Denied(RefusalCode.MALFORMED, "this is not an enrolment", where=_WHERE) from None
    body = check(statement, ENROLMENT, verifier([ring.signing]))
    texts = {name: body.get(name) for name in _FIELDS - {"keys", "recovery"}}
    sound = set(body) == _FIELDS and all(
        isinstance(text, str) and len(text) <= 200 for text in texts.values()
    )
    if not sound or not is_tag(body["subject"]) or not is_digest(body["page"]):
        raise Denied(RefusalCode.MALFORMED, "the enrolment says other things than it should", where=_WHERE)
    recovery = PublicKey.read(body["recovery"])
    if ring.name != person_name(body["subject"]) or recovery.kind is not Kind.SIGN or len(ring.keys) != 2:
        raise Denied(RefusalCode.MALFORMED, "the keys are not those of one person", where=_WHERE)
    if recovery.id == ring.signing.id:
        raise Denied(RefusalCode.MALFORMED, "the key on paper is the one on the device", where=_WHERE)
    at = first_moment(body["at"])
    if at is None or abs(at - when) > WINDOW:
        raise Denied(
            RefusalCode.EXPIRED, "the enrolment is not of this moment: the clocks differ", where=_WHERE
        )
    return body, ring, recovery
