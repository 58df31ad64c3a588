"""The four invented hospitals: valid FHIR, the same from the same seed, different from each other, and learnable."""

from __future__ import annotations

import json
from datetime import date

import numpy as np
import pytest
from fhir.resources.R4B import get_fhir_model_class
from tests.records.making import HELD

from abaton.lab.synthetic_hospitals import HOSPITALS, records, study_text, write
from abaton.records import Consented, Deidentifier, Pseudonyms, Record, problems
from abaton.features import Reason, featurise, pooled, scaled, statistics
from abaton.fhir.json_format import dump
from abaton.study import notes_on, study_from_toml

TODAY = date(2026, 11, 16)
KEY = bytes(range(32))


@pytest.fixture(scope="module")
def study():
    return study_from_toml(study_text())


@pytest.fixture(scope="module")
def made(study):
    found = {}
    for name in HOSPITALS:
        make = Deidentifier(study.need(TODAY), Pseudonyms(study.study.id, KEY, site=name), year=TODAY.year)
        kept = [make(Consented(Record(each), HELD)) for each in records(name, 7, scale=0.4)]
        found[name] = featurise(study.plan(), [each for each in kept if each is not None])
    return found


@pytest.mark.parametrize("name", HOSPITALS)
def test_records_are_valid_fhir(name):
    met = set()
    for each in records(name, 3, scale=0.02):
        get_fhir_model_class(each["resourceType"]).model_validate(each)
        assert problems(each) == []
        met.add(each["resourceType"])
    assert met == {"Patient", "Encounter", "Condition", "Observation", "MedicationRequest"}


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    write(tmp_path / "a", 5, scale=0.02)
    write(tmp_path / "b", 5, scale=0.02)
    write(tmp_path / "c", 6, scale=0.02)
    a, b, c = (
        {path.relative_to(tmp_path / top): path.read_bytes() for path in (tmp_path / top).rglob("*.ndjson")}
        for top in "abc"
    )
    assert a == b
    assert a.keys() == c.keys()
    assert a != c
    assert len(a) == 4 * 5
    assert (tmp_path / "a" / "study.toml").read_text() == study_text()


def test_identities_are_there_to_be_taken_out(study):
    make = Deidentifier(study.need(TODAY), Pseudonyms(study.study.id, KEY), year=TODAY.year)
    raw = [each for each in records("kos", 1, scale=0.1)]
    text = json.dumps(raw)
    assert "Sample Street" in text
    kept = b"".join(dump(found.content) for each in raw if (found := make(Consented(Record(each), HELD))))
    for word in (b"Sample", b"Specimen", b"kos", b"KO000", b"+30"):
        assert word not in kept


def test_the_study_says_everything(study):
    assert notes_on(study, TODAY) == []


def test_hospitals_differ(made):
    tables = {name: each.table for name, each in made.items()}
    sizes = {name: len(table) for name, table in tables.items()}
    assert sizes["athens"] > 2 * sizes["kos"]
    ages = [table.x[:, 0].mean() for table in tables.values()]
    assert max(ages) - min(ages) > 8
    cholesterol = [np.nanmean(table.x[:, 6]) for table in tables.values()]
    assert all(190 < mean < 225 for mean in cholesterol)  # mmol/L and mg/dL alike


def test_what_a_hospital_lacks_is_told(made):
    found = {finding.reason: finding for finding in made["trikala"].report.about("smoking")}
    assert found[Reason.OTHER_SYSTEM].system == "http://loinc.org"
    assert Reason.NO_UNIT in {finding.reason for finding in made["trikala"].report.about("systolic")}
    assert Reason.CENSORED in {finding.reason for finding in made["athens"].report.about("heart_failure")}
    assert all(each.report.usable for each in made.values())


def test_the_outcome_can_be_learned_by_a_model_that_bends(made):
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures

    whole = pooled(statistics(each.table) for each in made.values())
    ready = [scaled(each.table, whole) for each in made.values()]
    x, y = np.concatenate([each.x for each in ready]), np.concatenate([each.y for each in ready])
    straight = LogisticRegression(max_iter=1000)
    curved = make_pipeline(PolynomialFeatures(2), LogisticRegression(C=0.01, max_iter=1000))
    areas = [
        roc_auc_score(y, cross_val_predict(model, x, y, cv=5, method="predict_proba")[:, 1])
        for model in (straight, curved)
    ]
    assert areas[1] > max(0.75, areas[0] + 0.1)


def test_the_outcome_is_rare_at_every_hospital(made):
    shares = {name: each.table.y.mean() for name, each in made.items()}
    assert all(0.05 < share < 0.25 for share in shares.values()), shares
    assert 0.08 < np.concatenate([each.table.y for each in made.values()]).mean() < 0.15
