"""A model as an estimator of scikit-learn: a pipeline that fills, scales and predicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.atomic_files import replacing
from abaton.deployment.portable_model import Layer, UsableModel

_REACH = 20.0  # deviations: what lies further away counts as missing if it is below, and as the last range if above


def write_estimator(model: UsableModel, path: Path) -> None:
    """Write a pipeline with skops, which holds no code: `skops.io.load(path, trusted=["numpy.dtype"])` reads it."""
    try:
        from skops.io import dumps
    except ModuleNotFoundError:
        raise SettingsError(
            "the package 'skops' is not installed",
            where="model export",
            remedy="pip install 'abaton[export]', or export to .safetensors",
        ) from None

    with replacing(path) as begun:
        begun.write_bytes(dumps(estimator_of(model)))


def estimator_of(model: UsableModel) -> Any:
    """A pipeline of scikit-learn that predicts what the model predicts."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline

    if not model.width.any():
        return Pipeline(
            [("fill", _filling(model.fill)), ("scale", _scaling(model)), ("model", _predictor(model))]
        )
    steps, rows = [], np.empty((2, len(model.columns)))
    for i, name in enumerate(model.columns):
        steps.append((name, _ranges(model, i) if model.width[i] else _filling(model.fill[i : i + 1]), [i]))
        rows[:, i] = _ends(model, i) if model.width[i] else np.nan_to_num(model.fill[i])
    shown = ColumnTransformer(steps, sparse_threshold=0).fit(rows)
    return Pipeline([("columns", shown), ("model", _predictor(_unfolded(model)))])


def _filling(fill: NDArray[np.float64]) -> Any:
    """What puts the mean in the place of a missing value; a column that must be there is checked by a later step."""
    from sklearn.impute import SimpleImputer

    if np.isnan(fill).all():
        return "passthrough"
    filling = SimpleImputer(keep_empty_features=True).fit(np.nan_to_num(fill)[None])
    filling.statistics_ = fill.copy()
    return filling


def _ends(model: UsableModel, i: int) -> tuple[float, float]:
    """Where a column's ranges begin and end; the first stands for a missing value."""
    width, origin = float(model.width[i]), float(model.origin[i])
    reach = _REACH * float(model.deviation[i])
    first = np.floor((model.mean[i] - reach - origin) / width) - 1
    last = np.ceil((model.mean[i] + reach - origin) / width)
    return origin + first * width, origin + last * width


def _ranges(model: UsableModel, i: int) -> Any:
    """What says in which of a column's ranges a value lies, by one column for each range."""
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import KBinsDiscretizer

    low, high = _ends(model, i)
    ranges = KBinsDiscretizer(
        round((high - low) / model.width[i]), encode="onehot-dense", strategy="uniform", subsample=None
    )
    if np.isnan(model.fill[i]):
        return ranges
    missing = SimpleImputer(strategy="constant", fill_value=low)
    return Pipeline([("missing", missing), ("ranges", ranges)])


def _unfolded(model: UsableModel) -> UsableModel:
    """The same model with a weight for every range of a column, and with the scale inside its weights."""
    first, *others = model.layers
    weights, bias, names = [], first.bias.astype(np.float64), []
    for i, name in enumerate(model.columns):
        weight, mean, deviation = first.weight[:, i].astype(np.float64), model.mean[i], model.deviation[i]
        if model.width[i]:
            low, high = _ends(model, i)
            middles = np.arange(low, high - model.width[i] / 2, model.width[i]) + model.width[i] / 2
            middles[0] = model.fill[i]
            weights.append(np.outer(weight, np.nan_to_num((middles - mean) / deviation)))
        else:
            weights.append(weight[:, None] / deviation)
            bias = bias - weight * mean / deviation
        names += [f"{name} {k}" for k in range(weights[-1].shape[1])]
    made = Layer(np.concatenate(weights, axis=1), bias)
    return replace(model, columns=tuple(names), width=np.zeros(len(names)), layers=(made, *others))


def _scaling(model: UsableModel) -> Any:
    from sklearn.preprocessing import StandardScaler

    scaling = StandardScaler().fit(np.zeros((1, len(model.columns))))
    scaling.mean_, scaling.scale_ = model.mean.copy(), model.deviation.copy()
    scaling.var_ = model.deviation**2
    return scaling


def _predictor(model: UsableModel) -> Any:
    weights, biases = _outputs(model)
    hidden = tuple(len(bias) for bias in biases[:-1])
    if model.classes:
        return _classifier(model, weights, biases, hidden)
    if not hidden:
        from sklearn.linear_model import LinearRegression

        linear = LinearRegression().fit(np.zeros((2, len(model.columns))), np.zeros(2))
        linear.coef_, linear.intercept_ = weights[0][0], float(biases[0][0])
        return linear
    from sklearn.neural_network import MLPRegressor

    return _network(MLPRegressor(hidden_layer_sizes=hidden, max_iter=1), np.zeros(2), weights, biases)


def _classifier(
    model: UsableModel, weights: list[NDArray[Any]], biases: list[NDArray[Any]], hidden: tuple[int, ...]
) -> Any:
    names = np.array(model.classes)
    rows = np.zeros((len(names), len(model.columns)))
    if not hidden:
        from sklearn.linear_model import LogisticRegression

        linear = LogisticRegression().fit(rows, names)
        linear.classes_, linear.coef_, linear.intercept_ = names, weights[0], biases[0]
        return linear
    from sklearn.neural_network import MLPClassifier

    if list(names) != sorted(names):  # the estimator numbers its classes in the order of the alphabet
        order = np.argsort(names)
        if len(names) == 2:
            weights[-1], biases[-1] = -weights[-1], -biases[-1]
        else:
            weights[-1], biases[-1] = weights[-1][order], biases[-1][order]
    return _network(MLPClassifier(hidden_layer_sizes=hidden, max_iter=1), names, weights, biases)


def _network(
    estimator: Any, labels: NDArray[Any], weights: list[NDArray[Any]], biases: list[NDArray[Any]]
) -> Any:
    """A network of scikit-learn with these layers; one step of training on zeros makes its arrays."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one step does not converge, and need not
        estimator.fit(np.zeros((len(labels), weights[0].shape[1])), labels)
    del estimator._optimizer  # it is done with training, and no file of skops may hold it
    estimator.coefs_ = [weight.T.copy() for weight in weights]
    estimator.intercepts_ = [bias.copy() for bias in biases]
    return estimator


def _outputs(model: UsableModel) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Layers in double precision, with as many outputs as scikit-learn has: one for two classes or for a value."""
    weights = [layer.weight.astype(np.float64) for layer in model.layers]
    biases = [layer.bias.astype(np.float64) for layer in model.layers]
    if len(model.classes) == 2:
        weights[-1], biases[-1] = weights[-1][1:] - weights[-1][:1], biases[-1][1:] - biases[-1][:1]
    if not model.classes:
        mean, deviation = model.label
        weights[-1], biases[-1] = weights[-1] * deviation, biases[-1] * deviation + mean
    if any(not np.isfinite(each).all() for each in (*weights, *biases)):
        raise SettingsError(
            "the model has weights that are no numbers",
            where="model export",
            remedy="look at the run's report",
        )
    return weights, biases
