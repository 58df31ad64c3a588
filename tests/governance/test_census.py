"""Governance in numbers: right, in ranges, and nobody in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import pytest
from tests.governance.conftest import DAY, DOCUMENT, NEWER, NOW, STUDY, person

from abaton.governance import Action, Ask, Audit, Entry, Registry, census, chain, take_snapshot
from abaton.governance.cohorts import told
from abaton.governance.withdrawal import Cascade, CascadeStep


def test_a_number_is_told_as_a_range_that_holds_it():
    for number in range(200):
        low, high = map(int, told(number, 7).split("–"))
        assert low <= number <= high
        assert high - low == 6


@pytest.fixture
def people(registry):
    """Twelve in force besides Ann, six expired, seven withdrawn, one who opted out again."""
    until = {person(str(number)): NOW + (DAY if number < 6 else 50 * DAY) for number in range(26)}
    registry.enrol(until, STUDY, DOCUMENT, NOW)
    for number in range(6, 13):
        registry.withdraw(person(str(number)), STUDY, NOW)
    return registry


def test_consents_are_counted_by_where_people_stand(people, database):
    (found,) = census(database, NOW + 2 * DAY)
    assert (found.in_force, found.expired, found.withdrawn, found.other) == ("10–14", "5–9", "5–9", "0–4")
    assert found.is_open
    asks = [Ask(subject, STUDY, DOCUMENT) for subject in people.subjects(STUDY)]
    exact = Counter(people.reason(ask, NOW + 2 * DAY).value for ask in asks)
    assert (exact["in-force"], exact["expired"], exact["withdrawn"]) == (14, 6, 7)


def test_one_person_more_or_less_is_not_seen_within_a_range(people, database):
    before = census(database, NOW)
    people.withdraw(person("20"), STUDY, NOW)
    assert [each.withdrawn for each in census(database, NOW)] == [each.withdrawn for each in before]


def test_withdrawals_under_way_have_an_age(people, database):
    cascade = Cascade(database, {step: lambda case, when: {} for step in CascadeStep})
    for number in (6, 7):
        cascade.begin(STUDY, person(str(number)), person(str(number)), NOW + number * DAY)
    (found,) = census(database, NOW + 10 * DAY)
    assert (found.pending, found.oldest_days) == ("0–4", 4)
    for number in (6, 7):
        cascade.advance(cascade.case(STUDY, person(str(number))), NOW + 10 * DAY)
    (found,) = census(database, NOW + 10 * DAY)
    assert (found.pending, found.oldest_days) == ("0–4", None)


def test_cohorts_are_the_newest_of_each_purpose(people, database):
    take_snapshot(people, STUDY, Action.TRAIN, NOW)
    take_snapshot(people, STUDY, Action.TRAIN, NOW + 2 * DAY)
    take_snapshot(people, STUDY, Action.COLLECT, NOW)
    (found,) = census(database, NOW + 3 * DAY)
    assert [(each.purpose, each.people) for each in found.cohorts] == [("collect", "20–24"), ("use", "10–14")]


def test_the_studys_own_smallest_count_widens_the_ranges(database):
    registry = Registry(database)
    content = {"study": {"title": "T"}, "deidentification": {"count_floor": 20}}
    registry.publish("wide", NEWER, NOW, ends=None, keep_until=None, content=content)
    (found,) = census(database, NOW)
    assert (found.title, found.in_force) == ("T", "0–19")


def test_nobody_is_in_it(people, database):
    take_snapshot(people, STUDY, Action.TRAIN, NOW)
    words = str([asdict(each) for each in census(database, NOW)])
    assert not any(person(str(number)) in words for number in range(26))


def test_the_chain_is_told_by_its_length_and_end(database):
    assert chain(database).length == 0
    Audit(database).append(Entry("noted"), NOW)
    found = chain(database)
    assert found.length == len(list(Audit(database).rows())) == 1
    assert found.newest.startswith("2026-03-01T12:00")
