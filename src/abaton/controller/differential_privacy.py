"""Differential privacy of learners: budget, requirements on the codec, and accounting.

Each learner clips its update and adds noise before sending it (`clip(norm=C) | gaussian_noise(std=S) | ...`).
Neighbouring federations differ in all data of one learner. Other data can change a clipped update by up to 2 C, so the
noise multiplier of the accountant is S / (2 C).

The adversary decides what is accounted. `controller` sees single updates: every requested update counts against the
learner's own budget, failed ones included, and sampling gives no amplification. `readers` see only the community
models: a round releases one mean with the noise of all its updates, from sampled learners, and costs far less.

Epsilon is computed by `dp-accounting`: exactly for several Gaussian releases of one learner, and as a bound for rounds
with sampling. The package is imported when it is first needed; strategies without a budget do not need it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from abaton.codecs import CodecPipeline
from abaton.errors import AbatonError, SettingsError

if TYPE_CHECKING:
    from abaton.controller.state import ControllerState

BUDGET_SPENT = "the privacy budget is spent"


@dataclass(frozen=True, slots=True)
class DifferentialPrivacy:
    """Privacy budget of a run, per learner.

    Attributes:
        epsilon, delta: The budget; the run stops before it is exceeded.
        noise_multiplier: Standard deviation of the noise over the clipping norm: `std / norm` of the codec's spec.
        adversary: `controller` or `readers`; see the module.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    adversary: str = "controller"

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise _refuse("epsilon", self.epsilon, "use a number above 0, such as 8")
        if not 0 < self.delta < 1:
            raise _refuse("delta", self.delta, "use a number between 0 and 1, far below 1 / learners")
        if not 0 < self.noise_multiplier < math.inf:
            raise _refuse(
                "noise_multiplier",
                self.noise_multiplier,
                "use a number above 0: std / norm of the codec's spec",
            )
        if self.adversary not in ("controller", "readers"):
            raise _refuse("adversary", self.adversary, "use 'controller' or 'readers'")

    @property
    def allowance(self) -> int:
        """Maximum number of updates of one learner within the privacy budget against the adversary `controller`."""
        return releases_within_budget(self.epsilon, self.noise_multiplier / 2, self.delta)

    def accounted_round(self, sample_size: int, population: int, updates: int) -> AccountedRound:
        """Return the privacy accountant's parameters of a round: the mean of `updates` from sampled learners."""
        return AccountedRound(
            self.noise_multiplier * math.sqrt(updates) / 2, min(sample_size, population), population
        )

    def allows(self, state: ControllerState, following: AccountedRound) -> bool:
        """Return whether one more round stays within the privacy budget against readers."""
        return (
            epsilon_for_rounds(_count_rounds([*state.rounds.items(), (following, 1)]), self.delta)
            <= self.epsilon
        )

    def spent(self, state: ControllerState) -> float:
        """Return epsilon so far: of the learner that has spent most, or of the community models."""
        if self.adversary == "readers":
            return epsilon_for_rounds(frozenset(state.rounds.items()), self.delta)
        return epsilon_for_releases(
            max(state.releases.values(), default=0), self.noise_multiplier / 2, self.delta
        )

    def check(self, codec: CodecPipeline) -> None:
        """Raise a `SettingsError` for a codec that does not clip and then add the accounted privacy noise."""
        transforms = {
            transform.name: (position, transform) for position, transform in enumerate(codec.transforms)
        }
        remedy = (
            f"use clip(norm=1) | gaussian_noise(std={self.noise_multiplier:g}) | ... "
            f"with std / norm = {self.noise_multiplier:g}"
        )
        if not {"clip", "gaussian_noise"} <= set(transforms):
            raise SettingsError(
                f"the codec '{codec.spec}' does not clip and add noise",
                where="strategy.privacy",
                remedy=remedy,
            )
        (clip_position, clip), (noise_position, noise) = transforms["clip"], transforms["gaussian_noise"]
        if noise_position != clip_position + 1:
            raise SettingsError(
                f"the codec '{codec.spec}' does not add its noise directly after clipping",
                where="strategy.privacy",
                remedy=remedy,
            )
        ratio = float(getattr(noise, "std", 0)) / float(getattr(clip, "norm", math.inf))
        if ratio < self.noise_multiplier * (1 - 1e-9):
            raise SettingsError(
                f"the codec's std / norm is {ratio:g}, but privacy.noise_multiplier is {self.noise_multiplier:g}",
                where="strategy.privacy",
                remedy=remedy,
            )


def _count_rounds(rounds: Iterable[tuple[AccountedRound, int]]) -> frozenset[tuple[AccountedRound, int]]:
    counts: dict[AccountedRound, int] = {}
    for accounted, count in rounds:
        counts[accounted] = counts.get(accounted, 0) + count
    return frozenset(counts.items())


def _refuse(name: str, value: object, remedy: str) -> SettingsError:
    return SettingsError(f"privacy.{name} is {value}", where="strategy", remedy=remedy)


Sampling = Literal["none", "poisson", "fixed"]

# Renyi orders for samples of a fixed size; the bound is the best of them. Orders above 64 take seconds and help only
# where epsilon is far below one.
_ORDERS = (1.5, *range(2, 17), 20, 24, 32, 48, 64)
_MAX_RELEASES = 2**40  # more than any run can have


class AccountedRound(NamedTuple):
    """Accountant's parameters of a round.

    Attributes:
        noise_multiplier: Standard deviation of the noise over the sensitivity to one learner.
        sample_size: Number of learners sampled.
        population: Number of learners they were sampled from.
    """

    noise_multiplier: float
    sample_size: int
    population: int


def dp_accounting() -> Any:
    """Return the package `dp_accounting`, or raise an error that explains how to install it."""
    try:
        return import_module("dp_accounting")
    except ImportError as error:
        raise AbatonError(
            "a privacy budget needs the package dp-accounting",
            where="strategy",
            remedy="install it with: pip install -c requirements.lock 'abaton[dp]'",
        ) from error


@lru_cache(maxsize=4096)
def epsilon_for_releases(releases: int, noise_multiplier: float, delta: float) -> float:
    """Return epsilon of one learner after releases with the same noise; exact, since Gaussians compose to a Gaussian.

    Args:
        releases: Number of releases of the learner.
        noise_multiplier: Standard deviation of the noise over the sensitivity to the learner's data.
        delta: Probability that the guarantee fails.
    """
    if not releases:
        return 0.0
    if noise_multiplier <= 0:
        return math.inf
    return float(dp_accounting().get_epsilon_gaussian(noise_multiplier / math.sqrt(releases), delta))


@lru_cache(maxsize=256)
def releases_within_budget(epsilon: float, noise_multiplier: float, delta: float) -> int:
    """Return the maximum number of noisy releases whose epsilon stays within a budget, by bisection."""
    low, high = 0, 1
    while high < _MAX_RELEASES and epsilon_for_releases(high, noise_multiplier, delta) <= epsilon:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if epsilon_for_releases(middle, noise_multiplier, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low


@lru_cache(maxsize=4096)
def epsilon_for_rounds(rounds: frozenset[tuple[AccountedRound, int]], delta: float) -> float:
    """Return a bound on epsilon against readers after rounds with these parameters and counts.

    Sampling is of a fixed size without replacement (Wang, Balle, Kasiviswanathan 2019); two federations are neighbours
    if one learner has other data.
    """
    dp = dp_accounting()
    composed = [(round_, count) for round_, count in sorted(rounds) if count]
    if not composed:
        return 0.0
    if any(round_.noise_multiplier <= 0 for round_, _ in composed):
        return math.inf
    accountant = dp.rdp.RdpAccountant(_ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    for round_, count in composed:
        noise = dp.GaussianDpEvent(round_.noise_multiplier)
        sampled = dp.SampledWithoutReplacementDpEvent(round_.population, round_.sample_size, noise)
        accountant.compose(sampled if round_.sample_size < round_.population else noise, count)
    return float(accountant.get_epsilon(delta))


def epsilon_curve(
    rounds: Iterable[int],
    *,
    noise_multiplier: float,
    delta: float,
    sampling: Sampling,
    sample_size: int = 1,
    population: int = 1,
) -> list[tuple[int, float]]:
    """Return epsilon after each of these numbers of rounds, for planning a study.

    Args:
        rounds: Numbers of rounds.
        noise_multiplier: Standard deviation of the noise over the sensitivity to one learner.
        delta: Probability that the guarantee fails.
        sampling: `none` if every learner takes part; `poisson` if each is sampled independently (neighbours: one
            learner added or removed); `fixed` for samples of a fixed size (neighbours: one learner has other data).
        sample_size: Number of sampled learners, the mean for `poisson`.
        population: Number of learners they are sampled from.
    """
    if sampling == "none" or (sampling == "fixed" and sample_size == population):
        return [(count, epsilon_for_releases(count, noise_multiplier, delta)) for count in rounds]
    if sampling == "fixed":
        accounted = AccountedRound(noise_multiplier, sample_size, population)
        return [(count, epsilon_for_rounds(frozenset([(accounted, count)]), delta)) for count in rounds]
    dp = dp_accounting()
    event = dp.PoissonSampledDpEvent(sample_size / population, dp.GaussianDpEvent(noise_multiplier))
    points, accountant, before = [], dp.rdp.RdpAccountant(), 0
    for count in sorted(rounds):
        if count > before:
            accountant.compose(event, count - before)
        before = count
        points.append((count, float(accountant.get_epsilon(delta)) if count else 0.0))
    return points
