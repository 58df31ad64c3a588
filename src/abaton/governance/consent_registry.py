"""Consent registry: published studies, consents and withdrawals.

Subjects are identified by registry pseudonym only. Each change is one transaction with its audit entry. A consent is
never overwritten: earlier versions stay until the study's retention period ends.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import TypeVar

import sqlalchemy as sql

from abaton.errors import SettingsError
from abaton.governance import schema
from abaton.governance.audit_log import (
    AuditedLegalBasis,
    AuditEntry,
    append_in,
    append_many,
    audited_basis_in,
)
from abaton.governance.consent import ConsentAction, ConsentQuery, DenialReason, Json, evaluate_consent
from abaton.governance.consent_status import (
    PublishedStudy,
    any_opted_out,
    consent_template,
    date_after_withdrawal,
    decision_in,
    denied_types_in,
    fill_subject,
    in_chunks,
    latest_consent_in,
    latest_consents_in,
    lock_subjects,
    read_consent,
    sending_decision_in,
    set_status,
    study_in,
    subject_lock,
    withdraw_consent_in,
    write_consents,
)
from abaton.governance.eligible_cache import EligibleSubjects, OptedOutSubjects
from abaton.governance.identifiers import is_digest, is_name, is_pseudonym
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.governance.timestamps import to_timestamp
from abaton.store import Database

T = TypeVar("T")


class ConsentRegistry:
    """Consents of one database.

    Args:
        database: Database with the governance tables (:data:`abaton.governance.schema.metadata`).
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._eligible: dict[tuple[str, ConsentAction], EligibleSubjects] = {}
        self._opted_out: dict[str, OptedOutSubjects] = {}

    # changes

    def publish(
        self,
        study: str,
        document: str,
        when: datetime,
        *,
        ends: datetime | None,
        keep_until: datetime | None,
        content: Json | None = None,
    ) -> None:
        """Publish a study document in the consent registry; it replaces the previous one and needs new consents.

        Args:
            study: The study.
            document: Digest of the study document.
            when: The current time.
            ends: End of the study, at which retention closes it; None if it has no end.
            keep_until: Time by which all records must be deleted; None if there is none.
            content: The document itself.
        """
        if not is_name(study) or not is_digest(document):
            raise SettingsError(
                "the study identifier or the document digest is invalid",
                remedy="use 1 to 200 visible characters, and a SHA-256 digest in hexadecimal",
            )
        row = {
            "published": to_timestamp(when),
            "ends": to_timestamp(ends) if ends else "",
            "keep_until": to_timestamp(keep_until) if keep_until else "",
            "content": json.dumps(content or {}, sort_keys=True),
            "closed": "",
        }

        def work(connection: sql.Connection) -> None:
            current = study_in(connection, study)
            if current is not None and current.document == document:
                return
            version = 1 if current is None else current.version + 1
            values = {"study": study, "document": document, "version": version, **row}
            connection.execute(schema.studies.insert().values(**values))
            append_in(
                connection, AuditEntry("study-published", study=study, detail={"document": document}), when
            )

        self.database.write(work, lock=f"study/{study}")

    def close(self, study: str, when: datetime) -> None:
        """Close a study in the consent registry: no record is collected or used for it from now on."""

        def work(connection: sql.Connection) -> None:
            table = schema.studies
            update = table.update().where(table.c.study == study, table.c.closed == "")
            if connection.execute(update.values(closed=to_timestamp(when))).rowcount:
                append_in(connection, AuditEntry("study-closed", study=study), when)

        self.database.write(work, lock=f"study/{study}")

    def enrol(
        self, subjects: Mapping[str, datetime | None], study: str, document: str, when: datetime
    ) -> None:
        """Record general opt-in and study consent of many subjects in the consent registry: all or none.

        Args:
            subjects: Registry pseudonyms with the end of each consent; None if valid until withdrawn.
            study: The study.
            document: Digest of its current document.
            when: The current time.
        """
        for subject in subjects:
            check_pseudonym(subject)

        def work(connection: sql.Connection) -> None:
            lock_subjects(connection, subjects)
            for chunk in in_chunks(list(subjects)):
                self._opt_in(connection, chunk, when)
                consents = [
                    (ConsentQuery(subject, study, document), text_until(subjects[subject]))
                    for subject in chunk
                ]
                self._enrol(
                    connection, [(query, fill_subject(text, query.subject)) for query, text in consents], when
                )

        @cache
        def text_until(until: datetime | None) -> str:
            return consent_template(ConsentQuery("", study, document), when, until)

        self.database.write(work)

    def _opt_in(self, connection: sql.Connection, subjects: Sequence[str], when: datetime) -> None:
        """Record the general opt-in of the subjects that have none in force in the consent registry."""
        known, text = (
            latest_consents_in(connection, subjects, ""),
            consent_template(ConsentQuery(""), when, None),
        )
        new = [
            s
            for s in subjects
            if s not in known or not evaluate_consent(read_consent(known[s]), ConsentQuery(s), when).permits
        ]
        write_consents(
            connection, [(ConsentQuery(subject), fill_subject(text, subject)) for subject in new], when
        )
        append_many(connection, (AuditEntry("subject-opted-in", subject=subject) for subject in new), when)

    def _enrol(
        self, connection: sql.Connection, consents: Sequence[tuple[ConsentQuery, str]], when: datetime
    ) -> None:
        """Store consents to one study in the consent registry after checking study, document and opt-outs."""
        subjects, study, document = (
            [query.subject for query, _ in consents],
            consents[0][0].study,
            consents[0][0].document,
        )
        published = study_in(connection, study)
        if published is None or not published.is_open(when):
            raise consent_error(DenialReason.STUDY_CLOSED)
        if published.document != document:
            raise DeniedError(
                RefusalCode.WRONG_DOCUMENT,
                "the consent refers to another version of the study document",
                where="enrolment",
            )
        if any_opted_out(connection, subjects):
            raise consent_error(DenialReason.OPTED_OUT)
        write_consents(connection, date_after_withdrawal(connection, consents, when), when)
        set_status(connection, subjects, study, "on-study", when)
        detail = {"document": document}
        entries = (
            AuditEntry("subject-enrolled", subject=subject, study=study, detail=detail)
            for subject in subjects
        )
        append_many(connection, entries, when)

    def withdraw(
        self, subject: str, study: str, when: datetime, *, withdrawn_at: datetime | None = None
    ) -> None:
        """Withdraw a subject's consent to a study in the consent registry from now on; idempotent.

        Args:
            subject: Registry pseudonym of the subject.
            study: The study.
            when: The current time.
            withdrawn_at: Date of the withdrawal if it is not now; it is later than that of the consent.
        """
        check_pseudonym(subject)
        self.database.write(
            lambda connection: withdraw_consent_in(
                connection, subject, study, when, withdrawn_at=withdrawn_at
            ),
            lock=subject_lock(subject),
        )

    # queries

    def decision(self, query: ConsentQuery, when: datetime) -> DenialReason:
        """Return whether the consent registry permits an action now, or the reason for denial."""
        return self.database.read(lambda connection: decision_in(connection, query, when))

    def sending_decision(self, query: ConsentQuery, when: datetime) -> DenialReason:
        """Return whether the consent registry permits sending a subject's records now, by consent or permit."""
        return self.database.read(lambda connection: sending_decision_in(connection, query, when))

    def audited_basis(self, text: str) -> AuditedLegalBasis:
        """Return a legal basis with the hash of the consent registry's audit log that records it."""
        return self.database.read(lambda connection: audited_basis_in(connection, text))

    def permission(
        self, query: ConsentQuery, resource_types: Collection[str], when: datetime
    ) -> tuple[DenialReason, frozenset[str]]:
        """Return the consent registry's decision for a subject's records now, and the denied resource types."""

        def work(connection: sql.Connection) -> tuple[DenialReason, frozenset[str]]:
            cache = self._eligible_cache(query.study, query.action)
            document, eligible = cache.eligible(connection, when)
            if query.subject in eligible and query.document in ("", document):
                is_unrestricted = not cache.restricts_types(query.subject)
                return DenialReason.IN_FORCE, frozenset() if is_unrestricted else denied_types_in(
                    connection, query, resource_types, when
                )
            reason = decision_in(connection, query, when)
            return reason, denied_types_in(
                connection, query, resource_types, when
            ) if reason.permits else frozenset(resource_types)

        return self.database.read(work)

    def eligible_subjects(
        self, study: str, action: ConsentAction, when: datetime
    ) -> tuple[str, frozenset[str]]:
        """Return the study document and all subjects with a consent in force in the consent registry."""
        return self.database.read(
            lambda connection: self.eligible_subjects_in(connection, study, action, when)
        )

    def eligible_subjects_in(
        self, connection: sql.Connection, study: str, action: ConsentAction, when: datetime
    ) -> tuple[str, frozenset[str]]:
        """Return the eligible subjects of the consent registry inside a transaction."""
        return self._eligible_cache(study, action).eligible(connection, when)

    def opted_out_subjects(self, study: str = "") -> frozenset[str]:
        """Return the consent registry's opted-out subjects and, if a study is given, those withdrawn from it."""
        return self.database.read(self._opted_out.setdefault(study, OptedOutSubjects(study)).current)

    def _eligible_cache(self, study: str, action: ConsentAction) -> EligibleSubjects:
        return self._eligible.setdefault((study, action), EligibleSubjects(study, action))

    def study(self, study: str) -> PublishedStudy | None:
        """Return the current document of a study published in the consent registry."""
        return self.database.read(lambda connection: study_in(connection, study))

    def studies(self) -> list[PublishedStudy]:
        """Return the current documents of all studies published in the consent registry."""
        names = self.database.read(
            lambda connection: sorted(connection.scalars(sql.select(schema.studies.c.study).distinct()))
        )
        return [study for name in names if (study := self.study(name))]

    def subjects(self, study: str) -> list[str]:
        """Return the pseudonyms of all subjects with a consent to a study in the consent registry."""
        table = schema.consents
        selection = sql.select(table.c.subject).where(table.c.study == study).distinct()
        return self.database.read(lambda connection: sorted(connection.scalars(selection)))

    def consent(self, subject: str, study: str = "") -> Json | None:
        """Return a subject's latest consent in the consent registry."""
        return self.database.read(lambda connection: latest_consent_in(connection, subject, study))


def check_pseudonym(subject: str) -> None:
    """Raise an error if a value is not a pseudonym of the consent registry."""
    if not is_pseudonym(subject):
        raise SettingsError(
            "the subject is not given by a registry pseudonym",
            remedy="derive one with abaton.governance.registry_pseudonym",
        )


def consent_error(reason: DenialReason) -> DeniedError:
    """Return the error for a denied decision of the consent registry."""
    return DeniedError(RefusalCode.NO_CONSENT, f"no consent is in force: {reason.value}", reason=reason.value)
