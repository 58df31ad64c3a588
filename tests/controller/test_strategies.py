"""Invalid strategies are refused before a run starts."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.controller import (
    STRATEGIES,
    AsynchronousScheduler,
    Contribution,
    ControllerState,
    CoordinateMedian,
    ExampleWeighting,
    FedAsyncContribution,
    ServerMomentum,
    ServerSgd,
    StalenessWeighting,
    Strategy,
    SynchronousScheduler,
    TrainSettings,
    UpdateThresholds,
    ValidationWeighting,
    Weighting,
    strategy,
)
from abaton.errors import SettingsError


def test_the_papers_policies_are_all_there_and_fedbuff():
    names = ["SyncFedAvg", "SyncDVW", "AsyncFedAvg", "FedAsync", "AsyncDVW(na)", "AsyncDVW(a)"]
    names += ["FedBuff", "FedBuffDVW"]
    assert list(STRATEGIES) == names
    assert all(strategy(name, learners=10, rounds=5).learners == 10 for name in names)


def test_named_strategies_have_the_papers_values():
    """Metis, section VI: FedAsync+Poly with a = 0.5 and rho = 0.005; thresholds of figure 3."""
    fedasync = strategy("FedAsync")
    assert fedasync.training.proximal_mu == 0.005
    assert fedasync.contribution_rule.alpha == 0.5
    assert fedasync.weighting == (StalenessWeighting("polynomial", a=0.5),)
    adaptive = strategy("AsyncDVW(a)")
    assert adaptive.scheduler.adaptive == {"fast": UpdateThresholds(0.0, 4), "": UpdateThresholds(1.0, 1)}
    assert adaptive.training.epochs == 1000, "an adaptive cycle ends by its thresholds, not by epochs"
    assert strategy("SyncFedAvg").training == TrainSettings()


def test_given_training_settings_prevail():
    training = TrainSettings(epochs=7, learning_rate=0.2, proximal_mu=0.1)
    assert strategy("FedAsync", training=training).training == training
    assert strategy("AsyncDVW(a)", training=training).training == training
    assert strategy("FedAsync", training=TrainSettings(epochs=7)).training == TrainSettings(
        epochs=7, proximal_mu=0.005
    )
    with pytest.raises(SettingsError, match="training"):
        strategy("FedAsync", training="fast")


class Incomplete:
    """Some members of a scheduler and of a weighting, but no complete component."""

    max_attempts, adaptive, participants = 3, None, None

    def weight(self, contribution: object) -> float:
        return 1.0

    def on_updates_ready(self, strategy: Strategy) -> None:
        """Has fewer parameters than the hook."""

    def on_start(self, strategy: Strategy, state: ControllerState, now: float) -> None:
        """Has all parameters."""


OPEN = {
    "scheduler": (
        "SynchronousScheduler, SemiSynchronousScheduler, AsynchronousScheduler, BufferedScheduler",
        "Scheduler",
    ),
    "robust_aggregation": ("CoordinateMedian, TrimmedMean, Krum, NormBound", "RobustAggregator"),
    "server_optimiser": ("ServerSgd, ServerMomentum, ServerAdam", "ServerOptimiser"),
}
CLOSED = {
    "contribution_rule": "LatestContribution or FedAsyncContribution",
    "training": "TrainSettings",
    "privacy": "DifferentialPrivacy",
}
INVALID = {"incomplete": Incomplete(), "text": "krum", "number": 3, "table": {"kind": "median"}}


@pytest.mark.parametrize("label", [*INVALID, "class"])
@pytest.mark.parametrize("name", CLOSED)
def test_settings_of_a_wrong_type_are_refused(name, label):
    given = INVALID.get(label, CoordinateMedian)
    with pytest.raises(SettingsError) as raised:
        Strategy(learners=4, rounds=2, **{name: given})
    assert raised.value.what == f"{name} is {given!r}"
    assert raised.value.remedy == f"use {CLOSED[name]}"


@pytest.mark.parametrize("label", INVALID)
@pytest.mark.parametrize("name", OPEN)
def test_incomplete_components_are_refused_with_their_missing_members(name, label):
    known, kind = OPEN[name]
    with pytest.raises(SettingsError) as raised:
        Strategy(learners=4, rounds=2, **{name: INVALID[label]})
    assert raised.value.what.startswith(f"{name} is {INVALID[label]!r}, which has no ")
    assert raised.value.remedy == f"use {known}, or a subclass of abaton.controller.{kind}"


def test_missing_members_are_named_with_their_parameters():
    with pytest.raises(SettingsError) as raised:
        Strategy(scheduler=Incomplete())
    missing = raised.value.what.partition("which has no ")[2]
    assert missing.startswith(
        "accounted_adversaries, adjust_settings, aggregation, check, min_updates, on_learner_joined, "
        "on_learner_left, on_task_failed, on_timer, on_updates_ready("
    )
    assert "on_start" not in missing
    with pytest.raises(
        SettingsError, match=r"robust_aggregation is .*which has no aggregate, min_updates \(strategy\)"
    ):
        Strategy(robust_aggregation=Incomplete())


@pytest.mark.parametrize("name", OPEN)
def test_a_class_is_not_a_component(name):
    with pytest.raises(
        SettingsError, match=r"is the class CoordinateMedian .*an instance such as CoordinateMedian\(\)"
    ):
        Strategy(**{name: CoordinateMedian})


@pytest.mark.parametrize(
    "factor", [Incomplete(), "examples", ExampleWeighting], ids=["incomplete", "text", "class"]
)
def test_every_weighting_factor_is_checked(factor):
    with pytest.raises(
        SettingsError,
        match="weighting factor is .*use .*ExampleWeighting, ValidationWeighting, LossWeighting, StalenessWeighting",
    ):
        Strategy(learners=4, rounds=2, weighting=(ExampleWeighting(), factor))


class DoubledExamples(Weighting):
    """Weighting that inherits the defaults."""

    def weight(self, contribution: Contribution) -> float:
        return 2.0 * contribution.update.examples


class WithoutWeight(Weighting):
    """Weighting without the method `weight`."""


class DuckTyped:
    """Class with all members of a weighting that is not a subclass."""

    is_uniform, validation = False, ValidationWeighting("mcc")

    def weight(self, contribution: Contribution) -> float:
        return 1.0


def test_user_defined_weightings_work_with_and_without_a_base_class():
    assert Strategy(learners=4, weighting=(DoubledExamples(),)).validation is None
    assert Strategy(learners=4, weighting=(DoubledExamples(), DuckTyped())).validation == ValidationWeighting(
        "mcc"
    )
    with pytest.raises(TypeError, match="weight"):
        WithoutWeight()


def test_numpy_scalars_become_python_numbers():
    settings = Strategy(
        learners=np.int64(4),
        rounds=np.int64(3),
        seed=np.uint32(5),
        final_rounds=np.int8(0),
        max_seconds=np.float32(2.0),
        scheduler=SynchronousScheduler(participants=np.int64(2)),
        training=TrainSettings(epochs=np.int64(2), learning_rate=np.float64(0.5)),
    )
    expected = Strategy(
        4, 3, 2.0, SynchronousScheduler(2), training=TrainSettings(2, learning_rate=0.5), seed=5
    )
    assert repr(settings) == repr(expected)


@pytest.mark.parametrize(
    ("name", "value"), [("learners", 2.5), ("rounds", True), ("seed", "x"), ("seed", 0.5)]
)
def test_settings_that_are_not_integers_are_refused(name, value):
    with pytest.raises(SettingsError, match=f"{name} is .*integer"):
        Strategy(**{name: value})


@pytest.mark.parametrize(
    "label",
    [ExampleWeighting(), [ExampleWeighting()], (), None],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_weighting_is_a_tuple_of_factors(label):
    with pytest.raises(SettingsError, match="weighting is .*use a tuple of at least one factor"):
        Strategy(learners=4, rounds=2, weighting=label)


def test_settings_without_effect_are_refused():
    with pytest.raises(
        SettingsError, match="contribution_rule is FedAsyncContribution.*AsynchronousScheduler"
    ):
        Strategy(4, 2, scheduler=SynchronousScheduler(), contribution_rule=FedAsyncContribution())
    with pytest.raises(SettingsError, match="server_optimiser is ServerMomentum.*use ServerSgd"):
        Strategy(
            4,
            2,
            scheduler=AsynchronousScheduler(),
            contribution_rule=FedAsyncContribution(),
            server_optimiser=ServerMomentum(),
        )
    assert Strategy(
        4,
        2,
        scheduler=AsynchronousScheduler(),
        contribution_rule=FedAsyncContribution(),
        server_optimiser=ServerSgd(),
    )
