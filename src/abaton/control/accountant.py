"""How much privacy has been spent: epsilon after so many noised releases, computed by `dp-accounting`.

Nothing here is an accountant of our own. Two things are asked of it: the exact epsilon of several Gaussian releases of
the same learner, and a bound for rounds whose learners were drawn by lot. `dp-accounting` is imported when the first
question comes, never before: rules without a privacy budget do not need it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal, NamedTuple

from abaton.errors import AbatonError

Lots = Literal["none", "poisson", "fixed"]

# Renyi orders for lots of a fixed size: the bound is the best of them. Every order more is a little tighter and slower;
# orders above 64 would take seconds, and help only where epsilon is far below one.
_ORDERS = (1.5, *range(2, 17), 20, 24, 32, 48, 64)
_MOST = 2**40  # releases: more than any run can have


class Round(NamedTuple):
    """One kind of round as the accountant sees it: how its noise compares with what one learner can change, and lots.

    Attributes:
        noise: standard deviation of the noise over the most that one learner can change.
        drawn, among: how many learners were drawn, among how many.
    """

    noise: float
    drawn: int
    among: int


def dp_accounting() -> Any:
    """The package, or one line that says how to get it."""
    try:
        return import_module("dp_accounting")
    except ImportError as error:
        raise AbatonError(
            "a privacy budget needs the package dp-accounting",
            where="rules",
            remedy="install it with: pip install -c requirements.lock 'abaton[dp]'",
        ) from error


@lru_cache(maxsize=4096)
def epsilon_of_releases(releases: int, noise: float, delta: float) -> float:
    """Epsilon of one learner after so many releases with the same noise; exact, since Gaussians compose to one.

    Args:
        releases: how often something of the learner was released.
        noise: standard deviation of the noise over the most that another learner's data in its place could change.
        delta: the chance that the promise may fail.
    """
    if not releases:
        return 0.0
    if noise <= 0:
        return math.inf
    return float(dp_accounting().get_epsilon_gaussian(noise / math.sqrt(releases), delta))


@lru_cache(maxsize=256)
def releases_within(epsilon: float, noise: float, delta: float) -> int:
    """The most releases whose epsilon stays within a budget: found by doubling and halving."""
    low, high = 0, 1
    while high < _MOST and epsilon_of_releases(high, noise, delta) <= epsilon:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if epsilon_of_releases(middle, noise, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low


@lru_cache(maxsize=4096)
def epsilon_of_rounds(rounds: frozenset[tuple[Round, int]], delta: float) -> float:
    """A bound on epsilon for those who see only the community models, after so many rounds of each kind.

    Learners drawn by lots of a fixed size (Wang, Balle, Kasiviswanathan 2019); two federations are neighbours if one
    learner has other data.
    """
    dp = dp_accounting()
    kept = [(round_, count) for round_, count in sorted(rounds) if count]
    if not kept:
        return 0.0
    if any(round_.noise <= 0 for round_, _ in kept):
        return math.inf
    accountant = dp.rdp.RdpAccountant(_ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    for round_, count in kept:
        noise = dp.GaussianDpEvent(round_.noise)
        drawn = dp.SampledWithoutReplacementDpEvent(round_.among, round_.drawn, noise)
        accountant.compose(drawn if round_.drawn < round_.among else noise, count)
    return float(accountant.get_epsilon(delta))


def curve(
    rounds: Iterable[int], *, noise: float, delta: float, lots: Lots, drawn: int = 1, among: int = 1
) -> list[tuple[int, float]]:
    """Epsilon after each of some numbers of rounds, for planning a study.

    Args:
        rounds: after which rounds.
        noise: standard deviation of the noise over the most that one learner can change.
        delta: the chance that the promise may fail.
        lots: `none` if every learner takes part; `poisson` if each is drawn by its own coin (neighbours: one learner
            more or less); `fixed` if so many are drawn at a time (neighbours: one learner has other data).
        drawn: how many learners are drawn, in the mean for `poisson`.
        among: among how many.
    """
    if lots == "none" or (lots == "fixed" and drawn == among):
        return [(count, epsilon_of_releases(count, noise, delta)) for count in rounds]
    if lots == "fixed":
        kind = Round(noise, drawn, among)
        return [(count, epsilon_of_rounds(frozenset([(kind, count)]), delta)) for count in rounds]
    dp = dp_accounting()
    event = dp.PoissonSampledDpEvent(drawn / among, dp.GaussianDpEvent(noise))
    made, accountant, before = [], dp.rdp.RdpAccountant(), 0
    for count in sorted(rounds):
        if count > before:
            accountant.compose(event, count - before)
        before = count
        made.append((count, float(accountant.get_epsilon(delta)) if count else 0.0))
    return made
