"""The heart study's model on its test set: exported files and predictions from records equal the run's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from tests.study_run.network.network_heart import FILES, write_hospitals

from abaton.deployment import export_model, load_model, make_model_card, predict
from abaton.federation import Run
from abaton.report import render_card_html, render_card_markdown
from abaton.site import load_site
from abaton.store import Store
from abaton.study import InterpretabilitySection
from abaton.study_run import StudyOptions, ingest_sites, prepare_sites, run_prepared_study

NOW = datetime(2026, 11, 16, tzinfo=UTC)
SEED = 1990

pytestmark = [pytest.mark.shared, pytest.mark.slow]


@pytest.fixture(scope="module")
def heart(tmp_path_factory, shared) -> Iterator[tuple[Run, np.ndarray, Path]]:
    """Return a run of the heart study, its unscaled test rows, and the folder of its records."""
    folder = tmp_path_factory.mktemp("heart")
    study = write_hospitals(shared, folder, {})
    settings = {
        "personalise": ("interpolate",),
        "interpretability": InterpretabilitySection(permutation_repeats=1, partial_dependence=("sex",)),
    }
    study = study.model_copy(update={"learning": study.learning.model_copy(update=settings)})
    readings = ingest_sites(
        study, [load_site(file) for file in sorted((folder / "sites").glob("*.toml"))], NOW
    )
    with Store(folder / "store") as store:
        run = run_prepared_study(
            study, readings, store, StudyOptions(SEED, bootstrap_resamples=50), now=NOW, name="heart"
        )
        yield run, _test_rows(run, prepare_sites(study, readings, SEED)), folder


def _test_rows(run: Run, prepared) -> np.ndarray:
    """Return the test rows of all hospitals without scaling, imputed where values are missing."""
    deployment = run.row.recipe["deployment"]
    rows = np.concatenate([site.test.x for site in prepared.sites]).astype(np.float64)
    for i, name in enumerate(deployment["columns"]):
        mean, std, measured = deployment["scale"].get(name, (0.0, 1.0, False))
        if measured:
            rows[:, i] = rows[:, i] * std + mean
    return rows


def test_every_export_predicts_what_the_run_predicts_on_the_test_set(heart, tmp_path):
    run, rows, _ = heart
    expected = run.predict(rows)
    assert len(rows) > 150
    runtime, skops = pytest.importorskip("onnxruntime"), pytest.importorskip("skops.io")
    for form in ("onnx", "skops", "safetensors"):
        export_model(run, tmp_path / f"model.{form}")
    (graph,) = runtime.InferenceSession(str(tmp_path / "model.onnx")).run(None, {"x": rows})
    estimator = skops.load(tmp_path / "model.skops", trusted=["numpy.dtype"])
    np.testing.assert_allclose(graph, expected, atol=1e-6)
    np.testing.assert_allclose(estimator.predict_proba(rows), expected, atol=1e-6)
    np.testing.assert_allclose(load_model(tmp_path / "model.safetensors").predict(rows), expected, atol=1e-6)
    gaps = np.where(np.random.default_rng(1).random(rows.shape) < 0.1, np.nan, rows)
    imputed_columns = [
        i
        for i, name in enumerate(run.row.recipe["deployment"]["columns"])
        if name in run.row.recipe["deployment"]["scale"]
    ]
    with_gaps = rows.copy()
    with_gaps[:, imputed_columns] = gaps[:, imputed_columns]
    np.testing.assert_allclose(estimator.predict_proba(with_gaps), run.predict(with_gaps), atol=1e-6)


def test_patients_of_a_hospital_are_predicted_from_records(heart):
    run, _, folder = heart
    predictions = predict(run, folder / "sites" / "cleveland.toml", NOW, bytes(range(32)))
    assert len(predictions.patients) > 290
    assert [patient for patient in predictions.issues if patient.is_blocking] == []
    rows = [line.split(",") for line in (folder / "files" / FILES["cleveland"]).read_text().splitlines()]
    ill = {row[0] for row in rows if float(row[-1]) > 0}
    probabilities = np.array([patient.calibrated[1] for patient in predictions.patients])
    truth = np.array([patient.id in ill for patient in predictions.patients])
    assert probabilities[truth].mean() > probabilities[~truth].mean() + 0.25


def test_the_card_has_intervals_and_sites_with_better_local_only_models(heart):
    run, _, _ = heart
    card = make_model_card(run)
    groups = {row["group"]: row["metrics"] for row in card["performance"]}
    assert groups["sex: male"]["auroc"]["low"] < groups["sex: male"]["auroc"]["high"]
    assert groups["switzerland"] is None
    lines = [line for line in run.result["personal_models"]["rows"] if line["model"] == "community"]
    worse = [
        line["site"]
        for line in lines
        if (line["gain_over_local_only"]["high"] or 0) < 0  # no interval with few subjects of a class
    ]
    limitation = f"The local-only model is better than the community model at: {', '.join(worse)}."
    assert (limitation in card["limitations"]) == bool(worse)
    assert "fewer than 5 subjects" in run.result["personal_models"]["excluded_sites"]["switzerland"]
    assert "switzerland" not in {line["site"] for line in lines}
    for text in (render_card_markdown(card), render_card_html(card)):
        for heading in ("Calibration", "Permutation importance", "Local benefit", "Limitations"):
            assert heading in text
