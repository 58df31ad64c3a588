"""The one worker: in which order it asks, writes and answers, and what is left when something goes wrong."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from tests.engines.test_engine_contract import MODEL, SETTINGS

from abaton.codecs import parse
from abaton.engines import EvaluateTask, TrainTask
from abaton.engines.site_state import SiteState
from abaton.engines.task_handler import Worker
from abaton.errors import LayoutError, Refused, StoreError
from abaton.learners import Examples, Learner, Reply, Request

ZEROS = np.zeros(MODEL.layout.size, np.float32)
CANARY = "patient Zanzibar-4711"


class Told(Learner):
    """A learner that says what it is asked, and fails as a test wants."""

    error: Exception | None = None

    def __init__(self, *words: object, said: list[str], **more: object) -> None:
        super().__init__(*words, **more)
        self.said = said

    def begin(self, at: float, version: int | None = None) -> None:
        self.said.append(f"begin {at:.0f} {version}")

    def train(self, *words: object):
        self.said.append("train")
        made = super().train(*words)
        if self.error is not None:
            raise self.error
        return made

    def evaluate(self, model: np.ndarray):
        self.said.append("evaluate")
        return super().evaluate(model)


class Policy:
    """A policy that says what it is asked."""

    def __init__(self, said: list[str]) -> None:
        self.said, self.refuses = said, ""

    def admits(self, asked: Request) -> None:
        self.said.append(f"admits {asked.kind}")
        if self.refuses == "admits":
            raise Refused("not today")

    def releases(self, asked: Request, reply: Reply) -> Reply:
        self.said.append(f"releases {asked.kind}")
        if self.refuses == "releases":
            raise Refused("not this")
        return reply


@pytest.fixture
def learner() -> Told:
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    data, said = Examples(x, (x[:, 0] > 0).astype(np.int64)), []
    made = Told("a", MODEL, data, parse("error_feedback | stc(sparsity=0.5)"), 0, data, said=said)
    made.policy = Policy(said)
    return made


def task(key: str = "t") -> TrainTask:
    return TrainTask(key, "a", 3, ZEROS, SETTINGS)


def test_a_task_takes_its_way_in_order(learner, tmp_path):
    state = SiteState(tmp_path, "a")
    worker = Worker(learner, state, now=lambda: 7.0)
    first = worker.answer(task())
    assert learner.said == ["admits train", "begin 7 3", "train", "evaluate", "releases train"]
    assert first.about.keys() == {"key", "steps", "loss", "score", "examples", "cohort"}
    learner.said.clear()
    again = Worker(learner, SiteState(tmp_path, "a"), now=lambda: 7.0).answer(task())
    assert learner.said == ["admits train", "releases train"], "what is on disk is asked for, not done again"
    assert (again.payload, again.about["steps"]) == (first.payload, first.about["steps"])
    learner.said.clear()
    score = worker.answer(EvaluateTask("e@a", "a", ZEROS))
    assert learner.said == ["admits evaluate", "begin 7 None", "evaluate", "releases evaluate"]
    assert score.about.keys() == {"key", "score"}


@pytest.mark.parametrize("refuses", ["admits", "releases"])
def test_an_answer_on_disk_is_refused_like_any_other(learner, tmp_path, refuses):
    Worker(learner, SiteState(tmp_path, "a")).answer(task())
    learner.policy.refuses = refuses
    again = Worker(learner, SiteState(tmp_path, "a")).answer(task())
    assert again == Reply({"key": "t", "reason": "task was refused"})


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ZeroDivisionError(CANARY), "learner failed"), (LayoutError("not finite"), "task was refused")],
)
def test_what_goes_wrong_is_a_fixed_word_and_the_learner_keeps_what_it_kept(learner, caplog, error, reason):
    worker, before = Worker(learner), {name: values.copy() for name, values in learner.kept.items()}
    learner.error = error
    with caplog.at_level(logging.WARNING):
        assert worker.answer(task()) == Reply({"key": "t", "reason": reason})
    assert CANARY not in caplog.text, "the text of an error that is not ours may hold content"
    assert ("ZeroDivisionError at test_worker.py" in caplog.text) == (reason == "learner failed")
    assert all((learner.kept[name] == values).all() for name, values in before.items())
    learner.error = None
    fresh = Learner("a", MODEL, learner.examples, learner.codec, 0, learner.validation)
    assert worker.answer(task()).payload == fresh.train("t", 3, ZEROS, SETTINGS).payload


def test_an_answer_that_cannot_be_written_down_does_not_leave(learner, tmp_path, monkeypatch):
    state = SiteState(tmp_path, "a")
    worker, before = Worker(learner, state), {name: values.copy() for name, values in learner.kept.items()}

    def full(*_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(state, "save", full)
    assert worker.answer(task()) == Reply({"key": "t", "reason": "task was refused"})
    assert all((learner.kept[name] == values).all() for name, values in before.items())
    assert list(tmp_path.iterdir()) == []
