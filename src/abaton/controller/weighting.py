"""How much a learner's model counts in the mix: small policies whose weights are multiplied."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal, Protocol

from abaton.metrics.counts import MEASURES, task_of
from abaton.controller.state import Contribution
from abaton.errors import SettingsError


class Weighting(Protocol):
    """A factor of how much an update counts.

    A weighting of your own inherits from this and says what an update weighs; it is a value without a memory.
    """

    even: ClassVar[bool] = False
    """Whether all updates of a round weigh the same, as a privacy budget against readers needs."""

    @abstractmethod
    def weight(self, made: Contribution) -> float:
        """The factor: a finite number, never below 0."""

    @property
    def asks(self) -> ByValidation | None:
        """Which evaluators score a model before it is weighed; nobody if nothing. What they count is `made.score`."""
        return None


@dataclass(frozen=True, slots=True)
class ByExamples(Weighting):
    """Weigh by the number of examples trained on (FedAvg)."""

    def weight(self, made: Contribution) -> float:
        """The number of examples."""
        return float(made.update.examples)


@dataclass(frozen=True, slots=True)
class ByValidation(Weighting):
    """Weigh by how well the model does on the validation sets of the other learners (DVW).

    Attributes:
        measure: one of the measures of `control.score`.
        evaluators: how many of the other learners score each model; all of them if not given.
        choice: which ones: some by `lot`, or by `labels`, so that together they have labels like the whole federation.
        own: whether the learner's own validation set counts, too, as in the paper. A large learner whose labels are
            wrong agrees with its own wrong labels: without it, a model is worth what others say.
    """

    measure: str = "micro_f1"
    evaluators: int | None = None
    choice: Literal["lot", "labels"] = "lot"
    own: bool = True

    def __post_init__(self) -> None:
        if self.measure not in MEASURES:
            raise SettingsError(
                f"there is no measure '{self.measure}'",
                where="weighting",
                remedy=f"choose one of {', '.join(MEASURES)}",
            )
        if self.evaluators is not None and self.evaluators < 1:
            raise SettingsError(
                f"evaluators is {self.evaluators}",
                where="weighting",
                remedy="use at least 1, or leave it out",
            )
        if self.choice not in ("lot", "labels"):
            raise SettingsError(
                f"choice is '{self.choice}'", where="weighting", remedy="use 'lot' or 'labels'"
            )
        if self.choice == "labels" and (self.evaluators is None or task_of(self.measure) != "classes"):
            raise SettingsError(
                "choice is 'labels', but there is nothing to choose by",
                where="weighting",
                remedy="say how many evaluators, use a measure of classes, or leave it out",
            )

    @property
    def asks(self) -> ByValidation:
        """The evaluators that it names."""
        return self

    def weight(self, made: Contribution) -> float:
        """The measure over the counts of all evaluators together."""
        return MEASURES[self.measure](made.score) if made.score else 0.0


@dataclass(frozen=True, slots=True)
class ByStaleness(Weighting):
    """Let a model count less the more versions were published since it started (FedAsync).

    Polynomial: (s + 1)^-a. Hinge: 1 up to b versions, then 1 / (a (s - b) + 1). Constant: 1.
    """

    kind: Literal["polynomial", "hinge", "constant"] = "polynomial"
    a: float = 0.5
    b: float = 4.0

    even = True

    def __post_init__(self) -> None:
        if self.kind not in ("polynomial", "hinge", "constant"):
            raise SettingsError(
                f"there is no staleness '{self.kind}'",
                where="weighting",
                remedy="use polynomial, hinge or constant",
            )
        if not (self.a >= 0 and self.b >= 0):
            raise SettingsError("a or b is negative", where="weighting", remedy="use 0 or more")

    def weight(self, made: Contribution) -> float:
        """The discount for the versions missed."""
        missed = made.versions_missed
        if self.kind == "polynomial":
            return float((missed + 1) ** -self.a)
        if self.kind == "hinge" and missed > self.b:
            return 1 / (self.a * (missed - self.b) + 1)
        return 1.0


def weigh(parts: tuple[Weighting, ...], made: Contribution) -> float:
    """The product of all parts' weights.

    Raises:
        SettingsError: It is no weight, which a part of your own may give.
    """
    weight = 1.0
    for part in parts:
        weight *= part.weight(made)
    if 0 <= weight < inf:
        return weight
    raise SettingsError(
        f"the weight of learner '{made.update.learner}' is {weight}",
        where="weighting",
        remedy="let every part give a finite number, never below 0",
    )
