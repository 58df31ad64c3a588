"""Sites whose records are not as they should be: each is told clearly, without a value, and the others go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from abaton.errors import Refused
from abaton.federation import StudyOptions, run_study
from abaton.governance import Registry, metadata
from abaton.lab.demo import NOW, Demonstration
from abaton.site import subject_tag
from abaton.store import Database, Store

Spoil = Callable[[Path, Demonstration], None]


def resources(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rewrite(path: Path, made: list[dict]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in made), encoding="utf-8")


def without_units(place: Path, four: Demonstration) -> None:
    made = resources(place / "Observation.ndjson")
    for each in made:
        for key in ("unit", "code", "system"):
            each.get("valueQuantity", {}).pop(key, None)
    rewrite(place / "Observation.ndjson", made)


def other_codes(place: Path, four: Demonstration) -> None:
    made = resources(place / "Condition.ndjson")
    for each in made:
        each["code"]["coding"] = [{"system": "urn:oid:1.2.3.4", "code": "X"}]
    rewrite(place / "Condition.ndjson", made)


def nobody(place: Path, four: Demonstration) -> None:
    for file in place.glob("*.ndjson"):
        file.write_text("")


def one_class(place: Path, four: Demonstration) -> None:
    """Nobody falls ill: the diagnoses of heart failure are gone."""
    made = [
        each
        for each in resources(place / "Condition.ndjson")
        if not any(c["code"] in ("84114007", "I50.9") for c in each["code"]["coding"])
    ]
    rewrite(place / "Condition.ndjson", made)


def expired(place: Path, four: Demonstration) -> None:
    registry = Registry(Database(place / "consents.db", metadata))
    key, before = (place / "tags.key").read_bytes(), NOW - timedelta(days=30)
    people = [subject_tag(key, each["id"]) for each in resources(place / "Patient.ndjson")]
    until = dict.fromkeys(people, NOW - timedelta(days=2))
    registry.enrol(until, four.study.study.id, four.study.hash, before)


def half_written(place: Path, four: Demonstration) -> None:
    text = (place / "Observation.ndjson").read_text()
    (place / "Observation.ndjson").write_text(text[: len(text) * 9 // 10])


CASES: dict[str, tuple[Spoil, str, bool]] = {
    "missing units": (without_units, "no unit", True),
    "other code systems": (other_codes, "another system", False),
    "empty cohort": (nobody, "no record was read", False),
    "one class only": (one_class, "only one class", False),
    "after consent expiry": (expired, "the consent has expired", False),
    "half-written NDJSON": (half_written, "half-written", True),
}


QUICK = ("one class only", "half-written NDJSON")


@pytest.mark.parametrize(
    "case", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_a_bad_site_is_told_and_the_others_go_on(case, four, tmp_path):
    spoil, words, takes_part = CASES[case]
    spoil(four.sites[2].parent, four)
    options = StudyOptions(seed=5, profiles=four.profiles, resamples=0)
    with Store(tmp_path / "store") as store:
        row = run_study(four.study, four.sites, store, options, now=NOW).row
    told = json.dumps({"told": row.recipe["told"]["pergamon"], "why": row.recipe["left_out"]})
    assert words in told
    assert ("pergamon" not in row.recipe["left_out"]) is takes_part
    assert ("pergamon" in row.recipe["tables"]) is takes_part
    assert {"athens", "kos", "trikala"} <= set(row.recipe["tables"])
    assert row.status == "finished"
    for each in resources(four.sites[2].parent / "Patient.ndjson")[:50]:
        assert each["id"] not in told


def test_too_few_sites_left_is_refused_before_training(four, tmp_path):
    for site in four.sites[1:]:
        nobody(site.parent, four)
    with Store(tmp_path / "store") as store:
        with pytest.raises(Refused, match="1 of 4 sites can take part") as refused:
            run_study(four.study, four.sites, store, now=NOW)
        assert store.runs() == []
    assert all(site.parent.name in str(refused.value) for site in four.sites[1:])


@pytest.mark.slow
def test_a_site_that_cannot_be_opened_is_told(four, tmp_path):
    (four.sites[0].parent / "study.key").chmod(0o644)
    options = StudyOptions(seed=5, resamples=0)
    with Store(tmp_path / "store") as store:
        row = run_study(four.study, four.sites, store, options, now=NOW).row
    assert "others can read the key" in row.recipe["left_out"]["athens"]
