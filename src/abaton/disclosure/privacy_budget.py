"""Meaning of a privacy budget: epsilon, and how often an attacker is right about one subject.

A budget is an amount rho of zero-concentrated differential privacy. All noise is Gaussian, so the attacker's best rule
is known: an attacker who spends the whole budget on one question is right with probability Phi(sqrt(2 rho) / 2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log, log1p, sqrt
from statistics import NormalDist

DELTA = 1e-6
_STEPS = 100  # of the golden-section search; they reach the precision of a float


@dataclass(frozen=True, slots=True)
class AttackerSuccess:
    """Largest probability that an attacker is right about one subject after a privacy budget is used up.

    Guessing is right with probability 0.5.

    Attributes:
        membership: Whether the subject is in the study; the attacker knows the records of all others.
        group: In which of two groups the subject is; the attacker knows the records of all others.
        membership_alone: As `membership`, for an attacker who compares pairs of answers and knows no record.
        group_alone: As `group`, for an attacker who compares pairs of answers and knows no record.
    """

    membership: float
    group: float
    membership_alone: float
    group_alone: float


def attacker_success(rho: float) -> AttackerSuccess:
    """Return how often an attacker who spends a privacy budget on one question is right about one subject.

    A change of group moves two cells, which is sqrt(2) times as far as adding a subject. A difference of two answers
    has twice the variance and costs twice as much.

    >>> success = attacker_success(1)
    >>> [round(p, 2) for p in (success.membership, success.group, success.membership_alone, success.group_alone)]
    [0.76, 0.84, 0.64, 0.69]
    """
    shift = sqrt(2 * rho)
    shifts = (shift, sqrt(2) * shift, shift / 2, shift / sqrt(2))
    return AttackerSuccess(*(NormalDist().cdf(distance / 2) for distance in shifts))


def budget_epsilon(rho: float, delta: float = DELTA) -> float:
    """Return epsilon of a privacy budget rho at delta, by the conversion of Canonne, Kamath and Steinke (2020).

    >>> round(budget_epsilon(1.0), 2)
    7.77
    """
    if rho == 0:
        return 0.0

    def bound(log_excess: float) -> float:
        order = 1 + 10**log_excess
        return order * rho + log1p(-1 / order) - (log(delta) + log(order)) / (order - 1)

    return max(0.0, _minimum(bound, -6.0, 12.0))


def _minimum(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the minimum of a unimodal function by golden-section search."""
    ratio, best = (sqrt(5) - 1) / 2, inf
    for _ in range(_STEPS):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        at_left, at_right = function(left), function(right)
        best = min(best, at_left, at_right)
        low, high = (low, right) if at_left < at_right else (left, high)
    return best
