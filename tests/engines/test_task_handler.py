"""Task handler: the order of its steps, and the learner's state after a failure."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from tests.engines.test_engine_contract import MODEL, SETTINGS

from abaton.codecs import parse_codec
from abaton.engines import EvaluateTask, TrainTask
from abaton.engines.site_state import LearnerDiskState
from abaton.engines.task_handler import TaskHandler
from abaton.errors import LayoutError, RefusedError, StoreError
from abaton.learners import Learner, SiteReply, SiteRequest
from abaton.models import Examples

ZEROS = np.zeros(MODEL.layout.size, np.float32)
CANARY = "patient Zanzibar-4711"


class RecordingLearner(Learner):
    """Learner that records its calls and can fail."""

    error: Exception | None = None

    def __init__(self, *arguments: object, calls: list[str], **options: object) -> None:
        super().__init__(*arguments, **options)
        self.calls = calls

    def on_task_start(self, at: float, version: int | None = None) -> None:
        self.calls.append(f"begin {at:.0f} {version}")

    def train(self, *arguments: object):
        self.calls.append("train")
        update = super().train(*arguments)
        if self.error is not None:
            raise self.error
        return update

    def evaluate(self, model: np.ndarray):
        self.calls.append("evaluate")
        return super().evaluate(model)


class Policy:
    """Policy that records its calls."""

    def __init__(self, calls: list[str]) -> None:
        self.calls, self.refuses = calls, ""

    def admit(self, request: SiteRequest) -> None:
        self.calls.append(f"admits {request.message_type}")
        if self.refuses == "admits":
            raise RefusedError("not today")

    def release(self, request: SiteRequest, reply: SiteReply) -> SiteReply:
        self.calls.append(f"releases {request.message_type}")
        if self.refuses == "releases":
            raise RefusedError("not this")
        return reply


@pytest.fixture
def learner() -> RecordingLearner:
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    data, calls = Examples(x, (x[:, 0] > 0).astype(np.int64)), []
    built = RecordingLearner(
        "a", MODEL, data, parse_codec("error_feedback | stc(sparsity=0.5)"), 0, data, calls=calls
    )
    built.policy = Policy(calls)
    return built


def task(task_id: str = "t") -> TrainTask:
    return TrainTask(task_id, "a", 3, ZEROS, SETTINGS)


def test_a_task_is_handled_in_order(learner, tmp_path):
    state = LearnerDiskState(tmp_path, "a")
    handler = TaskHandler(learner, state, now=lambda: 7.0)
    first = handler.handle(task())
    assert learner.calls == ["admits train", "begin 7 3", "train", "evaluate", "releases train"]
    assert first.header.keys() == {"task_id", "steps", "loss", "counts", "examples", "cohort"}
    learner.calls.clear()
    again = TaskHandler(learner, LearnerDiskState(tmp_path, "a"), now=lambda: 7.0).handle(task())
    assert learner.calls == ["admits train", "releases train"], (
        "a stored reply is released again without training"
    )
    assert (again.payload, again.header["steps"]) == (first.payload, first.header["steps"])
    learner.calls.clear()
    evaluation = handler.handle(EvaluateTask("e@a", "a", ZEROS))
    assert learner.calls == ["admits evaluate", "begin 7 None", "evaluate", "releases evaluate"]
    assert evaluation.header.keys() == {"task_id", "counts"}


@pytest.mark.parametrize("refuses", ["admits", "releases"])
def test_a_stored_reply_can_be_refused(learner, tmp_path, refuses):
    TaskHandler(learner, LearnerDiskState(tmp_path, "a")).handle(task())
    learner.policy.refuses = refuses
    again = TaskHandler(learner, LearnerDiskState(tmp_path, "a")).handle(task())
    assert again == SiteReply({"task_id": "t", "reason": "refused"})


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ZeroDivisionError(CANARY), "learner_failed"), (LayoutError("not finite"), "refused")],
)
def test_a_failure_is_a_code_and_the_learner_state_is_restored(learner, caplog, error, reason):
    handler, before = (
        TaskHandler(learner),
        {name: values.copy() for name, values in learner.local_state.items()},
    )
    learner.error = error
    with caplog.at_level(logging.WARNING):
        assert handler.handle(task()) == SiteReply({"task_id": "t", "reason": reason})
    assert CANARY not in caplog.text, "the text of a foreign error may contain data"
    assert ("ZeroDivisionError at test_task_handler.py" in caplog.text) == (reason == "learner_failed")
    assert all((learner.local_state[name] == values).all() for name, values in before.items())
    learner.error = None
    fresh = Learner("a", MODEL, learner.examples, learner.codec, 0, learner.validation)
    assert handler.handle(task()).payload == fresh.train("t", 3, ZEROS, SETTINGS).payload


def test_a_reply_that_cannot_be_stored_is_not_sent(learner, tmp_path, monkeypatch):
    state = LearnerDiskState(tmp_path, "a")
    handler, before = (
        TaskHandler(learner, state),
        {name: values.copy() for name, values in learner.local_state.items()},
    )

    def full(*_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(state, "save", full)
    assert handler.handle(task()) == SiteReply({"task_id": "t", "reason": "refused"})
    assert all((learner.local_state[name] == values).all() for name, values in before.items())
    assert list(tmp_path.iterdir()) == []
