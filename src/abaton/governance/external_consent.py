"""What comes to a registry from elsewhere: forms, opt-out lists and permits at a site, sites' consents at the centre.

Invariants:
(1) what is taken over is written with an audit entry in one transaction; reading the same again changes nothing;
(2) whoever has withdrawn here stays out until they sign again; whose form is no longer there is out while it is not;
(3) an opt-out wins over every consent and every permit, for as long as it is on the list.

The centre keeps a consent that a site brings only if it is a plain yes, in force now, to the current document of an
open study (or to being told of studies), by a person whom this sender speaks for. Plain means: codes, dates, addresses
and the person's tag, and no free text, so that nobody's name can come in with it. The same consent again gets the same
receipt; one that is older than the person's last no is refused. The site keeps which consents the centre has confirmed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import sqlalchemy as sql

from abaton.canonical_json import digest
from abaton.errors import SettingsError
from abaton.governance import schema
from abaton.governance.audit_log import Entry, Held, append_in, append_many, held_in
from abaton.governance.consent import CODES, NOTIFY, SYSTEMS, Action, Ask, Json, Permit, Reason, ended, judge
from abaton.governance.consent_forms import Terms
from abaton.governance.consent_registry import Registry, check_tag, no
from abaton.governance.senders import claim_in
from abaton.governance.consent_status import (
    hold_all,
    in_chunks,
    judged_in,
    newest_in,
    newest_of,
    read_consent,
    stand,
    study_in,
    subject_lock,
    withdraw_in,
    write_consent,
    write_consents,
)
from abaton.governance.signed_statements import CONFIRMED, Confirmed, Find, Signer, Statement, read_confirmed, state
from abaton.governance.identifiers import (
    Denied,
    RefusalCode,
    first_moment,
    is_digest,
    is_name,
    is_tag,
    stamp,
)
from abaton.fhir.elements import resources
from abaton.store import Database, insert_new


def note_permit(registry: Registry, study: str, purpose: str, permit: Permit, when: datetime) -> Held:
    """Write a permit and what the study is for into the audit chain, once; the ground that it is from then on."""
    text = json.dumps({"permit": permit.row(), "purpose": purpose}, sort_keys=True)
    ground_noted(registry, study, permit.document, "permit-noted", permit.digest, when, permit=text)
    words = f"permit {permit.digest} for {permit.document}"
    return registry.database.read(lambda connection: held_in(connection, words))


def state_ground(
    registry: Registry, study: str, document: str, site: str, words: str, when: datetime
) -> Held:
    """Write down, once, that a site answers for a lawful ground of its own; the ground as the audit chain holds it.

    The chain holds the fingerprint of the words, which may name people or places.
    """
    if not words.strip():
        raise SettingsError("no ground is stated", remedy="say why these records may be used")
    stated = digest({"site": site, "ground": words})
    ground_noted(registry, study, document, "ground-stated", stated, when)
    return registry.database.read(lambda connection: held_in(connection, words))


def ground_noted(
    registry: Registry,
    study: str,
    document: str,
    action: str,
    ground: str,
    when: datetime,
    *,
    permit: str = "",
) -> None:
    """Write down once on which ground, known by its fingerprint, a study's document is worked on without consents."""
    row = {"study": study, "document": document, "ground": ground}

    def work(connection: sql.Connection) -> None:
        table = schema.grounds
        chosen = sql.select(table.c.noted).where(*(table.c[name] == value for name, value in row.items()))
        if connection.scalar(chosen) is None:
            connection.execute(table.insert().values(**row, noted=stamp(when), permit=permit))
            detail = {"document": document, "ground": ground}
            append_in(connection, Entry(action, study=study, detail=detail), when)

    registry.database.write(work, lock=f"study/{study}")


def set_opt_outs(registry: Registry, people: Collection[str], when: datetime) -> tuple[int, int]:
    """Take over the list of those who have opted out; how many came onto it, and how many left it."""
    for subject in people:
        check_tag(subject)

    def work(connection: sql.Connection) -> tuple[int, int]:
        table, wanted = schema.opt_outs, set(people)
        before = set(connection.scalars(sql.select(table.c.subject)))
        new, gone = sorted(wanted - before), sorted(before - wanted)
        hold_all(connection, [*new, *gone])
        if new:
            connection.execute(table.insert(), [{"subject": s, "since": stamp(when)} for s in new])
        for some in in_chunks(gone):
            connection.execute(table.delete().where(table.c.subject.in_(some)))
        told = [("opt-out-listed", s) for s in new] + [("opt-out-lifted", s) for s in gone]
        append_many(connection, (Entry(action, about=subject) for action, subject in told), when)
        return len(new), len(gone)

    return registry.database.write(work, lock="opt-outs")


@dataclass(slots=True)
class TakenOver:
    """What reading people's forms has changed.

    Attributes:
        written: how many consents are new or changed.
        same: how many are as they were.
        withdrew_here: how many were passed over, because the person has said no here since they signed.
        out: who has taken a yes back on a form.
        missing: whose form is not there any more; they are out, and in again once it is back.
    """

    written: int = 0
    same: int = 0
    withdrew_here: int = 0
    out: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def keep_terms(
    registry: Registry, people: Mapping[str, Terms], study: str, document: str, when: datetime
) -> TakenOver:
    """Take over what people allow by the forms that they have signed, for one study's document, in one transaction.

    Args:
        registry: The site's consents.
        people: Everybody who has signed one of the forms, by their tags, and what they allow.
        study: The study.
        document: The fingerprint of its current document.
        when: The time now.
    """
    for subject in people:
        check_tag(subject)

    def work(connection: sql.Connection) -> TakenOver:
        found = study_in(connection, study)
        if found is None or not found.is_open(when):
            raise no(Reason.STUDY_CLOSED)
        if found.document != document:
            raise no(Reason.OTHER_DOCUMENT)
        table = schema.form_consents
        before = set(connection.scalars(sql.select(table.c.subject).where(table.c.study == study)))
        yes = sorted(s for s, terms in people.items() if not terms.is_no and not terms.is_taken_back(when))
        out, missing = sorted(before & (people.keys() - set(yes))), sorted(before - people.keys())
        hold_all(connection, [*yes, *out, *missing])
        done = TakenOver(out=tuple(out), missing=tuple(missing))
        for some in in_chunks(yes):
            _keep(connection, {s: people[s] for s in some}, Ask("", study, document), when, done)
        for subject in out:
            withdraw_in(connection, subject, study, when)
        _suspend(connection, missing, study, when)
        for some in in_chunks([*out, *missing]):
            connection.execute(table.delete().where(table.c.study == study, table.c.subject.in_(some)))
        return done

    return registry.database.write(work, lock=f"forms/{study}")


def _keep(
    connection: sql.Connection, people: Mapping[str, Terms], of: Ask, when: datetime, done: TakenOver
) -> None:
    names, withdrawn = list(people), _withdrawn(connection, list(people), of.study)
    general, current = newest_of(connection, names, ""), newest_of(connection, names, of.study)
    said: list[tuple[Ask, str]] = []
    new: list[tuple[Ask, str]] = []
    for subject, terms in people.items():
        ask, wish = Ask(subject, of.study, of.document), Ask(subject)
        text = json.dumps(terms.consent(ask), sort_keys=True)
        mine = current.get(subject) if subject in withdrawn else None
        if _said_no_since([general.get(subject), mine], terms):
            done.withdrew_here += 1
            continue
        if current.get(subject) == text and subject in general:
            done.same += 1
            continue
        said.append((ask, text))
        if read_consent(general.get(subject, "{}")).get("status") != "active":
            new.append((wish, json.dumps(terms.wish(wish), sort_keys=True)))
    write_consents(connection, [*new, *said], when)
    wrote = [ask.subject for ask, _ in said]
    stand(connection, wrote, of.study, "on-study", when)
    append_many(connection, (Entry("subject-opted-in", about=ask.subject) for ask, _ in new), when)
    detail = {"document": of.document}
    told = (Entry("consent-read", about=who, study=of.study, detail=detail) for who in wrote)
    append_many(connection, told, when)
    if wrote:
        rows = [{"study": of.study, "subject": subject} for subject in wrote]
        insert_new(connection, schema.form_consents, rows)
    done.written += len(wrote)


def _suspend(connection: sql.Connection, people: Sequence[str], study: str, when: datetime) -> None:
    """Let consents count no more whose forms are not there."""
    for some in in_chunks(people):
        found = {subject: read_consent(text) for subject, text in newest_of(connection, some, study).items()}
        active = {subject: consent for subject, consent in found.items() if consent.get("status") == "active"}
        over = {
            subject: json.dumps(ended(consent, when), sort_keys=True) for subject, consent in active.items()
        }
        write_consents(connection, [(Ask(subject, study), text) for subject, text in over.items()], when)
        stand(connection, list(over), study, "off-study", when)
        append_many(connection, (Entry("consent-missing", about=who, study=study) for who in over), when)


def _withdrawn(connection: sql.Connection, people: Sequence[str], study: str) -> set[str]:
    table = schema.subjects
    chosen = sql.select(table.c.subject).where(table.c.study == study, table.c.state == "withdrawn")
    return set(connection.scalars(chosen.where(table.c.subject.in_(people))))


def _said_no_since(texts: Sequence[str | None], terms: Terms) -> bool:
    """Whether a person has withdrawn or opted out here after they signed the newest form."""
    for text in texts:
        last = {"status": "active"} if text is None else read_consent(text)
        at = first_moment(last.get("dateTime"))
        if last.get("status") != "active" and (at is None or terms.newest is None or terms.newest <= at):
            return True
    return False


_STUDY, _DOCUMENT = "urn:abaton:study:", "urn:sha256:"
_INNER = frozenset({
    "action", "category", "class", "coding", "patient", "period", "policy", "provision", "purpose", "scope",
})  # fmt: skip
_DEEPEST, _WHERE = 12, "consent"


def ask_of(consent: object) -> Ask:
    """Who says yes to what in a Consent resource; anything but codes, dates and tags in it is refused.

    >>> from datetime import UTC
    >>> from abaton.governance.consent import make_consent
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
        said, no = first_moment(consent.get("dateTime")), first_moment(last.get("dateTime"))
        if said is None or no is None or said <= no:  # both by the clock of the site
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
