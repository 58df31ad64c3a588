"""Examples that a model cannot read, and labels outside its classes, are refused when sites are given."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier

from abaton.controller import Strategy
from abaton.errors import SettingsError
from abaton.federation import Federation, LocalSite
from abaton.models import Examples, SklearnModel, logistic, mlp, shakespeare, sstc_cnn

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
MODELS = {
    "torch": lambda: logistic(features=3),
    "scikit-learn": lambda: SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=3, classes=2),
}


@pytest.mark.parametrize("label", [-1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_a_label_outside_the_classes_is_refused_with_its_owner(model, label):
    invalid_labels = Y.copy()
    invalid_labels[3] = label
    good, bad = Examples(X, Y), Examples(X, invalid_labels)
    with pytest.raises(SettingsError, match=r"not one of the model's classes.*'south'.*0 to 1"):
        Federation(MODELS[model](), {"north": good, "south": bad})
    with pytest.raises(SettingsError, match=r"classes.*'south'"):
        Federation(MODELS[model](), {"north": good, "south": LocalSite(good, bad)})
    with pytest.raises(SettingsError, match=r"classes.*test examples"):
        Federation(MODELS[model](), {"north": good}, test=bad)


@pytest.mark.parametrize("model", MODELS)
def test_unreadable_examples_are_refused_with_their_owner(model):
    narrow = Examples(X[:, :2], Y)
    with pytest.raises(SettingsError, match=r"cannot read examples of the shape \(2,\).*'south'"):
        Federation(MODELS[model](), {"north": Examples(X, Y), "south": narrow})


def test_images_and_texts_are_read_as_their_networks_do():
    images = Examples(np.zeros((2, 1, 28, 28), np.float32), np.array([0, 9]))
    Federation(sstc_cnn(classes=10), {"north": images})
    with pytest.raises(SettingsError, match="0 to 8"):
        Federation(sstc_cnn(classes=9), {"north": images})
    text = Examples(np.zeros((2, 5), np.int64), np.array([[1, 2, 3, 4, 89], [0, 0, 0, 0, 0]]))
    Federation(shakespeare(width=4), {"north": text})
    with pytest.raises(SettingsError, match="0 to 79"):
        Federation(shakespeare(symbols=80, width=4), {"north": text})


def test_values_have_no_classes():
    Federation(mlp(features=3, task="regression"), {"north": Examples(X, X[:, 0] * 100)})


def test_rows_of_another_shape_are_refused(tmp_path):
    run = Federation(logistic(features=3), {"north": Examples(X, Y)}, Strategy(rounds=1)).run(store=tmp_path)
    assert run.predict(X[:2]).shape == (2, 2)
    for rows in (X[:2, :2], X[0]):
        with pytest.raises(SettingsError, match=r"the model reads \(3,\)"):
            run.predict(rows)
