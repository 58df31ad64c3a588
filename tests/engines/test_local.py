"""Real processes: what goes well, and what goes wrong."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from abaton.codecs import Key, parse
from abaton.controller import (
    POLICIES,
    Arrived,
    Asynchronous,
    Failed,
    Joined,
    Left,
    Rules,
    Scored,
    SemiSynchronous,
    Thresholds,
    Tick,
    TrainSettings,
    community_model,
    from_row,
)
from abaton.engines import Driver, EvaluateTask, LocalEngine, Replayed, TrainTask, VirtualEngine
from abaton.errors import SettingsError
from abaton.learners import Examples, Learner, Personal, SklearnModel, Update
from abaton.store import Journal, Store
from abaton.training import round_key

SETTINGS = TrainSettings(epochs=2, batch_size=10)
CODEC = parse("raw")


def model() -> SklearnModel:
    from sklearn.linear_model import SGDClassifier

    return SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=4, classes=2)


TELLS = {
    "liar": lambda made: Update(b"rubbish" * 10, made.steps, made.loss),
    "counter": lambda made: Update(made.payload, -1, made.loss),
    "nan": lambda made: Update(made.payload, made.steps, float("nan")),
    "boaster": lambda made: Update(made.payload, made.steps, made.loss, (float("inf"),)),
    "talker": lambda made: Update(made.payload, made.steps, made.loss, ("patient Zanzibar-4711",)),
    "flooder": lambda made: Update(made.payload, made.steps, made.loss, (0.0,) * 100_000),
    "object": lambda made: Update(made.payload, made.steps, object()),
}


class Odd(Learner):
    """A learner that misbehaves in the way its name says."""

    def train(self, task: str, version: int, start: np.ndarray, settings: TrainSettings, *rest) -> Update:
        made = super().train(task, version, start, settings, *rest)
        if self.name in TELLS:
            return TELLS[self.name](made)
        if self.name == "broken":
            raise ZeroDivisionError("patient Zanzibar-4711")
        if self.name == "mortal" and not settings.momentum:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.name == "sleeper":
            time.sleep(60)
        return made


def learners(*names: str) -> dict[str, Learner]:
    made, network = {}, model()
    for i, name in enumerate(names):
        x = np.random.default_rng(i).normal(size=(40, 4)).astype(np.float32)
        data = Examples(x, (x[:, 0] > 0).astype(np.int64))
        made[name] = Odd(name, network, data, CODEC, 0, validation=data)
    return made


def engine(*names: str, **more) -> LocalEngine:
    members = learners(*names)
    layout = members[names[0]].model.layout

    def check(learner: str, version: int, payload: bytes) -> None:
        CODEC.decode(payload, layout, Key(round_key(0, version), learner))

    return LocalEngine(members, keep=lambda payload: str(len(payload)), check=check, **more)


def task(learner: str, key: str = "t", momentum: float = 0.0) -> TrainTask:
    return TrainTask(key, learner, 0, np.zeros(5, np.float32), TrainSettings(momentum=momentum))


def heard(local: LocalEngine, count: int) -> list:
    events: list = []
    while len(events) < count:
        events += local.events()
    return events


def test_learners_train_and_evaluate_at_the_same_time_and_tasks_count_once():
    with engine("a", "sleeper") as local:
        assert [e.learner for e in heard(local, 2)] == ["a", "sleeper"]
        local.submit([task("a"), task("a"), task("sleeper", "s")])
        local.submit([EvaluateTask("t@sleeper", "sleeper", np.ones(5, np.float32))])
        events = heard(local, 2)
        assert {type(e) for e in events} == {Arrived, Scored}, (
            "the evaluator answers while its learner is busy"
        )
        local.set_timer("bell", local.now() + 0.05)
        assert heard(local, 1)[0].name == "bell"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "unreadable update") for name in TELLS if name != "object"),
        ("object", "learner failed"),
        ("broken", "learner failed"),
        ("mortal", "process ended"),
    ],
)
def test_a_learner_that_misbehaves_is_a_failed_task_with_a_plain_reason(name, reason):
    with engine(name) as local:
        heard(local, 1)
        local.submit([task(name)])
        (event,) = heard(local, 1)
        assert event == Failed(event.at, name, "t", reason)
        assert "Zanzibar" not in repr(event)
        if name == "mortal":
            local.submit([task(name, "again", momentum=0.5)])
            assert isinstance(heard(local, 1)[0], Arrived), "its process was started again"


def test_a_learner_that_hangs_is_given_up():
    with engine("sleeper", patience=0.3) as local:
        heard(local, 1)
        local.submit([task("sleeper")])
        assert heard(local, 1)[0].reason == "no answer in time"


def test_the_time_that_a_task_was_given_does_not_try_patience():
    with engine("a", patience=0.5) as local:
        heard(local, 1)
        settings = TrainSettings(budget=0.8)
        local.submit([TrainTask("t", "a", 0, np.zeros(5, np.float32), settings)])
        (event,) = heard(local, 1)
        assert isinstance(event, Arrived)
        assert event.at >= 0.8
        assert event.steps > 1


def test_a_learner_that_keeps_dying_has_left():
    with engine("mortal") as local:
        heard(local, 1)
        local.submit([task("mortal", str(i)) for i in range(6)])
        events = heard(local, 7)
        assert sum(isinstance(e, Left) for e in events) == 1
        assert {e.reason for e in events if isinstance(e, Failed)} == {"process ended", "learner is gone"}


def drive(
    store: Store, name: str, rules: Rules, make, journal_first: bool = False, stop_after: int | None = None
):
    members = learners("a", "b", "c")
    layout = members["a"].model.layout
    journal = Journal(store, name)
    community = community_model(rules, layout, CODEC, members["a"].model.initial(0))
    seen = [0]

    def watch(*_: object) -> None:
        seen[0] += 1
        if seen[0] == stop_after:
            raise KeyboardInterrupt

    def check(learner: str, version: int, payload: bytes) -> None:
        CODEC.decode(payload, layout, Key(round_key(0, version), learner))

    if make is VirtualEngine:
        return Driver(
            rules, community, VirtualEngine(members, {}, keep=journal.payloads.put, seed=0), journal
        ).run()
    with LocalEngine(members, keep=journal.payloads.put, check=check) as local:
        events = [from_row(*row) for row in journal.rows()]
        chosen = Replayed(local, events) if journal_first else local
        return Driver(rules, community, chosen, journal).run(watch)


PACINGS = {
    "asynchronous": Asynchronous(),
    "adaptive": Asynchronous(adaptive={"": Thresholds(1.0, 1)}),
    "semi-synchronous": SemiSynchronous(budget=0.01),
}


@pytest.mark.parametrize("policy", ["SyncFedAvg", "SyncDVW"])
def test_a_synchronous_run_gives_the_same_digests_as_under_the_virtual_clock(tmp_path, policy):
    rules = Rules(learners=3, rounds=4, training=SETTINGS, **POLICIES[policy])
    with Store(tmp_path) as store:
        drive(store, "virtual", rules, VirtualEngine)
        drive(store, "local", rules, LocalEngine)
        assert [m.digest for m in store.models("virtual")] == [m.digest for m in store.models("local")]


@pytest.mark.parametrize(("pacing", "cut"), [(pacing, cut) for pacing in PACINGS for cut in (4, 9, 14)])
def test_a_real_run_that_is_cut_off_goes_on_from_its_journal(tmp_path, pacing, cut):
    rules = Rules(learners=3, rounds=12, pacing=PACINGS[pacing], training=SETTINGS)
    with Store(tmp_path) as store:
        with pytest.raises(KeyboardInterrupt):
            drive(store, "r", rules, LocalEngine, stop_after=cut)
        before = store.models("r")
        outcome = drive(store, "r", rules, LocalEngine, journal_first=True)
        models = store.models("r")
        assert outcome.version == 12
        assert [m.digest for m in models[: len(before)]] == [m.digest for m in before]
        assert [m.version for m in models] == list(range(13))
        events = [from_row(*row) for row in Journal(store, "r").rows()]
        tasks = [e.task for e in events if isinstance(e, Arrived)]
        assert len(tasks) == len(set(tasks))
        assert sum(isinstance(e, Joined) for e in events) == 6, "they join again after the restart"
        assert not any(isinstance(e, Tick) for e in events)


class Noted(Learner):
    """A learner that notes each training."""

    folder = None

    def train(self, task: str, *more: object) -> Update:
        with (self.folder / "trained").open("a") as file:
            file.write(task + "\n")
        return super().train(task, *more)


def test_what_a_learner_keeps_survives_its_process_and_a_task_moves_it_once(tmp_path, monkeypatch):
    codec = parse("error_feedback | stc(sparsity=0.5)")
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    data = Examples(x, (x[:, 0] > 0).astype(np.int64))
    network, kept = model(), {}
    Noted.folder = tmp_path

    def keep(payload: bytes) -> str:
        kept[len(kept)] = payload
        return str(len(kept) - 1)

    def fresh() -> LocalEngine:
        members = {"a": Noted("a", network, data, codec, 0)}
        return LocalEngine(members, keep=keep, check=lambda *_: None, states=tmp_path / "states")

    start = np.zeros(5, np.float32)
    for keys in (["t1"], ["t1", "t2"], ["t2", "t3"]):  # each life begins with the last task of the one before
        with fresh() as local:
            heard(local, 1)
            for key in keys:
                local.submit([TrainTask(key, "a", 0, start, SETTINGS)])
                heard(local, 1)
    one = Learner("a", network, data, codec, 0)
    t1, t2, t3 = (one.train(key, 0, start, SETTINGS).payload for key in ("t1", "t2", "t3"))
    assert list(kept.values()) == [t1, t1, t2, t2, t3]
    assert (tmp_path / "trained").read_text().split() == ["t1", "t2", "t3"], (
        "an answered task is not done again"
    )


def test_evaluators_see_the_personal_layers_their_site_has_trained(tmp_path):
    network = Personal(model(), ["*intercept*"])
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    data = Examples(x, (x[:, 0] > -0.8).astype(np.int64))
    members = {"a": Learner("a", network, data, CODEC, 0, validation=data)}
    shared = np.zeros(4, np.float32)
    with LocalEngine(members, keep=lambda p: "", check=lambda *_: None, states=tmp_path) as local:
        heard(local, 1)
        local.submit([EvaluateTask("x@a", "a", shared)])
        before = heard(local, 1)[0].score
        local.submit([TrainTask("t1", "a", 0, shared, TrainSettings(epochs=20))])
        heard(local, 1)
        local.submit([EvaluateTask("y@a", "a", shared)])
        after = heard(local, 1)[0].score
    members["a"].train("t1", 0, shared, TrainSettings(epochs=20))
    assert after == members["a"].evaluate(shared) != before


def test_a_learner_that_keeps_something_needs_a_place_for_it():
    network = Personal(model(), ["*intercept*"])
    data = Examples(np.zeros((4, 4), np.float32), np.array([0, 1, 0, 1]))
    with pytest.raises(SettingsError, match="states="):
        LocalEngine({"a": Learner("a", network, data, CODEC, 0)}, keep=lambda p: "", check=lambda *_: None)


def test_a_damaged_state_is_a_failed_task(tmp_path):
    with engine("a", states=tmp_path) as local:
        heard(local, 1)
        local.submit([task("a")])
        heard(local, 1)
        (file,) = tmp_path.iterdir()
        file.write_bytes(b"rubbish")
        local.submit([task("a", "again")])
        assert heard(local, 1)[0].reason == "task was refused"


@pytest.mark.parametrize("copied", [False, True], ids=["alone", "with another child"])
def test_learners_end_with_a_controller_that_is_killed(tmp_path, copied):
    """Also one that trains at that moment, and also if something else was forked that holds copies of its pipes."""
    told = tmp_path / "children"
    controller = os.fork()
    if not controller:
        engine = LocalEngine(learners("sleeper", "b", "c"), keep=str, check=lambda *_: None)
        others = [os.fork()] if copied else []
        if 0 in others:
            time.sleep(120)
        start = model().initial(0)
        engine.submit([TrainTask("t", "sleeper", 0, start, SETTINGS), EvaluateTask("t@b", "b", start)])
        time.sleep(0.5)
        pids = [each.process.pid for each in engine._processes.values()]
        told.with_suffix(".begun").write_text(" ".join(map(str, [*pids, *others])))
        told.with_suffix(".begun").rename(told)
        time.sleep(120)
    while not told.exists():
        time.sleep(0.02)
    pids = [int(pid) for pid in told.read_text().split()]
    assert len(pids) == 4 + copied
    os.kill(controller, signal.SIGKILL)
    os.waitpid(controller, 0)
    if copied:
        other = pids.pop()
    until = time.monotonic() + 20
    while time.monotonic() < until and any(map(is_alive, pids)):
        time.sleep(0.02)
    left = [pid for pid in pids if is_alive(pid)]
    for pid in [*left, *([other] if copied else [])]:
        os.kill(pid, signal.SIGKILL)
    assert not left


def is_alive(pid: int) -> bool:
    """Whether a process is there and has not ended; one that has may wait for somebody to ask for its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
