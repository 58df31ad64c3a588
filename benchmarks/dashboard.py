"""Dashboard: page times with 100 runs and 100,000 events, and the cost of 200 viewers for a running federation.

The dashboard is one process, the viewers a second, the run this one with one thread; all on loopback. Dashboard and
viewers run with low priority.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import httpx
import numba

from abaton.benchmark import BenchmarkResult, at_least, at_most
from abaton.controller import (
    EvaluationReceived,
    LearnerJoined,
    Strategy,
    TrainSettings,
    UpdateReceived,
    event_to_row,
)
from abaton.federation import Federation
from abaton.lab.synthetic_hospitals import tables
from abaton.models import mlp
from abaton.store import Journal, ModelRow, RunRow, Store

RUNS, EVENTS, LARGE = 100, 100_000, 40_000
VIEWERS = int(os.environ.get("ABATON_BENCH_VIEWERS", "200"))
ROUNDS = int(os.environ.get("ABATON_BENCH_ROUNDS", "5000"))
REPEATS = int(os.environ.get("ABATON_BENCH_REPEATS", "3"))


def run() -> list[BenchmarkResult]:
    """Measure pages, then viewers."""
    with tempfile.TemporaryDirectory(prefix="abaton-bench-") as folder:
        return [*pages(Path(folder, "pages")), *viewers(Path(folder, "viewers"))]


def pages(folder: Path) -> list[BenchmarkResult]:
    """Return the seconds until each page is complete, from a dashboard that has just started."""
    with Store(folder) as store:
        small = (EVENTS - LARGE) // (RUNS - 1)
        for number in range(RUNS):
            write_run(store, f"run-{number:03}", LARGE if number == 0 else small)
    urls = {
        "list of runs": ["/"],
        "run of 40,000 events, with its figures": ["/runs/run-000", "/runs/run-000/figures"],
        "run of 600 events, with its figures": ["/runs/run-001", "/runs/run-001/figures"],
        "log of 40,000 events, one learner": ["/runs/run-000/log?type=update_received&learner=site-3"],
        "comparison of two runs": [
            "/compare?run=run-000&run=run-001",
            "/compare/figures?run=run-000&run=run-001",
        ],
    }
    results = []
    with served(folder) as (address, server), httpx.Client(base_url=address, timeout=60) as client:
        client.get("/static/dashboard.css")
        for name, paths in urls.items():
            started, cpu_before = time.perf_counter(), cpu_seconds(server)
            size = sum(len(client.get(path).raise_for_status().content) for path in paths)
            results.append(at_most(f"{name}: seconds", time.perf_counter() - started, 1.0, "s"))
            results.append(
                at_most(f"{name}: the dashboard's processor time", cpu_seconds(server) - cpu_before, 1.0, "s")
            )
            results.append(at_most(f"{name}: size", size / 1000, 400, "kB"))
    return results


def write_run(store: Store, name: str, events: int) -> None:
    """Write a run of an asynchronous federation of ten learners: half of the events are updates, half evaluations."""
    store.add_run(
        RunRow(name, "2026-01-01T00:00:00+00:00", "virtual", {"name": "example"}, "", "running", None)
    )
    journal, learners = Journal(store, name), [f"site-{number}" for number in range(10)]
    journal.publish(ModelRow(0, 0.0, "d", {"auroc": 0.5}))
    for learner in learners:
        journal.append(*event_to_row(LearnerJoined(0.0, learner, 100)))
    for turn in range((events - 10) // 2):
        learner, received_at, task = learners[turn % 10], 1.0 + turn / 10, f"{turn}.{turn % 10}"
        committed_at = received_at + 0.05
        update = UpdateReceived(received_at, learner, task, "p", 1000 + turn % 97, 4, 100, {"loss": 1.0})
        journal.append(*event_to_row(update))
        evaluator = learners[(turn + 1) % 10]
        journal.append(
            *event_to_row(EvaluationReceived(committed_at, evaluator, f"{task}@{evaluator}", (1, 2)))
        )
        commit = {
            "learner": learner, "task": task, "version": max(0, turn - 9), "started_at": received_at - 0.9,
            "received_at": received_at, "upload_seconds": 0.1, "timestamp": committed_at, "payload_bytes": 1000,
            "steps": 4, "weight": 1.0 + turn % 7, "versions_missed": 9, "staleness": 36 + turn % 11, "loss": 1.0,
            "validation": 1.0 / (turn + 1),
        }  # fmt: skip
        started = {
            "learner": learner,
            "task": f"{turn + 10}.{turn % 10}",
            "version": turn,
            "timestamp": received_at,
        }
        journal.record_activity([started], [commit])
        journal.publish(
            ModelRow(turn + 1, received_at, "d", {"auroc": 0.9}), updates=turn + 1, size=1000 * turn
        )
    journal.flush()
    store.finish_run(name, "finished", {"version": events // 2})


class RunCost(NamedTuple):
    """One run: wall-clock and processor seconds, the dashboard's cost, and states that viewers received."""

    seconds: float
    cpu_seconds: float
    dashboard_cpu_seconds: float = 0.0
    memory: float = 0.0
    received: Mapping[str, int] = MappingProxyType({})


def viewers(folder: Path) -> list[BenchmarkResult]:
    """Measure the slow-down of a run with viewers and the dashboard's memory per viewer."""
    numba.set_num_threads(1)
    unwatched, watched, memory = [], [], []
    with Store(folder) as store, served(folder) as (address, server):
        measure_run(store)  # compiles
        for _ in range(REPEATS):
            unwatched.append(measure_run(store))
            before = resident(server)
            watched.append(measure_run(store, address, server))
            memory.append(watched[-1].memory - before)
    best, reference = (
        min(watched, key=lambda trial: trial.seconds),
        min(unwatched, key=lambda trial: trial.seconds),
    )
    ratio = min(trial.cpu_seconds for trial in watched) / min(trial.cpu_seconds for trial in unwatched)
    return [
        at_most(f"a run with {VIEWERS} viewers against one without: wall-clock time",
                best.seconds / reference.seconds, 1.05, "x"),
        at_most("the same: processor time of the run", ratio, 1.05, "x"),
        BenchmarkResult("wall-clock time of the run without viewers", reference.seconds, "s"),
        at_most("the dashboard's processor time with viewers, of one core",
                best.dashboard_cpu_seconds / best.seconds, 0.5, "x"),
        at_least("connected viewers", best.received["connected"], VIEWERS, "viewers"),
        at_least("states received per viewer", best.received["states"] / VIEWERS, 2, "states"),
        BenchmarkResult("figures requested per viewer", best.received["figures"] / VIEWERS, "responses"),
        at_most("memory of the dashboard for its first viewers", memory[0] / 1e6, 64, "MB"),
        at_most("memory that it adds for later viewers", memory[-1] / 1e6, 32, "MB"),
    ]  # fmt: skip


def measure_run(store: Store, address: str = "", server: int = 0) -> RunCost:
    """Run once, with viewers if there is an address."""
    known = {row.run for row in store.runs()}
    started, peak, processes = threading.Event(), [0.0], []

    def start_viewers() -> None:
        started.wait()
        (name,) = {row.run for row in store.runs()} - known
        host, port = re.findall(r"//([\d.]+):(\d+)", address)[0]
        script = Path(__file__).with_name("_viewers.py")
        arguments = [sys.executable, str(script), host, port, name, str(VIEWERS)]
        processes.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True))
        while processes[0].poll() is None:
            peak[0] = max(peak[0], resident(server))
            time.sleep(0.5)

    thread = threading.Thread(target=start_viewers, daemon=True)
    if address:
        thread.start()
    dashboard_cpu_before = cpu_seconds(server) if server else 0.0
    clock, cpu = time.perf_counter(), time.process_time()
    strategy = Strategy(
        rounds=ROUNDS, seed=1, training=TrainSettings(epochs=2, batch_size=32, learning_rate=0.1)
    )
    federation = Federation(mlp(features=8, classes=2, hidden=(16,)), tables(seed=1, scale=0.3), strategy)
    federation.run(store=store, watch=lambda state, event: started.set())
    seconds, cpu = time.perf_counter() - clock, time.process_time() - cpu
    if not address:
        return RunCost(seconds, cpu)
    dashboard_cpu = cpu_seconds(server) - dashboard_cpu_before
    out, _ = processes[0].communicate(timeout=120)
    thread.join(10)
    return RunCost(seconds, cpu, dashboard_cpu, peak[0], json.loads(out.strip().splitlines()[-1]))


def cpu_seconds(process: int) -> float:
    """Return the processor seconds of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(process: int) -> float:
    """Return the resident memory of a process in bytes."""
    match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return 1024.0 * int(match.group(1)) if match else 0.0


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[str, int]]:
    """Start a dashboard over a store as a process; yield its address and process id."""
    arguments = ["dashboard", "--port", "0", "--store", str(folder)]
    program = f"import sys; sys.argv = ['abaton', *{arguments!r}]; from abaton.cli import main; main()"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.terminate()
        process.wait(30)
