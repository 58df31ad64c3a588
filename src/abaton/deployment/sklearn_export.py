"""Export to scikit-learn: a pipeline that imputes, scales and predicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.atomic_files import atomic_write
from abaton.deployment.portable_model import PortableLayer, PortableModel
from abaton.errors import SettingsError
from abaton.features import SplineBasis

_MAX_STD = 20.0  # values further from the mean count as missing if below, and as the last bin if above


def write_sklearn(model: PortableModel, path: Path) -> None:
    """Write a scikit-learn pipeline in the skops format; read by `skops.io.load(path, trusted=["numpy.dtype"])`."""
    try:
        from skops.io import dumps
    except ModuleNotFoundError:
        raise SettingsError(
            "the package 'skops' is not installed",
            where="model export",
            remedy="pip install 'abaton[export]', or export to .safetensors",
        ) from None

    with atomic_write(path) as temporary_path:
        temporary_path.write_bytes(dumps(to_estimator(model)))


def to_estimator(model: PortableModel) -> Any:
    """Return a scikit-learn pipeline that predicts what the model predicts."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline

    if not model.bin_width.any() and not any(model.splines):
        return Pipeline(
            [("fill", _imputer(model.fill_value)), ("scale", _scaler(model)), ("model", _predictor(model))]
        )
    transformers: list[tuple[str, Any, list[int]]] = []
    rows = np.empty((2, len(model.columns)))
    for i, name in enumerate(model.columns):
        rows[:, i] = np.nan_to_num(model.fill_value[i])
        if model.bin_width[i]:
            transformers.append((name, _discretiser(model, i), [i]))
            rows[:, i] = _bin_range(model, i)
        elif (spline := _spline(model, i)) is not None:
            transformers.append((name, _spline_pipeline(spline, model.fill_value[i]), [i]))
        else:
            transformers.append((name, _imputer(model.fill_value[i : i + 1]), [i]))
    transformer = ColumnTransformer(transformers, sparse_threshold=0).fit(rows)
    return Pipeline([("columns", transformer), ("model", _predictor(_one_hot_model(model)))])


def _spline(model: PortableModel, i: int) -> SplineBasis | None:
    return model.splines[i] if model.splines else None


def _spline_transformer(spline: SplineBasis) -> Any:
    """Return a scikit-learn transformer to B-splines, of which the columns of a spline are linear combinations."""
    from sklearn.preprocessing import SplineTransformer

    if spline.is_log:
        raise SettingsError(
            "a spline on a log scale cannot be exported to scikit-learn",
            where="model export",
            remedy="export to .onnx or .safetensors",
        )
    low, high = spline.cut_range
    knots = np.array([low, *spline.knots, high])[:, None]
    return SplineTransformer(degree=3, knots=knots, extrapolation="constant")


def _spline_pipeline(spline: SplineBasis, fill_value: float) -> Any:
    """Return a scikit-learn pipeline that imputes and transforms a column to B-splines."""
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline

    transformer = _spline_transformer(spline)
    if np.isnan(fill_value):
        return transformer
    missing = SimpleImputer(strategy="constant", fill_value=fill_value)
    return Pipeline([("missing", missing), ("spline", transformer)])


def _spline_matrix(spline: SplineBasis) -> NDArray[np.float64]:
    """Return the matrix from scikit-learn's B-splines to the columns of a spline, exact on the cut range."""
    x = np.linspace(*spline.cut_range, 50 * len(spline.knots))
    b_splines = _spline_transformer(spline).fit_transform(x[:, None])
    matrix, *_ = np.linalg.lstsq(b_splines, spline.columns(x), rcond=None)
    return np.asarray(matrix, np.float64)


def _imputer(fill: NDArray[np.float64]) -> Any:
    """Return a scikit-learn imputer of training means, or "passthrough" for required columns, checked later."""
    from sklearn.impute import SimpleImputer

    if np.isnan(fill).all():
        return "passthrough"
    imputer = SimpleImputer(keep_empty_features=True).fit(np.nan_to_num(fill)[None])
    imputer.statistics_ = fill.copy()
    return imputer


def _bin_range(model: PortableModel, i: int) -> tuple[float, float]:
    """Return first and last edge of a column's bins for scikit-learn; the first bin is for missing values."""
    width, origin = float(model.bin_width[i]), float(model.bin_origin[i])
    half_range, centre = _MAX_STD * float(model.std[i]), float(model.mean[i])
    if (spline := _spline(model, i)) is not None:
        low, high = spline.cut_range
        half_range, centre = 2 * (high - low), (high + low) / 2
    first = np.floor((centre - half_range - origin) / width) - 1
    last = np.ceil((centre + half_range - origin) / width)
    return origin + first * width, origin + last * width


def _discretiser(model: PortableModel, i: int) -> Any:
    """Return a scikit-learn one-hot encoder of a column's bins."""
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import KBinsDiscretizer

    low, high = _bin_range(model, i)
    discretiser = KBinsDiscretizer(
        round((high - low) / model.bin_width[i]), encode="onehot-dense", strategy="uniform", subsample=None
    )
    if np.isnan(model.fill_value[i]):
        return discretiser
    missing = SimpleImputer(strategy="constant", fill_value=low)
    return Pipeline([("missing", missing), ("ranges", discretiser)])


def _one_hot_model(model: PortableModel) -> PortableModel:
    """Return the model for scikit-learn export with one weight per bin and the scaling in the weights."""
    first, *other_layers = model.layers
    weights, bias, names = [], first.bias.astype(np.float64), []
    offset = 0
    for i, name in enumerate(model.columns):
        spline, mean, std = _spline(model, i), model.mean[i], model.std[i]
        width = spline.width if spline else 1
        block = first.weight[:, offset : offset + width].astype(np.float64)
        weight, offset = block[:, 0], offset + width
        if model.bin_width[i]:
            low, high = _bin_range(model, i)
            midpoints = (
                np.arange(low, high - model.bin_width[i] / 2, model.bin_width[i]) + model.bin_width[i] / 2
            )
            midpoints[0] = model.fill_value[i]
            columns = spline.columns(midpoints) if spline else ((midpoints - mean) / std)[:, None]
            weights.append(block @ np.nan_to_num(columns).T)
        elif spline is not None:
            weights.append(block @ _spline_matrix(spline).T)
        else:
            weights.append(weight[:, None] / std)
            bias = bias - weight * mean / std
        names += [f"{name} {k}" for k in range(weights[-1].shape[1])]
    first_layer = PortableLayer(np.concatenate(weights, axis=1), bias)
    return replace(
        model,
        columns=tuple(names),
        bin_width=np.zeros(len(names)),
        layers=(first_layer, *other_layers),
        splines=(),
    )


def _scaler(model: PortableModel) -> Any:
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(np.zeros((1, len(model.columns))))
    scaler.mean_, scaler.scale_ = model.mean.copy(), model.std.copy()
    scaler.var_ = model.std**2
    return scaler


def _predictor(model: PortableModel) -> Any:
    weights, biases = _output_layers(model)
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
    model: PortableModel, weights: list[NDArray[Any]], biases: list[NDArray[Any]], hidden: tuple[int, ...]
) -> Any:
    names = np.array(model.classes)
    rows = np.zeros((len(names), len(model.columns)))
    if not hidden:
        from sklearn.linear_model import LogisticRegression

        linear = LogisticRegression().fit(rows, names)
        linear.classes_, linear.coef_, linear.intercept_ = names, weights[0], biases[0]
        return linear
    from sklearn.neural_network import MLPClassifier

    if list(names) != sorted(names):  # the estimator sorts its classes
        order = np.argsort(names)
        if len(names) == 2:
            weights[-1], biases[-1] = -weights[-1], -biases[-1]
        else:
            weights[-1], biases[-1] = weights[-1][order], biases[-1][order]
    return _network(MLPClassifier(hidden_layer_sizes=hidden, max_iter=1), names, weights, biases)


def _network(
    estimator: Any, labels: NDArray[Any], weights: list[NDArray[Any]], biases: list[NDArray[Any]]
) -> Any:
    """Return a scikit-learn network with these layers; one training step on zeros creates its arrays."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one step does not converge
        estimator.fit(np.zeros((len(labels), weights[0].shape[1])), labels)
    del estimator._optimizer  # skops does not store optimisers
    estimator.coefs_ = [weight.T.copy() for weight in weights]
    estimator.intercepts_ = [bias.copy() for bias in biases]
    return estimator


def _output_layers(model: PortableModel) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Return weights and biases for scikit-learn in double precision, with one output for two classes."""
    weights = [layer.weight.astype(np.float64) for layer in model.layers]
    biases = [layer.bias.astype(np.float64) for layer in model.layers]
    if len(model.classes) == 2:
        weights[-1], biases[-1] = weights[-1][1:] - weights[-1][:1], biases[-1][1:] - biases[-1][:1]
    if not model.classes:
        mean, std = model.label
        weights[-1], biases[-1] = weights[-1] * std, biases[-1] * std + mean
    if any(not np.isfinite(array).all() for array in (*weights, *biases)):
        raise SettingsError(
            "the model has weights that are not finite",
            where="model export",
            remedy="check the loss in the run's report; training diverged",
        )
    return weights, biases
