"""Parallel training gives each learner the same bits as separate training."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import SGDClassifier
from torch import nn

from abaton.codecs import parse_codec
from abaton.controller import TrainSettings
from abaton.errors import SettingsError
from abaton.learners import Learner, ParallelTrainer, ParallelTrainingError, TrainingJob
from abaton.learners.process_pool import LearnerError, SharedArrays
from abaton.models import Examples, SklearnModel, TorchModel, mlp

SIZES = (1, 5, 32, 33, 70, 8, 16)
DENSE = mlp(features=6, classes=3, hidden=(8,))
SETTINGS = TrainSettings(epochs=2, batch_size=8, momentum=0.5)


class Convolution(nn.Module):
    """Convolution, running statistics and dropout: a module that is not dense."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.Dropout(0.3)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.norm(self.conv(x)).relu()).flatten(1))


CONV = TorchModel(Convolution)
LINEAR = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=6, classes=3)
MODELS = {"threads": DENSE, "processes": CONV, "sequential": LINEAR}


def learners(model, sizes=SIZES, codec: str = "raw") -> dict[str, Learner]:
    rng = np.random.default_rng(0)
    result = {}
    for i, size in enumerate(sizes):
        x = rng.normal(size=(size, 6)).astype(np.float32)
        x = x.reshape(size, 1, 2, 3) if model is CONV else x
        result[f"site{i}"] = Learner(
            f"site{i}", model, Examples(x, rng.integers(0, 3, size)), parse_codec(codec), seed=7
        )
    return result


def jobs(names, model, settings=SETTINGS, turn: int = 0) -> list[TrainingJob]:
    """Return a job for each learner, with its own start, version and settings."""
    job_list = []
    for name in names:
        index = int(name[4:])
        job_settings = TrainSettings(
            **{f: getattr(settings, f) for f in settings.__slots__} | {"epochs": 1 + index % 3}
        )
        job_list.append(
            TrainingJob(name, f"{name} turn {turn}", index + turn, model.initial(index), job_settings)
        )
    return job_list


def alone(model, settings=SETTINGS, turns: int = 1):
    present = learners(model)
    return [
        [
            present[j.learner].train(j.task, j.version, j.start, j.settings)
            for j in jobs(present, model, settings, t)
        ]
        for t in range(turns)
    ]


@pytest.mark.parametrize("mode", MODELS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_parallel_training_equals_separate_training(mode, workers):
    model = MODELS[mode]
    (expected,) = alone(model)
    present = learners(model)
    with ParallelTrainer(present, workers=workers) as trainer:
        assert {trainer.parallel_mode(name) for name in present} == {
            "sequential" if mode == "processes" and workers == 1 else mode
        }
        assert trainer.train(jobs(present, model)) == expected


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_bits_do_not_depend_on_the_other_learners(mode):
    model = MODELS[mode]
    (expected,) = alone(model)
    present = learners(model)
    order = jobs(present, model)
    with ParallelTrainer(present, workers=2) as trainer:
        batches = [order[5:], order[:2], order[2:5]]
        updates = {
            j.learner: u
            for batch in batches
            for j, u in zip(batch, trainer.train(batch[::-1])[::-1], strict=True)
        }
    assert [updates[name] for name in present] == expected


@pytest.mark.parametrize("mode", ["threads", "processes"])
@pytest.mark.parametrize(
    "settings",
    [
        TrainSettings(batch_size=8, optimiser="adam", keep_optimiser_state=True, learning_rate=0.01),
        TrainSettings(
            batch_size=8,
            momentum=0.9,
            keep_optimiser_state=True,
            proximal_mu=0.1,
            max_grad_norm=1.0,
            shuffle_window=4,
        ),
        TrainSettings(
            batch_size=8,
            learning_rate_schedule="cosine",
            learning_rate_decay=0.1,
            schedule_period=4,
            elapsed_epochs=1,
        ),
    ],
    ids=["adam", "all of it", "cosine"],
)
def test_local_state_is_kept_between_jobs(mode, settings):
    model = MODELS[mode]
    expected = alone(model, settings, turns=3)
    present = learners(model)
    with ParallelTrainer(present, workers=2) as trainer:
        for turn in range(3):
            assert trainer.train(jobs(present, model, settings, turn)) == expected[turn]
    assert all(bool(learner.local_state) == settings.keep_optimiser_state for learner in present.values())


def test_no_learner_is_trained_if_one_has_no_examples():
    present = learners(DENSE, sizes=(5, 0, 3))
    with (
        ParallelTrainer(present) as trainer,
        pytest.raises(SettingsError, match="learner 'site1' has no examples"),
    ):
        trainer.train(jobs(present, DENSE))
    with pytest.raises(SettingsError, match="learner 'site1' has no examples"):
        present["site1"].train("t", 0, DENSE.initial(0), SETTINGS)


def test_invalid_jobs_are_refused():
    present = learners(DENSE)
    with pytest.raises(SettingsError, match="workers is 0"):
        ParallelTrainer(present, workers=0)
    with ParallelTrainer(present) as trainer:
        assert trainer.train([]) == []
        twice = jobs(["site1", "site1"], DENSE)
        with pytest.raises(SettingsError, match="'site1' has 2 jobs at once"):
            trainer.train(twice)
        with pytest.raises(SettingsError, match="no learner 'site99'"):
            trainer.train(jobs(["site99"], DENSE))


@pytest.mark.parametrize("mode", MODELS)
def test_one_invalid_model_fails_by_name_and_the_others_are_trained(mode):
    model = MODELS[mode]
    (expected,) = alone(model)
    present = learners(model)
    order = jobs(present, model)
    order[2] = TrainingJob("site2", "bad", 0, np.full(model.layout.size, np.nan, np.float32), SETTINGS)
    with ParallelTrainer(present, workers=2) as trainer:
        with pytest.raises(ParallelTrainingError, match="not finite") as caught:
            trainer.train(order)
        assert list(caught.value.failures) == ["site2"]
        assert caught.value.updates == [*expected[:2], None, *expected[3:]]


class Deadly(Convolution):
    """Kill its process for inputs of 13; raise an error for inputs of 14."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x == 13).any():
            os.kill(os.getpid(), signal.SIGKILL)
        if (x == 14).any():
            raise RuntimeError("the secret of patient 14")
        return super().forward(x)


def test_a_dead_worker_is_reported_with_its_learner_and_replaced():
    model = TorchModel(Deadly)
    present = learners(model, sizes=(8, 8, 8, 8, 8))
    for name, learner in present.items():
        learner.examples = Examples(learner.examples.x.reshape(8, 1, 2, 3), learner.examples.y)
        if name == "site1":
            learner.examples.x[3] = 13
    order = jobs(present, model, replace(SETTINGS, keep_optimiser_state=True))
    with ParallelTrainer(present, workers=2) as trainer:
        for turn in range(2):
            with pytest.raises(ParallelTrainingError, match="learner 'site1' exited") as caught:
                trainer.train(order)
            assert isinstance(caught.value.failures["site1"], LearnerError)
            assert "exit code -9" in str(caught.value)
            assert [u is None for u in caught.value.updates] == [False, True, False, False, False], turn
        assert not present["site1"].local_state, "local state is unchanged"
        assert present["site2"].local_state
        assert len(trainer.train([order[0], *order[2:]])) == 4
        worker = trainer._pool._workers[0].process
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        with pytest.raises(ParallelTrainingError, match="exit code -9"):
            trainer.train(order[2:])
        assert len(trainer.train(order[2:])) == 3


def test_the_text_of_a_foreign_error_is_not_passed_on():
    model = TorchModel(Deadly)
    present = learners(model, sizes=(8, 8))
    for learner in present.values():
        learner.examples = Examples(learner.examples.x.reshape(8, 1, 2, 3), learner.examples.y)
    present["site0"].examples.x[0] = 14
    with (
        ParallelTrainer(present, workers=2) as trainer,
        pytest.raises(ParallelTrainingError, match="'site0' failed with Runtime") as seen,
    ):
        trainer.train(jobs(present, model))
    assert "secret" not in str(seen.value)


def test_examples_are_read_without_a_copy(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(40, 1, 2, 3)).astype(np.float32))
    np.save(tmp_path / "y.npy", rng.integers(0, 3, 40))
    x, y = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
    flat = x.reshape(40, 6)
    assert np.shares_memory(DENSE.dense.as_rows(flat), x)
    for model, inputs in ((CONV, x), (DENSE, flat)):
        halves = {"site0": slice(0, 25), "site1": slice(25, 40)}
        present = {
            n: Learner(n, model, Examples(inputs[h], y[h]), parse_codec("raw"), 0) for n, h in halves.items()
        }
        order = jobs(present, model)
        alone = [present[j.learner].train(j.task, j.version, j.start, j.settings) for j in order]
        for learner in present.values():
            learner.restore({})
        with ParallelTrainer(present, workers=2) as trainer:
            assert trainer.train(order) == alone


def test_learner_that_joins_later_is_trained():
    present = learners(CONV)
    (expected,) = alone(CONV)
    newcomer = present.pop("site6")
    with ParallelTrainer(present, workers=2) as trainer:
        first = trainer.train(jobs(present, CONV))
        present["site6"] = newcomer
        assert [*first, *trainer.train(jobs(["site6"], CONV))] == expected


def test_processes_stop_with_the_trainer():
    present = learners(CONV, sizes=(4, 4))
    with ParallelTrainer(present, workers=2) as trainer:
        trainer.train(jobs(present, CONV))
        processes = [worker.process for worker in trainer._pool._workers]
        assert all(process.is_alive() for process in processes)
    assert [process.exitcode for process in processes] == [0, 0]


def test_thread_limit_is_restored():
    before = torch.get_num_threads()
    present = learners(DENSE)
    with ParallelTrainer(present, workers=2) as trainer:
        trainer.train(jobs(present, DENSE))
    assert torch.get_num_threads() == before


def test_arrays_beyond_the_shared_memory_are_refused():
    shared = SharedArrays(4096)
    with pytest.raises(LearnerError, match="exceed the shared memory"):
        shared.write(0, {"start": np.zeros(2000, np.float32)})
