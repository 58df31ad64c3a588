"""How many examples each learner holds: equal, skewed, or by a power law; always in descending order."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.learning.validation import apportion

Counts = NDArray[np.int64]

_FORM = re.compile(r"([a-z-]+)(?:\(([0-9.]{1,12})\))?")


def sizes(form: str, learners: int, total: int) -> Counts:
    """How many of `total` examples each learner gets, the largest first.

    Forms:
        `uniform`: every learner the same number; fewer than `learners` examples stay unused.
        `skewed`: the quantiles of a log-normal law, so that a few are large and no two are equal.
        `power-law`: each learner 1.5 times the next one, which is what the original experiments call a power law.
        `power-law-true`: the learner of rank k holds a share proportional to k^-1.5.

    A number in brackets replaces the 1.5, or the spread 0.5 of the log-normal law: `power-law(2)`.

    >>> sizes("power-law", 10, 10_000).tolist()
    [3392, 2261, 1508, 1005, 670, 447, 298, 199, 132, 88]
    >>> sizes("power-law-true", 4, 1000).tolist()
    [598, 212, 115, 75]
    """
    if learners < 2:
        raise SettingsError(
            f"learners is {learners}", where="partition", remedy="a federation needs two learners or more"
        )
    if total < learners:
        raise SettingsError(
            f"{total} examples are too few for {learners} learners",
            where="partition",
            remedy="use fewer learners or more data",
        )
    match = _FORM.fullmatch(form.strip().lower())
    if match is None or match[1] not in _LAWS:
        raise SettingsError(
            f"there is no size distribution '{form}'",
            where="sizes",
            remedy=f"use {', '.join(_LAWS)}, with a number in brackets if you like: power-law(1.5)",
        )
    made = _LAWS[match[1]](learners, total, _number(match[2], form))
    if made[-1] < 1:
        raise SettingsError(
            f"{total} examples are too few: by '{form}' the smallest of {learners} learners gets none",
            where="sizes",
            remedy="use fewer learners, more data or a flatter distribution",
        )
    return made


def _number(text: str | None, form: str) -> float | None:
    try:
        number = None if text is None else float(text)
    except ValueError:
        number = 0.0
    if number is not None and not 0 < number <= 100:
        raise SettingsError(
            f"the number in '{form}' is not usable",
            where="sizes",
            remedy="use one above 0 and at most 100, like 1.5",
        )
    return number


def _uniform(learners: int, total: int, number: float | None) -> Counts:
    if number is not None:
        raise SettingsError("uniform takes no number", where="sizes", remedy="write just: uniform")
    return np.full(learners, total // learners, dtype=np.int64)


def _skewed(learners: int, total: int, number: float | None) -> Counts:
    spread, normal = 0.5 if number is None else number, NormalDist()
    places = (np.arange(learners) + 0.5) / learners
    weights = np.exp(spread * np.array([normal.inv_cdf(1 - p) for p in places]))
    # Each learner first gets its rank from the bottom, which keeps any two apart; the rest follows the law.
    rank = np.arange(learners, 0, -1)
    left = total - int(rank.sum())
    if left < 0:
        raise SettingsError(
            f"{total} examples are too few for {learners} learners of different sizes",
            where="sizes",
            remedy=f"use at least {rank.sum()} examples, fewer learners, or uniform sizes",
        )
    above = np.maximum(weights / weights.sum() * total - rank, 0)
    above = np.maximum.accumulate(above[::-1])[::-1]
    return rank + (apportion(above, left) if left else 0)


def _geometric(learners: int, total: int, number: float | None) -> Counts:
    factor = 1.5 if number is None else number
    if factor <= 1:
        raise SettingsError(
            f"the factor of the power law is {factor}", where="sizes", remedy="use a factor above 1, like 1.5"
        )
    return apportion(factor ** -np.arange(learners, dtype=np.float64), total)


def _ranked(learners: int, total: int, number: float | None) -> Counts:
    exponent = 1.5 if number is None else number
    return apportion(np.arange(1, learners + 1, dtype=np.float64) ** -exponent, total)


_LAWS: Mapping[str, Callable[[int, int, float | None], Counts]] = {
    "uniform": _uniform,
    "skewed": _skewed,
    "power-law": _geometric,
    "power-law-true": _ranked,
}
