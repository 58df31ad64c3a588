"""Consents that a site brings to the centre, who speaks for a person there, and what the centre has confirmed.

A consent is kept only if it is a plain yes, in force now, to the current document of an open study (or to being told
of studies), by a person whom this sender speaks for. Plain means: codes, dates, addresses and the person's tag, and no
free text, so that nobody's name can come in with it. The same consent again gets the same receipt; one that is older
than the person's last no is refused.

The sender who brought the first consent speaks for a person at the centre, and nobody else. A site knows its people by
tags that only it can make, but tags can be read on the outside of envelopes. Without this list a second site could
withdraw, or send in the name of, somebody it has merely seen.

A site keeps which consents the centre has confirmed, each with the receipt that it signed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import sqlalchemy as sql

from abaton.canonical import digest
from abaton.governance import schema
from abaton.governance.audit import Entry, append_in
from abaton.governance.consents import CODES, NOTIFY, SYSTEMS, Action, Ask, Json, Reason, judge
from abaton.governance.refusals import Denied, RefusalCode
from abaton.governance.standing import (
    judged_in,
    newest_in,
    stand,
    study_in,
    subject_lock,
    write_consent,
)
from abaton.governance.statements import Find, Signer, Statement, check, state
from abaton.governance.tags import is_digest, is_name, is_tag
from abaton.governance.times import first_moment, moment
from abaton.records.fhir.elements import resources
from abaton.store import Database, insert_new


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


CONFIRMED = "consent-receipt"
_STUDY, _DOCUMENT = "urn:abaton:study:", "urn:sha256:"
_INNER = frozenset({
    "action", "category", "class", "coding", "patient", "period", "policy", "provision", "purpose", "scope",
})  # fmt: skip
_DEEPEST, _WHERE = 12, "consent"


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
    body = check(statement, CONFIRMED, find)
    names = set(Confirmed.__slots__)
    if set(body) != names or not all(isinstance(body[name], str) for name in names):
        raise Denied(RefusalCode.MALFORMED, "a statement says other things than it should", where=CONFIRMED)
    return Confirmed(**body)


def ask_of(consent: object) -> Ask:
    """Who says yes to what in a Consent resource; anything but codes, dates and tags in it is refused.

    >>> from datetime import UTC
    >>> from abaton.governance.consents import make_consent
    >>> ask_of(make_consent(Ask("A" * 26), datetime(2026, 1, 1, tzinfo=UTC), None)).subject[:3]
    'AAA'
    """
    try:
        if not isinstance(consent, dict) or not is_plain(consent):
            raise TypeError
        subject = consent["patient"]["reference"].removeprefix("Patient/")
        policies = sorted(policy["uri"] for policy in consent["policy"])
        if policies == [NOTIFY]:
            return Ask(subject)
        study, document = policies
        name, pinned = unquote(study.removeprefix(_STUDY)), document.removeprefix(_DOCUMENT)
        sound = study.startswith(_STUDY) and document.startswith(_DOCUMENT)
        if not sound or not is_name(name) or not is_digest(pinned):
            raise TypeError
        return Ask(subject, name, pinned, Action.SEND)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Denied(
            RefusalCode.MALFORMED, "this is not a Consent of the form that is taken", where=_WHERE
        ) from None


def is_plain(node: Mapping[str, object], depth: int = 0) -> bool:
    """Whether a resource holds nothing but known elements with known codes, dates and tags in them."""
    for name, value in node.items():
        each = value if isinstance(value, list) else [value]
        if name in _INNER:
            inner = [part for part in each if isinstance(part, dict)]
            if len(inner) < len(each) or depth > _DEEPEST or not all(is_plain(p, depth + 1) for p in inner):
                return False
        elif name not in _LEAVES or not isinstance(value, str) or not _LEAVES[name](value):
            return False
    return True


def _is_policy(text: str) -> bool:
    if text.startswith(_STUDY):
        return is_name(unquote(text.removeprefix(_STUDY)))
    return text == NOTIFY or (text.startswith(_DOCUMENT) and is_digest(text.removeprefix(_DOCUMENT)))


def _is_time(text: str) -> bool:
    return first_moment(text) is not None


_LEAVES: Mapping[str, Callable[[str], bool]] = {
    "code": lambda text: text in CODES or text in resources(),
    "dateTime": _is_time,
    "end": _is_time,
    "reference": lambda text: text.startswith("Patient/") and is_tag(text.removeprefix("Patient/")),
    "resourceType": lambda text: text == "Consent",
    "start": _is_time,
    "status": lambda text: text == "active",
    "system": lambda text: text in SYSTEMS,
    "type": lambda text: text in {"permit", "deny"},
    "uri": _is_policy,
}


def take_consent(
    database: Database, consent: Any, sender: str, key: str, signer: Signer, when: datetime
) -> Statement:
    """Keep a consent that a site brings, and confirm it with a signed receipt.

    Args:
        database: The governance database of the centre.
        consent: The FHIR Consent.
        sender: The name of the site.
        key: The key with which the site signed its request.
        signer: The centre's signing key.
        when: The time now.
    """
    ask = ask_of(consent)

    def work(connection: sql.Connection) -> str:
        claim_in(connection, ask.subject, sender)
        if newest_in(connection, ask.subject, ask.study) != consent:
            _check(connection, consent, ask, when)
            write_consent(connection, ask, consent, when)
            if ask.study:
                stand(connection, [ask.subject], ask.study, "on-study", when)
            action = "subject-enrolled" if ask.study else "subject-opted-in"
            detail = {"document": ask.document} if ask.document else {}
            entry = Entry(action, actor=key, about=ask.subject, study=ask.study, detail=detail)
            append_in(connection, entry, when)
        return changed_in(connection, ask.subject, ask.study)

    at = database.write(work, lock=subject_lock(ask.subject))
    return state(
        signer, CONFIRMED, asdict(Confirmed(ask.subject, ask.study, ask.document, digest(consent), at))
    )


def _check(connection: sql.Connection, consent: Json, ask: Ask, when: datetime) -> None:
    if ask.study:
        found = study_in(connection, ask.study)
        if found is None:
            raise Denied(RefusalCode.WRONG_STUDY, "there is no such study here", where=_WHERE)
        if not found.is_open(when):
            raise _no(Reason.STUDY_CLOSED)
        if found.document != ask.document:
            raise Denied(RefusalCode.WRONG_DOCUMENT, "the study has another document now", where=_WHERE)
        if not judged_in(connection, Ask(ask.subject), when).allows:
            raise _no(Reason.NOT_OPTED_IN)
    reason = judge(consent, ask, when)
    if not reason.allows:
        raise _no(reason)
    last = newest_in(connection, ask.subject, ask.study)
    if last is not None and last.get("status") != "active":
        said, no = first_moment(consent.get("dateTime")), changed_in(connection, ask.subject, ask.study)
        if said is None or said <= moment(no):
            raise Denied(RefusalCode.REPLAYED, "the person has said no since this consent", where=_WHERE)


def changed_in(connection: sql.Connection, subject: str, study: str) -> str:
    """When the newest consent of a person was written down; empty if there is none."""
    table = schema.consents
    chosen = sql.select(table.c.changed).where(table.c.subject == subject, table.c.study == study)
    return str(connection.scalar(chosen.order_by(table.c.version.desc()).limit(1)) or "")


def _no(reason: Reason) -> Denied:
    return Denied(RefusalCode.NO_CONSENT, f"the consent is not in force: {reason.value}", reason=reason.value)


def is_confirmed(database: Database, subject: str, study: str, consent: str) -> bool:
    """Whether the centre has confirmed this very consent of a person, known by its fingerprint."""
    table = schema.acknowledged
    chosen = sql.select(table.c.consent).where(table.c.subject == subject, table.c.study == study)
    return database.read(lambda connection: connection.scalar(chosen)) == consent


def keep_confirmation(
    database: Database, asked: tuple[str, str, str], statement: Statement, find: Find, when: datetime
) -> Confirmed:
    """Check a confirmation and keep it; one for something else is refused.

    Args:
        database: The governance database of the site.
        asked: The person, the study and the fingerprint of the consent that was sent.
        statement: What the centre answered.
        find: The centre's signing key by its id.
        when: The time now.
    """
    confirmed = read_confirmed(statement, find)
    subject, study, consent = asked
    if (confirmed.subject, confirmed.study, confirmed.consent) != asked:
        raise Denied(RefusalCode.FORGED, "the confirmation is for something else", where="consent")
    row = {"subject": subject, "study": study, "consent": consent}

    def work(connection: sql.Connection) -> None:
        table = schema.acknowledged
        connection.execute(table.delete().where(table.c.subject == subject, table.c.study == study))
        connection.execute(table.insert().values(**row, receipt=json.dumps(statement, sort_keys=True)))
        append_in(connection, Entry("consent-confirmed", about=subject, study=study), when)

    database.write(work, lock=subject_lock(subject))
    return confirmed
