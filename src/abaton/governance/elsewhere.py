"""What comes to a site's registry from elsewhere: consents on other people's forms, opt-out lists, data permits.

Invariants:
(1) what is taken over is written with an audit entry in one transaction; reading the same again changes nothing;
(2) whoever has withdrawn here stays out until they sign again; whose form is no longer there is out while it is not;
(3) an opt-out wins over every consent and every permit, for as long as it is on the list.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime

import sqlalchemy as sql

from abaton.canonical import digest
from abaton.governance import schema
from abaton.governance.audit import Entry, append_in, append_many
from abaton.governance.consents import Ask, Reason, ended
from abaton.governance.forms import Terms
from abaton.governance.registry import Registry, check_tag, no
from abaton.governance.standing import (
    hold_all,
    in_chunks,
    newest_of,
    read_consent,
    stand,
    study_in,
    withdraw_in,
    write_consents,
)
from abaton.governance.times import day_end, day_start, first_moment, stamp
from abaton.store import insert_new


@dataclass(frozen=True, slots=True)
class Permit:
    """A data permit of a health data access body: for which study document, by whom, until when, for what.

    Args:
        number: The permit's number.
        authority: Who has issued it.
        start: Its first day.
        end: Its last day.
        purposes: What the data may be used for.
        document: The fingerprint of the study document that it was given for.
    """

    number: str
    authority: str
    start: date
    end: date
    purposes: tuple[str, ...]
    document: str

    def reason(self, document: str, purpose: str, when: datetime) -> Reason:
        """Whether it allows the use of a study's document for a purpose at a moment.

        >>> from datetime import UTC
        >>> permit = Permit("7", "body", date(2026, 1, 1), date(2026, 12, 31), ("diagnostic",), "ab")
        >>> permit.reason("ab", "diagnostic", datetime(2027, 1, 1, tzinfo=UTC))
        <Reason.EXPIRED: 'expired'>
        """
        if document != self.document:
            return Reason.OTHER_DOCUMENT
        if purpose not in self.purposes:
            return Reason.NOT_PERMITTED
        if when < day_start(self.start):
            return Reason.NOT_YET
        return Reason.EXPIRED if when >= day_end(self.end) else Reason.IN_FORCE

    @property
    def digest(self) -> str:
        """Its fingerprint, as the audit chain has it."""
        return digest({**asdict(self), "start": self.start.isoformat(), "end": self.end.isoformat()})


def note_permit(registry: Registry, study: str, permit: Permit, when: datetime) -> None:
    """Write a permit into the audit chain, once."""
    ground_noted(registry, study, permit.document, "permit-noted", permit.digest, when)


def ground_noted(
    registry: Registry, study: str, document: str, action: str, ground: str, when: datetime
) -> None:
    """Write down once on which ground, known by its fingerprint, a study's document is worked on without consents."""
    row = {"study": study, "document": document, "ground": ground}

    def work(connection: sql.Connection) -> None:
        table = schema.grounds
        chosen = sql.select(table.c.noted).where(*(table.c[name] == value for name, value in row.items()))
        if connection.scalar(chosen) is None:
            connection.execute(table.insert().values(**row, noted=stamp(when)))
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
