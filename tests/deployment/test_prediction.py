"""Predictions for new patients through the study's pipeline, with applicability issues."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.deployment import NotApplicableError, predict
from abaton.deployment.prediction import _predict
from abaton.errors import SettingsError
from abaton.federation import Run
from abaton.lab.demo import NOW
from abaton.lab.synthetic_hospitals import records
from abaton.site import load_site
from abaton.study import study_from_toml
from abaton.study_run import ingest_sites

KEY = bytes(range(32))
Change = Callable[[dict[str, Any]], dict[str, Any] | None]


def bundle(path: Path, count: int = 1, change: Change = lambda resource: resource, skip: int = 0) -> Path:
    """Write a Bundle of patients of a hospital that was not trained on, without their outcome."""
    wanted = {f"athens-{i}" for i in range(1 + skip, 1 + skip + count)}
    entries = []
    for resource in records("athens", seed=77, scale=0.25):
        patient_id = (
            resource.get("subject", {}).get("reference", f"Patient/{resource['id']}").removeprefix("Patient/")
        )
        codes = json.dumps(resource.get("code", ""))
        if patient_id in wanted and "84114007" not in codes and (changed := change(resource)) is not None:
            entries.append({"resource": changed})
    path.write_text(json.dumps({"resourceType": "Bundle", "type": "collection", "entry": entries}))
    return path


def change_code(code: str, do: Change) -> Change:
    return lambda resource: do(resource) if code in json.dumps(resource.get("code", "")) else resource


def with_unit(unit: str) -> Change:
    def do(resource: dict[str, Any]) -> dict[str, Any]:
        return {**resource, "valueQuantity": {**resource["valueQuantity"], "unit": unit, "code": unit}}

    return do


def times(factor: float) -> Change:
    def do(resource: dict[str, Any]) -> dict[str, Any]:
        quantity = resource["valueQuantity"]
        return {**resource, "valueQuantity": {**quantity, "value": factor * quantity["value"]}}

    return do


def refusals(run: Run, source: Path) -> list[str]:
    with pytest.raises(NotApplicableError) as caught:
        predict(run, source, NOW, KEY)
    return [str(issue) for issue in caught.value.issues]


def test_records_pass_the_pipeline_of_the_study(without_bins, tmp_path):
    """Predictions from records equal those on the table of the study's pipeline."""
    file = load_site(Path(without_bins.row.recipe["settings"]["sites"][0]))
    study = study_from_toml(without_bins.row.recipe["settings"]["study"])
    (reading,) = ingest_sites(study, [file], NOW)
    predicted = without_bins.predict(reading.table.x)
    expected = {
        reading.patient_ids[subject]: values
        for subject, values in zip(reading.table.subjects, predicted, strict=True)
    }
    key = (file.folder / "study.key").read_bytes()
    predictions = predict(without_bins, Path(file.name), NOW, key)
    by_id = {patient.id: patient.predicted for patient in predictions.patients}
    assert expected.keys() < by_id.keys()  # patients without an outcome are predicted, too
    for subject, values in expected.items():
        np.testing.assert_allclose(by_id[subject], values, atol=1e-6)
    local = predict(
        without_bins, file.folder, NOW, KEY
    )  # dates are shifted by another key: an age may differ by a year
    assert [patient.id for patient in local.patients] == [patient.id for patient in predictions.patients]
    np.testing.assert_allclose(
        [p.predicted for p in local.patients], [p.predicted for p in predictions.patients], atol=0.02
    )


@pytest.mark.parametrize(
    ("line", "applied"),
    [
        ({"intercept": 0.5, "slope": 2.0, "status": "fitted"}, (0.5, 2.0)),
        ({"intercept": 0.5, "slope": -2.0, "status": "slope not above 0"}, (0.0, 1.0)),
        ({"intercept": None, "slope": None, "status": "not estimable"}, (0.0, 1.0)),
        ({"intercept": None, "slope": None, "status": "not released"}, (0.0, 1.0)),
    ],
)
def test_only_a_fitted_recalibration_is_applied(line, applied):
    probabilities = np.array([0.001, 0.3, 0.8])
    run = SimpleNamespace(
        predict=lambda x: np.stack([1 - probabilities, probabilities], axis=1),
        result={"evaluation": {"recalibration": {"community": line}}},
    )
    _, calibrated = _predict(run, SimpleNamespace(x=None), "", "")
    odds = np.log(probabilities / (1 - probabilities))
    assert calibrated[:, 1] == pytest.approx(1 / (1 + np.exp(-(applied[0] + applied[1] * odds))))


def test_one_bundle_in_one_command(finished, tmp_path):
    source, out = bundle(tmp_path / "new.json"), tmp_path / "predictions.csv"
    base = ["model", "predict", "finished", str(source), "--store", str(finished.store.folder)]
    result = CliRunner().invoke(app, [*base, "--json", "--out", str(out)])
    assert result.exit_code == 0, result.output
    output = json.loads(result.stdout)
    (patient,) = output["patients"]
    assert patient["patient"] == "athens-1"
    assert sum(patient["predicted"].values()) == pytest.approx(1.0, abs=1e-6)
    line = finished.result["evaluation"]["recalibration"]["community"]
    assert output["recalibration"] == line["status"] == "too few"  # cases among the validation subjects
    assert "predictions are not recalibrated: too few" in result.stderr
    intercept, slope = 0.0, 1.0
    odds = np.log(patient["predicted"]["yes"] / patient["predicted"]["no"])
    assert np.log(patient["calibrated"]["yes"] / patient["calibrated"]["no"]) == pytest.approx(
        intercept + slope * odds, abs=1e-4
    )
    (row,) = csv.DictReader(out.read_text().splitlines())
    assert float(row["calibrated yes"]) == pytest.approx(patient["calibrated"]["yes"], abs=1e-5)
    shown = CliRunner().invoke(app, base)
    assert "athens-1" in shown.stdout
    files = sorted(path.name for path in (finished.store.folder / "predictions").iterdir())
    assert [
        name for name in files if not name.startswith("governance.db")
    ] == []  # a legal basis in the audit log, no record


def test_a_personal_model_predicts_at_its_site(finished, tmp_path):
    source = bundle(tmp_path / "new.json", 3)
    community = predict(finished, source, NOW, KEY)
    personal = predict(finished, source, NOW, KEY, site="athens")
    assert personal.metadata["model"] == "interpolate at athens"
    assert [patient.id for patient in personal.patients] == [patient.id for patient in community.patients]
    assert [patient.predicted for patient in personal.patients] != [
        patient.predicted for patient in community.patients
    ]
    with pytest.raises(SettingsError, match="no personal model by 'interpolate'"):
        predict(finished, source, NOW, KEY, site="delphi")


def test_a_wrong_unit_is_refused_and_one_that_converts_is_not(finished, tmp_path):
    pressure = change_code("8480-6", with_unit("kg"))
    (first, second) = refusals(finished, bundle(tmp_path / "kg.json", 1, pressure))
    assert first.startswith("systolic: inconvertible unit")
    assert second.startswith("systolic: no patient has a value")
    right = predict(finished, bundle(tmp_path / "mm.json"), NOW, KEY)
    kilopascal = change_code("8480-6", lambda r: times(0.133322)(with_unit("kPa")(r)))
    same = predict(finished, bundle(tmp_path / "kPa.json", 1, kilopascal), NOW, KEY)
    np.testing.assert_allclose(same.patients[0].predicted, right.patients[0].predicted, atol=1e-4)


def test_a_missing_input_is_refused_or_reported(finished, tmp_path):
    source = bundle(tmp_path / "none.json", 1, change_code("8480-6", lambda resource: None))
    assert [issue.split(":")[0] for issue in refusals(finished, source)] == ["systolic"]
    predictions = predict(finished, source, NOW, KEY, force=True)
    assert predictions.patients[0].imputed == ("systolic",)
    assert [issue.scope for issue in predictions.issues if issue.is_blocking] == ["systolic"]


def test_ineligible_patients_are_excluded(finished, tmp_path):
    without_condition = change_code("38341003", lambda resource: None)
    assert (
        "not eligible for the study"
        in refusals(finished, bundle(tmp_path / "well.json", 1, without_condition))[0]
    )


def test_another_population_is_flagged_and_an_impossible_one_refused(finished, tmp_path):
    typical = predict(finished, bundle(tmp_path / "usual.json", 20), NOW, KEY)
    assert not [issue for issue in typical.issues if issue.scope in ("systolic", "bmi")]
    higher = predict(
        finished, bundle(tmp_path / "high.json", 20, change_code("8480-6", times(1.25))), NOW, KEY
    )
    assert "predictions may be less accurate" in next(
        issue.what for issue in higher.issues if issue.scope == "systolic"
    )
    (issue_text,) = refusals(finished, bundle(tmp_path / "far.json", 20, change_code("39156-5", times(3.0))))
    assert issue_text.startswith("bmi: the mean is")
    assert "another unit, or another population" in issue_text
    one = predict(
        finished, bundle(tmp_path / "one.json", 1, change_code("8480-6", times(1.6))), NOW, KEY, force=True
    )
    assert one.patients[0].unusual == ("systolic",)


@pytest.mark.parametrize(
    ("code", "factor", "column"),
    [
        ("2093-3", 1 / 38.665, "cholesterol"),
        ("2160-0", 88.42, "creatinine"),
        ("8480-6", 0.133322, "systolic"),
    ],
    ids=["mmol/L as mg/dL", "umol/L as mg/dL", "kPa as mm[Hg]"],
)
def test_values_labelled_with_a_wrong_unit_are_refused_for_one_patient_too(
    finished, tmp_path, code, factor, column
):
    issues = refusals(finished, bundle(tmp_path / "wrong.json", 1, change_code(code, times(factor)), skip=1))
    assert any(issue.startswith(f"{column}: implausible value, 1 times; correct") for issue in issues)


def test_children_and_an_empty_bundle_are_refused(finished, tmp_path):
    def young(resource: dict[str, Any]) -> dict[str, Any]:
        return {**resource, "birthDate": "2016-05-01"} if resource["resourceType"] == "Patient" else resource

    assert "not eligible for the study" in refusals(finished, bundle(tmp_path / "young.json", 3, young))[0]
    assert refusals(finished, bundle(tmp_path / "empty.json", 0)) == ["records: no patient can be predicted"]


def test_every_issue_is_one_line_without_record_content(finished, tmp_path):
    source = bundle(tmp_path / "kg.json", 1, change_code("8480-6", with_unit("kg")))
    result = CliRunner().invoke(
        app, ["model", "predict", "finished", str(source), "--store", str(finished.store.folder)]
    )
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert [line.split(":")[1].strip() for line in lines[:2]] == ["systolic", "systolic"]
    assert lines[-1].startswith("abaton: no predictions were made")
    assert "athens-1" not in result.output
    missing = CliRunner().invoke(
        app, ["model", "predict", "finished", "nowhere", "--store", str(finished.store.folder)]
    )
    assert "the file or folder does not exist" in str(missing.exception)


def test_no_id_becomes_a_formula(finished, tmp_path):
    from abaton.deployment.prediction import PatientPrediction, Predictions

    predictions = Predictions(
        {}, ("no", "yes"), [PatientPrediction("=1+1", (0.1, 0.9), (0.2, 0.8), (), ())], []
    )
    assert predictions.csv().splitlines()[1].startswith("'=1+1,")
