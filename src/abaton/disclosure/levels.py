"""Levels of disclosure control, and the settings of a site for what leaves it besides updates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction


class DisclosureLevel(StrEnum):
    """What leaves a site about groups of subjects. The study and each site choose; the strictest level applies.

    Attributes:
        NOISY: Counts and bounded sums with noise of public size, within a privacy budget.
        SUMMED: Exact sums over at least three sites; no number of a single site.
        EXACT: Exact counts and sums of each site for a trusted centre; small counts are suppressed. Differencing of
            several answers is not prevented.
    """

    NOISY = "noisy"
    SUMMED = "summed"
    EXACT = "exact"


def strictest_level(levels: Iterable[DisclosureLevel]) -> DisclosureLevel:
    """Return the strictest of several disclosure levels.

    >>> strictest_level([DisclosureLevel.EXACT, DisclosureLevel.SUMMED]).value
    'summed'
    """
    order = list(DisclosureLevel)
    return min(levels, key=order.index)


@dataclass(frozen=True, slots=True)
class NoiseSettings:
    """Public sizes of the noise and the privacy budget of a site.

    A table of counts with standard deviation sigma costs 1/(2 sigma²) of zero-concentrated differential privacy; a sum
    with noise of c times its bound costs 1/(2 c²).

    Attributes:
        table_sd: Standard deviation of the noise of each count.
        primary_multiplier: Noise of the study's primary metric, in units of the largest change by one subject.
        multiplier: Noise of every other metric.
        interpretability_multiplier: Noise of explanations.
        score_sd: Standard deviation of the noise of each count behind a validation score.
        threshold: Noisy counts below it are not released as a number.
        epoch_days: Days during which an answer is repeated.
        study_budget: Budget of one study.
        yearly_budget: Budget of the site for all studies in a calendar year.
    """

    table_sd: float = 3.0
    primary_multiplier: float = 1.0
    multiplier: float = 2.0
    interpretability_multiplier: float = 10.0
    score_sd: float = 5.0
    threshold: int = 10
    epoch_days: int = 30
    study_budget: float = 1.0
    yearly_budget: float = 2.0


def table_cost(sd: float) -> Fraction:
    """Return the cost in zero-concentrated differential privacy of a table at a disclosure level with noise."""
    return 1 / (2 * Fraction(sd) ** 2)


def format_count(count: float, threshold: int) -> str:
    """Return a released count as text; a value below the threshold of the disclosure level is not shown.

    >>> format_count(42.0, 10), format_count(3.0, 10), format_count(-2.0, 10)
    ('42', '<10', '<10')
    """
    return f"<{threshold}" if count < threshold else f"{round(count)}"
