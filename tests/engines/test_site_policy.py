"""A site's policy refuses tasks and replies on every engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.engines.flower.loopback import LoopbackTransport, SiteWorkers
from tests.engines.test_engine_contract import MODEL, SETTINGS, PayloadStore, receive_events

from abaton.codecs import parse_codec
from abaton.controller import (
    EvaluationReceived,
    TaskFailed,
    TimerFired,
    TrainSettings,
    UpdateReceived,
    UpdateThresholds,
)
from abaton.engines import Engine, EvaluateTask, LocalEngine, TrainTask, VirtualEngine
from abaton.engines.flower import FlowerEngine, FlowerNetwork
from abaton.engines.flower.site_worker import SiteWorker, WorkerSettings
from abaton.errors import RefusedError
from abaton.learners import Learner, SiteReply, SiteRequest
from abaton.models import Examples

CODEC = "error_feedback | stc(sparsity=0.5)"
ZEROS = np.zeros(MODEL.layout.size, np.float32)
REASON = "the ethics board has not met"

MakeEngine = Callable[[Mapping[str, Learner], Callable[[bytes], str], Path], Engine]


class RestrictivePolicy:
    """Policy that refuses tasks named 'closed' and releases no reply to tasks named 'secret'."""

    def admit(self, request: SiteRequest) -> None:
        if "closed" in request.task_id:
            raise RefusedError(REASON)

    def release(self, request: SiteRequest, reply: SiteReply) -> SiteReply:
        if "secret" in request.task_id:
            raise RefusedError(REASON)
        return (
            SiteReply({**reply.header, "loss": None}, reply.payload)
            if request.message_type == "train"
            else reply
        )


class RecordingLearner(Learner):
    """Learner that records the tasks it starts."""

    folder = Path()

    def on_task_start(self, at: float, version: int | None = None) -> None:
        with (self.folder / "started").open("a") as file:
            file.write(f"{version}\n")


def learner(policy: RestrictivePolicy | None = None) -> Learner:
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    data = Examples(x, (x[:, 0] > 0).astype(np.int64))
    built = RecordingLearner("a", MODEL, data, parse_codec(CODEC), 0, validation=data)
    if policy is not None:
        built.policy = policy
    return built


def virtual(learners: Mapping[str, Learner], store_payload: Callable[[bytes], str], folder: Path) -> Engine:
    return VirtualEngine(learners, {}, store_payload=store_payload, seed=0)


def local(learners: Mapping[str, Learner], store_payload: Callable[[bytes], str], folder: Path) -> Engine:
    return LocalEngine(learners, store_payload=store_payload, check_payload=lambda *_: None, state_dir=folder)


def flower(learners: Mapping[str, Learner], store_payload: Callable[[bytes], str], folder: Path) -> Engine:
    workers = [
        SiteWorkers(lambda role, learner=learner: SiteWorker(learner, WorkerSettings(role, folder)))
        for learner in learners.values()
    ]
    network = FlowerNetwork("run", MODEL.layout.digest, poll_seconds=0.001)
    return FlowerEngine(
        LoopbackTransport(dict(enumerate(workers))),
        network,
        store_payload=store_payload,
        check_payload=lambda *_: None,
    )


ENGINES: dict[str, MakeEngine] = {"virtual": virtual, "local": local, "flower": flower}


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest) -> MakeEngine:
    return ENGINES[request.param]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """Log of the site, also of its processes."""
    file = tmp_path / "site.log"
    handler, logger = logging.FileHandler(file), logging.getLogger("abaton.engines.task_handler")
    logger.addHandler(handler)
    yield file
    logger.removeHandler(handler)
    handler.close()


@contextmanager
def started_engine(make: MakeEngine, folder: Path, store_payload: Callable[[bytes], str]) -> Iterator[Engine]:
    RecordingLearner.folder = folder
    with closing(make({"a": learner(RestrictivePolicy())}, store_payload, folder / "state")) as engine:
        receive_events(engine, 1)
        yield engine


def train(task_id: str, **settings) -> TrainTask:
    fields = {"epochs": SETTINGS.epochs, "batch_size": SETTINGS.batch_size, **settings}
    return TrainTask(task_id, "a", 0, ZEROS, TrainSettings(**fields))


def test_a_refused_task_is_not_started_and_its_reason_stays_at_the_site(make, tmp_path, log):
    payloads = PayloadStore()
    with started_engine(make, tmp_path, payloads.put) as engine:
        engine.submit([train("closed"), EvaluateTask("closed@a", "a", ZEROS)])
        events = {event.task: event for event in receive_events(engine, 2)}
    assert {(type(event), event.reason) for event in events.values()} == {(TaskFailed, "refused")}
    assert set(events) == {"closed", "closed@a"}
    assert REASON not in repr(events)
    assert not (tmp_path / "started").exists()
    assert not payloads
    assert log.read_text().count(REASON) == 2


@pytest.mark.parametrize("adaptive", [None, UpdateThresholds(loss=100.0, tombstones=2)])
def test_a_reply_that_is_not_released_leaves_no_trace(make, tmp_path, log, adaptive):
    payloads = PayloadStore()
    with started_engine(make, tmp_path, payloads.put) as engine:
        engine.submit([train("secret", update_thresholds=adaptive), EvaluateTask("secret@a", "a", ZEROS)])
        refused = receive_events(engine, 2)
        engine.submit([train("t"), EvaluateTask("e@a", "a", ZEROS)])
        events = {type(event): event for event in receive_events(engine, 2)}
    assert [(type(event), event.reason) for event in refused] == [(TaskFailed, "refused")] * 2
    assert log.read_text().count(REASON) == 2
    alone = learner().train("t", 0, ZEROS, SETTINGS)
    assert payloads == {events[UpdateReceived].payload: alone.payload}, (
        "an update that was not sent does not change later ones"
    )
    assert events[EvaluationReceived].counts == learner().evaluate(ZEROS)


def test_a_policy_may_release_less(make, tmp_path):
    with started_engine(make, tmp_path, PayloadStore().put) as engine:
        engine.submit([train("t")])
        (event,) = receive_events(engine, 1)
    assert isinstance(event, UpdateReceived)
    assert "loss" not in event.metrics
    assert event.steps == 8


def test_the_policy_applies_to_introductions(tmp_path):
    class RefusingIntroduction(RestrictivePolicy):
        def admit(self, request: SiteRequest) -> None:
            if request.message_type == "introduce":
                raise RefusedError(REASON)

    with closing(flower({"a": learner(RefusingIntroduction())}, PayloadStore().put, tmp_path)) as engine:
        engine.set_timer("timer", engine.now() + 0.2)
        events = []
        while not any(isinstance(event, TimerFired) for event in events):
            events += engine.events()
    assert {getattr(event, "note", "")[-7:] for event in events[:-1]} == {"refused"}
    assert list(tmp_path.iterdir()) == []
