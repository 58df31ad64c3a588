"""Contributions of subjects to sums that can be released with noise: each sum has a proven, public bound.

The bound of a sum is the largest change, in Euclidean norm, if one subject is added, removed, or has the other outcome
with the same prediction. It depends on no data, so neither does the size of the noise. A subject has one row.

Pairs (AUROC and concordance). Let N be the number of a site's subjects. A pair that is not comparable has the value
(0, 0); a comparable pair has (v - c, s) with v of 0, 1/2 or 1 (discordant, tied, concordant), the centre c = 0.75 and
s = 0.66. The sum is over all pairs, divided by N.

- One subject is changed in any way: N - 1 pairs change. Two values of a pair differ by at most 1: two comparable ones
  by |v - v'| <= 1, a comparable one and (0, 0) by at most sqrt(0.75² + 0.66²) < 1. The sum moves by less than 1.
- One subject is added to N others: the sum moves by B/(N + 1) - A/(N (N + 1)), where B sums the N new pairs and A the
  old ones. Let b and a be the fractions of these pairs that are comparable, and k = (N - 1)/(2 N), which is below 1/2.
  In units of N/(N + 1), which is below 1, the first component lies between -c b - (1 - c) k a and (1 - c) b + c k a,
  the second one is s (b - k a). The norm is convex, so it is largest at corners: (b, k a) = (1, 0) gives at most
  sqrt(0.75² + 0.66²) < 1, (1, 1/2) at most sqrt(0.875² + 0.33²) < 1, (0, 1/2) at most sqrt(0.375² + 0.33²) < 1.

The sums of disjoint groups of subjects are one vector: a subject moves the values of its own group only, so the bound
is that of one group.

Calibration in the large. A subject adds y - p and, twice, the change of p if the log odds move by one step up or down.
The norm of these is at most 1; the other outcome changes the first by exactly 1. Brier: q = (y - p)² and q²/2 are at
most sqrt(1.25) together, and so is their change. Other sums are bounded in their functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.metrics.logistic_fit import log_odds, sigmoid
from abaton.metrics.survival import count_pairs

Floats = NDArray[np.float64]

PAIR_CENTRE = 0.75
"""Subtracted from each pair, so that the noise of the number of pairs hardly matters for a usual AUROC."""
PAIR_SCALE = 0.66
"""Factor of the number of pairs in its sum."""
SHIFT_SCALE = 2.0
"""Factor of the shifted predictions in the sums of the calibration in the large."""
SQUARE_SCALE = 0.5
"""Factor of squares that serve the sampling error only."""
MAX_LOG_ODDS = 5.0
"""Log odds are clipped to this distance from the centre for the calibration slope."""
INTERCEPT_SCALE = 0.3
"""Factor of the intercept's column in the sums of the calibration slope."""
SLOPE_BOUND = math.hypot(1.0, INTERCEPT_SCALE)
"""Bound of the sums of the calibration slope."""

_GRID_POINTS = 2001


@dataclass(frozen=True, slots=True, eq=False)
class BoundedContributions:
    """What each subject adds to a sum, and the bound of the sum.

    Attributes:
        rows: One row per subject, one column per value of the sum.
        bound: Largest change of the sum, in Euclidean norm, by one subject.
    """

    rows: Floats
    bound: float


def contributions_by_group(
    contribute: Callable[[NDArray[np.bool_]], BoundedContributions], groups: Sequence[NDArray[np.bool_]]
) -> BoundedContributions:
    """Return bounded contributions in separate columns for each of several disjoint groups of subjects.

    Args:
        contribute: Returns the contributions of the subjects of a mask; pairs are formed within the group.
        groups: Masks of the subjects of each group.
    """
    if np.sum(groups, axis=0).max(initial=0) > 1:
        raise SettingsError("a subject is in two groups", remedy="sum the groups of one input at a time")
    parts = []
    for members in groups:
        part = contribute(members)
        rows = np.zeros((len(members), part.rows.shape[1]))
        rows[members] = part.rows
        parts.append(BoundedContributions(rows, part.bound))
    return BoundedContributions(
        np.concatenate([part.rows for part in parts], axis=1), max(part.bound for part in parts)
    )


@dataclass(frozen=True, slots=True)
class SlopeLine:
    """Present line of the calibration slope, on the scaled and centred log odds of `slope_contributions`.

    Attributes:
        centre: Log odds of the centre, the same at all sites.
        intercept, slope: The line.
    """

    centre: float
    intercept: float
    slope: float

    @classmethod
    def start(cls, cases: float, controls: float) -> SlopeLine:
        """Return the line for the first Newton step of the calibration slope: a slope of 0.7 around the base rate.

        Newton's method goes too far from a slope that is too high, and hardly from one that is too low.
        """
        centre = math.log(max(cases, 1.0) / max(controls, 1.0))
        return cls(centre, centre, 0.7 * MAX_LOG_ODDS)


def auroc_contributions(
    probabilities: NDArray[np.floating], labels: NDArray[np.integer]
) -> BoundedContributions:
    """Return each subject's part of the bounded pair sums of the AUROC within a site: half of each of its pairs.

    >>> auroc_contributions(np.array([0.2, 0.9]), np.array([0, 1])).rows.sum(0).round(3).tolist()
    [0.125, 0.33]
    """
    scores, is_case = _checked(probabilities, labels)
    concordant, pairs = np.zeros(len(scores)), np.zeros(len(scores))
    for members, sign in ((is_case, 1.0), (~is_case, -1.0)):
        others = np.sort(sign * scores[~members])
        below = np.searchsorted(others, sign * scores[members], "left")
        up_to = np.searchsorted(others, sign * scores[members], "right")
        concordant[members], pairs[members] = (below + up_to) / 2, len(others)
    return _pair_rows(concordant, pairs)


def concordance_contributions(
    probabilities: NDArray[np.floating], labels: NDArray[np.floating]
) -> BoundedContributions:
    """Return each subject's part of the bounded pair sums of a survival model's concordance within a site.

    Args:
        probabilities: Predicted event probabilities.
        labels: Time and event of each subject.
    """
    return _pair_rows(*count_pairs(probabilities, labels))


def _pair_rows(concordant: Floats, pairs: Floats) -> BoundedContributions:
    n = max(1, len(pairs))
    rows = np.stack([concordant - PAIR_CENTRE * pairs, PAIR_SCALE * pairs], axis=1) / (2 * n)
    return BoundedContributions(rows, 1.0)


def calibration_contributions(
    probabilities: NDArray[np.floating], labels: NDArray[np.integer]
) -> BoundedContributions:
    """Return bounded contributions to the calibration in the large: residuals, and predictions shifted by one.

    The shifted predictions are those whose log odds are higher, and lower, by 1. They show how far the intercept has
    to move for the residuals to add up to 0.

    >>> calibration_contributions(np.array([0.5]), np.array([1])).rows.round(3).tolist()
    [[0.5, 0.462, 0.462]]
    """
    p, is_case = _checked(probabilities, labels)
    x = log_odds(p)
    up, down = sigmoid(x + 1) - p, p - sigmoid(x - 1)
    return BoundedContributions(np.stack([is_case - p, SHIFT_SCALE * up, SHIFT_SCALE * down], axis=1), 1.0)


def brier_contributions(
    probabilities: NDArray[np.floating], labels: NDArray[np.integer]
) -> BoundedContributions:
    """Return bounded contributions to the Brier score: squared errors, and half of their squares."""
    p, is_case = _checked(probabilities, labels)
    squared = (is_case - p) ** 2
    rows = np.stack([squared, SQUARE_SCALE * squared**2], axis=1)
    return BoundedContributions(rows, math.hypot(1.0, SQUARE_SCALE))


def accuracy_contributions(
    probabilities: NDArray[np.floating], labels: NDArray[np.integer]
) -> BoundedContributions:
    """Return bounded contributions to the accuracy at probability ½: 1 for a correct prediction."""
    p, is_case = _checked(probabilities, labels)
    return BoundedContributions(((p >= 0.5) == is_case).astype(np.float64)[:, None], 1.0)


def slope_contributions(
    probabilities: NDArray[np.floating], labels: NDArray[np.integer], line: SlopeLine
) -> BoundedContributions:
    """Return bounded contributions to a Newton step of the calibration slope: gradient and information matrix.

    Let x be the log odds minus the centre, clipped to ±5 and divided by 5, z = (0.3, x), and q the probability of the
    present line. A subject adds (y - q) z, and the three different entries of q (1 - q) z z', each times its factor in
    :func:`information_scale`. The other outcome moves the first part by |z|, at most sqrt(1.09), which is the bound.

    Args:
        probabilities: Predicted probabilities.
        labels: 1 for a case, 0 for a control.
        line: The present line.
    """
    p, is_case = _checked(probabilities, labels)
    x = np.clip((log_odds(p) - line.centre) / MAX_LOG_ODDS, -1, 1)
    q = sigmoid(line.intercept + line.slope * x)
    residual = (is_case - q)[:, None] * np.stack([np.full(len(x), INTERCEPT_SCALE), x], axis=1)
    rows = np.concatenate([residual, _information(line, x) * information_scale(line)], axis=1)
    return BoundedContributions(rows, SLOPE_BOUND)


def information_scale(line: SlopeLine) -> Floats:
    """Return the factors of the information matrix in the bounded sums of the calibration slope.

    They depend on the present line only: the entries get equal largest values, as large as the bound allows for any
    log odds and outcome, less 2 % for those between the points of the grid.
    """
    x = np.linspace(-1, 1, _GRID_POINTS)
    q, entries = sigmoid(line.intercept + line.slope * x), _information(line, x)
    unit = 1 / np.abs(entries).max(0)
    squares = ((entries * unit) ** 2).sum(1)
    worst = np.maximum(q, 1 - q) ** 2 * (INTERCEPT_SCALE**2 + x * x)
    room = np.sqrt((SLOPE_BOUND**2 - worst) / squares).min()
    return np.asarray(0.98 * room * unit)


def _information(line: SlopeLine, x: Floats) -> Floats:
    """Return the entries of each subject's information matrix for the bounded sums of the calibration slope."""
    q = sigmoid(line.intercept + line.slope * x)
    products = np.stack([np.full(len(x), INTERCEPT_SCALE**2), INTERCEPT_SCALE * x, x * x], axis=1)
    return np.asarray((q * (1 - q))[:, None] * products)


def regression_contributions(
    predicted: NDArray[np.floating], actual: NDArray[np.floating], low: float, high: float
) -> BoundedContributions:
    """Return bounded contributions to the errors of a regression, in units of the declared range of values.

    A subject adds |e|, e² and e⁴/2 of its error e in units of half the range, clipped to 1, half of the value's
    distance d from the middle in the same units, and d². If the value changes, these move by at most 1, 1, 1/2, 1 and
    1: the bound is sqrt(4.25). Values outside the range count as its ends.

    Args:
        predicted: Predicted values.
        actual: True values.
        low: Lower end of the declared range.
        high: Upper end of the declared range.
    """
    if not low < high:
        raise SettingsError(
            "the declared range of the outcome is empty", remedy="declare a lower end below the upper one"
        )
    values = np.clip(np.asarray(actual, np.float64), low, high)
    error = np.clip(
        np.abs(np.clip(np.asarray(predicted, np.float64), low, high) - values) / ((high - low) / 2), 0, 1
    )
    distance = (values - (low + high) / 2) / ((high - low) / 2)
    rows = np.stack([error, error**2, SQUARE_SCALE * error**4, distance / 2, distance**2], axis=1)
    return BoundedContributions(rows, math.sqrt(4 + SQUARE_SCALE**2))


def _checked(
    probabilities: NDArray[np.floating], labels: NDArray[np.integer]
) -> tuple[Floats, NDArray[np.bool_]]:
    p, is_case = np.asarray(probabilities, np.float64), np.asarray(labels).astype(bool)
    if p.shape != is_case.shape or not np.isfinite(p).all() or (len(p) and (p.min() < 0 or p.max() > 1)):
        raise SettingsError(
            "a predicted probability is not between 0 and 1", remedy="pass one probability for each label"
        )
    return p, is_case
