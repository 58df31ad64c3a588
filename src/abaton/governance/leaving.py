"""Leaving for good: a person is told of no more studies, and everything of theirs at the centre goes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from abaton.governance import schema
from abaton.governance.enrolling import changed_in
from abaton.governance.inbox import Inbox
from abaton.governance.keepers import check_keeper
from abaton.governance.receipts import Find, Order
from abaton.governance.refusals import Code, Denied
from abaton.governance.senders import Role
from abaton.governance.statements import Signer, Statement, Verify, check, state
from abaton.governance.tags import is_tag
from abaton.governance.times import first_moment, stamp

NOTICE, LEFT = "exit-notice", "exit-receipt"


@dataclass(frozen=True, slots=True)
class Left:
    """The centre has let a person go: out of how many studies, and when."""

    subject: str
    sender: str
    studies: int
    at: str


def write_notice(signer: Signer, subject: str, when: datetime) -> Statement:
    """A site tells that a person leaves all studies."""
    return state(signer, NOTICE, {"subject": subject, "at": stamp(when)})


def read_notice(statement: object, find: Find) -> tuple[str, str]:
    """The person and the moment in a notice that a site has signed."""
    body = check(statement, NOTICE, find)
    subject, at = body.get("subject"), body.get("at")
    if set(body) != {"subject", "at"} or not is_tag(subject) or first_moment(at) is None:
        raise Denied(Code.MALFORMED, "the notice names nobody", where=NOTICE)
    return str(subject), str(at)


def read_left(statement: object, find: Find) -> Left:
    """A confirmation that the centre has signed."""
    body = check(statement, LEFT, find)
    if set(body) != set(Left.__slots__) or type(body["studies"]) is not int:
        raise Denied(Code.MALFORMED, "a statement says other things than it should", where=LEFT)
    return Left(**body)


def leave(inbox: Inbox, statement: object, by: str, when: datetime) -> tuple[Statement, list[Statement]]:
    """Carry out a signed notice: opt the person out and delete what this sender brought, study by study.

    Repeatable: what is gone already is confirmed by the same receipts.

    Args:
        inbox: The centre's inbox.
        statement: The signed notice.
        by: The key of whoever brings it, which must have signed it.
        when: The time now.

    Returns:
        The confirmation, and the deletion receipt of every study.
    """

    def find(key_id: str) -> Verify | None:
        key = inbox.senders.signing(key_id, Role.SITE) if key_id == by else None
        return None if key is None else key.verify

    subject, at = read_notice(statement, find)
    owner = inbox.senders.owner(by)
    sender = owner.name if owner else ""
    check_keeper(inbox.database, subject, sender)
    general = inbox.registry.consent(subject)
    if general is not None and general.get("status") == "active":
        before = inbox.database.read(lambda connection: changed_in(connection, subject, ""))
        if before > at:
            raise Denied(Code.REPLAYED, "the person has said yes again since this notice", where=NOTICE)
    studies = inbox.registry.opt_out(subject, when)
    receipts = [inbox.carry_out(Order(study, subject, at), by, when) for study in studies]
    inbox.database.scrub(schema.inbox)
    gone = inbox.database.read(lambda connection: changed_in(connection, subject, ""))
    left = Left(subject, sender, len(studies), gone or at)
    return state(inbox.signer, LEFT, asdict(left)), receipts
