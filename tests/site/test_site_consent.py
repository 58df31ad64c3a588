"""The site's gate is the registry: expired, withdrawn, other versions and left-out types stay outside."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cohort import failing, people, study, write
from tests.governance.conftest import say

from abaton.errors import SettingsError
from abaton.governance import Action, Ask, Registry, make_consent, metadata
from abaton.site import (
    SiteError,
    Stage,
    check_site,
    load_site,
    open_site,
    publish,
    site_from_toml,
    subject_tag,
)
from abaton.store import Database

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
THEN = NOW - timedelta(days=30)
KEY = bytes(range(50, 82))


@pytest.fixture
def registry(house: Path) -> Registry:
    (house / "tags.key").write_bytes(KEY)
    (house / "tags.key").chmod(0o600)
    text = (house / "site.toml").read_text().replace('ground = "vote 7/2026"', 'registry = "consents.db"')
    (house / "site.toml").write_text(text + 'tags = "tags.key"\n')
    made = Registry(Database(house / "consents.db", metadata))
    publish(made, study(), THEN)
    return made


def say_yes(registry: Registry, number: int, until: datetime | None = None) -> str:
    who = subject_tag(KEY, f"p{number}")
    registry.enrol({who: until}, study().study.id, study().hash, THEN)
    return who


def opened(house: Path, when: datetime = NOW):
    return open_site(load_site(house / "site.toml"), study(), when)


def test_everybody_needs_a_consent_of_their_own(house, registry):
    write(house / "records", [*people(*range(12)), *failing(0, 1, 2)])
    for number in range(8):
        say_yes(registry, number)
    say_yes(registry, 8, until=NOW - timedelta(days=1))
    registry.withdraw(say_yes(registry, 9), study().study.id, NOW - timedelta(hours=1))
    site = opened(house)
    check_site(site)
    assert site.funnel.reached[Stage.CONSENTED] == 8
    assert site.funnel.stopped[Stage.CONSENTED] == {
        "the consent has expired": 1,
        "the consent was withdrawn": 1,
        "the person takes part in no studies": 2,
    }


def test_who_withdraws_between_two_rounds_is_out_of_the_next(house, registry):
    write(house / "records", people(1, 2))
    tags = {f"p{number}": say_yes(registry, number) for number in (1, 2)}
    site = opened(house)
    kept = [subject.subject for subject in site.kept()]
    assert [site.gate(subject, NOW, Action.TRAIN).allowed for subject in kept] == [True, True]
    registry.withdraw(tags["p1"], study().study.id, NOW)
    later = NOW + timedelta(minutes=1)
    assert {subject: site.gate(subject, later, Action.TRAIN).allowed for subject in kept} == {
        "p1": False,
        "p2": True,
    }
    assert [subject.subject for subject in opened(house, later).kept()] == ["p2"]


def test_what_a_consent_leaves_out_stays(house, registry):
    write(house / "records", people(1))
    ask = Ask(say_yes(registry, 1), study().study.id, study().hash)
    said = make_consent(ask, THEN, None, actions=[Action.COLLECT], except_kinds=["Observation"])
    say(registry, ask, said, THEN)
    site = opened(house)
    assert {record.type for record in site.records()} == {"Patient"}
    assert site.left_out == {"Observation: not covered by the consent": 1}
    assert not site.gate("p1", NOW, Action.TRAIN).allowed


def test_a_study_that_changed_needs_new_consents(house, registry):
    write(house / "records", people(1))
    say_yes(registry, 1)
    changed = study(dates='dates = "shift"')
    site = open_site(load_site(house / "site.toml"), changed, NOW)
    assert list(site.kept()) == []
    assert site.funnel.stopped[Stage.CONSENTED] == {
        "the consent is to another version of the study document": 1
    }


def test_a_registry_that_is_not_there_is_not_made(house, registry):
    text = (house / "site.toml").read_text().replace("consents.db", "none.db")
    (house / "site.toml").write_text(text)
    with pytest.raises(SettingsError, match="the registry of consents is not there"):
        opened(house)
    assert not (house / "none.db").exists()


def test_a_registry_needs_the_key_of_its_tags_and_holds_no_password(house):
    text = (house / "site.toml").read_text()
    for place, told in (
        ("consents.db", "no key for them is named"),
        ("postgresql+psycopg://me:hush@h/db", "the address holds a password"),
    ):
        with pytest.raises(SiteError, match=told) as error:
            site_from_toml(text.replace('ground = "vote 7/2026"', f'registry = "{place}"'))
        assert "hush" not in str(error.value)
