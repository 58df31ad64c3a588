"""`Strategy`: all settings of the controller, and named strategies of the Metis paper and FedBuff."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

import numpy as np

from abaton.controller.asynchronous_scheduler import AsynchronousScheduler, BufferedScheduler
from abaton.controller.differential_privacy import DifferentialPrivacy
from abaton.controller.robust_aggregation import FedAsyncContribution, LatestContribution, RobustAggregator
from abaton.controller.scheduler import Scheduler
from abaton.controller.server_optimiser import ServerOptimiser, ServerSgd
from abaton.controller.synchronous_scheduler import SynchronousScheduler
from abaton.controller.weighting import ExampleWeighting, StalenessWeighting, ValidationWeighting, Weighting
from abaton.errors import SettingsError
from abaton.protocols import require_protocol
from abaton.training import (
    TrainSettings,
    UpdateThresholds,
    check_integer_setting,
    check_positive,
    check_training,
    check_type,
    refuse,
)

_KNOWN = {
    "scheduler": (
        Scheduler,
        "SynchronousScheduler, SemiSynchronousScheduler, AsynchronousScheduler, BufferedScheduler",
    ),
    "robust_aggregation": (RobustAggregator, "CoordinateMedian, TrimmedMean, Krum, NormBound"),
    "server_optimiser": (ServerOptimiser, "ServerSgd, ServerMomentum, ServerAdam"),
    "weighting factor": (
        Weighting,
        "ExampleWeighting, ValidationWeighting, LossWeighting, StalenessWeighting",
    ),
}


@dataclass(frozen=True, slots=True)
class Strategy:
    """Settings of the controller, fixed before a run starts.

    Attributes:
        learners: Number of learners that must join before training starts; 0 is all participants.
        rounds: Number of versions to publish, unless `max_seconds` ends the run first.
        max_seconds: Maximum duration of the run by the engine's clock.
        scheduler: Decides which learners train next and when a version is published.
        weighting: Factors whose product is the weight of an update.
        contribution_rule: Effect of an asynchronous commit on the community model.
        robust_aggregation: Aggregation of a round in which some updates may be Byzantine; the weighted mean if None.
        server_optimiser: Turns the aggregated change into the step that is applied.
        training: Settings of local training.
        privacy: Differential privacy budget, if any.
        seed: Seed of every random choice.
        final_rounds: Number of additional rounds in which learners train on their validation data, too. No model is
            evaluated in them, and each learner keeps the weight of its last commit. Asynchronous learners each do this
            number of additional tasks.
        robustness: `none` aggregates what learners send as the papers define it. `capped` bounds the influence of one
            learner: an update's norm relative to the others' (`UpdateNormBound`), and with three or more learners its
            examples and its validation counts to twice those of all others. The run's result counts what was altered.

    >>> Strategy(learners=4, rounds=0)
    Traceback (most recent call last):
    abaton.errors.SettingsError: rounds is 0 (strategy): use an integer >= 1
    """

    learners: int = 0
    rounds: int = 10
    max_seconds: float | None = None
    scheduler: Scheduler = field(default_factory=SynchronousScheduler)
    weighting: tuple[Weighting, ...] = (ExampleWeighting(),)
    contribution_rule: LatestContribution | FedAsyncContribution = field(default_factory=LatestContribution)
    robust_aggregation: RobustAggregator | None = None
    server_optimiser: ServerOptimiser = field(default_factory=ServerSgd)
    training: TrainSettings = field(default_factory=TrainSettings)
    privacy: DifferentialPrivacy | None = None
    seed: int = 0
    final_rounds: int = 0
    robustness: Literal["none", "capped"] = "none"

    def __post_init__(self) -> None:
        for item in fields(self):  # NumPy scalars would be stored differently
            object.__setattr__(self, item.name, _without_numpy_scalars(getattr(self, item.name)))
        self._check_types()
        check_integer_setting("learners", self.learners, minimum=0)
        check_integer_setting("rounds", self.rounds, minimum=1)
        check_integer_setting("final_rounds", self.final_rounds, minimum=0)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            refuse("seed", self.seed, "use an integer")
        if self.max_seconds is not None:
            check_positive("max_seconds", self.max_seconds)
        if self.robustness not in ("none", "capped"):
            refuse("robustness", repr(self.robustness), "use 'none' or 'capped'")
        check_training(self.training)
        self.scheduler.check(self)
        self._check_aggregation()
        self._check_validation()
        if self.privacy is not None:
            self._check_privacy(self.privacy)

    def _check_types(self) -> None:
        _check_component("scheduler", self.scheduler)
        _check_component("server_optimiser", self.server_optimiser)
        check_type("contribution_rule", self.contribution_rule, (LatestContribution, FedAsyncContribution))
        check_type("training", self.training, (TrainSettings,))
        if self.robust_aggregation is not None:
            _check_component("robust_aggregation", self.robust_aggregation)
        if self.privacy is not None:
            check_type("privacy", self.privacy, (DifferentialPrivacy,))
        if not isinstance(self.weighting, tuple) or not self.weighting:
            text = "empty" if self.weighting == () else repr(self.weighting)
            refuse("weighting", text, "use a tuple of at least one factor, such as (ExampleWeighting(),)")
        for factor in self.weighting:
            _check_component("weighting factor", factor)

    def _check_aggregation(self) -> None:
        rule, robust = self.contribution_rule, self.robust_aggregation
        aggregates_rounds = self.scheduler.aggregation != "latest"
        if isinstance(rule, FedAsyncContribution) and not 0 < rule.alpha <= 1:
            refuse("contribution_rule.alpha", rule.alpha, "use a number above 0 and at most 1")
        if isinstance(rule, FedAsyncContribution) and aggregates_rounds:
            refuse("contribution_rule", rule, "use AsynchronousScheduler(), or LatestContribution()")
        if isinstance(rule, FedAsyncContribution) and not isinstance(self.server_optimiser, ServerSgd):
            refuse(
                "server_optimiser",
                self.server_optimiser,
                "use ServerSgd() with FedAsyncContribution(), whose step is alpha alone",
            )
        if isinstance(rule, LatestContribution) and rule.departed not in ("keep", "subtract"):
            refuse("contribution_rule.departed", f"'{rule.departed}'", "use 'keep' or 'subtract'")
        if robust is not None and not aggregates_rounds:
            refuse(
                "robust_aggregation",
                robust,
                "use SynchronousScheduler(), whose updates can be compared, or ValidationWeighting()",
            )
        if robust is not None and self.scheduler.min_updates(self) < robust.min_updates:
            refuse(
                "the minimum number of updates of an aggregation",
                self.scheduler.min_updates(self),
                f"use a quorum or buffer_size >= {robust.min_updates}, which {type(robust).__name__} needs",
            )

    def _check_validation(self) -> None:
        if self.validation and self.learners == 1:
            refuse(
                "learners",
                self.learners,
                "use at least 2, since other learners evaluate a model, or ExampleWeighting()",
            )
        if self.training.learning_rate_schedule == "plateau" and not self.validation:
            refuse(
                "training.learning_rate_schedule",
                "'plateau'",
                "use it with ValidationWeighting(), whose evaluators provide the validation loss",
            )

    @property
    def is_capped(self) -> bool:
        """Whether the strategy bounds the influence of one learner."""
        return self.robustness == "capped"

    @property
    def needs_validation(self) -> bool:
        """Whether the strategy requires a validation set of its learners."""
        return self.validation is not None or self.scheduler.adaptive is not None or self.final_rounds > 0

    def _check_privacy(self, privacy: DifferentialPrivacy) -> None:
        if self.validation is not None:
            raise SettingsError(
                "evaluators' counts have no noise, so the privacy budget does not cover them",
                where="strategy",
                remedy="weight by examples or staleness, or remove the budget",
            )
        if self.scheduler.adaptive is not None:
            raise SettingsError(
                "an adaptive learner sends at a time that depends on its data, which the privacy budget does not cover",
                where="strategy",
                remedy="use AsynchronousScheduler() without adaptive",
            )
        if (
            privacy.adversary not in self.scheduler.accounted_adversaries
            and privacy.adversary == "controller"
        ):
            raise SettingsError(
                f"{type(self.scheduler).__name__} does not declare that it accounts a privacy budget",
                where="strategy.scheduler",
                remedy="start tasks by 'request_training' and set 'accounted_adversaries', or use another scheduler",
            )
        if privacy.adversary == "readers":
            has_uniform_rounds = "readers" in self.scheduler.accounted_adversaries and all(
                factor.is_uniform for factor in self.weighting
            )
            if not has_uniform_rounds or self.robust_aggregation is not None or self.is_capped:
                raise SettingsError(
                    "a privacy budget against readers needs rounds whose updates all have the same weight",
                    where="strategy",
                    remedy="use SynchronousScheduler(), StalenessWeighting('constant') and no robust aggregation, "
                    "without robustness, or privacy.adversary='controller'",
                )
        elif privacy.allowance < 1:
            raise SettingsError(
                f"privacy.epsilon is {privacy.epsilon}, less than one update with noise_multiplier "
                f"{privacy.noise_multiplier} costs",
                where="strategy",
                remedy="use more noise or a larger budget; see 'abaton lab privacy' for the cost of rounds",
            )

    @property
    def validation(self) -> ValidationWeighting | None:
        """The strategy's weighting factor that needs evaluators, if there is one."""
        return next((factor.validation for factor in self.weighting if factor.validation is not None), None)


def _check_component(name: str, component: object) -> None:
    protocol, known = _KNOWN[name]
    require_protocol(component, protocol, name=name, where="strategy", known=known)


def _without_numpy_scalars(component: Any) -> Any:
    """Return a setting of a strategy with Python numbers in place of NumPy scalars."""
    if isinstance(component, np.generic):
        return component.item()
    if not is_dataclass(component) or isinstance(component, type):
        return component
    settings = {item.name: getattr(component, item.name) for item in fields(component) if item.init}
    changed = {name: value.item() for name, value in settings.items() if isinstance(value, np.generic)}
    return replace(component, **changed) if changed else component


STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "SyncFedAvg": {"scheduler": SynchronousScheduler()},
    "SyncDVW": {"scheduler": SynchronousScheduler(), "weighting": (ValidationWeighting(),)},
    "AsyncFedAvg": {"scheduler": AsynchronousScheduler()},
    "FedAsync": {
        "scheduler": AsynchronousScheduler(),
        "weighting": (StalenessWeighting(),),
        "contribution_rule": FedAsyncContribution(),
    },
    "AsyncDVW(na)": {"scheduler": AsynchronousScheduler(), "weighting": (ValidationWeighting(),)},
    "AsyncDVW(a)": {
        "scheduler": AsynchronousScheduler(
            adaptive={"fast": UpdateThresholds(0.0, 4), "": UpdateThresholds(1.0, 1)}
        ),
        "weighting": (ValidationWeighting(),),
    },
    "FedBuff": {"scheduler": BufferedScheduler(), "weighting": (StalenessWeighting(),)},
    "FedBuffDVW": {
        "scheduler": BufferedScheduler(),
        "weighting": (StalenessWeighting(), ValidationWeighting()),
    },
}
"""Settings that each named strategy fixes; names as in the Metis paper, and FedBuff with and without validation."""

PAPER_TRAINING: Mapping[str, Mapping[str, Any]] = {
    "FedAsync": {"proximal_mu": 0.005},
    "AsyncDVW(a)": {"epochs": 1000},
}
"""Settings of local training that belong to a named strategy: rho of FedAsync, and a maximum of epochs that adaptive
cycles do not reach."""


def strategy(name: str, **settings: Any) -> Strategy:
    """Return the named strategy of the Metis paper or FedBuff, with further settings of `Strategy`.

    Settings of local training that are not given have the paper's values: see `paper_training`. As a mapping they
    prevail even if they equal a default.

    >>> strategy("SyncDVW", rounds=20).weighting[0].metric
    'micro_f1'
    >>> strategy("FedAsync", training=TrainSettings(learning_rate=0.1)).training.proximal_mu
    0.005
    >>> strategy("FedAsync", training={"proximal_mu": 0.0}).training.proximal_mu
    0.0
    """
    if name not in STRATEGIES:
        raise SettingsError(
            f"there is no strategy '{name}'", where="strategy", remedy=f"use one of {', '.join(STRATEGIES)}"
        )
    training = paper_training(name, settings.pop("training", TrainSettings()))
    return Strategy(**{**STRATEGIES[name], **settings, "training": training})


def paper_training(name: str, training: TrainSettings | Mapping[str, Any]) -> TrainSettings:
    """Return training settings in which those not given have the values of the named strategy's paper.

    Of a mapping all settings are given; of `TrainSettings` those that are not at their default.
    """
    if isinstance(training, Mapping):
        return TrainSettings(**{**PAPER_TRAINING.get(name, {}), **training})
    if not isinstance(training, TrainSettings):
        return training  # refused with a remedy by the strategy
    default = TrainSettings()
    changes = {
        setting: value
        for setting, value in PAPER_TRAINING.get(name, {}).items()
        if getattr(training, setting) == getattr(default, setting)
    }
    return replace(training, **changes) if changes else training
