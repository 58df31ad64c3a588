"""Differential privacy of learners: the budget, what the codec must do for it, and what a run has spent of it.

Each learner clips its update and adds noise before it leaves the site (`clip(norm=C) | gaussian_noise(std=S) | ...`).
The promise is about a whole learner: whatever data it had instead, what is released would have looked almost the same.
Other data can move a clipped update by up to 2 C, so noise is counted as S / (2 C).

Who is kept from knowing decides what counts. `controller`: whoever sees single updates. Every update that a learner was
asked for counts against the learner's own budget, also one that failed; drawing learners by lot hides nothing from the
one who draws. `readers`: those who see only the community models. A round releases one mean with the noise of all its
updates together, of learners drawn by lot, so it costs far less.

Nothing here is an accountant of our own: epsilon is computed by `dp-accounting`. Two things are asked of it: the exact
epsilon of several Gaussian releases of the same learner, and a bound for rounds whose learners were drawn by lot. It is
imported when the first question comes, never before: rules without a privacy budget do not need it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from abaton.codecs import Pipeline
from abaton.errors import AbatonError, SettingsError

if TYPE_CHECKING:
    from abaton.controller.state import State

SPENT = "the privacy budget is spent"


@dataclass(frozen=True, slots=True)
class Privacy:
    """How much may be learnt about any one learner from a whole run.

    Attributes:
        epsilon, delta: the budget; the run ends before it is overspent.
        noise: the noise of an update over the length it is clipped to: `std / norm` of the codec's line.
        against: `controller` or `readers`; see the module.
    """

    epsilon: float
    delta: float
    noise: float
    against: str = "controller"

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise _refuse("epsilon", self.epsilon, "use a number above 0, such as 8")
        if not 0 < self.delta < 1:
            raise _refuse("delta", self.delta, "use a number between 0 and 1, far below 1 / learners")
        if not 0 < self.noise < math.inf:
            raise _refuse("noise", self.noise, "use a number above 0: std / norm of the codec's line")
        if self.against not in ("controller", "readers"):
            raise _refuse("against", self.against, "use 'controller' or 'readers'")

    @property
    def allowance(self) -> int:
        """How many updates one learner may be asked for, if single updates are seen."""
        return releases_within(self.epsilon, self.noise / 2, self.delta)

    def round(self, drawn: int, among: int, mixed: int) -> Round:
        """A round for the accountant: the mean of so many updates, of learners drawn among those present."""
        return Round(self.noise * math.sqrt(mixed) / 2, min(drawn, among), among)

    def allows(self, state: State, following: Round) -> bool:
        """Whether one more round stays within the budget of those who see only the community models."""
        return (
            epsilon_of_rounds(_counted([*state.rounds.items(), (following, 1)]), self.delta) <= self.epsilon
        )

    def spent(self, state: State) -> float:
        """Epsilon so far: of the learner that has spent most, or of the community models."""
        if self.against == "readers":
            return epsilon_of_rounds(frozenset(state.rounds.items()), self.delta)
        return epsilon_of_releases(max(state.releases.values(), default=0), self.noise / 2, self.delta)

    def check(self, codec: Pipeline) -> None:
        """Refuse a codec that does not clip and then add the noise that is counted on."""
        steps = {step.name: (place, step) for place, step in enumerate(codec.steps)}
        remedy = (
            f"write clip(norm=1) | gaussian_noise(std={self.noise:g}) | ... with std / norm = {self.noise:g}"
        )
        if not {"clip", "gaussian_noise"} <= set(steps):
            raise SettingsError(
                f"the codec '{codec.spec}' does not clip and add noise", where="rules.privacy", remedy=remedy
            )
        (clipped, clip), (noised, noise) = steps["clip"], steps["gaussian_noise"]
        if noised != clipped + 1:
            raise SettingsError(
                "the codec must add its noise right after clipping", where="rules.privacy", remedy=remedy
            )
        ratio = float(getattr(noise, "std", 0)) / float(getattr(clip, "norm", math.inf))
        if ratio < self.noise * (1 - 1e-9):
            raise SettingsError(
                f"the codec's noise is {ratio:g} of its norm, the budget counts on {self.noise:g}",
                where="rules.privacy",
                remedy=remedy,
            )


def _counted(kinds: Iterable[tuple[Round, int]]) -> frozenset[tuple[Round, int]]:
    counts: dict[Round, int] = {}
    for kind, count in kinds:
        counts[kind] = counts.get(kind, 0) + count
    return frozenset(counts.items())


def _refuse(name: str, value: object, remedy: str) -> SettingsError:
    return SettingsError(f"privacy.{name} is {value}", where="rules", remedy=remedy)


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
