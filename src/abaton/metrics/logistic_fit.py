"""Logistic regression of outcomes on predicted log odds, for calibration metrics and recalibration.

All functions fit many rows of counts at once, one row per bootstrap resample. A fit that does not exist or did not
converge is NaN, never a number: with one class only, with one distinct score, or if the scores separate cases from
controls, completely or up to ties (Albert and Anderson, 1984).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MIN_PROBABILITY = 1e-12
"""Probabilities are moved into 1e-12 to 1 - 1e-12 before their log odds are taken, at most ±27.6.

All single-precision probabilities between 1e-12 and 1 survive; the largest below 1 is 1 - 6e-8.
"""

_MAX_STEPS, _MAX_HALVINGS = 100, 40
_TOLERANCE = 1e-16  # of the squared Newton decrement: the last step is below 1e-8 standard errors


@dataclass(frozen=True, slots=True, eq=False)
class LogisticFit:
    """Fitted logistic regressions, one for every row of counts; NaN where one is not estimable.

    Attributes:
        coefficients: The intercept, the slope of the log odds, and the coefficients of any other columns.
        covariance: Their covariances from the observed information.
    """

    coefficients: Floats
    covariance: Floats

    @property
    def intercept(self) -> Floats:
        """Intercept of each logistic fit."""
        return self.coefficients[:, 0]

    @property
    def slope(self) -> Floats:
        """Slope of the log odds in each logistic fit."""
        return self.coefficients[:, 1]

    @property
    def slope_error(self) -> Floats:
        """Standard error of the slope in each logistic fit."""
        return np.sqrt(self.covariance[:, 1, 1])


def log_odds(probabilities: NDArray[np.floating]) -> Floats:
    """Return the log odds of predicted probabilities for a logistic fit, within ±27.6 (see `MIN_PROBABILITY`).

    >>> log_odds(np.array([0.5, 0.0])).round(3).tolist()
    [0.0, -27.631]
    """
    clipped = np.clip(np.asarray(probabilities, np.float64), MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return np.asarray(np.log(clipped) - np.log1p(-clipped))


def sigmoid(predictor: Floats) -> Floats:
    """Return the probabilities of a logistic fit at log odds of any size, without overflow."""
    tail = np.exp(-np.abs(predictor))
    return np.asarray(np.where(predictor >= 0, 1.0, tail) / (1 + tail))


def fit_line(
    x: Floats, cases: Floats, controls: Floats, *, prior_precision: tuple[float, float] = (0.0, 0.0)
) -> LogisticFit:
    """Fit intercept and slope of a logistic regression by Newton's method with step halving.

    Args:
        x: Log odds of each score.
        cases: Counts of cases by score, one row per fit.
        controls: Counts of controls, in the same form.
        prior_precision: Precisions of a normal prior of intercept and slope at 0 and 1; 0 is maximum likelihood.

    >>> fit = fit_line(np.array([-1.0, 1.0]), np.array([[1.0, 3.0]]), np.array([[3.0, 1.0]]))
    >>> fit.slope.round(4).tolist()
    [1.0986]
    """
    columns = np.stack([np.ones_like(x), x])
    return fit_columns(columns, cases, controls, prior_precision=prior_precision)


def fit_columns(
    columns: Floats, cases: Floats, controls: Floats, *, prior_precision: Sequence[float] = ()
) -> LogisticFit:
    """Fit a logistic regression on several columns by Newton's method with step halving.

    Args:
        columns: Ones, the ascending log odds of each score, and functions of them, one row per column.
        cases: Counts of cases by score, one row per fit.
        controls: Counts of controls, in the same form.
        prior_precision: Precision of a normal prior of each coefficient, at 1 for the slope and at 0 for the others.
    """
    total, size = cases + controls, len(columns)
    precision = np.asarray(prior_precision, np.float64) if len(prior_precision) else np.zeros(size)
    fraction = (cases.sum(1) + 0.5) / (total.sum(1) + 1)
    coefficients = np.zeros((len(cases), size))
    coefficients[:, 0] = np.log(fraction / (1 - fraction))
    covariance = np.full((len(cases), size, size), np.nan)
    is_converged = np.zeros(len(cases), bool)
    is_active = np.ones(len(cases), bool) if precision.all() else has_overlap(cases, controls)
    likelihood = _likelihood(coefficients, columns, cases, controls, precision)
    for _ in range(_MAX_STEPS):
        rows = np.flatnonzero(is_active)
        if not len(rows):
            break
        step, decrement, covariance[rows] = _newton_step(
            coefficients[rows], columns, cases[rows], total[rows], precision
        )
        is_step = np.isfinite(step).all(1)
        is_done = is_step & (decrement < _TOLERANCE)
        coefficients[rows[is_done]] += step[is_done]
        is_converged[rows[is_done]] = True
        is_active[rows[is_done | ~is_step]] = False
        rows, step = rows[is_step & ~is_done], step[is_step & ~is_done]
        for _ in range(_MAX_HALVINGS):
            if not len(rows):
                break
            proposed = coefficients[rows] + step
            new = _likelihood(proposed, columns, cases[rows], controls[rows], precision)
            is_better = new >= likelihood[rows] - 1e-12 * np.abs(likelihood[rows])
            coefficients[rows[is_better]], likelihood[rows[is_better]] = proposed[is_better], new[is_better]
            rows, step = rows[~is_better], step[~is_better] / 2
        is_active[rows] = False  # no shorter step increases the likelihood
    coefficients[~is_converged], covariance[~is_converged] = np.nan, np.nan
    return LogisticFit(coefficients, covariance)


def fit_shift(x: Floats, cases: Floats, controls: Floats) -> tuple[Floats, Floats]:
    """Fit the intercept of a logistic regression whose slope is fixed at 1; return it with its standard error.

    Newton's method within a bracket: the intercept lies between those that give the fraction of cases at the highest
    and at the lowest log odds. NaN with one class only.
    """
    total, n_cases, n_controls = cases + controls, cases.sum(1), controls.sum(1)
    is_active = (n_cases > 0) & (n_controls > 0)
    is_converged = np.zeros(len(cases), bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        centre = np.log(n_cases) - np.log(n_controls)
    low, high = centre - x.max(initial=-np.inf), centre - x.min(initial=np.inf)
    shift, error = (low + high) / 2, np.full(len(cases), np.nan)
    for _ in range(_MAX_STEPS):
        rows = np.flatnonzero(is_active)
        if not len(rows):
            break
        predictor = x + shift[rows, None]
        probabilities, complement = sigmoid(predictor), sigmoid(-predictor)
        # Cases at their distance to 1 and controls to 0: differences of large, almost equal sums lose digits.
        gradient = (cases[rows] * complement - controls[rows] * probabilities).sum(1)
        curvature = (total[rows] * probabilities * complement).sum(1)
        low[rows] = np.where(gradient > 0, shift[rows], low[rows])
        high[rows] = np.where(gradient > 0, high[rows], shift[rows])
        newton = shift[rows] + gradient / np.maximum(curvature, np.finfo(np.float64).tiny)
        is_inside = (newton >= low[rows]) & (newton <= high[rows])
        following = np.where(is_inside, newton, (low[rows] + high[rows]) / 2)
        is_done = (np.abs(newton - shift[rows]) <= 1e-12 * (1 + np.abs(shift[rows]))) | (
            high[rows] - low[rows] <= 1e-13 * (1 + np.abs(shift[rows]))
        )
        shift[rows], error[rows] = following, 1 / np.sqrt(curvature)
        is_converged[rows] = is_done
        is_active[rows[is_done]] = False
    shift[~is_converged], error[~is_converged] = np.nan, np.nan
    return shift, error


def has_overlap(cases: Floats, controls: Floats) -> NDArray[np.bool_]:
    """Return for each row whether the maximum likelihood of a logistic fit exists: cases and controls overlap.

    Scores ascend. With one score only, or if all cases lie on one side of all controls up to ties, it does not.

    >>> has_overlap(np.array([[1.0, 1, 0], [0, 1, 1]]), np.array([[0.0, 1, 1], [1, 0, 1]])).tolist()
    [False, True]
    """
    columns = cases.shape[1]
    if not columns:
        return np.zeros(len(cases), bool)
    lowest, highest = [], []
    for counts in (cases > 0, controls > 0):
        lowest.append(np.where(counts.any(1), counts.argmax(1), columns))
        highest.append(np.where(counts.any(1), columns - 1 - counts[:, ::-1].argmax(1), -1))
    return np.asarray((highest[0] > lowest[1]) & (highest[1] > lowest[0]))


def _likelihood(
    coefficients: Floats, columns: Floats, cases: Floats, controls: Floats, precision: Floats
) -> Floats:
    """Return the log likelihood of a logistic fit for every row, with its prior."""
    predictor = _predictor(coefficients, columns)
    tail = np.log1p(np.exp(-np.abs(predictor)))
    negative = cases * (np.maximum(-predictor, 0) + tail) + controls * (np.maximum(predictor, 0) + tail)
    penalty = (precision * _deviation(coefficients) ** 2).sum(1)
    return np.asarray(-negative.sum(1) - penalty / 2)


def _predictor(coefficients: Floats, columns: Floats) -> Floats:
    """Return the fitted log odds of a logistic fit, in the same order of sums for one row and for many."""
    predictor = np.asarray(coefficients[:, :1] * columns[0])
    for i in range(1, len(columns)):
        predictor = predictor + coefficients[:, i, None] * columns[i]
    return predictor


def _deviation(coefficients: Floats) -> Floats:
    """Return the distance of a logistic fit from no change: a slope of 1, all else 0."""
    return np.asarray(coefficients - np.eye(coefficients.shape[1])[1])


def _newton_step(
    coefficients: Floats, columns: Floats, cases: Floats, total: Floats, precision: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return step, squared decrement and covariance of a logistic fit; NaN where the curvature vanishes.

    The columns are made orthogonal under the curvature (Gram and Schmidt): no difference of large, almost equal sums.
    The prior of a coefficient is an additional subject whose column is a unit vector.
    """
    predictor = _predictor(coefficients, columns)
    probabilities, complement = sigmoid(predictor), sigmoid(-predictor)
    residuals = cases * complement - (total - cases) * probabilities
    curvature, pull = total * probabilities * complement, precision * _deviation(coefficients)
    rows, size = coefficients.shape
    orthogonal: list[Floats] = []
    units: list[Floats] = []
    projections = np.zeros((rows, size, size))
    spread, gradient = np.zeros((rows, size)), np.zeros((rows, size))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for j, raw_column in enumerate(columns):
            column, unit = np.broadcast_to(raw_column, residuals.shape), np.tile(np.eye(size)[j], (rows, 1))
            for i, (other, other_unit) in enumerate(zip(orthogonal, units, strict=True)):
                shared = (curvature * (other * column)).sum(1) + (precision * other_unit * unit).sum(1)
                projections[:, i, j] = shared / spread[:, i]
                column = column - projections[:, i, j, None] * other
                unit = unit - projections[:, i, j, None] * other_unit
            spread[:, j] = (curvature * column**2).sum(1) + (precision * unit**2).sum(1)
            gradient[:, j] = (residuals * column).sum(1) - (pull * unit).sum(1)
            orthogonal.append(column)
            units.append(unit)
        # The step, and a root of the covariance, from the orthogonal columns back to the given ones.
        roots = np.eye(size) / np.sqrt(spread)[:, None]
        solved = np.concatenate([(gradient / spread)[:, :, None], roots], axis=2)
        for j in range(size - 1, 0, -1):
            solved[:, :j] -= projections[:, :j, j, None] * solved[:, j, None]
        covariance = np.einsum("rik,rjk->rij", solved[:, :, 1:], solved[:, :, 1:])
        decrement = (gradient**2 / spread).sum(1)
    return solved[:, :, 0], decrement, covariance
