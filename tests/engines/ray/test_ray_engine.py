"""Learners on a real Ray: the same bits as elsewhere, and everything that can go wrong there."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from tests.engines.ray import odd

from abaton.codecs import parse
from abaton.controller import (
    POLICIES,
    Arrived,
    Asynchronous,
    Failed,
    Left,
    Rules,
    Scored,
    Thresholds,
    community_model,
    from_row,
)
from abaton.engines import Driver, EvaluateTask, LocalEngine, Replayed, VirtualEngine
from abaton.errors import SettingsError
from abaton.learners import Learner
from abaton.store import Journal, Store

pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.usefixtures("cluster")]

RULES = Rules(learners=3, rounds=4, training=odd.SETTINGS, **POLICIES["SyncDVW"])


def drive(store: Store, name: str, rules: Rules, make, watch=None, *, go_on: bool = False):
    journal = Journal(store, name)
    community = community_model(rules, odd.MODEL.layout, parse("raw"), odd.MODEL.initial(0))
    engine = make(journal.payloads.put)
    try:
        events = [from_row(*row) for row in journal.rows()]
        return Driver(rules, community, Replayed(engine, events) if go_on else engine, journal).run(watch)
    finally:
        engine.close()


def on_ray(*names: str, **more):
    return lambda keep: odd.engine(*names, keep=keep, **more)


def digests(store: Store, run: str) -> list[str]:
    return [model.digest for model in store.models(run)]


@pytest.mark.parametrize("policy", ["SyncFedAvg", "SyncDVW"])
def test_a_synchronous_run_gives_the_same_digests_on_virtual_local_and_ray(tmp_path, policy):
    rules = Rules(learners=3, rounds=4, training=odd.SETTINGS, **POLICIES[policy])
    members = odd.learners("a", "b", "c")
    with Store(tmp_path) as store:
        drive(store, "virtual", rules, lambda keep: VirtualEngine(members, {}, keep=keep, seed=0))
        drive(store, "local", rules, lambda keep: LocalEngine(members, keep=keep, check=odd.check))
        drive(store, "ray", rules, on_ray("a", "b", "c"))
        assert digests(store, "ray") == digests(store, "local") == digests(store, "virtual")


REASONS = {
    "liar": "unreadable update",
    "counter": "unreadable update",
    "nan": "unreadable update",
    "broken": "learner failed",
    "unmade": "learner failed",
    "mortal": "process ended",
}


def test_a_learner_that_misbehaves_is_a_failed_task_with_a_plain_reason_and_others_go_on():
    with odd.engine("a", *REASONS) as ray:
        odd.heard(ray, 1 + len(REASONS))
        ray.submit([odd.task(name, name) for name in ("a", *REASONS)])
        events = {event.task: event for event in odd.heard(ray, 1 + len(REASONS))}
        assert isinstance(events.pop("a"), Arrived)
        assert {name: event.reason for name, event in events.items()} == REASONS
        assert "Zanzibar" not in repr(events)
        ray.submit([odd.task("mortal", "again", momentum=0.5)])
        assert isinstance(odd.heard(ray, 1)[0], Arrived), "another worker takes its next task"


def test_a_score_that_is_not_a_number_is_a_failed_task():
    with odd.engine("boaster") as ray:
        odd.heard(ray, 1)
        ray.submit([EvaluateTask("t@boaster", "boaster", np.zeros(5, np.float32))])
        assert odd.heard(ray, 1)[0].reason == "unreadable answer"


@pytest.mark.parametrize(
    "answer",
    [
        None,
        (b"{", b"", {}),
        (b"[]", b"", {}),
        (b"{}", b"", {"x": 1}),
        (b'{"key": "t"}', b"", {}),
        ("{}", b"", {}, 4),
    ],
)
def test_an_answer_that_is_none_is_a_failed_task(answer):
    import ray as real

    with odd.engine("a") as ray:
        odd.heard(ray, 1)
        ray._answer = real.remote(lambda *_: answer)
        ray.submit([odd.task("a")])
        (event,) = odd.heard(ray, 1)
        assert event.reason in ("unreadable update", "another version of Abaton")


def test_a_worker_that_raises_outside_of_a_learner_tells_nothing_of_why():
    import ray as real

    def fails(*_: object) -> None:
        raise RuntimeError("patient Zanzibar-4711")

    with odd.engine("a") as ray:
        odd.heard(ray, 1)
        ray._answer = real.remote(fails)
        ray.submit([odd.task("a")])
        (event,) = odd.heard(ray, 1)
        assert (type(event), event.reason) == (Failed, "learner failed")


def test_a_learner_that_hangs_is_given_up_and_its_evaluator_answers_meanwhile():
    with odd.engine("sleeper", "a", patience=30.0) as ray:
        odd.heard(ray, 2)
        ray.submit([odd.task("sleeper", "s")])
        ray.submit([EvaluateTask("e@sleeper", "sleeper", np.ones(5, np.float32))])
        first, second = odd.heard(ray, 2)
        assert isinstance(first, Scored)
        assert (second.task, second.reason) == ("s", "no answer in time")
        ray._ledger.patience = 300.0  # a new worker takes its time to start on a busy machine
        ray.submit([odd.task("a"), EvaluateTask("f@a", "a", np.ones(5, np.float32))])
        assert {type(e) for e in odd.heard(ray, 2)} == {Arrived, Scored}, "its processor is free again"


def test_a_learner_that_keeps_dying_has_left():
    with odd.engine("mortal") as ray:
        odd.heard(ray, 1)
        ray.submit([odd.task("mortal", str(i)) for i in range(6)])
        events = odd.heard(ray, 7)
        assert [e.learner for e in events if isinstance(e, Left)] == ["mortal"]
        reasons = [e.reason for e in events if isinstance(e, Failed)]
        assert reasons == ["process ended"] * 4 + ["learner is gone"] * 2


def test_a_learner_hears_while_it_trains_what_others_have_committed():
    with odd.engine("listener", "slow") as ray:
        odd.heard(ray, 2)
        ray.submit([odd.task("listener", "l", adaptive=Thresholds(100.0, 2)), odd.task("slow", "s")])
        assert odd.heard(ray, 1)[0].task == "s", "it is at work"
        ray.tell(5)
        (event,) = odd.heard(ray, 1)
        assert (event.task, event.steps) == ("l", 5)


def test_what_a_learner_keeps_is_with_its_site_and_a_task_moves_it_once(tmp_path):
    codec, kept = "error_feedback | stc(sparsity=0.5)", []

    def keep(payload: bytes) -> str:
        kept.append(payload)
        return str(len(kept))

    for keys in (["t1"], ["t1", "t2"], ["t2", "t3"]):  # each life begins with the last task of the one before
        with odd.engine("a", codec=codec, keep=keep, states=tmp_path) as ray:
            odd.heard(ray, 1)
            for key in keys:
                ray.submit([odd.task("a", key)])
                assert isinstance(odd.heard(ray, 1)[0], Arrived)
    one: Learner = odd.learners("a", codec=codec)["a"]
    start = np.zeros(5, np.float32)
    t1, t2, t3 = (one.train(key, 0, start, odd.SETTINGS).payload for key in ("t1", "t2", "t3"))
    assert kept == [t1, t1, t2, t2, t3]
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"rubbish")
    with odd.engine("a", codec=codec, states=tmp_path) as ray:
        odd.heard(ray, 1)
        ray.submit([odd.task("a", "t4")])
        assert odd.heard(ray, 1)[0].reason == "task was refused", "a damaged state is a failed task"
    with pytest.raises(SettingsError, match="states="):
        odd.engine("a", codec=codec)


class Cut(Exception):
    """The power went."""


def test_an_asynchronous_run_that_is_cut_off_goes_on_from_its_journal(tmp_path):
    rules = Rules(learners=3, rounds=12, pacing=Asynchronous(), training=odd.SETTINGS)
    heard = []

    def watch(state: object, event: object) -> None:
        heard.append(event)
        if len(heard) == 9:
            raise Cut

    with Store(tmp_path) as store:
        with pytest.raises(Cut):
            drive(store, "r", rules, on_ray("a", "b", "c"), watch)
        before = digests(store, "r")
        outcome = drive(store, "r", rules, on_ray("a", "b", "c"), go_on=True)
        assert outcome.version == 12
        assert digests(store, "r")[: len(before)] == before
        events = [from_row(*row) for row in Journal(store, "r").rows()]
        tasks = [e.task for e in events if isinstance(e, Arrived)]
        assert len(tasks) == len(set(tasks))


BAD = {"broken", "unmade", "mortal", "liar"}


def with_bad_learners(rounds: int) -> Rules:
    return Rules(learners=2 + len(BAD), rounds=rounds, pacing=Asynchronous(), training=odd.SETTINGS)


def test_a_run_with_bad_learners_ends_well_and_nothing_of_their_errors_is_kept(tmp_path):
    with Store(tmp_path / "store") as store:
        engine = on_ray("a", "b", *sorted(BAD), states=tmp_path / "states")
        outcome = drive(store, "r", with_bad_learners(8), engine)
        assert outcome.version == 8
        events = [from_row(*row) for row in Journal(store, "r").rows()]
        assert {e.learner for e in events if isinstance(e, Failed)} <= BAD
    assert not odd.folder_holds(tmp_path, b"Zanzibar")


def test_every_bad_learner_is_heard_of_in_a_run_that_lasts(tmp_path):
    failed, heard = set(), []

    def watch(state: object, event: object) -> None:
        heard.append(event)
        if isinstance(event, Failed):
            failed.add(event.learner)
        if failed == BAD or len(heard) > 5000:  # how soon a worker dies is the machine's affair
            raise Cut

    with Store(tmp_path / "store") as store, pytest.raises(Cut):
        drive(store, "r", with_bad_learners(100_000), on_ray("a", "b", *sorted(BAD)), watch)
    assert failed == BAD
    assert not odd.folder_holds(tmp_path, b"Zanzibar")


def test_nothing_calls_home_and_there_is_no_dashboard():
    import ray as real
    from ray._common.usage import usage_lib

    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert not usage_lib.usage_stats_enabled()
    assert not real._private.worker._global_node.webui_url


def test_a_cluster_of_several_machines_is_found_by_its_address_and_may_lose_one(tmp_path):
    """Another process, because a process has one connection to Ray."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.ray.machines", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["nobody there"] == "ClusterError"
    assert told["whole"] == told["virtual"], "with all machines: the same digests"
    assert told["version"] == 4, "with one machine less the run still comes to its end"
    assert set(told["reasons"]) <= {"process ended"}
    assert "Zanzibar" not in done.stderr
