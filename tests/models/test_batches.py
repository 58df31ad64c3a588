"""Tasks limited by steps or by time: equal numbers of steps give the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.neural_network import MLPClassifier
from tests.learners.test_parallel_trainer import CONV, DENSE, MODELS, learners

from abaton.controller import TrainSettings, UpdateThresholds
from abaton.errors import SettingsError
from abaton.learners import Learner, ParallelTrainer, TrainingJob, TrainingMonitor
from abaton.models import Examples, SklearnModel

NETWORK = SklearnModel(lambda: MLPClassifier((5,)), features=6, classes=3)
ALL_MODELS = {**MODELS, "own shuffle": NETWORK}
SETTINGS = TrainSettings(epochs=2, batch_size=8)


class Clock:
    """A clock that advances by a second at each call."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        self.time += 1.0
        return self.time


def open_learner(model, size: int = 33) -> Learner:
    (learner,) = learners(model, sizes=(size,)).values()
    validation = learners(model, sizes=(12, 12))["site1"].examples
    learner.validation = validation
    return learner


@pytest.mark.parametrize("mode", ALL_MODELS)
@pytest.mark.parametrize("steps", [1, 4, 5, 6, 13])
def test_equal_steps_by_count_or_time_give_equal_bits(mode, steps):
    model = ALL_MODELS[mode]
    start = model.initial(1)
    exact = open_learner(model).train("t", 0, start, replace(SETTINGS, steps=steps))
    # The clock is read once at the start, and once after every batch.
    timed = open_learner(model).train(
        "t", 0, start, replace(SETTINGS, time_budget_seconds=float(steps)), TrainingMonitor(clock=Clock())
    )
    assert exact.steps == timed.steps == steps
    assert exact == timed
    both = replace(SETTINGS, steps=steps, time_budget_seconds=1e9)
    assert open_learner(model).train("t", 0, start, both) == exact, "a number of steps needs no clock"


@pytest.mark.parametrize("mode", MODELS)
def test_the_steps_of_two_epochs_equal_two_epochs(mode):
    model = MODELS[mode]
    start, epochs = model.initial(1), open_learner(model).train("t", 0, model.initial(1), SETTINGS)
    counted = open_learner(model).train("t", 0, start, replace(SETTINGS, steps=2 * 5))
    if mode != "sequential":  # an estimator shuffles the rows of each call, an epoch or a batch
        assert counted == epochs
    assert counted.steps == epochs.steps == 10


def test_kept_momentum_continues_after_a_partial_epoch():
    settings = replace(SETTINGS, steps=3, momentum=0.9, keep_optimiser_state=True)
    continued, fresh = open_learner(DENSE), open_learner(DENSE)
    continued.train("t1", 0, DENSE.initial(0), settings)
    update = continued.train("t2", 1, DENSE.initial(0), settings)
    assert update.steps == 3
    assert update != fresh.train("t2", 1, DENSE.initial(0), settings)


def test_an_exhausted_time_budget_still_gives_one_step():
    update = open_learner(DENSE).train(
        "t", 0, DENSE.initial(0), replace(SETTINGS, time_budget_seconds=1e-9), TrainingMonitor(clock=Clock())
    )
    assert update.steps == 1


def test_a_budget_without_a_clock_is_refused():
    with pytest.raises(SettingsError, match="time budget but no clock"):
        open_learner(DENSE).train("t", 0, DENSE.initial(0), replace(SETTINGS, time_budget_seconds=1.0))


def test_training_with_validation_data_uses_both_sets_and_sends_no_counts():
    learner = open_learner(DENSE)
    arrays = [
        np.concatenate(pair)
        for pair in ((learner.examples.x, learner.validation.x), (learner.examples.y, learner.validation.y))
    ]
    pooled = Learner("site0", DENSE, Examples(*arrays), learner.codec, seed=7)
    update = learner.train("t", 0, DENSE.initial(0), replace(SETTINGS, use_validation_data=True))
    assert update == pooled.train("t", 0, DENSE.initial(0), SETTINGS)
    assert update.counts == ()
    assert learner.steps(replace(SETTINGS, use_validation_data=True)) == 2 * 6


@pytest.mark.parametrize("mode", ["threads", "processes"])
@pytest.mark.parametrize(
    "settings",
    [
        TrainSettings(epochs=9, batch_size=8, update_thresholds=UpdateThresholds(loss=2.0, tombstones=1)),
        TrainSettings(epochs=9, batch_size=8, update_thresholds=UpdateThresholds(0.0, 9), staleness_limit=11),
        TrainSettings(epochs=9, batch_size=8, steps=7),
        TrainSettings(epochs=2, batch_size=8, use_validation_data=True),
    ],
    ids=["adaptive", "stale", "steps", "complete"],
)
def test_all_settings_give_equal_updates_in_every_mode(mode, settings):
    model = MODELS[mode]

    def present() -> dict[str, Learner]:
        present_learners = learners(model, sizes=(30, 40, 50))
        for learner in present_learners.values():
            learner.validation = learner.examples
        return present_learners

    expected = [
        learner.train("t", 0, model.initial(i), settings) for i, learner in enumerate(present().values())
    ]
    present_learners = present()
    jobs = [TrainingJob(name, "t", 0, model.initial(i), settings) for i, name in enumerate(present_learners)]
    with ParallelTrainer(present_learners, workers=2) as trainer:
        assert trainer.train(jobs) == expected
    if settings.update_thresholds is not None:
        assert all(4 <= update.steps < 9 * 7 for update in expected), "learners decided when to send"
        without_thresholds = replace(settings, update_thresholds=None)
        assert present()["site0"].train("t", 0, model.initial(0), without_thresholds) != expected[0]


def test_validation_labels_are_counted():
    learner = open_learner(CONV)
    assert learner.labels == tuple(np.bincount(learner.validation.y).tolist())
    learner.validation = None
    assert learner.labels == ()
