"""What a site's policy refuses is not done and does not leave, whichever engine carries the task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.engines.flower.loop import LoopPost, TwoDesks
from tests.engines.test_engine_contract import MODEL, SETTINGS, Kept, heard

from abaton.codecs import parse
from abaton.controller import Arrived, Failed, Scored, Thresholds, TrainSettings
from abaton.engines import Engine, EvaluateTask, LocalEngine, TrainTask, VirtualEngine
from abaton.engines.flower import FlowerEngine, Network
from abaton.engines.flower.site_worker import Desk, Place
from abaton.errors import Refused
from abaton.learners import Examples, Learner, Reply, Request

CODEC = "error_feedback | stc(sparsity=0.5)"
ZEROS = np.zeros(MODEL.layout.size, np.float32)
WHY = "the board of St Elsewhere has not met"

Make = Callable[[Mapping[str, Learner], Callable[[bytes], str], Path], Engine]


class House:
    """A site that does not take up what is called 'closed', and lets go of nothing that is called 'secret'."""

    def admits(self, asked: Request) -> None:
        if "closed" in asked.key:
            raise Refused(WHY)

    def releases(self, asked: Request, reply: Reply) -> Reply:
        if "secret" in asked.key:
            raise Refused(WHY)
        return Reply({**reply.about, "loss": None}, reply.payload) if asked.kind == "train" else reply


class Marked(Learner):
    """A learner that writes down what it begins."""

    folder = Path()

    def begin(self, at: float, version: int | None = None) -> None:
        with (self.folder / "begun").open("a") as file:
            file.write(f"{version}\n")


def learner(policy: House | None = None) -> Learner:
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    data = Examples(x, (x[:, 0] > 0).astype(np.int64))
    made = Marked("a", MODEL, data, parse(CODEC), 0, validation=data)
    if policy is not None:
        made.policy = policy
    return made


def virtual(learners: Mapping[str, Learner], keep: Callable[[bytes], str], folder: Path) -> Engine:
    return VirtualEngine(learners, {}, keep=keep, seed=0)


def local(learners: Mapping[str, Learner], keep: Callable[[bytes], str], folder: Path) -> Engine:
    return LocalEngine(learners, keep=keep, check=lambda *_: None, states=folder)


def flower(learners: Mapping[str, Learner], keep: Callable[[bytes], str], folder: Path) -> Engine:
    desks = [TwoDesks(lambda role, each=each: Desk(each, Place(role, folder))) for each in learners.values()]
    network = Network("run", MODEL.layout.digest, poll=0.001)
    return FlowerEngine(LoopPost(dict(enumerate(desks))), network, keep=keep, check=lambda *_: None)


ENGINES: dict[str, Make] = {"virtual": virtual, "local": local, "flower": flower}


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest) -> Make:
    return ENGINES[request.param]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """Where the site's log goes, also that of its processes."""
    file = tmp_path / "site.log"
    handler, logger = logging.FileHandler(file), logging.getLogger("abaton.engines.task_handler")
    logger.addHandler(handler)
    yield file
    logger.removeHandler(handler)
    handler.close()


@contextmanager
def begun(make: Make, folder: Path, keep: Callable[[bytes], str]) -> Iterator[Engine]:
    Marked.folder = folder
    with closing(make({"a": learner(House())}, keep, folder / "states")) as engine:
        heard(engine, 1)
        yield engine


def train(key: str, **settings) -> TrainTask:
    told = {"epochs": SETTINGS.epochs, "batch_size": SETTINGS.batch_size, **settings}
    return TrainTask(key, "a", 0, ZEROS, TrainSettings(**told))


def test_a_task_that_is_not_admitted_is_not_begun_and_its_reason_stays_at_the_site(make, tmp_path, log):
    kept = Kept()
    with begun(make, tmp_path, kept.put) as engine:
        engine.submit([train("closed"), EvaluateTask("closed@a", "a", ZEROS)])
        events = {event.task: event for event in heard(engine, 2)}
    assert {(type(event), event.reason) for event in events.values()} == {(Failed, "task was refused")}
    assert set(events) == {"closed", "closed@a"}
    assert WHY not in repr(events)
    assert not (tmp_path / "begun").exists()
    assert not kept
    assert log.read_text().count(WHY) == 2


@pytest.mark.parametrize("adaptive", [None, Thresholds(loss=100.0, tombstones=2)])
def test_an_answer_that_is_not_let_go_of_does_not_leave_and_leaves_no_trace(make, tmp_path, log, adaptive):
    kept = Kept()
    with begun(make, tmp_path, kept.put) as engine:
        engine.submit([train("secret", adaptive=adaptive), EvaluateTask("secret@a", "a", ZEROS)])
        refused = heard(engine, 2)
        engine.submit([train("t"), EvaluateTask("e@a", "a", ZEROS)])
        events = {type(event): event for event in heard(engine, 2)}
    assert [(type(event), event.reason) for event in refused] == [(Failed, "task was refused")] * 2
    assert log.read_text().count(WHY) == 2
    alone = learner().train("t", 0, ZEROS, SETTINGS)
    assert kept == {events[Arrived].payload: alone.payload}, "what was not sent is not made up for later"
    assert events[Scored].score == learner().evaluate(ZEROS)


def test_a_policy_may_let_go_of_less(make, tmp_path):
    with begun(make, tmp_path, Kept().put) as engine:
        engine.submit([train("t")])
        (event,) = heard(engine, 1)
    assert isinstance(event, Arrived)
    assert "loss" not in event.metrics
    assert event.steps == 8


def test_who_is_there_is_a_question_to_the_site_as_well(tmp_path):
    class Absent(House):
        def admits(self, asked: Request) -> None:
            if asked.kind == "query":
                raise Refused(WHY)

    with closing(flower({"a": learner(Absent())}, Kept().put, tmp_path)) as engine:
        engine.set_timer("bell", engine.now() + 0.2)
        said = []
        while not any(event.__class__.__name__ == "Tick" for event in said):
            said += engine.events()
    assert {getattr(event, "what", "")[-16:] for event in said[:-1]} == {"task was refused"}
    assert list(tmp_path.iterdir()) == []
