"""Runs that are cut off, looked at, and brought to their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from tests.lab import four_sites as four

from abaton.errors import RefusedError, SettingsError
from abaton.lab import build_from_recipe
from abaton.learners import Learner
from abaton.store import Journal, Store

RECIPE = four.recipe(seed=7, rounds=4, scale=0.1)


def digests(store: Store, run: str) -> list[str]:
    return [model.digest for model in store.models(run)]


def go_on(store: Store, crash_point: int = 0):
    row = store.runs()[crash_point]
    return build_from_recipe(row.recipe).run(row.run, store=store)


class Crash(BaseException):
    """The process dies here."""


def crash_after(count: int):
    left = [count]

    def watch(*_: object) -> None:
        left[0] -= 1
        if not left[0]:
            raise Crash

    return watch


def test_resume_from_any_event_ends_with_the_same_digests(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    with Store(tmp_path / "whole") as complete_store:
        row = build_from_recipe(RECIPE).run(store=complete_store).row
        expected, events = digests(complete_store, row.run), Journal(complete_store, row.run).stored_events
    assert row.status == "finished"
    for cut in range(1, events + 1):
        with Store(tmp_path / str(cut)) as store:
            with pytest.raises(Crash):
                build_from_recipe(RECIPE).run(store=store, watch=crash_after(cut))
            (row,) = store.runs()
            assert (row.status, store.is_locked(row.run)) == ("running", False)
            assert build_from_recipe(row.recipe).run(row.run, store=store).status == "finished"
            assert digests(store, row.run) == expected


def test_resume_does_not_train_again_what_was_finished(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    trained: list[str] = []
    original = Learner.send
    monkeypatch.setattr(
        Learner,
        "send",
        lambda self, task, *rest, **more: trained.append(task) or original(self, task, *rest, **more),
    )
    with Store(tmp_path) as store:
        with pytest.raises(Crash):
            build_from_recipe(RECIPE).run(store=store, watch=crash_after(12))
        before = len(trained)
        go_on(store)
    again = len(trained) - len(set(trained))
    assert before > 4
    assert again <= 4, "at most what was under way when it was cut off"


def test_lost_payloads_are_trained_again(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    with Store(tmp_path) as store:
        expected = digests(store, build_from_recipe(RECIPE).run(store=store).name)
        with pytest.raises(Crash):
            build_from_recipe(RECIPE).run(store=store, watch=crash_after(12))
        row = store.runs()[-1]
        with store.reading() as connection:
            connection.exec_driver_sql("DELETE FROM payloads")
        go_on(store, -1)
        assert digests(store, row.run) == expected


@pytest.mark.slow
def test_kill_9_in_the_middle_and_resume(tmp_path):
    sizes = ["--rows", "1000", "--rounds", "60", "--seeds", "1", "--sizes", "uniform"]
    recipe = ["lab", "compare", "--strategy", "AsyncDVW(na)", *sizes, "--store"]
    environment = {**os.environ, "ABATON_STORE": str(tmp_path / "killed")}
    command = [sys.executable, "-c", "from abaton.cli import main; main()"]
    child = subprocess.Popen(
        [*command, *recipe, str(tmp_path / "killed")],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.05)
        if (tmp_path / "killed" / "abaton.db").exists():
            with Store(tmp_path / "killed") as store:
                if store.runs() and len(digests(store, store.runs()[0].run)) > 3:
                    break
    assert child.poll() is None, "it was still running"
    child.send_signal(signal.SIGKILL)
    child.wait()
    with Store(tmp_path / "killed") as store:
        (row,) = store.runs()
        assert row.status == "running"
        cut = len(digests(store, row.run))
        assert cut > 3
    subprocess.run([*command, "resume", row.run], env=environment, check=True, capture_output=True)
    subprocess.run([*command, *recipe, str(tmp_path / "whole")], check=True, capture_output=True)
    with Store(tmp_path / "killed") as killed, Store(tmp_path / "whole") as undisturbed:
        assert digests(killed, row.run) == digests(undisturbed, undisturbed.runs()[0].run)
        assert len(digests(killed, row.run)) > cut


def test_a_run_whose_model_has_changed_is_not_resumed(tmp_path, monkeypatch):
    with Store(tmp_path) as store:
        with pytest.raises(Crash):
            build_from_recipe(RECIPE).run(store=store, watch=crash_after(3))
        from abaton.models import mlp

        monkeypatch.setattr(four, "network", lambda: mlp(features=8, hidden=(5,)))
        with pytest.raises(RefusedError, match="model was .* and is .*layout was"):
            go_on(store)


def test_a_run_whose_data_have_changed_is_stopped_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    with Store(tmp_path) as store:
        with pytest.raises(Crash):
            build_from_recipe(RECIPE).run(store=store, watch=crash_after(9))
        original = four.split
        monkeypatch.setattr(four, "split", lambda seed, scale: original(seed + 1, scale * 2))
        with pytest.raises(RefusedError, match="the data of 'athens'; the data of 'kos'"):
            go_on(store)


def test_an_unknown_recipe_is_refused():
    with pytest.raises(SettingsError, match="no recipe 'nothing'"):
        build_from_recipe({"name": "nothing", "settings": {}})
