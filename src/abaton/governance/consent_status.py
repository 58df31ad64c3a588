"""Where people stand: one person inside a transaction, and everybody who may be used now.

What is asked inside a transaction still holds when it is acted on. The answer for everybody is kept up to date by what
has changed since it was last asked for: every change of a consent is told in the audit chain, in the same transaction,
so the chain's last number and hash are the registry's sequence number. While they stay, no consent has changed; where
they have moved, the entries in between name whom to look at again. Time is the other thing that changes an answer, at
moments that are known beforehand: where consents begin and end.

Invariants of the answer for everybody:
(1) it is that of asking for each person at that moment, whatever was asked before and in whatever order;
(2) a chain that does not hold the last known entry, as after a backup was put back, is read anew from its beginning;
(3) nothing but tags and stretches of time is kept in memory.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import NamedTuple

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.audit_log import Entry, Head, append_in, head_in
from abaton.governance.consent import (
    Action,
    Ask,
    Json,
    Permit,
    Reason,
    Window,
    ended,
    holds,
    judge,
    make_consent,
    names_kinds,
    overlap,
    research_subject,
    windows,
)
from abaton.governance.identifiers import first_moment, moment, stamp
from abaton.store import hold

_CHUNK = 500
NEXT = timedelta(milliseconds=1)
"""The smallest step of a time that is written down."""
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


def sending_in(connection: sql.Connection, ask: Ask, when: datetime) -> Reason:
    """Whether a person's records may be sent: by their own consent, or on a permit that says so.

    On a permit nobody needs a consent; whoever has opted out or withdrawn stays out, whatever a permit says.
    """
    reason = reason_in(connection, replace(ask, action=Action.SEND), when)
    if reason not in (Reason.NOT_OPTED_IN, Reason.ABSENT, Reason.NOT_PERMITTED, Reason.EXPIRED):
        return reason
    if state_in(connection, ask.subject, ask.study) == "withdrawn":
        return Reason.WITHDRAWN
    table = schema.grounds
    chosen = sql.select(table.c.document, table.c.permit).where(
        table.c.study == ask.study, table.c.permit != ""
    )
    found = study_in(connection, ask.study)
    for document, text in connection.execute(chosen):
        noted = json.loads(text)
        permit = Permit.read(noted["permit"])
        if found and document == found.document:
            answer = permit.reason(document, noted["purpose"], when, Action.SEND)
            if answer.allows:
                return answer
    return reason


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


def dated_after_no(
    connection: sql.Connection, said: Sequence[tuple[Ask, str]], when: datetime
) -> Sequence[tuple[Ask, str]]:
    """The same consents, each dated after the person's last no: a clock that was set back must not keep anybody out."""
    people, study, table = [ask.subject for ask, _ in said], said[0][0].study, schema.subjects
    chosen = sql.select(table.c.subject).where(table.c.study == study, table.c.state == "withdrawn")
    left = set(connection.scalars(chosen.where(table.c.subject.in_(people))))
    noes = {
        subject: first_moment(read_consent(text).get("dateTime"))
        for subject, text in newest_of(connection, sorted(left), study).items()
    }
    later = {subject: no + NEXT for subject, no in noes.items() if no is not None and no >= when}
    return [
        (ask, json.dumps({**read_consent(text), "dateTime": stamp(later[ask.subject])}, sort_keys=True))
        if ask.subject in later
        else (ask, text)
        for ask, text in said
    ]


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


def withdraw_in(
    connection: sql.Connection, subject: str, study: str, when: datetime, *, said: datetime | None = None
) -> None:
    """Take a person's yes to a study back inside a transaction; doing it twice is doing it once.

    Args:
        connection: The transaction.
        subject: The person's tag.
        study: The study.
        when: The time now.
        said: When the person said no, by the clock of whoever brings it; the same clock dates their next yes.
    """
    consent = newest_in(connection, subject, study)
    was_in = consent is not None and consent.get("status") == "active"
    if consent is not None and was_in:
        write_consent(connection, Ask(subject, study), ended(consent, said or when), when)
    if was_in or state_in(connection, subject, study) != "withdrawn":
        stand(connection, [subject], study, "withdrawn", when)
        append_in(connection, Entry("consent-withdrawn", about=subject, study=study), when)


def said_yes_after(connection: sql.Connection, subject: str, study: str, at: str) -> bool:
    """Whether the newest consent of a person is active and was given after a moment: both by the site's clock."""
    consent, order = newest_in(connection, subject, study) or {}, first_moment(at)
    said = first_moment(consent.get("dateTime"))
    return consent.get("status") == "active" and (said is None or order is None or said > order)


_MOST_ENTRIES = 20_000
"""After more entries than this, reading everything is as fast as looking at those who changed."""
_MOST_TEMPLATES = 10_000
_FEW = 500

Answer = tuple[str, frozenset[str]]


class _Told(NamedTuple):
    windows: tuple[Window, ...]
    names_kinds: bool


class _Follower:
    """Reads in the audit chain whom anything has happened to since the last time."""

    def __init__(self, study: str) -> None:
        self.study = study
        self._head: Head | None = None

    def changed(self, connection: sql.Connection) -> set[str] | None:
        """Whom the entries since the last time are about; nothing if everybody has to be looked at."""
        # Before anything else is read: what changes meanwhile is looked at next time.
        head = head_in(connection)
        before, self._head = self._head, head
        if head == before:
            return set()
        if before is None or not 0 <= head.sequence - before.sequence <= _MOST_ENTRIES:
            return None
        table = schema.audit
        chosen = sql.select(table.c.sequence, table.c.hash, table.c.body)
        since = chosen.where(table.c.sequence >= before.sequence).order_by(table.c.sequence)
        known, *entries = connection.execute(since).all()
        return None if (known.sequence, known.hash) != before else self._named(row.body for row in entries)

    def _named(self, bodies: Iterable[str]) -> set[str] | None:
        changed: set[str] = set()
        for body in bodies:
            entry = json.loads(body)
            if entry["study"] not in ("", self.study):
                continue
            if entry["about"]:
                changed.add(entry["about"])
            elif entry["action"].startswith("study-"):
                return None
        return changed

    def forget(self) -> None:
        """Begin anew: what was to be read could not be."""
        self._head = None


class Allowed:
    """Everybody who may be used for one action of one study.

    Args:
        study: The study.
        action: What is to be done.
    """

    def __init__(self, study: str, action: Action) -> None:
        self.study, self.action = study, action
        self._lock, self._follower = threading.Lock(), _Follower(study)
        self._published: Published | None = None
        self._windows: dict[str, tuple[Window, ...]] = {}
        self._partial: set[str] = set()
        self._edges: list[datetime] = []
        self._at: dict[datetime, set[str]] = {}
        self._inside: set[str] = set()
        self._when: datetime | None = None
        self._answer: frozenset[str] | None = None
        self._templates: dict[tuple[str, str], _Told] = {}

    def at(self, connection: sql.Connection, when: datetime) -> Answer:
        """The study's current document, and the tags of everybody who may be used at a moment.

        While nothing has changed, the very same set is given back.
        """
        with self._lock:
            try:
                self._catch_up(connection)
            except BaseException:
                self._follower.forget()
                raise
            found = self._published
            if found is None or not found.is_open(when):
                return found.document if found else "", frozenset()
            self._move(when)
            if self._answer is None:
                self._answer = frozenset(self._inside)
            return found.document, self._answer

    def names_kinds(self, subject: str) -> bool:
        """Whether a person's yes holds for some types of resources only."""
        return subject in self._partial

    def _catch_up(self, connection: sql.Connection) -> None:
        changed = self._follower.changed(connection)
        if changed is None:
            self._load(connection)
        elif changed:
            self._look_again(connection, sorted(changed))

    def _load(self, connection: sql.Connection) -> None:
        self._published = study_in(connection, self.study)
        self._windows, self._at, self._partial, self._templates = {}, {}, set(), {}
        self._inside, self._when, self._answer = set(), None, None
        out = set(connection.scalars(sql.select(schema.opt_outs.c.subject)))
        for subject, general, study in _newest(connection, self.study):
            if subject not in out:
                self._put(subject, general, study)
        self._edges = sorted(self._at)

    def _look_again(self, connection: sql.Connection, people: Sequence[str]) -> None:
        for some in in_chunks(people):
            table = schema.opt_outs
            out = set(connection.scalars(sql.select(table.c.subject).where(table.c.subject.in_(some))))
            found = {who: (general, study) for who, general, study in _newest(connection, self.study, some)}
            for subject in some:
                texts = ("", "") if subject in out else found.get(subject, ("", ""))
                for edge in self._put(subject, *texts):
                    insort(self._edges, edge)
                if self._when is not None:
                    self._settle(subject, self._when)

    def _put(self, subject: str, general: str, study: str) -> list[datetime]:
        """Note when a person may be used, by their two newest consents; the moments that were not known yet."""
        yes, to_study = self._told(subject, general, ""), self._told(subject, study, self.study)
        (self._partial.add if to_study.names_kinds else self._partial.discard)(subject)
        self._windows[subject] = overlap(yes.windows, to_study.windows)
        new = []
        for edge in {each for window in self._windows[subject] for each in window if each is not None}:
            if edge not in self._at:
                self._at[edge] = set()
                new.append(edge)
            self._at[edge].add(subject)
        return new

    def _told(self, subject: str, text: str, study: str) -> _Told:
        """What a consent says; those that differ in nothing but the person's tag are judged once."""
        if not text or self._published is None:
            return _Told((), names_kinds=False)
        template = study, text.replace(subject, "\0")
        known = self._templates.get(template)
        if known is None:
            ask = Ask(subject, study, self._published.document, self.action) if study else Ask(subject)
            consent = read_consent(text)
            known = _Told(windows(consent, ask), names_kinds(consent))
            if len(self._templates) >= _MOST_TEMPLATES:
                self._templates.clear()
            self._templates[template] = known
        return known

    def _move(self, when: datetime) -> None:
        """Go to another moment: only those whose consents begin or end on the way are looked at."""
        if self._when is None:
            self._inside = {subject for subject, found in self._windows.items() if holds(found, when)}
        else:
            low, high = sorted((bisect_right(self._edges, self._when), bisect_right(self._edges, when)))
            for edge in self._edges[low:high]:
                for subject in self._at[edge]:
                    self._settle(subject, when)
        self._when = when

    def _settle(self, subject: str, when: datetime) -> None:
        inside = holds(self._windows.get(subject, ()), when)
        if inside != (subject in self._inside):
            (self._inside.add if inside else self._inside.discard)(subject)
            self._answer = None


class OptedOut:
    """Everybody on the opt-out list, which wins over any consent and any permit; and who has left one study.

    Args:
        study: The study; empty for the list alone.
    """

    def __init__(self, study: str = "") -> None:
        self._lock, self._study, self._follower = threading.Lock(), study, _Follower(study)
        self._answer: frozenset[str] = frozenset()

    def at(self, connection: sql.Connection) -> frozenset[str]:
        """The tags of everybody who is out; while nothing has changed, the very same set is given back."""
        with self._lock:
            changed = self._follower.changed(connection)
            if changed is None or len(changed) > _FEW:
                out = self._among(connection, None)
                self._answer = self._answer if out == self._answer else frozenset(out)
            elif changed:
                out = self._among(connection, changed)
                if out - self._answer or (changed - out) & self._answer:
                    self._answer = (self._answer - changed) | out
            return self._answer

    def _among(self, connection: sql.Connection, people: set[str] | None) -> set[str]:
        listed, subjects = schema.opt_outs, schema.subjects
        left = sql.select(subjects.c.subject).where(
            subjects.c.study == self._study, subjects.c.state == "withdrawn"
        )
        found: set[str] = set()
        for chosen, column in ((sql.select(listed.c.subject), listed.c.subject), (left, subjects.c.subject)):
            found |= set(connection.scalars(chosen if people is None else chosen.where(column.in_(people))))
        return found


def _newest(
    connection: sql.Connection, study: str, people: Sequence[str] | None = None
) -> Iterator[tuple[str, str, str]]:
    """Of everybody, or some people: the newest wish to be told of studies and the newest consent to one, as text."""
    table = schema.consents
    chosen = sql.select(table.c.subject, table.c.study, table.c.resource).where(
        table.c.study.in_(("", study))
    )
    if people is not None:
        chosen = chosen.where(table.c.subject.in_(people))
    ordered = chosen.order_by(table.c.subject, table.c.study, table.c.version)
    rows = connection.execute(ordered, execution_options={"yield_per": 1_000})
    for subject, group in groupby(rows, key=lambda row: str(row.subject)):
        newest = {row.study: str(row.resource) for row in group}
        if newest.get(study):
            yield subject, newest.get("", ""), newest[study]
