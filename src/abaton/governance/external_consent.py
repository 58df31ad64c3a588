"""Consent data from other sources: forms, opt-out lists and permits at a site, sites' consents at the centre.

Invariants:
(1) each import is one transaction with its audit entries; importing the same data again changes nothing;
(2) a subject withdrawn here stays excluded until a new signature; a subject whose form is missing is suspended;
(3) an opt-out overrides every consent and permit while it is listed.

The centre stores a site's consent only if it is active, in force, refers to the current document of an open study (or
is a general opt-in), and comes from the subject's custodian. It may contain codes, dates, addresses and the
pseudonym, but no free text, so that no name can enter. A repeated consent gets the same receipt; one older than the
last withdrawal is refused. The site stores the centre's receipts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import sqlalchemy as sql

from abaton.canonical_json import canonical_digest
from abaton.errors import SettingsError
from abaton.fhir.elements import resource_types
from abaton.governance import schema
from abaton.governance.audit_log import (
    AuditedLegalBasis,
    AuditEntry,
    append_in,
    append_many,
    audited_basis_in,
)
from abaton.governance.consent import (
    CODES,
    NOTIFY,
    SYSTEMS,
    ConsentAction,
    ConsentQuery,
    DataPermit,
    DenialReason,
    Json,
    deactivate,
    evaluate_consent,
)
from abaton.governance.consent_forms import ConsentTerms
from abaton.governance.consent_registry import ConsentRegistry, check_pseudonym, consent_error
from abaton.governance.consent_status import (
    consent_decision,
    in_chunks,
    latest_consent_in,
    latest_consents_in,
    lock_subjects,
    read_consent,
    set_status,
    study_in,
    subject_lock,
    withdraw_consent_in,
    write_consent,
    write_consents,
)
from abaton.governance.identifiers import is_digest, is_name, is_pseudonym
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.governance.senders import claim_subject
from abaton.governance.signed_statements import (
    CONSENT_RECEIPT,
    ConsentReceipt,
    Find,
    Statement,
    StatementSigner,
    read_consent_receipt,
    sign_statement,
)
from abaton.governance.timestamps import earliest_time, to_timestamp
from abaton.store import Database, insert_new


def record_permit(
    registry: ConsentRegistry, study: str, purpose: str, permit: DataPermit, when: datetime
) -> AuditedLegalBasis:
    """Record an external data permit and the study's purpose in the audit log, once; return the legal basis."""
    text = json.dumps({"permit": permit.row(), "purpose": purpose}, sort_keys=True)
    record_basis_once(registry, study, permit.document, "permit-recorded", permit.digest, when, permit=text)
    basis_text = f"permit {permit.digest} for {permit.document}"
    return registry.database.read(lambda connection: audited_basis_in(connection, basis_text))


def record_legal_basis(
    registry: ConsentRegistry, study: str, document: str, site: str, text: str, when: datetime
) -> AuditedLegalBasis:
    """Record an external legal basis that the site is responsible for, once, and return it as audited.

    The log contains the digest of the text, because the text may name persons or places.
    """
    if not text.strip():
        raise SettingsError("the legal basis is empty", remedy="state why these records may be used")
    stated = canonical_digest({"site": site, "ground": text})  # frozen: part of the bytes
    record_basis_once(registry, study, document, "legal-basis-stated", stated, when)
    return registry.database.read(lambda connection: audited_basis_in(connection, text))


def record_basis_once(
    registry: ConsentRegistry,
    study: str,
    document: str,
    action: str,
    legal_basis: str,
    when: datetime,
    *,
    permit: str = "",
) -> None:
    """Record once the digest of an external legal basis for using a study document without consents."""
    row = {"study": study, "document": document, "legal_basis": legal_basis}

    def work(connection: sql.Connection) -> None:
        table = schema.legal_bases
        selection = sql.select(table.c.recorded_at).where(
            *(table.c[name] == value for name, value in row.items())
        )
        if connection.scalar(selection) is None:
            connection.execute(table.insert().values(**row, recorded_at=to_timestamp(when), permit=permit))
            detail = {"document": document, "legal-basis": legal_basis}
            append_in(connection, AuditEntry(action, study=study, detail=detail), when)

    registry.database.write(work, lock=f"study/{study}")


def set_opt_outs(registry: ConsentRegistry, subjects: Collection[str], when: datetime) -> tuple[int, int]:
    """Replace the external opt-out list; return the numbers of added and removed subjects."""
    for subject in subjects:
        check_pseudonym(subject)

    def work(connection: sql.Connection) -> tuple[int, int]:
        table, wanted = schema.opt_outs, set(subjects)
        listed = set(connection.scalars(sql.select(table.c.subject)))
        added, removed = sorted(wanted - listed), sorted(listed - wanted)
        lock_subjects(connection, [*added, *removed])
        if added:
            connection.execute(
                table.insert(), [{"subject": s, "listed_at": to_timestamp(when)} for s in added]
            )
        for chunk in in_chunks(removed):
            connection.execute(table.delete().where(table.c.subject.in_(chunk)))
        changes = [("opt-out-listed", s) for s in added] + [("opt-out-lifted", s) for s in removed]
        append_many(connection, (AuditEntry(action, subject=subject) for action, subject in changes), when)
        return len(added), len(removed)

    return registry.database.write(work, lock="opt-outs")


@dataclass(slots=True)
class ConsentImportResult:
    """Changes made by importing consent forms.

    Attributes:
        written: Number of new or changed consents.
        unchanged: Number of unchanged consents.
        withdrawn_here: Number skipped because the subject withdrew here after signing.
        withdrawn: Subjects who withdrew on a form.
        missing: Subjects whose form is missing; suspended until it is back.
    """

    written: int = 0
    unchanged: int = 0
    withdrawn_here: int = 0
    withdrawn: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def import_consents(
    registry: ConsentRegistry,
    terms_by_subject: Mapping[str, ConsentTerms],
    study: str,
    document: str,
    when: datetime,
) -> ConsentImportResult:
    """Import the terms of externally signed forms for one study document in one transaction.

    Args:
        registry: Consent registry of the site.
        terms_by_subject: Terms of all subjects with a signed form, by registry pseudonym.
        study: The study.
        document: Digest of its current document.
        when: The current time.
    """
    for subject in terms_by_subject:
        check_pseudonym(subject)

    def work(connection: sql.Connection) -> ConsentImportResult:
        published = study_in(connection, study)
        if published is None or not published.is_open(when):
            raise consent_error(DenialReason.STUDY_CLOSED)
        if published.document != document:
            raise consent_error(DenialReason.OTHER_DOCUMENT)
        table = schema.form_consents
        imported_before = set(connection.scalars(sql.select(table.c.subject).where(table.c.study == study)))
        consenting = sorted(
            s
            for s, terms in terms_by_subject.items()
            if not terms.is_refusal and not terms.is_withdrawn(when)
        )
        withdrawn, missing = (
            sorted(imported_before & (terms_by_subject.keys() - set(consenting))),
            sorted(imported_before - terms_by_subject.keys()),
        )
        lock_subjects(connection, [*consenting, *withdrawn, *missing])
        result = ConsentImportResult(withdrawn=tuple(withdrawn), missing=tuple(missing))
        for chunk in in_chunks(consenting):
            _import_batch(
                connection,
                {s: terms_by_subject[s] for s in chunk},
                ConsentQuery("", study, document),
                when,
                result,
            )
        for subject in withdrawn:
            withdraw_consent_in(connection, subject, study, when)
        _suspend(connection, missing, study, when)
        for chunk in in_chunks([*withdrawn, *missing]):
            connection.execute(table.delete().where(table.c.study == study, table.c.subject.in_(chunk)))
        return result

    return registry.database.write(work, lock=f"forms/{study}")


def _import_batch(
    connection: sql.Connection,
    terms_by_subject: Mapping[str, ConsentTerms],
    study_query: ConsentQuery,
    when: datetime,
    result: ConsentImportResult,
) -> None:
    subjects, withdrawn = (
        list(terms_by_subject),
        _withdrawn(connection, list(terms_by_subject), study_query.study),
    )
    general, current = (
        latest_consents_in(connection, subjects, ""),
        latest_consents_in(connection, subjects, study_query.study),
    )
    study_consents: list[tuple[ConsentQuery, str]] = []
    general_consents: list[tuple[ConsentQuery, str]] = []
    for subject, terms in terms_by_subject.items():
        query, general_query = (
            ConsentQuery(subject, study_query.study, study_query.document),
            ConsentQuery(subject),
        )
        text = json.dumps(terms.study_consent(query), sort_keys=True)
        withdrawn_text = current.get(subject) if subject in withdrawn else None
        if _has_withdrawn_since([general.get(subject), withdrawn_text], terms):
            result.withdrawn_here += 1
            continue
        if current.get(subject) == text and subject in general:
            result.unchanged += 1
            continue
        study_consents.append((query, text))
        if read_consent(general.get(subject, "{}")).get("status") != "active":
            general_consents.append(
                (general_query, json.dumps(terms.general_consent(general_query), sort_keys=True))
            )
    write_consents(connection, [*general_consents, *study_consents], when)
    written = [query.subject for query, _ in study_consents]
    set_status(connection, written, study_query.study, "on-study", when)
    append_many(
        connection,
        (AuditEntry("subject-opted-in", subject=query.subject) for query, _ in general_consents),
        when,
    )
    detail = {"document": study_query.document}
    entries = (
        AuditEntry("consent-imported", subject=subject, study=study_query.study, detail=detail)
        for subject in written
    )
    append_many(connection, entries, when)
    if written:
        rows = [{"study": study_query.study, "subject": subject} for subject in written]
        insert_new(connection, schema.form_consents, rows)
    result.written += len(written)


def _suspend(connection: sql.Connection, subjects: Sequence[str], study: str, when: datetime) -> None:
    """Deactivate imported consents whose external forms are missing."""
    for chunk in in_chunks(subjects):
        consents = {
            subject: read_consent(text)
            for subject, text in latest_consents_in(connection, chunk, study).items()
        }
        active = {
            subject: consent for subject, consent in consents.items() if consent.get("status") == "active"
        }
        inactive = {
            subject: json.dumps(deactivate(consent, when), sort_keys=True)
            for subject, consent in active.items()
        }
        write_consents(
            connection, [(ConsentQuery(subject, study), text) for subject, text in inactive.items()], when
        )
        set_status(connection, list(inactive), study, "off-study", when)
        append_many(
            connection,
            (AuditEntry("consent-missing", subject=subject, study=study) for subject in inactive),
            when,
        )


def _withdrawn(connection: sql.Connection, subjects: Sequence[str], study: str) -> set[str]:
    table = schema.subjects
    selection = sql.select(table.c.subject).where(table.c.study == study, table.c.state == "withdrawn")
    return set(connection.scalars(selection.where(table.c.subject.in_(subjects))))


def _has_withdrawn_since(texts: Sequence[str | None], terms: ConsentTerms) -> bool:
    """Return whether a subject withdrew or opted out here after signing the latest external form."""
    for text in texts:
        consent = {"status": "active"} if text is None else read_consent(text)
        consent_time = earliest_time(consent.get("dateTime"))
        if consent.get("status") != "active" and (
            consent_time is None or terms.latest_consent_at is None or terms.latest_consent_at <= consent_time
        ):
            return True
    return False


_STUDY_URN, _DOCUMENT_URN = "urn:abaton:study:", "urn:sha256:"
_NESTED_ELEMENTS = frozenset({
    "action", "category", "class", "coding", "patient", "period", "policy", "provision", "purpose", "scope",
})  # fmt: skip
_MAX_DEPTH, _WHERE = 12, "consent"


def consent_query(consent: object) -> ConsentQuery:
    """Return subject, study and document of a Consent received from a site; free text in it is refused.

    >>> from datetime import UTC
    >>> from abaton.governance.consent import make_consent
    >>> consent_query(make_consent(ConsentQuery("A" * 26), datetime(2026, 1, 1, tzinfo=UTC), None)).subject[:3]
    'AAA'
    """
    try:
        if not isinstance(consent, dict) or not has_only_codes(consent):
            raise TypeError
        subject = consent["patient"]["reference"].removeprefix("Patient/")
        policies = sorted(policy["uri"] for policy in consent["policy"])
        if policies == [NOTIFY]:
            return ConsentQuery(subject)
        study, document = policies
        name, document_digest = unquote(study.removeprefix(_STUDY_URN)), document.removeprefix(_DOCUMENT_URN)
        is_valid = study.startswith(_STUDY_URN) and document.startswith(_DOCUMENT_URN)
        if not is_valid or not is_name(name) or not is_digest(document_digest):
            raise TypeError
        return ConsentQuery(subject, name, document_digest, ConsentAction.SEND)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DeniedError(
            RefusalCode.MALFORMED, "the Consent is malformed or contains free text", where=_WHERE
        ) from None


def has_only_codes(node: Mapping[str, object], depth: int = 0) -> bool:
    """Return whether a consent received from a site contains only known elements, codes, dates and pseudonyms."""
    for name, value in node.items():
        values = value if isinstance(value, list) else [value]
        if name in _NESTED_ELEMENTS:
            nested = [part for part in values if isinstance(part, dict)]
            if (
                len(nested) < len(values)
                or depth > _MAX_DEPTH
                or not all(has_only_codes(p, depth + 1) for p in nested)
            ):
                return False
        elif name not in _VALUE_CHECKS or not isinstance(value, str) or not _VALUE_CHECKS[name](value):
            return False
    return True


def _is_policy(text: str) -> bool:
    if text.startswith(_STUDY_URN):
        return is_name(unquote(text.removeprefix(_STUDY_URN)))
    return text == NOTIFY or (text.startswith(_DOCUMENT_URN) and is_digest(text.removeprefix(_DOCUMENT_URN)))


def _is_time(text: str) -> bool:
    return earliest_time(text) is not None


_VALUE_CHECKS: Mapping[str, Callable[[str], bool]] = {
    "code": lambda text: text in CODES or text in resource_types(),
    "dateTime": _is_time,
    "end": _is_time,
    "reference": lambda text: text.startswith("Patient/") and is_pseudonym(text.removeprefix("Patient/")),
    "resourceType": lambda text: text == "Consent",
    "start": _is_time,
    "status": lambda text: text == "active",
    "system": lambda text: text in SYSTEMS,
    "type": lambda text: text in {"permit", "deny"},
    "uri": _is_policy,
}


def receive_consent(
    database: Database, consent: Any, sender: str, key: str, signer: StatementSigner, when: datetime
) -> Statement:
    """Store a consent received from an external site at the centre and return the signed receipt.

    Args:
        database: Governance database of the centre.
        consent: The FHIR Consent.
        sender: Name of the site.
        key: Key with which the site signed its request.
        signer: Signing key of the centre.
        when: The current time.
    """
    query = consent_query(consent)

    def work(connection: sql.Connection) -> str:
        claim_subject(connection, query.subject, sender)
        if latest_consent_in(connection, query.subject, query.study) != consent:
            _check_acceptable(connection, consent, query, when)
            write_consent(connection, query, consent, when)
            if query.study:
                set_status(connection, [query.subject], query.study, "on-study", when)
            action = "subject-enrolled" if query.study else "subject-opted-in"
            detail = {"document": query.document} if query.document else {}
            entry = AuditEntry(action, actor=key, subject=query.subject, study=query.study, detail=detail)
            append_in(connection, entry, when)
        return consent_changed_at(connection, query.subject, query.study)

    changed_at = database.write(work, lock=subject_lock(query.subject))
    return sign_statement(
        signer,
        CONSENT_RECEIPT,
        asdict(
            ConsentReceipt(query.subject, query.study, query.document, canonical_digest(consent), changed_at)
        ),
    )


def _check_acceptable(connection: sql.Connection, consent: Json, query: ConsentQuery, when: datetime) -> None:
    if query.study:
        published = study_in(connection, query.study)
        if published is None:
            raise DeniedError(RefusalCode.WRONG_STUDY, "the study is not published here", where=_WHERE)
        if not published.is_open(when):
            raise _consent_error(DenialReason.STUDY_CLOSED)
        if published.document != query.document:
            raise DeniedError(
                RefusalCode.WRONG_DOCUMENT,
                "the consent refers to another version of the study document",
                where=_WHERE,
            )
        if not consent_decision(connection, ConsentQuery(query.subject), when).permits:
            raise _consent_error(DenialReason.NOT_OPTED_IN)
    reason = evaluate_consent(consent, query, when)
    if not reason.permits:
        raise _consent_error(reason)
    last = latest_consent_in(connection, query.subject, query.study)
    if last is not None and last.get("status") != "active":
        consented_at, withdrawn_at = (
            earliest_time(consent.get("dateTime")),
            earliest_time(last.get("dateTime")),
        )
        if (
            consented_at is None or withdrawn_at is None or consented_at <= withdrawn_at
        ):  # both by the site's clock
            raise DeniedError(RefusalCode.REPLAYED, "the subject withdrew after this consent", where=_WHERE)


def consent_changed_at(connection: sql.Connection, subject: str, study: str) -> str:
    """Return when the subject's latest received consent was stored; empty if there is none."""
    table = schema.consents
    selection = sql.select(table.c.changed_at).where(table.c.subject == subject, table.c.study == study)
    return str(connection.scalar(selection.order_by(table.c.version.desc()).limit(1)) or "")


def _consent_error(reason: DenialReason) -> DeniedError:
    return DeniedError(
        RefusalCode.NO_CONSENT, f"the consent is not in force: {reason.value}", reason=reason.value
    )


def is_confirmed(database: Database, subject: str, study: str, consent_digest: str) -> bool:
    """Return whether the centre has confirmed receiving this consent of the site, identified by digest."""
    table = schema.consent_receipts
    selection = sql.select(table.c.consent).where(table.c.subject == subject, table.c.study == study)
    return database.read(lambda connection: connection.scalar(selection)) == consent_digest


def store_consent_receipt(
    database: Database, expected: tuple[str, str, str], statement: Statement, find: Find, when: datetime
) -> ConsentReceipt:
    """Check the centre's receipt for a consent of the site and store it.

    Args:
        database: Governance database of the site.
        expected: Subject, study and digest of the consent that was sent.
        statement: The centre's response.
        find: Returns the centre's signing key by id.
        when: The current time.
    """
    receipt = read_consent_receipt(statement, find)
    subject, study, consent_digest = expected
    if (receipt.subject, receipt.study, receipt.consent) != expected:
        raise DeniedError(RefusalCode.FORGED, "the receipt refers to another consent", where="consent")
    row = {"subject": subject, "study": study, "consent": consent_digest}

    def work(connection: sql.Connection) -> None:
        table = schema.consent_receipts
        connection.execute(table.delete().where(table.c.subject == subject, table.c.study == study))
        connection.execute(table.insert().values(**row, receipt=json.dumps(statement, sort_keys=True)))
        append_in(connection, AuditEntry("consent-confirmed", subject=subject, study=study), when)

    database.write(work, lock=subject_lock(subject))
    return receipt
