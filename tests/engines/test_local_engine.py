"""Local engine with real processes, their failures and their state."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from abaton.codecs import CodecKey, parse_codec
from abaton.controller import (
    STRATEGIES,
    AsynchronousScheduler,
    EvaluationReceived,
    LearnerJoined,
    LearnerLeft,
    SemiSynchronousScheduler,
    Strategy,
    TaskFailed,
    TimerFired,
    TrainSettings,
    UpdateReceived,
    UpdateThresholds,
    community_model,
    event_from_row,
)
from abaton.engines import EvaluateTask, LocalEngine, ReplayedEngine, RunLoop, TrainTask, VirtualEngine
from abaton.errors import SettingsError
from abaton.learners import Learner, LearnerUpdate, PersonalLayersModel
from abaton.models import Examples, SklearnModel
from abaton.store import Journal, Store
from abaton.training import round_key

SETTINGS = TrainSettings(epochs=2, batch_size=10)
CODEC = parse_codec("raw")


def model() -> SklearnModel:
    from sklearn.linear_model import SGDClassifier

    return SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=4, classes=2)


MISREPORTS = {
    "garbage": lambda update: LearnerUpdate(b"rubbish" * 10, update.steps, update.loss),
    "counter": lambda update: LearnerUpdate(update.payload, -1, update.loss),
    "nan": lambda update: LearnerUpdate(update.payload, update.steps, float("nan")),
    "infinite": lambda update: LearnerUpdate(update.payload, update.steps, update.loss, (float("inf"),)),
    "text": lambda update: LearnerUpdate(
        update.payload, update.steps, update.loss, ("patient Zanzibar-4711",)
    ),
    "flooder": lambda update: LearnerUpdate(update.payload, update.steps, update.loss, (0.0,) * 100_000),
    "object": lambda update: LearnerUpdate(update.payload, update.steps, object()),
}


class MisbehavingLearner(Learner):
    """Learner that misbehaves according to its name."""

    def train(
        self, task: str, version: int, start: np.ndarray, settings: TrainSettings, *rest
    ) -> LearnerUpdate:
        update = super().train(task, version, start, settings, *rest)
        if self.name in MISREPORTS:
            return MISREPORTS[self.name](update)
        if self.name == "broken":
            raise ZeroDivisionError("patient Zanzibar-4711")
        if self.name == "mortal" and not settings.momentum:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.name == "sleeper":
            time.sleep(60)
        return update


def learners(*names: str) -> dict[str, Learner]:
    built, network = {}, model()
    for i, name in enumerate(names):
        x = np.random.default_rng(i).normal(size=(40, 4)).astype(np.float32)
        data = Examples(x, (x[:, 0] > 0).astype(np.int64))
        built[name] = MisbehavingLearner(name, network, data, CODEC, 0, validation=data)
    return built


def engine(*names: str, **more) -> LocalEngine:
    learners_by_name = learners(*names)
    layout = learners_by_name[names[0]].model.layout

    def check(learner: str, version: int, payload: bytes) -> None:
        CODEC.decode(payload, layout, CodecKey(round_key(0, version), learner))

    return LocalEngine(
        learners_by_name, store_payload=lambda payload: str(len(payload)), check_payload=check, **more
    )


def task(learner: str, task_id: str = "t", momentum: float = 0.0) -> TrainTask:
    return TrainTask(task_id, learner, 0, np.zeros(5, np.float32), TrainSettings(momentum=momentum))


def receive_events(local: LocalEngine, count: int) -> list:
    events: list = []
    while len(events) < count:
        events += local.events()
    return events


def test_learners_train_and_evaluate_at_the_same_time_and_tasks_count_once():
    with engine("a", "sleeper") as local:
        assert [e.learner for e in receive_events(local, 2)] == ["a", "sleeper"]
        local.submit([task("a"), task("a"), task("sleeper", "s")])
        local.submit([EvaluateTask("t@sleeper", "sleeper", np.ones(5, np.float32))])
        events = receive_events(local, 2)
        assert {type(e) for e in events} == {UpdateReceived, EvaluationReceived}, (
            "the evaluator replies while its learner is busy"
        )
        local.set_timer("timer", local.now() + 0.05)
        assert receive_events(local, 1)[0].name == "timer"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "invalid_update") for name in MISREPORTS if name != "object"),
        ("object", "learner_failed"),
        ("broken", "learner_failed"),
        ("mortal", "process_exited"),
    ],
)
def test_a_misbehaving_learner_is_a_failed_task_with_a_code(name, reason):
    with engine(name) as local:
        receive_events(local, 1)
        local.submit([task(name)])
        (event,) = receive_events(local, 1)
        assert event == TaskFailed(event.timestamp, name, "t", reason)
        assert "Zanzibar" not in repr(event)
        if name == "mortal":
            local.submit([task(name, "again", momentum=0.5)])
            assert isinstance(receive_events(local, 1)[0], UpdateReceived), "its process was started again"


def test_a_hanging_learner_times_out():
    with engine("sleeper", answer_timeout=0.3) as local:
        receive_events(local, 1)
        local.submit([task("sleeper")])
        assert receive_events(local, 1)[0].reason == "timeout"


def test_the_time_budget_does_not_count_towards_the_timeout():
    with engine("a", answer_timeout=0.5) as local:
        receive_events(local, 1)
        settings = TrainSettings(time_budget_seconds=0.8)
        local.submit([TrainTask("t", "a", 0, np.zeros(5, np.float32), settings)])
        (event,) = receive_events(local, 1)
        assert isinstance(event, UpdateReceived)
        assert event.timestamp >= 0.8
        assert event.steps > 1


def test_a_learner_whose_process_keeps_exiting_has_left():
    with engine("mortal") as local:
        receive_events(local, 1)
        local.submit([task("mortal", str(i)) for i in range(6)])
        events = receive_events(local, 7)
        assert sum(isinstance(e, LearnerLeft) for e in events) == 1
        assert {e.reason for e in events if isinstance(e, TaskFailed)} == {"process_exited", "learner_gone"}


def run_once(
    store: Store,
    name: str,
    strategy: Strategy,
    make,
    journal_first: bool = False,
    stop_after: int | None = None,
):
    learners_by_name = learners("a", "b", "c")
    layout = learners_by_name["a"].model.layout
    journal = Journal(store, name)
    community = community_model(strategy, layout, CODEC, learners_by_name["a"].model.initial(0))
    seen = [0]

    def watch(*_: object) -> None:
        seen[0] += 1
        if seen[0] == stop_after:
            raise KeyboardInterrupt

    def check(learner: str, version: int, payload: bytes) -> None:
        CODEC.decode(payload, layout, CodecKey(round_key(0, version), learner))

    if make is VirtualEngine:
        return RunLoop(
            strategy,
            community,
            VirtualEngine(learners_by_name, {}, store_payload=journal.payloads.put, seed=0),
            journal,
        ).run()
    with LocalEngine(learners_by_name, store_payload=journal.payloads.put, check_payload=check) as local:
        events = [event_from_row(*row) for row in journal.rows()]
        selected = ReplayedEngine(local, events) if journal_first else local
        return RunLoop(strategy, community, selected, journal).run(watch)


SCHEDULERS = {
    "asynchronous": AsynchronousScheduler(),
    "adaptive": AsynchronousScheduler(adaptive={"": UpdateThresholds(1.0, 1)}),
    "semi-synchronous": SemiSynchronousScheduler(time_budget_seconds=0.01),
}


@pytest.mark.parametrize("policy", ["SyncFedAvg", "SyncDVW"])
def test_a_synchronous_run_gives_the_same_digests_as_under_the_virtual_clock(tmp_path, policy):
    strategy = Strategy(learners=3, rounds=4, training=SETTINGS, **STRATEGIES[policy])
    with Store(tmp_path) as store:
        run_once(store, "virtual", strategy, VirtualEngine)
        run_once(store, "local", strategy, LocalEngine)
        assert [m.digest for m in store.models("virtual")] == [m.digest for m in store.models("local")]


@pytest.mark.parametrize(
    ("scheduler", "cut"), [(scheduler, cut) for scheduler in SCHEDULERS for cut in (4, 9, 14)]
)
def test_an_interrupted_run_resumes_from_its_journal(tmp_path, scheduler, cut):
    strategy = Strategy(learners=3, rounds=12, scheduler=SCHEDULERS[scheduler], training=SETTINGS)
    with Store(tmp_path) as store:
        with pytest.raises(KeyboardInterrupt):
            run_once(store, "r", strategy, LocalEngine, stop_after=cut)
        before = store.models("r")
        outcome = run_once(store, "r", strategy, LocalEngine, journal_first=True)
        models = store.models("r")
        assert outcome.version == 12
        assert [m.digest for m in models[: len(before)]] == [m.digest for m in before]
        assert [m.version for m in models] == list(range(13))
        events = [event_from_row(*row) for row in Journal(store, "r").rows()]
        tasks = [e.task for e in events if isinstance(e, UpdateReceived)]
        assert len(tasks) == len(set(tasks))
        assert sum(isinstance(e, LearnerJoined) for e in events) == 6, "learners join again after the restart"
        assert not any(isinstance(e, TimerFired) for e in events)


class RecordingLearner(Learner):
    """Learner that records each training."""

    folder = None

    def train(self, task: str, *more: object) -> LearnerUpdate:
        with (self.folder / "trained").open("a") as file:
            file.write(task + "\n")
        return super().train(task, *more)


def test_learner_state_survives_its_process_and_advances_once_per_task(tmp_path, monkeypatch):
    codec = parse_codec("error_feedback | stc(sparsity=0.5)")
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    data = Examples(x, (x[:, 0] > 0).astype(np.int64))
    network, payloads = model(), {}
    RecordingLearner.folder = tmp_path

    def store_payload(payload: bytes) -> str:
        payloads[len(payloads)] = payload
        return str(len(payloads) - 1)

    def fresh() -> LocalEngine:
        learners_by_name = {"a": RecordingLearner("a", network, data, codec, 0)}
        return LocalEngine(
            learners_by_name,
            store_payload=store_payload,
            check_payload=lambda *_: None,
            state_dir=tmp_path / "states",
        )

    start = np.zeros(5, np.float32)
    for keys in (
        ["t1"],
        ["t1", "t2"],
        ["t2", "t3"],
    ):  # each engine starts with the last task of the previous one
        with fresh() as local:
            receive_events(local, 1)
            for key in keys:
                local.submit([TrainTask(key, "a", 0, start, SETTINGS)])
                receive_events(local, 1)
    one = Learner("a", network, data, codec, 0)
    t1, t2, t3 = (one.train(key, 0, start, SETTINGS).payload for key in ("t1", "t2", "t3"))
    assert list(payloads.values()) == [t1, t1, t2, t2, t3]
    assert (tmp_path / "trained").read_text().split() == ["t1", "t2", "t3"], (
        "a task with a stored reply is not run again"
    )


def test_evaluators_see_the_personal_layers_their_site_has_trained(tmp_path):
    network = PersonalLayersModel(model(), ["*intercept*"])
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    data = Examples(x, (x[:, 0] > -0.8).astype(np.int64))
    learners_by_name = {"a": Learner("a", network, data, CODEC, 0, validation=data)}
    shared = np.zeros(4, np.float32)
    with LocalEngine(
        learners_by_name, store_payload=lambda p: "", check_payload=lambda *_: None, state_dir=tmp_path
    ) as local:
        receive_events(local, 1)
        local.submit([EvaluateTask("x@a", "a", shared)])
        before = receive_events(local, 1)[0].counts
        local.submit([TrainTask("t1", "a", 0, shared, TrainSettings(epochs=20))])
        receive_events(local, 1)
        local.submit([EvaluateTask("y@a", "a", shared)])
        after = receive_events(local, 1)[0].counts
    learners_by_name["a"].train("t1", 0, shared, TrainSettings(epochs=20))
    assert after == learners_by_name["a"].evaluate(shared) != before


def test_a_learner_with_state_needs_a_folder():
    network = PersonalLayersModel(model(), ["*intercept*"])
    data = Examples(np.zeros((4, 4), np.float32), np.array([0, 1, 0, 1]))
    with pytest.raises(SettingsError, match="state_dir="):
        LocalEngine(
            {"a": Learner("a", network, data, CODEC, 0)},
            store_payload=lambda p: "",
            check_payload=lambda *_: None,
        )


def test_a_damaged_state_is_a_failed_task(tmp_path):
    with engine("a", state_dir=tmp_path) as local:
        receive_events(local, 1)
        local.submit([task("a")])
        receive_events(local, 1)
        (file,) = tmp_path.iterdir()
        file.write_bytes(b"rubbish")
        local.submit([task("a", "again")])
        assert receive_events(local, 1)[0].reason == "refused"


@pytest.mark.parametrize("copied", [False, True], ids=["alone", "with another child"])
def test_learners_end_with_a_controller_that_is_killed(tmp_path, copied):
    """Also a training one, and also if another forked process has copies of its pipes."""
    pid_file = tmp_path / "children"
    controller = os.fork()
    if not controller:
        engine = LocalEngine(learners("sleeper", "b", "c"), store_payload=str, check_payload=lambda *_: None)
        others = [os.fork()] if copied else []
        if 0 in others:
            time.sleep(120)
        start = model().initial(0)
        engine.submit([TrainTask("t", "sleeper", 0, start, SETTINGS), EvaluateTask("t@b", "b", start)])
        time.sleep(0.5)
        pids = [child.process.pid for child in engine._processes.values()]
        pid_file.with_suffix(".partial").write_text(" ".join(map(str, [*pids, *others])))
        pid_file.with_suffix(".partial").rename(pid_file)
        time.sleep(120)
    while not pid_file.exists():
        time.sleep(0.02)
    pids = [int(pid) for pid in pid_file.read_text().split()]
    assert len(pids) == 4 + copied
    os.kill(controller, signal.SIGKILL)
    os.waitpid(controller, 0)
    if copied:
        other = pids.pop()
    until = time.monotonic() + 20
    while time.monotonic() < until and any(map(is_alive, pids)):
        time.sleep(0.02)
    remaining = [pid for pid in pids if is_alive(pid)]
    for pid in [*remaining, *([other] if copied else [])]:
        os.kill(pid, signal.SIGKILL)
    assert not remaining


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
