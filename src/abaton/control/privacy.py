"""Differential privacy of learners: the budget, what the codec must do for it, and what a run has spent of it.

Each learner clips its update and adds noise before it leaves the site (`clip(norm=C) | gaussian_noise(std=S) | ...`).
The promise is about a whole learner: whatever data it had instead, what is released would have looked almost the same.
Other data can move a clipped update by up to 2 C, so noise is counted as S / (2 C).

Who is kept from knowing decides what counts. `controller`: whoever sees single updates. Every update that a learner was
asked for counts against the learner's own budget, also one that failed; drawing learners by lot hides nothing from the
one who draws. `readers`: those who see only the community models. A round releases one mean with the noise of all its
updates together, of learners drawn by lot, so it costs far less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from abaton.codecs import Pipeline
from abaton.control.accountant import Round, epsilon_of_releases, epsilon_of_rounds, releases_within
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.control.state import State

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
