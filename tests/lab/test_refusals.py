"""Wrong settings are refused before anything starts, with the key and the remedy: one table of all of them."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.codecs import parse
from abaton.controller import (
    Adam,
    Asynchronous,
    Blend,
    ByStaleness,
    ByValidation,
    Krum,
    Latest,
    Median,
    Momentum,
    Rules,
    SemiSynchronous,
    Synchronous,
    Thresholds,
    TrainSettings,
    policy,
)
from abaton.engines import Profile
from abaton.errors import SettingsError
from abaton.federation import Federation, Holding
from abaton.lab import build, heterogeneous, partition, sites, stratified
from abaton.learners import Crew, Examples, logistic
from abaton.store import Store

NAN, INF = float("nan"), float("inf")
DVW = (ByValidation(),)


def rules(**wrong):
    return lambda: Rules(**{"learners": 4, "rounds": 2, **wrong})


def training(**wrong):
    return rules(training=TrainSettings(**wrong))


def pacing(kind: type, **wrong):
    return rules(pacing=kind(**wrong))


RULES = [
    (rules(learners=-3), "learners is -3", "at least 0"),
    (rules(learners=2.5), "learners is 2.5", "whole number"),
    (rules(rounds=0), "rounds is 0", "at least 1"),
    (rules(seconds=-5.0), "seconds is -5.0", "above 0"),
    (rules(seconds=NAN), "seconds is nan", "above 0"),
    (rules(finishing=-1), "finishing is -1", "at least 0"),
    (rules(weighting=()), "weighting is empty", "ByExamples"),
    (rules(learners=1, weighting=DVW), "learners is 1", "at least 2"),
    (pacing(Synchronous, participants=9), "pacing.participants is 9", "from 1 to 4"),
    (pacing(Synchronous, participants=0), "pacing.participants is 0", "from 1 to 4"),
    (pacing(Synchronous, quorum=5), "pacing.quorum is 5", "from 1 to 4"),
    (pacing(Synchronous, quorum=0), "pacing.quorum is 0", "from 1 to 4"),
    (pacing(Synchronous, participants=2, quorum=3), "pacing.quorum is 3", "from 1 to 2"),
    (pacing(Synchronous, participants=2, extra=3), "pacing.extra is 3", "from 0 to 2"),
    (pacing(Synchronous, deadline=0), "pacing.deadline is 0", "above 0"),
    (pacing(Synchronous, deadline=NAN), "pacing.deadline is nan", "above 0"),
    (pacing(Synchronous, attempts=0), "pacing.attempts is 0", "at least 1"),
    (pacing(SemiSynchronous, budget=-1.0), "pacing.budget is -1.0", "above 0"),
    (pacing(SemiSynchronous, budget=0.0), "pacing.budget is 0.0", "above 0"),
    (pacing(SemiSynchronous, budget=INF), "pacing.budget is inf", "above 0"),
    (pacing(SemiSynchronous, budget=1.0, quorum=9), "pacing.quorum is 9", "from 1 to 4"),
    (pacing(Asynchronous, attempts=0), "pacing.attempts is 0", "at least 1"),
    (pacing(Asynchronous, adaptive={}), "pacing.adaptive is empty", "Thresholds"),
    (rules(pacing=Asynchronous(), mixing=Blend(alpha=1.5)), "mixing.alpha is 1.5", "at most 1"),
    (rules(mixing=Latest("vanish")), "mixing.leavers is 'vanish'", "stay"),
    (rules(pacing=Asynchronous(), robust=Median()), "robust is Median", "synchronous"),
    (rules(learners=9, robust=Krum(liars=2)), "the fewest updates of a mix is 1", "at least 7"),
    (training(epochs=0), "training.epochs is 0", "at least 1"),
    (training(epochs=1.5), "training.epochs is 1.5", "whole number"),
    (training(batch_size=0), "training.batch_size is 0", "at least 1"),
    (training(learning_rate=-0.1), "training.learning_rate is -0.1", "above 0"),
    (training(learning_rate=NAN), "training.learning_rate is nan", "above 0"),
    (training(learning_rate=INF), "training.learning_rate is inf", "above 0"),
    (training(momentum=1.0), "training.momentum is 1.0", "not, 1"),
    (training(solver="lbfgs"), "training.solver is 'lbfgs'", "sgd, adam"),
    (training(schedule="linear"), "training.schedule is 'linear'", "constant, step"),
    (training(schedule="driven"), "training.schedule is 'driven'", "ByValidation"),
    (training(decay=0.0), "training.decay is 0.0", "above 0"),
    (training(decay=1.5), "training.decay is 1.5", "at most 1"),
    (training(period=0), "training.period is 0", "at least 1"),
    (training(proximal=-1.0), "training.proximal is -1.0", "0 or more"),
    (training(clip=NAN), "training.clip is nan", "0 or more"),
    (training(window=-1), "training.window is -1", "at least 0"),
    (training(budget=-1.0), "training.budget is -1.0", "0 or more"),
    (training(steps=-1), "training.steps is -1", "at least 0"),
]

PARTS = [
    (lambda: Thresholds(loss=-1), "loss is -1", "0 or more"),
    (lambda: Thresholds(loss=NAN), "loss is nan", "0 or more"),
    (lambda: Thresholds(tombstones=-1), "tombstones is -1", "0 or a whole"),
    (lambda: Thresholds(tombstones=0.5), "tombstones is 0.5", "whole number"),
    (lambda: ByValidation("beauty"), "no measure 'beauty'", "micro_f1"),
    (lambda: ByValidation(evaluators=0), "evaluators is 0", "at least 1"),
    (lambda: ByValidation(evaluators=-2), "evaluators is -2", "at least 1"),
    (lambda: ByValidation(evaluators=2, choice="beauty"), "choice is 'beauty'", "labels"),
    (lambda: ByValidation(choice="labels"), "nothing to choose by", "how many evaluators"),
    (lambda: ByValidation("r_squared", 2, "labels"), "nothing to choose by", "measure of classes"),
    (lambda: ByStaleness("linear"), "no staleness 'linear'", "polynomial"),
    (lambda: ByStaleness(a=-1), "negative", "0 or more"),
    (lambda: policy("SyncBest"), "no policy 'SyncBest'", "SyncFedAvg"),
    (lambda: Momentum(rate=0.0), "rate is 0.0", "above 0"),
    (lambda: Adam(beta=1.0), "beta is 1.0", "not, 1"),
    (lambda: Profile(speed=0), "speed is 0", "above 0"),
    (lambda: Profile(dropout=2), "dropout is 2", "from 0 to 1"),
    (lambda: Profile(joins=3, leaves=1), "leaves before it joins", "joins < leaves"),
    (lambda: parse("zip"), "zip", ""),
    (lambda: Crew({}, workers=0), "workers is 0", "at least 1"),
    (lambda: heterogeneous(["a"], slow=2), "slow is 2", "from 0 to 1"),
]

LABELS = np.array([0, 1, 2, 3])


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def split_of_everything(share: float):
    data = Examples(np.zeros((400, 4), np.float32), np.arange(400) % 4)
    dealt = partition(data.y, learners=4, rng=rng())
    return sites(data, data.y, dealt, validation=share, rng=rng())


DATA = [
    (
        lambda: stratified(LABELS, np.arange(4), rng=rng(), learner="kos"),
        "4 examples of 4 classes are too few",
        "two",
    ),
    (
        lambda: stratified(LABELS, np.arange(4), rng=rng(), share=0.0),
        "share of validation examples is 0",
        "0.05",
    ),
    (lambda: split_of_everything(1.5), "share of validation examples is 1.5", "0.05"),
    (lambda: partition(LABELS, learners=0, rng=rng()), "learners", ""),
    (lambda: partition(LABELS, learners=9, rng=rng()), "", "use"),
    (lambda: Examples(np.zeros((2, 1)), np.zeros(3)), "2 inputs but 3 labels", "one label"),
]


@pytest.mark.parametrize(("make", "what", "remedy"), [*RULES, *PARTS, *DATA])
def test_wrong_settings_are_refused_with_the_key_and_the_remedy(make, what, remedy):
    with pytest.raises(SettingsError) as caught:
        make()
    assert what in caught.value.what
    assert remedy in caught.value.remedy
    assert caught.value.remedy, "there is always something to do"
    assert caught.value.exit_code == 2


def data() -> Examples:
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    return Examples(x, (x[:, 0] > 0).astype(np.int64))


def whole(**wrong) -> Federation:
    """A sound federation, unless something of it is said to be otherwise."""
    sound = {name: Holding(data(), data()) for name in ("athens", "kos")}
    parts = {"sites": sound, "rules": Rules(2, 1, weighting=DVW), **wrong}
    return Federation(logistic(features=4), parts["sites"], parts["rules"])


def both(**more) -> dict[str, Holding]:
    return {name: Holding(**{"train": data(), "validation": data(), **more}) for name in ("athens", "kos")}


NOTHING = Examples(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
ONE = Examples(np.zeros((1, 4), np.float32), np.zeros(1, np.int64))
VALUES = Examples(np.zeros((20, 4), np.float32), np.zeros(20, np.float32))
ADAPTIVE = Rules(2, 1, pacing=Asynchronous(adaptive={"": Thresholds()}))
GROUPED = Rules(2, 1, pacing=Asynchronous(adaptive={"fast": Thresholds()}))
FEDERATIONS = [
    (
        {
            "rules": GROUPED,
            "sites": {"athens": Holding(data(), profile=Profile(group="fast")), "kos": data()},
        },
        "no thresholds for group ''",
        "any group",
    ),
    ({"sites": {}}, "no sites", "at least one"),
    ({"rules": Rules(3, 1)}, "learners is 3, but there are 2 sites", "from 1 to 2"),
    ({"sites": both(train=NOTHING)}, "no examples to train on", "leave it out"),
    ({"sites": both(validation=NOTHING)}, "no validation set", "weigh by examples"),
    ({"sites": both(validation=NOTHING), "rules": ADAPTIVE}, "no validation set", "set some examples aside"),
    (
        {"sites": both(validation=NOTHING), "rules": Rules(2, 1, finishing=1)},
        "no validation set",
        "set some examples aside",
    ),
    ({"sites": {"athens": data(), "kos": ONE}}, "too few for a stratified validation set", "leave it out"),
    (
        {"rules": Rules(2, 1, weighting=(ByValidation("r_squared"),))},
        "measure is 'r_squared', but the labels are classes",
        "micro_f1",
    ),
    (
        {"sites": both(train=VALUES)},
        "measure is 'micro_f1', but the labels are values",
        "closeness, r_squared",
    ),
]


@pytest.mark.parametrize(("wrong", "what", "remedy"), FEDERATIONS)
def test_a_wrong_federation_is_refused_when_it_is_made(monkeypatch, wrong, what, remedy):
    monkeypatch.setattr("abaton.lab.federation_builder.federation", lambda **_: whole(**wrong))
    for refused in (lambda: whole(**wrong), lambda: build({"name": "policy", "settings": {}})):
        with pytest.raises(SettingsError) as caught:
            refused()
        assert what in caught.value.what
        assert remedy in caught.value.remedy


def test_the_federation_that_the_table_breaks_is_a_sound_one(tmp_path):
    assert len(whole().run(store=tmp_path).versions) == 2


@pytest.mark.parametrize("name", ["", "a/b", "../up", " ", "-x", "n" * 200])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, name):
    with Store(tmp_path) as store:
        if not name:
            assert whole().run(name, store=store).name.startswith("python-")
            return
        with pytest.raises(SettingsError, match="cannot be a run's name"):
            whole().run(name, store=store)
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
    said = result.output + str(result.exception)
    code = result.exception.exit_code if isinstance(result.exception, SettingsError) else result.exit_code
    assert code == 2
    assert key in said
