"""Contract of every engine. A new engine is one more entry in ENGINES."""

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
from tests.engines.flower.loopback import LoopbackTransport, SiteWorkers

from abaton.codecs import CodecKey, parse_codec
from abaton.controller import (
    AsynchronousScheduler,
    EvaluationReceived,
    LearnerJoined,
    LearnerLeft,
    RunNote,
    SemiSynchronousScheduler,
    Strategy,
    SynchronousScheduler,
    TaskFailed,
    TimerFired,
    TrainSettings,
    UpdateReceived,
    UpdateThresholds,
    ValidationWeighting,
    community_model,
    event_from_row,
)
from abaton.engines import (
    Engine,
    EvaluateTask,
    LocalEngine,
    MachineProfile,
    ReplayedEngine,
    RunLoop,
    TrainTask,
    VirtualEngine,
)
from abaton.engines.flower import FlowerEngine, FlowerNetwork, MessageLost
from abaton.engines.flower.site_worker import SiteWorker, WorkerSettings
from abaton.errors import LayoutError, RefusedError
from abaton.learners import Learner, LearnerUpdate
from abaton.models import Examples, SklearnModel
from abaton.store import Journal, Store
from abaton.training import round_key

CODEC = parse_codec("raw")
MODEL = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=4, classes=2)
SETTINGS = TrainSettings(epochs=2, batch_size=10)
TESTS = os.getpid()

StorePayload = Callable[[bytes], str]
MakeEngine = Callable[[Mapping[str, Learner], StorePayload], AbstractContextManager[Engine]]


def check(learner: str, version: int, payload: bytes) -> None:
    CODEC.decode(payload, MODEL.layout, CodecKey(round_key(0, version), learner))


def virtual(learners: Mapping[str, Learner], store_payload: StorePayload) -> AbstractContextManager[Engine]:
    profiles = {"leaver": MachineProfile(leaves_at=0.2, speed=1.0), "slow": MachineProfile(speed=20.0)}
    own_profiles = {name: profile for name, profile in profiles.items() if name in learners}
    return closing(VirtualEngine(learners, own_profiles, store_payload=store_payload, seed=0))


def local(learners: Mapping[str, Learner], store_payload: StorePayload) -> AbstractContextManager[Engine]:
    return LocalEngine(learners, store_payload=store_payload, check_payload=check)


@contextmanager
def flower(learners: Mapping[str, Learner], store_payload: StorePayload) -> Iterator[Engine]:
    """Flower engine and site workers, with a transport without a network."""
    with TemporaryDirectory() as folder:
        workers = [
            SiteWorkers(
                lambda role, name=name, learner=learner: SiteWorker(
                    learner, WorkerSettings(role, Path(folder, name))
                )
            )
            for name, learner in learners.items()
        ]
        transport = LoopbackTransport(dict(enumerate(workers)))
        transport.intercept = lambda worker, p: (
            MessageLost(8) if (worker.learner.name, p.message_type) == ("leaver", "train") else None
        )
        yield FlowerEngine(
            transport,
            FlowerNetwork("run", MODEL.layout.digest, poll_seconds=0.001),
            store_payload=store_payload,
            check_payload=check,
        )


ENGINES: dict[str, MakeEngine] = {
    "virtual": virtual,
    "local": local,
    "flower": flower,
}


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest) -> MakeEngine:
    return ENGINES[request.param]


class MisbehavingLearner(Learner):
    """Learner that misbehaves according to its name."""

    def train(
        self, task: str, version: int, start: np.ndarray, settings: TrainSettings, *rest
    ) -> LearnerUpdate:
        if self.name == "broken":
            raise LayoutError("patient Zanzibar-4711 is not finite")
        if os.getpid() != TESTS and self.name == "slow":
            time.sleep(0.1)
        if os.getpid() != TESTS and self.name == "leaver":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(task, version, start, settings, *rest)

    def on_task_start(self, at: float, version: int | None = None) -> None:
        if self.name == "bound" and version is not None:
            self.cohort = f"{version:064x}"
        if self.name == "deserted":
            raise RefusedError("no subject is eligible")

    def evaluate(self, model: np.ndarray) -> tuple[float, ...]:
        if self.name == "broken":
            raise LayoutError("patient Zanzibar-4711 is not finite")
        return super().evaluate(model)


def learners(*names: str, codec: str = "raw") -> dict[str, Learner]:
    built = {}
    for i, name in enumerate(names):
        x = np.random.default_rng(i).normal(size=(40 + 10 * i, 4)).astype(np.float32)
        data = Examples(x, (x[:, 0] > 0).astype(np.int64))
        validation = Examples(data.x[:20], data.y[:20])
        built[name] = MisbehavingLearner(name, MODEL, data, parse_codec(codec), 0, validation=validation)
    return built


class PayloadStore(dict[str, bytes]):
    """Payloads by their digest."""

    def put(self, payload: bytes) -> str:
        digest = hashlib.sha256(payload).hexdigest()
        self[digest] = payload
        return digest


@contextmanager
def started_engine(
    make: MakeEngine, *names: str, store_payload: StorePayload | None = None
) -> Iterator[Engine]:
    """Engine whose learners have joined."""
    with make(learners(*names), store_payload or PayloadStore().put) as engine:
        joined = receive_events(engine, len(names))
        assert sorted(e.learner for e in joined if isinstance(e, LearnerJoined)) == sorted(names)
        yield engine


def receive_events(engine: Engine, count: int) -> list:
    events: list = []
    while len(events) < count:
        batch = engine.events()
        assert batch, "no further event can occur"
        events += without_notes(batch)
    return events


def without_notes(events: list) -> list:
    """Events without notes, which a slow network may cause at any time."""
    return [event for event in events if not isinstance(event, RunNote)]


def train(learner: str, task_id: str = "t", **settings) -> TrainTask:
    return TrainTask(
        task_id, learner, 0, np.zeros(MODEL.layout.size, np.float32), replace(SETTINGS, **settings)
    )


def evaluate(learner: str, task_id: str = "e") -> EvaluateTask:
    return EvaluateTask(f"{task_id}@{learner}", learner, np.ones(MODEL.layout.size, np.float32))


def drain_events(engine: Engine) -> list:
    """Everything that is receive_events before a bell rings that is set after all else."""
    engine.set_timer("timer", engine.now() + 1.0)
    events: list = []
    while not any(isinstance(e, TimerFired) for e in events):
        events += without_notes(engine.events())
    return events[:-1]


def test_learners_join_once_before_other_events(make):
    with make(learners("a", "b"), PayloadStore().put) as engine:
        events = sorted(receive_events(engine, 2), key=lambda e: e.learner)
        assert [(e.learner, e.examples, sum(e.labels)) for e in events] == [("a", 40, 20), ("b", 50, 20)]
        assert drain_events(engine) == []


def test_a_learner_may_refuse_a_task_before_it_starts(make):
    with started_engine(make, "bound", "deserted") as engine:
        engine.submit([train("bound", "t"), train("deserted", "u"), evaluate("deserted")])
        events = {event.task: event for event in receive_events(engine, 3)}
    assert events["t"].cohort == "0" * 64
    assert [events[task].reason for task in ("u", "e@deserted")] == ["refused"] * 2


def test_a_task_submitted_repeatedly_gets_one_reply(make):
    with started_engine(make, "a", "b") as engine:
        engine.submit([train("a"), train("a"), evaluate("b")])
        engine.submit([train("a"), evaluate("b")])
        events = receive_events(engine, 2)
        assert sorted(type(e).__name__ for e in events) == ["EvaluationReceived", "UpdateReceived"]
        engine.submit([train("a"), evaluate("b")])
        assert drain_events(engine) == [], "also after its reply"


def test_a_task_gives_the_same_update_on_every_engine(make):
    payloads = PayloadStore()
    with started_engine(make, "a", store_payload=payloads.put) as engine:
        engine.submit([train("a")])
        (event,) = receive_events(engine, 1)
    alone = learners("a")["a"].train("t", 0, np.zeros(MODEL.layout.size, np.float32), SETTINGS)
    assert payloads[event.payload] == alone.payload
    expected = (len(alone.payload), 8, 40, alone.counts)
    assert (event.payload_bytes, event.steps, event.examples, event.counts) == expected


def test_time_is_monotonic_and_timers_fire_in_order(make):
    with started_engine(make, "a") as engine:
        for name, after in (("third", 0.3), ("first", 0.1), ("second", 0.2)):
            engine.set_timer(name, engine.now() + after)
        before = engine.now()
        events = receive_events(engine, 3)
        assert [e.name for e in events] == ["first", "second", "third"]
        times = [e.timestamp for e in events]
        assert before < times[0] <= times[1] <= times[2] <= engine.now()


def test_a_cancelled_waiting_task_has_no_event(make):
    with started_engine(make, "slow") as engine:
        engine.submit([train("slow", "first"), train("slow", "second"), train("slow", "third")])
        engine.cancel("second")
        engine.cancel("no such task")
        assert sorted(e.task for e in receive_events(engine, 2)) == ["first", "third"]
        assert drain_events(engine) == []


def test_a_failing_learner_is_a_failed_task_with_a_code(make):
    with started_engine(make, "a", "broken") as engine:
        engine.submit([train("broken", "b"), evaluate("broken"), train("a", "a")])
        events = {e.task: e for e in receive_events(engine, 3)}
        assert isinstance(events["a"], UpdateReceived)
        assert [events[t].reason for t in ("b", "e@broken")] == ["refused"] * 2
        assert "Zanzibar" not in repr(events)
        engine.submit([train("broken", "second")])
        assert isinstance(receive_events(engine, 1)[0], TaskFailed), "later tasks run as usual"


def test_a_departed_learner_is_reported_once_and_never_replies(make):
    with started_engine(make, "a", "leaver") as engine:
        engine.submit([train("leaver", str(i)) for i in range(5)])
        events: list = []
        while not any(isinstance(e, LearnerLeft) for e in events):
            events += engine.events()
        engine.submit([train("leaver", "later"), train("a", "a")])
        while not any(isinstance(e, UpdateReceived) for e in events):
            events += engine.events()
        events += drain_events(engine)
        assert [e.learner for e in events if isinstance(e, LearnerLeft)] == ["leaver"]
        assert {e.learner for e in events if isinstance(e, UpdateReceived)} == {"a"}
        assert all(e.learner == "leaver" for e in events if isinstance(e, TaskFailed))


def test_a_time_budget_gives_a_reproducible_number_of_steps(make):
    """Invariant 10."""
    payloads = PayloadStore()
    with started_engine(make, "a", "b", store_payload=payloads.put) as engine:
        engine.submit([train("a", "a", time_budget_seconds=0.07), train("b", "b", time_budget_seconds=0.07)])
        events = receive_events(engine, 2)
    for event in events:
        assert event.steps >= 1
        again = replace(SETTINGS, steps=event.steps)
        fresh = learners("a", "b")[event.learner]
        update = fresh.train(event.task, 0, np.zeros(MODEL.layout.size, np.float32), again)
        assert payloads[event.payload] == update.payload, "to the bit"


def test_an_adaptive_learner_sends_by_its_own_validation_loss(make):
    thresholds = UpdateThresholds(loss=100.0, tombstones=2)
    with started_engine(make, "a") as engine:
        engine.submit([train("a", update_thresholds=thresholds, epochs=50)])
        (event,) = receive_events(engine, 1)
        assert event.steps == 4 * 4, "after the fourth epoch, the third in a row below the loss threshold"


def test_an_adaptive_learner_reads_the_committed_steps_while_training(make):
    with started_engine(make, "a") as engine:
        engine.broadcast_progress(1000)
        engine.submit(
            [
                train(
                    "a",
                    update_thresholds=UpdateThresholds(0.0, 50),
                    epochs=50,
                    committed_steps=900,
                    staleness_limit=108,
                )
            ]
        )
        (event,) = receive_events(engine, 1)
        assert event.steps == 12, "1000 - 900 + 12 > 108: after three epochs"


def test_a_task_with_validation_data_is_trained_on_all_examples_and_not_evaluated(make):
    with started_engine(make, "a") as engine:
        engine.submit([train("a", use_validation_data=True)])
        (event,) = receive_events(engine, 1)
        assert (event.steps, event.examples, event.counts) == (2 * 6, 60, ())


RUNS = {
    "rounds": Strategy(
        3, 4, training=SETTINGS, weighting=(ValidationWeighting(),), scheduler=SynchronousScheduler()
    ),
    "semi-synchronous": Strategy(
        3, 4, training=SETTINGS, scheduler=SemiSynchronousScheduler(time_budget_seconds=0.01)
    ),
    "asynchronous": Strategy(
        3,
        12,
        training=SETTINGS,
        weighting=(ValidationWeighting(evaluators=1),),
        scheduler=AsynchronousScheduler(),
    ),
    "final rounds": Strategy(
        3,
        4,
        training=SETTINGS,
        weighting=(ValidationWeighting(),),
        scheduler=AsynchronousScheduler(),
        final_rounds=1,
    ),
}


def run_to_end(strategy: Strategy, engine: Engine, journal: Journal) -> list[str]:
    community = community_model(strategy, MODEL.layout, CODEC, MODEL.initial(0))
    RunLoop(strategy, community, engine, journal).run()
    return [model.digest for model in journal.store.models(journal.run)]


@pytest.mark.parametrize("name", RUNS)
def test_the_journal_determines_the_order(tmp_path, make, name):
    """Invariant 17: the journal alone, replayed by a new controller, gives the same versions."""
    strategy = RUNS[name]
    with Store(tmp_path) as store:
        journal = Journal(store, "run")
        with make(learners("a", "b", "c"), journal.payloads.put) as engine:
            expected = run_to_end(strategy, engine, journal)
        assert len(expected) > strategy.rounds
        written = Journal(store, "run")
        events = [event_from_row(*row) for row in written.rows()]
        with make(learners("a", "b", "c"), written.payloads.put) as unused:
            assert run_to_end(strategy, ReplayedEngine(unused, events), written) == expected
        tasks = [e.task for e in events if isinstance(e, UpdateReceived | EvaluationReceived | TaskFailed)]
        assert len(tasks) == len(set(tasks)), "no task has two replies"
