"""Small networks in one compiled call: the same bits as alone, and one learner's trouble stays its own."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.codecs import parse
from abaton.controller import TrainSettings
from abaton.learners import Crew, CrewError, Examples, Job, Learner, mlp, parallel_trainer

CLASSES = mlp(features=6, classes=3, hidden=(8,))
VALUES = mlp(features=6, hidden=(8,), task="value")
SIZES = (1, 5, 32, 33, 70, 8)
PLAIN = {"batch_size": 8, "epochs": 3}


def learners(model, codec: str = "raw") -> dict[str, Learner]:
    rng = np.random.default_rng(0)
    made = {}
    for i, size in enumerate(SIZES):
        y = rng.integers(0, 3, size) if model is CLASSES else rng.normal(size=size).astype(np.float32)
        data = Examples(rng.normal(size=(size, 6)).astype(np.float32), y)
        made[f"site{i}"] = Learner(f"site{i}", model, data, parse(codec), seed=7)
    return made


def jobs(model, settings) -> list[Job]:
    return [Job(f"site{i}", f"task {i}", i, model.initial(i), settings) for i in range(len(SIZES))]


@pytest.fixture
def calls(monkeypatch):
    """How many learners each call has trained."""
    made = []

    def counted(network, seats, *more):
        made.append(len(seats))
        return stacked_train(network, seats, *more)

    stacked_train = parallel_trainer.train_stacked
    monkeypatch.setattr(parallel_trainer, "train_stacked", counted)
    return made


@pytest.mark.parametrize("model", [CLASSES, VALUES], ids=["classes", "values"])
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize(
    "settings",
    [
        TrainSettings(**PLAIN),
        TrainSettings(**PLAIN, solver="adam", learning_rate=0.01),
        TrainSettings(**PLAIN, momentum=0.9, proximal=0.1, clip=1.0, window=4),
        TrainSettings(**PLAIN, schedule="cosine", decay=0.1, period=4, elapsed=1),
    ],
    ids=["plain", "adam", "all of it", "cosine"],
)
def test_the_bits_are_those_of_training_alone(model, workers, settings, calls, monkeypatch):
    monkeypatch.setattr(parallel_trainer, "_WORTH_A_CALL", 0.0)  # so that small work is divided, too
    by_itself = learners(model)
    expected = [
        by_itself[j.learner].train(j.task, j.version, j.start, j.settings) for j in jobs(model, settings)
    ]
    with Crew(learners(model), workers=workers) as some:
        assert some.train(jobs(model, settings)) == expected
    assert calls == [len(SIZES)]


def test_what_is_kept_at_the_site_goes_on_from_task_to_task(calls):
    codec, settings = "error_feedback | stc(sparsity=0.1)", TrainSettings(**PLAIN)
    by_itself, together = learners(CLASSES, codec), learners(CLASSES, codec)
    with Crew(together, workers=2) as some:
        for _ in range(3):
            made = some.train(jobs(CLASSES, settings))
            for job, update in zip(jobs(CLASSES, settings), made, strict=True):
                assert update == by_itself[job.learner].train(job.task, job.version, job.start, job.settings)
    assert calls == [len(SIZES)] * 3


def test_stacks_are_bounded_and_only_of_what_is_alike(calls, monkeypatch):
    monkeypatch.setattr(parallel_trainer, "_STACKED", 6 * 40)  # 40 rows of 6
    given = jobs(CLASSES, TrainSettings(**PLAIN))
    with Crew(learners(CLASSES), workers=2) as some:
        assert len(some.train(given)) == len(SIZES)
    assert calls == [3]  # 1 + 5 + 32 rows; 33, 70 and 8 are trained alone
    calls.clear()
    own = [
        Job(j.learner, j.task, j.version, j.start, TrainSettings(epochs=n + 1)) for n, j in enumerate(given)
    ]
    with Crew(learners(CLASSES), workers=2) as some:
        assert len(some.train(own)) == len(SIZES)
    assert calls == []


def test_tasks_that_ask_in_between_are_trained_alone(calls):
    for settings in (
        TrainSettings(steps=3),
        TrainSettings(momentum=0.5, keep_momentum=True),
        TrainSettings(complete=True),
    ):
        with Crew(learners(CLASSES), workers=2) as some:
            assert len(some.train(jobs(CLASSES, settings))) == len(SIZES)
    assert calls == []


@pytest.mark.parametrize("trouble", ["label", "diverges"])
def test_one_learners_trouble_stays_its_own(trouble, calls):
    settings = TrainSettings(**PLAIN)
    present = learners(CLASSES)
    if trouble == "label":
        present["site2"].examples.y[3] = 9
    else:
        present["site2"].examples.x[:] = 1e30
    by_itself = learners(CLASSES)
    with Crew(present, workers=2) as some, pytest.raises(CrewError) as caught:
        some.train(jobs(CLASSES, settings))
    assert list(caught.value.failures) == ["site2"]
    assert ("classes" if trouble == "label" else "not finite") in str(caught.value.failures["site2"])
    for job, update in zip(jobs(CLASSES, settings), caught.value.updates, strict=True):
        if job.learner != "site2":
            assert update == by_itself[job.learner].train(job.task, job.version, job.start, job.settings)
    assert calls == [len(SIZES)]


def test_a_wrong_setting_is_refused_as_alone():
    with Crew(learners(CLASSES), workers=2) as some, pytest.raises(CrewError, match="no solver 'best'"):
        some.train(jobs(CLASSES, TrainSettings(solver="best")))
