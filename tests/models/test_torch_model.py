from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from abaton.controller import TrainSettings
from abaton.errors import LayoutError, SettingsError
from abaton.layout import TensorRole
from abaton.models import (
    Examples,
    TorchModel,
    TrainingPlan,
    cifar10_cnn,
    logistic,
    mlp,
    resnet50,
    shakespeare,
    sstc_cnn,
    train_model,
)


def table(n: int = 200, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    return Examples(x, (x @ np.arange(-2, 4) > 0).astype(np.int64))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def weights(model: TorchModel, role: TensorRole) -> int:
    return sum(t.size for t in model.layout if t.role == role)


def test_the_sstc_network_has_the_papers_sizes():
    model = sstc_cnn()
    assert model.layout.size == 1_690_046
    assert weights(model, TensorRole.CONV) == 52_000
    assert weights(model, TensorRole.BIAS) == 670


def test_the_metis_network_has_the_tutorials_size():
    assert cifar10_cnn().layout.size == 1_068_298
    assert cifar10_cnn(response_norm=False).layout.digest != sstc_cnn().layout.digest


@pytest.mark.parametrize(
    ("model", "x", "y"),
    [
        (logistic(features=6, classes=3), np.zeros((4, 6), np.float32), [0, 1, 2, 0]),
        (mlp(features=6, classes=2, hidden=(8, 4)), np.zeros((4, 6), np.float32), [0, 1, 1, 0]),
        (sstc_cnn(classes=5), np.zeros((4, 1, 28, 28), np.float32), [0, 1, 2, 4]),
        (cifar10_cnn(), np.zeros((4, 3, 24, 24), np.float32), [0, 1, 2, 9]),
        (cifar10_cnn(size=32, response_norm=False), np.zeros((4, 3, 32, 32), np.float32), [0, 1, 2, 9]),
        (shakespeare(symbols=20, width=16), np.zeros((4, 10), np.int64), np.zeros((4, 10), np.int64)),
    ],
    ids=["logistic", "mlp", "sstc", "cifar10", "cifar10 at 32", "shakespeare"],
)
def test_every_network_trains_and_scores(model, x, y):
    data = Examples(x, np.array(y))
    start = model.initial(1)
    trained = train_model(model, start, data, TrainSettings(epochs=1, batch_size=2), rng())
    assert trained.steps == 2 == model.steps(4, TrainSettings(epochs=1, batch_size=2))
    assert not np.array_equal(trained.vector, start)
    score = model.score(trained.vector, data)
    assert score.predictions.sum(1) == pytest.approx(np.ones_like(score.predictions.sum(1)), abs=1e-5)


@pytest.mark.slow
def test_the_running_statistics_of_resnet50_are_part_of_the_model():
    model = resnet50()
    assert 23_000_000 < model.layout.size < 24_500_000
    assert weights(model, TensorRole.NORM) == 2 * 26_560 == weights(model, TensorRole.STATISTIC)
    data = Examples(np.random.default_rng(0).normal(size=(4, 3, 32, 32)).astype(np.float32), np.arange(4))
    trained = train_model(
        model, model.initial(0), data, TrainSettings(batch_size=4, learning_rate=0.01), rng()
    )
    assert not trained.local
    statistics = model.layout.views(trained.vector)["body.1.running_mean"]
    assert statistics.any()
    assert np.array_equal(statistics, model.native_model(trained.vector).body[1].running_mean)


def test_parameters_are_views_of_the_flat_vector():
    model = mlp(features=6)
    flat = model._flat.numpy()
    for name, parameter in model._module.named_parameters():
        assert np.shares_memory(parameter.detach().numpy(), flat)
        flat[model.layout.slice(name)] = 0.25
        assert (parameter == 0.25).all()
    train_model(model, model.initial(0), table(), TrainSettings(momentum=0.5), rng())
    assert all(np.shares_memory(p.detach().numpy(), flat) for p in model._module.parameters()), (
        "also after training"
    )


def test_training_equals_plain_torch_step_by_step():
    data, settings = table(), TrainSettings(epochs=3, batch_size=16, learning_rate=0.05, momentum=0.75)
    model = mlp(features=6)
    start = model.initial(3)
    ours = train_model(model, start, data, settings, rng(5)).vector

    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    nn.utils.vector_to_parameters(torch.from_numpy(start), net.parameters())
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.75)
    shuffle = rng(5)
    shuffle.bit_generator.random_raw()
    for _ in range(3):
        for rows in np.array_split(shuffle.permutation(200), range(16, 200, 16)):
            optimiser.zero_grad()
            nn.functional.cross_entropy(
                net(torch.from_numpy(data.x[rows])), torch.from_numpy(data.y[rows])
            ).backward()
            optimiser.step()
    theirs = nn.utils.parameters_to_vector(net.parameters()).detach().numpy()
    assert ours == pytest.approx(theirs, abs=1e-5)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, (2, 3)), nn.Flatten(), nn.Linear(5 * 3 * 2, 2)
    )


@pytest.mark.parametrize("optimiser_name", ["momentum", "prox", "clip", "adam"])
def test_convolutions_equal_torch_for_any_memory_order(optimiser_name):
    overrides = {
        "momentum": {"momentum": 0.9, "keep_optimiser_state": True},
        "prox": {"proximal_mu": 0.5},
        "clip": {"max_grad_norm": 0.1},
        "adam": {"optimiser": "adam"},
    }[optimiser_name]
    settings = TrainSettings(epochs=2, batch_size=5, learning_rate=0.05, **overrides)
    generator = np.random.default_rng(2)
    data = Examples(generator.normal(size=(20, 3, 6, 6)).astype(np.float32), generator.integers(0, 2, 20))
    model = TorchModel(convolutions)
    start = model.initial(3)
    once = train_model(model, start, data, settings, rng(5))
    ours = train_model(model, once.vector, data, settings, rng(6), once.local).vector

    net = convolutions()
    nn.utils.vector_to_parameters(torch.from_numpy(start), net.parameters())
    optimiser = None
    for seed in (5, 6):
        anchor = [p.detach().clone() for p in net.parameters()]
        if optimiser is None or optimiser_name != "momentum":
            optimiser_class = torch.optim.Adam if optimiser_name == "adam" else torch.optim.SGD
            optimiser = optimiser_class(
                net.parameters(), lr=0.05, **({"momentum": 0.9} if optimiser_name == "momentum" else {})
            )
        shuffle = rng(seed)
        shuffle.bit_generator.random_raw()
        for _ in range(2):
            for rows in np.split(shuffle.permutation(20), 4):
                optimiser.zero_grad()
                loss = nn.functional.cross_entropy(
                    net(torch.from_numpy(data.x[rows])), torch.from_numpy(data.y[rows])
                )
                if optimiser_name == "prox":
                    loss = loss + 0.25 * sum(
                        ((p - a) ** 2).sum() for p, a in zip(net.parameters(), anchor, strict=True)
                    )
                loss.backward()
                if optimiser_name == "clip":
                    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
                optimiser.step()
    theirs = nn.utils.parameters_to_vector(net.parameters()).detach().numpy()
    assert ours == pytest.approx(theirs, abs=1e-4)


def test_a_parameter_that_the_loss_does_not_use_stays_and_sparse_gradients_count():
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.idle = nn.Embedding(4, 2, sparse=True), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.tokens(x.long()[:, 0])

    model = TorchModel(Partly)
    start = model.initial(0)
    data = Examples(np.zeros((4, 1), np.float32), np.array([0, 1, 1, 1]))
    after = model.layout.views(train_model(model, start, data, TrainSettings(), rng()).vector)
    before = model.layout.views(start)
    assert np.array_equal(after["idle.weight"], before["idle.weight"])
    assert (after["tokens.weight"] != before["tokens.weight"]).any(1).tolist() == [True, False, False, False]


def test_equal_seeds_give_equal_bits_and_the_start_is_unchanged():
    model = TorchModel(lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 2)))
    start = model.initial(1)
    start_copy = start.copy()
    first, second, other = (
        train_model(model, start, table(), TrainSettings(), rng(s)).vector for s in (1, 1, 2)
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)
    assert np.array_equal(start, start_copy)
    assert np.array_equal(model.initial(1), start_copy)
    assert not np.array_equal(model.initial(2), start_copy)


def test_training_learns_and_regression_works():
    model = logistic(features=6)
    start = model.initial(0)
    trained = train_model(model, start, table(), TrainSettings(epochs=20), rng())
    assert model.score(trained.vector, table()).loss < 0.5 * model.score(start, table()).loss
    value = mlp(features=6, task="regression")
    data = Examples(table().x, table().x.sum(1))
    trained = train_model(value, value.initial(0), data, TrainSettings(epochs=30, learning_rate=0.02), rng())
    assert value.score(trained.vector, data).loss < 0.3


def test_roles_are_known():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
    assert [str(t.role) for t in TorchModel(lambda: net).layout] == [
        "conv",
        "bias",
        "norm",
        "norm",
        "dense",
        "bias",
        "statistic",
        "statistic",
    ]
    assert [str(t.role) for t in shakespeare(symbols=5, width=4).layout][:2] == ["embedding", "dense"]


def test_invalid_models_and_examples_are_refused():
    model = logistic(features=6)
    with pytest.raises(LayoutError, match="another model"):
        train_model(model, np.zeros(3, np.float32), table(), TrainSettings(), rng())
    with pytest.raises(SettingsError, match="no examples"):
        train_model(
            model,
            model.initial(0),
            Examples(np.zeros((0, 6), np.float32), np.zeros(0)),
            TrainSettings(),
            rng(),
        )
    with pytest.raises(SettingsError, match="float32"):
        TorchModel(lambda: nn.Linear(2, 2).double())
    with pytest.raises(SettingsError, match="3 inputs but 2 labels"):
        Examples(np.zeros((3, 1)), np.zeros(2))


def frozen_network() -> nn.Module:
    network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    network[0].requires_grad_(requires_grad=False)
    return network


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"optimiser": "adam"}, {"proximal_mu": 0.3}])
def test_frozen_tensors_are_seeded_and_do_not_change(settings):
    model = TorchModel(frozen_network)
    assert [(t.name, str(t.role)) for t in model.layout] == [
        ("2.weight", "dense"),
        ("2.bias", "bias"),
        ("0.weight", "frozen"),
        ("0.bias", "frozen"),
    ]
    start = model.initial(3)
    assert not np.array_equal(start, model.initial(4))
    trained = train_model(model, start, table(), TrainSettings(epochs=2, **settings), rng()).vector
    assert np.array_equal(trained[12:], start[12:])
    assert (trained[:12] != start[:12]).all()
    other = TorchModel(frozen_network)  # draws other weights when it is built
    for vector in (start, trained):
        assert np.array_equal(
            model.score(vector, table()).predictions, other.score(vector, table()).predictions
        )
        copied = pickle.loads(pickle.dumps(model))  # as Ray does
        assert np.array_equal(
            model.score(vector, table()).predictions, copied.score(vector, table()).predictions
        )
        native = other.native_model(vector)
        assert np.array_equal(native[0].weight.detach().numpy(), model.layout.views(vector)["0.weight"])


def test_a_module_is_the_initial_model_and_is_not_changed():
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    before = {name: values.clone() for name, values in module.state_dict().items()}
    for model in (TorchModel(module), TorchModel(lambda: module)):
        start = model.initial(7)
        expected = np.concatenate([values.numpy().reshape(-1) for values in before.values()])
        assert np.array_equal(start, expected)
        trained = train_model(model, start, table(), TrainSettings(), rng()).vector
        first, second = model.native_model(trained), model.native_model(start)
        assert first is not second
        assert not torch.equal(first[0].weight, second[0].weight)
        assert np.array_equal(model.initial(7), expected)
        assert all(torch.equal(values, before[name]) for name, values in module.state_dict().items())


def test_a_batch_of_one_row_is_normalised_by_the_statistics():
    model = TorchModel(lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)))
    data = table(17)  # batches of 16 and of 1
    trained = train_model(model, model.initial(0), data, TrainSettings(batch_size=16), rng())
    assert trained.steps == 2
    shortened = train_model(model, model.initial(0), data, TrainSettings(batch_size=16, steps=1), rng())
    statistics = [model.layout.views(result.vector)["1.running_var"] for result in (trained, shortened)]
    assert np.array_equal(*statistics)


def test_a_cumulative_average_counts_the_batches_of_one_task():
    """A stop condition trains batch by batch; another learner may use the module between two epochs."""
    model = TorchModel(
        lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 2))
    )
    settings = TrainSettings(epochs=2, batch_size=50)
    start = model.initial(0)
    full_model = train_model(model, start, table(), settings, rng()).vector
    epochs = model.epochs(start, table(), TrainingPlan(settings, rng(), should_stop=lambda: False))
    next(epochs)
    train_model(model, model.initial(1), table(50), settings, rng(8))
    assert np.array_equal(next(epochs).vector, full_model)


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.symbols, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
            self.head.weight = self.symbols.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.symbols(x))

    model = TorchModel(Tied)
    assert [t.name for t in model.layout] == ["symbols.weight"]
    x = np.arange(9)
    data, start = Examples(x, (x + 1) % 9), model.initial(0)
    trained = train_model(model, start, data, TrainSettings(epochs=1, batch_size=9, learning_rate=0.5), rng())

    reference = Tied()
    reference.symbols.weight.data.copy_(torch.from_numpy(start.reshape(9, 4)))
    nn.functional.cross_entropy(reference(torch.from_numpy(x)), torch.from_numpy(data.y)).backward()
    expected = reference.symbols.weight - 0.5 * reference.symbols.weight.grad
    assert trained.vector.reshape(9, 4) == pytest.approx(expected.detach().numpy(), abs=1e-6)
    native = model.native_model(trained.vector)
    assert native.head.weight is native.symbols.weight
    assert np.array_equal(native.head.weight.detach().numpy().reshape(-1), trained.vector)


def test_buffers_that_a_vector_cannot_hold():
    class Buffers(nn.Linear):
        def __init__(self, count: int) -> None:
            super().__init__(6, 2)
            self.register_buffer("count", torch.tensor([count]))
            self.register_buffer("mask", torch.full((2,), -torch.inf))

    model = TorchModel(lambda: Buffers(5))
    assert [(t.name, str(t.role)) for t in model.layout][2:] == [("count", "frozen")]
    assert model.native_model(model.initial(0)).count.tolist() == [5]
    with pytest.raises(SettingsError, match="'count' has values that float32 does not have"):
        TorchModel(lambda: Buffers(2**24 + 1))


def test_a_negative_variance_counts_as_zero():
    model = TorchModel(lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    vector = model.initial(0)
    model.layout.views(vector)["1.running_var"][...] = -1e-3
    assert np.isfinite(model.score(vector, table()).predictions).all()
    assert (model.native_model(vector)[1].running_var == 0).all()
