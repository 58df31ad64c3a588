"""Heart example: the four files as FHIR, de-identified and as feature tables, compared with the files."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from fhir.resources.R4B import get_fhir_model_class
from tests.deid.record_examples import LEGAL_BASIS

from abaton.anonymity.federated_recoding import choose_recoding
from abaton.deid import DeidentificationRule, Deidentifier, Pseudonyms
from abaton.deid.settings import DataRequest
from abaton.features import (
    MissingReason,
    anonymise_table,
    build_features,
    column_statistics,
    combination_histogram,
    pool_statistics,
    scale_table,
)
from abaton.fhir.validation import validate_resource
from abaton.record_types import ConsentedRecord, Record
from abaton.site.sources.tabular.mapping import load_mapping
from abaton.site.sources.tabular.tabular_source import TabularSource
from abaton.study import lint_study, load_study

HERE = Path(__file__).parents[2] / "examples" / "heart"
KEY = bytes(range(32))
TODAY = date(2026, 11, 16)
SIZES = {"cleveland": 303, "hungary": 294, "switzerland": 123, "long-beach": 200}
NAMES = {
    "age": "age",
    "pressure": "trestbps",
    "cholesterol": "chol",
    "highest_rate": "thalach",
    "st_depression": "oldpeak",
    "vessels": "ca",
}
CODED = {
    "chest_pain": "cp",
    "ecg": "restecg",
    "slope": "slope",
    "thallium": "thal",
    "sugar": "fbs",
    "angina": "exang",
}


FILES = {"cleveland": "cleveland", "hungary": "hungarian", "switzerland": "switzerland", "long-beach": "va"}
MAPPING = load_mapping(HERE / "mapping.toml")
COLUMNS = MAPPING.tables[0].header
TYPES = frozenset({"Patient", "Observation", "Condition"})


def read(folder, name):
    """Return the records of a hospital's file."""
    source = TabularSource([folder / f"processed.{FILES[name]}.data"], MAPPING, TYPES)
    return [record.content for record in source.records()]


@pytest.fixture(scope="module")
def study():
    return load_study(HERE / "study.toml")


def test_the_study_is_complete(study):
    assert lint_study(study, TODAY) == []
    assert study.learning.strategy.name == "AsyncDVW(na)"


def test_the_mapping_fits_on_a_page():
    assert len((HERE / "mapping.toml").read_text().splitlines()) <= 40


def test_synthetic_patient_becomes_valid_fhir(tmp_path):
    (tmp_path / "processed.va.data").write_text(
        "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,1\n"
    )
    resources = read(tmp_path, "long-beach")
    assert Counter(resource["resourceType"] for resource in resources) == {
        "Patient": 1,
        "Observation": 12,
        "Condition": 1,
    }
    for resource in resources:
        get_fhir_model_class(resource["resourceType"]).model_validate(resource)
        assert validate_resource(resource) == []


def test_question_marks_and_zeros_are_missing(tmp_path):
    (tmp_path / "processed.va.data").write_text("35,1,4,0,0,?,0,130,1,?,?,?,7,3\n")
    resources = read(tmp_path, "long-beach")
    assert Counter(resource["resourceType"] for resource in resources) == {
        "Patient": 1,
        "Observation": 6,
        "Condition": 1,
    }


def tables(study, folder, need: DataRequest, plan=None):
    """Return the feature result of every hospital."""
    results = {}
    for name in SIZES:
        make = Deidentifier(need, Pseudonyms(study.study.id, KEY, site=name), year=TODAY.year)
        deidentified = (make(ConsentedRecord(Record(record), LEGAL_BASIS)) for record in read(folder, name))
        results[name] = build_features(
            plan or study.feature_spec(), [record for record in deidentified if record is not None]
        )
    return results


def auroc(results):
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    statistics = pool_statistics(column_statistics(result.table) for result in results.values())
    ready = [scale_table(result.table, statistics) for result in results.values()]
    x, y = np.concatenate([result.x for result in ready]), np.concatenate([result.y for result in ready])
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    model = LogisticRegression(max_iter=2000)
    return roc_auc_score(y, cross_val_predict(model, x, y, cv=folds, method="predict_proba")[:, 1])


@pytest.fixture(scope="module")
def records(shared):
    return shared / "data" / "heart"


@pytest.fixture(scope="module")
def feature_results(study, records):
    return tables(study, records, study.data_request(TODAY))


@pytest.fixture(scope="module")
def files(records):
    rows = {}
    for name, file in FILES.items():
        with (records / f"processed.{file}.data").open() as stream:
            lines = [line for line in csv.reader(stream) if line]
        rows[name] = [dict(zip(COLUMNS, line, strict=True)) for line in lines]
    return rows


@pytest.mark.shared
@pytest.mark.parametrize("name", SIZES)
def test_rows_and_missing_values_are_those_of_the_file(feature_results, files, name):
    table, rows = feature_results[name].table, files[name]
    assert len(table) == SIZES[name]
    assert table.y.sum() == sum(float(row["num"]) > 0 for row in rows)
    columns = {column.name: i for i, column in enumerate(table.columns)}
    for ours, theirs in NAMES.items():
        zero = theirs in ("chol", "trestbps")
        want = [
            float(row[theirs])
            for row in rows
            if row[theirs] != "?" and not (zero and float(row[theirs]) == 0)
        ]
        have = table.x[:, columns[ours]]
        assert sorted(have[~np.isnan(have)].tolist()) == sorted(want), ours
    for ours, theirs in CODED.items():
        first = next(i for name, i in columns.items() if name.split("=")[0] == ours)
        assert int(np.isnan(table.x[:, first]).sum()) == sum(row[theirs] == "?" for row in rows), ours


@pytest.mark.shared
def test_rows_belong_together(feature_results, files):
    """Rows, not only columns, equal those of the file; without names they are compared as a set."""
    table = feature_results["cleveland"].table
    columns = [column.name for column in table.columns]
    indices = [columns.index(name) for name in ("age", "sex=male", "pressure", "cholesterol", "highest_rate")]
    have = Counter((*tuple(row[indices].tolist()), int(y)) for row, y in zip(table.x, table.y, strict=True))
    keys = ("age", "sex", "trestbps", "chol", "thalach")
    want = Counter(
        (*tuple(float(row[key]) for key in keys), int(float(row["num"]) > 0)) for row in files["cleveland"]
    )
    assert have == want


@pytest.mark.shared
def test_missing_cholesterol_is_reported_to_the_hospital(feature_results):
    reasons = {issue.reason for issue in feature_results["switzerland"].report.issues_of("cholesterol")}
    assert MissingReason.NO_ROWS in reasons
    assert feature_results["switzerland"].report.is_sufficient
    assert dict(feature_results["switzerland"].report.missing)["cholesterol"] == "123"


@pytest.mark.shared
def test_records_are_valid_fhir_without_names(records):
    for resource in read(records, "hungary")[::40]:
        get_fhir_model_class(resource["resourceType"]).model_validate(resource)
        assert not {"name", "birthDate", "address"} & resource.keys()


def anonymous(study, feature_results):
    """Return every hospital's table with k enforced over all of them."""
    settings = study.privacy.anonymity
    histograms = {
        name: combination_histogram(result.table, settings) for name, result in feature_results.items()
    }
    choice = choose_recoding(list(histograms.values()), settings)
    return {
        name: replace(result, table=anonymise_table(result.table, histograms[name], choice, settings))
        for name, result in feature_results.items()
    }, choice


@pytest.mark.shared
def test_tables_are_5_anonymous_over_all_hospitals(study, feature_results):
    hiding, choice = anonymous(study, feature_results)
    columns = [column.name for column in feature_results["cleveland"].table.columns]
    indices = [columns.index(name) for name in ("age", "sex=female", "sex=male")]
    rows = [tuple(row[indices].tolist()) for features in hiding.values() for row in features.table.x]
    assert min(Counter(rows).values()) >= 5
    assert len(rows) == 920 - choice.suppressed
    assert choice.suppressed <= 0.05 * 920


@pytest.mark.shared
def test_cost_of_anonymity(study, records, feature_results):
    original = auroc(feature_results)
    keep = tuple(
        DeidentificationRule(f"nodesByType('{kind}')", "keep") for kind in ("date", "dateTime", "Quantity")
    )
    need = study.data_request(TODAY)
    raw = auroc(
        tables(study, records, replace(need, deidentification=replace(need.deidentification, rules=keep)))
    )
    plan = study.feature_spec()
    widths = {"age": 10, "pressure": 10, "cholesterol": 25}
    inputs = tuple(spec.model_copy(update={"band": widths.get(spec.name)}) for spec in plan.inputs)
    banded = auroc(tables(study, records, need, plan.model_copy(update={"inputs": inputs})))
    hiding = auroc(anonymous(study, feature_results)[0])
    print(  # noqa: T201
        f"AUROC of all data pooled: raw {raw:.4f}, de-identified {original:.4f}, in bands {banded:.4f}, "
        f"k = 5 enforced {hiding:.4f}"
    )
    assert abs(original - hiding) < 0.01
    assert original > 0.88
    assert abs(raw - original) < 0.005
    assert abs(original - banded) < 0.01
