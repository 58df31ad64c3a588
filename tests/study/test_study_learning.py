"""Views, features and learning in a study document: kept in both forms, in the hash, and checked when it is read."""

from __future__ import annotations

import json
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.study.long_form import long_starter

from abaton.controller import Rules
from abaton.documents.fields import days
from abaton.errors import SettingsError
from abaton.features import Join, Kind, Missing, Outcome
from abaton.features.specification import means
from abaton.study import (
    Learning,
    PolicyTable,
    Study,
    StudyError,
    describe,
    study_from_json,
    study_from_toml,
    write_bundle,
    write_toml,
)
from abaton.study.components import Network, network

START = long_starter(date(2026, 11, 16))


def problems(text):
    with pytest.raises(StudyError) as caught:
        study_from_toml(text)
    return caught.value.problems


def test_both_forms_keep_every_section(full):
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


def test_documents_without_these_sections_keep_their_hash(full):
    content = {k: v for k, v in full.content().items() if k not in ("views", "features", "learning")}
    study = Study.model_validate_json(json.dumps(content), strict=True)
    assert study.hash == "e1af62eced66a95f828feeac81bf96d1bb3995a7d0b17b46ef4edf4d04c410ad"
    assert not {"views", "features", "learning"} & study.content().keys()
    with pytest.raises(SettingsError, match="no features"):
        study.plan()


CASES = [
    # what is written, what it becomes, the key, the fault, the remedy
    (
        'column = "born"',
        'column = "bron"',
        "features.inputs[0].column",
        "not a column of 'patients'",
        "'born'?",
    ),
    ('view = "pressures"', 'view = "presures"', "features.inputs[2].view", "not a view", "'pressures'?"),
    ('cohort = "patients"', 'cohort = "people"', "features.cohort", "not a view", "known are"),
    ("stc(sparsity=0.1)", "stk(sparsity=0.1)", "learning.codec", "no codec 'stk'", "stc"),
    (
        'policy = "AsyncDVW(na)"',
        'policy = "AsyncDVW"',
        "learning.policy",
        "no policy 'AsyncDVW'",
        "SyncFedAvg",
    ),
    (
        'policy = "AsyncDVW(na)"',
        'policy = { name = "AsyncDVW(na)", quorum = 2 }',
        "learning.policy",
        "'quorum' does not belong",
        "remove",
    ),
    (
        'policy = "AsyncDVW(na)"',
        'policy = { name = "SyncDVW", measure = "auc" }',
        "learning.policy",
        "no measure 'auc'",
        "mcc",
    ),
    ('network = "logistic" ', 'network = "resnet" ', "learning.network", "no network 'resnet'", "mlp(16)"),
    ('network = "logistic" ', 'network = "linear" ', "learning.network", "does not fit", "logistic"),
    ('task = "classes" ', 'task = "value" ', "learning.network", "does not fit the task 'value'", "linear"),
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
        "lets Condition through",
        "Condition",
    ),
    ("effective.ofType", "efective.ofType", "views[1].select", "no element 'efective'", "'effective'?"),
    (
        'resource = "Observation"',
        'resource = "Observaton"',
        "views[1].resource",
        "no resource type",
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
        "stands twice",
        "own name",
    ),
    (
        'path = "gender" }',
        'path = "gender", colection = true }',
        "views[0].select[0].column[1]",
        "not a known key",
        "collection",
    ),
    ('name = "sex"\nkind', 'name = "age"\nkind', "features", "two inputs are called 'age'", "own name"),
    ('name = "heart_failure"', 'name = "age"', "features", "both called 'age'", "rename"),
    ('unit = "mm[Hg]" ', 'unit = "mmHg(" ', "features.inputs[2]", "not a unit of UCUM", "mm[Hg]"),
    ('unit_column = "unit"', "", "features.inputs[2]", "belong together", "column"),
    ('when = "date"', "", "features.inputs[2]", "needs to know when", "when ="),
    ('join = "latest" ', 'join = "any" ', "features.inputs[2]", "cannot be joined by 'any'", "mean"),
    ('missing = "mean" ', 'missing = "constant" ', "features.inputs[2]", "'fill' belongs", "both"),
    ('missing = "mean" ', 'missing = "median" ', "features.inputs[2].missing", "not one of those", "mean"),
    ('kind = "age" ', 'kind = "agee" ', "features.inputs[0].kind", "not one of those", "'age'?"),
    ("at = 2026-11-16", "", "features", "an age needs a day", "index"),
    ('dates = "year"', 'dates = "remove"', "features.inputs[2].when", "dates are removed", "year"),
    ('shares = ["updates"]', 'shares = ["records"]', "learning", "no updates", "updates"),
    ('input = "sex"', 'input = "sexx"', "learning.evaluation.groups[0].input", "not a input", "'sex'?"),
    ("bands = [50, 65]", "bands = [65, 50]", "learning.evaluation.groups[1]", "do not rise", "bands"),
    (
        '{ input = "sex" }',
        '{ input = "sex", bands = [1] }',
        "learning.evaluation.groups[0].bands",
        "does not fit",
        "bands",
    ),
    ('"sensitivity"]', '"rmse"]', "learning.evaluation.metrics[3]", "does not judge", "remove"),
    (
        'code = "84114007" },\n  { system = "http://hl7.org/fhir/sid/icd-10-cm", code = "I50"',
        'code = "84114008" },\n  { system = "http://hl7.org/fhir/sid/icd-10-cm", code = "I50"',
        "features.label.where.codes[0]",
        "no record keeps the code '84114008'",
        "[[data.codes]]",
    ),
    ("validation = 0.1 ", "validation = 1.5 ", "learning.validation", "less than 1", ""),
]


@pytest.mark.parametrize(("old", "new", "key", "what", "remedy"), CASES)
def test_every_problem_has_its_line_key_and_remedy(old, new, key, what, remedy):
    assert old in START
    text = START.replace(old, new, 1) if old != "stc(sparsity=0.1)" else START.replace(old, new)
    found = problems(text)
    match = [p for p in found if p.key.startswith(key) and what in p.what and remedy in p.remedy]
    assert match, [str(problem) for problem in found]
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
def test_an_input_that_holds_the_label_is_refused(where, leaks):
    text = START.replace("[features.label]", LEAK.format(where=where), 1)
    if leaks:
        assert any("holds the label itself" in problem.what for problem in problems(text))
    else:
        study_from_toml(text)


def test_events_need_days_and_an_index_date(full_text):
    found = problems(full_text.replace('dates = "shift"', 'dates = "year"'))
    assert any("cut to their year" in problem.what and "shift" in problem.remedy for problem in found)
    without = full_text.replace("[features.index]", "[features.indx]")
    assert any("'indx' is not a known key" in problem.what for problem in problems(without))


def test_a_value_is_learned_as_a_value():
    text = START.replace('kind = "any" ', 'kind = "value"\ncolumn = "code" ')
    assert any("does not fit a label of kind 'value'" in problem.what for problem in problems(text))


def test_several_problems_are_told_at_once():
    text = START.replace('column = "born"', 'column = "bron"').replace('view = "pressures"', 'view = "p"')
    assert len(problems(text)) >= 2


def test_the_plan_is_what_the_document_says(full):
    plan = full.plan()
    assert [each.kind for each in plan.inputs] == [Kind.NUMBER, Kind.CATEGORY, Kind.AGE, Kind.COUNT]
    systolic, drug, age, _ = plan.inputs
    assert (systolic.unit, systolic.unit_column, systolic.wrong_unit) == ("mm[Hg]", "unit", "refuse")
    assert (systolic.fill, systolic.band, systolic.join) == (120.5, 2.5, Join.MAX)
    assert means(drug.categories[0], None, "C09AA05")
    assert drug.after_index
    assert (age.at, age.missing) == (date(2026, 1, 31), Missing.DROP)
    assert (plan.label.kind, plan.label.days, plan.label.follow_up.view) == (Outcome.EVENT, 365, "medicines")
    assert (plan.floor, plan.cohort, plan.index.column) == (11, "pressures", "date")


def test_the_rules_are_what_the_document_says(full):
    rules = full.learning.rules(5, seed=3)
    assert (rules.learners, rules.rounds, rules.seconds, rules.seed) == (5, 12, 3600.5, 3)
    assert (rules.pacing.participants, rules.pacing.quorum, rules.pacing.deadline) == (3, 2, 60)
    assert (rules.validation.measure, rules.validation.evaluators) == ("mcc", 2)
    assert (rules.training.epochs, rules.training.solver, rules.training.learning_rate) == (3, "adam", 0.125)
    assert full.learning.pipeline().spec.startswith("clip(norm=1.0) | error_feedback | stc(")
    assert full.learning.metrics == ("auroc", "brier")
    assert (rules.pacing.budget, rules.validation.choice, rules.finishing) == (30, "labels", 1)
    with pytest.raises(SettingsError, match="participants"):
        full.learning.rules(2)


def test_a_buffer_belongs_to_fedbuff():
    table = {"name": "FedBuffDVW", "buffer": 3, "attempts": 4, "measure": "mcc"}
    rules = Learning(policy=table).rules(5)
    assert (rules.pacing.buffer, rules.pacing.attempts, rules.validation.measure) == (3, 4, "mcc")
    assert Learning(policy="FedBuff").rules(5).pacing.fewest(Rules(learners=5)) == 3
    with pytest.raises(ValidationError, match="'buffer' does not belong to the policy SyncDVW"):
        Learning(policy={"name": "SyncDVW", "buffer": 3})


def test_values_are_validated_by_closeness():
    assert Learning(task="value", network="linear").rules(3).validation.measure == "closeness"
    with pytest.raises(ValidationError, match="mcc"):
        Learning(task="value", network="linear", policy=PolicyTable(name="SyncDVW", measure="mcc"))
    made = Learning(task="value", network="mlp(4)").model(features=3, classes=0)
    assert made.layout.size == 3 * 4 + 4 + 4 + 1


def test_the_network_is_what_the_line_says(full):
    assert network("logistic") == Network("logistic")
    assert full.learning.model(features=5, classes=2).layout.size == 5 * 16 + 16 + 16 * 8 + 8 + 8 * 2 + 2
    for line in ("mlp", "mlp()", "logistic(3)", "mlp(16,)", "import os"):
        with pytest.raises(SettingsError, match="no network"):
            network(line)


def test_spans_in_days():
    assert [days(span) for span in ("P1Y", "P30D", "PT36H", "P2W")] == [365, 30, 2, 14]


def test_the_page_shows_them(full):
    page = describe(full)
    for words in (
        "number in mm[Hg] from pressures.value max",
        "event of diagnoses",
        "SyncDVW, 12 rounds",
        "mlp(16, 8)",
    ):
        assert words in page


words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20).filter(
    lambda t: t.strip() == t
)


@given(name=words, value=words, number=st.floats(-1e6, 1e6))
def test_any_category_and_constant_survive(full, name, value, number):
    content = json.loads(json.dumps(full.content()))
    content["features"]["inputs"][1]["categories"][1] = {"name": f"c {name}", "values": [f"v{value}"]}
    content["features"]["inputs"][0]["fill"] = number
    content["views"][0]["constant"][0]["valueString"] = value
    study = Study.model_validate_json(json.dumps(content), strict=True)
    assert study_from_toml(write_toml(study)) == study
    assert study_from_json(json.dumps(write_bundle(study))).hash == study.hash
