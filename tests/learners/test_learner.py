from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from abaton.codecs import parse_codec
from abaton.controller import TrainSettings
from abaton.errors import RefusedError
from abaton.learners import Learner
from abaton.models import Examples, mlp

MODEL = mlp(features=6, classes=3, hidden=(8,))
SETTINGS = TrainSettings(epochs=3, batch_size=8, momentum=0.9, keep_optimiser_state=True)


def data(count: int, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 6)).astype(np.float32)
    return Examples(x, (x[:, 0] > 0).astype(np.int64))


def learner(**more) -> Learner:
    return Learner("north", MODEL, data(40), parse_codec("raw"), seed=3, **more)


def test_a_fixed_number_of_epochs_equals_stepwise_training():
    start = MODEL.initial(0)
    expected = [learner().train("t1", 0, start, SETTINGS)]
    stepwise = learner(validation=data(10, seed=1))
    *_, last = islice(stepwise.train_epochs("t1", start, SETTINGS), SETTINGS.epochs)
    assert [stepwise.send("task", 0, start, last.trained).payload] == [update.payload for update in expected]
    assert last.number == 3


def test_training_can_be_stopped_by_its_validation_loss():
    start, held_out = MODEL.initial(0), data(30, seed=1)
    instance = learner(validation=held_out)
    losses = []
    for epoch in instance.train_epochs("t1", start, SETTINGS):
        losses.append(epoch.validation_loss)
        assert epoch.validation_loss == MODEL.score(epoch.trained.vector, held_out).loss
        if len(losses) > 1 and losses[-1] > 0.9 * losses[-2]:
            break
    assert len(losses) > 3, "more epochs than settings.epochs, if requested"
    assert losses[0] > losses[-1]
    assert instance.send("task", 0, start, epoch.trained).steps == 5 * len(losses)


def test_epochs_without_send_leave_no_local_state():
    start, instance = MODEL.initial(0), learner()
    next(instance.train_epochs("t1", start, SETTINGS))
    assert not instance.local_state
    assert np.isnan(next(instance.train_epochs("t1", start, SETTINGS)).validation_loss)


def test_local_state_can_be_restored():
    start, instance = MODEL.initial(0), learner()
    instance.train("t1", 0, start, SETTINGS)
    assert sorted(instance.local_state) == [
        "model/optimiser.first",
        "model/optimiser.second",
        "model/optimiser.steps",
    ]
    other = learner()
    other.restore({name: values.copy() for name, values in instance.local_state.items()})
    assert other.train("t2", 1, start, SETTINGS) == instance.train("t2", 1, start, SETTINGS)
    assert learner().train("t2", 1, start, SETTINGS) != instance.train("t2", 1, start, SETTINGS)


@pytest.mark.parametrize("window", [0, 5])
def test_the_same_task_gives_the_same_update(window):
    settings = TrainSettings(epochs=2, batch_size=8, shuffle_window=window)
    first, again = (learner().train("t1", 0, MODEL.initial(0), settings) for _ in range(2))
    assert first == again != learner().train("t2", 0, MODEL.initial(0), settings)


def test_noise_requires_a_secret_and_differs_between_tasks():
    codec = parse_codec("clip(norm=1) | gaussian_noise(std=2) | raw")
    start = MODEL.initial(0)

    def sent(task: str, secret: bytes) -> bytes:
        instance = Learner("north", MODEL, data(40), codec, 3, secret=secret)
        trained = next(instance.train_epochs("the same training", start, SETTINGS)).trained
        return instance.send(task, 0, start, trained).payload

    with pytest.raises(RefusedError, match="secret"):
        sent("t1", b"")
    assert sent("t1", b"a") == sent("t1", b"a")
    assert len({sent("t1", b"a"), sent("t2", b"a"), sent("t1", b"b")}) == 3


def test_update_with_noise_has_no_loss_and_no_counts():
    codec = parse_codec("clip(norm=1) | gaussian_noise(std=2) | raw")
    instance = Learner("north", MODEL, data(40), codec, 3, validation=data(10), secret=b"a")
    update = instance.train("t1", 0, MODEL.initial(0), SETTINGS)
    assert (update.loss, update.counts) == (None, ())
