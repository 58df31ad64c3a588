"""Exported models: ONNX, safetensors and scikit-learn predict what the run predicts."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.deployment import (
    EXPORT_FORMATS,
    PortableLayer,
    PortableModel,
    export_model,
    load_model,
    to_portable_model,
)
from abaton.deployment.model_export import OPSET, to_onnx
from abaton.deployment.portable_model import _layers
from abaton.deployment.sklearn_export import to_estimator
from abaton.errors import SettingsError
from abaton.federation import Run
from abaton.models import Examples, SklearnModel


def random_rows(count: int, run: Run | None = None, *, width: int = 3) -> np.ndarray:
    """Return rows with values of different scales, missing where that is allowed."""
    random = np.random.default_rng(7)
    if run is None:
        rows = random.normal(size=(count, width)) * 10 ** np.arange(width)
        return np.where(random.random(rows.shape) < 0.2, np.nan, rows)
    deployment = run.row.recipe["deployment"]
    rows = np.empty((count, len(deployment["columns"])))
    for i, name in enumerate(deployment["columns"]):
        mean, std, measured = deployment["scale"].get(name, (0.0, 1.0, False))
        rows[:, i] = random.normal(mean, std, count) if measured else random.integers(2, size=count)
        if name in deployment["scale"]:
            rows[random.random(count) < 0.2, i] = np.nan
    return rows


def by_runtime(path: Path, x: np.ndarray) -> np.ndarray:
    runtime = pytest.importorskip("onnxruntime")
    (predictions,) = runtime.InferenceSession(str(path)).run(None, {"x": x})
    return predictions


def by_weights(path: Path, x: np.ndarray) -> np.ndarray:
    return load_model(path).predict(x)


def by_estimator(path: Path, x: np.ndarray) -> np.ndarray:
    return pytest.importorskip("skops.io").load(path, trusted=["numpy.dtype"]).predict_proba(x)


FILES = {"onnx": by_runtime, "safetensors": by_weights, "skops": by_estimator}


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("which", ["finished", "without_bins"])
def test_a_file_predicts_what_the_run_predicts(results, tmp_path, form, which):
    run = results[which == "without_bins"]
    if form != "safetensors":
        pytest.importorskip(form)
    out = tmp_path / f"model.{form}"
    export_model(run, out)
    x = random_rows(200, run)
    assert np.isnan(x).any()
    expected = run.predict(x)
    assert np.ptp(expected[:, 1]) > 0.05  # a constant prediction would prove nothing
    np.testing.assert_allclose(FILES[form](out, x), expected, atol=1e-6)


def test_a_value_counts_as_the_midpoint_of_its_bin(finished):
    model, x = to_portable_model(finished), random_rows(50, finished)
    age = model.columns.index("age")
    assert model.bin_width[age] > 0
    other = x.copy()
    other[:, age] = np.floor(x[:, age] / model.bin_width[age]) * model.bin_width[age]
    np.testing.assert_array_equal(model.predict(other), model.predict(x))
    other[:, age] += model.bin_width[age]
    assert (model.predict(other) != model.predict(x)).any()


def make_model(classes: tuple[str, ...], *hidden: int) -> PortableModel:
    random = np.random.default_rng(len(classes) + len(hidden))
    widths = [3, *hidden, len(classes) or 1]
    return PortableModel(
        columns=("age", "systolic", "sex"),
        bin_width=np.zeros(3),
        bin_origin=np.zeros(3),
        fill_value=np.array([50.0, 130.0, 0.4]),
        mean=np.array([50.0, 130.0, 0.0]),
        std=np.array([12.0, 20.0, 1.0]),
        layers=tuple(
            PortableLayer(
                random.normal(size=(after, before)).astype(np.float32) / 3,
                random.normal(size=after).astype(np.float32),
            )
            for before, after in pairwise(widths)
        ),
        classes=classes,
        label=(0.0, 1.0) if classes else (3.0, 2.0),
        metadata={"run": "hand", "study": "example"},
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
def test_every_architecture_has_all_export_formats(shape, tmp_path):
    model, x = make_model(*shape), random_rows(60)
    expected = model.predict(x)
    estimator = to_estimator(model)
    if model.classes:
        predictions = estimator.predict_proba(x)
        indices = [list(estimator.classes_).index(name) for name in model.classes]
        np.testing.assert_allclose(predictions[:, indices], expected, atol=1e-6)
        assert list(estimator.predict(x)) == [model.classes[i] for i in expected.argmax(axis=1)]
    else:
        np.testing.assert_allclose(estimator.predict(x), expected, rtol=1e-5)
    EXPORT_FORMATS[".safetensors"](model, tmp_path / "m.safetensors")
    np.testing.assert_array_equal(load_model(tmp_path / "m.safetensors").predict(x), expected)
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    graph = to_onnx(model)
    assert [(opset.domain, opset.version) for opset in graph.opset_import] == [("", OPSET)]
    assert onnx.checker.check_model(graph) is None
    (predictions,) = runtime.InferenceSession(graph.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(
        predictions if model.classes else predictions[:, 0], expected, rtol=1e-5, atol=1e-6
    )


def test_a_missing_required_value_gives_nan(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    model = make_model(("no", "yes"))
    model.fill_value[2] = np.nan
    x = np.array([[40.0, 120.0, np.nan], [40.0, 120.0, 1.0]])
    assert np.isnan(model.predict(x)).any(axis=1).tolist() == [True, False]
    (predictions,) = runtime.InferenceSession(to_onnx(model).SerializeToString()).run(None, {"x": x})
    assert np.isnan(predictions).any(axis=1).tolist() == [True, False]
    with pytest.raises(ValueError, match="NaN"):
        to_estimator(model).predict_proba(x)


def test_a_file_contains_the_provenance_of_its_model(finished, tmp_path):
    export_model(finished, tmp_path / "model.safetensors")
    metadata = load_model(tmp_path / "model.safetensors").metadata
    assert metadata["digest"] == finished.versions[-1].digest
    assert metadata["document"] == finished.row.recipe["study"]["hash"]


def test_wrong_files_and_suffixes_are_refused(finished, tmp_path):
    with pytest.raises(SettingsError, match="'.txt' is not a suffix"):
        export_model(finished, tmp_path / "model.txt")
    with pytest.raises(SettingsError, match="cannot be written"):
        export_model(finished, tmp_path / "missing" / "model.safetensors")
    (tmp_path / "other.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(SettingsError, match="not a model exported by Abaton"):
        load_model(tmp_path / "other.safetensors")
    with pytest.raises(SettingsError, match="2 columns, the model reads"):
        to_portable_model(finished).predict([[1.0, 2.0]])


def test_the_command_exports_and_prints_a_summary(finished, tmp_path):
    out = tmp_path / "model.safetensors"
    result = CliRunner().invoke(
        app,
        ["model", "export", "finished", "--store", str(finished.store.folder), "--out", str(out), "--json"],
    )
    assert result.exit_code == 0, result.output
    output = json.loads(result.stdout)
    assert output["out"] == str(out)
    assert output["columns"] == list(load_model(out).columns)


def test_layers_with_another_forward_are_refused():
    from torch import nn

    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    for network in (Doubled(3, 2), nn.Sequential(Doubled(3, 2)), nn.Sequential(nn.Linear(3, 2), nn.ReLU())):
        with pytest.raises(SettingsError, match="can be exported|does not end with a dense layer"):
            list(_layers(network, 2))
    (layer,) = _layers(nn.Linear(3, 2, bias=False), 2)
    assert layer.bias.tolist() == [0, 0]


ESTIMATORS = {
    "log loss": (SGDClassifier(loss="log_loss"), 2, True),
    "hinge": (SGDClassifier(), 2, True),
    "hinge of three": (SGDClassifier(), 3, True),
    "log loss of three": (SGDClassifier(loss="log_loss"), 3, False),
    "modified huber": (SGDClassifier(loss="modified_huber"), 2, False),
    "network": (MLPClassifier((5,)), 3, True),
    "tanh network": (MLPClassifier((5,), activation="tanh"), 2, False),
}


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_an_estimator_is_exported_with_its_probabilities_or_refused(kind):
    estimator, classes, may_export = ESTIMATORS[kind]
    model, random = SklearnModel(estimator, features=3, classes=classes), np.random.default_rng(1)
    vector = random.normal(size=model.layout.size).astype(np.float32)
    native = model.native_model(vector)
    if not may_export:
        with pytest.raises(SettingsError, match="cannot be exported"):
            list(_layers(native, classes))
        return
    x = random.normal(size=(50, 3)).astype(np.float32)
    portable = PortableModel(
        columns=("a", "b", "c"),
        bin_width=np.zeros(3),
        bin_origin=np.zeros(3),
        fill_value=np.zeros(3),
        mean=np.zeros(3),
        std=np.ones(3),
        layers=tuple(_layers(native, classes)),
        classes=tuple("xyz"[:classes]),
        label=(0.0, 1.0),
        metadata={},
    )
    expected = model.score(vector, Examples(x, np.zeros(50, np.int64))).predictions
    np.testing.assert_allclose(portable.predict(x), expected, atol=1e-5)
