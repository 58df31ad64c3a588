"""Where a person stands at a moment, asked inside a transaction, so that the answer still holds when it is acted on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.audit import Entry, append_in
from abaton.governance.consents import Action, Ask, Json, Reason, ended, judge, research_subject
from abaton.governance.times import moment, stamp


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
    """The lock that every change about a person holds, so that a withdrawal and an upload cannot pass each other."""
    return f"subject/{subject}"


def reason_in(connection: sql.Connection, ask: Ask, when: datetime) -> Reason:
    """The registry's answer inside a transaction that holds :func:`subject_lock`."""
    found = study_in(connection, ask.study)
    if found is None or not found.is_open(when):
        return Reason.STUDY_CLOSED
    if ask.document and ask.document != found.document:
        return Reason.OTHER_DOCUMENT
    general = judged_in(connection, Ask(ask.subject), when)
    if not general.allows:
        return Reason.NOT_OPTED_IN
    current = Ask(ask.subject, ask.study, found.document, ask.action, ask.kind)
    reason = judged_in(connection, current, when)
    withdrawn = reason is Reason.NOT_ACTIVE and state_in(connection, ask.subject, ask.study) == "withdrawn"
    return Reason.WITHDRAWN if withdrawn else reason


def refused_in(connection: sql.Connection, ask: Ask, kinds: Iterable[str], when: datetime) -> frozenset[str]:
    """The types of resources that a person's consent leaves out, where :func:`reason_in` says yes to the person."""
    consent = newest_in(connection, ask.subject, ask.study)
    return frozenset(kind for kind in kinds if not judge(consent, replace(ask, kind=kind), when).allows)


def allowed_in(connection: sql.Connection, study: str, action: Action, when: datetime) -> frozenset[str]:
    """Everybody for whom :func:`reason_in` says yes to an action, by two questions to the database instead of many."""
    found = study_in(connection, study)
    if found is None or not found.is_open(when):
        return frozenset()
    table = schema.consents
    chosen = sql.select(table.c.subject, table.c.study, table.c.resource).where(
        table.c.study.in_(("", study))
    )
    newest: dict[tuple[str, str], str] = {}
    for row in connection.execute(chosen.order_by(table.c.version)):
        newest[row.subject, row.study] = row.resource
    asked = [subject for subject, of in newest if of]
    return frozenset(
        subject
        for subject in asked
        if (subject, "") in newest
        and judge(_consent(newest[subject, ""]), Ask(subject), when).allows
        and judge(_consent(newest[subject, study]), Ask(subject, study, found.document, action), when).allows
    )


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
    return None if text is None else _consent(text)


def _consent(text: str) -> Json:
    """A consent from its text; one that cannot be read is an empty one."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def write_consent(connection: sql.Connection, ask: Ask, consent: Json, when: datetime) -> None:
    """Keep a consent as the newest of its person and study."""
    table = schema.consents
    chosen = sql.select(sql.func.max(table.c.version)).where(
        table.c.subject == ask.subject, table.c.study == ask.study
    )
    version = (connection.scalar(chosen) or 0) + 1
    connection.execute(
        table.insert().values(
            subject=ask.subject,
            study=ask.study,
            version=version,
            document=ask.document,
            changed=stamp(when),
            resource=json.dumps(consent, sort_keys=True),
        )
    )


def state_in(connection: sql.Connection, subject: str, study: str) -> str:
    """Where a person stands in a study; empty if nowhere."""
    table = schema.subjects
    chosen = sql.select(table.c.state).where(table.c.subject == subject, table.c.study == study)
    return str(connection.scalar(chosen) or "")


def stand(connection: sql.Connection, subject: str, study: str, state: str, when: datetime) -> None:
    """Write down where a person stands in a study from now on."""
    table = schema.subjects
    row = research_subject(subject, study, state, stamp(when), stamp(when) if state == "withdrawn" else "")
    connection.execute(table.delete().where(table.c.subject == subject, table.c.study == study))
    values = {"state": state, "changed": stamp(when), "resource": json.dumps(row, sort_keys=True)}
    connection.execute(table.insert().values(subject=subject, study=study, **values))


def withdraw_in(connection: sql.Connection, subject: str, study: str, when: datetime) -> None:
    """Take a person's yes to a study back inside a transaction; doing it twice is doing it once."""
    consent = newest_in(connection, subject, study)
    if consent is not None and consent.get("status") == "active":
        write_consent(connection, Ask(subject, study), ended(consent, when), when)
        append_in(connection, Entry("consent-withdrawn", about=subject, study=study), when)
    if state_in(connection, subject, study) != "withdrawn":
        stand(connection, subject, study, "withdrawn", when)


def said_yes_after(connection: sql.Connection, subject: str, study: str, at: str) -> bool:
    """Whether the newest consent of a person is active and was given after a moment."""
    table = schema.consents
    chosen = sql.select(table.c.changed).where(table.c.subject == subject, table.c.study == study)
    changed = connection.scalar(chosen.order_by(table.c.version.desc()).limit(1))
    consent = newest_in(connection, subject, study)
    return changed is not None and changed > at and (consent or {}).get("status") == "active"
