"""Bad learners: what they send, what they cost, and how little they count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from abaton.controller import TrainSettings
from abaton.lab.experiment import ExperimentEnvironment, ExperimentSettings, ExperimentTask
from abaton.lab.federation_builder import build_from_settings
from abaton.lab.robustness import RobustnessStrategy, robustness_experiment
from abaton.lab.strategy_comparison import compare
from abaton.models import TrainingPlan, train_model

SETTING = ExperimentSettings(
    ExperimentTask(hidden=16),
    ExperimentEnvironment("power-law", "IID", 10, rows=1500, slow=0, latency=1.0),
    TrainSettings(epochs=3, batch_size=20, learning_rate=0.05, momentum=0.5),
    rounds=5.5,
)


def test_only_the_labels_of_the_byzantine_learner_are_flipped():
    clean, bad = (
        build_from_settings(replace(SETTING, byzantine=byzantine), "SyncDVW", 1)
        for byzantine in ({}, {0: "flipped"})
    )
    for name in clean.sites:
        for part in ("train", "validation"):
            before, after = (getattr(federation.sites[name], part) for federation in (clean, bad))
            assert (before.x == after.x).all()
            is_flipped = before.y != after.y
            assert is_flipped.all() if name == "learner-01" else not is_flipped.any()


def test_noise_takes_the_time_of_training_and_is_the_same_each_time():
    one = build_from_settings(replace(SETTING, byzantine={0: "noise"}), "AsyncDVW(a)", 1)
    assert [name for name, site in one.sites.items() if site.model is not None] == ["learner-01"]
    noise, data = one.sites["learner-01"].model, one.sites["learner-01"].train
    settings = TrainSettings(epochs=3, batch_size=20)
    sent = [train_model(noise, noise.initial(1), data, settings, np.random.default_rng(4)) for _ in range(2)]
    assert (sent[0].vector == sent[1].vector).all()
    assert sent[0].steps == one.model.steps(len(data), settings) == noise.steps(len(data), settings)
    epochs = noise.epochs(noise.initial(1), data, TrainingPlan(settings, np.random.default_rng(4)))
    assert [next(epochs).steps for _ in range(3)][-1] == sent[0].steps


@pytest.fixture(scope="module")
def lines():
    policies = (
        RobustnessStrategy("SyncFedAvg"),
        RobustnessStrategy("SyncDVW"),
        RobustnessStrategy("SyncDVW", include_own_validation=False),
    )
    return robustness_experiment(SETTING, [1], strategies=policies)


@pytest.mark.parametrize("attack", ["flipped labels", "noise"])
def test_a_byzantine_learner_weighs_less_than_half_an_equal_share_and_costs_less_than_a_third(lines, attack):
    fedavg, default, strict = (line for line in lines if line["attack"] == attack)
    assert fedavg["weight_fraction"] == pytest.approx(0.339, abs=0.01)
    assert fedavg["relative_to_fedavg"] is None
    assert strict["weight_fraction"] < strict["limit"] == 0.05
    for line in (default, strict):
        assert line["relative_to_fedavg"] < 1 / 3


def test_a_large_learner_agrees_with_its_own_wrong_labels(lines):
    _, default, strict = (line for line in lines if line["attack"] == "flipped labels")
    assert strict["weight_fraction"] < default["weight_fraction"] / 2


def test_harm_is_measured_against_the_same_policy_without_it(lines):
    clean = compare({"clean": SETTING}, ["SyncFedAvg"], [1])[0].accuracy
    assert lines[0]["clean"]["mean"] == clean
    assert lines[0]["loss"]["mean"] == pytest.approx(clean - lines[0]["attacked"]["mean"])
