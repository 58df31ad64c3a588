"""Many learners at once: each answer is to the bit what the learner would have given alone."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch
from sklearn.linear_model import SGDClassifier
from torch import nn

from abaton.codecs import parse
from abaton.controller import TrainSettings
from abaton.errors import SettingsError
from abaton.learners import Crew, CrewError, Examples, Job, Learner, SklearnModel, TorchModel, mlp
from abaton.learners.process_pool import Desk, LearnerError

SIZES = (1, 5, 32, 33, 70, 8, 16)
DENSE = mlp(features=6, classes=3, hidden=(8,))
SETTINGS = TrainSettings(epochs=2, batch_size=8, momentum=0.5)


class Convolution(nn.Module):
    """A little of everything that is not dense: convolution, running statistics, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.Dropout(0.3)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.norm(self.conv(x)).relu()).flatten(1))


CONV = TorchModel(Convolution)
TREE = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=6, classes=3)
MODELS = {"threads": DENSE, "processes": CONV, "here": TREE}


def learners(model, sizes=SIZES, codec: str = "raw") -> dict[str, Learner]:
    rng = np.random.default_rng(0)
    made = {}
    for i, size in enumerate(sizes):
        x = rng.normal(size=(size, 6)).astype(np.float32)
        x = x.reshape(size, 1, 2, 3) if model is CONV else x
        made[f"site{i}"] = Learner(
            f"site{i}", model, Examples(x, rng.integers(0, 3, size)), parse(codec), seed=7
        )
    return made


def jobs(names, model, settings=SETTINGS, turn: int = 0) -> list[Job]:
    """Each learner with its own start, version and settings."""
    made = []
    for name in names:
        own = int(name[4:])
        plan = TrainSettings(
            **{f: getattr(settings, f) for f in settings.__slots__} | {"epochs": 1 + own % 3}
        )
        made.append(Job(name, f"{name} turn {turn}", own + turn, model.initial(own), plan))
    return made


def alone(model, settings=SETTINGS, turns: int = 1):
    fresh = learners(model)
    return [
        [
            fresh[j.learner].train(j.task, j.version, j.start, j.settings)
            for j in jobs(fresh, model, settings, t)
        ]
        for t in range(turns)
    ]


@pytest.mark.parametrize("way", MODELS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_crew_gives_the_bits_of_each_learner_alone(way, workers):
    model = MODELS[way]
    (expected,) = alone(model)
    present = learners(model)
    with Crew(present, workers=workers) as crew:
        assert {crew.way(name) for name in present} == {
            "here" if way == "processes" and workers == 1 else way
        }
        assert crew.train(jobs(present, model)) == expected


@pytest.mark.parametrize("way", ["threads", "processes"])
def test_bits_do_not_depend_on_who_is_trained_together(way):
    model = MODELS[way]
    (expected,) = alone(model)
    present = learners(model)
    order = jobs(present, model)
    with Crew(present, workers=2) as crew:
        pieces = [order[5:], order[:2], order[2:5]]
        given = {
            j.learner: u
            for piece in pieces
            for j, u in zip(piece, crew.train(piece[::-1])[::-1], strict=True)
        }
    assert [given[name] for name in present] == expected


@pytest.mark.parametrize("way", ["threads", "processes"])
@pytest.mark.parametrize(
    "settings",
    [
        TrainSettings(batch_size=8, solver="adam", keep_momentum=True, learning_rate=0.01),
        TrainSettings(batch_size=8, momentum=0.9, keep_momentum=True, proximal=0.1, clip=1.0, window=4),
        TrainSettings(batch_size=8, schedule="cosine", decay=0.1, period=4, elapsed=1),
    ],
    ids=["adam", "all of it", "cosine"],
)
def test_what_a_learner_keeps_survives_between_its_jobs(way, settings):
    model = MODELS[way]
    expected = alone(model, settings, turns=3)
    present = learners(model)
    with Crew(present, workers=2) as crew:
        for turn in range(3):
            assert crew.train(jobs(present, model, settings, turn)) == expected[turn]
    stays = settings.keep_momentum or way == "processes"  # statistics of the normalisation layer
    assert all(bool(learner.kept) == stays for learner in present.values())


def test_nobody_is_trained_if_one_learner_has_no_examples():
    present = learners(DENSE, sizes=(5, 0, 3))
    with Crew(present) as crew, pytest.raises(SettingsError, match="learner 'site1' has no examples"):
        crew.train(jobs(present, DENSE))
    with pytest.raises(SettingsError, match="learner 'site1' has no examples"):
        present["site1"].train("t", 0, DENSE.initial(0), SETTINGS)


def test_jobs_that_make_no_sense_are_refused():
    present = learners(DENSE)
    with pytest.raises(SettingsError, match="workers is 0"):
        Crew(present, workers=0)
    with Crew(present) as crew:
        assert crew.train([]) == []
        twice = jobs(["site1", "site1"], DENSE)
        with pytest.raises(SettingsError, match="'site1' has 2 jobs at once"):
            crew.train(twice)
        with pytest.raises(SettingsError, match="no learner 'site99'"):
            crew.train(jobs(["site99"], DENSE))


@pytest.mark.parametrize("way", MODELS)
def test_one_bad_model_fails_by_name_and_the_others_are_done(way):
    model = MODELS[way]
    (expected,) = alone(model)
    present = learners(model)
    order = jobs(present, model)
    order[2] = Job("site2", "bad", 0, np.full(model.layout.size, np.nan, np.float32), SETTINGS)
    with Crew(present, workers=2) as crew:
        with pytest.raises(CrewError, match="not finite") as caught:
            crew.train(order)
        assert list(caught.value.failures) == ["site2"]
        assert caught.value.updates == [*expected[:2], None, *expected[3:]]


class Deadly(Convolution):
    """Kills its own process when it sees a row of the number 13."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x == 13).any():
            os.kill(os.getpid(), signal.SIGKILL)
        if (x == 14).any():
            raise RuntimeError("the secret of patient 14")
        return super().forward(x)


def test_a_worker_that_dies_is_reported_with_its_learner_and_replaced():
    model = TorchModel(Deadly)
    present = learners(model, sizes=(8, 8, 8, 8, 8))
    for name, learner in present.items():
        learner.examples = Examples(learner.examples.x.reshape(8, 1, 2, 3), learner.examples.y)
        if name == "site1":
            learner.examples.x[3] = 13
    order = jobs(present, model)
    with Crew(present, workers=2) as crew:
        for turn in range(2):
            with pytest.raises(CrewError, match="learner 'site1' ended") as caught:
                crew.train(order)
            assert isinstance(caught.value.failures["site1"], LearnerError)
            assert "exit code -9" in str(caught.value)
            assert [u is None for u in caught.value.updates] == [False, True, False, False, False], turn
        assert not present["site1"].kept, "what a learner keeps is as it was before"
        assert present["site2"].kept
        assert len(crew.train([order[0], *order[2:]])) == 4
        worker = crew._pool._workers[0].process
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        with pytest.raises(CrewError, match="exit code -9"):
            crew.train(order[2:])
        assert len(crew.train(order[2:])) == 3


def test_the_text_of_a_foreign_error_is_not_passed_on():
    model = TorchModel(Deadly)
    present = learners(model, sizes=(8, 8))
    for learner in present.values():
        learner.examples = Examples(learner.examples.x.reshape(8, 1, 2, 3), learner.examples.y)
    present["site0"].examples.x[0] = 14
    with (
        Crew(present, workers=2) as crew,
        pytest.raises(CrewError, match="'site0' failed with Runtime") as seen,
    ):
        crew.train(jobs(present, model))
    assert "secret" not in str(seen.value)


def test_examples_are_read_where_they_lie(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(40, 1, 2, 3)).astype(np.float32))
    np.save(tmp_path / "y.npy", rng.integers(0, 3, 40))
    x, y = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
    flat = x.reshape(40, 6)
    assert np.shares_memory(DENSE.dense.rows(flat), x)
    for model, inputs in ((CONV, x), (DENSE, flat)):
        halves = {"site0": slice(0, 25), "site1": slice(25, 40)}
        present = {
            n: Learner(n, model, Examples(inputs[h], y[h]), parse("raw"), 0) for n, h in halves.items()
        }
        order = jobs(present, model)
        alone = [present[j.learner].train(j.task, j.version, j.start, j.settings) for j in order]
        for learner in present.values():
            learner.restore({})
        with Crew(present, workers=2) as crew:
            assert crew.train(order) == alone


def test_who_joins_later_is_trained_too():
    present = learners(CONV)
    (expected,) = alone(CONV)
    late = present.pop("site6")
    with Crew(present, workers=2) as crew:
        first = crew.train(jobs(present, CONV))
        present["site6"] = late
        assert [*first, *crew.train(jobs(["site6"], CONV))] == expected


def test_processes_end_with_the_crew():
    present = learners(CONV, sizes=(4, 4))
    with Crew(present, workers=2) as crew:
        crew.train(jobs(present, CONV))
        processes = [worker.process for worker in crew._pool._workers]
        assert all(process.is_alive() for process in processes)
    assert [process.exitcode for process in processes] == [0, 0]


def test_threads_are_as_many_again_afterwards():
    before = torch.get_num_threads()
    present = learners(DENSE)
    with Crew(present, workers=2) as crew:
        crew.train(jobs(present, DENSE))
    assert torch.get_num_threads() == before


def test_what_does_not_fit_the_shared_memory_is_refused():
    desk = Desk(4096)
    with pytest.raises(LearnerError, match="more than fits"):
        desk.put(0, {"start": np.zeros(2000, np.float32)})
