"""Ridge-penalised spline regression, logistic or linear, with its penalty chosen by cross-validation.

It is one of the baselines of the community model, fitted on one machine. An input with several values enters as a
restricted cubic spline with three knots at the 10, 50 and 90 % quantiles of the rows; all other columns, and the
columns of splines that the study declares, enter as they are. Columns are standardised and the intercept is free of
the penalty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.metrics.calibration_curve import spline_basis

Floats = NDArray[np.float64]
Fit = Callable[[Floats, Floats, float, Floats | None], Floats]

PENALTIES = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
"""Candidates of the penalty: the loss is the sum over subjects plus half the penalty times the squared weights."""

FOLDS = 5
MIN_PROBABILITY = 1e-7
"""Smallest probability in a log-loss, about the resolution of single precision."""

_KNOT_QUANTILES = (0.1, 0.5, 0.9)
_MIN_VALUES = 5  # distinct values of a column that enters as a spline
_NEWTON_STEPS, _HALVINGS, _TOLERANCE = 50, 30, 1e-10


@dataclass(frozen=True, slots=True, eq=False)
class SplineRegression:
    """Fitted penalised regression.

    Attributes:
        knots: Three knots of each column that is a spline, None of others.
        mean, std: Of the columns with their splines, in the rows of the fit.
        coefficients: Intercept and weights, a row for each class against the rest, or one row.
        is_classification: Whether predictions are probabilities of classes.
        penalty: The chosen penalty.
        loss: Cross-validated loss, summed over subjects: log-loss, or squared error.
    """

    knots: tuple[tuple[float, float, float] | None, ...]
    mean: Floats
    std: Floats
    coefficients: Floats
    is_classification: bool
    penalty: float
    loss: float

    def predict(self, x: NDArray[Any]) -> Floats:
        """Return the spline regression's probabilities of all classes, or its values, for rows of inputs."""
        z = (spline_columns(x, self.knots) - self.mean) / self.std
        return _predict(self.coefficients, z, is_classification=self.is_classification)


def fit_spline_regression(
    x: NDArray[Any],
    y: NDArray[Any],
    columns: Sequence[str],
    class_count: int,
    folds: NDArray[np.int64],
    weights: NDArray[np.floating] | None = None,
) -> SplineRegression:
    """Fit a penalised spline regression with the penalty of the least cross-validated loss.

    Args:
        x: Rows of inputs.
        y: Classes as integers, or values.
        columns: Names of the columns; of declared splines they are those of :func:`declared_splines`.
        class_count: Number of classes; 0 for values.
        folds: Fold of each row, from :func:`stratified_folds`.
        weights: Weight of each row in the loss; 1 if not given. They do not change knots and standardisation.
    """
    knots = choose_knots(x, columns)
    expanded = spline_columns(x, knots)
    mean, std = expanded.mean(0), expanded.std(0)
    std = np.where(std > 0, std, 1.0)
    z, is_classification = (expanded - mean) / std, class_count > 0
    targets = _targets(y, class_count)
    row_weights = None if weights is None else np.asarray(weights, np.float64)
    losses = dict.fromkeys(PENALTIES, 0.0)
    for fold in np.unique(folds) if len(np.unique(folds)) > 1 else ():
        is_held_out = folds == fold
        for penalty in PENALTIES:
            coefficients = _fit(
                z[~is_held_out],
                targets[:, ~is_held_out],
                None if row_weights is None else row_weights[~is_held_out],
                penalty,
                is_classification=is_classification,
            )
            predicted = _predict(coefficients, z[is_held_out], is_classification=is_classification)
            losses[penalty] += prediction_loss(
                predicted,
                y[is_held_out],
                class_count,
                None if row_weights is None else row_weights[is_held_out],
            )
    penalty = min(losses, key=losses.__getitem__)  # of equal losses the largest penalty
    coefficients = _fit(z, targets, row_weights, penalty, is_classification=is_classification)
    return SplineRegression(knots, mean, std, coefficients, is_classification, penalty, losses[penalty])


def stratified_folds(y: NDArray[Any], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the fold of each row for cross-validation, the classes spread evenly over the folds.

    >>> stratified_folds(np.array([0] * 7 + [1] * 3), np.random.default_rng(0)).tolist()
    [0, 1, 0, 2, 1, 4, 3, 4, 2, 3]
    """
    folds, count = np.empty(len(y), np.int64), max(1, min(FOLDS, len(y)))
    labels, start = y if y.ndim == 1 and np.issubdtype(y.dtype, np.integer) else np.zeros(len(y)), 0
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        folds[rows] = (start + np.arange(len(rows))) % count
        start += len(rows)
    return folds


def prediction_loss(
    predicted: NDArray[Any], y: NDArray[Any], class_count: int, weights: NDArray[np.floating] | None = None
) -> float:
    """Return the loss of a regression's predictions, summed over rows with their weights: log-loss, or squared error.

    >>> round(prediction_loss(np.array([[0.5, 0.5]]), np.array([1]), 2), 4)
    0.6931
    """
    if not class_count:
        losses = (predicted.reshape(-1).astype(np.float64) - y) ** 2
    else:
        losses = -np.log(np.clip(predicted[np.arange(len(y)), y].astype(np.float64), MIN_PROBABILITY, 1.0))
    return float((losses if weights is None else losses * weights).sum())


def declared_splines(columns: Sequence[str]) -> frozenset[str]:
    """Return the columns that belong to a spline of the study, which are not expanded again in a regression.

    >>> sorted(declared_splines(["age", "age'", "bmi"]))
    ['age', "age'"]
    """
    names = set(columns)
    return frozenset(name for name in columns if name.rstrip("'") + "'" in names)


def choose_knots(x: NDArray[Any], columns: Sequence[str]) -> tuple[tuple[float, float, float] | None, ...]:
    """Return the knots of each column of a spline regression; None for a column that enters as it is."""
    declared, all_knots = declared_splines(columns), []
    for name, values in zip(columns, np.asarray(x, np.float64).T, strict=True):
        low, middle, high = (float(knot) for knot in np.quantile(values, _KNOT_QUANTILES))
        is_spline = name not in declared and len(np.unique(values)) >= _MIN_VALUES and low < middle < high
        all_knots.append((low, middle, high) if is_spline else None)
    return tuple(all_knots)


def spline_columns(x: NDArray[Any], knots: Sequence[tuple[float, float, float] | None]) -> Floats:
    """Return the columns of a regression with a restricted cubic term (Harrell) after each column with knots.

    >>> spline_columns(np.array([[0.0], [2.0], [4.0]]), [(0.0, 1.0, 2.0)]).tolist()
    [[0.0, 0.0], [2.0, 1.5], [4.0, 4.5]]
    """
    columns = []
    for values, column_knots in zip(np.asarray(x, np.float64).T, knots, strict=True):
        columns.append(values)
        if column_knots is not None:
            columns.append(spline_basis(values, column_knots)[:, 2])
    return np.stack(columns, axis=1) if columns else np.empty((len(x), 0))


def fit_logistic(z: Floats, y: Floats, penalty: float, weights: Floats | None = None) -> Floats:
    """Return intercept and weights of a ridge-penalised logistic regression by Newton's method with step halving.

    With one class only, the weights are 0 and the intercept is that of half a subject of the other class.

    Raises:
        ArithmeticError: The iteration did not converge.
    """
    design, ridge = np.column_stack([np.ones(len(z)), z]), np.append(0.0, np.full(z.shape[1], penalty))
    w = np.ones(len(y)) if weights is None else weights
    fraction = ((w * y).sum() + 0.5) / (w.sum() + 1)
    coefficients = np.append(np.log(fraction / (1 - fraction)), np.zeros(z.shape[1]))
    if y.min() == y.max():
        return coefficients

    def loss(candidate: Floats) -> float:
        log_odds = design @ candidate
        return float((w * np.logaddexp(0, log_odds)).sum() - (w * y) @ log_odds + 0.5 * ridge @ candidate**2)

    current = loss(coefficients)
    for _ in range(_NEWTON_STEPS):
        probabilities = 0.5 * (1 + np.tanh(0.5 * (design @ coefficients)))
        gradient = design.T @ (w * (probabilities - y)) + ridge * coefficients
        curvature = (design.T * (w * probabilities * (1 - probabilities))) @ design + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        if gradient @ step < _TOLERANCE * max(1.0, abs(current)):
            return coefficients - step
        for _ in range(_HALVINGS):
            if (proposed := loss(coefficients - step)) <= current + 1e-12 * abs(current):
                break
            step = step / 2
        coefficients, current = coefficients - step, proposed
    raise ArithmeticError("the penalised logistic regression did not converge")


def fit_linear(z: Floats, y: Floats, penalty: float, weights: Floats | None = None) -> Floats:
    """Return intercept and weights of a ridge-penalised linear regression on centred columns."""
    w = np.ones(len(y)) if weights is None else weights
    centre, mean = np.average(z, axis=0, weights=w), float(np.average(y, weights=w))
    centred = z - centre
    scaled = centred.T if weights is None else centred.T * w
    slopes = np.linalg.solve(scaled @ centred + penalty * np.eye(z.shape[1]), scaled @ (y - mean))
    return np.append(mean - centre @ slopes, slopes)


def _targets(y: NDArray[Any], class_count: int) -> Floats:
    """Return the outcomes of a regression, a row for each fit: the second of two classes, each of more, or values."""
    if not class_count:
        return np.asarray(y, np.float64).reshape(1, -1)
    return np.stack([y == i for i in ([1] if class_count == 2 else range(class_count))]).astype(np.float64)


def _fit(
    z: Floats, targets: Floats, weights: Floats | None, penalty: float, *, is_classification: bool
) -> Floats:
    fit: Fit = fit_logistic if is_classification else fit_linear
    return np.stack([fit(z, target, penalty, weights) for target in targets])


def _predict(coefficients: Floats, z: Floats, *, is_classification: bool) -> Floats:
    """Return a regression's predictions of standardised columns; several classes are scaled to a sum of 1."""
    linear = coefficients[:, :1] + coefficients[:, 1:] @ z.T
    if not is_classification:
        return np.asarray(linear[0])
    probabilities = 0.5 * (1 + np.tanh(0.5 * linear)).T
    if probabilities.shape[1] == 1:
        return np.hstack([1 - probabilities, probabilities])
    return np.asarray(probabilities / probabilities.sum(1, keepdims=True))
