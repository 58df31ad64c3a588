"""Runs cut off at every one of their events end with the bits of one that was not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.lab import crashing_federation as crashing
from tests.lab.crashing_federation import CODECS, RUNS, SHORT_ROUNDS, digests, federation

from abaton.controller import (
    EvaluationReceived,
    LearnerLeft,
    TaskFailed,
    TimerFired,
    UpdateReceived,
    event_from_row,
)
from abaton.store import Journal, Store

ROOT = Path(__file__).resolve().parents[2]


class Crash(BaseException):
    """The process dies here."""


def crash_after(count: int):
    left = [count]

    def watch(*_: object) -> None:
        left[0] -= 1
        if not left[0]:
            raise Crash

    return watch


@pytest.fixture(autouse=True)
def _every_event_is_written_at_once(monkeypatch):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)


def cut_at_every_event(folder: Path, name: str, codec: str, rounds: int) -> list:
    with Store(folder) as store:
        federation(name, codec, rounds).run("whole", store=store)
        expected = digests(store, "whole")
        assert len(expected) > 2
        events = [event_from_row(*row) for row in Journal(store, "whole").rows()]
        for cut in range(1, len(events) + 1):
            with pytest.raises(Crash):
                federation(name, codec, rounds).run(str(cut), store=store, watch=crash_after(cut))
            assert Journal(store, str(cut)).stored_events == cut
            federation(name, codec, rounds).run(str(cut), store=store)
            assert digests(store, str(cut)) == expected
            assert Journal(store, str(cut)).stored_events == len(events)
    return events


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("SyncFedAvg", "ecdq(bits=2)"),
        ("SemiSync", "error_feedback | stc(sparsity=0.1)"),
        ("AsyncDVW(na)", "ecdq(bits=2)"),
        ("AsyncDVW(a)", "error_feedback | stc(sparsity=0.1)"),
        ("FedBuff", "error_feedback | stc(sparsity=0.1)"),
        ("FedBuffDVW", "ecdq(bits=2)"),
        ("Finishing", "error_feedback | stc(sparsity=0.1)"),
        ("Driven", "ecdq(bits=2)"),
    ],
)
def test_a_run_resumes_from_every_event_with_codecs_on(tmp_path, name, codec):
    """Invariant 15."""
    events = cut_at_every_event(tmp_path, name, codec, SHORT_ROUNDS[name])
    assert any(isinstance(event, UpdateReceived) for event in events)


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", RUNS)
def test_every_kind_of_run_resumes_from_every_event(tmp_path, name, codec):
    events = cut_at_every_event(tmp_path, name, codec, 3 * SHORT_ROUNDS[name])
    kinds = {type(event) for event in events}
    assert {UpdateReceived, TaskFailed} <= kinds, "also from the middle of failures"
    assert (EvaluationReceived in kinds) == ("DVW" in name or name in ("SemiSync", "Finishing", "Driven"))
    if name == "SemiSync":
        assert {TimerFired, LearnerLeft} <= kinds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("SyncDVW", "ecdq(bits=2)"),
        ("SemiSync", "error_feedback | stc(sparsity=0.1)"),
        ("AsyncDVW(na)", "ecdq(bits=2)"),
        ("AsyncDVW(a)", "error_feedback | stc(sparsity=0.1)"),
        ("FedBuffDVW", "ecdq(bits=2)"),
    ],
)
def test_kill_9_at_every_event(tmp_path, name, codec):
    """Invariant 15. A real process, a real SIGKILL, at each event; the event is written and never acted on."""
    came_to_the_same_end(crashed(tmp_path, name, codec))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "codec"), [("SyncFedAvg", "error_feedback | stc(sparsity=0.1)"), ("SyncDVW", "ecdq(bits=2)")]
)
def test_kill_9_at_every_event_on_local_processes(tmp_path, name, codec):
    """From the journal before the first checkpoint, from a checkpoint after it."""
    rows = crashed(tmp_path, name, codec, "local")
    came_to_the_same_end(rows)
    assert {row["checkpoints"] for row in rows} == {False, True}


def test_a_run_on_local_processes_that_is_killed_again_and_again(tmp_path):
    """Only events after the latest checkpoint are replayed, and the result equals that of an uninterrupted run."""
    rows = crashed(tmp_path, "chain", "error_feedback | stc(sparsity=0.1)")
    assert [row["killed"] for row in rows] == [True] * crashing.CRASH_POINTS + [False]
    assert rows[-1]["resumed"]
    assert rows[-1]["same"]
    assert rows[-1]["events"] > 120
    for row in rows[1:]:
        # a checkpoint follows events received together: one of each learner, after all have joined
        assert row["replayed"] < crashing.EVERY + 8, row
    for row in rows[:-1]:
        assert row["left"][:1] == ["latest.safetensors"], row
    assert rows[-1]["left"] == [], "a run that has ended has none"


def crashed(folder: Path, *what: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.lab.crashing_federation", str(folder), *what]
    ended = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    reports: list[dict[str, Any]] = json.loads(ended.stdout)
    return reports


def came_to_the_same_end(rows: list[dict[str, Any]]) -> None:
    assert len(rows) > 10
    for row in rows:
        assert row["killed"], row
        assert row["written"] == row["event"], row
        assert row["resumed"], row
        assert row["same"], row
