"""Stacks of small networks: the same bits as separate training, and isolated failures."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.codecs import parse_codec
from abaton.controller import TrainSettings
from abaton.learners import (
    Learner,
    ParallelTrainer,
    ParallelTrainingError,
    TrainingJob,
    parallel_trainer,
    stacked_training,
)
from abaton.models import Examples, mlp

CLASSES = mlp(features=6, classes=3, hidden=(8,))
VALUES = mlp(features=6, hidden=(8,), task="regression")
SIZES = (1, 5, 32, 33, 70, 8)
SETTINGS = {"batch_size": 8, "epochs": 3}


def learners(model, codec: str = "raw") -> dict[str, Learner]:
    rng = np.random.default_rng(0)
    result = {}
    for i, size in enumerate(SIZES):
        y = rng.integers(0, 3, size) if model is CLASSES else rng.normal(size=size).astype(np.float32)
        data = Examples(rng.normal(size=(size, 6)).astype(np.float32), y)
        result[f"site{i}"] = Learner(f"site{i}", model, data, parse_codec(codec), seed=7)
    return result


def jobs(model, settings) -> list[TrainingJob]:
    return [TrainingJob(f"site{i}", f"task {i}", i, model.initial(i), settings) for i in range(len(SIZES))]


@pytest.fixture
def calls(monkeypatch):
    """Return a list of the stack sizes of all calls."""
    stack_sizes = []

    def record_call(network, slots, *arguments):
        stack_sizes.append(len(slots))
        return stacked_train(network, slots, *arguments)

    stacked_train = stacked_training.train_stacked
    monkeypatch.setattr(stacked_training, "train_stacked", record_call)
    return stack_sizes


@pytest.mark.parametrize("model", [CLASSES, VALUES], ids=["classes", "values"])
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize(
    "settings",
    [
        TrainSettings(**SETTINGS),
        TrainSettings(**SETTINGS, optimiser="adam", learning_rate=0.01),
        TrainSettings(**SETTINGS, momentum=0.9, proximal_mu=0.1, max_grad_norm=1.0, shuffle_window=4),
        TrainSettings(
            **SETTINGS,
            learning_rate_schedule="cosine",
            learning_rate_decay=0.1,
            schedule_period=4,
            elapsed_epochs=1,
        ),
    ],
    ids=["sgd", "adam", "all of it", "cosine"],
)
def test_stacked_training_equals_separate_training(model, workers, settings, calls, monkeypatch):
    monkeypatch.setattr(parallel_trainer, "_MIN_PARALLEL_OPERATIONS", 0.0)  # so that small stacks are divided
    by_itself = learners(model)
    expected = [
        by_itself[j.learner].train(j.task, j.version, j.start, j.settings) for j in jobs(model, settings)
    ]
    with ParallelTrainer(learners(model), workers=workers) as trainer:
        assert trainer.train(jobs(model, settings)) == expected
    assert calls == [len(SIZES)]


def test_local_state_continues_between_tasks(calls):
    codec, settings = "error_feedback | stc(sparsity=0.1)", TrainSettings(**SETTINGS)
    by_itself, together = learners(CLASSES, codec), learners(CLASSES, codec)
    with ParallelTrainer(together, workers=2) as trainer:
        for _ in range(3):
            updates = trainer.train(jobs(CLASSES, settings))
            for job, update in zip(jobs(CLASSES, settings), updates, strict=True):
                assert update == by_itself[job.learner].train(job.task, job.version, job.start, job.settings)
    assert calls == [len(SIZES)] * 3


def test_stacks_are_bounded_and_have_equal_settings(calls, monkeypatch):
    monkeypatch.setattr(parallel_trainer, "_MAX_STACK_VALUES", 6 * 40)  # 40 rows of 6
    stacked_jobs = jobs(CLASSES, TrainSettings(**SETTINGS))
    with ParallelTrainer(learners(CLASSES), workers=2) as trainer:
        assert len(trainer.train(stacked_jobs)) == len(SIZES)
    assert calls == [3]  # 1 + 5 + 32 rows; 33, 70 and 8 are trained separately
    calls.clear()
    different_jobs = [
        TrainingJob(j.learner, j.task, j.version, j.start, TrainSettings(epochs=n + 1))
        for n, j in enumerate(stacked_jobs)
    ]
    with ParallelTrainer(learners(CLASSES), workers=2) as trainer:
        assert len(trainer.train(different_jobs)) == len(SIZES)
    assert calls == []


def test_tasks_with_state_or_limits_are_trained_separately(calls):
    for settings in (
        TrainSettings(steps=3),
        TrainSettings(momentum=0.5, keep_optimiser_state=True),
        TrainSettings(use_validation_data=True),
    ):
        with ParallelTrainer(learners(CLASSES), workers=2) as trainer:
            assert len(trainer.train(jobs(CLASSES, settings))) == len(SIZES)
    assert calls == []


@pytest.mark.parametrize("trouble", ["label", "diverges"])
def test_failure_of_one_learner_is_isolated(trouble, calls):
    settings = TrainSettings(**SETTINGS)
    present = learners(CLASSES)
    if trouble == "label":
        present["site2"].examples.y[3] = 9
    else:
        present["site2"].examples.x[:] = 1e30
    by_itself = learners(CLASSES)
    with ParallelTrainer(present, workers=2) as trainer, pytest.raises(ParallelTrainingError) as caught:
        trainer.train(jobs(CLASSES, settings))
    assert list(caught.value.failures) == ["site2"]
    assert ("classes" if trouble == "label" else "not finite") in str(caught.value.failures["site2"])
    for job, update in zip(jobs(CLASSES, settings), caught.value.updates, strict=True):
        if job.learner != "site2":
            assert update == by_itself[job.learner].train(job.task, job.version, job.start, job.settings)
    assert calls == [len(SIZES)]


def test_invalid_setting_is_refused():
    with (
        ParallelTrainer(learners(CLASSES), workers=2) as trainer,
        pytest.raises(ParallelTrainingError, match="no optimiser 'best'"),
    ):
        trainer.train(jobs(CLASSES, TrainSettings(optimiser="best")))
