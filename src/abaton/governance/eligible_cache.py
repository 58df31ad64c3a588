"""Cached sets of eligible and opted-out subjects, updated from the audit log.

Each change of a consent is in the audit log in the same transaction, so number and hash of the last entry serve as the
registry's sequence number, which also detects a restored backup; a separate table of changes would be a second source
of truth. New entries name the subjects to evaluate again. Decisions also change at the known times at which consents
start and end.

Invariants:
(1) the result equals a separate decision per subject at that time, whatever was queried before;
(2) if the log lacks the last known entry, as after restoring a backup, all consents are read again;
(3) memory contains only pseudonyms and time windows.
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
from abaton.governance.audit_log import AuditHead, head_in
from abaton.governance.consent import (
    ConsentAction,
    ConsentQuery,
    Window,
    covers,
    overlap,
    permitted_periods,
    restricts_types,
)
from abaton.governance.consent_status import PublishedStudy, in_chunks, read_consent, study_in

_MAX_ENTRIES = 20_000
"""Number of new entries above which reading all consents is as fast as reading the changed ones."""


_MAX_TEMPLATES = 10_000


_MAX_INCREMENTAL = 500


Eligibility = tuple[str, frozenset[str]]


class _ConsentSummary(NamedTuple):
    windows: tuple[Window, ...]
    restricts_types: bool


class _ChangeTracker:
    """Subjects with audit entries since the last call."""

    def __init__(self, study: str) -> None:
        self.study = study
        self._head: AuditHead | None = None

    def changed(self, connection: sql.Connection) -> set[str] | None:
        """Return the subjects to update in the eligible cache; None if all subjects must be read again."""
        # Read first: a change made meanwhile is found by the next call.
        head = head_in(connection)
        before, self._head = self._head, head
        if head == before:
            return set()
        if before is None or not 0 <= head.sequence - before.sequence <= _MAX_ENTRIES:
            return None
        table = schema.audit
        selection = sql.select(table.c.sequence, table.c.hash, table.c.body)
        since = selection.where(table.c.sequence >= before.sequence).order_by(table.c.sequence)
        known, *entries = connection.execute(since).all()
        return (
            None
            if (known.sequence, known.hash) != before
            else self._changed_subjects(row.body for row in entries)
        )

    def _changed_subjects(self, bodies: Iterable[str]) -> set[str] | None:
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
        """Forget the last known audit entry, so that the eligible cache is filled again from all subjects."""
        self._head = None


class EligibleSubjects:
    """Subjects whose records may be used for one action of one study.

    Args:
        study: The study.
        action: The action.
    """

    def __init__(self, study: str, action: ConsentAction) -> None:
        self.study, self.action = study, action
        self._lock, self._tracker = threading.Lock(), _ChangeTracker(study)
        self._published: PublishedStudy | None = None
        self._windows: dict[str, tuple[Window, ...]] = {}
        self._type_restricted: set[str] = set()
        self._edges: list[datetime] = []
        self._subjects_by_edge: dict[datetime, set[str]] = {}
        self._eligible: set[str] = set()
        self._when: datetime | None = None
        self._result: frozenset[str] | None = None
        self._templates: dict[tuple[str, str], _ConsentSummary] = {}

    def eligible(self, connection: sql.Connection, when: datetime) -> Eligibility:
        """Return the current study document and the cached pseudonyms of all eligible subjects at a time.

        While nothing changes, the same set object is returned.
        """
        with self._lock:
            try:
                self._catch_up(connection)
            except BaseException:
                self._tracker.forget()
                raise
            published = self._published
            if published is None or not published.is_open(when):
                return published.document if published else "", frozenset()
            self._move_to(when)
            if self._result is None:
                self._result = frozenset(self._eligible)
            return published.document, self._result

    def restricts_types(self, subject: str) -> bool:
        """Return whether the cached consent of an eligible subject is limited to some resource types."""
        return subject in self._type_restricted

    def _catch_up(self, connection: sql.Connection) -> None:
        changed = self._tracker.changed(connection)
        if changed is None:
            self._load(connection)
        elif changed:
            self._refresh(connection, sorted(changed))

    def _load(self, connection: sql.Connection) -> None:
        self._published = study_in(connection, self.study)
        self._windows, self._subjects_by_edge, self._type_restricted, self._templates = {}, {}, set(), {}
        self._eligible, self._when, self._result = set(), None, None
        opted_out = set(connection.scalars(sql.select(schema.opt_outs.c.subject)))
        for subject, general, study in _latest_consents(connection, self.study):
            if subject not in opted_out:
                self._store_windows(subject, general, study)
        self._edges = sorted(self._subjects_by_edge)

    def _refresh(self, connection: sql.Connection, subjects: Sequence[str]) -> None:
        for chunk in in_chunks(subjects):
            table = schema.opt_outs
            opted_out = set(connection.scalars(sql.select(table.c.subject).where(table.c.subject.in_(chunk))))
            latest = {
                pseudonym: (general, study)
                for pseudonym, general, study in _latest_consents(connection, self.study, chunk)
            }
            for subject in chunk:
                texts = ("", "") if subject in opted_out else latest.get(subject, ("", ""))
                for edge in self._store_windows(subject, *texts):
                    insort(self._edges, edge)
                if self._when is not None:
                    self._update_membership(subject, self._when)

    def _store_windows(self, subject: str, general: str, study: str) -> list[datetime]:
        """Cache the windows in which a subject is eligible by its two latest consents; return the new edges."""
        general_summary, study_summary = (
            self._summarise(subject, general, ""),
            self._summarise(subject, study, self.study),
        )
        (self._type_restricted.add if study_summary.restricts_types else self._type_restricted.discard)(
            subject
        )
        self._windows[subject] = overlap(general_summary.windows, study_summary.windows)
        new_edges = []
        for edge in {time for window in self._windows[subject] for time in window if time is not None}:
            if edge not in self._subjects_by_edge:
                self._subjects_by_edge[edge] = set()
                new_edges.append(edge)
            self._subjects_by_edge[edge].add(subject)
        return new_edges

    def _summarise(self, subject: str, text: str, study: str) -> _ConsentSummary:
        """Summarise a consent for the eligible cache; those that differ only in pseudonym are evaluated once."""
        if not text or self._published is None:
            return _ConsentSummary((), restricts_types=False)
        template = study, text.replace(subject, "\0")
        summary = self._templates.get(template)
        if summary is None:
            query = (
                ConsentQuery(subject, study, self._published.document, self.action)
                if study
                else ConsentQuery(subject)
            )
            consent = read_consent(text)
            summary = _ConsentSummary(permitted_periods(consent, query), restricts_types(consent))
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            self._templates[template] = summary
        return summary

    def _move_to(self, when: datetime) -> None:
        """Move the eligible cache to another time; only subjects whose windows start or end there are evaluated."""
        if self._when is None:
            self._eligible = {subject for subject, windows in self._windows.items() if covers(windows, when)}
        else:
            low, high = sorted((bisect_right(self._edges, self._when), bisect_right(self._edges, when)))
            for edge in self._edges[low:high]:
                for subject in self._subjects_by_edge[edge]:
                    self._update_membership(subject, when)
        self._when = when

    def _update_membership(self, subject: str, when: datetime) -> None:
        is_eligible = covers(self._windows.get(subject, ()), when)
        if is_eligible != (subject in self._eligible):
            (self._eligible.add if is_eligible else self._eligible.discard)(subject)
            self._result = None


class OptedOutSubjects:
    """Subjects on the opt-out list, which overrides consents and permits, and those withdrawn from one study.

    Args:
        study: The study; empty for the list alone.
    """

    def __init__(self, study: str = "") -> None:
        self._lock, self._study, self._tracker = threading.Lock(), study, _ChangeTracker(study)
        self._result: frozenset[str] = frozenset()

    def current(self, connection: sql.Connection) -> frozenset[str]:
        """Return the cached set of opted-out subjects; the same set object while nothing changes."""
        with self._lock:
            changed = self._tracker.changed(connection)
            if changed is None or len(changed) > _MAX_INCREMENTAL:
                opted_out = self._select(connection, None)
                self._result = self._result if opted_out == self._result else frozenset(opted_out)
            elif changed:
                opted_out = self._select(connection, changed)
                if opted_out - self._result or (changed - opted_out) & self._result:
                    self._result = (self._result - changed) | opted_out
            return self._result

    def _select(self, connection: sql.Connection, candidates: set[str] | None) -> set[str]:
        opt_outs, subjects = schema.opt_outs, schema.subjects
        withdrawn = sql.select(subjects.c.subject).where(
            subjects.c.study == self._study, subjects.c.state == "withdrawn"
        )
        opted_out: set[str] = set()
        for selection, column in (
            (sql.select(opt_outs.c.subject), opt_outs.c.subject),
            (withdrawn, subjects.c.subject),
        ):
            opted_out |= set(
                connection.scalars(
                    selection if candidates is None else selection.where(column.in_(candidates))
                )
            )
        return opted_out


def _latest_consents(
    connection: sql.Connection, study: str, subjects: Sequence[str] | None = None
) -> Iterator[tuple[str, str, str]]:
    """Yield subject, latest general opt-in and study consent as text, to fill the eligible cache."""
    table = schema.consents
    selection = sql.select(table.c.subject, table.c.study, table.c.resource).where(
        table.c.study.in_(("", study))
    )
    if subjects is not None:
        selection = selection.where(table.c.subject.in_(subjects))
    ordered = selection.order_by(table.c.subject, table.c.study, table.c.version)
    rows = connection.execute(ordered, execution_options={"yield_per": 1_000})
    for subject, group in groupby(rows, key=lambda row: str(row.subject)):
        latest = {row.study: str(row.resource) for row in group}
        if latest.get(study):
            yield subject, latest.get("", ""), latest[study]
