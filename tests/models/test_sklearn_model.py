from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.neural_network import MLPClassifier

from abaton.controller import Strategy, TrainSettings
from abaton.errors import SettingsError
from abaton.federation import Federation
from abaton.models import Examples, SklearnModel, train_model
from abaton.store import Store

SETTINGS = TrainSettings(epochs=10, batch_size=20, learning_rate=0.01)
MODELS = {
    "log loss": lambda: SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=6, classes=2),
    "hinge": lambda: SklearnModel(lambda: SGDClassifier(), features=6, classes=2),
    "three classes": lambda: SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=6, classes=3),
    "regression": lambda: SklearnModel(lambda: SGDRegressor(), features=6),
    "network": lambda: SklearnModel(lambda: MLPClassifier((8,)), features=6, classes=2),
    "network of three": lambda: SklearnModel(
        lambda: MLPClassifier((8, 4), solver="sgd"), features=6, classes=3
    ),
}


def data(classes: int) -> Examples:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 6)).astype(np.float32)
    score = x @ np.arange(-2, 4)
    y = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))
    return Examples(x, y)


@pytest.mark.parametrize("kind", MODELS)
def test_estimators_train_from_a_vector_and_back(kind):
    model = MODELS[kind]()
    examples = data(3 if "three" in kind else 2)
    if kind == "regression":
        examples = Examples(examples.x, examples.x.sum(1))
    start = model.initial(1)
    start_copy = start.copy()
    first = train_model(model, start, examples, SETTINGS, np.random.default_rng(1))
    again = train_model(model, start, examples, SETTINGS, np.random.default_rng(1))
    assert np.array_equal(first.vector, again.vector)
    assert np.array_equal(start, start_copy)
    assert first.vector.dtype == np.float32
    assert model.score(first.vector, examples).loss < model.score(start, examples).loss
    assert model.score(first.vector, examples).loss == pytest.approx(first.loss, rel=1e-3)


def test_training_continues_from_the_vector_it_is_given():
    model, examples = MODELS["log loss"](), data(2)
    once = train_model(model, model.initial(0), examples, SETTINGS, np.random.default_rng(0))
    twice = train_model(model, once.vector, examples, SETTINGS, np.random.default_rng(1))
    assert np.linalg.norm(twice.vector - once.vector) < np.linalg.norm(once.vector)


def test_the_initial_network_is_the_estimators_own():
    model = MODELS["network"]()
    assert not np.array_equal(model.initial(1), model.initial(2))
    assert np.abs(model.initial(1)).max() < 1.0
    assert not MODELS["hinge"]().initial(1).any()


def test_a_site_with_one_class_only_can_still_train():
    model, examples = MODELS["log loss"](), data(2)
    ones = examples.y == 1
    only = Examples(examples.x[ones], examples.y[ones])
    assert np.isfinite(
        train_model(model, model.initial(0), only, SETTINGS, np.random.default_rng(0)).vector
    ).all()


def test_other_estimators_are_refused():
    with pytest.raises(SettingsError, match="LogisticRegression"):
        SklearnModel(LogisticRegression, features=3, classes=2)
    with pytest.raises(SettingsError, match="classes"):
        SklearnModel(SGDClassifier, features=3)


FITTED = {
    "classifier": lambda: SGDClassifier(loss="log_loss", random_state=0),
    "regressor": lambda: SGDRegressor(random_state=0),
    "network": lambda: MLPClassifier((8,), tol=1e-3, max_iter=1000, random_state=0),
}


@pytest.mark.parametrize("kind", FITTED)
@pytest.mark.parametrize("as_factory", [True, False])
def test_a_fitted_estimator_is_the_initial_model(tmp_path, kind, as_factory):
    examples = data(2)
    if kind == "regressor":
        examples = Examples(examples.x, examples.x.sum(1))
    estimator = FITTED[kind]().fit(examples.x, examples.y)
    expected = estimator.predict(examples.x)
    weights = [np.array(w) for w in (getattr(estimator, "coefs_", None) or [estimator.coef_])]
    model = SklearnModel((lambda: estimator) if as_factory else estimator)
    sites = {"one": examples}
    settings = TrainSettings(epochs=1, batch_size=20, learning_rate=0.001)
    with Store(tmp_path) as store:
        run = Federation(model, sites, Strategy(rounds=2, training=settings)).run("run", store=store)
        assert np.array_equal(run.vector(0), model.initial(99))
        trained = run.model.predict(examples.x)
        start_model = model.native_model(run.vector(0))
    assert start_model.predict(examples.x) == pytest.approx(expected, abs=1e-4)
    assert np.mean(trained == expected) > 0.9 or np.allclose(trained, expected, atol=0.2)
    for before, now in zip(weights, getattr(estimator, "coefs_", None) or [estimator.coef_], strict=True):
        assert np.array_equal(before, now), "the estimator is not changed"
    assert np.array_equal(estimator.predict(examples.x), expected)


def test_fitted_estimators_that_do_not_fit_are_refused():
    examples = data(2)
    with pytest.raises(SettingsError, match="6 features and 2 classes"):
        SklearnModel(SGDClassifier().fit(examples.x, examples.y), features=5, classes=2)
    with pytest.raises(SettingsError, match="not 0, 1"):
        SklearnModel(SGDClassifier().fit(examples.x, examples.y + 1))
    with pytest.raises(SettingsError, match="needs the number of features"):
        SklearnModel(SGDClassifier(), classes=2)
    with pytest.raises(SettingsError, match="average=False"):
        SklearnModel(SGDClassifier(average=True), features=6, classes=2)
