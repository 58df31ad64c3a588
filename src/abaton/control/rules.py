"""The rules of a run: everything that decides what the controller does, fixed before it starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from abaton.control.messages import TrainSettings
from abaton.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Rules:
    """How a federation is run.

    Attributes:
        learners: how many learners must have joined before the first round.
        rounds: how many versions of the community model are made.
        participants: how many learners train in a round; all of them if not given.
        quorum: the least number of updates that make a mix; failed rounds are tried again.
        attempts: how often in a row a round may fail before the run stops.
        seed: decides which learners take part in which round.
        training: how each learner trains.

    >>> Rules(learners=4, rounds=0)
    Traceback (most recent call last):
    abaton.errors.SettingsError: rounds is 0 (rules): use at least 1
    """

    learners: int
    rounds: int
    participants: int | None = None
    quorum: int = 1
    attempts: int = 10
    seed: int = 0
    training: TrainSettings = field(default_factory=TrainSettings)

    def __post_init__(self) -> None:
        for name in ("learners", "rounds", "quorum", "attempts"):
            _at_least_one(name, getattr(self, name))
        for name in ("epochs", "batch_size"):
            _at_least_one(f"training.{name}", getattr(self.training, name))
        if not self.training.learning_rate > 0:
            _refuse("training.learning_rate", self.training.learning_rate, "use a number above 0")
        if not 0 <= self.training.momentum < 1:
            _refuse("training.momentum", self.training.momentum, "use a number from 0 up to, but not, 1")
        if self.participants is not None and not 1 <= self.participants <= self.learners:
            _refuse(
                "participants",
                self.participants,
                f"use a number from 1 to {self.learners}, the number of learners",
            )
        if self.quorum > self.per_round:
            _refuse("quorum", self.quorum, f"use at most {self.per_round}, the number of learners in a round")

    @property
    def per_round(self) -> int:
        """How many learners are asked to train in a round."""
        return self.learners if self.participants is None else self.participants


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        _refuse(name, value, "use at least 1")


def _refuse(name: str, value: float, remedy: str) -> None:
    raise SettingsError(f"{name} is {value}", where="rules", remedy=remedy)
