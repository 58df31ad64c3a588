"""Very many learners under the virtual clock: events a second, bytes a learner, and that a model costs once.

Training is trivial on purpose: a vector plus a constant. What is left is the controller, the engine, the journal and
the store. Each size runs in a process of its own, whose peak memory is its own. Synchronous rounds ask a sample of the
learners; asynchronously everybody is at work all the time, and the community model is pulled towards each commit.

Asynchronously a learner sends the difference to the version it started from, so that version must be known until it
has sent: at most one a learner. Those versions, and the answers on their way, are what a larger model adds there;
synchronously one version is in use at a time.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from abaton.benchmark import Measure, at_most
from abaton.codecs import parse
from abaton.controller import POLICIES, ByStaleness, Rules, Synchronous, TrainSettings, community_model
from abaton.engines import Driver, Profile, VirtualEngine
from abaton.learners import Examples, Learner, Lesson, Model, Score, Trained
from abaton.store import Journal, Keep, Store
from abaton.kernels import Layout, Role, Tensor, Vector

SIZES = (1_000, 10_000, 100_000)
MIDDLE = SIZES[1]
SMALL, LARGE = 100, 10_000  # parameters
UPDATES = 20_000


class Still(Model):
    """A model that is trained by adding a constant."""

    def __init__(self, size: int) -> None:
        self.layout = Layout([Tensor("weight", (size,), Role.DENSE)])

    def initial(self, seed: int) -> Vector:
        """Zeros."""
        return self.layout.zeros()

    def steps(self, examples: int, settings: TrainSettings) -> int:
        """One."""
        return 1

    def epochs(self, vector: Vector, data: Examples, lesson: Lesson) -> Iterator[Trained]:
        """Add a constant, always the same."""
        while True:
            yield Trained(vector + np.float32(0.001), 1, 0.0)

    def score(self, vector: Vector, data: Examples, local: Mapping[str, Vector] | None = None) -> Score:
        """Nothing to score."""
        return Score(0.0, np.zeros((len(data), 2)))


def run() -> list[Measure]:
    """Events a second and bytes a learner for each size; what a larger model adds."""
    measures: list[Measure] = []
    peaks: dict[str, float] = {}
    for pacing in ("synchronous", "asynchronous"):
        seen = {size: _child(pacing, size, SMALL) for size in SIZES}
        for size, found in seen.items():
            measures.append(Measure(f"{pacing}, {size:,} learners", found["events"], "events/s"))
        few, most = seen[SIZES[0]], seen[SIZES[-1]]
        each = (most["peak"] - few["peak"]) / (SIZES[-1] - SIZES[0])
        measures += [
            Measure(
                f"{pacing}, {SIZES[-1]:,} learners against {SIZES[0]:,}",
                few["events"] / most["events"],
                "x the time an event",
            ),
            at_most(f"{pacing}, memory", each, 4096, "bytes a learner"),
            Measure(f"{pacing}, {SIZES[-1]:,} learners, peak memory", most["peak"] / 2**20, "MiB"),
        ]
        peaks[pacing] = seen[MIDDLE]["peak"] - few["peak"]
    for pacing, limit in (("synchronous", 0.05), ("asynchronous", 1.5)):
        # Between two numbers of learners: what a larger model costs once, such as compiled code, does not count.
        large = _child(pacing, MIDDLE, LARGE)["peak"] - _child(pacing, SIZES[0], LARGE)["peak"]
        added = (large - peaks[pacing]) / (4 * LARGE * (MIDDLE - SIZES[0]))
        name = f"{pacing}, {SIZES[0]:,} to {MIDDLE:,} learners, what {LARGE:,} parameters add for each"
        measures.append(at_most(name, added, limit, "models a learner"))
    return measures


def _child(pacing: str, learners: int, size: int) -> dict[str, float]:
    """One run in a process of its own."""
    command = [sys.executable, __file__, pacing, str(learners), str(size)]
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def live(pacing: str, learners: int, size: int) -> dict[str, float]:
    """Join everybody, and let so many updates come in."""
    if pacing == "synchronous":
        participants = learners // 10
        rules = Rules(
            learners,
            rounds=max(2, UPDATES // participants),
            pacing=Synchronous(participants=participants),
            weighting=(ByStaleness("constant"),),
        )
    else:
        rules = Rules(learners, UPDATES, **POLICIES["FedAsync"])  # type: ignore[arg-type]
    model, codec = Still(size), parse("raw")
    data = Examples(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
    members = {f"l{i:06}": Learner(f"l{i:06}", model, data, codec, 0) for i in range(learners)}
    profiles = {name: Profile(speed=1 + i % 97) for i, name in enumerate(members)}
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
        journal = Journal(store, "many")
        journal.retain(Keep(last=2))
        engine = VirtualEngine(members, profiles, keep=journal.payloads.put, seed=0)
        community = community_model(rules, model.layout, codec, model.initial(0))
        start = time.perf_counter()
        Driver(rules, community, engine, journal).run()
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"events": journal.length / seconds, "peak": peak}


if __name__ == "__main__":
    print(json.dumps(live(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
