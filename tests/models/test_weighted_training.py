"""Weights of rows in training: the same for compiled kernels, PyTorch and repeated rows; weights of 1 change no bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier
from torch import nn

from abaton.errors import SettingsError
from abaton.models import Examples, SklearnModel, TorchModel, logistic, time_to_event, train_model
from abaton.training import TrainSettings

SETTINGS = TrainSettings(epochs=3, batch_size=8, learning_rate=0.1, momentum=0.5)


class Unweighted(SGDClassifier):
    """Estimator whose `partial_fit` takes no weights."""

    def partial_fit(self, X, y, classes=None):
        return super().partial_fit(X, y, classes=classes)


Unweighted.__name__ = "SGDClassifier"  # the name of a supported estimator


def data(count: int = 40, task: str = "classification", weights=None) -> Examples:
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, count) if task == "classification" else rng.normal(size=count).astype(np.float32)
    return Examples(rng.normal(size=(count, 4)).astype(np.float32), y, weights)


def trained(model, examples, settings=SETTINGS):
    return train_model(model, model.initial(1), examples, settings, np.random.default_rng(2))


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("compiled", [True, False])
def test_weights_of_one_change_no_bit(task, compiled):
    model = TorchModel(
        lambda: nn.Linear(4, 2 if task == "classification" else 1), task=task, compiled=compiled
    )
    unweighted, weighted = (trained(model, data(task=task, weights=w)) for w in (None, np.ones(40)))
    if compiled:
        assert weighted.vector.tobytes() == unweighted.vector.tobytes()
        assert weighted.loss == unweighted.loss
    else:
        assert weighted.vector == pytest.approx(unweighted.vector, abs=1e-6)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_compiled_kernels_weight_as_pytorch_does(task):
    weights = np.random.default_rng(3).uniform(1, 5, 40)
    outputs = 2 if task == "classification" else 1
    models = [
        TorchModel(
            lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, outputs)), task=task, compiled=c
        )
        for c in (True, False)
    ]
    ours, theirs = (trained(model, data(task=task, weights=weights)) for model in models)
    assert ours.vector == pytest.approx(theirs.vector, abs=2e-6)
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
    scores = [model.score(ours.vector, data(task=task, weights=weights)).loss for model in models]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)


def test_a_weight_is_that_many_equal_rows():
    weights = np.random.default_rng(4).integers(1, 4, 40)
    repeated = np.repeat(np.arange(40), weights)
    settings = replace(SETTINGS, epochs=20, batch_size=1000)
    model = logistic(features=4)
    weighted = trained(model, data(weights=weights.astype(float)), settings)
    unweighted = trained(model, data().select(repeated), settings)
    assert weighted.vector == pytest.approx(unweighted.vector, abs=1e-5)
    assert weighted.loss == pytest.approx(unweighted.loss, rel=1e-5)


def test_the_scale_of_weights_does_not_matter():
    weights = np.random.default_rng(5).uniform(1, 5, 40)
    model = logistic(features=4)
    one, other = (trained(model, data(weights=weights * factor)).vector for factor in (1, 4))
    assert one == pytest.approx(other, abs=1e-7)


def test_scikit_learn_estimators_use_weights_or_refuse_them():
    model = SklearnModel(SGDClassifier(loss="log_loss"), features=4, classes=2)
    weights = np.where(data().y == 1, 5.0, 1.0)
    settings = TrainSettings(epochs=5, learning_rate=0.01)
    unweighted, weighted = (trained(model, data(weights=w), settings).vector for w in (None, weights))
    rates = [model.score(vector, data()).predictions[:, 1].mean() for vector in (unweighted, weighted)]
    assert rates[1] > rates[0] + 0.05
    without = SklearnModel(Unweighted(loss="log_loss"), features=4, classes=2)
    with pytest.raises(SettingsError, match="does not support weights of rows"):
        trained(without, data(weights=weights), settings)


@pytest.mark.parametrize("weights", [np.ones(3), np.zeros(40), np.full(40, np.nan), np.ones((40, 1))])
def test_invalid_weights_are_refused(weights):
    with pytest.raises(SettingsError, match="weights"):
        data(weights=weights)


def test_survival_models_refuse_weights():
    y = np.stack([np.linspace(0.1, 1, 40), np.arange(40) % 2], 1).astype(np.float32)
    model = time_to_event(features=4)
    with pytest.raises(SettingsError, match="survival"):
        trained(model, Examples(data().x, y, np.ones(40)))
