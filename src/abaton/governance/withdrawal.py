"""Withdrawal: a cascade of steps that is carried out to its end, however often it is interrupted, and once.

Invariants:
(1) steps are done in order; a step is written down, with its audit entry, in one transaction after its action is done;
(2) an action can be repeated without harm, so a crash at any moment only repeats the step that was under way;
(3) a step that has to wait for somebody stays, with what it waits for and since when, on a list that anybody can see;
(4) a case that is done is never begun again by itself; one that is open begins anew if the person has said yes since;
(5) a no is dated after the yes that it takes back, whatever has become of the site's clock in between;
(6) of a case that is done nothing is kept but the person's tag, the dates and the signed statements.

What a site does at each step of a withdrawal.
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

from abaton.canonical_json import digest
from abaton.errors import AbatonError, StoreError
from abaton.governance import schema
from abaton.governance.audit_log import Entry, append_in
from abaton.governance.cohorts import leave_cohorts, mark_rounds
from abaton.governance.outbox import Outbox
from abaton.governance.consent_registry import Registry
from abaton.governance.consent_status import NEXT, newest_in, subject_lock
from abaton.governance.signed_statements import Find, Signer, Statement, read_deleted, write_order
from abaton.governance.vault import Vault
from abaton.governance.identifiers import Denied, RefusalCode, first_moment, is_name, is_tag, moment, stamp
from abaton.store import Database


class CascadeStep(StrEnum):
    """What has to be done, in this order."""

    STOP = "stop-collecting"
    LOCAL = "delete-local-copies"
    ORDER = "sign-deletion-order"
    RECEIPT = "deletion-at-the-centre"
    KEY = "destroy-row-key"
    ROW = "destroy-row"
    COHORT = "leave-cohorts"
    ROUNDS = "mark-rounds"
    DONE = schema.DONE


ORDER_OF_STEPS = tuple(CascadeStep)


@dataclass(frozen=True, slots=True)
class Case:
    """One person's withdrawal from one study.

    Args:
        study: The study.
        subject: The person's tag in the registry.
        row: The tag of the person's row in the vault; empty once the row is destroyed.
        step: What has to be done next.
        since: When the person withdrew, by the site's clock.
        changed: When the last step was done.
        waits_for: What the next step waits for; empty if it was not tried, or nothing is in its way.
        evidence: What the steps gave, such as signed statements.
    """

    study: str
    subject: str
    row: str
    step: CascadeStep
    since: str
    changed: str
    waits_for: str
    evidence: Mapping[str, Any]


class Waiting(Exception):
    """A step cannot be done yet; says for what it waits, as a code."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(what)


Action = Callable[[Case, datetime], Mapping[str, Any]]
"""Does one step, as often as it is asked, and returns the evidence; raises :class:`Waiting` if it cannot yet."""


class Cascade:
    """The withdrawals of one database.

    Args:
        database: The governance database of the site.
        actions: What to do at each step (see :func:`site_actions`).
    """

    def __init__(self, database: Database, actions: Mapping[CascadeStep, Action]) -> None:
        missing = [step for step in ORDER_OF_STEPS if step is not CascadeStep.DONE and step not in actions]
        if missing:
            raise StoreError(
                f"no action for step '{missing[0]}'", where="withdrawal", remedy="give all actions"
            )
        self.database, self.actions = database, actions

    def begin(self, study: str, subject: str, row: str, when: datetime, *, sent: bool = True) -> Case:
        """Open a case, or find the one that is open; see :func:`open_case`."""
        open_case(self.database, study, subject, row, when, sent=sent)
        return self.case(study, subject)

    def case(self, study: str, subject: str) -> Case:
        """A case as it stands."""
        found = self.database.read(lambda connection: _find(connection, study, subject))
        if found is None:
            raise Denied(RefusalCode.NOT_FOUND, "there is no such withdrawal", where="withdrawal")
        return found

    def advance(self, case: Case, when: datetime) -> Case:
        """Do the steps that are left, as far as they can be done now."""
        while case.step is not CascadeStep.DONE:
            try:
                evidence = self.actions[case.step](case, when)
            except Waiting as waiting:
                self._wait(case, waiting.what)
                return self.case(case.study, case.subject)
            except Denied as error:
                self._wait(case, error.code.value)
                raise
            self._done(case, evidence, when)
            case = self.case(case.study, case.subject)
        return case

    def advance_all(self, when: datetime) -> list[Case]:
        """Go on with every open case; what is still open afterwards."""
        for case in self.pending():
            with contextlib.suppress(
                AbatonError
            ):  # one that is refused or fails stays on the list; the others go on
                self.advance(case, when)
        return self.pending()

    def pending(self) -> list[Case]:
        """The open cases, the oldest first."""
        return pending(self.database)

    def _done(self, case: Case, evidence: Mapping[str, Any], when: datetime) -> None:
        following = ORDER_OF_STEPS[ORDER_OF_STEPS.index(case.step) + 1]
        text = json.dumps({**case.evidence, **evidence}, sort_keys=True)
        values = {"step": following.value, "changed": stamp(when), "waits_for": "", "evidence": text}
        if case.step is CascadeStep.ROW:
            values["row"] = ""

        def work(connection: sql.Connection) -> None:
            chosen = schema.withdrawals.update().where(
                _this(case.study, case.subject), schema.withdrawals.c.step == case.step.value
            )
            if connection.execute(chosen.values(**values)).rowcount:  # else somebody else has done it
                detail = {"step": case.step.value}
                append_in(
                    connection,
                    Entry("withdrawal-step", about=case.subject, study=case.study, detail=detail),
                    when,
                )

        self.database.write(work, lock=subject_lock(case.subject))

    def _wait(self, case: Case, what: str) -> None:
        chosen = schema.withdrawals.update().where(
            _this(case.study, case.subject), schema.withdrawals.c.step == case.step.value
        )
        self.database.write(
            lambda connection: connection.execute(chosen.values(waits_for=what)),
            lock=subject_lock(case.subject),
        )


def open_case(
    database: Database, study: str, subject: str, row: str, when: datetime, *, sent: bool = True
) -> None:
    """Open a person's case unless one is open; whoever has said yes since it was opened has a new one.

    Args:
        database: The governance database of the site.
        study: The study.
        subject: The person's tag.
        row: The tag of the person's row in the vault; empty if there is none.
        when: The time now.
        sent: Whether the centre may have something of the person in this study: then it is ordered to delete it.
    """
    if not is_name(study) or not is_tag(subject) or not (is_tag(row) or row == ""):
        raise Denied(
            RefusalCode.MALFORMED, "a withdrawal names a study and a person's tags", where="withdrawal"
        )

    def work(connection: sql.Connection) -> None:
        found, consent = _find(connection, study, subject), newest_in(connection, subject, study) or {}
        before = None if found is None or found.step is CascadeStep.DONE else found
        is_back = consent.get("status") == "active"
        if before is not None and (before.step is CascadeStep.STOP or not is_back):
            return
        said = first_moment(consent.get("dateTime"))
        no = when if said is None else max(when, said + NEXT)
        ordered = sent or (before is not None and before.evidence.get("sent", True))
        values = {
            "row": row,
            "step": CascadeStep.STOP.value,
            "since": stamp(no),
            "changed": stamp(when),
            "waits_for": "",
            "evidence": json.dumps({"sent": ordered}),
        }
        connection.execute(schema.withdrawals.delete().where(_this(study, subject)))
        connection.execute(schema.withdrawals.insert().values(study=study, subject=subject, **values))
        append_in(connection, Entry("withdrawal-started", about=subject, study=study), when)

    database.write(work, lock=subject_lock(subject))


def pending(database: Database) -> list[Case]:
    """The open cases, the oldest first; anybody may look."""
    table = schema.withdrawals
    chosen = sql.select(table).where(table.c.step != schema.DONE).order_by(table.c.since, table.c.subject)
    return database.read(lambda connection: [_read(row) for row in connection.execute(chosen)])


def _this(study: str, subject: str) -> sql.ColumnElement[bool]:
    return (schema.withdrawals.c.study == study) & (schema.withdrawals.c.subject == subject)


def _find(connection: sql.Connection, study: str, subject: str) -> Case | None:
    row = connection.execute(sql.select(schema.withdrawals).where(_this(study, subject))).first()
    return None if row is None else _read(row)


def _read(row: Any) -> Case:
    fields = dict(row._mapping)
    return Case(**{**fields, "step": CascadeStep(row.step), "evidence": json.loads(row.evidence)})


Send = Callable[[Statement], Statement | None]
"""Takes a deletion order to the centre and brings its receipt; nothing if the centre cannot be reached now."""


@dataclass(frozen=True, slots=True)
class ToCentre:
    """A site's way to the research centre.

    Args:
        signer: The site's signing key.
        send: Takes an order there.
        find: The centre's signing key by its id.
    """

    signer: Signer
    send: Send
    find: Find


@dataclass(frozen=True, slots=True)
class LeavingSite:
    """All that a site needs to let somebody go.

    Args:
        registry: The consents.
        outbox: What waits to be sent; nothing at a site that sends no records.
        vault: The mapping table; nothing if the study keeps none.
        centre: Opens the way to the centre, asked for only where the centre may have something; nothing if the site
            names none.
        forget: Deletes other local copies of a person in a study, such as caches: (study, subject tag).
    """

    registry: Registry
    outbox: Outbox | None = None
    vault: Vault | None = None
    centre: Callable[[], ToCentre] | None = None
    forget: Callable[[str, str], None] = lambda study, subject: None


def site_actions(site: LeavingSite) -> Mapping[CascadeStep, Action]:
    """The actions of a site, each of which can be repeated."""
    database = site.registry.database

    def stop(case: Case, when: datetime) -> Mapping[str, Any]:
        site.registry.withdraw(case.subject, case.study, when, said=moment(case.since))
        return {}

    def local(case: Case, when: datetime) -> Mapping[str, Any]:
        site.forget(case.study, case.subject)
        if site.outbox is not None:
            site.outbox.forget(case.study, case.subject)
        return {}

    def order(case: Case, when: datetime) -> Mapping[str, Any]:
        if not case.evidence.get("sent", True):
            return {}
        if site.centre is None:
            raise Waiting("a-centre-in-the-site-document")
        # Dated with the withdrawal, so that the order is the same however often it is made.
        return {"order": write_order(site.centre().signer, case.study, case.subject, moment(case.since))}

    def receipt(case: Case, when: datetime) -> Mapping[str, Any]:
        if "order" not in case.evidence:  # nothing of the person has ever left in this study
            return {}
        if site.centre is None:
            raise Waiting("a-centre-in-the-site-document")
        centre = site.centre()
        answer = centre.send(case.evidence["order"])
        if answer is None:
            raise Waiting("the-centre")
        deleted = read_deleted(answer, centre.find)
        if (deleted.study, deleted.subject, deleted.order) != (
            case.study,
            case.subject,
            digest(case.evidence["order"]),
        ):
            raise Denied(RefusalCode.FORGED, "the deletion receipt is for something else", where="withdrawal")
        return {"receipt": answer}

    def key(case: Case, when: datetime) -> Mapping[str, Any]:
        if site.vault is not None and case.row:
            site.vault.destroy_key(case.study, case.row)
        return {}

    def row(case: Case, when: datetime) -> Mapping[str, Any]:
        if site.vault is not None and case.row:
            site.vault.destroy_row(case.study, case.row)
        return {}

    def cohort(case: Case, when: datetime) -> Mapping[str, Any]:
        leave_cohorts(database, case.study, case.subject, when)
        return {}

    def rounds(case: Case, when: datetime) -> Mapping[str, Any]:
        marked = mark_rounds(database, case.study, case.subject, when)
        database.scrub(schema.withdrawals)  # the tag of the vault's row goes from the file, too
        return {"rounds": [list(round_) for round_ in marked]}

    steps = (stop, local, order, receipt, key, row, cohort, rounds)
    return dict(zip(tuple(CascadeStep)[:-1], steps, strict=True))
