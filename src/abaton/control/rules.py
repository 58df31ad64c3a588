"""The rules of a run: everything that decides what the controller does, fixed before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from abaton.control.adaptive import Thresholds
from abaton.control.messages import TrainSettings
from abaton.control.privacy import Privacy
from abaton.control.robust import Krum, Robust
from abaton.control.server import Optimiser, Plain
from abaton.control.weighting import ByExamples, ByStaleness, ByValidation, Weighting
from abaton.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Synchronous:
    """Rounds: some learners train, then one mix is made of all their updates.

    Attributes:
        participants: how many updates make a round; all learners if not given.
        extra: how many more learners are asked than are needed; the slowest are not waited for.
        quorum: the least number of updates that make a mix once the deadline has passed or the others have failed.
        deadline: seconds after which a round is closed with what is there.
        attempts: how often in a row a round may fail before the run stops.
    """

    participants: int | None = None
    extra: int = 0
    quorum: int = 1
    deadline: float | None = None
    attempts: int = 10


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """No rounds: every commit makes a new version, and its learner goes on from there at once.

    Attributes:
        adaptive: thresholds of each group, for learners that decide themselves when to send; "" is any group.
        attempts: how often in a row a learner's tasks may fail before it is left out.
    """

    adaptive: Mapping[str, Thresholds] | None = None
    attempts: int = 10


@dataclass(frozen=True, slots=True)
class Latest:
    """The mix of the newest model of every learner (Metis): what a learner sends replaces what it sent before."""

    leavers: str = "stay"


@dataclass(frozen=True, slots=True)
class Blend:
    """Each commit pulls the community model towards it by alpha times its weight (FedAsync)."""

    alpha: float = 0.5


@dataclass(frozen=True, slots=True)
class Rules:
    """How a federation is run.

    Attributes:
        learners: how many learners must have joined before training begins.
        rounds: how many versions of the community model are made, unless the time is up before.
        seconds: how long the run may take by the engine's clock.
        pacing: who trains next, and when a mix is made.
        weighting: how much a model counts: the product of all parts.
        mixing: what an asynchronous commit does to the community model.
        robust: how a round's updates are mixed when some may be wrong; by their weighted mean if not given.
        server: what is made of the change that the mix proposes.
        training: how each learner trains.
        privacy: the budget of differential privacy, if there is one.
        seed: decides every lot that is drawn.

    >>> Rules(learners=4, rounds=0)
    Traceback (most recent call last):
    abaton.errors.SettingsError: rounds is 0 (rules): use at least 1
    """

    learners: int
    rounds: int
    seconds: float | None = None
    pacing: Synchronous | Asynchronous = field(default_factory=Synchronous)
    weighting: tuple[Weighting, ...] = (ByExamples(),)
    mixing: Latest | Blend = field(default_factory=Latest)
    robust: Robust | None = None
    server: Optimiser = field(default_factory=Plain)
    training: TrainSettings = field(default_factory=TrainSettings)
    privacy: Privacy | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least_one("learners", self.learners)
        _at_least_one("rounds", self.rounds)
        if self.seconds is not None and not self.seconds > 0:
            _refuse("seconds", self.seconds, "use a number above 0, or leave it out")
        if not self.weighting:
            raise SettingsError(
                "there is no weighting", where="rules", remedy="use at least one, such as ByExamples()"
            )
        _at_least_one("pacing.attempts", self.pacing.attempts)
        if isinstance(self.pacing, Synchronous):
            _check_synchronous(self.pacing, self.learners)
        elif isinstance(self.mixing, Blend) and not 0 < self.mixing.alpha <= 1:
            _refuse("mixing.alpha", self.mixing.alpha, "use a number above 0 and at most 1")
        if isinstance(self.mixing, Latest) and self.mixing.leavers not in ("stay", "subtract"):
            raise SettingsError(
                f"mixing.leavers is '{self.mixing.leavers}'", where="rules", remedy="use 'stay' or 'subtract'"
            )
        if self.validation and self.learners < 2:
            raise SettingsError(
                "weighting by validation needs other learners to score a model",
                where="rules",
                remedy="use at least 2 learners, or weigh by examples",
            )
        _check_training(self.training)
        if self.robust is not None:
            self._check_robust(self.robust)
        if self.privacy is not None:
            self._check_privacy(self.privacy)

    def _check_robust(self, robust: Robust) -> None:
        if not isinstance(self.pacing, Synchronous):
            raise SettingsError(
                "robust mixing compares the updates of a round",
                where="rules",
                remedy="use synchronous pacing, or weigh by validation",
            )
        if isinstance(robust, Krum) and self.pacing.quorum < 2 * robust.liars + 3:
            _refuse(
                "pacing.quorum", self.pacing.quorum, f"use at least {2 * robust.liars + 3}, which Krum needs"
            )

    def _check_privacy(self, privacy: Privacy) -> None:
        if self.validation is not None:
            raise SettingsError(
                "evaluators' counts carry no noise, so they would not be covered by the privacy budget",
                where="rules",
                remedy="weigh by examples or staleness, or leave the budget out",
            )
        if isinstance(self.pacing, Asynchronous) and self.pacing.adaptive is not None:
            raise SettingsError(
                "when an adaptive learner sends depends on its data, which the privacy budget does not cover",
                where="rules",
                remedy="use asynchronous pacing with a fixed number of epochs",
            )
        if privacy.against == "readers":
            plain = all(isinstance(part, ByStaleness) for part in self.weighting)
            if not (isinstance(self.pacing, Synchronous) and plain and self.robust is None):
                raise SettingsError(
                    "a privacy budget against readers needs rounds whose updates all count the same",
                    where="rules",
                    remedy="use synchronous pacing, ByStaleness('constant') and no robust mixing, "
                    "or privacy.against='controller'",
                )
        elif privacy.allowance < 1:
            raise SettingsError(
                f"privacy.epsilon is {privacy.epsilon}, less than one update with noise {privacy.noise} costs",
                where="rules",
                remedy="use more noise or a larger budget; 'abaton lab privacy' shows what rounds cost",
            )

    @property
    def validation(self) -> ByValidation | None:
        """The part of the weighting that asks evaluators, if there is one."""
        return next((part for part in self.weighting if isinstance(part, ByValidation)), None)


def _check_synchronous(pacing: Synchronous, learners: int) -> None:
    needed = learners if pacing.participants is None else pacing.participants
    if not 1 <= needed <= learners:
        _refuse("pacing.participants", needed, f"use a number from 1 to {learners}, the number of learners")
    if not 0 <= pacing.extra <= learners - needed:
        _refuse("pacing.extra", pacing.extra, f"use a number from 0 to {learners - needed}")
    if not 1 <= pacing.quorum <= needed:
        _refuse("pacing.quorum", pacing.quorum, f"use a number from 1 to {needed}, the updates of a round")
    if pacing.deadline is not None and not pacing.deadline > 0:
        _refuse("pacing.deadline", pacing.deadline, "use a number of seconds above 0, or leave it out")


def _check_training(training: TrainSettings) -> None:
    _at_least_one("training.epochs", training.epochs)
    _at_least_one("training.batch_size", training.batch_size)
    if not training.learning_rate > 0:
        _refuse("training.learning_rate", training.learning_rate, "use a number above 0")
    if not 0 <= training.momentum < 1:
        _refuse("training.momentum", training.momentum, "use a number from 0 up to, but not, 1")
    for name, value in (("solver", training.solver), ("schedule", training.schedule)):
        if value not in _CHOICES[name]:
            raise SettingsError(
                f"training.{name} is '{value}'",
                where="rules",
                remedy=f"use one of {', '.join(_CHOICES[name])}",
            )
    for name in ("proximal", "clip", "window", "elapsed"):
        if not getattr(training, name) >= 0:
            _refuse(f"training.{name}", getattr(training, name), "use 0 or more")
    if not 0 < training.decay <= 1:
        _refuse("training.decay", training.decay, "use a number above 0 and at most 1")
    _at_least_one("training.period", training.period)


_CHOICES = {"solver": ("sgd", "adam"), "schedule": ("constant", "step", "cosine", "driven")}


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        _refuse(name, value, "use at least 1")


def _refuse(name: str, value: float, remedy: str) -> None:
    raise SettingsError(f"{name} is {value}", where="rules", remedy=remedy)


# The policies of the Metis paper, by the names it gives them.
POLICIES: Mapping[str, Mapping[str, object]] = {
    "SyncFedAvg": {"pacing": Synchronous()},
    "SyncDVW": {"pacing": Synchronous(), "weighting": (ByValidation(),)},
    "AsyncFedAvg": {"pacing": Asynchronous()},
    "FedAsync": {"pacing": Asynchronous(), "weighting": (ByStaleness(),), "mixing": Blend()},
    "AsyncDVW(na)": {"pacing": Asynchronous(), "weighting": (ByValidation(),)},
    "AsyncDVW(a)": {
        "pacing": Asynchronous(adaptive={"fast": Thresholds(0.0, 4), "": Thresholds(1.0, 1)}),
        "weighting": (ByValidation(),),
    },
}
