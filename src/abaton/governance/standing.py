"""Where a person stands at a moment, asked inside a transaction, so that the answer still holds when it is acted on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.audit import Entry, append_in
from abaton.governance.consents import Ask, Json, Reason, ended, judge, make_consent, research_subject
from abaton.governance.times import moment, stamp
from abaton.store import hold

_CHUNK = 500
_NOBODY = "\0"  # cannot be in a name
_NOBODY_WRITTEN = '"Patient/\\u0000"'


@dataclass(frozen=True, slots=True)
class Published:
    """A study as it was published: which document counts, until when, and how long records may be kept."""

    study: str
    document: str
    version: int
    published: str
    ends: str
    keep_until: str
    content: str
    closed: str

    def is_open(self, when: datetime) -> bool:
        """Whether records may still be collected and used for it."""
        return not self.closed and (not self.ends or when < moment(self.ends))


def subject_lock(subject: str) -> str:
    """The lock that every change about a person holds, so that a withdrawal and an upload cannot pass each other.

    There are 1,024 of them, each shared by many people, so that whoever changes very many at once can hold them all.
    """
    return f"subject/{subject[:2]}"


def reason_in(connection: sql.Connection, ask: Ask, when: datetime) -> Reason:
    """The registry's answer inside a transaction that holds :func:`subject_lock`."""
    found = study_in(connection, ask.study)
    if found is None or not found.is_open(when):
        return Reason.STUDY_CLOSED
    if any_out(connection, [ask.subject]):
        return Reason.OPTED_OUT
    if ask.document and ask.document != found.document:
        return Reason.OTHER_DOCUMENT
    general = judged_in(connection, Ask(ask.subject), when)
    if not general.allows:
        return Reason.NOT_OPTED_IN
    current = Ask(ask.subject, ask.study, found.document, ask.action, ask.kind)
    reason = judged_in(connection, current, when)
    withdrawn = reason is Reason.NOT_ACTIVE and state_in(connection, ask.subject, ask.study) == "withdrawn"
    return Reason.WITHDRAWN if withdrawn else reason


def any_out(connection: sql.Connection, people: Sequence[str]) -> bool:
    """Whether any of some people is on the opt-out list."""
    table = schema.opt_outs
    chosen = sql.select(table.c.subject).limit(1)
    return any(connection.scalar(chosen.where(table.c.subject.in_(some))) for some in in_chunks(people))


def refused_in(connection: sql.Connection, ask: Ask, kinds: Iterable[str], when: datetime) -> frozenset[str]:
    """The types of resources that a person's consent leaves out, where :func:`reason_in` says yes to the person."""
    consent = newest_in(connection, ask.subject, ask.study)
    return frozenset(kind for kind in kinds if not judge(consent, replace(ask, kind=kind), when).allows)


def study_in(connection: sql.Connection, study: str) -> Published | None:
    """The current document of a study."""
    table = schema.studies
    chosen = sql.select(table).where(table.c.study == study).order_by(table.c.version.desc()).limit(1)
    row = connection.execute(chosen).mappings().first()
    return None if row is None else Published(**row)


def judged_in(connection: sql.Connection, ask: Ask, when: datetime) -> Reason:
    """What the newest consent says, whatever the study itself says."""
    return judge(newest_in(connection, ask.subject, ask.study), ask, when)


def newest_in(connection: sql.Connection, subject: str, study: str) -> Json | None:
    """The newest consent of a person; one that cannot be read is an empty one, which allows nothing."""
    table = schema.consents
    chosen = sql.select(table.c.resource).where(table.c.subject == subject, table.c.study == study)
    text = connection.scalar(chosen.order_by(table.c.version.desc()).limit(1))
    return None if text is None else read_consent(text)


def read_consent(text: str) -> Json:
    """A consent from its text; one that cannot be read is an empty one."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def write_consent(connection: sql.Connection, ask: Ask, consent: Json, when: datetime) -> None:
    """Keep a consent as the newest of its person and study."""
    write_consents(connection, [(ask, json.dumps(consent, sort_keys=True))], when)


def write_consents(connection: sql.Connection, said: Sequence[tuple[Ask, str]], when: datetime) -> None:
    """Keep consents, given as text, each as the newest of its person and study."""
    table, at = schema.consents, stamp(when)
    newest: dict[tuple[str, str], int] = {}
    people, studies = sorted({ask.subject for ask, _ in said}), {ask.study for ask, _ in said}
    for some in in_chunks(people):
        chosen = sql.select(table.c.subject, table.c.study, sql.func.max(table.c.version))
        found = chosen.where(table.c.subject.in_(some), table.c.study.in_(studies))
        for subject, study, version in connection.execute(found.group_by(table.c.subject, table.c.study)):
            newest[subject, study] = version
    rows = []
    for ask, text in said:
        version = newest[ask.subject, ask.study] = newest.get((ask.subject, ask.study), 0) + 1
        row = {"subject": ask.subject, "study": ask.study, "version": version, "document": ask.document}
        rows.append({**row, "changed": at, "resource": text})
    if rows:
        connection.execute(table.insert(), rows)


def newest_of(connection: sql.Connection, people: Sequence[str], study: str) -> dict[str, str]:
    """The newest consents of some people, as text."""
    table = schema.consents
    chosen = sql.select(table.c.subject, table.c.resource).where(table.c.study == study)
    found: dict[str, str] = {}
    for some in in_chunks(people):
        rows = chosen.where(table.c.subject.in_(some)).order_by(table.c.version)
        found |= {row.subject: row.resource for row in connection.execute(rows)}
    return found


def consent_text(ask: Ask, when: datetime, until: datetime | None) -> str:
    """The text of a plain yes by nobody in particular; :func:`about` puts a person in."""
    return json.dumps(make_consent(replace(ask, subject=_NOBODY), when, until), sort_keys=True)


def about(text: str, subject: str) -> str:
    """A text that was made for nobody in particular, about a person."""
    return text.replace(_NOBODY_WRITTEN, f'"Patient/{subject}"')


def in_chunks(people: Sequence[str]) -> Iterator[Sequence[str]]:
    """A long list in parts that a database takes in one question."""
    return (people[start : start + _CHUNK] for start in range(0, len(people), _CHUNK))


def hold_all(connection: sql.Connection, people: Iterable[str]) -> None:
    """Hold the locks of many people, in an order that is the same for everybody."""
    for lock in sorted({subject_lock(subject) for subject in people}):
        hold(connection, lock)


def state_in(connection: sql.Connection, subject: str, study: str) -> str:
    """Where a person stands in a study; empty if nowhere."""
    table = schema.subjects
    chosen = sql.select(table.c.state).where(table.c.subject == subject, table.c.study == study)
    return str(connection.scalar(chosen) or "")


def stand(connection: sql.Connection, people: Sequence[str], study: str, state: str, when: datetime) -> None:
    """Write down where some people stand in a study from now on."""
    table, at = schema.subjects, stamp(when)
    text = json.dumps(
        research_subject(_NOBODY, study, state, at, at if state == "withdrawn" else ""), sort_keys=True
    )
    row = {"study": study, "state": state, "changed": at}
    rows = [{**row, "subject": subject, "resource": about(text, subject)} for subject in people]
    for some in in_chunks(people):
        connection.execute(table.delete().where(table.c.study == study, table.c.subject.in_(some)))
    if rows:
        connection.execute(table.insert(), rows)


def withdraw_in(connection: sql.Connection, subject: str, study: str, when: datetime) -> None:
    """Take a person's yes to a study back inside a transaction; doing it twice is doing it once."""
    consent = newest_in(connection, subject, study)
    if consent is not None and consent.get("status") == "active":
        write_consent(connection, Ask(subject, study), ended(consent, when), when)
        append_in(connection, Entry("consent-withdrawn", about=subject, study=study), when)
    if state_in(connection, subject, study) != "withdrawn":
        stand(connection, [subject], study, "withdrawn", when)


def said_yes_after(connection: sql.Connection, subject: str, study: str, at: str) -> bool:
    """Whether the newest consent of a person is active and was given after a moment."""
    table = schema.consents
    chosen = sql.select(table.c.changed).where(table.c.subject == subject, table.c.study == study)
    changed = connection.scalar(chosen.order_by(table.c.version.desc()).limit(1))
    consent = newest_in(connection, subject, study)
    return changed is not None and changed > at and (consent or {}).get("status") == "active"
