"""A run's model as a file: ONNX, weights and scikit-learn all predict what the run predicts."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.deployment import FORMS, Layer, UsableModel, export, load_model, usable
from abaton.deployment.model_export import OPSET, graph_of
from abaton.deployment.sklearn_export import estimator_of
from abaton.errors import SettingsError
from abaton.federation import Run


def people(count: int, run: Run | None = None, *, width: int = 3) -> np.ndarray:
    """Rows as they come: numbers of very different sizes, values missing where they may be."""
    random = np.random.default_rng(7)
    if run is None:
        rows = random.normal(size=(count, width)) * 10 ** np.arange(width)
        return np.where(random.random(rows.shape) < 0.2, np.nan, rows)
    use = run.row.recipe["use"]
    rows = np.empty((count, len(use["columns"])))
    for i, name in enumerate(use["columns"]):
        mean, deviation, measured = use["scale"].get(name, (0.0, 1.0, False))
        rows[:, i] = random.normal(mean, deviation, count) if measured else random.integers(2, size=count)
        if name in use["scale"]:
            rows[random.random(count) < 0.2, i] = np.nan
    return rows


def by_runtime(path: Path, x: np.ndarray) -> np.ndarray:
    runtime = pytest.importorskip("onnxruntime")
    (told,) = runtime.InferenceSession(str(path)).run(None, {"x": x})
    return told


def by_weights(path: Path, x: np.ndarray) -> np.ndarray:
    return load_model(path).predict(x)


def by_estimator(path: Path, x: np.ndarray) -> np.ndarray:
    return pytest.importorskip("skops.io").load(path, trusted=["numpy.dtype"]).predict_proba(x)


FILES = {"onnx": by_runtime, "safetensors": by_weights, "skops": by_estimator}


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("which", ["ended", "plain"])
def test_a_file_predicts_what_the_run_predicts(results, tmp_path, form, which):
    run = results[which == "plain"]
    if form != "safetensors":
        pytest.importorskip(form)
    out = tmp_path / f"model.{form}"
    export(run, out)
    x = people(200, run)
    assert np.isnan(x).any()
    expected = run.predict(x)
    assert np.ptp(expected[:, 1]) > 0.05  # a model that says the same of everybody would prove nothing
    np.testing.assert_allclose(FILES[form](out, x), expected, atol=1e-6)


def test_a_number_counts_as_the_middle_of_its_range(ended):
    model, x = usable(ended), people(50, ended)
    age = model.columns.index("age")
    assert model.width[age] > 0
    near = x.copy()
    near[:, age] = np.floor(x[:, age] / model.width[age]) * model.width[age]
    np.testing.assert_array_equal(model.predict(near), model.predict(x))
    near[:, age] += model.width[age]
    assert (model.predict(near) != model.predict(x)).any()


def hand_made(classes: tuple[str, ...], *hidden: int) -> UsableModel:
    random = np.random.default_rng(len(classes) + len(hidden))
    widths = [3, *hidden, len(classes) or 1]
    return UsableModel(
        columns=("age", "systolic", "sex"),
        width=np.zeros(3),
        origin=np.zeros(3),
        fill=np.array([50.0, 130.0, 0.4]),
        mean=np.array([50.0, 130.0, 0.0]),
        deviation=np.array([12.0, 20.0, 1.0]),
        layers=tuple(
            Layer(
                random.normal(size=(after, before)).astype(np.float32) / 3,
                random.normal(size=after).astype(np.float32),
            )
            for before, after in pairwise(widths)
        ),
        classes=classes,
        label=(0.0, 1.0) if classes else (3.0, 2.0),
        about={"run": "hand", "study": "made"},
    )


SHAPES = {
    "two classes": (("no", "yes"),),
    "two classes in another order": (("yes", "no"), 5),
    "three classes": (("low", "middle", "high"),),
    "three classes, two hidden layers": (("low", "middle", "high"), 5, 4),
    "values": ((),),
    "values, a hidden layer": ((), 5),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_every_shape_of_network_has_all_forms(shape, tmp_path):
    model, x = hand_made(*shape), people(60)
    expected = model.predict(x)
    made = estimator_of(model)
    if model.classes:
        told = made.predict_proba(x)
        places = [list(made.classes_).index(name) for name in model.classes]
        np.testing.assert_allclose(told[:, places], expected, atol=1e-6)
        assert list(made.predict(x)) == [model.classes[i] for i in expected.argmax(axis=1)]
    else:
        np.testing.assert_allclose(made.predict(x), expected, rtol=1e-5)
    FORMS[".safetensors"](model, tmp_path / "m.safetensors")
    np.testing.assert_array_equal(load_model(tmp_path / "m.safetensors").predict(x), expected)
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    graph = graph_of(model)
    assert [(each.domain, each.version) for each in graph.opset_import] == [("", OPSET)]
    assert onnx.checker.check_model(graph) is None
    (told,) = runtime.InferenceSession(graph.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(told if model.classes else told[:, 0], expected, rtol=1e-5, atol=1e-6)


def test_a_value_that_must_be_there_gives_no_number(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    model = hand_made(("no", "yes"))
    model.fill[2] = np.nan
    x = np.array([[40.0, 120.0, np.nan], [40.0, 120.0, 1.0]])
    assert np.isnan(model.predict(x)).any(axis=1).tolist() == [True, False]
    (told,) = runtime.InferenceSession(graph_of(model).SerializeToString()).run(None, {"x": x})
    assert np.isnan(told).any(axis=1).tolist() == [True, False]
    with pytest.raises(ValueError, match="NaN"):
        estimator_of(model).predict_proba(x)


def test_a_file_says_where_its_model_comes_from(ended, tmp_path):
    export(ended, tmp_path / "model.safetensors")
    about = load_model(tmp_path / "model.safetensors").about
    assert about["digest"] == ended.versions[-1].digest
    assert about["document"] == ended.row.recipe["study"]["hash"]


def test_wrong_files_and_forms_are_refused(ended, tmp_path):
    with pytest.raises(SettingsError, match="no form '.txt'"):
        export(ended, tmp_path / "model.txt")
    with pytest.raises(SettingsError, match="cannot be written"):
        export(ended, tmp_path / "missing" / "model.safetensors")
    (tmp_path / "other.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(SettingsError, match="no model that Abaton wrote"):
        load_model(tmp_path / "other.safetensors")
    with pytest.raises(SettingsError, match="2 columns, the model reads"):
        usable(ended).predict([[1.0, 2.0]])


def test_the_command_exports_and_says_what(ended, tmp_path):
    out = tmp_path / "model.safetensors"
    told = CliRunner().invoke(
        app, ["model", "export", "ended", "--store", str(ended.store.folder), "--out", str(out), "--json"]
    )
    assert told.exit_code == 0, told.output
    said = json.loads(told.stdout)
    assert said["out"] == str(out)
    assert said["columns"] == list(load_model(out).columns)
