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

from tests.lab import four

from abaton.controller import POLICIES, ByValidation, Event, Rules, SemiSynchronous, State, TrainSettings
from abaton.engines import checkpoint
from abaton.engines.runner import Watcher
from abaton.federation import Federation
from abaton.store import Journal, Store, head
from abaton.store import journal as journals

DVW = (ByValidation(),)
TRAINING = TrainSettings(epochs=2, learning_rate=0.1)
RUNS: Mapping[str, Mapping[str, Any]] = {
    **POLICIES,
    "AsyncDVW(a)": {**POLICIES["AsyncDVW(a)"], "training": replace(TRAINING, epochs=5)},
    "SemiSync": {
        "pacing": SemiSynchronous(budget=0.08, participants=3, extra=1, quorum=2, deadline=1.5),
        "weighting": (ByValidation(evaluators=2, choice="labels"),),
    },
    "Finishing": {**POLICIES["AsyncDVW(na)"], "rounds": 2, "finishing": 1},
    "Driven": {
        **POLICIES["SyncDVW"],
        "training": replace(TRAINING, schedule="driven", decay=0.5, momentum=0.9, keep_momentum=True),
    },
}
FEW = {
    name: 5 if "Async" in name else 3 if "Buff" in name else 2 for name in RUNS
}  # a version is a round, or one learner's commit
EVERY, LONG, PLACES = (
    4,
    60,
    6,
)  # events from checkpoint to checkpoint, rounds, places at which a run is killed
CODECS = ("raw", "ecdq(bits=2)", "error_feedback | stc(sparsity=0.1)")


def federation(name: str, codec: str, rounds: int) -> Federation:
    """Four hospitals of which one often drops out and one leaves in the middle."""
    train, test = four.split(7, 0.1)
    rules = Rules(**{"learners": 4, "rounds": rounds, "training": TRAINING, **RUNS[name]})
    sites = four.holdings(train, test)
    sites["pergamon"] = replace(sites["pergamon"], profile=replace(sites["pergamon"].profile, leaves=1.0))
    return Federation(four.network(), sites, rules, codec)


def digests(store: Store, run: str) -> list[str]:
    return [model.digest for model in store.models(run)]


def _die_at(event: int) -> None:
    """Let every journal of this process end it when it has written so many events."""
    append = Journal.append

    def deadly(self: Journal, kind: str, body: Mapping[str, Any]) -> None:
        append(self, kind, body)
        if self.length == event:
            os.kill(os.getpid(), signal.SIGKILL)

    Journal.append = deadly  # type: ignore[method-assign]


def _in_a_child(work: Any) -> int:
    """Do something in a process of its own; how that ended."""
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def _live(
    folder: Path, run: str, made: Federation, engine: str, watch: Watcher | None = None, kill_at: int = 0
) -> None:
    journals._LONGEST_WAIT = 0.0  # every event is written at once
    checkpoint.SHARE = float("inf")  # a checkpoint is written whenever enough has happened
    if kill_at:
        _die_at(kill_at)
    with Store(folder) as store:
        made.run(run, store=store, engine=engine, watch=watch, checkpoints=EVERY)


def _was_killed(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def killed(folder: Path, name: str, codec: str, engine: str = "virtual") -> Iterator[dict[str, Any]]:
    """Every event at which a process was killed, and whether the run still came to the same end."""
    made = federation(name, codec, FEW[name])  # what is there before a fork is not made in every child
    assert _in_a_child(lambda: _live(folder, "whole", made, engine)) == 0
    with Store(folder) as store:
        expected, events = digests(store, "whole"), Journal(store, "whole").known
    for event in range(1, events + 1):
        run = str(event)
        status = _in_a_child(lambda at=event: _live(folder, str(at), made, engine, kill_at=at))
        with Store(folder) as store:
            written = Journal(store, run).known
            checkpoints = store.checkpoint_folder(run).exists()
        resumed = _in_a_child(lambda at=event: _live(folder, str(at), made, engine))
        with Store(folder) as store:
            same = digests(store, run) == expected
            if engine == "virtual":  # in real time everybody joins again, and that is written, too
                same = same and Journal(store, run).known == events
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
    """A run on local processes that is killed at some places, one after the other; how much was told again at each."""
    made, told = federation("SyncFedAvg", codec, LONG), folder / "told"
    assert _in_a_child(lambda: _live(folder, "whole", made, "local")) == 0
    for place in range(PLACES + 1):
        version = LONG * (place + 1) // (PLACES + 1) if place < PLACES else LONG + 1
        with Store(folder) as store:
            lived = head(store, "killed").at if store.known("killed") else 0.0
        watch = _Until(version, place % 4, lived, told)
        status = _in_a_child(lambda watch=watch: _live(folder, "killed", made, "local", watch))
        with Store(folder) as store:
            ends = [digests(store, run) for run in ("whole", "killed")]
            yield {
                "killed": _was_killed(status),
                "resumed": status == 0,
                "told": int(told.read_text()),
                "events": Journal(store, "killed").known,
                "same": ends[0] == ends[1],
                "left": [path.name for path in (folder / "checkpoints").rglob("*") if path.is_file()],
            }


class _Until:
    """Counts the events that are told again, and kills this process some events after a version."""

    def __init__(self, version: int, later: int, lived: float, told: Path) -> None:
        self._version, self._later, self._lived, self._told, self._again = version, later, lived, told, 0

    def __call__(self, state: State, event: Event) -> None:
        self._again += event.at <= self._lived
        self._told.write_text(str(self._again))
        self._later -= state.version >= self._version
        if self._later < 0:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    where, what, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    print(json.dumps(list(chain(where, *how) if what == "chain" else killed(where, what, *how))))  # noqa: T201
