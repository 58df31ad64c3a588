"""The rules of a run: everything that decides what the controller does, fixed before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from abaton.control.adaptive import Thresholds
from abaton.control.checks import above_zero, check_training, one_of, refuse, whole
from abaton.control.messages import TrainSettings
from abaton.control.privacy import Privacy
from abaton.control.robust import Krum, Robust
from abaton.control.server import Optimiser, Plain
from abaton.control.weighting import ByExamples, ByStaleness, ByValidation, Weighting
from abaton.errors import SettingsError

_MANY = 1_000_000  # how many learners there will be is not said


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SemiSynchronous(Synchronous):
    """Rounds of the same time for all: each learner does as many batches as it can in a time budget, at least one.

    Everything else is as in a synchronous round. `training.epochs` does not count.

    Attributes:
        budget: seconds that each learner trains in a round.
    """

    budget: float


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
        learners: how many learners must have joined before training begins; 0 is all that take part.
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
        finishing: how many rounds follow in which learners train on their validation data too. No model is scored in
            them: each learner weighs what its last update weighed. Asynchronous learners do so many more tasks each.

    >>> Rules(learners=4, rounds=0)
    Traceback (most recent call last):
    abaton.errors.SettingsError: rounds is 0 (rules): use a whole number, at least 1
    """

    learners: int = 0
    rounds: int = 10
    seconds: float | None = None
    pacing: Synchronous | Asynchronous = field(default_factory=Synchronous)
    weighting: tuple[Weighting, ...] = (ByExamples(),)
    mixing: Latest | Blend = field(default_factory=Latest)
    robust: Robust | None = None
    server: Optimiser = field(default_factory=Plain)
    training: TrainSettings = field(default_factory=TrainSettings)
    privacy: Privacy | None = None
    seed: int = 0
    finishing: int = 0

    def __post_init__(self) -> None:
        self._check_kinds()
        whole("learners", self.learners, least=0)
        whole("rounds", self.rounds, least=1)
        whole("finishing", self.finishing, least=0)
        if self.seconds is not None:
            above_zero("seconds", self.seconds)
        check_training(self.training)
        self._check_pacing()
        self._check_mixing()
        self._check_validation()
        if self.privacy is not None:
            self._check_privacy(self.privacy)

    def _check_kinds(self) -> None:
        one_of("pacing", self.pacing, (Synchronous, SemiSynchronous, Asynchronous))
        one_of("mixing", self.mixing, (Latest, Blend))
        one_of("server", self.server, get_args(Optimiser))
        one_of("training", self.training, (TrainSettings,))
        if self.robust is not None:
            one_of("robust", self.robust, get_args(Robust))
        if self.privacy is not None:
            one_of("privacy", self.privacy, (Privacy,))
        if not isinstance(self.weighting, tuple) or not self.weighting:
            told = "empty" if self.weighting == () else repr(self.weighting)
            refuse("weighting", told, "use a tuple of at least one part, such as (ByExamples(),)")
        for part in self.weighting:
            one_of("a part of weighting", part, get_args(Weighting))

    def _check_pacing(self) -> None:
        pacing = self.pacing
        whole("pacing.attempts", pacing.attempts, least=1)
        if isinstance(pacing, Synchronous):
            _check_rounds(pacing, self.learners or _MANY)
        elif pacing.adaptive is not None and not pacing.adaptive:
            refuse("pacing.adaptive", "empty", "use Thresholds for each group, or for '' as any group")
        if isinstance(pacing, SemiSynchronous):
            above_zero("pacing.budget", pacing.budget)

    def _check_mixing(self) -> None:
        mixing, robust = self.mixing, self.robust
        if isinstance(mixing, Blend) and not 0 < mixing.alpha <= 1:
            refuse("mixing.alpha", mixing.alpha, "use a number above 0 and at most 1")
        if isinstance(mixing, Blend) and isinstance(self.pacing, Synchronous):
            refuse("mixing", mixing, "use asynchronous pacing, or Latest(): a round has a mix of its own")
        if isinstance(mixing, Blend) and not isinstance(self.server, Plain):
            refuse("server", self.server, "use Plain() with Blend(), which pulls the model by alpha alone")
        if isinstance(mixing, Latest) and mixing.leavers not in ("stay", "subtract"):
            refuse("mixing.leavers", f"'{mixing.leavers}'", "use 'stay' or 'subtract'")
        if robust is not None and not isinstance(self.pacing, Synchronous):
            refuse(
                "robust", robust, "use synchronous pacing, whose updates can be compared, or ByValidation()"
            )
        if isinstance(robust, Krum) and isinstance(self.pacing, Synchronous):
            least = 2 * robust.liars + 3
            if self.pacing.quorum < least:
                refuse("pacing.quorum", self.pacing.quorum, f"use at least {least}, which Krum needs")

    def _check_validation(self) -> None:
        if self.validation and self.learners == 1:
            refuse(
                "learners",
                self.learners,
                "use at least 2, whose other learners score a model, or ByExamples()",
            )
        if self.training.schedule == "driven" and not self.validation:
            refuse("training.schedule", "'driven'", "use it with ByValidation(), whose evaluators drive it")

    @property
    def needs_validation(self) -> bool:
        """Whether learners must have set validation examples aside."""
        adaptive = isinstance(self.pacing, Asynchronous) and self.pacing.adaptive is not None
        return self.validation is not None or adaptive or self.finishing > 0

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


def _check_rounds(pacing: Synchronous, learners: int) -> None:
    needed = learners if pacing.participants is None else pacing.participants
    if not 1 <= needed <= learners:
        refuse("pacing.participants", needed, f"use a number from 1 to {learners}, the number of learners")
    if not 0 <= pacing.extra <= learners - needed:
        refuse("pacing.extra", pacing.extra, f"use a number from 0 to {learners - needed}")
    if not 1 <= pacing.quorum <= needed:
        refuse("pacing.quorum", pacing.quorum, f"use a number from 1 to {needed}, the updates of a round")
    if pacing.deadline is not None:
        above_zero("pacing.deadline", pacing.deadline)
