"""Invalid settings are refused before anything starts, with the key and the remedy."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.codecs import parse_codec
from abaton.controller import (
    AsynchronousScheduler,
    CoordinateMedian,
    FedAsyncContribution,
    Krum,
    LatestContribution,
    SemiSynchronousScheduler,
    ServerAdam,
    ServerMomentum,
    StalenessWeighting,
    Strategy,
    SynchronousScheduler,
    TrainSettings,
    UpdateThresholds,
    ValidationWeighting,
    strategy,
)
from abaton.engines import MachineProfile
from abaton.errors import SettingsError
from abaton.federation import Federation, LocalSite
from abaton.lab import build_from_recipe, heterogeneous, partition_data, split_learners, stratified_split
from abaton.learners import ParallelTrainer
from abaton.models import Examples, logistic
from abaton.store import Store

NAN, INF = float("nan"), float("inf")
DVW = (ValidationWeighting(),)


def strategy_with(**settings):
    return lambda: Strategy(**{"learners": 4, "rounds": 2, **settings})


def training(**settings):
    return strategy_with(training=TrainSettings(**settings))


def scheduler(kind: type, **settings):
    return strategy_with(scheduler=kind(**settings))


STRATEGY_ERRORS = [
    (strategy_with(learners=-3), "learners is -3", ">= 0"),
    (strategy_with(learners=2.5), "learners is 2.5", "integer"),
    (strategy_with(rounds=0), "rounds is 0", ">= 1"),
    (strategy_with(max_seconds=-5.0), "max_seconds is -5.0", "above 0"),
    (strategy_with(max_seconds=NAN), "max_seconds is nan", "above 0"),
    (strategy_with(final_rounds=-1), "final_rounds is -1", ">= 0"),
    (strategy_with(weighting=()), "weighting is empty", "ExampleWeighting"),
    (strategy_with(learners=1, weighting=DVW), "learners is 1", "at least 2"),
    (scheduler(SynchronousScheduler, participants=9), "scheduler.participants is 9", "from 1 to 4"),
    (scheduler(SynchronousScheduler, participants=0), "scheduler.participants is 0", "from 1 to 4"),
    (scheduler(SynchronousScheduler, quorum=5), "scheduler.quorum is 5", "from 1 to 4"),
    (scheduler(SynchronousScheduler, quorum=0), "scheduler.quorum is 0", "from 1 to 4"),
    (scheduler(SynchronousScheduler, participants=2, quorum=3), "scheduler.quorum is 3", "from 1 to 2"),
    (
        scheduler(SynchronousScheduler, participants=2, over_selection=3),
        "scheduler.over_selection is 3",
        "from 0 to 2",
    ),
    (scheduler(SynchronousScheduler, deadline=0), "scheduler.deadline is 0", "above 0"),
    (scheduler(SynchronousScheduler, deadline=NAN), "scheduler.deadline is nan", "above 0"),
    (scheduler(SynchronousScheduler, max_attempts=0), "scheduler.max_attempts is 0", ">= 1"),
    (
        scheduler(SemiSynchronousScheduler, time_budget_seconds=-1.0),
        "scheduler.time_budget_seconds is -1.0",
        "above 0",
    ),
    (
        scheduler(SemiSynchronousScheduler, time_budget_seconds=0.0),
        "scheduler.time_budget_seconds is 0.0",
        "above 0",
    ),
    (
        scheduler(SemiSynchronousScheduler, time_budget_seconds=INF),
        "scheduler.time_budget_seconds is inf",
        "above 0",
    ),
    (
        scheduler(SemiSynchronousScheduler, time_budget_seconds=1.0, quorum=9),
        "scheduler.quorum is 9",
        "from 1 to 4",
    ),
    (scheduler(AsynchronousScheduler, max_attempts=0), "scheduler.max_attempts is 0", ">= 1"),
    (scheduler(AsynchronousScheduler, adaptive={}), "scheduler.adaptive is empty", "UpdateThresholds"),
    (
        strategy_with(scheduler=AsynchronousScheduler(), contribution_rule=FedAsyncContribution(alpha=1.5)),
        "contribution_rule.alpha is 1.5",
        "at most 1",
    ),
    (
        strategy_with(contribution_rule=LatestContribution("vanish")),
        "contribution_rule.departed is 'vanish'",
        "keep",
    ),
    (
        strategy_with(scheduler=AsynchronousScheduler(), robust_aggregation=CoordinateMedian()),
        "robust_aggregation is CoordinateMedian",
        "Synchronous",
    ),
    (
        strategy_with(learners=9, robust_aggregation=Krum(byzantine=2)),
        "the minimum number of updates of an aggregation is 1",
        ">= 7",
    ),
    (training(epochs=0), "training.epochs is 0", ">= 1"),
    (training(epochs=1.5), "training.epochs is 1.5", "integer"),
    (training(batch_size=0), "training.batch_size is 0", ">= 1"),
    (training(learning_rate=-0.1), "training.learning_rate is -0.1", "above 0"),
    (training(learning_rate=NAN), "training.learning_rate is nan", "above 0"),
    (training(learning_rate=INF), "training.learning_rate is inf", "above 0"),
    (training(momentum=1.0), "training.momentum is 1.0", "below 1"),
    (training(optimiser="lbfgs"), "training.optimiser is 'lbfgs'", "sgd, adam"),
    (
        training(learning_rate_schedule="linear"),
        "training.learning_rate_schedule is 'linear'",
        "constant, step",
    ),
    (
        training(learning_rate_schedule="plateau"),
        "training.learning_rate_schedule is 'plateau'",
        "ValidationWeighting",
    ),
    (training(learning_rate_decay=0.0), "training.learning_rate_decay is 0.0", "above 0"),
    (training(learning_rate_decay=1.5), "training.learning_rate_decay is 1.5", "at most 1"),
    (training(schedule_period=0), "training.schedule_period is 0", ">= 1"),
    (training(proximal_mu=-1.0), "training.proximal_mu is -1.0", "0 or more"),
    (training(max_grad_norm=NAN), "training.max_grad_norm is nan", "0 or more"),
    (training(shuffle_window=-1), "training.shuffle_window is -1", ">= 0"),
    (training(time_budget_seconds=-1.0), "training.time_budget_seconds is -1.0", "0 or more"),
    (training(steps=-1), "training.steps is -1", ">= 0"),
]

COMPONENT_ERRORS = [
    (lambda: UpdateThresholds(loss=-1), "loss is -1", "0 or more"),
    (lambda: UpdateThresholds(loss=NAN), "loss is nan", "0 or more"),
    (lambda: UpdateThresholds(tombstones=-1), "tombstones is -1", "integer >= 0"),
    (lambda: UpdateThresholds(tombstones=0.5), "tombstones is 0.5", "integer"),
    (lambda: ValidationWeighting("beauty"), "no metric 'beauty'", "micro_f1"),
    (lambda: ValidationWeighting(evaluators=0), "evaluators is 0", "at least 1"),
    (lambda: ValidationWeighting(evaluators=-2), "evaluators is -2", "at least 1"),
    (
        lambda: ValidationWeighting(evaluators=2, evaluator_selection="beauty"),
        "evaluator_selection is 'beauty'",
        "label_coverage",
    ),
    (
        lambda: ValidationWeighting(evaluator_selection="label_coverage"),
        "needs a number of evaluators",
        "set evaluators",
    ),
    (
        lambda: ValidationWeighting("r_squared", 2, "label_coverage"),
        "needs a number of evaluators",
        "classification metric",
    ),
    (lambda: StalenessWeighting("linear"), "no staleness function 'linear'", "polynomial"),
    (lambda: StalenessWeighting(a=-1), "a is -1", "a >= 0"),
    (lambda: strategy("SyncBest"), "no strategy 'SyncBest'", "SyncFedAvg"),
    (lambda: ServerMomentum(rate=0.0), "rate is 0.0", "above 0"),
    (lambda: ServerAdam(beta=1.0), "beta is 1.0", "beta < 1"),
    (lambda: MachineProfile(speed=0), "speed is 0", "above 0"),
    (lambda: MachineProfile(dropout_probability=2), "dropout_probability is 2", "from 0 to 1"),
    (
        lambda: MachineProfile(joins_at=3, leaves_at=1),
        "joins_at is 3 and leaves_at is 1",
        "joins_at < leaves_at",
    ),
    (lambda: parse_codec("zip"), "zip", ""),
    (lambda: ParallelTrainer({}, workers=0), "workers is 0", "at least 1"),
    (lambda: heterogeneous(["a"], slow=2), "slow is 2", "from 0 to 1"),
]

LABELS = np.array([0, 1, 2, 3])


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def split_of_everything(share: float):
    data = Examples(np.zeros((400, 4), np.float32), np.arange(400) % 4)
    partition = partition_data(data.y, learners=4, rng=rng())
    return split_learners(data, data.y, partition, validation=share, rng=rng())


DATA = [
    (
        lambda: stratified_split(LABELS, np.arange(4), rng=rng(), learner="kos"),
        "4 examples of 4 classes are too few",
        "two",
    ),
    (
        lambda: stratified_split(LABELS, np.arange(4), rng=rng(), fraction=0.0),
        "validation fraction is 0",
        "0.05",
    ),
    (lambda: split_of_everything(1.5), "validation fraction is 1.5", "0.05"),
    (lambda: partition_data(LABELS, learners=0, rng=rng()), "learners", ""),
    (lambda: partition_data(LABELS, learners=9, rng=rng()), "", "use"),
    (lambda: Examples(np.zeros((2, 1)), np.zeros(3)), "2 inputs but 3 labels", "one label"),
]


@pytest.mark.parametrize(("make", "what", "remedy"), [*STRATEGY_ERRORS, *COMPONENT_ERRORS, *DATA])
def test_wrong_settings_are_refused_with_the_key_and_the_remedy(make, what, remedy):
    with pytest.raises(SettingsError) as caught:
        make()
    assert what in caught.value.what
    assert remedy in caught.value.remedy
    assert caught.value.remedy, "every error has a remedy"
    assert caught.value.exit_code == 2


def data() -> Examples:
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    return Examples(x, (x[:, 0] > 0).astype(np.int64))


def federation_with(**settings) -> Federation:
    """Return a valid federation, with these arguments replaced."""
    local_sites = {name: LocalSite(data(), data()) for name in ("athens", "kos")}
    arguments = {"sites": local_sites, "strategy": Strategy(2, 1, weighting=DVW), **settings}
    return Federation(logistic(features=4), arguments["sites"], arguments["strategy"])


def both(**arguments) -> dict[str, LocalSite]:
    return {
        name: LocalSite(**{"train": data(), "validation": data(), **arguments}) for name in ("athens", "kos")
    }


NOTHING = Examples(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
ONE = Examples(np.zeros((1, 4), np.float32), np.zeros(1, np.int64))
VALUES = Examples(np.zeros((20, 4), np.float32), np.zeros(20, np.float32))
ADAPTIVE = Strategy(2, 1, scheduler=AsynchronousScheduler(adaptive={"": UpdateThresholds()}))
GROUPED = Strategy(2, 1, scheduler=AsynchronousScheduler(adaptive={"fast": UpdateThresholds()}))
FEDERATIONS = [
    (
        {
            "strategy": GROUPED,
            "sites": {"athens": LocalSite(data(), profile=MachineProfile(group="fast")), "kos": data()},
        },
        "no thresholds for group ''",
        "any group",
    ),
    ({"sites": {}}, "no sites", "at least one"),
    ({"strategy": Strategy(3, 1)}, "learners is 3, but there are 2 sites", "from 1 to 2"),
    ({"sites": both(train=NOTHING)}, "no training examples", "remove the learner"),
    ({"sites": both(validation=NOTHING)}, "no validation set", "weight by examples"),
    ({"sites": both(validation=NOTHING), "strategy": ADAPTIVE}, "no validation set", "hold out examples"),
    (
        {"sites": both(validation=NOTHING), "strategy": Strategy(2, 1, final_rounds=1)},
        "no validation set",
        "hold out examples",
    ),
    ({"sites": {"athens": data(), "kos": ONE}}, "too few for a stratified validation set", "exclude it"),
    (
        {"strategy": Strategy(2, 1, weighting=(ValidationWeighting("r_squared"),))},
        "metric is 'r_squared', but the labels are classes",
        "micro_f1",
    ),
    (
        {"sites": both(train=VALUES)},
        "metric is 'micro_f1', but the labels are values",
        "inverse_mse, r_squared",
    ),
]


@pytest.mark.parametrize(("build", "what", "remedy"), FEDERATIONS)
def test_an_invalid_federation_is_refused_when_it_is_built(monkeypatch, build, what, remedy):
    monkeypatch.setattr("abaton.lab.federation_builder.federation", lambda **_: federation_with(**build))
    for refused in (
        lambda: federation_with(**build),
        lambda: build_from_recipe({"name": "strategy", "settings": {}}),
    ):
        with pytest.raises(SettingsError) as caught:
            refused()
        assert what in caught.value.what
        assert remedy in caught.value.remedy


def test_the_unchanged_federation_is_valid(tmp_path):
    assert len(federation_with().run(store=tmp_path).versions) == 2


@pytest.mark.parametrize("name", ["", "a/b", "../up", " ", "-x", "n" * 200])
def test_an_invalid_run_name_is_refused(tmp_path, name):
    with Store(tmp_path) as store:
        if not name:
            assert federation_with().run(name, store=store).name.startswith("python-")
            return
        with pytest.raises(SettingsError, match="is not a valid run name"):
            federation_with().run(name, store=store)
        assert store.runs() == [], "nothing was started"


COMMANDS = [
    ("lab privacy --noise 1 --rounds 0", "rounds"),
    ("lab compare --rounds many", "rounds"),
    ("lab partition --learners 0", "learners"),
    ("lab partition --learners 10000", "learners"),
    ("lab partition --sizes round", "round"),
    ("lab partition --classes Non-IID(99)", "99"),
    ("lab partition --data nowhere.npz", "nowhere.npz"),
    ("lab partition --slow 11", "slow"),
    ("bench nothing", "nothing"),
]


@pytest.mark.parametrize(("command", "key"), COMMANDS)
def test_the_command_line_refuses_with_exit_code_2(command, key):
    result = CliRunner().invoke(app, command.split())
    output = result.output + str(result.exception)
    code = result.exception.exit_code if isinstance(result.exception, SettingsError) else result.exit_code
    assert code == 2
    assert key in output
