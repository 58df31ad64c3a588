"""Consent status of single subjects inside a transaction.

A decision inside a transaction that holds :func:`subject_lock` stays valid until the transaction ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.audit_log import AuditEntry, append_in
from abaton.governance.consent import (
    ConsentAction,
    ConsentQuery,
    DataPermit,
    DenialReason,
    Json,
    deactivate,
    evaluate_consent,
    make_consent,
    research_subject,
)
from abaton.governance.timestamps import earliest_time, parse_timestamp, to_timestamp
from abaton.store import acquire_lock

_CHUNK = 500
TIMESTAMP_STEP = timedelta(milliseconds=1)
"""Smallest difference between two stored timestamps."""
_PLACEHOLDER = "\0"  # not allowed in a name
_PLACEHOLDER_JSON = '"Patient/\\u0000"'


@dataclass(frozen=True, slots=True)
class PublishedStudy:
    """Published study: current document, end, and retention."""

    study: str
    document: str
    version: int
    published: str
    ends: str
    keep_until: str
    content: str
    closed: str

    def is_open(self, when: datetime) -> bool:
        """Return whether the status of a published study allows collecting and using records."""
        return not self.closed and (not self.ends or when < parse_timestamp(self.ends))


def subject_lock(subject: str) -> str:
    """Return the name of the lock on a subject's consent status, which serialises withdrawal and upload.

    There are 1,024 locks, each shared by many subjects, so a bulk change can hold all of them.
    """
    return f"subject/{subject[:2]}"


def decision_in(connection: sql.Connection, query: ConsentQuery, when: datetime) -> DenialReason:
    """Return the consent status of a subject as a decision, in a transaction that holds :func:`subject_lock`."""
    study = study_in(connection, query.study)
    if study is None or not study.is_open(when):
        return DenialReason.STUDY_CLOSED
    if any_opted_out(connection, [query.subject]):
        return DenialReason.OPTED_OUT
    if query.document and query.document != study.document:
        return DenialReason.OTHER_DOCUMENT
    general = consent_decision(connection, ConsentQuery(query.subject), when)
    if not general.permits:
        return DenialReason.NOT_OPTED_IN
    current = ConsentQuery(query.subject, query.study, study.document, query.action, query.resource_type)
    reason = consent_decision(connection, current, when)
    is_withdrawn = (
        reason is DenialReason.NOT_ACTIVE and state_in(connection, query.subject, query.study) == "withdrawn"
    )
    return DenialReason.WITHDRAWN if is_withdrawn else reason


def sending_decision_in(connection: sql.Connection, query: ConsentQuery, when: datetime) -> DenialReason:
    """Return whether consent status or a permit allows sending a subject's records, inside a transaction.

    A permit needs no consent, but opt-outs and withdrawals override it.
    """
    reason = decision_in(connection, replace(query, action=ConsentAction.SEND), when)
    if reason not in (
        DenialReason.NOT_OPTED_IN,
        DenialReason.ABSENT,
        DenialReason.NOT_PERMITTED,
        DenialReason.EXPIRED,
    ):
        return reason
    if state_in(connection, query.subject, query.study) == "withdrawn":
        return DenialReason.WITHDRAWN
    table = schema.legal_bases
    selection = sql.select(table.c.document, table.c.permit).where(
        table.c.study == query.study, table.c.permit != ""
    )
    study = study_in(connection, query.study)
    for document, text in connection.execute(selection):
        recorded = json.loads(text)
        permit = DataPermit.read(recorded["permit"])
        if study and document == study.document:
            permit_decision = permit.reason(document, recorded["purpose"], when, ConsentAction.SEND)
            if permit_decision.permits:
                return permit_decision
    return reason


def any_opted_out(connection: sql.Connection, subjects: Sequence[str]) -> bool:
    """Return whether any of the subjects is on the opt-out list, inside a transaction."""
    table = schema.opt_outs
    selection = sql.select(table.c.subject).limit(1)
    return any(
        connection.scalar(selection.where(table.c.subject.in_(chunk))) for chunk in in_chunks(subjects)
    )


def denied_types_in(
    connection: sql.Connection, query: ConsentQuery, resource_types: Iterable[str], when: datetime
) -> frozenset[str]:
    """Return the resource types that a subject's consent status denies, after :func:`decision_in` permits."""
    consent = latest_consent_in(connection, query.subject, query.study)
    return frozenset(
        resource_type
        for resource_type in resource_types
        if not evaluate_consent(consent, replace(query, resource_type=resource_type), when).permits
    )


def study_in(connection: sql.Connection, study: str) -> PublishedStudy | None:
    """Return the status and current document of a published study inside a transaction."""
    table = schema.studies
    selection = sql.select(table).where(table.c.study == study).order_by(table.c.version.desc()).limit(1)
    row = connection.execute(selection).mappings().first()
    return None if row is None else PublishedStudy(**row)


def consent_decision(connection: sql.Connection, query: ConsentQuery, when: datetime) -> DenialReason:
    """Return the decision of a subject's latest consent, without the status of the study."""
    return evaluate_consent(latest_consent_in(connection, query.subject, query.study), query, when)


def latest_consent_in(connection: sql.Connection, subject: str, study: str) -> Json | None:
    """Return a subject's latest consent inside a transaction; an unreadable one is empty, permitting nothing."""
    table = schema.consents
    selection = sql.select(table.c.resource).where(table.c.subject == subject, table.c.study == study)
    text = connection.scalar(selection.order_by(table.c.version.desc()).limit(1))
    return None if text is None else read_consent(text)


def read_consent(text: str) -> Json:
    """Parse the stored consent that a consent status follows from; an unreadable one is empty."""
    try:
        consent = json.loads(text)
    except ValueError:
        return {}
    return consent if isinstance(consent, dict) else {}


def write_consent(connection: sql.Connection, query: ConsentQuery, consent: Json, when: datetime) -> None:
    """Store a consent as the latest of its subject and study, which sets the consent status."""
    write_consents(connection, [(query, json.dumps(consent, sort_keys=True))], when)


def write_consents(
    connection: sql.Connection, consents: Sequence[tuple[ConsentQuery, str]], when: datetime
) -> None:
    """Store serialised consents, each as the latest that sets the consent status of its subject and study."""
    table, timestamp = schema.consents, to_timestamp(when)
    latest: dict[tuple[str, str], int] = {}
    subjects, studies = (
        sorted({query.subject for query, _ in consents}),
        {query.study for query, _ in consents},
    )
    for chunk in in_chunks(subjects):
        selection = sql.select(table.c.subject, table.c.study, sql.func.max(table.c.version))
        versions = selection.where(table.c.subject.in_(chunk), table.c.study.in_(studies))
        for subject, study, version in connection.execute(versions.group_by(table.c.subject, table.c.study)):
            latest[subject, study] = version
    rows = []
    for query, text in consents:
        version = latest[query.subject, query.study] = latest.get((query.subject, query.study), 0) + 1
        row = {"subject": query.subject, "study": query.study, "version": version, "document": query.document}
        rows.append({**row, "changed_at": timestamp, "resource": text})
    if rows:
        connection.execute(table.insert(), rows)


def latest_consents_in(connection: sql.Connection, subjects: Sequence[str], study: str) -> dict[str, str]:
    """Return the latest consents of subjects as text, inside a transaction."""
    table = schema.consents
    selection = sql.select(table.c.subject, table.c.resource).where(table.c.study == study)
    latest: dict[str, str] = {}
    for chunk in in_chunks(subjects):
        rows = selection.where(table.c.subject.in_(chunk)).order_by(table.c.version)
        latest |= {row.subject: row.resource for row in connection.execute(rows)}
    return latest


def consent_template(query: ConsentQuery, when: datetime, until: datetime | None) -> str:
    """Return the text of a consent without its subject; :func:`fill_subject` inserts one."""
    return json.dumps(make_consent(replace(query, subject=_PLACEHOLDER), when, until), sort_keys=True)


def fill_subject(text: str, subject: str) -> str:
    """Return the text of :func:`consent_template` with the subject inserted."""
    return text.replace(_PLACEHOLDER_JSON, f'"Patient/{subject}"')


def date_after_withdrawal(
    connection: sql.Connection, consents: Sequence[tuple[ConsentQuery, str]], when: datetime
) -> Sequence[tuple[ConsentQuery, str]]:
    """Return the consents, each dated after the last withdrawal in the subject's status, whatever the clock."""
    subjects, study, table = [query.subject for query, _ in consents], consents[0][0].study, schema.subjects
    selection = sql.select(table.c.subject).where(table.c.study == study, table.c.state == "withdrawn")
    withdrawn = set(connection.scalars(selection.where(table.c.subject.in_(subjects))))
    withdrawal_times = {
        subject: earliest_time(read_consent(text).get("dateTime"))
        for subject, text in latest_consents_in(connection, sorted(withdrawn), study).items()
    }
    later = {
        subject: withdrawn_at + TIMESTAMP_STEP
        for subject, withdrawn_at in withdrawal_times.items()
        if withdrawn_at is not None and withdrawn_at >= when
    }
    return [
        (
            query,
            json.dumps(
                {**read_consent(text), "dateTime": to_timestamp(later[query.subject])}, sort_keys=True
            ),
        )
        if query.subject in later
        else (query, text)
        for query, text in consents
    ]


def in_chunks(subjects: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split a list of subjects into chunks that fit into one query of their consent status."""
    return (subjects[start : start + _CHUNK] for start in range(0, len(subjects), _CHUNK))


def lock_subjects(connection: sql.Connection, subjects: Iterable[str]) -> None:
    """Acquire the consent status locks of many subjects in a fixed order."""
    for lock in sorted({subject_lock(subject) for subject in subjects}):
        acquire_lock(connection, lock)


def state_in(connection: sql.Connection, subject: str, study: str) -> str:
    """Return the consent status of a subject in a study, inside a transaction; empty if unknown."""
    table = schema.subjects
    selection = sql.select(table.c.state).where(table.c.subject == subject, table.c.study == study)
    return str(connection.scalar(selection) or "")


def set_status(
    connection: sql.Connection, subjects: Sequence[str], study: str, state: str, when: datetime
) -> None:
    """Store the consent status of subjects in a study from now on."""
    table, timestamp = schema.subjects, to_timestamp(when)
    text = json.dumps(
        research_subject(_PLACEHOLDER, study, state, timestamp, timestamp if state == "withdrawn" else ""),
        sort_keys=True,
    )
    row = {"study": study, "state": state, "changed_at": timestamp}
    rows = [{**row, "subject": subject, "resource": fill_subject(text, subject)} for subject in subjects]
    for chunk in in_chunks(subjects):
        connection.execute(table.delete().where(table.c.study == study, table.c.subject.in_(chunk)))
    if rows:
        connection.execute(table.insert(), rows)


def withdraw_consent_in(
    connection: sql.Connection,
    subject: str,
    study: str,
    when: datetime,
    *,
    withdrawn_at: datetime | None = None,
) -> None:
    """Set a subject's consent status in a study to withdrawn inside a transaction; idempotent.

    Args:
        connection: The transaction.
        subject: Registry pseudonym of the subject.
        study: The study.
        when: The current time.
        withdrawn_at: Date of the withdrawal by the sender's clock, which also dates the next consent.
    """
    consent = latest_consent_in(connection, subject, study)
    was_active = consent is not None and consent.get("status") == "active"
    if consent is not None and was_active:
        write_consent(
            connection, ConsentQuery(subject, study), deactivate(consent, withdrawn_at or when), when
        )
    if was_active or state_in(connection, subject, study) != "withdrawn":
        set_status(connection, [subject], study, "withdrawn", when)
        append_in(connection, AuditEntry("consent-withdrawn", subject=subject, study=study), when)


def consented_after(connection: sql.Connection, subject: str, study: str, order_timestamp: str) -> bool:
    """Return whether the consent status is active by a consent given after a time, both by the site's clock."""
    consent, ordered_at = latest_consent_in(connection, subject, study) or {}, earliest_time(order_timestamp)
    consented_at = earliest_time(consent.get("dateTime"))
    return consent.get("status") == "active" and (
        consented_at is None or ordered_at is None or consented_at > ordered_at
    )
