"""Estimators of scikit-learn that learn step by step, seen as a flat vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np

from abaton.errors import SettingsError
from abaton.kernels import Layout, Role, Tensor, Vector
from abaton.metrics.predictions import Score
from abaton.models.base import Examples, Lesson, Model, Trained, require_examples
from abaton.models.sampling import epoch_order, stretches
from abaton.training import TrainSettings


class SklearnModel(Model):
    """`SGDClassifier`, `SGDRegressor` or `MLPClassifier`, trained by `partial_fit`.

    The factory makes the estimator with its own settings (loss, penalty, layers). The run's learning rate, batch size
    and momentum are passed on to it where it has them; its optimiser starts anew with each task.

    >>> from sklearn.linear_model import SGDClassifier
    >>> model = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=3, classes=2)
    >>> [(t.name, t.shape) for t in model.layout]
    [('coef', (1, 3)), ('intercept', (1,))]
    """

    def __init__(self, factory: Callable[[], Any], *, features: int, classes: int | None = None) -> None:
        self.factory, self.features, self.classes = factory, features, classes
        kind = type(factory()).__name__
        if kind not in ("SGDClassifier", "SGDRegressor", "MLPClassifier"):
            raise SettingsError(
                f"the estimator {kind} is not supported",
                where="model",
                remedy="use SGDClassifier, SGDRegressor or MLPClassifier",
            )
        self.regression = kind == "SGDRegressor"
        if not self.regression and (classes is None or classes < 2):
            raise SettingsError(
                f"{kind} needs the number of classes", where="model", remedy="pass classes=2 or more"
            )
        self.layout = Layout(
            Tensor(name, array.shape, Role.BIAS if array.ndim == 1 and "intercept" in name else Role.DENSE)
            for name, array in _arrays(self._estimator(TrainSettings(), 0)).items()
        )

    @property
    def description(self) -> str:
        """The estimator in scikit-learn's own words."""
        return f"{' '.join(repr(self.factory()).split())}, {self.features} features, {self.classes} classes"

    def ready(self, vector: Vector) -> Any:
        """An estimator of its own with these weights, to be used."""
        return self._loaded(vector, TrainSettings(), 0)

    def initial(self, seed: int) -> Vector:
        """Zeros for the linear estimators, the estimator's own random weights for a network."""
        arrays = _arrays(self._estimator(TrainSettings(), seed % 2**32))
        return np.concatenate([a.reshape(-1) for a in arrays.values()]).astype(np.float32)

    def epochs(self, vector: Vector, data: Examples, lesson: Lesson) -> Iterator[Trained]:
        """Train by one `partial_fit` for each epoch, over shuffled rows; for each batch if batches are counted."""
        require_examples(data)
        settings, shuffle, enough = lesson.settings, lesson.shuffle, lesson.enough
        require_own_solver(settings)
        estimator = self._loaded(vector, settings, int(shuffle.integers(2**32)))
        counted, steps = bool(settings.steps) or enough is not None, 0
        for _ in count():
            order = epoch_order(data.y, settings.window, shuffle)
            # An estimator shuffles what it is given once more: only equal parts give equal bits.
            for rows in stretches(order, settings, steps, asked=counted):
                if hasattr(estimator, "batch_size"):  # it warns of batches that cannot be filled
                    estimator.batch_size = min(settings.batch_size, len(rows))
                estimator.partial_fit(np.asarray(data.x, np.float64)[rows], data.y[rows])
                steps += -(-len(rows) // settings.batch_size)
                if over := enough is not None and enough():
                    break
            trained = np.concatenate([a.reshape(-1) for a in _arrays(estimator).values()]).astype(np.float32)
            yield Trained(trained, steps, self._score(estimator, data).loss)
            if over or steps == settings.steps:
                return

    def score(self, vector: Vector, data: Examples, local: Mapping[str, Vector] | None = None) -> Score:
        """Probabilities per class (or predicted values) and the mean loss."""
        require_examples(data)
        return self._score(self._loaded(vector, TrainSettings(), 0), data)

    def _score(self, estimator: Any, data: Examples) -> Score:
        x = np.asarray(data.x, np.float64)
        if self.regression:
            values = estimator.predict(x)
            return Score(float(np.mean((values - data.y) ** 2)), values.astype(np.float32))
        chances = (
            estimator.predict_proba(x) if hasattr(estimator, "predict_proba") else _chances(estimator, x)
        )
        own = np.clip(chances[np.arange(len(data)), data.y.astype(np.int64)], 1e-12, 1.0)
        return Score(float(-np.log(own).mean()), chances.astype(np.float32))

    def _loaded(self, vector: Vector, settings: TrainSettings, seed: int) -> Any:
        estimator = self._estimator(settings, seed)
        views = self.layout.views(self.layout.check(vector, whose="the model"))
        for name, array in _arrays(estimator).items():
            array[...] = views[name]
        return estimator

    def _estimator(self, settings: TrainSettings, seed: int) -> Any:
        """An estimator with its arrays allocated: `partial_fit` once on a row of zeros for each class."""
        estimator = self.factory()
        known = estimator.get_params()
        wanted = {
            "random_state": seed,
            "learning_rate_init": settings.learning_rate,
            "eta0": settings.learning_rate,
            "momentum": settings.momentum,
            "batch_size": settings.batch_size,
        }
        estimator.set_params(**{name: value for name, value in wanted.items() if name in known})
        fitted = _allocate(estimator, self.features, self.classes)
        return fitted


def require_own_solver(settings: TrainSettings) -> None:
    """Refuse settings that an estimator, which has its own solver, cannot follow."""
    plain = TrainSettings()
    for name in ("solver", "proximal", "clip", "keep_momentum", "schedule"):
        if getattr(settings, name) != getattr(plain, name):
            raise SettingsError(
                f"estimators of scikit-learn have their own solver and cannot use '{name}'",
                where=f"training.{name}",
                remedy="leave it out, or use a PyTorch model such as logistic or mlp",
            )


def _allocate(estimator: Any, features: int, classes: int | None) -> Any:
    rows = classes or 1
    x, y = np.zeros((rows, features)), np.arange(rows)
    if hasattr(estimator, "hidden_layer_sizes"):
        # A learning rate of next to nothing keeps the estimator's own random weights as they are.
        rate, size = estimator.learning_rate_init, estimator.batch_size
        estimator.set_params(learning_rate_init=1e-300, batch_size=rows).partial_fit(x, y, classes=y)
        estimator.set_params(learning_rate_init=rate, batch_size=size)
        estimator._optimizer.learning_rate_init = estimator._optimizer.learning_rate = rate
        return estimator
    estimator.partial_fit(x, y, **({} if classes is None else {"classes": y}))
    estimator.coef_[...] = 0
    estimator.intercept_[...] = 0
    estimator.t_ = 1.0
    return estimator


def _arrays(estimator: Any) -> dict[str, Any]:
    if hasattr(estimator, "coefs_"):
        pairs = zip(estimator.coefs_, estimator.intercepts_, strict=True)
        return {
            f"{part}{i}": a
            for i, pair in enumerate(pairs)
            for part, a in zip(("coef", "intercept"), pair, strict=True)
        }
    return {"coef": estimator.coef_, "intercept": estimator.intercept_}


def _chances(estimator: Any, x: Any) -> Any:
    """Chances from the distance to the decision line, for losses that give none of their own (hinge)."""
    distance = estimator.decision_function(x)
    logits = np.stack([-distance, distance], 1) / 2 if distance.ndim == 1 else distance
    grown = np.exp(logits - logits.max(1, keepdims=True))
    return grown / grown.sum(1, keepdims=True)
