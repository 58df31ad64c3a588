"""Counts for display: correct, as ranges, without pseudonyms."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import pytest
from tests.governance.conftest import DAY, DOCUMENT, NEWER, NOW, STUDY, pseudonym

from abaton.governance import (
    AuditEntry,
    AuditLog,
    ConsentAction,
    ConsentQuery,
    ConsentRegistry,
    study_counts,
    summarise_audit_log,
    take_snapshot,
)
from abaton.governance.cohorts import count_range
from abaton.governance.withdrawal import CascadeStep, WithdrawalCascade


def test_a_count_is_in_its_range():
    for count in range(200):
        low, high = map(int, count_range(count, 7).split("–"))
        assert low <= count <= high
        assert high - low == 6


@pytest.fixture
def subjects(registry):
    """Return a registry with 12 consents in force besides Ann's, 6 expired, 7 withdrawn."""
    until = {pseudonym(str(number)): NOW + (DAY if number < 6 else 50 * DAY) for number in range(26)}
    registry.enrol(until, STUDY, DOCUMENT, NOW)
    for number in range(6, 13):
        registry.withdraw(pseudonym(str(number)), STUDY, NOW)
    return registry


def test_consents_are_counted_by_decision(subjects, database):
    (counts,) = study_counts(database, NOW + 2 * DAY)
    assert (counts.in_force, counts.expired, counts.withdrawn, counts.other) == ("10–14", "5–9", "5–9", "0–4")
    assert counts.is_open
    asks = [ConsentQuery(subject, STUDY, DOCUMENT) for subject in subjects.subjects(STUDY)]
    exact = Counter(subjects.decision(query, NOW + 2 * DAY).value for query in asks)
    assert (exact["in-force"], exact["expired"], exact["withdrawn"]) == (14, 6, 7)


def test_a_single_withdrawal_does_not_change_a_range(subjects, database):
    before = study_counts(database, NOW)
    subjects.withdraw(pseudonym("20"), STUDY, NOW)
    assert [counts.withdrawn for counts in study_counts(database, NOW)] == [
        counts.withdrawn for counts in before
    ]


def test_withdrawals_under_way_have_an_age(subjects, database):
    cascade = WithdrawalCascade(database, {step: lambda case, when: {} for step in CascadeStep})
    for number in (6, 7):
        cascade.open(STUDY, pseudonym(str(number)), pseudonym(str(number)), NOW + number * DAY)
    (counts,) = study_counts(database, NOW + 10 * DAY)
    assert (counts.pending, counts.oldest_pending_days) == ("0–4", 4)
    for number in (6, 7):
        cascade.advance(cascade.case(STUDY, pseudonym(str(number))), NOW + 10 * DAY)
    (counts,) = study_counts(database, NOW + 10 * DAY)
    assert (counts.pending, counts.oldest_pending_days) == ("0–4", None)


def test_cohorts_are_the_latest_of_each_purpose(subjects, database):
    take_snapshot(subjects, STUDY, ConsentAction.TRAIN, NOW)
    take_snapshot(subjects, STUDY, ConsentAction.TRAIN, NOW + 2 * DAY)
    take_snapshot(subjects, STUDY, ConsentAction.COLLECT, NOW)
    (counts,) = study_counts(database, NOW + 3 * DAY)
    assert [(cohort.purpose, cohort.subjects) for cohort in counts.cohorts] == [
        ("collect", "20–24"),
        ("use", "10–14"),
    ]


def test_the_studys_own_min_cell_count_widens_the_ranges(database):
    registry = ConsentRegistry(database)
    content = {"study": {"title": "T"}, "privacy": {"min_cell_count": 20}}
    registry.publish("wide", NEWER, NOW, ends=None, keep_until=None, content=content)
    (counts,) = study_counts(database, NOW)
    assert (counts.title, counts.in_force) == ("T", "0–19")


def test_counts_contain_no_pseudonyms(subjects, database):
    take_snapshot(subjects, STUDY, ConsentAction.TRAIN, NOW)
    text = str([asdict(counts) for counts in study_counts(database, NOW)])
    assert not any(pseudonym(str(number)) in text for number in range(26))


def test_the_audit_log_is_summarised_by_length_and_latest_entry(database):
    assert summarise_audit_log(database).length == 0
    AuditLog(database).append(AuditEntry("recorded"), NOW)
    summary = summarise_audit_log(database)
    assert summary.length == len(list(AuditLog(database).rows())) == 1
    assert summary.newest.startswith("2026-03-01T12:00")
