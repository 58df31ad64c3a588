"""What every engine keeps to. A new engine is one more line in ENGINES."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier
from tests.engines.flower.loop import LoopPost, TwoDesks

from abaton.codecs import Key, parse
from abaton.controller import (
    Arrived,
    Asynchronous,
    ByValidation,
    Failed,
    Joined,
    Left,
    Noted,
    Rules,
    Scored,
    SemiSynchronous,
    Synchronous,
    Thresholds,
    Tick,
    TrainSettings,
    community_model,
    from_row,
)
from abaton.engines import (
    Driver,
    Engine,
    EvaluateTask,
    LocalEngine,
    Profile,
    Replayed,
    TrainTask,
    VirtualEngine,
)
from abaton.engines.flower import FlowerEngine, Lost, Network
from abaton.engines.flower.site_worker import Desk, Place
from abaton.errors import LayoutError, Refused
from abaton.learners import Examples, Learner, SklearnModel, Update
from abaton.store import Journal, Store
from abaton.training import round_key

CODEC = parse("raw")
MODEL = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=4, classes=2)
SETTINGS = TrainSettings(epochs=2, batch_size=10)
TESTS = os.getpid()

Keep = Callable[[bytes], str]
Make = Callable[[Mapping[str, Learner], Keep], AbstractContextManager[Engine]]


def check(learner: str, version: int, payload: bytes) -> None:
    CODEC.decode(payload, MODEL.layout, Key(round_key(0, version), learner))


def virtual(learners: Mapping[str, Learner], keep: Keep) -> AbstractContextManager[Engine]:
    profiles = {"leaver": Profile(leaves=0.2, speed=1.0), "slow": Profile(speed=20.0)}
    mine = {name: profile for name, profile in profiles.items() if name in learners}
    return closing(VirtualEngine(learners, mine, keep=keep, seed=0))


def local(learners: Mapping[str, Learner], keep: Keep) -> AbstractContextManager[Engine]:
    return LocalEngine(learners, keep=keep, check=check)


@contextmanager
def flower(learners: Mapping[str, Learner], keep: Keep) -> Iterator[Engine]:
    """Flower's engine and the sites' desks, with a post in between that has no network in it."""
    with TemporaryDirectory() as folder:
        desks = [
            TwoDesks(lambda role, name=name, learner=learner: Desk(learner, Place(role, Path(folder, name))))
            for name, learner in learners.items()
        ]
        post = LoopPost(dict(enumerate(desks)))
        post.fate = lambda desk, p: Lost(8) if (desk.learner.name, p.kind) == ("leaver", "train") else None
        yield FlowerEngine(post, Network("run", MODEL.layout.digest, poll=0.001), keep=keep, check=check)


ENGINES: dict[str, Make] = {
    "virtual": virtual,
    "local": local,
    "flower": flower,
}


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest) -> Make:
    return ENGINES[request.param]


class Odd(Learner):
    """A learner that misbehaves in the way its name says."""

    def train(self, task: str, version: int, start: np.ndarray, settings: TrainSettings, *rest) -> Update:
        if self.name == "broken":
            raise LayoutError("patient Zanzibar-4711 is not finite")
        if os.getpid() != TESTS and self.name == "slow":
            time.sleep(0.1)
        if os.getpid() != TESTS and self.name == "leaver":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(task, version, start, settings, *rest)

    def begin(self, at: float, version: int | None = None) -> None:
        if self.name == "bound" and version is not None:
            self.cohort = f"{version:064x}"
        if self.name == "deserted":
            raise Refused("nobody is left")

    def evaluate(self, model: np.ndarray) -> tuple[float, ...]:
        if self.name == "broken":
            raise LayoutError("patient Zanzibar-4711 is not finite")
        return super().evaluate(model)


def learners(*names: str, codec: str = "raw") -> dict[str, Learner]:
    made = {}
    for i, name in enumerate(names):
        x = np.random.default_rng(i).normal(size=(40 + 10 * i, 4)).astype(np.float32)
        data = Examples(x, (x[:, 0] > 0).astype(np.int64))
        held = Examples(data.x[:20], data.y[:20])
        made[name] = Odd(name, MODEL, data, parse(codec), 0, validation=held)
    return made


class Kept(dict[str, bytes]):
    """Payloads by their digest."""

    def put(self, payload: bytes) -> str:
        digest = hashlib.sha256(payload).hexdigest()
        self[digest] = payload
        return digest


@contextmanager
def begun(make: Make, *names: str, keep: Keep | None = None) -> Iterator[Engine]:
    """An engine whose learners have joined."""
    with make(learners(*names), keep or Kept().put) as engine:
        joins = heard(engine, len(names))
        assert sorted(e.learner for e in joins if isinstance(e, Joined)) == sorted(names)
        yield engine


def heard(engine: Engine, count: int) -> list:
    events: list = []
    while len(events) < count:
        happened = engine.events()
        assert happened, "nothing more can happen"
        events += telling(happened)
    return events


def telling(happened: list) -> list:
    """Without notes: a network may say at any time that it is slow."""
    return [event for event in happened if not isinstance(event, Noted)]


def train(learner: str, key: str = "t", **settings) -> TrainTask:
    return TrainTask(key, learner, 0, np.zeros(MODEL.layout.size, np.float32), replace(SETTINGS, **settings))


def evaluate(learner: str, key: str = "e") -> EvaluateTask:
    return EvaluateTask(f"{key}@{learner}", learner, np.ones(MODEL.layout.size, np.float32))


def bell(engine: Engine) -> list:
    """Everything that is heard before a bell rings that is set after all else."""
    engine.set_timer("bell", engine.now() + 1.0)
    events: list = []
    while not any(isinstance(e, Tick) for e in events):
        events += telling(engine.events())
    return events[:-1]


def test_learners_join_once_with_their_numbers_before_anything_else(make):
    with make(learners("a", "b"), Kept().put) as engine:
        events = sorted(heard(engine, 2), key=lambda e: e.learner)
        assert [(e.learner, e.examples, sum(e.labels)) for e in events] == [("a", 40, 20), ("b", 50, 20)]
        assert bell(engine) == []


def test_a_learner_hears_of_a_task_first_and_may_refuse_it(make):
    with begun(make, "bound", "deserted") as engine:
        engine.submit([train("bound", "t"), train("deserted", "u"), evaluate("deserted")])
        events = {event.task: event for event in heard(engine, 3)}
    assert events["t"].cohort == "0" * 64
    assert [events[task].reason for task in ("u", "e@deserted")] == ["task was refused"] * 2


def test_a_task_is_answered_once_however_often_it_is_submitted(make):
    with begun(make, "a", "b") as engine:
        engine.submit([train("a"), train("a"), evaluate("b")])
        engine.submit([train("a"), evaluate("b")])
        events = heard(engine, 2)
        assert sorted(type(e).__name__ for e in events) == ["Arrived", "Scored"]
        engine.submit([train("a"), evaluate("b")])
        assert bell(engine) == [], "also after it has been answered"


def test_a_task_gives_the_same_answer_in_every_engine(make):
    kept = Kept()
    with begun(make, "a", keep=kept.put) as engine:
        engine.submit([train("a")])
        (event,) = heard(engine, 1)
    alone = learners("a")["a"].train("t", 0, np.zeros(MODEL.layout.size, np.float32), SETTINGS)
    assert kept[event.payload] == alone.payload
    expected = (len(alone.payload), 8, 40, alone.score)
    assert (event.size, event.steps, event.examples, event.score) == expected


def test_time_goes_forward_and_timers_ring_in_their_order(make):
    with begun(make, "a") as engine:
        for name, after in (("third", 0.3), ("first", 0.1), ("second", 0.2)):
            engine.set_timer(name, engine.now() + after)
        before = engine.now()
        events = heard(engine, 3)
        assert [e.name for e in events] == ["first", "second", "third"]
        times = [e.at for e in events]
        assert before < times[0] <= times[1] <= times[2] <= engine.now()


def test_a_cancelled_task_that_has_not_begun_is_not_heard_of_and_the_next_is_done(make):
    with begun(make, "slow") as engine:
        engine.submit([train("slow", "first"), train("slow", "second"), train("slow", "third")])
        engine.cancel("second")
        engine.cancel("no such task")
        assert sorted(e.task for e in heard(engine, 2)) == ["first", "third"]
        assert bell(engine) == []


def test_a_learner_that_fails_is_a_failed_task_with_a_plain_reason_and_others_go_on(make):
    with begun(make, "a", "broken") as engine:
        engine.submit([train("broken", "b"), evaluate("broken"), train("a", "a")])
        events = {e.task: e for e in heard(engine, 3)}
        assert isinstance(events["a"], Arrived)
        assert [events[t].reason for t in ("b", "e@broken")] == ["task was refused"] * 2
        assert "Zanzibar" not in repr(events)
        engine.submit([train("broken", "again")])
        assert isinstance(heard(engine, 1)[0], Failed), "it is asked again as if nothing had happened"


def test_a_learner_that_has_left_is_told_of_once_and_never_answers(make):
    with begun(make, "a", "leaver") as engine:
        engine.submit([train("leaver", str(i)) for i in range(5)])
        events: list = []
        while not any(isinstance(e, Left) for e in events):
            events += engine.events()
        engine.submit([train("leaver", "later"), train("a", "a")])
        while not any(isinstance(e, Arrived) for e in events):
            events += engine.events()
        events += bell(engine)
        assert [e.learner for e in events if isinstance(e, Left)] == ["leaver"]
        assert {e.learner for e in events if isinstance(e, Arrived)} == {"a"}
        assert all(e.learner == "leaver" for e in events if isinstance(e, Failed))


def test_a_time_budget_gives_a_number_of_steps_that_can_be_done_again(make):
    """Invariant 10."""
    kept = Kept()
    with begun(make, "a", "b", keep=kept.put) as engine:
        engine.submit([train("a", "a", budget=0.07), train("b", "b", budget=0.07)])
        events = heard(engine, 2)
    for event in events:
        assert event.steps >= 1
        again = replace(SETTINGS, steps=event.steps)
        fresh = learners("a", "b")[event.learner]
        made = fresh.train(event.task, 0, np.zeros(MODEL.layout.size, np.float32), again)
        assert kept[event.payload] == made.payload, "to the bit"


def test_an_adaptive_learner_sends_by_its_own_validation_loss(make):
    thresholds = Thresholds(loss=100.0, tombstones=2)
    with begun(make, "a") as engine:
        engine.submit([train("a", adaptive=thresholds, epochs=50)])
        (event,) = heard(engine, 1)
        assert event.steps == 4 * 4, (
            "the fourth epoch is the third in a row that falls by less than all of it"
        )


def test_an_adaptive_learner_hears_while_it_trains_what_others_have_committed(make):
    with begun(make, "a") as engine:
        engine.tell(1000)
        engine.submit(
            [train("a", adaptive=Thresholds(0.0, 50), epochs=50, committed=900, staleness_limit=108)]
        )
        (event,) = heard(engine, 1)
        assert event.steps == 12, "1000 - 900 + 12 > 108: after three epochs"


def test_a_complete_task_is_trained_on_the_validation_set_too_and_not_scored(make):
    with begun(make, "a") as engine:
        engine.submit([train("a", complete=True)])
        (event,) = heard(engine, 1)
        assert (event.steps, event.examples, event.score) == (2 * 6, 60, ())


RUNS = {
    "rounds": Rules(3, 4, training=SETTINGS, weighting=(ByValidation(),), pacing=Synchronous()),
    "semi-synchronous": Rules(3, 4, training=SETTINGS, pacing=SemiSynchronous(budget=0.01)),
    "asynchronous": Rules(
        3, 12, training=SETTINGS, weighting=(ByValidation(evaluators=1),), pacing=Asynchronous()
    ),
    "finishing": Rules(
        3, 4, training=SETTINGS, weighting=(ByValidation(),), pacing=Asynchronous(), finishing=1
    ),
}


def drive(rules: Rules, engine: Engine, journal: Journal) -> list[str]:
    community = community_model(rules, MODEL.layout, CODEC, MODEL.initial(0))
    Driver(rules, community, engine, journal).run()
    return [model.digest for model in journal.store.models(journal.run)]


@pytest.mark.parametrize("name", RUNS)
def test_order_is_the_journals(tmp_path, make, name):
    """Invariant 17: the journal alone, told to a new controller, gives the same versions."""
    rules = RUNS[name]
    with Store(tmp_path) as store:
        journal = Journal(store, "run")
        with make(learners("a", "b", "c"), journal.payloads.put) as engine:
            expected = drive(rules, engine, journal)
        assert len(expected) > rules.rounds
        written = Journal(store, "run")
        events = [from_row(*row) for row in written.rows()]
        with make(learners("a", "b", "c"), written.payloads.put) as unused:
            assert drive(rules, Replayed(unused, events), written) == expected
        tasks = [e.task for e in events if isinstance(e, Arrived | Scored | Failed)]
        assert len(tasks) == len(set(tasks)), "nothing is answered twice"
