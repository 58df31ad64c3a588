"""Sites with damaged records: each is reported without values, and the others continue."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from abaton.errors import RefusedError
from abaton.governance import ConsentRegistry, metadata
from abaton.lab.demo import NOW, Demonstration
from abaton.site import subject_pseudonym
from abaton.store import Database, Store
from abaton.study_run import StudyOptions, run_study

Damage = Callable[[Path, Demonstration], None]


def resources(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rewrite(path: Path, records: list[dict]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def without_units(folder: Path, four: Demonstration) -> None:
    records = resources(folder / "Observation.ndjson")
    for record in records:
        for key in ("unit", "code", "system"):
            record.get("valueQuantity", {}).pop(key, None)
    rewrite(folder / "Observation.ndjson", records)


def other_codes(folder: Path, four: Demonstration) -> None:
    records = resources(folder / "Condition.ndjson")
    for record in records:
        record["code"]["coding"] = [{"system": "urn:oid:1.2.3.4", "code": "X"}]
    rewrite(folder / "Condition.ndjson", records)


def without_records(folder: Path, four: Demonstration) -> None:
    for file in folder.glob("*.ndjson"):
        file.write_text("")


def one_class(folder: Path, four: Demonstration) -> None:
    """Remove the diagnoses of heart failure, so that only one class remains."""
    records = [
        record
        for record in resources(folder / "Condition.ndjson")
        if not any(c["code"] in ("84114007", "I50.9") for c in record["code"]["coding"])
    ]
    rewrite(folder / "Condition.ndjson", records)


def expired(folder: Path, four: Demonstration) -> None:
    registry = ConsentRegistry(Database(folder / "consents.db", metadata))
    key, before = (folder / "registry.key").read_bytes(), NOW - timedelta(days=30)
    pseudonyms = [subject_pseudonym(key, patient["id"]) for patient in resources(folder / "Patient.ndjson")]
    until = dict.fromkeys(pseudonyms, NOW - timedelta(days=2))
    registry.enrol(until, four.study.study.id, four.study.hash, before)


def half_written(folder: Path, four: Demonstration) -> None:
    text = (folder / "Observation.ndjson").read_text()
    (folder / "Observation.ndjson").write_text(text[: len(text) * 9 // 10])


CASES: dict[str, tuple[Damage, str, bool]] = {
    "missing units": (without_units, "no unit", True),
    "other code systems": (other_codes, "another code system", False),
    "empty cohort": (without_records, "no record was read", False),
    "one class only": (one_class, "only one class", False),
    "after consent expiry": (expired, "check consents", False),
    "half-written NDJSON": (half_written, "the last line is incomplete", True),
}


QUICK = ("one class only", "half-written NDJSON")


@pytest.mark.parametrize(
    "case", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_a_damaged_site_is_reported_and_the_others_continue(case, four, tmp_path):
    damage, text, takes_part = CASES[case]
    damage(four.sites[2].parent, four)
    options = StudyOptions(seed=5, profiles=four.profiles, bootstrap_resamples=0)
    with Store(tmp_path / "store") as store:
        row = run_study(four.study, four.sites, store, options, now=NOW).row
    report = json.dumps(
        {"report": row.recipe["cohort_reports"]["pergamon"], "reasons": row.recipe["excluded_sites"]}
    )
    assert text in report
    assert ("pergamon" not in row.recipe["excluded_sites"]) is takes_part
    assert ("pergamon" in row.recipe["tables"]) is takes_part
    assert {"athens", "kos", "trikala"} <= set(row.recipe["tables"])
    assert row.status == "finished"
    for patient in resources(four.sites[2].parent / "Patient.ndjson")[:50]:
        assert patient["id"] not in report


def test_too_few_remaining_sites_are_refused_before_training(four, tmp_path):
    for site in four.sites[1:]:
        without_records(site.parent, four)
    with Store(tmp_path / "store") as store:
        with pytest.raises(RefusedError, match="1 of 4 sites can take part") as refused:
            run_study(four.study, four.sites, store, now=NOW)
        assert store.runs() == []
    assert all(site.parent.name in str(refused.value) for site in four.sites[1:])


@pytest.mark.slow
def test_a_site_that_cannot_be_opened_is_reported(four, tmp_path):
    (four.sites[0].parent / "study.key").chmod(0o644)
    options = StudyOptions(seed=5, bootstrap_resamples=0)
    with Store(tmp_path / "store") as store:
        row = run_study(four.study, four.sites, store, options, now=NOW).row
    assert "other users can read the key" in row.recipe["excluded_sites"]["athens"]
