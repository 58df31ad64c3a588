"""The heart study: the four files as FHIR, de-identified, viewed and featurised, against the files themselves."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from fhir.resources.R4B import get_fhir_model_class
from tests.records.making import HELD

from abaton.anonymity.federated_recoding import choose
from abaton.deid.settings import Need
from abaton.features import Reason, featurise, hidden, histogram, pooled, scaled, statistics
from abaton.records import Consented, Deidentifier, Pseudonyms, Record, Rule, problems
from abaton.site.sources.tabular.mapping import load_mapping
from abaton.site.sources.tabular.tabular_source import TableSource
from abaton.study import load_study, notes_on

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
    """The records that a hospital's file becomes."""
    source = TableSource([folder / f"processed.{FILES[name]}.data"], MAPPING, TYPES)
    return [record.content for record in source.records()]


@pytest.fixture(scope="module")
def study():
    return load_study(HERE / "study.toml")


def test_the_study_is_complete(study):
    assert notes_on(study, TODAY) == []
    assert study.learning.policy.name == "AsyncDVW(na)"


def test_the_mapping_fits_on_a_page():
    assert len((HERE / "mapping.toml").read_text().splitlines()) <= 40


def test_a_made_up_patient_becomes_valid_fhir(tmp_path):
    (tmp_path / "processed.va.data").write_text(
        "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,1\n"
    )
    made = read(tmp_path, "long-beach")
    assert Counter(each["resourceType"] for each in made) == {"Patient": 1, "Observation": 12, "Condition": 1}
    for each in made:
        get_fhir_model_class(each["resourceType"]).model_validate(each)
        assert problems(each) == []


def test_question_marks_and_zeros_are_missing(tmp_path):
    (tmp_path / "processed.va.data").write_text("35,1,4,0,0,?,0,130,1,?,?,?,7,3\n")
    made = read(tmp_path, "long-beach")
    assert Counter(each["resourceType"] for each in made) == {"Patient": 1, "Observation": 6, "Condition": 1}


def tables(study, folder, need: Need, plan=None):
    """What every hospital makes of its records, from files to tables."""
    made = {}
    for name in SIZES:
        make = Deidentifier(need, Pseudonyms(study.study.id, KEY, site=name), year=TODAY.year)
        kept = (make(Consented(Record(each), HELD)) for each in read(folder, name))
        made[name] = featurise(plan or study.plan(), [each for each in kept if each is not None])
    return made


def auroc(made):
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    whole = pooled(statistics(each.table) for each in made.values())
    ready = [scaled(each.table, whole) for each in made.values()]
    x, y = np.concatenate([each.x for each in ready]), np.concatenate([each.y for each in ready])
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    model = LogisticRegression(max_iter=2000)
    return roc_auc_score(y, cross_val_predict(model, x, y, cv=folds, method="predict_proba")[:, 1])


@pytest.fixture(scope="module")
def records(shared):
    return shared / "data" / "heart"


@pytest.fixture(scope="module")
def made(study, records):
    return tables(study, records, study.need(TODAY))


@pytest.fixture(scope="module")
def files(records):
    found = {}
    for name, file in FILES.items():
        with (records / f"processed.{file}.data").open() as stream:
            lines = [line for line in csv.reader(stream) if line]
        found[name] = [dict(zip(COLUMNS, line, strict=True)) for line in lines]
    return found


@pytest.mark.shared
@pytest.mark.parametrize("name", SIZES)
def test_rows_and_missing_values_are_those_of_the_file(made, files, name):
    table, rows = made[name].table, files[name]
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
def test_rows_belong_together(made, files):
    """The whole row, not only each column, is the file's: names are gone, so rows are compared as a set."""
    table = made["cleveland"].table
    columns = [column.name for column in table.columns]
    places = [columns.index(name) for name in ("age", "sex=male", "pressure", "cholesterol", "highest_rate")]
    have = Counter((*tuple(row[places].tolist()), int(y)) for row, y in zip(table.x, table.y, strict=True))
    keys = ("age", "sex", "trestbps", "chol", "thalach")
    want = Counter(
        (*tuple(float(row[key]) for key in keys), int(float(row["num"]) > 0)) for row in files["cleveland"]
    )
    assert have == want


@pytest.mark.shared
def test_the_hospital_without_cholesterol_is_told_so(made):
    found = {finding.reason for finding in made["switzerland"].report.about("cholesterol")}
    assert Reason.NO_ROWS in found
    assert made["switzerland"].report.usable
    assert dict(made["switzerland"].report.missing)["cholesterol"] == "123"


@pytest.mark.shared
def test_records_are_valid_fhir_and_hold_no_name(records):
    for each in read(records, "hungary")[::40]:
        get_fhir_model_class(each["resourceType"]).model_validate(each)
        assert not {"name", "birthDate", "address"} & each.keys()


def anonymous(study, made):
    """Every hospital's table with k enforced over all of them."""
    asked = study.privacy.anonymity
    told = {name: histogram(each.table, asked) for name, each in made.items()}
    choice = choose(list(told.values()), asked)
    return {
        name: replace(each, table=hidden(each.table, told[name], choice, asked))
        for name, each in made.items()
    }, choice


@pytest.mark.shared
def test_everybody_hides_among_five_over_all_hospitals(study, made):
    hiding, choice = anonymous(study, made)
    columns = [column.name for column in made["cleveland"].table.columns]
    places = [columns.index(name) for name in ("age", "sex=female", "sex=male")]
    rows = [tuple(row[places].tolist()) for each in hiding.values() for row in each.table.x]
    assert min(Counter(rows).values()) >= 5
    assert len(rows) == 920 - choice.suppressed
    assert choice.suppressed <= 0.05 * 920


@pytest.mark.shared
def test_what_privacy_costs(study, records, made):
    plain = auroc(made)
    keep = tuple(Rule(f"nodesByType('{kind}')", "keep") for kind in ("date", "dateTime", "Quantity"))
    need = study.need(TODAY)
    raw = auroc(
        tables(study, records, replace(need, deidentification=replace(need.deidentification, rules=keep)))
    )
    plan = study.plan()
    widths = {"age": 10, "pressure": 10, "cholesterol": 25}
    inputs = tuple(each.model_copy(update={"band": widths.get(each.name)}) for each in plan.inputs)
    banded = auroc(tables(study, records, need, plan.model_copy(update={"inputs": inputs})))
    hiding = auroc(anonymous(study, made)[0])
    print(  # noqa: T201
        f"AUROC of all data pooled: raw {raw:.4f}, de-identified {plain:.4f}, in bands {banded:.4f}, "
        f"k = 5 enforced {hiding:.4f}"
    )
    assert abs(plain - hiding) < 0.01
    assert plain > 0.88
    assert abs(raw - plain) < 0.005
    assert abs(plain - banded) < 0.01
