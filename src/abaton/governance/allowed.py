"""Who may be used now: the answer for everybody, kept up to date by what has changed since it was last asked for.

Every change of a consent is told in the audit chain, in the same transaction. The chain's last number and hash are
therefore the registry's sequence number: while they stay, no consent has changed; where they have moved, the entries in
between name whom to look at again. Time is the other thing that changes an answer, at moments that are known
beforehand: where consents begin and end.

Invariants:
(1) the answer is that of asking for each person at that moment, whatever was asked before and in whatever order;
(2) a chain that does not hold the last known entry, as after a backup was put back, is read anew from its beginning;
(3) nothing but tags and stretches of time is kept in memory.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.audit import Head, head_in
from abaton.governance.consents import Action, Ask, Window, holds, names_kinds, overlap, windows
from abaton.governance.standing import Published, in_chunks, read_consent, study_in

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
        head = head_in(
            connection
        )  # before anything else is read: what changes meanwhile is looked at next time
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
            found = {subject: texts for subject, *texts in _newest(connection, self.study, some)}
            for subject in some:
                for moment in self._put(
                    subject, *("", "") if subject in out else found.get(subject, ("", ""))
                ):
                    insort(self._edges, moment)
                if self._when is not None:
                    self._settle(subject, self._when)

    def _put(self, subject: str, general: str, study: str) -> list[datetime]:
        """Note when a person may be used, by their two newest consents; the moments that were not known yet."""
        yes, to_study = self._told(subject, general, ""), self._told(subject, study, self.study)
        (self._partial.add if to_study.names_kinds else self._partial.discard)(subject)
        self._windows[subject] = overlap(yes.windows, to_study.windows)
        new = []
        for moment in {each for window in self._windows[subject] for each in window if each is not None}:
            if moment not in self._at:
                self._at[moment] = set()
                new.append(moment)
            self._at[moment].add(subject)
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
            for moment in self._edges[low:high]:
                for subject in self._at[moment]:
                    self._settle(subject, when)
        self._when = when

    def _settle(self, subject: str, when: datetime) -> None:
        inside = holds(self._windows.get(subject, ()), when)
        if inside != (subject in self._inside):
            (self._inside.add if inside else self._inside.discard)(subject)
            self._answer = None


class OptedOut:
    """Everybody on the opt-out list, which wins over any consent and any permit."""

    def __init__(self) -> None:
        self._lock, self._follower = threading.Lock(), _Follower("")
        self._answer: frozenset[str] = frozenset()

    def at(self, connection: sql.Connection) -> frozenset[str]:
        """The tags of everybody who has opted out; while nothing has changed, the very same set is given back."""
        table = schema.opt_outs
        with self._lock:
            changed = self._follower.changed(connection)
            chosen = sql.select(table.c.subject)
            if changed is None or len(changed) > _FEW:
                self._answer = frozenset(connection.scalars(chosen))
            elif changed:
                out = set(connection.scalars(chosen.where(table.c.subject.in_(changed))))
                if out - self._answer or (changed - out) & self._answer:
                    self._answer = (self._answer - changed) | out
            return self._answer


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
