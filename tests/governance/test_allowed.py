"""Who may be used now: the answer that is kept up to date is that of judging everybody."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
import sqlalchemy as sql
from tests.governance.conftest import DAY, DOCUMENT, NOW, STUDY, person, say

from abaton.governance import (
    Action,
    Ask,
    Audit,
    Denied,
    Entry,
    Registry,
    make_consent,
    members_of,
    note_round,
    rounds_with,
    schema,
)
from abaton.governance import consent_status as standing_module
from abaton.governance.cohorts import take_snapshot
from abaton.governance.consent import ended
from abaton.governance.external_consent import set_opt_outs

PEOPLE = [person(f"somebody {number}") for number in range(12)]


def judged(registry: Registry, action: Action, when) -> frozenset[str]:
    """Everybody asked for, one by one, of a registry that remembers nothing."""
    fresh = Registry(registry.database)
    asked = {subject: Ask(subject, STUDY, "", action) for subject in PEOPLE}
    return frozenset(subject for subject, ask in asked.items() if fresh.reason(ask, when).allows)


def timed(ask: Ask, rng: random.Random) -> dict:
    """A consent of which some actions begin later or end earlier than the rest."""
    made = make_consent(ask, NOW + rng.randint(0, 10) * DAY, NOW + rng.randint(5, 60) * DAY)
    denied = {"type": "deny", "action": [rng.choice(made["provision"]["action"])]}
    start = NOW + rng.randint(0, 40) * DAY
    period = {"start": start.date().isoformat()}
    if rng.random() < 0.5:
        period["end"] = (start + rng.randint(0, 9) * DAY).date().isoformat()
    made["provision"]["provision"] = [{**denied, "period": period}]
    return made


def happens(registry: Registry, rng: random.Random, when) -> None:
    """Something happens to somebody."""
    subject = rng.choice(PEOPLE)
    ask = Ask(subject, STUDY, DOCUMENT)
    match rng.randrange(8):
        case 0:
            until = when + rng.randint(1, 30) * DAY if rng.random() < 0.3 else None
            say(registry, Ask(subject), make_consent(Ask(subject), when, until), when)
        case 1 | 2:
            until = when + rng.randint(0, 40) * DAY if rng.random() < 0.7 else None
            people = {each: until for each in rng.sample(PEOPLE, 3) if each not in registry.who_is_out()}
            registry.enrol(people, STUDY, DOCUMENT, when)
        case 3:
            registry.withdraw(subject, STUDY, when)
        case 4:
            say(registry, Ask(subject), ended(make_consent(Ask(subject), when, None), when), when)
        case 5:
            say(registry, ask, timed(ask, rng), when)
        case 6:
            set_opt_outs(registry, rng.sample(PEOPLE, rng.randint(0, 3)), when)
        case 7:
            say(registry, ask, ended(make_consent(ask, when, None), when), when)


@pytest.mark.parametrize("seed", range(6))
def test_the_answer_is_that_of_judging_everybody_at_random_moments(registry, seed):
    registry.publish(STUDY, DOCUMENT, NOW, ends=NOW + 90 * DAY, keep_until=None)
    rng = random.Random(seed)
    seen = set()
    for _ in range(60):
        if rng.random() < 0.6:
            happens(registry, rng, NOW + rng.randint(0, 20) * DAY)
        when = NOW + timedelta(seconds=rng.randint(-10, 110 * 86400))
        if rng.random() < 0.3:  # exactly where something begins or ends
            when = NOW + rng.randint(0, 60) * DAY
        for action in Action:
            document, found = registry.who_may(STUDY, action, when)
            assert document == DOCUMENT
            assert found & set(PEOPLE) == judged(registry, action, when)
            seen.add(len(found))
    assert len(seen) > 3  # the test saw more than one answer


@pytest.mark.parametrize("text", ["{}", "no JSON", '{"provision": {"period": 5}}', "[]"])
def test_a_consent_that_cannot_be_read_allows_nothing(registry, text):
    ann = person("ann")
    registry.database.write(lambda c: c.execute(schema.consents.update().values(resource=text)))
    assert registry.who_may(STUDY, Action.TRAIN, NOW)[1] == frozenset()
    assert not registry.reason(Ask(ann, STUDY), NOW).allows


def test_without_a_change_the_very_same_set_is_given_back(registry):
    ann = person("ann")
    _, first = registry.who_may(STUDY, Action.TRAIN, NOW)
    assert registry.who_may(STUDY, Action.TRAIN, NOW + DAY)[1] is first
    take_snapshot(registry, STUDY, Action.COLLECT, NOW)  # an entry of the chain that is about nobody
    Audit(registry.database).append(Entry("envelope-queued", about=ann, study=STUDY), NOW)  # changes nothing
    assert registry.who_may(STUDY, Action.TRAIN, NOW + 2 * DAY)[1] is first
    assert registry.who_may(STUDY, Action.TRAIN, NOW + 51 * DAY)[1] == frozenset()
    assert registry.who_may(STUDY, Action.TRAIN, NOW)[1] == {ann}


def test_nobody_is_judged_again_without_a_reason(registry, monkeypatch):
    judgements: list[str] = []
    real = standing_module.windows
    monkeypatch.setattr(
        standing_module, "windows", lambda consent, ask: judgements.append(ask.subject) or real(consent, ask)
    )
    registry.enrol(dict.fromkeys(PEOPLE, NOW + 30 * DAY), STUDY, DOCUMENT, NOW)
    registry.who_may(STUDY, Action.TRAIN, NOW)
    at_first = len(judgements)
    assert at_first <= 4  # those that differ in nothing but the tag are judged once
    for day in range(40):
        registry.who_may(STUDY, Action.TRAIN, NOW + day * DAY)
    assert len(judgements) == at_first
    registry.withdraw(PEOPLE[3], STUDY, NOW + DAY)
    assert PEOPLE[3] not in registry.who_may(STUDY, Action.TRAIN, NOW + DAY)[1]
    assert set(judgements[at_first:]) <= {PEOPLE[3]}


def test_a_backup_that_was_put_back_is_noticed(registry):
    database, ann, bob = registry.database, person("ann"), PEOPLE[0]
    rows = database.read(lambda c: c.execute(sql.select(schema.audit)).mappings().all())
    consents = database.read(lambda c: c.execute(sql.select(schema.consents)).mappings().all())
    registry.withdraw(ann, STUDY, NOW)
    assert registry.who_may(STUDY, Action.TRAIN, NOW)[1] == frozenset()

    def put_back(connection: sql.Connection) -> None:
        for table, before in ((schema.audit, rows), (schema.consents, consents)):
            connection.execute(table.delete())
            connection.execute(table.insert(), [dict(row) for row in before])

    database.write(put_back)
    assert registry.who_may(STUDY, Action.TRAIN, NOW)[1] == {ann}
    registry.withdraw(ann, STUDY, NOW)
    assert registry.who_may(STUDY, Action.TRAIN, NOW)[1] == frozenset()
    database.write(put_back)
    registry.enrol({bob: None}, STUDY, DOCUMENT, NOW)  # the chain is as long as before, or longer
    assert registry.who_may(STUDY, Action.TRAIN, NOW)[1] == {ann, bob}


def test_many_are_enrolled_together_or_not_at_all(registry):
    before = len(registry.subjects(STUDY))
    set_opt_outs(registry, [PEOPLE[2]], NOW)
    with pytest.raises(Denied, match="opted-out"):
        registry.enrol(dict.fromkeys(PEOPLE), STUDY, DOCUMENT, NOW)
    assert len(registry.subjects(STUDY)) == before
    assert registry.consent(PEOPLE[0]) is None
    set_opt_outs(registry, [], NOW)
    registry.enrol(dict.fromkeys(PEOPLE), STUDY, DOCUMENT, NOW)
    assert set(PEOPLE) < registry.who_may(STUDY, Action.TRAIN, NOW)[1]


def test_an_opt_out_wins_until_it_is_lifted(registry):
    ann = person("ann")
    assert set_opt_outs(registry, [ann, PEOPLE[0]], NOW) == (2, 0)
    assert set_opt_outs(registry, [ann, PEOPLE[0]], NOW) == (0, 0)
    assert registry.reason(Ask(ann, STUDY, DOCUMENT), NOW).value == "opted-out"
    say(registry, Ask(ann), make_consent(Ask(ann), NOW, None), NOW)  # a yes does not help
    assert registry.who_may(STUDY, Action.TRAIN, NOW)[1] == frozenset()
    assert registry.who_is_out() == {ann, PEOPLE[0]}
    assert set_opt_outs(registry, [PEOPLE[0]], NOW) == (0, 1)
    assert registry.who_may(STUDY, Action.TRAIN, NOW)[1] == {ann}
    assert registry.who_is_out() == {PEOPLE[0]}


def test_a_cohort_that_differs_little_is_written_as_the_difference(registry):
    database = registry.database
    registry.enrol(dict.fromkeys(PEOPLE), STUDY, DOCUMENT, NOW)
    first = take_snapshot(registry, STUDY, Action.TRAIN, NOW, sorted(PEOPLE))
    registry.withdraw(PEOPLE[4], STUDY, NOW + DAY)
    second = take_snapshot(registry, STUDY, Action.TRAIN, NOW + DAY, sorted(PEOPLE), first)
    registry.enrol({PEOPLE[4]: None}, STUDY, DOCUMENT, NOW + 2 * DAY)
    registry.withdraw(PEOPLE[5], STUDY, NOW + 2 * DAY)
    third = take_snapshot(registry, STUDY, Action.TRAIN, NOW + 2 * DAY, sorted(PEOPLE), second)
    whole = take_snapshot(Registry(database), STUDY, Action.TRAIN, NOW + 2 * DAY, sorted(PEOPLE))
    assert whole.id == third.id
    for number, snapshot in enumerate((first, second, third)):
        assert members_of(database, snapshot.id) == list(snapshot.members)
        note_round(database, "run", number, snapshot, NOW)
    assert [len(each.members) for each in (first, second, third)] == [12, 11, 11]
    assert rounds_with(database, STUDY, PEOPLE[4]) == [("run", 0), ("run", 2)]
    assert rounds_with(database, STUDY, PEOPLE[5]) == [("run", 0), ("run", 1)]
    assert rounds_with(database, STUDY, PEOPLE[6]) == [("run", 0), ("run", 1), ("run", 2)]
    written = database.read(lambda c: c.scalar(sql.select(sql.func.count()).select_from(schema.members)))
    assert written == 13
