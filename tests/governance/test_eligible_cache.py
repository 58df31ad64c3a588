"""Cached eligible subjects equal a separate decision per subject."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
import sqlalchemy as sql
from tests.governance.conftest import DAY, DOCUMENT, NOW, STUDY, pseudonym, store_consent

from abaton.governance import (
    AuditEntry,
    AuditLog,
    ConsentAction,
    ConsentQuery,
    ConsentRegistry,
    DeniedError,
    eligible_cache,
    make_consent,
    record_round,
    rounds_with,
    schema,
    snapshot_members,
)
from abaton.governance.cohorts import take_snapshot
from abaton.governance.consent import deactivate
from abaton.governance.external_consent import set_opt_outs

SUBJECTS = [pseudonym(f"subject {number}") for number in range(12)]


def single_decisions(registry: ConsentRegistry, action: ConsentAction, when) -> frozenset[str]:
    """Return the eligible subjects by one decision each, from a registry without a cache."""
    fresh = ConsentRegistry(registry.database)
    queries = {subject: ConsentQuery(subject, STUDY, "", action) for subject in SUBJECTS}
    return frozenset(subject for subject, query in queries.items() if fresh.decision(query, when).permits)


def timed_consent(query: ConsentQuery, rng: random.Random) -> dict:
    """Return a consent of which some actions start later or end earlier."""
    consent = make_consent(query, NOW + rng.randint(0, 10) * DAY, NOW + rng.randint(5, 60) * DAY)
    denied = {"type": "deny", "action": [rng.choice(consent["provision"]["action"])]}
    start = NOW + rng.randint(0, 40) * DAY
    period = {"start": start.date().isoformat()}
    if rng.random() < 0.5:
        period["end"] = (start + rng.randint(0, 9) * DAY).date().isoformat()
    consent["provision"]["provision"] = [{**denied, "period": period}]
    return consent


def apply_random_change(registry: ConsentRegistry, rng: random.Random, when) -> None:
    """Apply a random change to a random subject."""
    subject = rng.choice(SUBJECTS)
    query = ConsentQuery(subject, STUDY, DOCUMENT)
    match rng.randrange(8):
        case 0:
            until = when + rng.randint(1, 30) * DAY if rng.random() < 0.3 else None
            store_consent(
                registry, ConsentQuery(subject), make_consent(ConsentQuery(subject), when, until), when
            )
        case 1 | 2:
            until = when + rng.randint(0, 40) * DAY if rng.random() < 0.7 else None
            ends = {
                other: until
                for other in rng.sample(SUBJECTS, 3)
                if other not in registry.opted_out_subjects()
            }
            registry.enrol(ends, STUDY, DOCUMENT, when)
        case 3:
            registry.withdraw(subject, STUDY, when)
        case 4:
            store_consent(
                registry,
                ConsentQuery(subject),
                deactivate(make_consent(ConsentQuery(subject), when, None), when),
                when,
            )
        case 5:
            store_consent(registry, query, timed_consent(query, rng), when)
        case 6:
            set_opt_outs(registry, rng.sample(SUBJECTS, rng.randint(0, 3)), when)
        case 7:
            store_consent(registry, query, deactivate(make_consent(query, when, None), when), when)


@pytest.mark.parametrize("seed", range(6))
def test_eligible_subjects_equal_single_decisions_at_random_times(registry, seed):
    registry.publish(STUDY, DOCUMENT, NOW, ends=NOW + 90 * DAY, keep_until=None)
    rng = random.Random(seed)
    seen = set()
    for _ in range(60):
        if rng.random() < 0.6:
            apply_random_change(registry, rng, NOW + rng.randint(0, 20) * DAY)
        when = NOW + timedelta(seconds=rng.randint(-10, 110 * 86400))
        if rng.random() < 0.3:  # exactly at a start or end
            when = NOW + rng.randint(0, 60) * DAY
        for action in ConsentAction:
            document, eligible = registry.eligible_subjects(STUDY, action, when)
            assert document == DOCUMENT
            assert eligible & set(SUBJECTS) == single_decisions(registry, action, when)
            seen.add(len(eligible))
    assert len(seen) > 3  # several different results occurred


@pytest.mark.parametrize("text", ["{}", "no JSON", '{"provision": {"period": 5}}', "[]"])
def test_a_consent_that_cannot_be_read_allows_nothing(registry, text):
    ann = pseudonym("ann")
    registry.database.write(lambda c: c.execute(schema.consents.update().values(resource=text)))
    assert registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW)[1] == frozenset()
    assert not registry.decision(ConsentQuery(ann, STUDY), NOW).permits


def test_without_a_change_the_same_set_is_returned(registry):
    ann = pseudonym("ann")
    _, first = registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW)
    assert registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW + DAY)[1] is first
    take_snapshot(registry, STUDY, ConsentAction.COLLECT, NOW)  # an audit entry without a subject
    AuditLog(registry.database).append(
        AuditEntry("envelope-queued", subject=ann, study=STUDY), NOW
    )  # changes nothing
    assert registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW + 2 * DAY)[1] is first
    assert registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW + 51 * DAY)[1] == frozenset()
    assert registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW)[1] == {ann}


def test_consents_are_evaluated_again_only_after_a_change(registry, monkeypatch):
    evaluated: list[str] = []
    real = eligible_cache.permitted_periods
    monkeypatch.setattr(
        eligible_cache,
        "permitted_periods",
        lambda consent, query: evaluated.append(query.subject) or real(consent, query),
    )
    registry.enrol(dict.fromkeys(SUBJECTS, NOW + 30 * DAY), STUDY, DOCUMENT, NOW)
    registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW)
    at_first = len(evaluated)
    assert at_first <= 4  # those that differ in nothing but the tag are single_decisions once
    for day in range(40):
        registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW + day * DAY)
    assert len(evaluated) == at_first
    registry.withdraw(SUBJECTS[3], STUDY, NOW + DAY)
    assert SUBJECTS[3] not in registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW + DAY)[1]
    assert set(evaluated[at_first:]) <= {SUBJECTS[3]}


def test_a_restored_backup_is_detected(registry):
    database, ann, bob = registry.database, pseudonym("ann"), SUBJECTS[0]
    rows = database.read(lambda c: c.execute(sql.select(schema.audit)).mappings().all())
    consents = database.read(lambda c: c.execute(sql.select(schema.consents)).mappings().all())
    registry.withdraw(ann, STUDY, NOW)
    assert registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW)[1] == frozenset()

    def restore(connection: sql.Connection) -> None:
        for table, before in ((schema.audit, rows), (schema.consents, consents)):
            connection.execute(table.delete())
            connection.execute(table.insert(), [dict(row) for row in before])

    database.write(restore)
    assert registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW)[1] == {ann}
    registry.withdraw(ann, STUDY, NOW)
    assert registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW)[1] == frozenset()
    database.write(restore)
    registry.enrol({bob: None}, STUDY, DOCUMENT, NOW)  # the audit log is as long as before, or longer
    assert registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW)[1] == {ann, bob}


def test_bulk_enrolment_is_atomic(registry):
    before = len(registry.subjects(STUDY))
    set_opt_outs(registry, [SUBJECTS[2]], NOW)
    with pytest.raises(DeniedError, match="opted-out"):
        registry.enrol(dict.fromkeys(SUBJECTS), STUDY, DOCUMENT, NOW)
    assert len(registry.subjects(STUDY)) == before
    assert registry.consent(SUBJECTS[0]) is None
    set_opt_outs(registry, [], NOW)
    registry.enrol(dict.fromkeys(SUBJECTS), STUDY, DOCUMENT, NOW)
    assert set(SUBJECTS) < registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW)[1]


def test_an_opt_out_wins_until_it_is_lifted(registry):
    ann = pseudonym("ann")
    assert set_opt_outs(registry, [ann, SUBJECTS[0]], NOW) == (2, 0)
    assert set_opt_outs(registry, [ann, SUBJECTS[0]], NOW) == (0, 0)
    assert registry.decision(ConsentQuery(ann, STUDY, DOCUMENT), NOW).value == "opted-out"
    store_consent(
        registry, ConsentQuery(ann), make_consent(ConsentQuery(ann), NOW, None), NOW
    )  # a new opt-in does not help
    assert registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW)[1] == frozenset()
    assert registry.opted_out_subjects() == {ann, SUBJECTS[0]}
    assert set_opt_outs(registry, [SUBJECTS[0]], NOW) == (0, 1)
    assert registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW)[1] == {ann}
    assert registry.opted_out_subjects() == {SUBJECTS[0]}


def test_a_small_change_of_a_cohort_is_stored_as_a_difference(registry):
    database = registry.database
    registry.enrol(dict.fromkeys(SUBJECTS), STUDY, DOCUMENT, NOW)
    first = take_snapshot(registry, STUDY, ConsentAction.TRAIN, NOW, sorted(SUBJECTS))
    registry.withdraw(SUBJECTS[4], STUDY, NOW + DAY)
    second = take_snapshot(registry, STUDY, ConsentAction.TRAIN, NOW + DAY, sorted(SUBJECTS), first)
    registry.enrol({SUBJECTS[4]: None}, STUDY, DOCUMENT, NOW + 2 * DAY)
    registry.withdraw(SUBJECTS[5], STUDY, NOW + 2 * DAY)
    third = take_snapshot(registry, STUDY, ConsentAction.TRAIN, NOW + 2 * DAY, sorted(SUBJECTS), second)
    full_snapshot = take_snapshot(
        ConsentRegistry(database), STUDY, ConsentAction.TRAIN, NOW + 2 * DAY, sorted(SUBJECTS)
    )
    assert full_snapshot.id == third.id
    for number, snapshot in enumerate((first, second, third)):
        assert snapshot_members(database, snapshot.id) == list(snapshot.members)
        record_round(database, "run", number, snapshot, NOW)
    assert [len(cohort.members) for cohort in (first, second, third)] == [12, 11, 11]
    assert rounds_with(database, STUDY, SUBJECTS[4]) == [("run", 0), ("run", 2)]
    assert rounds_with(database, STUDY, SUBJECTS[5]) == [("run", 0), ("run", 1)]
    assert rounds_with(database, STUDY, SUBJECTS[6]) == [("run", 0), ("run", 1), ("run", 2)]
    written = database.read(lambda c: c.scalar(sql.select(sql.func.count()).select_from(schema.members)))
    assert written == 13
