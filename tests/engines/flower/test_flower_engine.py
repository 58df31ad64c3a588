"""Flower engine with lost, delayed and invalid messages, without a network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engines.flower.flower_federation import CANARY, CODEC, FEATURES, MODEL, check, open_learner
from tests.engines.flower.loopback import LoopbackTransport, SiteWorkers

from abaton.controller import (
    EvaluationReceived,
    LearnerJoined,
    LearnerLeft,
    RunNote,
    TaskFailed,
    TimerFired,
    TrainSettings,
    UpdateReceived,
    UpdateThresholds,
)
from abaton.engines import EvaluateTask, TrainTask
from abaton.engines.flower import FlowerEngine, FlowerNetwork, Message, MessageLost
from abaton.engines.flower.site_worker import SiteWorker, WorkerSettings
from abaton.errors import LayoutError
from abaton.learners import Learner

SETTINGS = TrainSettings(epochs=1, batch_size=20)
ZEROS = np.zeros(FEATURES + 1, np.float32)
NODE = 1
TRAINER = (NODE, "train")


class Federation:
    """One site, its node, an engine, and a clock that moves when the engine sleeps."""

    def __init__(self, folder: Path, learner: Learner | None = None, **network) -> None:
        self.learner, self.folder, self.time, self.payloads = learner or open_learner("a"), folder, 0.0, []
        self.transport = LoopbackTransport({NODE: SiteWorkers(self.worker)})
        self.network = FlowerNetwork("run", MODEL.layout.digest, "s", **network)
        self.engine = FlowerEngine(
            self.transport,
            self.network,
            store_payload=self.store_payload,
            check_payload=check,
            clock=lambda: self.time,
            sleep=self.sleep,
        )

    def worker(self, role: str, study_hash: str = "s") -> SiteWorker:
        return SiteWorker(self.learner, WorkerSettings(role, self.folder, study_hash))

    def store_payload(self, payload: bytes) -> str:
        self.payloads.append(payload)
        return str(len(self.payloads) - 1)

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def train(self, task_id: str, model: np.ndarray = ZEROS, **settings) -> None:
        self.engine.submit([TrainTask(task_id, "a", 0, model, replace(SETTINGS, **settings))])

    def until(self, event_type: type) -> list:
        """Events up to one of a type."""
        events: list = []
        while not any(isinstance(e, event_type) for e in events):
            events += self.engine.events()
        return events

    def pause(self, seconds: float) -> list:
        """Events within some seconds."""
        self.engine.set_timer("pause", self.engine.now() + seconds)
        return self.until(TimerFired)[:-1]

    def sent(self, message_type: str) -> list[Message]:
        return [message for _, message in self.transport.sent if message.message_type == message_type]


@pytest.fixture
def federation(tmp_path) -> Federation:
    federation = Federation(tmp_path)
    federation.until(LearnerJoined)
    return federation


def notes(events: list) -> list[str]:
    return [e.note for e in events if isinstance(e, RunNote)]


@pytest.mark.parametrize("code", [3, 4, 5, 8])
def test_a_lost_message_is_sent_again_and_replied_to_from_disk(federation, code):
    lost = []

    def intercept(worker: SiteWorker, message: Message) -> MessageLost | None:
        if message.message_type == "train" and not lost:
            lost.append(worker.reply(message))  # the site trains, but the reply is lost
            return MessageLost(code)
        return None

    federation.transport.intercept = intercept
    federation.train("t")
    events = federation.until(UpdateReceived)
    expected_notes = 2 if code == 5 else 1
    assert len(notes(events)) == expected_notes, "the journal has the reason"
    assert federation.payloads == [lost[0].attachments["update"]], "the same bytes"
    alone = open_learner("a")
    assert federation.payloads[0] == alone.train("t", 0, ZEROS, SETTINGS).payload
    assert all((federation.learner.local_state[k] == v).all() for k, v in alone.local_state.items()), (
        "updated once"
    )


def test_a_reconnected_node_gets_its_task_again_and_an_absent_one_has_left(federation):
    worker = federation.transport.workers.pop(NODE)
    federation.train("t")
    assert federation.pause(100.0)
    federation.transport.workers[77] = worker  # without keys, Flower gives a restarted node a new id
    events = federation.until(UpdateReceived)
    assert notes(events) == ["node is back"]
    del federation.transport.workers[77]
    federation.train("u")
    events = federation.until(LearnerLeft)
    assert [e.reason for e in events if isinstance(e, TaskFailed)] == ["learner_gone"]
    federation.train("v")
    assert [e.reason for e in federation.until(TaskFailed) if isinstance(e, TaskFailed)] == ["learner_gone"]
    federation.transport.workers[NODE] = worker
    assert federation.until(LearnerJoined)
    federation.train("w")
    assert federation.until(UpdateReceived)


def test_tasks_wait_for_a_site_that_has_not_connected(tmp_path):
    waiting = Federation(tmp_path)
    workers, waiting.transport.workers = waiting.transport.workers, {}
    waiting.train("t")
    assert waiting.pause(60.0) == []
    waiting.transport.workers = workers
    assert [type(e) for e in waiting.until(UpdateReceived)] == [LearnerJoined, UpdateReceived]


def test_a_node_with_a_new_id_replaces_one_that_flower_still_lists(federation):
    federation.transport.busy = {TRAINER}
    federation.train("t")
    federation.pause(5.0)
    federation.transport.workers[77] = SiteWorkers(federation.worker)
    assert notes(federation.until(UpdateReceived)) == ["node is back"]


def test_a_missing_reply_times_out(tmp_path):
    federation = Federation(tmp_path, answer_timeout=5.0)
    federation.until(LearnerJoined)
    federation.transport.busy = {TRAINER}
    federation.train("t", time_budget_seconds=1.0)
    (event,) = federation.until(TaskFailed)
    assert event.reason == "timeout"
    assert 6.0 < event.timestamp < 6.5
    federation.transport.busy = set()
    assert federation.pause(1.0) == [], "and its later reply is ignored"


class LeakyLearner(Learner):
    """Learner whose errors contain data."""

    error: Exception = ZeroDivisionError(CANARY)

    def train(self, *_: object):
        raise self.error

    def evaluate(self, *_: object):
        raise self.error


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ZeroDivisionError(CANARY), "learner_failed"), (LayoutError(CANARY), "refused")],
)
def test_no_text_of_an_error_leaves_the_site(tmp_path, error, reason):
    learner = LeakyLearner("a", MODEL, open_learner("a").examples, CODEC, 0)
    learner.error = error
    federation, replies = Federation(tmp_path, learner), []
    federation.transport.intercept = lambda worker, message: (
        replies.append(worker.reply(message)) or replies[-1]
    )
    federation.until(LearnerJoined)
    federation.train("t")
    federation.engine.submit([EvaluateTask("x@a", "a", ZEROS)])
    failed = [e for e in [*federation.until(TaskFailed), *federation.pause(5.0)] if isinstance(e, TaskFailed)]
    assert [e.reason for e in failed] == [reason, reason]
    assert CANARY not in repr(replies)


GARBAGE = {
    "a text": Message("reply", {"reason": f"{CANARY} is not finite"}),
    "nothing": Message("reply", {}),
    "not a number": Message("reply", {"steps": 1, "examples": 1, "loss": float("nan"), "counts": []}),
    "a huge count": Message("reply", {"steps": 10**400, "examples": 1, "loss": None, "counts": []}),
    "a boolean": Message("reply", {"steps": True, "examples": 1, "loss": None, "counts": []}),
    "no update": Message("reply", {"steps": 1, "examples": 1, "loss": None, "counts": []}),
    "a bomb": Message("reply", {"steps": 1, "examples": 1, "loss": None, "counts": []}, {"update": b"\xff" * 9999}),
    "text for counts": Message("reply", {"steps": 1, "examples": 1, "loss": 0.1, "counts": "aaaa"}),
}  # fmt: skip


@pytest.mark.parametrize("name", GARBAGE)
def test_an_invalid_reply_is_a_failed_task(federation, name):
    federation.transport.intercept = lambda worker, message: GARBAGE[name]
    federation.train("t")
    federation.engine.submit([EvaluateTask("x@a", "a", ZEROS)])
    failed = [e for e in federation.pause(5.0) if isinstance(e, TaskFailed)]
    assert sorted(e.task for e in failed) == ["t", "x@a"]
    assert {e.reason for e in failed} <= {"learner_failed", "invalid_update", "invalid_reply"}
    assert federation.payloads == []


def test_waiting_evaluations_are_sent_together(federation):
    models = [np.full_like(ZEROS, i) for i in range(20)]
    for i, model in enumerate(models):
        federation.engine.submit([EvaluateTask(f"{i}@a", "a", model)])
    scored = [e for e in federation.pause(10.0) if isinstance(e, EvaluationReceived)]
    assert [len(p.header["evaluations"]) for p in federation.sent("evaluate")] == [8, 8, 4]
    assert {e.task: e.counts for e in scored} == {
        f"{i}@a": open_learner("a").evaluate(m) for i, m in enumerate(models)
    }


def test_a_site_gets_differences_and_the_full_model_without_a_base(federation, tmp_path):
    draw = np.random.default_rng(0)
    first = draw.normal(size=len(ZEROS)).astype(np.float32)
    second, third = first.copy(), first.copy()
    second[:5] += 1
    third[7:9] -= 1
    federation.train("t", first)
    federation.until(UpdateReceived)
    federation.train("u", second)
    federation.until(UpdateReceived)
    federation.engine.submit([EvaluateTask("x@a", "a", third)])
    federation.until(EvaluationReceived)
    full, change = (p.size for p in federation.sent("train"))
    assert full > 1200
    assert change < 60
    assert federation.sent("evaluate")[0].size < 60, "its evaluator uses the trainer's base"
    for path in tmp_path.rglob("*.model"):
        path.unlink()
    federation.train("v", third)
    events = federation.until(UpdateReceived)
    assert notes(events) == ["base is missing, the full model is sent"]
    assert [p.size > 1200 for p in federation.sent("train")] == [True, False, False, True]
    alone = open_learner("a")
    payloads = [
        alone.train(k, 0, m, SETTINGS).payload for k, m in (("t", first), ("u", second), ("v", third))
    ]
    assert federation.payloads == payloads, "every encoding gives the same bits"


def test_progress_reaches_a_training_site_through_its_evaluator(federation):
    federation.transport.busy = {TRAINER}
    federation.train("t", update_thresholds=UpdateThresholds(0.0, 50), epochs=5)
    federation.pause(5.0)
    federation.engine.broadcast_progress(10)
    federation.pause(5.0)
    federation.engine.broadcast_progress(30)
    federation.pause(5.0)
    assert [p.header["committed_steps"] for p in federation.sent("progress")] == [10, 30]
    (written,) = federation.folder.rglob("committed_steps.json")
    assert written.read_text() == "30"
    federation.transport.busy = set()
    federation.until(UpdateReceived)
    federation.train("u")
    federation.engine.broadcast_progress(50)
    federation.pause(5.0)
    assert len(federation.sent("progress")) == 2, "a training that does not need it gets none"


@pytest.mark.parametrize(
    (("difference", "reason")),
    [
        ({"study_hash": "other"}, "study_mismatch"),
        ({"layout": "another"}, "layout_mismatch"),
        ({"admitted": {1: "b"}}, "its key is admitted for another site"),
        ({"admitted": {2: "a"}}, "its key is admitted for another site"),
    ],
)
def test_a_foreign_node_is_refused_once(tmp_path, difference, reason):
    federation = Federation(tmp_path)
    if "admitted" in difference:
        difference = {"admitted": lambda table=difference["admitted"]: table}
    federation.engine = FlowerEngine(
        federation.transport,
        replace(federation.network, **difference),
        store_payload=federation.store_payload,
        check_payload=check,
        clock=lambda: federation.time,
        sleep=federation.sleep,
    )
    events = federation.pause(60.0)
    assert f"node 1 is refused: {reason}" in notes(events)
    assert not [e for e in events if isinstance(e, LearnerJoined)]
    assert len(federation.sent("introduce")) == 1


def test_a_revoked_site_leaves_at_the_next_poll(tmp_path):
    table = {NODE: "a"}
    federation = Federation(tmp_path, admitted=lambda: table)
    federation.until(LearnerJoined)
    federation.transport.busy = {TRAINER}
    federation.train("t")
    federation.pause(5.0)
    table.clear()
    events = federation.until(LearnerLeft)
    assert notes(events) == ["node was revoked"]
    assert [e.reason for e in events if isinstance(e, TaskFailed)] == ["learner_gone"]
    federation.transport.busy = set()
    assert federation.pause(30.0) == [], "its later replies are ignored"


def test_an_evaluator_does_not_remove_the_bases_of_its_trainer(federation):
    models = [np.full_like(ZEROS, i) for i in range(30)]
    federation.train("t", models[0])
    federation.until(UpdateReceived)
    federation.transport.busy = {TRAINER}
    federation.train("u", models[1])
    federation.engine.submit([EvaluateTask(f"{i}@a", "a", m) for i, m in enumerate(models)])
    federation.pause(20.0)
    federation.transport.busy = set()
    federation.until(UpdateReceived)
    federation.train("v", models[2])
    assert notes(federation.until(UpdateReceived)) == []


def test_a_digest_cannot_lead_to_another_folder(tmp_path):
    federation = Federation(tmp_path)
    header = {"run": "../../x", "study_hash": "s", "layout": MODEL.layout.digest, "committed_steps": 0}
    header |= {"task_id": "k", "version": 0, "settings": {}, "model": "m", "base": "../../../etc/passwd"}
    answer = federation.worker("train").reply(Message("train", header, {"model": b""}))
    assert answer.reason == "base_missing"
    assert federation.worker("train").reply(Message("rm", header)).reason == "unknown_message"


def test_a_site_evaluates_while_it_trains(federation):
    federation.transport.busy = {TRAINER}
    federation.train("t")
    federation.engine.submit([EvaluateTask("x@a", "a", ZEROS)])
    assert [type(e) for e in federation.pause(5.0)] == [EvaluationReceived]
    federation.transport.busy = set()
    assert federation.until(UpdateReceived)


def test_the_journal_records_an_outage_of_the_network(federation):
    federation.transport.silent = 30.0
    (event,) = federation.engine.events()
    assert isinstance(event, RunNote)
    assert event.note == "the network did not respond for 30 s"
