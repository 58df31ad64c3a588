"""What a site does at each step of a withdrawal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from abaton.governance.cohorts import leave_cohorts, mark_rounds
from abaton.governance.outbox import Outbox
from abaton.governance.receipts import Find, read_deleted, write_order
from abaton.governance.refusals import Code, Denied
from abaton.governance.registry import Registry
from abaton.governance.statements import Signer, Statement
from abaton.governance.times import moment
from abaton.governance.vault import Vault
from abaton.governance.withdrawal import Action, Case, Step, Waiting

Send = Callable[[Statement], Statement | None]
"""Takes a deletion order to the centre and brings its receipt; nothing if the centre cannot be reached now."""


@dataclass(frozen=True, slots=True)
class Site:
    """All that a site needs to let somebody go.

    Args:
        registry: The consents.
        outbox: What waits to be sent.
        vault: The mapping table; nothing if the study keeps none.
        signer: The site's signing key.
        send: The way to the centre.
        find: The centre's signing key by its id.
        forget: Deletes other local copies of a person in a study, such as caches: (study, subject tag).
    """

    registry: Registry
    outbox: Outbox
    vault: Vault | None
    signer: Signer
    send: Send
    find: Find
    forget: Callable[[str, str], None] = lambda study, subject: None


def site_actions(site: Site) -> Mapping[Step, Action]:
    """The actions of a site, each of which can be repeated."""
    database = site.registry.database

    def stop(case: Case, when: datetime) -> Mapping[str, Any]:
        site.registry.withdraw(case.subject, case.study, when)
        return {}

    def local(case: Case, when: datetime) -> Mapping[str, Any]:
        site.forget(case.study, case.subject)
        site.outbox.forget(case.study, case.subject)
        return {}

    def order(case: Case, when: datetime) -> Mapping[str, Any]:
        # Dated with the withdrawal, so that the order is the same however often it is made.
        return {"order": write_order(site.signer, case.study, case.subject, moment(case.since))}

    def receipt(case: Case, when: datetime) -> Mapping[str, Any]:
        answer = site.send(case.evidence["order"])
        if answer is None:
            raise Waiting("the-centre")
        deleted = read_deleted(answer, site.find)
        if (deleted.study, deleted.subject) != (case.study, case.subject):
            raise Denied(Code.FORGED, "the deletion receipt is for something else", where="withdrawal")
        return {"receipt": answer}

    def key(case: Case, when: datetime) -> Mapping[str, Any]:
        if site.vault is not None:
            site.vault.destroy_key(case.study, case.row)
        return {}

    def row(case: Case, when: datetime) -> Mapping[str, Any]:
        if site.vault is not None:
            site.vault.destroy_row(case.study, case.row)
        return {}

    def cohort(case: Case, when: datetime) -> Mapping[str, Any]:
        leave_cohorts(database, case.study, case.subject, when)
        return {}

    def rounds(case: Case, when: datetime) -> Mapping[str, Any]:
        marked = mark_rounds(database, case.study, case.subject, when)
        return {"rounds": [list(round_) for round_ in marked]}

    steps = (stop, local, order, receipt, key, row, cohort, rounds)
    return dict(zip(tuple(Step)[:-1], steps, strict=True))
