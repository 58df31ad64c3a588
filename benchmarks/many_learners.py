"""Many learners under the virtual clock: events per second, bytes per learner, and the memory of a larger model.

Training only adds a constant to a vector, so that the controller, the engine, the journal and the store are
measured. Each size runs in its own process, for its peak memory. Synchronous rounds use a sample of the learners;
asynchronously all learners train at the same time and the community model moves towards each commit (FedAsync).

An asynchronous learner sends the difference to the version that it started from, so that version is kept until the
update arrives: at most one per learner. These versions and the replies in transit are the memory that a larger model
adds; synchronously one version is in use at a time.
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

from abaton.benchmark import BenchmarkResult, at_most
from abaton.codecs import parse_codec
from abaton.controller import (
    STRATEGIES,
    StalenessWeighting,
    Strategy,
    SynchronousScheduler,
    TrainSettings,
    community_model,
)
from abaton.engines import MachineProfile, RunLoop, VirtualEngine
from abaton.layout import Layout, Tensor, TensorRole, Vector
from abaton.learners import Learner
from abaton.metrics import ModelScore
from abaton.models import Examples, Model, TrainingPlan, TrainingResult
from abaton.store import Journal, RetentionRule, Store

SIZES = (1_000, 10_000, 100_000)
MIDDLE = SIZES[1]
SMALL, LARGE = 100, 10_000  # parameters
UPDATES = 20_000


class ConstantStepModel(Model):
    """Model that is trained by adding a constant."""

    def __init__(self, size: int) -> None:
        self.layout = Layout([Tensor("weight", (size,), TensorRole.DENSE)])

    def initial(self, seed: int) -> Vector:
        """Return zeros."""
        return self.layout.zeros()

    def steps(self, examples: int, settings: TrainSettings) -> int:
        """Return one."""
        return 1

    def epochs(self, vector: Vector, data: Examples, plan: TrainingPlan) -> Iterator[TrainingResult]:
        """Add the same constant in every epoch."""
        while True:
            yield TrainingResult(vector + np.float32(0.001), 1, 0.0)

    def score(self, vector: Vector, data: Examples, local: Mapping[str, Vector] | None = None) -> ModelScore:
        """Return an empty score."""
        return ModelScore(0.0, np.zeros((len(data), 2)))


def run() -> list[BenchmarkResult]:
    """Measure events per second and bytes per learner for each size, and the memory that a larger model adds."""
    results: list[BenchmarkResult] = []
    peaks: dict[str, float] = {}
    for scheduler in ("synchronous", "asynchronous"):
        measured_by_size = {size: _child(scheduler, size, SMALL) for size in SIZES}
        for size, measured in measured_by_size.items():
            results.append(BenchmarkResult(f"{scheduler}, {size:,} learners", measured["events"], "events/s"))
        smallest, largest = measured_by_size[SIZES[0]], measured_by_size[SIZES[-1]]
        bytes_per_learner = (largest["peak"] - smallest["peak"]) / (SIZES[-1] - SIZES[0])
        results += [
            BenchmarkResult(
                f"{scheduler}, {SIZES[-1]:,} learners against {SIZES[0]:,}",
                smallest["events"] / largest["events"],
                "x the time per event",
            ),
            at_most(f"{scheduler}, memory", bytes_per_learner, 4096, "bytes per learner"),
            BenchmarkResult(
                f"{scheduler}, {SIZES[-1]:,} learners, peak memory", largest["peak"] / 2**20, "MiB"
            ),
        ]
        peaks[scheduler] = measured_by_size[MIDDLE]["peak"] - smallest["peak"]
    for scheduler, limit in (("synchronous", 0.05), ("asynchronous", 1.5)):
        # Between two numbers of learners: the fixed cost of a larger model, such as compiled code, cancels.
        large = _child(scheduler, MIDDLE, LARGE)["peak"] - _child(scheduler, SIZES[0], LARGE)["peak"]
        added = (large - peaks[scheduler]) / (4 * LARGE * (MIDDLE - SIZES[0]))
        name = f"{scheduler}, {SIZES[0]:,} to {MIDDLE:,} learners, memory added per learner by {LARGE:,} parameters"
        results.append(at_most(name, added, limit, "models per learner"))
    return results


def _child(scheduler: str, learners: int, size: int) -> dict[str, float]:
    """Run once in a child process."""
    command = [sys.executable, __file__, scheduler, str(learners), str(size)]
    paths = os.pathsep.join(path for path in sys.path if path)
    completed = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True
    )
    measured: dict[str, float] = json.loads(completed.stdout)
    return measured


def measure(scheduler: str, learners: int, size: int) -> dict[str, float]:
    """Let all learners join and a number of updates arrive."""
    if scheduler == "synchronous":
        participants = learners // 10
        strategy = Strategy(
            learners,
            rounds=max(2, UPDATES // participants),
            scheduler=SynchronousScheduler(participants=participants),
            weighting=(StalenessWeighting("constant"),),
        )
    else:
        strategy = Strategy(learners, UPDATES, **STRATEGIES["FedAsync"])
    model, codec = ConstantStepModel(size), parse_codec("raw")
    data = Examples(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
    learners_by_name = {f"l{i:06}": Learner(f"l{i:06}", model, data, codec, 0) for i in range(learners)}
    profiles = {name: MachineProfile(speed=1 + i % 97) for i, name in enumerate(learners_by_name)}
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
        journal = Journal(store, "many")
        journal.retain(RetentionRule(last=2))
        engine = VirtualEngine(learners_by_name, profiles, store_payload=journal.payloads.put, seed=0)
        community = community_model(strategy, model.layout, codec, model.initial(0))
        start = time.perf_counter()
        RunLoop(strategy, community, engine, journal).run()
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"events": journal.length / seconds, "peak": peak}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
