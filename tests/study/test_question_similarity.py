"""Remarks on questions that are nearly the same, with both locations, and none on ordinary studies."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import tomli_w
from tests.study.full_studies import long_starter

from abaton.study import Study, lint_study, study_from_toml
from abaton.study.question_similarity import similar_questions, similar_studies

AGE = '[[eligibility.criteria]]\ntype = "age"\n'
PRESSURE = (
    '[[eligibility.criteria]]\ntype = "observation"\n'
    'codes = [{ system = "http://loinc.org", code = "2160-0" }]\n'
)
HOSPITALS = (Path(__file__).parent / "full" / "hospitals.toml").read_text("utf-8")


def pairs(text: str) -> list[str]:
    return similar_questions(study_from_toml(text))


def changed(text: str, change) -> Study:
    table = tomllib.loads(text)
    change(table)
    return study_from_toml(tomli_w.dumps(table))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (AGE + "low = 50\n", AGE + "low = 51\n"),
        (AGE + "low = 50\n", AGE + "above = 49\n"),
        (AGE + "low = 50\n", AGE + "low = 600\nunit = 'mo'\n"),
        (PRESSURE + "above = 130\n", PRESSURE + "above = 131\nunit = 'mm[Hg]'\n"),
        (PRESSURE + "high = 130\n", PRESSURE + "high = 130\nperiod = { start = 2020-01-01 }\n"),
        (PRESSURE + "high = 130\n", PRESSURE + "below = 131\nexclude = true\n"),
    ],
)
def test_criteria_that_differ_in_a_cut_off_unit_or_period(one, other):
    text = HOSPITALS + one + other
    count = len(study_from_toml(text).eligibility.criteria)
    expected = f"eligibility.criteria[{count - 2}] and eligibility.criteria[{count - 1}] ask nearly the same"
    assert any(remark.startswith(expected) for remark in pairs(text))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (AGE + "low = 18\n", AGE + "high = 80\n"),
        (PRESSURE + "low = 90\n", PRESSURE.replace("2160-0", "2093-3") + "low = 90\n"),
    ],
)
def test_both_ends_of_a_range_and_other_codes_are_other_questions(one, other):
    def without_age(table):
        table["eligibility"]["criteria"] = tomllib.loads(one + other)["eligibility"]["criteria"]

    assert similar_questions(changed(HOSPITALS, without_age)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"plausible": [50, 250]},
        {"unit": "kPa"},
        {"band_width": 5},
        {"spline": [100, 120, 140]},
        {"missing_indicator": True},
    ],
)
def test_inputs_that_differ_in_a_cut_off_or_unit(change):
    def add(table):
        inputs = table["features"]["inputs"]
        systolic = next(item for item in inputs if item["name"] == "systolic")
        inputs.append({**systolic, "name": "again", **change})

    (remark,) = similar_questions(changed(HOSPITALS, add))
    assert remark.startswith(
        "features.inputs[2] 'systolic' and features.inputs[10] 'again' ask nearly the same"
    )


def test_an_input_with_another_aggregation_is_another_question():
    def add(table):
        systolic = next(item for item in table["features"]["inputs"] if item["name"] == "systolic")
        table["features"]["inputs"].append({**systolic, "name": "again", "aggregation": "mean"})

    assert similar_questions(changed(HOSPITALS, add)) == []


def test_columns_and_views_that_differ_in_a_cut_off():
    def add(table):
        view = next(item for item in table["views"] if item["name"] == "measurements")
        columns = view["select"][0]["column"]
        columns += [
            {"name": f"above_{limit}", "path": f"value.ofType(Quantity).value > {limit}", "type": "boolean"}
            for limit in (130, 131)
        ]
        columns += [{"name": f"code_{i}", "path": f"code.coding[{i}].code"} for i in (0, 1)]

    remarks = similar_questions(changed(HOSPITALS, add))
    assert remarks == [
        "views[3] column 'above_130' and views[3] column 'above_131' ask nearly the same: "
        "their paths differ only in cut-offs"
    ]


def test_inputs_of_two_views_that_differ_in_a_cut_off():
    def add(table):
        view = next(item for item in table["views"] if item["name"] == "measurements")
        systolic = next(item for item in table["features"]["inputs"] if item["name"] == "systolic")
        for limit in (130, 131):
            where = [{"path": f"value.ofType(Quantity).value > {limit}"}]
            table["views"].append({**view, "name": f"high_{limit}", "where": where})
            table["features"]["inputs"].append({**systolic, "name": f"x{limit}", "view": f"high_{limit}"})

    (remark,) = similar_questions(changed(HOSPITALS, add))
    assert "'x130'" in remark
    assert "'x131'" in remark


def test_groups_of_one_input_and_bands_of_one_unit():
    groups = "[[learning.evaluation.groups]]\ninput = 'age'\nbands = [50, 65]\n"
    more = "[[learning.evaluation.groups]]\ninput = 'age'\nbands = [50, 51]\n"

    def replace(table, text):
        table["learning"]["evaluation"]["groups"] = tomllib.loads(text)["learning"]["evaluation"]["groups"]

    assert similar_questions(changed(HOSPITALS, lambda table: replace(table, groups))) == []
    remarks = similar_questions(changed(HOSPITALS, lambda table: replace(table, groups + more)))
    assert remarks[0].startswith("learning.evaluation.groups[0] and learning.evaluation.groups[1] ask nearly")
    assert remarks[1].startswith("learning.evaluation.groups[1].bands: two bands differ by one unit")


def test_ordinary_studies_have_no_such_remark(full_text):
    from datetime import date

    for text in (full_text, HOSPITALS, long_starter(date(2026, 1, 1))):
        study = study_from_toml(text)
        assert similar_questions(study) == []
        assert not any("nearly the same" in remark for remark in lint_study(study, date(2026, 1, 1)))


def test_many_equal_criteria_are_cut_off():
    remarks = pairs(HOSPITALS + (AGE + "low = 40\n") * 3000)
    assert len(remarks) == 21
    assert "not listed" in remarks[-1]


def test_studies_that_differ_by_one_criterion():
    study = study_from_toml(HOSPITALS)
    count = len(study.eligibility.criteria)
    added = study_from_toml(HOSPITALS + AGE + "low = 91\n")
    assert similar_studies(study, [study]) == []
    (remark,) = similar_studies(added, [study])
    assert remark.startswith(
        f"eligibility.criteria[{count}] of this study: the two studies differ by one criterion"
    )
    (remark,) = similar_studies(study, [added])
    assert remark.startswith(f"eligibility.criteria[{count}] of study '{study.study.id}'")
    other = study_from_toml(HOSPITALS + AGE + "low = 92\n")
    (remark,) = similar_studies(added, [other])
    assert "of this study and eligibility" in remark
    assert (
        similar_studies(study_from_toml(HOSPITALS + AGE + "low = 91\n" + PRESSURE + "low = 3\n"), [study])
        == []
    )


def test_studies_with_one_criterion_each():
    def only(text):
        criteria = tomllib.loads(text)["eligibility"]["criteria"]
        return changed(HOSPITALS, lambda table: table["eligibility"].update(criteria=criteria))

    assert similar_studies(only(AGE + "low = 50\n"), [only(PRESSURE + "low = 3\n")]) == []
    assert len(similar_studies(only(AGE + "low = 50\n"), [only(AGE + "low = 51\n")])) == 1
