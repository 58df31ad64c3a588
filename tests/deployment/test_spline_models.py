"""A study with splines through the pipeline: rows, training, explanation, prediction and exported files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.cached_files import _cached_ingest  # noqa: F401
from tests.deployment.test_model_export import FILES, random_rows

from abaton.deployment import PortableLayer, PortableModel, export_model, to_portable_model
from abaton.deployment.model_export import to_onnx
from abaton.deployment.prediction import predict
from abaton.deployment.sklearn_export import to_estimator
from abaton.errors import SettingsError
from abaton.features import FeatureColumn, FeatureTable, SplineBasis
from abaton.federation import Run
from abaton.lab.demo import NOW, make_demo
from abaton.lab.synthetic_hospitals import FOUR_HOSPITALS
from abaton.models import Examples
from abaton.report import render_report
from abaton.site import load_site
from abaton.store import Store
from abaton.study import InterpretabilitySection, study_from_json, study_from_toml, write_bundle, write_toml
from abaton.study_run import StudyOptions, run_study
from abaton.study_run.outbound_preview import preview_fields
from abaton.study_run.site_run_state import PendingTable, SiteRunFolder

KNOTS = {"age": (45.0, 62.0, 79.0), "systolic": (112.0, 139.0, 166.0), "creatinine": (0.62, 1.0, 1.62)}


@pytest.fixture(scope="module")
def splined(tmp_path_factory) -> Run:
    """Return a logistic run at four hospitals with splines; age is in bins for k-anonymity."""
    folder = tmp_path_factory.mktemp("splined")
    demo = make_demo(folder / "hospitals", 3, 0.25, rounds=8, cohort=FOUR_HOSPITALS)
    inputs = tuple(
        spec.model_copy(
            update={"spline": KNOTS.get(spec.name, ()), "scale": "log" if spec.name == "creatinine" else None}
        )
        for spec in demo.study.features.inputs
    )
    interpretability = InterpretabilitySection(
        permutation_repeats=2, partial_dependence=("systolic", "creatinine"), grid_points=5
    )
    settings = {"model": "logistic", "interpretability": interpretability, "personalise": ("recalibrate",)}
    learning = demo.study.learning.model_copy(update=settings)
    features = demo.study.features.model_copy(update={"inputs": inputs})
    study = study_from_toml(
        write_toml(demo.study.model_copy(update={"learning": learning, "features": features}))
    )
    assert study_from_json(json.dumps(write_bundle(study))).hash == study.hash
    for site in demo.sites:  # consents refer to the other document
        site.write_text(site.read_text().replace('registry = "consents.db"', 'legal_basis = "a vote"'))
    options = StudyOptions(profiles=demo.profiles, seed=5, bootstrap_resamples=0)
    with Store(folder / "store") as store:
        yield run_study(study, demo.sites, store, options, name="splined", now=NOW)


def test_the_model_reads_the_columns_of_the_splines(splined):
    deployment = splined.row.recipe["deployment"]
    assert deployment["splines"].keys() == KNOTS.keys()
    assert len(splined.model_definition.layout) == 2
    assert (
        splined.model.weight.shape[1] == len(deployment["columns"]) + 3
    )  # two columns instead of one, thrice
    x = random_rows(30, splined)
    creatinine = deployment["columns"].index("creatinine")
    rows = splined.scale_rows(x)
    filled = np.where(np.isnan(x[:, creatinine]), deployment["scale"]["creatinine"][0], x[:, creatinine])
    expected = SplineBasis(KNOTS["creatinine"], is_log=True).columns(filled)
    start = creatinine + sum(name in KNOTS for name in deployment["columns"][:creatinine])
    np.testing.assert_allclose(rows[:, start : start + 2], expected, rtol=1e-5, atol=1e-6)


def test_the_middle_of_an_anonymised_range_is_splined(splined):
    deployment = splined.row.recipe["deployment"]
    assert any(deployment["ranges"])
    width = to_portable_model(splined).bin_width[deployment["columns"].index("age")]
    x = np.repeat(random_rows(1, splined), 2, axis=0)
    x[:, deployment["columns"].index("age")] = [40.0, 40.0 + width / 2 - 0.1]
    rows = splined.scale_rows(x)
    np.testing.assert_array_equal(rows[0], rows[1])
    expected = SplineBasis(KNOTS["age"]).columns(np.array([40.0 + width / 2]))[0]
    np.testing.assert_allclose(rows[0, :2], expected, rtol=1e-5)


@pytest.mark.parametrize("form", ["onnx", "safetensors"])
def test_a_file_with_splines_predicts_what_the_run_predicts(splined, tmp_path, form):
    if form == "onnx":
        pytest.importorskip("onnx")
    out, x = tmp_path / f"model.{form}", random_rows(300, splined)
    x[:5, splined.row.recipe["deployment"]["columns"].index("creatinine")] = [-1, 0, 999, 1e9, 0.5]
    export_model(splined, out)
    expected = splined.predict(x)
    assert np.ptp(expected[:, 1]) > 0.05
    np.testing.assert_allclose(FILES[form](out, x), expected, atol=1e-6)


def test_scikit_learn_refuses_a_spline_on_a_log_scale(splined, tmp_path):
    pytest.importorskip("skops")
    with pytest.raises(SettingsError, match="log scale"):
        export_model(splined, tmp_path / "model.skops")


@pytest.mark.parametrize("bin_width", [0.0, 5.0])
def test_an_estimator_with_splines_predicts_what_the_model_predicts(bin_width):
    rng = np.random.default_rng(4)
    spline = SplineBasis((100.0, 120.0, 140.0, 160.0))
    model = PortableModel(
        columns=("pressure", "dose", "age"),
        bin_width=np.array([0.0, 0.0, bin_width]),
        bin_origin=np.zeros(3),
        fill_value=np.array([130.0, 2.0, 60.0]),
        mean=np.array([0.0, 2.0, 0.0]),
        std=np.array([1.0, 3.0, 1.0]),
        layers=(PortableLayer(rng.normal(size=(2, 6)).astype(np.float32), np.zeros(2, np.float32)),),
        classes=("no", "yes"),
        label=(0.0, 1.0),
        metadata={},
        splines=(spline, None, SplineBasis((45.0, 62.0, 79.0))),
    )
    x = np.stack([rng.normal(130, 40, 500), rng.normal(2, 3, 500), rng.normal(60, 20, 500)], axis=1)
    x[rng.random(x.shape) < 0.1] = np.nan
    np.testing.assert_allclose(to_estimator(model).predict_proba(x), model.predict(x), atol=1e-5)
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(to_onnx(model).SerializeToString())
    np.testing.assert_allclose(session.run(None, {"x": x})[0], model.predict(x), atol=1e-6)
    required = replace(model, fill_value=np.array([np.nan, 2.0, 60.0]))  # a missing value stays missing
    (predicted,) = runtime.InferenceSession(to_onnx(required).SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(np.isnan(predicted).any(axis=1), np.isnan(x[:, 0]))


def test_a_splined_input_is_explained_as_one_input(splined):
    results = splined.result["interpretability"]
    names = {row["input"] for row in results["importance"]}
    assert names == {
        name.split("=")[0].removesuffix(" missing") for name in splined.row.recipe["deployment"]["columns"]
    }
    for curve in results["partial_dependence"]:
        spline = SplineBasis(KNOTS[curve["input"]], is_log=curve["input"] == "creatinine")
        assert curve["grid"] == pytest.approx(
            [spline.reference_value(step) for step in np.linspace(-2, 2, 5)]
        )
        assert curve["grid"][2] == pytest.approx(spline.knots[1])
        assert np.ptp(curve["all"]) > 0
    coefficients = {row["column"]: row for row in results["coefficients"]}
    assert coefficients["systolic'"]["per_unit"] is None
    assert coefficients["systolic'"]["input"] == "systolic"
    assert coefficients["bmi"]["per_unit"] is not None
    html = render_report(splined.report())
    assert "systolic&#39;" in html
    assert "see the partial dependence" in html


def test_new_patients_are_predicted_with_splines(splined):
    hospital = Path(splined.store.folder).parent / "hospitals" / "kos"
    predictions = predict(splined, hospital / "site.toml", NOW, bytes(range(32)), force=True)
    assert len(predictions.patients) > 20
    assert all(0 <= patient.predicted[1] <= 1 for patient in predictions.patients)


def test_the_sites_test_rows_have_the_columns_of_the_splines(splined):
    x = random_rows(20, splined)
    scored = splined.model_definition.score(
        splined.vector(), Examples(splined.scale_rows(x), np.zeros(20, np.int64))
    ).predictions
    np.testing.assert_array_equal(scored, splined.predict(x))


def test_a_networked_site_stores_and_trains_splined_rows(splined, tmp_path):
    site = Path(splined.store.folder).parent / "hospitals" / "athens" / "site.toml"
    study = study_from_toml(splined.row.recipe["settings"]["study"])
    messages = {field.message_type for field in preview_fields(load_site(site), study, tmp_path)}
    assert {"scale", "train", "evaluate_test", "interpretability"} <= messages
    spline = SplineBasis((45.0, 62.0, 79.0), is_log=True)
    columns = (FeatureColumn("age", "age", True, True, spline), FeatureColumn("sex", "sex"))
    table = FeatureTable(columns, np.ones((3, 2)), np.zeros(3, np.int64), ("no", "yes"), ("a", "b", "c"))
    folder = SiteRunFolder(tmp_path / "run")
    folder.store_table(PendingTable(table, {}))
    assert folder.pending_table().table.columns == columns
