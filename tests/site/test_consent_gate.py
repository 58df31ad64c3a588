"""Registry gate: expired and withdrawn consents, other document versions, uncovered types."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.governance.conftest import store_consent
from tests.site.site_cohort import cohort_resources, failing, study, write

from abaton.errors import SettingsError
from abaton.governance import ConsentAction, ConsentQuery, ConsentRegistry, make_consent, metadata
from abaton.site import (
    AttritionStage,
    SiteConfigError,
    build_site,
    check_site,
    load_site,
    publish,
    site_from_toml,
    subject_pseudonym,
)
from abaton.store import Database

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
THEN = NOW - timedelta(days=30)
KEY = bytes(range(50, 82))


@pytest.fixture
def registry(house: Path) -> ConsentRegistry:
    (house / "registry.key").write_bytes(KEY)
    (house / "registry.key").chmod(0o600)
    text = (
        (house / "site.toml").read_text().replace('legal_basis = "vote 7/2026"', 'registry = "consents.db"')
    )
    (house / "site.toml").write_text(text + 'registry = "registry.key"\n')
    consent_registry = ConsentRegistry(Database(house / "consents.db", metadata))
    publish(consent_registry, study(), THEN)
    return consent_registry


def say_yes(registry: ConsentRegistry, number: int, until: datetime | None = None) -> str:
    who = subject_pseudonym(KEY, f"p{number}")
    registry.enrol({who: until}, study().study.id, study().hash, THEN)
    return who


def opened(house: Path, when: datetime = NOW):
    return build_site(load_site(house / "site.toml"), study(), when)


def test_every_subject_needs_a_consent(house, registry):
    write(house / "records", [*cohort_resources(*range(12)), *failing(0, 1, 2)])
    for number in range(8):
        say_yes(registry, number)
    say_yes(registry, 8, until=NOW - timedelta(days=1))
    registry.withdraw(say_yes(registry, 9), study().study.id, NOW - timedelta(hours=1))
    site = opened(house)
    check_site(site)
    assert site.attrition.reached[AttritionStage.CONSENTED] == 8
    assert site.attrition.excluded[AttritionStage.CONSENTED] == {
        "the consent has expired": 1,
        "the consent was withdrawn": 1,
        "the person has not agreed to take part in studies": 2,
    }


def test_a_subject_withdrawn_between_rounds_is_not_in_the_next(house, registry):
    write(house / "records", cohort_resources(1, 2))
    tags = {f"p{number}": say_yes(registry, number) for number in (1, 2)}
    site = opened(house)
    accepted = [subject.subject for subject in site.accepted_subjects()]
    assert [site.gate(subject, NOW, ConsentAction.TRAIN).allowed for subject in accepted] == [True, True]
    registry.withdraw(tags["p1"], study().study.id, NOW)
    later = NOW + timedelta(minutes=1)
    assert {subject: site.gate(subject, later, ConsentAction.TRAIN).allowed for subject in accepted} == {
        "p1": False,
        "p2": True,
    }
    assert [subject.subject for subject in opened(house, later).accepted_subjects()] == ["p2"]


def test_types_outside_the_consent_are_withheld(house, registry):
    write(house / "records", cohort_resources(1))
    ask = ConsentQuery(say_yes(registry, 1), study().study.id, study().hash)
    consent = make_consent(ask, THEN, None, actions=[ConsentAction.COLLECT], excluded_types=["Observation"])
    store_consent(registry, ask, consent, THEN)
    site = opened(house)
    assert {record.type for record in site.records()} == {"Patient"}
    assert site.withheld == {"Observation: not covered by the consent": 1}
    assert not site.gate("p1", NOW, ConsentAction.TRAIN).allowed


def test_a_study_that_changed_needs_new_consents(house, registry):
    write(house / "records", cohort_resources(1))
    say_yes(registry, 1)
    changed = study(dates='dates = "shift"')
    site = build_site(load_site(house / "site.toml"), changed, NOW)
    assert list(site.accepted_subjects()) == []
    assert site.attrition.excluded[AttritionStage.CONSENTED] == {
        "the consent is to another version of the study document": 1
    }


def test_missing_registry_is_not_created(house, registry):
    text = (house / "site.toml").read_text().replace("consents.db", "none.db")
    (house / "site.toml").write_text(text)
    with pytest.raises(SettingsError, match="the registry of consents does not exist"):
        opened(house)
    assert not (house / "none.db").exists()


def test_registry_needs_its_key_and_refuses_passwords(house):
    text = (house / "site.toml").read_text()
    for address, problem in (
        ("consents.db", "consents and opt-outs require keys.registry"),
        ("postgresql+psycopg://me:hush@h/db", "the URL contains a password"),
    ):
        with pytest.raises(SiteConfigError, match=problem) as error:
            site_from_toml(text.replace('legal_basis = "vote 7/2026"', f'registry = "{address}"'))
        assert "hush" not in str(error.value)
