"""Tasks of so many batches, or of so much time: equally many give the same bits, however it came about."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.neural_network import MLPClassifier
from test_crew import CONV, DENSE, MODELS, learners

from abaton.controller import Thresholds, TrainSettings
from abaton.errors import SettingsError
from abaton.learners import Crew, Examples, Job, Learner, SklearnModel, Watch

NETWORK = SklearnModel(lambda: MLPClassifier((5,)), features=6, classes=3)
EVERY = {**MODELS, "shuffles itself": NETWORK}
SETTINGS = TrainSettings(epochs=2, batch_size=8)


class Clock:
    """A clock that goes on by a second whenever it is looked at."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        self.time += 1.0
        return self.time


def one(model, size: int = 33) -> Learner:
    (made,) = learners(model, sizes=(size,)).values()
    held = learners(model, sizes=(12, 12))["site1"].examples
    made.validation = held
    return made


@pytest.mark.parametrize("way", EVERY)
@pytest.mark.parametrize("steps", [1, 4, 5, 6, 13])
def test_so_many_steps_or_so_much_time_are_the_same_to_the_bit(way, steps):
    model = EVERY[way]
    start = model.initial(1)
    exact = one(model).train("t", 0, start, replace(SETTINGS, steps=steps))
    # The clock is looked at once to begin with, and once after every batch.
    timed = one(model).train("t", 0, start, replace(SETTINGS, budget=float(steps)), Watch(clock=Clock()))
    assert exact.steps == timed.steps == steps
    assert exact == timed
    both = replace(SETTINGS, steps=steps, budget=1e9)
    assert one(model).train("t", 0, start, both) == exact, "a number of steps needs no clock"


@pytest.mark.parametrize("way", MODELS)
def test_as_many_steps_as_two_epochs_have_are_two_epochs(way):
    model = MODELS[way]
    start, epochs = model.initial(1), one(model).train("t", 0, model.initial(1), SETTINGS)
    counted = one(model).train("t", 0, start, replace(SETTINGS, steps=2 * 5))
    if way != "here":  # an estimator is given an epoch at once, or batch by batch, and shuffles it itself
        assert counted == epochs
    assert counted.steps == epochs.steps == 10


def test_momentum_that_is_kept_goes_on_after_a_part_of_an_epoch():
    settings = replace(SETTINGS, steps=3, momentum=0.9, keep_momentum=True)
    kept, fresh = one(DENSE), one(DENSE)
    kept.train("t1", 0, DENSE.initial(0), settings)
    again = kept.train("t2", 1, DENSE.initial(0), settings)
    assert again.steps == 3
    assert again != fresh.train("t2", 1, DENSE.initial(0), settings)


def test_a_budget_that_is_over_at_once_still_gives_one_step():
    update = one(DENSE).train("t", 0, DENSE.initial(0), replace(SETTINGS, budget=1e-9), Watch(clock=Clock()))
    assert update.steps == 1


def test_a_budget_without_a_clock_is_refused():
    with pytest.raises(SettingsError, match="time budget but no clock"):
        one(DENSE).train("t", 0, DENSE.initial(0), replace(SETTINGS, budget=1.0))


def test_complete_training_is_training_on_both_and_tells_no_score():
    learner = one(DENSE)
    both = [
        np.concatenate(pair)
        for pair in ((learner.examples.x, learner.validation.x), (learner.examples.y, learner.validation.y))
    ]
    pooled = Learner("site0", DENSE, Examples(*both), learner.codec, seed=7)
    made = learner.train("t", 0, DENSE.initial(0), replace(SETTINGS, complete=True))
    assert made == pooled.train("t", 0, DENSE.initial(0), SETTINGS)
    assert made.score == ()
    assert learner.steps(replace(SETTINGS, complete=True)) == 2 * 6


@pytest.mark.parametrize("way", ["threads", "processes"])
@pytest.mark.parametrize(
    "settings",
    [
        TrainSettings(epochs=9, batch_size=8, adaptive=Thresholds(loss=2.0, tombstones=1)),
        TrainSettings(epochs=9, batch_size=8, adaptive=Thresholds(0.0, 9), staleness_limit=11),
        TrainSettings(epochs=9, batch_size=8, steps=7),
        TrainSettings(epochs=2, batch_size=8, complete=True),
    ],
    ids=["adaptive", "stale", "steps", "complete"],
)
def test_processes_keep_to_all_settings_as_this_process_does(way, settings):
    model = MODELS[way]

    def present() -> dict[str, Learner]:
        made = learners(model, sizes=(30, 40, 50))
        for learner in made.values():
            learner.validation = learner.examples
        return made

    expected = [
        learner.train("t", 0, model.initial(i), settings) for i, learner in enumerate(present().values())
    ]
    everybody = present()
    jobs = [Job(name, "t", 0, model.initial(i), settings) for i, name in enumerate(everybody)]
    with Crew(everybody, workers=2) as crew:
        assert crew.train(jobs) == expected
    if settings.adaptive is not None:
        assert all(4 <= update.steps < 9 * 7 for update in expected), "they decided themselves"
        plain = replace(settings, adaptive=None)
        assert present()["site0"].train("t", 0, model.initial(0), plain) != expected[0]


def test_validation_labels_are_counted():
    learner = one(CONV)
    assert learner.labels == tuple(np.bincount(learner.validation.y).tolist())
    learner.validation = None
    assert learner.labels == ()
