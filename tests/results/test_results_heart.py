"""The heart study's model on its own test set: every file says what the run says; records are scored as they are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from tests.federation.network.heart import FILES, write_hospitals

from abaton.federation import Run, StudyOptions, federate, read_sites, run_readings
from abaton.report import card_markdown, card_page
from abaton.deployment import card_of, export, load_model, predict
from abaton.site import load_site
from abaton.store import Store
from abaton.study import Explanation

NOW = datetime(2026, 11, 16, tzinfo=UTC)
SEED = 1990

pytestmark = [pytest.mark.shared, pytest.mark.slow]


@pytest.fixture(scope="module")
def heart(tmp_path_factory, shared) -> Iterator[tuple[Run, np.ndarray, Path]]:
    """A run of the heart study, the rows of its test set before scaling, and the folder with its records."""
    folder = tmp_path_factory.mktemp("heart")
    study = write_hospitals(shared, folder, {})
    asked = {"personalise": ("interpolate",), "explanation": Explanation(importance=1, dependence=("sex",))}
    study = study.model_copy(update={"learning": study.learning.model_copy(update=asked)})
    readings = read_sites(study, [load_site(file) for file in sorted((folder / "sites").glob("*.toml"))], NOW)
    with Store(folder / "store") as store:
        run = run_readings(study, readings, store, StudyOptions(SEED, resamples=50), now=NOW, name="heart")
        yield run, _test_rows(run, federate(study, readings, SEED)), folder


def _test_rows(run: Run, members) -> np.ndarray:
    """The test rows of all hospitals, their scaling undone; what was filled stands where it was missing."""
    use = run.row.recipe["use"]
    rows = np.concatenate([member.test.x for member in members.each]).astype(np.float64)
    for i, name in enumerate(use["columns"]):
        mean, deviation, measured = use["scale"].get(name, (0.0, 1.0, False))
        if measured:
            rows[:, i] = rows[:, i] * deviation + mean
    return rows


def test_every_file_says_what_the_run_says_of_its_test_set(heart, tmp_path):
    run, rows, _ = heart
    expected = run.predict(rows)
    assert len(rows) > 150
    runtime, skops = pytest.importorskip("onnxruntime"), pytest.importorskip("skops.io")
    for form in ("onnx", "skops", "safetensors"):
        export(run, tmp_path / f"model.{form}")
    (graph,) = runtime.InferenceSession(str(tmp_path / "model.onnx")).run(None, {"x": rows})
    estimator = skops.load(tmp_path / "model.skops", trusted=["numpy.dtype"])
    np.testing.assert_allclose(graph, expected, atol=1e-6)
    np.testing.assert_allclose(estimator.predict_proba(rows), expected, atol=1e-6)
    np.testing.assert_allclose(load_model(tmp_path / "model.safetensors").predict(rows), expected, atol=1e-6)
    gaps = np.where(np.random.default_rng(1).random(rows.shape) < 0.1, np.nan, rows)
    filled = [
        i for i, name in enumerate(run.row.recipe["use"]["columns"]) if name in run.row.recipe["use"]["scale"]
    ]
    some = rows.copy()
    some[:, filled] = gaps[:, filled]
    np.testing.assert_allclose(estimator.predict_proba(some), run.predict(some), atol=1e-6)


def test_a_hospitals_people_are_scored_from_their_records(heart):
    run, _, folder = heart
    made = predict(run, folder / "sites" / "cleveland.toml", NOW, bytes(range(32)))
    assert len(made.people) > 290
    assert [each for each in made.misfits if each.refuses] == []
    rows = [line.split(",") for line in (folder / "files" / FILES["cleveland"]).read_text().splitlines()]
    ill = {row[0] for row in rows if float(row[-1]) > 0}
    said = np.array([each.calibrated[1] for each in made.people])
    truth = np.array([each.id in ill for each in made.people])
    assert said[truth].mean() > said[~truth].mean() + 0.25


def test_the_card_says_how_sure_it_is_and_where_a_site_is_better_off_alone(heart):
    run, _, _ = heart
    card = card_of(run)
    groups = {each["group"]: each["measures"] for each in card["performance"]}
    assert groups["sex: male"]["auroc"]["low"] < groups["sex: male"]["auroc"]["high"]
    assert groups["switzerland"] is None
    lines = [line for line in run.result["personal"]["lines"] if line["model"] == "community"]
    worse = [line["site"] for line in lines if line["gain"] and line["gain"]["high"] < 0]
    words = f"The site's own model is better than the community model at: {', '.join(worse)}."
    assert (words in card["limits"]) == bool(worse)
    assert "fewer than 5 subjects" in run.result["personal"]["left_out"]["switzerland"]
    assert "switzerland" not in {line["site"] for line in lines}
    for text in (card_markdown(card), card_page(card)):
        for heading in ("Calibration", "What it goes by", "What each site gains", "Limits"):
            assert heading in text
