"""Learners on a real Ray cluster: the same bits as on other engines, and failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from tests.engines.ray import unusual_models as unusual

from abaton.codecs import parse_codec
from abaton.controller import (
    STRATEGIES,
    AsynchronousScheduler,
    EvaluationReceived,
    LearnerLeft,
    Strategy,
    TaskFailed,
    UpdateReceived,
    UpdateThresholds,
    community_model,
    event_from_row,
)
from abaton.engines import EvaluateTask, LocalEngine, ReplayedEngine, RunLoop, VirtualEngine
from abaton.errors import SettingsError
from abaton.learners import Learner
from abaton.store import Journal, Store

pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.usefixtures("cluster")]

STRATEGY = Strategy(learners=3, rounds=4, training=unusual.SETTINGS, **STRATEGIES["SyncDVW"])


def run_once(store: Store, name: str, strategy: Strategy, make, watch=None, *, resume: bool = False):
    journal = Journal(store, name)
    community = community_model(strategy, unusual.MODEL.layout, parse_codec("raw"), unusual.MODEL.initial(0))
    engine = make(journal.payloads.put)
    try:
        events = [event_from_row(*row) for row in journal.rows()]
        return RunLoop(
            strategy, community, ReplayedEngine(engine, events) if resume else engine, journal
        ).run(watch)
    finally:
        engine.close()


def on_ray(*names: str, **options):
    return lambda store_payload: unusual.engine(*names, store_payload=store_payload, **options)


def digests(store: Store, run: str) -> list[str]:
    return [model.digest for model in store.models(run)]


@pytest.mark.parametrize("policy", ["SyncFedAvg", "SyncDVW"])
def test_a_synchronous_run_gives_the_same_digests_on_virtual_local_and_ray(tmp_path, policy):
    strategy = Strategy(learners=3, rounds=4, training=unusual.SETTINGS, **STRATEGIES[policy])
    learners_by_name = unusual.learners("a", "b", "c")
    with Store(tmp_path) as store:
        run_once(
            store,
            "virtual",
            strategy,
            lambda store_payload: VirtualEngine(learners_by_name, {}, store_payload=store_payload, seed=0),
        )
        run_once(
            store,
            "local",
            strategy,
            lambda store_payload: LocalEngine(
                learners_by_name, store_payload=store_payload, check_payload=unusual.check
            ),
        )
        run_once(store, "ray", strategy, on_ray("a", "b", "c"))
        assert digests(store, "ray") == digests(store, "local") == digests(store, "virtual")


REASONS = {
    "garbage": "invalid_update",
    "counter": "invalid_update",
    "nan": "invalid_update",
    "broken": "learner_failed",
    "unbuildable": "learner_failed",
    "mortal": "process_exited",
}


def test_a_misbehaving_learner_is_a_failed_task_with_a_code():
    with unusual.engine("a", *REASONS) as ray:
        unusual.receive_events(ray, 1 + len(REASONS))
        ray.submit([unusual.task(name, name) for name in ("a", *REASONS)])
        events = {event.task: event for event in unusual.receive_events(ray, 1 + len(REASONS))}
        assert isinstance(events.pop("a"), UpdateReceived)
        assert {name: event.reason for name, event in events.items()} == REASONS
        assert "Zanzibar" not in repr(events)
        ray.submit([unusual.task("mortal", "again", momentum=0.5)])
        assert isinstance(unusual.receive_events(ray, 1)[0], UpdateReceived), (
            "another worker runs its next task"
        )


def test_a_count_that_is_not_a_number_is_a_failed_task():
    with unusual.engine("infinite") as ray:
        unusual.receive_events(ray, 1)
        ray.submit([EvaluateTask("t@infinite", "infinite", np.zeros(5, np.float32))])
        assert unusual.receive_events(ray, 1)[0].reason == "invalid_reply"


@pytest.mark.parametrize(
    "reply",
    [
        None,
        (b"{", b"", {}),
        (b"[]", b"", {}),
        (b"{}", b"", {"x": 1}),
        (b'{"task_id": "t"}', b"", {}),
        ("{}", b"", {}, 4),
    ],
)
def test_an_invalid_worker_reply_is_a_failed_task(reply):
    import ray as real

    with unusual.engine("a") as ray:
        unusual.receive_events(ray, 1)
        ray._run_task = real.remote(lambda *_: reply)
        ray.submit([unusual.task("a")])
        (event,) = unusual.receive_events(ray, 1)
        assert event.reason in ("invalid_update", "version_mismatch")


def test_an_error_outside_of_a_learner_is_not_forwarded():
    import ray as real

    def fail(*_: object) -> None:
        raise RuntimeError("patient Zanzibar-4711")

    with unusual.engine("a") as ray:
        unusual.receive_events(ray, 1)
        ray._run_task = real.remote(fail)
        ray.submit([unusual.task("a")])
        (event,) = unusual.receive_events(ray, 1)
        assert (type(event), event.reason) == (TaskFailed, "learner_failed")


def test_a_hanging_learner_times_out_and_its_evaluator_replies_meanwhile():
    with unusual.engine("sleeper", "a", answer_timeout=30.0) as ray:
        unusual.receive_events(ray, 2)
        ray.submit([unusual.task("sleeper", "s")])
        ray.submit([EvaluateTask("e@sleeper", "sleeper", np.ones(5, np.float32))])
        first, second = unusual.receive_events(ray, 2)
        assert isinstance(first, EvaluationReceived)
        assert (second.task, second.reason) == ("s", "timeout")
        ray._task_queue.answer_timeout = 300.0  # a new worker starts slowly on a busy machine
        ray.submit([unusual.task("a"), EvaluateTask("f@a", "a", np.ones(5, np.float32))])
        assert {type(e) for e in unusual.receive_events(ray, 2)} == {UpdateReceived, EvaluationReceived}, (
            "its processor is free again"
        )


def test_a_learner_whose_process_keeps_exiting_has_left():
    with unusual.engine("mortal") as ray:
        unusual.receive_events(ray, 1)
        ray.submit([unusual.task("mortal", str(i)) for i in range(6)])
        events = unusual.receive_events(ray, 7)
        assert [e.learner for e in events if isinstance(e, LearnerLeft)] == ["mortal"]
        reasons = [e.reason for e in events if isinstance(e, TaskFailed)]
        assert reasons == ["process_exited"] * 4 + ["learner_gone"] * 2


def test_a_training_learner_reads_the_committed_steps():
    with unusual.engine("listener", "slow") as ray:
        unusual.receive_events(ray, 2)
        ray.submit(
            [
                unusual.task("listener", "l", update_thresholds=UpdateThresholds(100.0, 2)),
                unusual.task("slow", "s"),
            ]
        )
        assert unusual.receive_events(ray, 1)[0].task == "s", "the listener is training"
        ray.broadcast_progress(5)
        (event,) = unusual.receive_events(ray, 1)
        assert (event.task, event.steps) == ("l", 5)


def test_learner_state_stays_at_the_site_and_advances_once_per_task(tmp_path):
    codec, payloads = "error_feedback | stc(sparsity=0.5)", []

    def store_payload(payload: bytes) -> str:
        payloads.append(payload)
        return str(len(payloads))

    for keys in (
        ["t1"],
        ["t1", "t2"],
        ["t2", "t3"],
    ):  # each engine starts with the last task of the previous one
        with unusual.engine("a", codec=codec, store_payload=store_payload, state_dir=tmp_path) as ray:
            unusual.receive_events(ray, 1)
            for key in keys:
                ray.submit([unusual.task("a", key)])
                assert isinstance(unusual.receive_events(ray, 1)[0], UpdateReceived)
    one: Learner = unusual.learners("a", codec=codec)["a"]
    start = np.zeros(5, np.float32)
    t1, t2, t3 = (one.train(key, 0, start, unusual.SETTINGS).payload for key in ("t1", "t2", "t3"))
    assert payloads == [t1, t1, t2, t2, t3]
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"rubbish")
    with unusual.engine("a", codec=codec, state_dir=tmp_path) as ray:
        unusual.receive_events(ray, 1)
        ray.submit([unusual.task("a", "t4")])
        assert unusual.receive_events(ray, 1)[0].reason == "refused", "a damaged state is a failed task"
    with pytest.raises(SettingsError, match="state_dir="):
        unusual.engine("a", codec=codec)


class Interrupted(Exception):
    """The process was interrupted."""


def test_an_interrupted_asynchronous_run_resumes_from_its_journal(tmp_path):
    strategy = Strategy(learners=3, rounds=12, scheduler=AsynchronousScheduler(), training=unusual.SETTINGS)
    seen_events = []

    def watch(state: object, event: object) -> None:
        seen_events.append(event)
        if len(seen_events) == 9:
            raise Interrupted

    with Store(tmp_path) as store:
        with pytest.raises(Interrupted):
            run_once(store, "r", strategy, on_ray("a", "b", "c"), watch)
        before = digests(store, "r")
        outcome = run_once(store, "r", strategy, on_ray("a", "b", "c"), resume=True)
        assert outcome.version == 12
        assert digests(store, "r")[: len(before)] == before
        events = [event_from_row(*row) for row in Journal(store, "r").rows()]
        tasks = [e.task for e in events if isinstance(e, UpdateReceived)]
        assert len(tasks) == len(set(tasks))


MISBEHAVING = {"broken", "unbuildable", "mortal", "garbage"}


def with_bad_learners(rounds: int) -> Strategy:
    return Strategy(
        learners=2 + len(MISBEHAVING),
        rounds=rounds,
        scheduler=AsynchronousScheduler(),
        training=unusual.SETTINGS,
    )


def test_a_run_with_misbehaving_learners_finishes_without_their_error_texts(tmp_path):
    with Store(tmp_path / "store") as store:
        engine = on_ray("a", "b", *sorted(MISBEHAVING), state_dir=tmp_path / "states")
        outcome = run_once(store, "r", with_bad_learners(8), engine)
        assert outcome.version == 8
        events = [event_from_row(*row) for row in Journal(store, "r").rows()]
        assert {e.learner for e in events if isinstance(e, TaskFailed)} <= MISBEHAVING
    assert not unusual.folder_contains(tmp_path, b"Zanzibar")


def test_every_misbehaving_learner_fails_in_a_long_run(tmp_path):
    failed, seen_events = set(), []

    def watch(state: object, event: object) -> None:
        seen_events.append(event)
        if isinstance(event, TaskFailed):
            failed.add(event.learner)
        if failed == MISBEHAVING or len(seen_events) > 5000:  # how soon a worker exits depends on the machine
            raise Interrupted

    with Store(tmp_path / "store") as store, pytest.raises(Interrupted):
        run_once(store, "r", with_bad_learners(100_000), on_ray("a", "b", *sorted(MISBEHAVING)), watch)
    assert failed == MISBEHAVING
    assert not unusual.folder_contains(tmp_path, b"Zanzibar")


def test_usage_statistics_and_dashboard_are_off():
    import ray as real
    from ray._common.usage import usage_lib

    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert not usage_lib.usage_stats_enabled()
    assert not real._private.worker._global_node.webui_url


def test_a_cluster_of_several_machines_is_found_by_its_address_and_may_lose_one(tmp_path):
    """In another process, because a process has one connection to Ray."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.ray.ray_machines", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results["no cluster"] == "ClusterError"
    assert results["complete"] == results["virtual"], "with all machines: the same digests"
    assert results["version"] == 4, "with one machine lost the run still finishes"
    assert set(results["reasons"]) <= {"process_exited"}
    assert "Zanzibar" not in done.stderr
