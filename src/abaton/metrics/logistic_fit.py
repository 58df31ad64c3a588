"""Logistic regression of outcomes on predicted log odds, for calibration metrics and recalibration.

All functions fit many rows of counts at once, one row per bootstrap resample. A fit that does not exist or did not
converge is NaN, never a number: with one class only, with one distinct score, or if the scores separate cases from
controls, completely or up to ties (Albert and Anderson, 1984).
"""

from __future__ import annotations

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
    """Fitted lines of log odds; NaN where a line is not estimable.

    Attributes:
        intercept, slope: The coefficients, one for every row of counts.
        intercept_error, slope_error: Their standard errors from the observed information.
    """

    intercept: Floats
    slope: Floats
    intercept_error: Floats
    slope_error: Floats


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
    total = cases + controls
    q0, q1 = prior_precision
    fraction = (cases.sum(1) + 0.5) / (total.sum(1) + 1)
    line = np.stack([np.log(fraction / (1 - fraction)), np.zeros(len(cases))], axis=1)
    is_converged = np.zeros(len(cases), bool)
    is_active = np.ones(len(cases), bool) if q0 and q1 else has_overlap(cases, controls)
    errors = np.full((len(cases), 2), np.nan)
    likelihood = _likelihood(line, x, cases, controls, prior_precision)
    for _ in range(_MAX_STEPS):
        rows = np.flatnonzero(is_active)
        if not len(rows):
            break
        step, decrement, errors[rows] = _newton_step(line[rows], x, cases[rows], total[rows], prior_precision)
        is_step = np.isfinite(step).all(1)
        is_done = is_step & (decrement < _TOLERANCE)
        line[rows[is_done]] += step[is_done]
        is_converged[rows[is_done]] = True
        is_active[rows[is_done | ~is_step]] = False
        rows, step = rows[is_step & ~is_done], step[is_step & ~is_done]
        for _ in range(_MAX_HALVINGS):
            if not len(rows):
                break
            proposed = line[rows] + step
            new = _likelihood(proposed, x, cases[rows], controls[rows], prior_precision)
            is_better = new >= likelihood[rows] - 1e-12 * np.abs(likelihood[rows])
            line[rows[is_better]], likelihood[rows[is_better]] = proposed[is_better], new[is_better]
            rows, step = rows[~is_better], step[~is_better] / 2
        is_active[rows] = False  # no shorter step increases the likelihood
    line[~is_converged], errors[~is_converged] = np.nan, np.nan
    return LogisticFit(line[:, 0], line[:, 1], errors[:, 0], errors[:, 1])


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
    line: Floats, x: Floats, cases: Floats, controls: Floats, prior: tuple[float, float]
) -> Floats:
    """Return the log likelihood of a logistic fit for every row, with its prior."""
    predictor = line[:, :1] + line[:, 1:] * x
    tail = np.log1p(np.exp(-np.abs(predictor)))
    negative = cases * (np.maximum(-predictor, 0) + tail) + controls * (np.maximum(predictor, 0) + tail)
    penalty = prior[0] * line[:, 0] ** 2 + prior[1] * (line[:, 1] - 1) ** 2
    return np.asarray(-negative.sum(1) - penalty / 2)


def _newton_step(
    line: Floats, x: Floats, cases: Floats, total: Floats, prior: tuple[float, float]
) -> tuple[Floats, Floats, Floats]:
    """Return step, squared decrement and standard errors of a logistic fit; NaN where the curvature vanishes."""
    predictor = line[:, :1] + line[:, 1:] * x
    probabilities, complement = sigmoid(predictor), sigmoid(-predictor)
    residuals = cases * complement - (total - cases) * probabilities
    curvature = total * probabilities * complement
    h00 = curvature.sum(1) + prior[0]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        mean = (curvature * x).sum(1) / h00
        centred = x - mean[:, None]
        spread = (curvature * centred**2).sum(1) + prior[0] * mean**2 + prior[1]
        g0 = residuals.sum(1) - prior[0] * line[:, 0]
        # The gradient of the slope at the centred log odds: no difference of large sums.
        g1 = (residuals * centred).sum(1) - prior[1] * (line[:, 1] - 1) + prior[0] * line[:, 0] * mean
        slope = g1 / spread
        step = np.stack([g0 / h00 - mean * slope, slope], axis=1)
        errors = np.sqrt(np.stack([1 / h00 + mean**2 / spread, 1 / spread], axis=1))
        decrement = g0**2 / h00 + g1**2 / spread
    return step, decrement, errors
