"""Small federations to be cut off at every event, and a process that is really killed there.

Called as a program it runs one of them in child processes of its own: for every event one that is killed by SIGKILL as
soon as that event is in the journal, before it is acted on, and one that brings the run to its end. It prints what came
of it as JSON.
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

from abaton.control import POLICIES, ByValidation, Rules, SemiSynchronous, TrainSettings
from abaton.federation import Federation
from abaton.lab import clinics
from abaton.store import Journal, Store
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
FEW = {name: 5 if "Async" in name else 2 for name in RUNS}  # a version is a round, or one learner's commit
CODECS = ("raw", "ecdq(bits=2)", "error_feedback | stc(sparsity=0.1)")


def federation(name: str, codec: str, rounds: int) -> Federation:
    """Four hospitals of which one often drops out and one leaves in the middle."""
    train, test = clinics.split(7, 0.1)
    rules = Rules(**{"learners": 4, "rounds": rounds, "training": TRAINING, **RUNS[name]})
    sites = clinics.holdings(train, test)
    sites["pergamon"] = replace(sites["pergamon"], profile=replace(sites["pergamon"].profile, leaves=1.0))
    return Federation(clinics.network(), sites, rules, codec)


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


def _live(folder: Path, run: str, name: str, codec: str, kill_at: int = 0) -> None:
    journals._LONGEST_WAIT = 0.0  # every event is written at once
    if kill_at:
        _die_at(kill_at)
    with Store(folder) as store:
        federation(name, codec, FEW[name]).run(run, store=store)


def killed(folder: Path, name: str, codec: str) -> Iterator[dict[str, Any]]:
    """Every event at which a process was killed, and whether the run still came to the same end."""
    federation(name, codec, FEW[name])  # what is imported before a fork is not imported in every child
    assert _in_a_child(lambda: _live(folder, "whole", name, codec)) == 0
    with Store(folder) as store:
        expected, events = digests(store, "whole"), Journal(store, "whole").known
    for event in range(1, events + 1):
        run = str(event)
        status = _in_a_child(lambda at=event: _live(folder, str(at), name, codec, at))
        with Store(folder) as store:
            written = Journal(store, run).known
        resumed = _in_a_child(lambda at=event: _live(folder, str(at), name, codec))
        with Store(folder) as store:
            same = digests(store, run) == expected and Journal(store, run).known == events
        was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        yield {
            "event": event,
            "killed": was_killed,
            "written": written,
            "resumed": resumed == 0,
            "same": same,
            "versions": len(expected),
        }


if __name__ == "__main__":
    print(json.dumps(list(killed(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))))  # noqa: T201
