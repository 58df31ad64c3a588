"""Cost of a crash: a run of 2,000 commits on local processes, killed by SIGKILL at 20 points and resumed.

The run is completed once without interruption. Then the same run starts in a process that is killed at the first
point; a new process resumes it and is killed at the second point, and so on. Each resume is timed from its start to
the first new update and compared with the uninterrupted run. Processes are forked from one that has loaded
everything, so that imports are not measured.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from abaton.benchmark import BenchmarkResult, at_most, best_seconds
from abaton.codecs import parse_codec
from abaton.controller import (
    AsynchronousScheduler,
    ControllerState,
    Event,
    Strategy,
    SynchronousScheduler,
    TrainSettings,
    UpdateReceived,
)
from abaton.controller.aggregation import LatestMeanModel
from abaton.engines import CHECKPOINT_EVERY, Checkpoints
from abaton.engines.checkpoint import MAX_TIME_FRACTION, Checkpoint
from abaton.federation import Federation, Run
from abaton.layout import Layout, Tensor, TensorRole
from abaton.models import Examples, mlp, train_model
from abaton.store import Store, run_head

COMMITS, LEARNERS, ROWS, CRASH_POINTS = 2000, 4, 800, 20
SHORT, REPEATS = 400, 4
PARAMETERS, MODELS = 1_690_046, 20
TRAINING = TrainSettings(epochs=4, batch_size=32, learning_rate=0.05)
MODEL = mlp(features=64, classes=10, hidden=(32,))


def run() -> list[BenchmarkResult]:
    """Measure the time to resume relative to the run's time (longest, mean), and the cost of checkpoints."""
    sites = _sites()
    for data in sites.values():  # compile before the fork, not in every child
        train_model(MODEL, MODEL.initial(0), data, TRAINING, np.random.default_rng(0))
    results = []
    for name, scheduler in (
        ("synchronous", SynchronousScheduler()),
        ("asynchronous", AsynchronousScheduler()),
    ):
        updates_per_version = LEARNERS if name == "synchronous" else 1
        results += _crashes(
            name,
            Federation(
                MODEL,
                sites,
                Strategy(rounds=COMMITS // updates_per_version, scheduler=scheduler, training=TRAINING),
            ),
        )
    return [*results, *_cost(sites), *_large()]


def _crashes(name: str, federation: Federation) -> list[BenchmarkResult]:
    rounds = federation.strategy.rounds
    with tempfile.TemporaryDirectory() as folder:
        store_path = Path(folder)
        uninterrupted = _in_child(lambda: _seconds(lambda: _run(federation, store_path, "uninterrupted")))
        resume_seconds = []
        for turn in range(CRASH_POINTS + 1):
            version = (turn + 1) * rounds // (CRASH_POINTS + 1) if turn < CRASH_POINTS else rounds + 1
            monitor = _CrashMonitor(store_path, version, turn % 7)
            outcome = _in_child(partial(_run, federation, store_path, "killed", monitor))
            assert (outcome < 0) == (turn < CRASH_POINTS), "a process was not killed at its crash point"
            resume_seconds += [float(monitor.outcome.read_text())] if turn else []
            monitor.outcome.unlink(missing_ok=True)
        if name == "asynchronous":
            without = _resume_from_journal(federation, store_path)
        with Store(store_path) as store:
            ends = {Run(store, run).versions[-1].digest for run in ("uninterrupted", "killed")}
    label = f"{name}, {COMMITS:,} commits of {LEARNERS} learners, killed at {CRASH_POINTS} points"
    unit = "% of the run's time"
    results = [
        at_most(f"{label}: longest time to resume", 100 * max(resume_seconds) / uninterrupted, 5.0, unit),
        BenchmarkResult(
            f"{label}: mean time to resume",
            100 * sum(resume_seconds) / len(resume_seconds) / uninterrupted,
            unit,
        ),
        BenchmarkResult(f"{label}: the run", uninterrupted, "s"),
    ]
    if name == "synchronous":
        results.append(at_most(f"{label}: final models other than uninterrupted", len(ends) - 1, 0, "models"))
    else:
        results.append(
            BenchmarkResult(
                "the same without checkpoints, killed at the end", 100 * without / uninterrupted, unit
            )
        )
    return results


def _resume_from_journal(federation: Federation, store_path: Path) -> float:
    """Return the time to resume from the complete journal of a run that was killed near its end."""
    last = federation.strategy.rounds
    assert (
        _in_child(lambda: _run(federation, store_path, "journal", _CrashMonitor(store_path, last - 1, 0), 0))
        < 0
    )
    monitor = _CrashMonitor(store_path, last + 1, 0)
    _in_child(lambda: _run(federation, store_path, "journal", monitor, 0))
    return float(monitor.outcome.read_text())


class _CrashMonitor:
    """Monitor that records the time of the first new update and kills this process after a version.

    Args:
        folder: folder of the store.
        version: the version.
        events_after: number of events after its publication.
    """

    def __init__(self, folder: Path, version: int, events_after: int) -> None:
        self.outcome = folder / "resumed"
        self._version, self._events_after, self._resumed_at = version, events_after, 0.0
        self._started: float | None = None

    def start(self, resumed_at: float) -> None:
        """Start to measure a resumed run."""
        self._started, self._resumed_at = time.perf_counter(), resumed_at

    def __call__(self, state: ControllerState, event: Event) -> None:
        if (
            self._started is not None
            and isinstance(event, UpdateReceived)
            and event.timestamp > self._resumed_at
        ):
            self.outcome.write_text(str(time.perf_counter() - self._started))
            self._started = None
        if state.version >= self._version:
            self._events_after -= 1
            if self._events_after < 0:
                os.kill(os.getpid(), signal.SIGKILL)


def _run(
    federation: Federation,
    folder: Path,
    run: str,
    watch: _CrashMonitor | None = None,
    checkpoints: int = CHECKPOINT_EVERY,
) -> float:
    with Store(folder) as store:
        if watch is not None:
            watch.start(run_head(store, run).timestamp if store.get_run(run) else 0.0)
        federation.run(run, store=store, engine="local", watch=watch, checkpoints=checkpoints)
    return 0.0


def _cost(sites: dict[str, Examples]) -> list[BenchmarkResult]:
    """Measure the processor time of checkpoints inside short runs; runs with and without vary more than that."""
    federation = Federation(
        MODEL, sites, Strategy(rounds=SHORT, scheduler=AsynchronousScheduler(), training=TRAINING)
    )
    ratios = []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            before = os.times()
            spent = _in_child(partial(_checkpoint_seconds, federation, Path(folder)))
            after = os.times()
        system = after.children_system - before.children_system
        total = after.children_user - before.children_user + system
        ratios.append(total / (total - spent))
    name = f"asynchronous, {SHORT} commits with checkpoints: processor time of all processes"
    return [at_most(name, max(ratios), 1.05, "x without them")]


def _checkpoint_seconds(federation: Federation, folder: Path) -> float:
    """Return the processor time that the controller of a run spends on checkpoints."""
    spent, offer = 0.0, Checkpoints.offer

    def timed_offer(checkpoints: Checkpoints, events: int, build: Callable[[], Checkpoint]) -> None:
        nonlocal spent
        start = time.process_time()
        offer(checkpoints, events, build)
        spent += time.process_time() - start

    Checkpoints.offer = timed_offer  # type: ignore[assignment, method-assign]
    _run(federation, folder, "r")
    return spent


def _large() -> list[BenchmarkResult]:
    """Measure a checkpoint of the newest models of some learners at the size of the SSTC paper's network."""
    layout = Layout([Tensor("weight", (PARAMETERS,), TensorRole.DENSE)])
    aggregate, restored = (LatestMeanModel(layout, parse_codec("raw"), layout.zeros()) for _ in range(2))
    model = np.random.default_rng(0).normal(size=PARAMETERS).astype(np.float32)
    for learner in range(MODELS):
        aggregate.replace(f"learner{learner}", model, 1.0)
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder))
        name = "community_model"
        writing = best_seconds(
            lambda: checkpoints.write(Checkpoint(1, "", {name: aggregate.save()})), repeats=3
        )
        size = checkpoints.path.stat().st_size
        reading = _seconds(lambda: restored.load(checkpoints.read().components[name]))  # type: ignore[union-attr]
    label = f"a checkpoint of {MODELS} newest models of 1.69 million parameters"
    return [
        BenchmarkResult(f"{label}: its size", 1e-6 * size, "MB"),
        BenchmarkResult(f"{label}: writing it", writing, "s"),
        BenchmarkResult(f"{label}: the shortest time between two of them", writing / MAX_TIME_FRACTION, "s"),
        BenchmarkResult(f"{label}: reading and loading it", reading, "s"),
    ]


def _in_child(function: Callable[[], float]) -> float:
    """Return the result of a function in a child process; negative if the process was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reading)
            os.write(writing, str(function()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        output = pipe.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return -1.0
    assert status == 0, "a process failed"
    return float(output)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _sites() -> dict[str, Examples]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(10, 64))
    sites = {}
    for i in range(LEARNERS):
        y = rng.integers(0, 10, ROWS)
        sites[f"learner{i}"] = Examples((centres[y] + rng.normal(size=(ROWS, 64))).astype(np.float32), y)
    return sites
