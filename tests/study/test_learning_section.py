"""Views, features and learning of a study document: in TOML, Bundle and hash, and validated when read."""

from __future__ import annotations

import json
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.study.full_studies import long_starter

from abaton.controller import Strategy
from abaton.documents.fields import duration_days
from abaton.errors import SettingsError
from abaton.features import Aggregation, Imputation, InputKind, LabelKind
from abaton.features.specification import matches_code
from abaton.study import (
    LearningSection,
    StrategySection,
    Study,
    StudyError,
    describe,
    study_from_json,
    study_from_toml,
    write_bundle,
    write_toml,
)
from abaton.study.components import ModelSpec, parse_model_spec

START = long_starter(date(2026, 11, 16))


def problems(text):
    with pytest.raises(StudyError) as caught:
        study_from_toml(text)
    return caught.value.problems


def test_toml_and_bundle_preserve_every_section(full):
    for study in (full, study_from_toml(START)):
        assert study_from_toml(write_toml(study)) == study
        back = study_from_json(json.dumps(write_bundle(study)))
        assert back == study
        assert back.hash == study.hash


@pytest.mark.parametrize("section", ["views", "features", "learning"])
def test_every_section_is_in_the_hash(full, section):
    content = full.content()
    assert section in content
    content = {key: value for key, value in content.items() if key not in ("learning", "features", section)}
    other = Study.model_validate_json(json.dumps(content), strict=True)
    assert other.hash != full.hash


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('unit = "mm[Hg]"', 'unit = "kPa"'),
        ("rounds = 100", "rounds = 101"),
        ("birthDate", "birthDate.first()"),
        ("specificity = 0.9 ", "specificity = 0.8 "),
    ],
)
def test_every_detail_is_in_the_hash(old, new):
    changed = (
        START.replace(f'path = "{old}"', f'path = "{new}"')
        if old == "birthDate"
        else START.replace(old, new, 1)
    )
    assert changed != START
    assert study_from_toml(changed).hash != study_from_toml(START).hash


def test_absent_sections_do_not_change_the_hash(full):
    content = {k: v for k, v in full.content().items() if k not in ("views", "features", "learning")}
    study = Study.model_validate_json(json.dumps(content), strict=True)
    assert study.hash == "b78ea04630ef430638d4c33003690929cb1ed5615e2ff89c30730aef94d0694c"
    assert not {"views", "features", "learning"} & study.content().keys()
    with pytest.raises(SettingsError, match="no features"):
        study.feature_spec()


CASES = [
    # old text, new text, key, problem, remedy
    (
        'column = "born"',
        'column = "bron"',
        "features.inputs[0].column",
        "not a column of 'patients'",
        "'born'?",
    ),
    ('view = "pressures"', 'view = "presures"', "features.inputs[2].view", "not a view", "'pressures'?"),
    ('cohort = "patients"', 'cohort = "people"', "features.cohort", "not a view", "known are"),
    ("stc(sparsity=0.1)", "stk(sparsity=0.1)", "learning.codec", "no codec of this name", "stc"),
    (
        'strategy = "AsyncDVW(na)"',
        'strategy = "AsyncDVW"',
        "learning.strategy",
        "no strategy of this name",
        "SyncFedAvg",
    ),
    (
        'strategy = "AsyncDVW(na)"',
        'strategy = { name = "AsyncDVW(na)", quorum = 2 }',
        "learning.strategy",
        "'quorum' is not a setting",
        "remove",
    ),
    (
        'strategy = "AsyncDVW(na)"',
        'strategy = { name = "SyncDVW", metric = "auc" }',
        "learning.strategy",
        "no metric of this name",
        "mcc",
    ),
    ('model = "logistic" ', 'model = "resnet" ', "learning.model", "no model of this name", "mlp(16)"),
    ('model = "logistic" ', 'model = "linear" ', "learning.model", "does not fit", "logistic"),
    (
        'task = "classification" ',
        'task = "regression" ',
        "learning.model",
        "does not fit the task 'regression'",
        "linear",
    ),
    (
        'elements = ["gender", "birthDate"]',
        'elements = ["gender"]',
        "views[0].select",
        "Patient.birthDate",
        "birthDate",
    ),
    (
        'type = "Condition"',
        'type = "AllergyIntolerance"',
        "views[2].resource",
        "requires Condition",
        "Condition",
    ),
    (
        "effective.ofType",
        "efective.ofType",
        "views[1].select",
        "an element that a path reads is not in Observation",
        "'effective'?",
    ),
    (
        'resource = "Observation"',
        'resource = "Observaton"',
        "views[1].resource",
        "not an R4 resource type",
        "'Observation'?",
    ),
    (
        'name = "diagnoses"',
        'name = "patients"',
        "views[2].name",
        "two views are called 'patients'",
        "own name",
    ),
    ('path = "gender"', 'path = "gender.("', "views[0]", "", ""),
    (
        '{ name = "sex", path = "gender" }',
        '{ name = "subject", path = "gender" }',
        "views[0].select",
        "defined twice",
        "rename",
    ),
    (
        'path = "gender" }',
        'path = "gender", colection = true }',
        "views[0].select[0].column[1]",
        "not a known key",
        "collection",
    ),
    ('name = "sex"\nkind', 'name = "age"\nkind', "features", "two inputs have the same name", "own name"),
    ('name = "heart_failure"', 'name = "age"', "features", "both called 'age'", "rename"),
    ('unit = "mm[Hg]" ', 'unit = "mmHg(" ', "features.inputs[2]", "not a UCUM unit", "mm[Hg]"),
    ('unit_column = "unit"', "", "features.inputs[2]", "'unit_column' is missing", "column"),
    ('date_column = "date"', "", "features.inputs[2]", "has no date", "date_column ="),
    (
        'aggregation = "latest" ',
        'aggregation = "any" ',
        "features.inputs[2]",
        "not aggregated by 'any'",
        "mean",
    ),
    ('imputation = "mean" ', 'imputation = "constant" ', "features.inputs[2]", "'fill_value'", "both"),
    (
        'imputation = "mean" ',
        'imputation = "median" ',
        "features.inputs[2].imputation",
        "not one of the allowed",
        "mean",
    ),
    ('kind = "age" ', 'kind = "agee" ', "features.inputs[0].kind", "not one of the allowed", "'age'?"),
    ("reference_date = 2026-11-16", "", "features", "an age has no reference date", "index_date"),
    ('dates = "year"', 'dates = "remove"', "features.inputs[2].date_column", "dates are removed", "year"),
    ('shared_data = ["updates"]', 'shared_data = ["records"]', "learning", "no model updates", "updates"),
    ('input = "sex"', 'input = "sexx"', "learning.evaluation.groups[0].input", "not an input", "'sex'?"),
    ("bands = [50, 65]", "bands = [65, 50]", "learning.evaluation.groups[1]", "do not rise", "bands"),
    (
        '{ input = "sex" }',
        '{ input = "sex", bands = [1] }',
        "learning.evaluation.groups[0].bands",
        "does not fit",
        "bands",
    ),
    ('"sensitivity"]', '"rmse"]', "learning.evaluation.metrics[3]", "does not fit the task", "remove"),
    (
        'code = "84114007" },\n  { system = "http://hl7.org/fhir/sid/icd-10-cm", code = "I50"',
        'code = "84114008" },\n  { system = "http://hl7.org/fhir/sid/icd-10-cm", code = "I50"',
        "features.label.where.codes[0]",
        "removes this code",
        "[[data.codes]]",
    ),
    ("validation_fraction = 0.1 ", "validation_fraction = 1.5 ", "learning.validation", "less than 1", ""),
]


@pytest.mark.parametrize(("old", "new", "key", "what", "remedy"), CASES)
def test_every_problem_has_its_line_key_and_remedy(old, new, key, what, remedy):
    assert old in START
    text = START.replace(old, new, 1) if old != "stc(sparsity=0.1)" else START.replace(old, new)
    reported = problems(text)
    match = [p for p in reported if p.key.startswith(key) and what in p.what and remedy in p.remedy]
    assert match, [str(problem) for problem in reported]
    assert all(problem.line and problem.line > 1 for problem in match)


LEAK = """[[features.inputs]]
name = "leak"
kind = "flag"
view = "diagnoses"
{where}

[features.label]"""


@pytest.mark.parametrize(
    ("where", "leaks"),
    [
        ("", True),
        (
            'where = { column = "code", codes = [{ system = "http://snomed.info/sct", code = "84114007" }] }',
            True,
        ),
        (
            'where = { column = "code", codes = [{ system = "http://hl7.org/fhir/sid/icd-10-cm", code = "I50.9" }] }',
            True,
        ),
        (
            'where = { column = "code", codes = [{ system = "http://snomed.info/sct", code = "38341003" }] }',
            False,
        ),
    ],
)
def test_input_that_contains_the_label_is_refused(where, leaks):
    text = START.replace("[features.label]", LEAK.format(where=where), 1)
    if leaks:
        assert any("contains the label" in problem.what for problem in problems(text))
    else:
        study_from_toml(text)


def test_events_need_full_dates_and_an_index_date(full_text):
    reported = problems(full_text.replace('dates = "shift"', 'dates = "year"'))
    assert any("reduced to years" in problem.what and "shift" in problem.remedy for problem in reported)
    without = full_text.replace("[features.index_date]", "[features.indx]")
    assert any("'indx' is not a known key" in problem.what for problem in problems(without))


def test_value_label_needs_the_regression_task():
    text = START.replace('kind = "any" ', 'kind = "value"\ncolumn = "code" ')
    assert any("does not fit a label of kind 'value'" in problem.what for problem in problems(text))


def test_all_problems_are_listed_together():
    text = START.replace('column = "born"', 'column = "bron"').replace('view = "pressures"', 'view = "p"')
    assert len(problems(text)) >= 2


def test_feature_spec_matches_the_document(full):
    spec = full.feature_spec()
    assert [input_spec.kind for input_spec in spec.inputs] == [
        InputKind.NUMBER,
        InputKind.CATEGORY,
        InputKind.AGE,
        InputKind.COUNT,
    ]
    systolic, drug, age, _ = spec.inputs
    assert (systolic.unit, systolic.unit_column, systolic.on_unit_mismatch) == ("mm[Hg]", "unit", "refuse")
    assert (systolic.fill_value, systolic.band_width, systolic.aggregation) == (120.5, 2.5, Aggregation.MAX)
    assert matches_code(drug.categories[0], None, "C09AA05")
    assert drug.after_index
    assert (age.reference_date, age.imputation) == (date(2026, 1, 31), Imputation.DROP)
    assert (spec.label.kind, spec.label.window_days, spec.label.follow_up.view) == (
        LabelKind.EVENT,
        365,
        "medicines",
    )
    assert (spec.min_cell_count, spec.cohort, spec.index_date.column) == (11, "pressures", "date")


def test_strategy_matches_the_document(full):
    strategy = full.learning.build_strategy(5, seed=3)
    scheduler, validation, training = strategy.scheduler, strategy.validation, strategy.training
    assert (strategy.learners, strategy.rounds, strategy.max_seconds, strategy.seed) == (5, 12, 3600.5, 3)
    assert (scheduler.participants, scheduler.quorum, scheduler.deadline) == (3, 2, 60)
    assert (validation.metric, validation.evaluators) == ("mcc", 2)
    assert (training.epochs, training.optimiser, training.learning_rate) == (3, "adam", 0.125)
    assert full.learning.build_codec().spec.startswith("clip(norm=1.0) | error_feedback | stc(")
    assert full.learning.metrics == ("auroc", "brier")
    assert (scheduler.time_budget_seconds, validation.evaluator_selection) == (30, "label_coverage")
    assert strategy.final_rounds == 1
    with pytest.raises(SettingsError, match="participants"):
        full.learning.build_strategy(2)


def test_buffer_size_is_a_key_of_fedbuff():
    table = {"name": "FedBuffDVW", "buffer_size": 3, "max_attempts": 4, "metric": "mcc"}
    strategy = LearningSection(strategy=table).build_strategy(5)
    assert (strategy.scheduler.buffer_size, strategy.scheduler.max_attempts) == (3, 4)
    assert strategy.validation.metric == "mcc"
    assert (
        LearningSection(strategy="FedBuff").build_strategy(5).scheduler.min_updates(Strategy(learners=5)) == 3
    )
    with pytest.raises(ValidationError, match="'buffer_size' is not a setting of the strategy SyncDVW"):
        LearningSection(strategy={"name": "SyncDVW", "buffer_size": 3})


def test_regression_is_validated_by_inverse_mse():
    assert (
        LearningSection(task="regression", model="linear").build_strategy(3).validation.metric
        == "inverse_mse"
    )
    with pytest.raises(ValidationError, match="mcc"):
        LearningSection(
            task="regression", model="linear", strategy=StrategySection(name="SyncDVW", metric="mcc")
        )
    model = LearningSection(task="regression", model="mlp(4)").build_model(features=3, classes=0)
    assert model.layout.size == 3 * 4 + 4 + 4 + 1


def test_model_matches_its_spec(full):
    assert parse_model_spec("logistic") == ModelSpec("logistic")
    assert (
        full.learning.build_model(features=5, classes=2).layout.size == 5 * 16 + 16 + 16 * 8 + 8 + 8 * 2 + 2
    )
    for line in ("mlp", "mlp()", "logistic(3)", "mlp(16,)", "import os"):
        with pytest.raises(SettingsError, match="no model"):
            parse_model_spec(line)


def test_durations_in_days():
    assert [duration_days(duration) for duration in ("P1Y", "P30D", "PT36H", "P2W")] == [365, 30, 2, 14]


def test_summary_contains_the_sections(full):
    page = describe(full)
    for text in (
        "number in mm[Hg] from pressures.value max",
        "event of diagnoses",
        "SyncDVW, 12 rounds",
        "mlp(16, 8)",
    ):
        assert text in page


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20).filter(
    lambda t: t.strip() == t
)


@given(name=texts, value=texts, number=st.floats(-1e6, 1e6))
def test_any_category_and_constant_roundtrip(full, name, value, number):
    content = json.loads(json.dumps(full.content()))
    content["features"]["inputs"][1]["categories"][1] = {"name": f"c {name}", "values": [f"v{value}"]}
    content["features"]["inputs"][0]["fill_value"] = number
    content["views"][0]["constant"][0]["valueString"] = value
    study = Study.model_validate_json(json.dumps(content), strict=True)
    assert study_from_toml(write_toml(study)) == study
    assert study_from_json(json.dumps(write_bundle(study))).hash == study.hash


def test_a_named_strategy_has_the_papers_values_in_a_study():
    assert LearningSection(strategy="FedAsync").build_strategy(3).training.proximal_mu == 0.005
    other = LearningSection(strategy="FedAsync", training={"proximal_mu": 0.1})
    assert other.build_strategy(3).training.proximal_mu == 0.1
    none = LearningSection(strategy="FedAsync", training={"proximal_mu": 0.0})
    assert none.build_strategy(3).training.proximal_mu == 0.0, "a written value prevails, also a default"
    assert LearningSection(**none.model_dump(exclude_defaults=True)) == none


def test_an_adaptive_strategy_needs_a_maximum_of_epochs():
    """With one epoch, no cycle compared two losses, and AsyncDVW(a) was AsyncDVW(na)."""
    with pytest.raises(ValidationError, match="consecutive epochs"):
        LearningSection(strategy="AsyncDVW(a)")
    assert (
        LearningSection(strategy="AsyncDVW(a)", training={"epochs": 9}).build_strategy(3).training.epochs == 9
    )
