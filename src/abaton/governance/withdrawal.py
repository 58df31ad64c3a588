"""Withdrawal cascade: steps that run to completion, once, despite interruptions; and the actions of a site.

Consents and withdrawals are ordered by the site's timestamps alone, each dated at least 1 ms after the one it
replaces. A receipt is valid only for the order whose digest it names. Invariants:
(1) steps run in order; a step and its audit entry are recorded in one transaction after its action;
(2) actions are idempotent, so a crash repeats at most the current step;
(3) a step that cannot run stays listed with what it is pending on and since when;
(4) a completed case is not opened again by itself; an open one restarts if the subject has consented since;
(5) a withdrawal is dated after the consent that it ends, whatever the site's clock shows;
(6) of a completed case only the registry pseudonym, dates and signed statements are kept.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sql

from abaton.canonical_json import canonical_digest
from abaton.errors import AbatonError, StoreError
from abaton.governance import schema
from abaton.governance.audit_log import AuditEntry, append_in
from abaton.governance.cohorts import mark_rounds, remove_from_cohorts
from abaton.governance.consent_registry import ConsentRegistry
from abaton.governance.consent_status import TIMESTAMP_STEP, latest_consent_in, subject_lock
from abaton.governance.identifiers import is_name, is_pseudonym
from abaton.governance.outbox import Outbox
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.governance.signed_statements import (
    Find,
    Statement,
    StatementSigner,
    read_deletion_receipt,
    write_order,
)
from abaton.governance.timestamps import earliest_time, parse_timestamp, to_timestamp
from abaton.governance.vault import Vault
from abaton.store import Database


class CascadeStep(StrEnum):
    """Step of a withdrawal, in order of execution."""

    STOP_COLLECTION = "stop-collecting"
    DELETE_LOCAL = "delete-local-copies"
    SIGN_ORDER = "sign-deletion-order"
    OBTAIN_RECEIPT = "obtain-deletion-receipt"
    DESTROY_KEY = "destroy-row-key"
    DESTROY_ROW = "destroy-row"
    LEAVE_COHORTS = "remove-from-cohorts"
    MARK_ROUNDS = "mark-rounds"
    DONE = schema.DONE


STEP_ORDER = tuple(CascadeStep)


@dataclass(frozen=True, slots=True)
class WithdrawalCase:
    """Withdrawal of one subject from one study.

    Args:
        study: The study.
        subject: Registry pseudonym of the subject.
        vault_row: Pseudonym of the subject's row in the vault; empty after the row is destroyed.
        step: The next step.
        opened_at: Time of the withdrawal by the site's clock.
        changed_at: Time of the last completed step.
        pending_on: Code of what the next step is pending on; empty if nothing prevents it.
        evidence: Results of the steps, such as signed statements.
    """

    study: str
    subject: str
    vault_row: str
    step: CascadeStep
    opened_at: str
    changed_at: str
    pending_on: str
    evidence: Mapping[str, Any]


class WithdrawalPendingError(Exception):
    """Error of a step that cannot run yet, with a code for what it is pending on."""

    def __init__(self, pending_on: str) -> None:
        self.pending_on = pending_on
        super().__init__(pending_on)


Action = Callable[[WithdrawalCase, datetime], Mapping[str, Any]]
"""Idempotent action of one step; returns evidence or raises :class:`WithdrawalPendingError`."""


class WithdrawalCascade:
    """Withdrawals of one database.

    Args:
        database: Governance database of the site.
        actions: Action of each step (see :func:`site_steps`).
    """

    def __init__(self, database: Database, actions: Mapping[CascadeStep, Action]) -> None:
        missing = [step for step in STEP_ORDER if step is not CascadeStep.DONE and step not in actions]
        if missing:
            raise StoreError(
                f"step '{missing[0]}' has no action", where="withdrawal", remedy="provide all actions"
            )
        self.database, self.actions = database, actions

    def open(
        self, study: str, subject: str, vault_row: str, when: datetime, *, sent: bool = True
    ) -> WithdrawalCase:
        """Open a withdrawal case, or return the open one; see :func:`open_case`."""
        open_case(self.database, study, subject, vault_row, when, sent=sent)
        return self.case(study, subject)

    def case(self, study: str, subject: str) -> WithdrawalCase:
        """Return the current state of a withdrawal case."""
        case = self.database.read(lambda connection: _find(connection, study, subject))
        if case is None:
            raise DeniedError(
                RefusalCode.NOT_FOUND,
                f"no withdrawal of this subject from study '{study}' is recorded",
                where="withdrawal",
            )
        return case

    def advance(self, case: WithdrawalCase, when: datetime) -> WithdrawalCase:
        """Run the remaining steps of a withdrawal case as far as possible now."""
        while case.step is not CascadeStep.DONE:
            try:
                evidence = self.actions[case.step](case, when)
            except WithdrawalPendingError as waiting:
                self._record_pending(case, waiting.pending_on)
                return self.case(case.study, case.subject)
            except DeniedError as error:
                self._record_pending(case, error.code.value)
                raise
            self._record_step(case, evidence, when)
            case = self.case(case.study, case.subject)
        return case

    def advance_all(self, when: datetime) -> list[WithdrawalCase]:
        """Advance all open withdrawal cases and return those still open."""
        for case in self.pending():
            with contextlib.suppress(AbatonError):  # a failed case stays listed; the others continue
                self.advance(case, when)
        return self.pending()

    def pending(self) -> list[WithdrawalCase]:
        """Return the open withdrawal cases of the cascade, oldest first."""
        return pending(self.database)

    def _record_step(self, case: WithdrawalCase, evidence: Mapping[str, Any], when: datetime) -> None:
        following = STEP_ORDER[STEP_ORDER.index(case.step) + 1]
        text = json.dumps({**case.evidence, **evidence}, sort_keys=True)
        values = {
            "step": following.value,
            "changed_at": to_timestamp(when),
            "pending_on": "",
            "evidence": text,
        }
        if case.step is CascadeStep.DESTROY_ROW:
            values["vault_row"] = ""

        def work(connection: sql.Connection) -> None:
            update = schema.withdrawals.update().where(
                _case_row(case.study, case.subject), schema.withdrawals.c.step == case.step.value
            )
            if connection.execute(
                update.values(**values)
            ).rowcount:  # otherwise a concurrent process recorded it
                detail = {"step": case.step.value}
                append_in(
                    connection,
                    AuditEntry("withdrawal-step", subject=case.subject, study=case.study, detail=detail),
                    when,
                )

        self.database.write(work, lock=subject_lock(case.subject))

    def _record_pending(self, case: WithdrawalCase, pending_on: str) -> None:
        update = schema.withdrawals.update().where(
            _case_row(case.study, case.subject), schema.withdrawals.c.step == case.step.value
        )
        self.database.write(
            lambda connection: connection.execute(update.values(pending_on=pending_on)),
            lock=subject_lock(case.subject),
        )


def open_case(
    database: Database, study: str, subject: str, vault_row: str, when: datetime, *, sent: bool = True
) -> None:
    """Open a subject's withdrawal case unless one is open; after a new consent a new case is opened.

    Args:
        database: Governance database of the site.
        study: The study.
        subject: Registry pseudonym of the subject.
        vault_row: Pseudonym of the subject's row in the vault; empty if there is none.
        when: The current time.
        sent: Whether the centre may have records of the subject in this study, so that it is ordered to delete them.
    """
    if not is_name(study) or not is_pseudonym(subject) or not (is_pseudonym(vault_row) or vault_row == ""):
        raise DeniedError(
            RefusalCode.MALFORMED,
            "the study, the subject or the vault row is not a valid identifier",
            where="withdrawal",
        )

    def work(connection: sql.Connection) -> None:
        case, consent = _find(connection, study, subject), latest_consent_in(connection, subject, study) or {}
        open_before = None if case is None or case.step is CascadeStep.DONE else case
        has_consented_again = consent.get("status") == "active"
        if open_before is not None and (
            open_before.step is CascadeStep.STOP_COLLECTION or not has_consented_again
        ):
            return
        consented_at = earliest_time(consent.get("dateTime"))
        withdrawn_at = when if consented_at is None else max(when, consented_at + TIMESTAMP_STEP)
        sent_before = sent or (open_before is not None and open_before.evidence.get("sent", True))
        values = {
            "vault_row": vault_row,
            "step": CascadeStep.STOP_COLLECTION.value,
            "opened_at": to_timestamp(withdrawn_at),
            "changed_at": to_timestamp(when),
            "pending_on": "",
            "evidence": json.dumps({"sent": sent_before}),
        }
        connection.execute(schema.withdrawals.delete().where(_case_row(study, subject)))
        connection.execute(schema.withdrawals.insert().values(study=study, subject=subject, **values))
        append_in(connection, AuditEntry("withdrawal-started", subject=subject, study=study), when)

    database.write(work, lock=subject_lock(subject))


def pending(database: Database) -> list[WithdrawalCase]:
    """Return the open withdrawal cases of a governance database, oldest first."""
    table = schema.withdrawals
    selection = (
        sql.select(table).where(table.c.step != schema.DONE).order_by(table.c.opened_at, table.c.subject)
    )
    return database.read(lambda connection: [_read(row) for row in connection.execute(selection)])


def _case_row(study: str, subject: str) -> sql.ColumnElement[bool]:
    return (schema.withdrawals.c.study == study) & (schema.withdrawals.c.subject == subject)


def _find(connection: sql.Connection, study: str, subject: str) -> WithdrawalCase | None:
    row = connection.execute(sql.select(schema.withdrawals).where(_case_row(study, subject))).first()
    return None if row is None else _read(row)


def _read(row: Any) -> WithdrawalCase:
    fields = dict(row._mapping)
    return WithdrawalCase(**{**fields, "step": CascadeStep(row.step), "evidence": json.loads(row.evidence)})


Send = Callable[[Statement], Statement | None]
"""Function that sends a deletion order and returns the receipt; None if the centre is unreachable."""


@dataclass(frozen=True, slots=True)
class CentreWithdrawal:
    """Access of a site to the research centre for withdrawals.

    Args:
        signer: Signing key of the site.
        send: Sends an order.
        find: Returns the centre's signing key by id.
    """

    signer: StatementSigner
    send: Send
    find: Find


@dataclass(frozen=True, slots=True)
class SiteWithdrawal:
    """Stores and services that a site needs for a withdrawal.

    Args:
        registry: Consent registry.
        outbox: Outbox; None at a site that sends no records.
        vault: Mapping table; None if the study has none.
        centre: Opens access to the centre, called only if the centre may have records; None if none is configured.
        delete_caches: Deletes other local copies of a subject in a study: (study, registry pseudonym).
    """

    registry: ConsentRegistry
    outbox: Outbox | None = None
    vault: Vault | None = None
    centre: Callable[[], CentreWithdrawal] | None = None
    delete_caches: Callable[[str, str], None] = lambda study, subject: None


def site_steps(site: SiteWithdrawal) -> Mapping[CascadeStep, Action]:
    """Return the idempotent actions of a site in the withdrawal cascade."""
    database = site.registry.database

    def stop(case: WithdrawalCase, when: datetime) -> Mapping[str, Any]:
        site.registry.withdraw(case.subject, case.study, when, withdrawn_at=parse_timestamp(case.opened_at))
        return {}

    def local(case: WithdrawalCase, when: datetime) -> Mapping[str, Any]:
        site.delete_caches(case.study, case.subject)
        if site.outbox is not None:
            site.outbox.delete_subject(case.study, case.subject)
        return {}

    def order(case: WithdrawalCase, when: datetime) -> Mapping[str, Any]:
        if not case.evidence.get("sent", True):
            return {}
        if site.centre is None:
            raise WithdrawalPendingError("centre-not-configured")
        # Dated with the withdrawal, so that a repeated order has the same bytes.
        return {
            "order": write_order(
                site.centre().signer, case.study, case.subject, parse_timestamp(case.opened_at)
            )
        }

    def receipt(case: WithdrawalCase, when: datetime) -> Mapping[str, Any]:
        if "order" not in case.evidence:  # no record of the subject was sent in this study
            return {}
        if site.centre is None:
            raise WithdrawalPendingError("centre-not-configured")
        centre = site.centre()
        receipt_statement = centre.send(case.evidence["order"])
        if receipt_statement is None:
            raise WithdrawalPendingError("centre-unreachable")
        deleted = read_deletion_receipt(receipt_statement, centre.find)
        if (deleted.study, deleted.subject, deleted.order) != (
            case.study,
            case.subject,
            canonical_digest(case.evidence["order"]),
        ):
            raise DeniedError(
                RefusalCode.FORGED, "the deletion receipt refers to another order", where="withdrawal"
            )
        return {"receipt": receipt_statement}

    def key(case: WithdrawalCase, when: datetime) -> Mapping[str, Any]:
        if site.vault is not None and case.vault_row:
            site.vault.destroy_key(case.study, case.vault_row)
        return {}

    def row(case: WithdrawalCase, when: datetime) -> Mapping[str, Any]:
        if site.vault is not None and case.vault_row:
            site.vault.destroy_row(case.study, case.vault_row)
        return {}

    def cohort(case: WithdrawalCase, when: datetime) -> Mapping[str, Any]:
        remove_from_cohorts(database, case.study, case.subject, when)
        return {}

    def rounds(case: WithdrawalCase, when: datetime) -> Mapping[str, Any]:
        marked = mark_rounds(database, case.study, case.subject, when)
        database.scrub(schema.withdrawals)  # also removes the vault pseudonym from the database file
        return {"rounds": [list(round_) for round_ in marked]}

    steps = (stop, local, order, receipt, key, row, cohort, rounds)
    return dict(zip(tuple(CascadeStep)[:-1], steps, strict=True))
