"""Implausible values: sentinels and wrong units are counted and missing, or used if the study says so."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError
from tests.features.feature_examples import LOINC, VALUES, condition, patient, plan, value

from abaton.features import InputKind, InputSpec, MissingReason, RowFilter, build_features
from abaton.features.plausibility import plausible_range, shipped_ranges
from abaton.fhir.ucum import convert, parse_unit
from abaton.study.shorthand.codes import common_inputs

CODED = {
    **VALUES,
    "select": [*VALUES["select"], {"forEach": "code.coding", "column": [
        {"name": "system", "path": "system"}, {"name": "code", "path": "code"}]}],
}  # fmt: skip


def measured(code: str, unit: str, **more) -> InputSpec:
    where = RowFilter(column="code", system_column="system", codes=({"system": LOINC, "code": code},))
    keys = {"column": "value", "unit": unit, "unit_column": "unit", "where": where, **more}
    return InputSpec(name="x", kind=InputKind.NUMBER, view="values", **keys)


def build(spec: InputSpec, readings: list[float], unit: str, code: str, **more):
    records = []
    for i, number in enumerate(readings):
        record = value(f"p{i:02}", number, unit)
        record.content["code"] = {"coding": [{"system": LOINC, "code": code}]}
        records += [patient(f"p{i:02}"), record]
    records.append(condition("p00", "1"))
    resolved = plan(spec, **more)
    return build_features(resolved.model_copy(update={"views": {**resolved.views, "values": CODED}}), records)


def issues(result) -> dict[MissingReason, str]:
    return {issue.reason: issue.count for issue in result.report.issues_of("x")}


def test_sentinels_are_missing_and_counted():
    result = build(
        measured("8480-6", "mm[Hg]"), [-1.0, 999.0, 120.0, 130.0, 110.0, 140.0], "mm[Hg]", "8480-6"
    )
    assert [math.isnan(x) for x in result.table.x[:, 0]] == [True, True, False, False, False, False]
    assert issues(result) == {MissingReason.IMPLAUSIBLE: "2"}
    assert dict(result.report.missing)["x"] == "2"


def test_small_counts_of_implausible_values_are_suppressed():
    readings = [-1.0, *[120.0] * 30]
    result = build(measured("8480-6", "mm[Hg]"), readings, "mm[Hg]", "8480-6", min_cell_count=5)
    assert issues(result) == {MissingReason.IMPLAUSIBLE: "<5"}


def test_a_study_may_keep_implausible_values():
    spec = measured("8480-6", "mm[Hg]", on_implausible="keep")
    result = build(spec, [-1.0, 999.0, 120.0], "mm[Hg]", "8480-6")
    assert result.table.x[:, 0].tolist() == [-1.0, 999.0, 120.0]
    assert issues(result) == {MissingReason.IMPLAUSIBLE: "2"}


def test_a_declared_range_replaces_the_shipped_one():
    spec = measured("8480-6", "mm[Hg]", plausible=(100.0, 125.0))
    result = build(spec, [90.0, 120.0, 130.0], "mm[Hg]", "8480-6")
    assert [math.isnan(x) for x in result.table.x[:, 0]] == [True, False, True]


def test_an_implausible_row_does_not_hide_the_plausible_one():
    result = build(measured("8480-6", "mm[Hg]"), [120.0], "mm[Hg]", "8480-6")
    records = [patient("a"), value("a", 999.0), value("a", 120.0), value("a", 130.0)]
    for record in records[1:]:
        record.content["code"] = {"coding": [{"system": LOINC, "code": "8480-6"}]}
    resolved = plan(measured("8480-6", "mm[Hg]"))
    result = build_features(
        resolved.model_copy(update={"views": {**resolved.views, "values": CODED}}), records
    )
    assert result.table.x[0, 0] == 125.0
    assert issues(result) == {MissingReason.IMPLAUSIBLE: "1"}  # subjects, not records


@pytest.mark.parametrize(("on_unit_mismatch", "is_fatal"), [("missing", False), ("refuse", True)])
def test_fahrenheit_declared_as_celsius_is_a_finding_of_its_own(on_unit_mismatch, is_fatal):
    spec = measured("8310-5", "Cel", on_unit_mismatch=on_unit_mismatch)
    result = build(spec, [98.6, 99.1, 97.9, 100.4, 98.2, 37.0], "Cel", "8310-5")
    assert issues(result) == {MissingReason.MOSTLY_IMPLAUSIBLE: "5"}
    (issue,) = result.report.issues_of("x")
    assert "unit is probably wrong" in issue.remedy
    assert (result.table is None) is is_fatal


def test_ranges_are_converted_to_the_units_of_the_input():
    celsius = plausible_range(measured("8310-5", "Cel"))
    fahrenheit = plausible_range(measured("8310-5", "[degF]"))
    assert celsius == pytest.approx((25.0, 45.0))
    assert fahrenheit == pytest.approx((77.0, 113.0))
    low, high = plausible_range(measured("2160-0", "umol/L"))
    assert (low, high) == pytest.approx((0.1 * 88.40, 40 * 88.40), rel=1e-3)
    assert plausible_range(measured("2160-0", "mm[Hg]")) is None
    assert plausible_range(measured("11111-5", "mm[Hg]")) is None


def test_an_age_beyond_130_years_is_missing():
    spec = InputSpec(
        name="x", kind=InputKind.AGE, view="patients", column="born", reference_date="2026-01-01"
    )
    records = [
        patient("a", birthDate="1850-01-01"),
        patient("b", birthDate="1950-01-01"),
        condition("a", "1"),
    ]
    result = build_features(plan(spec), records)
    assert [math.isnan(x) for x in result.table.x[:, 0]] == [True, False]
    assert issues(result) == {MissingReason.IMPLAUSIBLE: "1"}


def test_every_common_measurement_has_a_range_in_a_unit_that_converts():
    for entry in common_inputs():
        if entry.section != "measurements":
            continue
        codes = (
            [entry.shorthand["loinc"]]
            if isinstance(entry.shorthand["loinc"], str)
            else entry.shorthand["loinc"]
        )
        for code in codes:
            shipped = shipped_ranges()[code]
            low, high = shipped["range"]
            assert low < high
            assert parse_unit(shipped["unit"]) is not None
            mass = entry.shorthand.get("molar_mass")
            assert convert(high, shipped["unit"], entry.shorthand["unit"], molar_mass=mass) == pytest.approx(
                high
            )


@pytest.mark.parametrize("limits", [(1.0,), (3.0, 1.0), (1.0, 1.0), (1.0, 2.0, 3.0)])
def test_a_bad_range_is_refused(limits):
    with pytest.raises(ValidationError, match="is not a range"):
        measured("8480-6", "mm[Hg]", plausible=limits)
