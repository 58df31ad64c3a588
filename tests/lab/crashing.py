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
from itertools import count
from pathlib import Path
from typing import Any

from abaton.codecs import parse
from abaton.control import POLICIES, ByValidation, Rules, SemiSynchronous, TrainSettings
from abaton.lab import clinics
from abaton.lab.experiment import Experiment, simulate
from abaton.store import Journal, Store

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


def federation(name: str, codec: str, rounds: int) -> Experiment:
    """Four hospitals of which one often drops out and one leaves in the middle."""
    train, test = clinics.split(7, 0.1)
    rules = Rules(**{"learners": 4, "rounds": rounds, "training": TRAINING, **RUNS[name]})
    profiles = {**clinics.PROFILES, "pergamon": replace(clinics.PROFILES["pergamon"], leaves=1.0)}
    return Experiment(clinics.network(), train, rules, parse(codec), profiles, validation=test)


def journal(store: Store, run: str, kind: type[Journal] = Journal) -> Journal:
    """A journal that writes every event at once: by its clock, seconds pass between any two."""
    seconds = count()
    return kind(store, run, clock=lambda: float(next(seconds)))


def digests(store: Store, run: str) -> list[str]:
    return [model.digest for model in store.models(run)]


class Deadly(Journal):
    """A journal that ends its own process when it has written so many events."""

    last = 0

    def append(self, kind: str, body: Mapping[str, Any]) -> None:
        super().append(kind, body)
        if self.length == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


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
    with Store(folder) as store:
        deadly = journal(store, run, Deadly)
        deadly.last = kill_at
        simulate(federation(name, codec, FEW[name]), deadly)


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
