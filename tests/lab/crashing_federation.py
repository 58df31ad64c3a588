"""Small federations to be cut off at every event, and a process that is really killed there.

Called as a program it runs one of them in child processes of its own: for every event one that is killed by SIGKILL as
soon as that event is in the journal, before it is acted on, and one that brings the run to its end. It prints its
result as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.lab import four_sites as four

from abaton.controller import (
    STRATEGIES,
    ControllerState,
    Event,
    SemiSynchronousScheduler,
    Strategy,
    TrainSettings,
    ValidationWeighting,
)
from abaton.engines import checkpoint
from abaton.engines.runner import Watcher
from abaton.federation import Federation
from abaton.store import Journal, Store, run_head
from abaton.store import journal as journals

DVW = (ValidationWeighting(),)
TRAINING = TrainSettings(epochs=2, learning_rate=0.1)
RUNS: Mapping[str, Mapping[str, Any]] = {
    **STRATEGIES,
    "AsyncDVW(a)": {**STRATEGIES["AsyncDVW(a)"], "training": replace(TRAINING, epochs=5)},
    "SemiSync": {
        "scheduler": SemiSynchronousScheduler(
            time_budget_seconds=0.08, participants=3, over_selection=1, quorum=2, deadline=1.5
        ),
        "weighting": (ValidationWeighting(evaluators=2, evaluator_selection="label_coverage"),),
    },
    "Finishing": {**STRATEGIES["AsyncDVW(na)"], "rounds": 2, "final_rounds": 1},
    "Driven": {
        **STRATEGIES["SyncDVW"],
        "training": replace(
            TRAINING,
            learning_rate_schedule="plateau",
            learning_rate_decay=0.5,
            momentum=0.9,
            keep_optimiser_state=True,
        ),
    },
}
SHORT_ROUNDS = {
    name: 5 if "Async" in name else 3 if "Buff" in name else 2 for name in RUNS
}  # a version is a round, or one learner's commit
EVERY, LONG, CRASH_POINTS = (
    4,
    60,
    6,
)  # events between checkpoints, rounds, number of crash points
CODECS = ("raw", "ecdq(bits=2)", "error_feedback | stc(sparsity=0.1)")


def federation(name: str, codec: str, rounds: int) -> Federation:
    """Four hospitals of which one often drops out and one leaves in the middle."""
    train, test = four.split(7, 0.1)
    strategy = Strategy(**{"learners": 4, "rounds": rounds, "training": TRAINING, **RUNS[name]})
    sites = four.local_sites(train, test)
    sites["pergamon"] = replace(sites["pergamon"], profile=replace(sites["pergamon"].profile, leaves_at=1.0))
    return Federation(four.network(), sites, strategy, codec)


def digests(store: Store, run: str) -> list[str]:
    return [model.digest for model in store.models(run)]


def _die_at(event: int) -> None:
    """Kill this process when a journal has written this number of events."""
    append = Journal.append

    def deadly(self: Journal, kind: str, body: Mapping[str, Any]) -> None:
        append(self, kind, body)
        if self.length == event:
            os.kill(os.getpid(), signal.SIGKILL)

    Journal.append = deadly  # type: ignore[method-assign]


def _in_a_child(work: Any) -> int:
    """Call a function in a child process and return its exit status."""
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def _live(
    folder: Path,
    run: str,
    federation: Federation,
    engine: str,
    watch: Watcher | None = None,
    kill_at: int = 0,
) -> None:
    journals._MAX_WAIT_SECONDS = 0.0  # every event is written at once
    checkpoint.MAX_TIME_FRACTION = float("inf")  # no limit on the time for checkpoints
    if kill_at:
        _die_at(kill_at)
    with Store(folder) as store:
        federation.run(run, store=store, engine=engine, watch=watch, checkpoints=EVERY)


def _was_killed(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def killed(folder: Path, name: str, codec: str, engine: str = "virtual") -> Iterator[dict[str, Any]]:
    """Yield, for every event at which a process is killed, whether the resumed run has the same result."""
    lab_federation = federation(name, codec, SHORT_ROUNDS[name])  # built once before forking
    assert _in_a_child(lambda: _live(folder, "whole", lab_federation, engine)) == 0
    with Store(folder) as store:
        expected, events = digests(store, "whole"), Journal(store, "whole").stored_events
    for event in range(1, events + 1):
        run = str(event)
        status = _in_a_child(lambda at=event: _live(folder, str(at), lab_federation, engine, kill_at=at))
        with Store(folder) as store:
            written = Journal(store, run).stored_events
            checkpoints = store.checkpoint_folder(run).exists()
        resumed = _in_a_child(lambda at=event: _live(folder, str(at), lab_federation, engine))
        with Store(folder) as store:
            same = digests(store, run) == expected
            if engine == "virtual":  # in real time all learners join again, which is an event
                same = same and Journal(store, run).stored_events == events
        yield {
            "event": event,
            "killed": _was_killed(status),
            "checkpoints": checkpoints,
            "written": written,
            "resumed": resumed == 0,
            "same": same,
            "versions": len(expected),
        }


def chain(folder: Path, codec: str) -> Iterator[dict[str, Any]]:
    """Kill a run on local processes several times in a row; yield the number of replayed events of each restart."""
    lab_federation, report_path = federation("SyncFedAvg", codec, LONG), folder / "replayed"
    assert _in_a_child(lambda: _live(folder, "whole", lab_federation, "local")) == 0
    for crash_point in range(CRASH_POINTS + 1):
        version = LONG * (crash_point + 1) // (CRASH_POINTS + 1) if crash_point < CRASH_POINTS else LONG + 1
        with Store(folder) as store:
            lived = run_head(store, "killed").timestamp if store.get_run("killed") else 0.0
        watch = _Until(version, crash_point % 4, lived, report_path)
        status = _in_a_child(lambda watch=watch: _live(folder, "killed", lab_federation, "local", watch))
        with Store(folder) as store:
            ends = [digests(store, run) for run in ("whole", "killed")]
            yield {
                "killed": _was_killed(status),
                "resumed": status == 0,
                "replayed": int(report_path.read_text()),
                "events": Journal(store, "killed").stored_events,
                "same": ends[0] == ends[1],
                "left": [path.name for path in (folder / "checkpoints").rglob("*") if path.is_file()],
            }


class _Until:
    """Count replayed events, and kill this process some events after a version."""

    def __init__(self, version: int, later: int, lived: float, report_path: Path) -> None:
        self._version, self._later, self._lived, self._report_path, self._again = (
            version,
            later,
            lived,
            report_path,
            0,
        )

    def __call__(self, state: ControllerState, event: Event) -> None:
        self._again += event.timestamp <= self._lived
        self._report_path.write_text(str(self._again))
        self._later -= state.version >= self._version
        if self._later < 0:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    where, what, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    print(json.dumps(list(chain(where, *how) if what == "chain" else killed(where, what, *how))))  # noqa: T201
