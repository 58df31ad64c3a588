"""scikit-learn estimators with `partial_fit` as models on a flat vector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import signature
from itertools import count
from typing import Any

import numpy as np

from abaton.errors import SettingsError
from abaton.layout import Layout, Tensor, TensorRole, Vector
from abaton.metrics.predictions import ModelScore
from abaton.models.base import Examples, Model, TrainingPlan, TrainingResult, require_examples
from abaton.models.sampling import epoch_batches, epoch_order
from abaton.training import TrainSettings


class SklearnModel(Model):
    """`SGDClassifier`, `SGDRegressor` or `MLPClassifier`, trained by `partial_fit`.

    The estimator, or a factory that returns one, has the settings (loss, penalty, layers). A fitted estimator is the
    initial model, and gives the numbers of features and classes; it is not changed. The run's learning rate, batch
    size and momentum are set where the estimator has them; its optimiser is new for each task.

    >>> from sklearn.linear_model import SGDClassifier
    >>> model = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=3, classes=2)
    >>> [(t.name, t.shape) for t in model.layout]
    [('coef', (1, 3)), ('intercept', (1,))]
    """

    def __init__(self, estimator: Any, *, features: int | None = None, classes: int | None = None) -> None:
        from sklearn.base import clone

        is_factory = isinstance(estimator, type) or not hasattr(estimator, "get_params")
        given = estimator() if is_factory else estimator
        class_name = type(given).__name__
        if class_name not in ("SGDClassifier", "SGDRegressor", "MLPClassifier"):
            raise SettingsError(
                f"the estimator {class_name} is not supported",
                where="model",
                remedy="use SGDClassifier, SGDRegressor or MLPClassifier",
            )
        if getattr(given, "average", False):
            raise SettingsError(
                f"{class_name} averages its weights over steps, which 'partial_fit' cannot continue",
                where="model",
                remedy="use average=False",
            )
        self.regression, self._start = class_name == "SGDRegressor", None
        if is_fitted := hasattr(given, "coef_") or hasattr(given, "coefs_"):
            features, classes = _fitted_sizes(given, features, classes)
        if features is None:
            raise SettingsError(
                f"{class_name} is not fitted and needs the number of features",
                where="model",
                remedy="pass features",
            )
        if not self.regression and (classes is None or classes < 2):
            raise SettingsError(
                f"{class_name} needs the number of classes", where="model", remedy="pass classes=2 or more"
            )
        self.features, self.classes = features, classes
        self._unfitted = clone(given)
        self.layout = Layout(
            Tensor(
                name,
                array.shape,
                TensorRole.BIAS if array.ndim == 1 and "intercept" in name else TensorRole.DENSE,
            )
            for name, array in _arrays(self._estimator(TrainSettings(), 0)).items()
        )
        if is_fitted:
            self._start = self.layout.check(_flatten(given), label="the fitted estimator")

    @property
    def description(self) -> str:
        """Representation of the model's estimator by scikit-learn."""
        return f"{' '.join(repr(self._unfitted).split())}, {self.features} features, {self.classes} classes"

    def native_model(self, vector: Vector) -> Any:
        """Return a new scikit-learn estimator with these weights, for prediction."""
        return self._load(vector, TrainSettings(), 0)

    def initial(self, seed: int) -> Vector:
        """Return the weights of a fitted scikit-learn estimator; else zeros, or a network's random weights."""
        if self._start is not None:
            return self._start.copy()
        return _flatten(self._estimator(TrainSettings(), seed % 2**32))

    def epochs(self, vector: Vector, data: Examples, plan: TrainingPlan) -> Iterator[TrainingResult]:
        """Train by one `partial_fit` per epoch over shuffled rows, or per batch if steps or time are limited."""
        require_examples(data)
        settings, rng, should_stop = plan.settings, plan.rng, plan.should_stop
        check_supported_settings(settings)
        estimator = self._load(vector, settings, int(rng.integers(2**32)))
        row_weights = data.relative_weights
        if row_weights is not None and "sample_weight" not in signature(estimator.partial_fit).parameters:
            raise SettingsError(
                f"{type(estimator).__name__} does not support weights of rows, which incomplete follow-up needs",
                where="model",
                remedy="use another estimator, such as SGDClassifier, or the built-in model logistic or mlp",
            )
        by_batch, steps = bool(settings.steps) or should_stop is not None, 0
        for _ in count():
            order = epoch_order(data.y, settings.shuffle_window, rng)
            # An estimator shuffles the rows of a call again: only equal calls give equal bits.
            for rows in epoch_batches(order, settings, steps, by_batch=by_batch):
                if hasattr(estimator, "batch_size"):  # scikit-learn warns about batches larger than the data
                    estimator.batch_size = min(settings.batch_size, len(rows))
                weights = {} if row_weights is None else {"sample_weight": row_weights[rows]}
                estimator.partial_fit(np.asarray(data.x, np.float64)[rows], data.y[rows], **weights)
                steps += -(-len(rows) // settings.batch_size)
                if is_over := should_stop is not None and should_stop():
                    break
            yield TrainingResult(_flatten(estimator), steps, self._score(estimator, data).loss)
            if is_over or steps == settings.steps:
                return

    def score(self, vector: Vector, data: Examples, local: Mapping[str, Vector] | None = None) -> ModelScore:
        """Score a scikit-learn estimator: the mean loss, and probabilities per class or predicted values."""
        require_examples(data)
        return self._score(self._load(vector, TrainSettings(), 0), data)

    def _score(self, estimator: Any, data: Examples) -> ModelScore:
        x = np.asarray(data.x, np.float64)
        if self.regression:
            values = estimator.predict(x)
            loss = np.average((values - data.y) ** 2, weights=data.weights)
            return ModelScore(float(loss), values.astype(np.float32))
        probabilities = (
            estimator.predict_proba(x)
            if hasattr(estimator, "predict_proba")
            else _softmax_of_margin(estimator, x)
        )
        true_class_probability = np.clip(
            probabilities[np.arange(len(data)), data.y.astype(np.int64)], 1e-12, 1.0
        )
        loss = -np.average(np.log(true_class_probability), weights=data.weights)
        return ModelScore(float(loss), probabilities.astype(np.float32))

    def _load(self, vector: Vector, settings: TrainSettings, seed: int) -> Any:
        estimator = self._estimator(settings, seed)
        views = self.layout.views(self.layout.check(vector, label="the model"))
        for name, array in _arrays(estimator).items():
            array[...] = views[name]
        return estimator

    def _estimator(self, settings: TrainSettings, seed: int) -> Any:
        """Return an estimator with allocated arrays, by `partial_fit` on a row of zeros for each class."""
        from sklearn.base import clone

        estimator = clone(self._unfitted)
        supported = estimator.get_params()
        parameters = {
            "random_state": seed,
            "learning_rate_init": settings.learning_rate,
            "eta0": settings.learning_rate,
            "momentum": settings.momentum,
            "batch_size": settings.batch_size,
        }
        estimator.set_params(**{name: value for name, value in parameters.items() if name in supported})
        fitted = _allocate(estimator, self.features, self.classes)
        return fitted


def check_supported_settings(settings: TrainSettings) -> None:
    """Raise an error for settings that scikit-learn estimators do not support."""
    defaults = TrainSettings()
    for name in (
        "optimiser",
        "proximal_mu",
        "max_grad_norm",
        "keep_optimiser_state",
        "learning_rate_schedule",
    ):
        if getattr(settings, name) != getattr(defaults, name):
            raise SettingsError(
                f"scikit-learn estimators do not support '{name}'",
                where=f"training.{name}",
                remedy="remove it, or use a PyTorch model such as logistic or mlp",
            )


def _fitted_sizes(estimator: Any, features: int | None, classes: int | None) -> tuple[int, int | None]:
    """Return the numbers of features and classes of a fitted scikit-learn estimator."""
    fitted_features = int(estimator.n_features_in_)
    labels = getattr(estimator, "classes_", None)
    fitted_classes = None if labels is None else len(labels)
    if labels is not None and not np.array_equal(labels, np.arange(len(labels))):
        raise SettingsError(
            "the classes of the fitted estimator are not 0, 1, …",
            where="model",
            remedy="fit it on labels that are numbered from 0",
        )
    if features not in (None, fitted_features) or classes not in (None, fitted_classes):
        raise SettingsError(
            f"the fitted estimator has {fitted_features} features and {fitted_classes or 'no'} classes",
            where="model",
            remedy="omit 'features' and 'classes', or fit it on the study's columns and classes",
        )
    return fitted_features, fitted_classes


def _flatten(estimator: Any) -> Vector:
    """Return the weights of a scikit-learn estimator as one vector."""
    return np.concatenate([a.reshape(-1) for a in _arrays(estimator).values()]).astype(np.float32)


def _allocate(estimator: Any, features: int, classes: int | None) -> Any:
    rows = classes or 1
    x, y = np.zeros((rows, features)), np.arange(rows)
    if hasattr(estimator, "hidden_layer_sizes"):
        # A negligible learning rate leaves the estimator's random weights unchanged.
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
            f"{name}{i}": a
            for i, pair in enumerate(pairs)
            for name, a in zip(("coef", "intercept"), pair, strict=True)
        }
    return {"coef": estimator.coef_, "intercept": estimator.intercept_}


def _softmax_of_margin(estimator: Any, x: Any) -> Any:
    """Return probabilities from a scikit-learn decision function, for losses without them (hinge)."""
    margin = estimator.decision_function(x)
    logits = np.stack([-margin, margin], 1) / 2 if margin.ndim == 1 else margin
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)
