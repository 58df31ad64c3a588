"""The four invented hospitals: valid FHIR, the same from the same seed, different from each other, and learnable."""

from __future__ import annotations

import json
from datetime import date

import numpy as np
import pytest
from fhir.resources.R4B import get_fhir_model_class
from tests.deid.record_examples import LEGAL_BASIS

from abaton.deid import Deidentifier, Pseudonyms
from abaton.features import MissingReason, build_features, column_statistics, pool_statistics, scale_table
from abaton.fhir.json_format import dump
from abaton.fhir.validation import validate_resource
from abaton.lab.synthetic_hospitals import FOUR_HOSPITALS, records, study_text, write
from abaton.record_types import ConsentedRecord, Record
from abaton.study import lint_study, study_from_toml

TODAY = date(2026, 11, 16)
KEY = bytes(range(32))


@pytest.fixture(scope="module")
def study():
    return study_from_toml(study_text())


@pytest.fixture(scope="module")
def feature_results(study):
    feature_results = {}
    for name in FOUR_HOSPITALS.hospitals:
        make = Deidentifier(
            study.data_request(TODAY), Pseudonyms(study.study.id, KEY, site=name), year=TODAY.year
        )
        deidentified = [
            make(ConsentedRecord(Record(resource), LEGAL_BASIS)) for resource in records(name, 7, scale=0.4)
        ]
        feature_results[name] = build_features(
            study.feature_spec(), [resource for resource in deidentified if resource is not None]
        )
    return feature_results


@pytest.mark.parametrize("name", FOUR_HOSPITALS.hospitals)
def test_records_are_valid_fhir(name):
    met = set()
    for resource in records(name, 3, scale=0.02):
        get_fhir_model_class(resource["resourceType"]).model_validate(resource)
        assert validate_resource(resource) == []
        met.add(resource["resourceType"])
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


def test_identifiers_are_present_and_removed(study):
    make = Deidentifier(study.data_request(TODAY), Pseudonyms(study.study.id, KEY), year=TODAY.year)
    raw = [resource for resource in records("kos", 1, scale=0.1)]
    text = json.dumps(raw)
    assert "Sample Street" in text
    output = b"".join(
        dump(deidentified.content)
        for resource in raw
        if (deidentified := make(ConsentedRecord(Record(resource), LEGAL_BASIS)))
    )
    for word in (b"Sample", b"Specimen", b"kos", b"KO000", b"+30"):
        assert word not in output


def test_the_study_says_everything(study):
    assert lint_study(study, TODAY) == []


def test_hospitals_differ(feature_results):
    tables = {name: result.table for name, result in feature_results.items()}
    sizes = {name: len(table) for name, table in tables.items()}
    assert sizes["athens"] > 2 * sizes["kos"]
    ages = [table.x[:, 0].mean() for table in tables.values()]
    assert max(ages) - min(ages) > 8
    cholesterol = [np.nanmean(table.x[:, 6]) for table in tables.values()]
    assert all(190 < mean < 225 for mean in cholesterol)  # mmol/L and mg/dL alike


def test_missing_data_of_a_hospital_is_reported(feature_results):
    issues = {issue.reason: issue for issue in feature_results["trikala"].report.issues_of("smoking")}
    assert issues[MissingReason.OTHER_SYSTEM].system == "http://loinc.org"
    assert MissingReason.NO_UNIT in {
        issue.reason for issue in feature_results["trikala"].report.issues_of("systolic")
    }
    assert MissingReason.CENSORED in {
        issue.reason for issue in feature_results["athens"].report.issues_of("heart_failure")
    }
    assert all(result.report.is_sufficient for result in feature_results.values())


def test_the_outcome_needs_a_hidden_layer(feature_results):
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures

    pooled = pool_statistics(column_statistics(result.table) for result in feature_results.values())
    ready = [scale_table(result.table, pooled) for result in feature_results.values()]
    x, y = np.concatenate([result.x for result in ready]), np.concatenate([result.y for result in ready])
    straight = LogisticRegression(max_iter=1000)
    curved = make_pipeline(PolynomialFeatures(2), LogisticRegression(C=0.01, max_iter=1000))
    areas = [
        roc_auc_score(y, cross_val_predict(model, x, y, cv=5, method="predict_proba")[:, 1])
        for model in (straight, curved)
    ]
    assert areas[1] > max(0.75, areas[0] + 0.1)


def test_the_outcome_is_rare_at_every_hospital(feature_results):
    shares = {name: result.table.y.mean() for name, result in feature_results.items()}
    assert all(0.05 < share < 0.25 for share in shares.values()), shares
    assert 0.08 < np.concatenate([result.table.y for result in feature_results.values()]).mean() < 0.15
