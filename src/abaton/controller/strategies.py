"""The rules of a run: everything that decides what the controller does, fixed before it starts.

Policies by name: those of the Metis paper as it calls them, and FedBuff, with and without validation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np

from abaton.controller.asynchronous_scheduler import Asynchronous, Buffered
from abaton.controller.differential_privacy import Privacy
from abaton.controller.robust_aggregation import Blend, Latest, Optimiser, Plain, Robust
from abaton.controller.scheduler import Pacing
from abaton.controller.synchronous_scheduler import Synchronous
from abaton.controller.weighting import ByExamples, ByStaleness, ByValidation, Weighting
from abaton.errors import SettingsError
from abaton.protocols import require
from abaton.training import Thresholds, TrainSettings, above_zero, check_training, one_of, refuse, whole

_KNOWN = {
    "pacing": (Pacing, "Synchronous, SemiSynchronous, Asynchronous, Buffered"),
    "robust": (Robust, "Median, Trimmed, Krum, NormBound"),
    "server": (Optimiser, "Plain, Momentum, Adam"),
    "a part of weighting": (Weighting, "ByExamples, ByValidation, ByStaleness"),
}


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
        longest: how many times longer than the other learners' newest updates an update may be: a longer one is
            shortened to that (`control.reach`); 0 is no bound.

    >>> Rules(learners=4, rounds=0)
    Traceback (most recent call last):
    abaton.errors.SettingsError: rounds is 0 (rules): use a whole number, at least 1
    """

    learners: int = 0
    rounds: int = 10
    seconds: float | None = None
    pacing: Pacing = field(default_factory=Synchronous)
    weighting: tuple[Weighting, ...] = (ByExamples(),)
    mixing: Latest | Blend = field(default_factory=Latest)
    robust: Robust | None = None
    server: Optimiser = field(default_factory=Plain)
    training: TrainSettings = field(default_factory=TrainSettings)
    privacy: Privacy | None = None
    seed: int = 0
    finishing: int = 0
    longest: float = 10.0

    def __post_init__(self) -> None:
        for each in fields(self):  # numbers that came out of an array are the numbers they are
            object.__setattr__(self, each.name, _plain(getattr(self, each.name)))
        self._check_kinds()
        whole("learners", self.learners, least=0)
        whole("rounds", self.rounds, least=1)
        whole("finishing", self.finishing, least=0)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            refuse("seed", self.seed, "use a whole number")
        if self.seconds is not None:
            above_zero("seconds", self.seconds)
        if not (self.longest == 0 or 1 <= self.longest < math.inf):
            refuse("longest", self.longest, "use a number from 1 on, or 0 for no bound")
        check_training(self.training)
        self.pacing.check(self)
        self._check_mixing()
        self._check_validation()
        if self.privacy is not None:
            self._check_privacy(self.privacy)

    def _check_kinds(self) -> None:
        _part("pacing", self.pacing)
        _part("server", self.server)
        one_of("mixing", self.mixing, (Latest, Blend))
        one_of("training", self.training, (TrainSettings,))
        if self.robust is not None:
            _part("robust", self.robust)
        if self.privacy is not None:
            one_of("privacy", self.privacy, (Privacy,))
        if not isinstance(self.weighting, tuple) or not self.weighting:
            told = "empty" if self.weighting == () else repr(self.weighting)
            refuse("weighting", told, "use a tuple of at least one part, such as (ByExamples(),)")
        for part in self.weighting:
            _part("a part of weighting", part)

    def _check_mixing(self) -> None:
        mixing, robust = self.mixing, self.robust
        together = self.pacing.mixes != "newest"
        if isinstance(mixing, Blend) and not 0 < mixing.alpha <= 1:
            refuse("mixing.alpha", mixing.alpha, "use a number above 0 and at most 1")
        if isinstance(mixing, Blend) and together:
            refuse("mixing", mixing, "use asynchronous pacing, or Latest(): a round has a mix of its own")
        if isinstance(mixing, Blend) and not isinstance(self.server, Plain):
            refuse("server", self.server, "use Plain() with Blend(), which pulls the model by alpha alone")
        if isinstance(mixing, Latest) and mixing.leavers not in ("stay", "subtract"):
            refuse("mixing.leavers", f"'{mixing.leavers}'", "use 'stay' or 'subtract'")
        if robust is not None and not together:
            refuse(
                "robust", robust, "use synchronous pacing, whose updates can be compared, or ByValidation()"
            )
        if robust is not None and self.pacing.fewest(self) < robust.least:
            refuse(
                "the fewest updates of a mix",
                self.pacing.fewest(self),
                f"use at least {robust.least}, which {type(robust).__name__} needs: a quorum, or a buffer",
            )

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
        return self.validation is not None or self.pacing.adaptive is not None or self.finishing > 0

    def _check_privacy(self, privacy: Privacy) -> None:
        if self.validation is not None:
            raise SettingsError(
                "evaluators' counts carry no noise, so they would not be covered by the privacy budget",
                where="rules",
                remedy="weigh by examples or staleness, or leave the budget out",
            )
        if self.pacing.adaptive is not None:
            raise SettingsError(
                "when an adaptive learner sends depends on its data, which the privacy budget does not cover",
                where="rules",
                remedy="use asynchronous pacing with a fixed number of epochs",
            )
        if privacy.against not in self.pacing.budgets and privacy.against == "controller":
            raise SettingsError(
                f"{type(self.pacing).__name__} does not say that it keeps a privacy budget",
                where="rules.pacing",
                remedy="let it give out tasks by 'ask' alone and say so by 'budgets', or use another pacing",
            )
        if privacy.against == "readers":
            plain = "readers" in self.pacing.budgets and all(part.even for part in self.weighting)
            if not plain or self.robust is not None:
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
        return next((part.asks for part in self.weighting if part.asks is not None), None)


def _part(name: str, given: object) -> None:
    kind, known = _KNOWN[name]
    require(given, kind, name=name, where="rules", known=known)


def _plain(given: Any) -> Any:
    """A number as Python has it, and a part with such numbers."""
    if isinstance(given, np.generic):
        return given.item()
    if not is_dataclass(given) or isinstance(given, type):
        return given
    found = {each.name: getattr(given, each.name) for each in fields(given) if each.init}
    changed = {name: value.item() for name, value in found.items() if isinstance(value, np.generic)}
    return replace(given, **changed) if changed else given


POLICIES: Mapping[str, Mapping[str, Any]] = {
    "SyncFedAvg": {"pacing": Synchronous()},
    "SyncDVW": {"pacing": Synchronous(), "weighting": (ByValidation(),)},
    "AsyncFedAvg": {"pacing": Asynchronous()},
    "FedAsync": {"pacing": Asynchronous(), "weighting": (ByStaleness(),), "mixing": Blend()},
    "AsyncDVW(na)": {"pacing": Asynchronous(), "weighting": (ByValidation(),)},
    "AsyncDVW(a)": {
        "pacing": Asynchronous(adaptive={"fast": Thresholds(0.0, 4), "": Thresholds(1.0, 1)}),
        "weighting": (ByValidation(),),
    },
    "FedBuff": {"pacing": Buffered(), "weighting": (ByStaleness(),)},
    "FedBuffDVW": {"pacing": Buffered(), "weighting": (ByStaleness(), ByValidation())},
}


def policy(name: str) -> Mapping[str, Any]:
    """The part of the rules that a policy fixes.

    >>> sorted(policy("SyncDVW"))
    ['pacing', 'weighting']
    """
    if name not in POLICIES:
        raise SettingsError(
            f"there is no policy '{name}'", where="policy", remedy=f"use one of {', '.join(POLICIES)}"
        )
    return POLICIES[name]
