"""Compiled training of dense networks equals training by PyTorch, for every optimiser and shape."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn

from abaton.controller import TrainSettings
from abaton.errors import LayoutError, SettingsError
from abaton.models import Examples, TorchModel, TrainingPlan, logistic, mlp, sstc_cnn, train_model

NETWORKS = {
    "logistic": lambda: nn.Linear(6, 3),
    "relu": lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)),
    "deep": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(6, 9, bias=False), nn.Tanh(), nn.Identity(),
        nn.Sequential(nn.Linear(9, 5), nn.Sigmoid()), nn.Linear(5, 4), nn.Linear(4, 3),
    ),
    "activation last": lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3), nn.Tanh()),
}  # fmt: skip
SETTINGS = {
    "sgd": TrainSettings(epochs=2, batch_size=8),
    "momentum": TrainSettings(epochs=2, batch_size=8, momentum=0.75),
    "prox": TrainSettings(epochs=2, batch_size=8, proximal_mu=0.5),
    "adam": TrainSettings(epochs=2, batch_size=8, optimiser="adam", learning_rate=0.01),
    "clip": TrainSettings(epochs=2, batch_size=8, max_grad_norm=0.2, momentum=0.5),
    "window": TrainSettings(epochs=2, batch_size=8, shuffle_window=4),
    "step": TrainSettings(
        epochs=3, batch_size=8, learning_rate_schedule="step", learning_rate_decay=0.5, schedule_period=1
    ),
    "kept state": TrainSettings(epochs=2, batch_size=8, momentum=0.9, keep_optimiser_state=True),
    "large batch": TrainSettings(epochs=2, batch_size=1000),
}


def data(count: int, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    return Examples(rng.normal(size=(count, 6)).astype(np.float32), rng.integers(0, 3, count))


def both(network: str) -> tuple[TorchModel, TorchModel]:
    compiled, by_torch = (TorchModel(NETWORKS[network], compiled=c) for c in (True, False))
    assert compiled.dense is not None
    assert by_torch.dense is None
    return compiled, by_torch


@pytest.mark.parametrize("count", [1, 7, 8, 45])
@pytest.mark.parametrize("network", NETWORKS)
def test_compiled_training_equals_gradients_by_torch(network, count):
    compiled, by_torch = both(network)
    start = compiled.initial(1)
    ours, theirs = (
        train_model(m, start, data(count), SETTINGS["momentum"], np.random.default_rng(3))
        for m in (compiled, by_torch)
    )
    assert ours.vector == pytest.approx(theirs.vector, abs=2e-6)
    assert ours.loss == pytest.approx(theirs.loss, abs=1e-5)
    assert ours.steps == theirs.steps == 2 * -(-count // 8)
    assert not np.array_equal(ours.vector, start)


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_optimiser_equals_torch(kind):
    compiled, by_torch = both("relu")
    start, local = compiled.initial(1), {}
    for seed in range(2):  # twice, so that kept state is used
        ours, theirs = (
            train_model(m, start, data(45), SETTINGS[kind], np.random.default_rng(seed), local)
            for m in (compiled, by_torch)
        )
        assert ours.vector == pytest.approx(theirs.vector, abs=5e-6)
        assert set(ours.local) == set(theirs.local)
        for name in ours.local:
            assert ours.local[name] == pytest.approx(theirs.local[name], abs=5e-6)
        start, local = ours.vector, ours.local
    assert bool(local) == (kind == "kept state")


def test_regression_equals_torch():
    rng = np.random.default_rng(0)
    examples = Examples(rng.normal(size=(33, 6)).astype(np.float32), rng.normal(size=33))

    def factory() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 1))

    compiled, by_torch = (TorchModel(factory, task="regression", compiled=c) for c in (True, False))
    start = compiled.initial(0)
    ours, theirs = (
        train_model(m, start, examples, SETTINGS["sgd"], np.random.default_rng(1))
        for m in (compiled, by_torch)
    )
    assert ours.vector == pytest.approx(theirs.vector, abs=2e-6)
    ours, theirs = (m.score(start, examples) for m in (compiled, by_torch))
    assert ours.predictions == pytest.approx(theirs.predictions, abs=1e-6)
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)


def test_scores_equal_torch():
    compiled, by_torch = both("deep")
    examples = data(2500)
    ours, theirs = (m.score(compiled.initial(2), examples) for m in (compiled, by_torch))
    assert ours.predictions == pytest.approx(theirs.predictions, abs=1e-6)
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)


def test_images_may_be_flattened():
    def factory() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 3))

    compiled, by_torch = (TorchModel(factory, compiled=c) for c in (True, False))
    examples = data(20)
    images = Examples(examples.x.reshape(20, 1, 2, 3), examples.y)
    ours, theirs = (
        train_model(m, compiled.initial(0), images, SETTINGS["sgd"], np.random.default_rng(0)).vector
        for m in (compiled, by_torch)
    )
    assert ours == pytest.approx(theirs, abs=2e-6)


@pytest.mark.parametrize(
    "factory",
    [
        lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(), nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.ReLU(), nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.ReLU(), nn.Linear(6, 3)),
        lambda: nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 3)),
        lambda: (lambda layer: nn.Sequential(layer, nn.ReLU(), layer))(nn.Linear(6, 6)),
        lambda: nn.Sequential(nn.Linear(6, 4).requires_grad_(requires_grad=False), nn.Linear(4, 3)),
        lambda: _hooked(nn.Sequential(nn.Linear(6, 3))),
        lambda: _Doubled(6, 3),
    ],
    ids=[
        "dropout",
        "norm",
        "two activations",
        "activation first",
        "gelu",
        "shared",
        "frozen",
        "hooked",
        "subclass",
    ],
)
def test_other_modules_are_trained_by_torch(factory):
    model = TorchModel(factory)
    assert model.dense is None
    assert model.parallel_mode(data(3)) == "processes"
    trained = train_model(model, model.initial(0), data(16), SETTINGS["sgd"], np.random.default_rng(0))
    assert np.isfinite(trained.vector).all()


def _hooked(module: nn.Module) -> nn.Module:
    module[0].register_forward_hook(lambda *_: None)
    return module


class _Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_parallel_mode_depends_on_the_examples():
    model = logistic(features=6, classes=3)
    assert model.parallel_mode(data(3)) == "threads"
    assert model.parallel_mode(Examples(np.zeros((3, 2, 6), np.float32), np.zeros(3))) == "processes"
    assert sstc_cnn().parallel_mode(data(3)) == "processes"


def test_label_out_of_range_is_refused_without_showing_it():
    model = mlp(features=6, classes=3)
    for label in (-1, 3, 1_000_000):
        examples = Examples(data(3).x, np.array([0, label, 1]))
        with pytest.raises(SettingsError, match="number the classes from 0 to 2") as caught:
            train_model(model, model.initial(0), examples, SETTINGS["sgd"], np.random.default_rng(0))
        assert str(label) not in str(caught.value)


def test_a_missing_value_in_the_data_is_not_hidden_by_a_rectifier():
    model = mlp(features=6, classes=3)
    examples = data(9)
    examples.x[4, 2] = np.nan
    trained = train_model(model, model.initial(0), examples, SETTINGS["sgd"], np.random.default_rng(0))
    with pytest.raises(LayoutError, match="not finite"):
        model.layout.check(trained.vector)


def test_data_that_cannot_be_written_and_other_number_types_are_read():
    model, examples = mlp(features=6, classes=3), data(20)
    frozen = examples.x.copy()
    frozen.flags.writeable = False
    expected = train_model(
        model, model.initial(0), examples, SETTINGS["sgd"], np.random.default_rng(0)
    ).vector
    for x in (frozen, examples.x.astype(np.float64), np.asfortranarray(examples.x)):
        again = train_model(
            model, model.initial(0), Examples(x, examples.y), SETTINGS["sgd"], np.random.default_rng(0)
        )
        assert np.array_equal(again.vector, expected)
        assert np.isfinite(model.score(expected, Examples(x, examples.y)).loss)


@pytest.mark.parametrize("compiled", [True, False])
def test_interleaved_epochs_equal_separate_training(compiled):
    model = TorchModel(NETWORKS["relu"], compiled=compiled)
    start, settings = model.initial(0), TrainSettings(epochs=3, batch_size=8, momentum=0.9)
    alone = [train_model(model, start, data(20, s), settings, np.random.default_rng(s)) for s in range(2)]
    runs = [
        model.epochs(start, data(20, s), TrainingPlan(settings, np.random.default_rng(s))) for s in range(2)
    ]
    turns = list(islice(zip(*runs, strict=True), 3))
    for s in range(2):
        assert np.array_equal(turns[-1][s].vector, alone[s].vector)
        assert [turn[s].steps for turn in turns] == [3, 6, 9]
        assert not np.array_equal(turns[0][s].vector, turns[1][s].vector), "each epoch has its own model"
