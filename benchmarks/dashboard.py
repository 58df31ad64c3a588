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
from abaton.controller import Strategy, TrainSettings
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
            fill(store, f"run-{number:03}", LARGE if number == 0 else small)
    urls = {
        "list of runs": ["/"],
        "run of 40,000 events, with its figures": ["/runs/run-000", "/runs/run-000/figures"],
        "run of 600 events, with its figures": ["/runs/run-001", "/runs/run-001/figures"],
        "log of 40,000 events, one learner": ["/runs/run-000/log?kind=Arrived&learner=site-3"],
        "comparison of two runs": [
            "/compare?run=run-000&run=run-001",
            "/compare/figures?run=run-000&run=run-001",
        ],
    }
    results = []
    with served(folder) as (address, server), httpx.Client(base_url=address, timeout=60) as client:
        client.get("/static/dashboard.css")
        for name, paths in urls.items():
            started, work = time.perf_counter(), worked(server)
            size = sum(len(client.get(path).raise_for_status().content) for path in paths)
            results.append(at_most(f"{name}: seconds", time.perf_counter() - started, 1.0, "s"))
            results.append(at_most(f"{name}: the dashboard's own work", worked(server) - work, 1.0, "s"))
            results.append(at_most(f"{name}: size", size / 1000, 400, "kB"))
    return results


def fill(store: Store, name: str, events: int) -> None:
    """Write a run of an asynchronous federation of ten learners: half of the events are updates, half evaluations."""
    store.add_run(
        RunRow(name, "2026-01-01T00:00:00+00:00", "virtual", {"name": "example"}, "", "running", None)
    )
    journal, learners = Journal(store, name), [f"site-{number}" for number in range(10)]
    journal.publish(ModelRow(0, 0.0, "d", {"auroc": 0.5}))
    for learner in learners:
        journal.append(
            "learner_joined", {"at": 0.0, "learner": learner, "examples": 100, "group": "", "labels": []}
        )
    for turn in range((events - 10) // 2):
        learner, at, task = learners[turn % 10], 1.0 + turn / 10, f"{turn}.{turn % 10}"
        body = {"at": at, "learner": learner, "task": task, "payload": "p", "size": 1000 + turn % 97, "steps": 4,
                "examples": 100, "metrics": {"loss": 1.0}, "score": [], "cohort": ""}  # fmt: skip
        journal.append("update_received", body)
        scorer = learners[(turn + 1) % 10]
        journal.append(
            "evaluation_received",
            {"at": at + 0.05, "learner": scorer, "task": f"{task}@{scorer}", "score": [1, 2]},
        )
        commit = {"learner": learner, "task": task, "version": max(0, turn - 9), "began": at - 0.9, "arrived": at,
                  "uploading": 0.1, "at": at + 0.05, "size": 1000, "steps": 4, "weight": 1.0 + turn % 7, "missed": 9,
                  "staleness": 36 + turn % 11, "loss": 1.0, "validation": 1.0 / (turn + 1)}  # fmt: skip
        journal.record_activity(
            [{"learner": learner, "task": f"{turn + 10}.{turn % 10}", "version": turn, "at": at}], [commit]
        )
        journal.publish(ModelRow(turn + 1, at, "d", {"auroc": 0.9}), updates=turn + 1, size=1000 * turn)
    journal.flush()
    store.finish_run(name, "finished", {"version": events // 2})


class Lived(NamedTuple):
    """One run: wall-clock and processor seconds, the dashboard's cost, and updates that viewers received."""

    seconds: float
    work: float
    served: float = 0.0
    memory: float = 0.0
    received: Mapping[str, int] = MappingProxyType({})


def viewers(folder: Path) -> list[BenchmarkResult]:
    """Measure the slow-down of a run with viewers and the dashboard's memory per viewer."""
    numba.set_num_threads(1)
    alone, watched, memory = [], [], []
    with Store(folder) as store, served(folder) as (address, server):
        lived(store)  # compiles
        for _ in range(REPEATS):
            alone.append(lived(store))
            before = resident(server)
            watched.append(lived(store, address, server))
            memory.append(watched[-1].memory - before)
    best, one = min(watched, key=lambda trial: trial.seconds), min(alone, key=lambda trial: trial.seconds)
    ratio = min(trial.work for trial in watched) / min(trial.work for trial in alone)
    return [
        at_most(f"a run with {VIEWERS} viewers against one with none: seconds by the clock",
                best.seconds / one.seconds, 1.05, "x"),
        at_most("the same: seconds of the run's own work", ratio, 1.05, "x"),
        BenchmarkResult("seconds of the run alone", one.seconds, "s"),
        at_most("the dashboard's own work while it is watched, of one core", best.served / best.seconds, 0.5, "x"),
        at_least("viewers that heard of it", best.received["listening"], VIEWERS, "viewers"),
        at_least("live updates that arrived at each viewer", best.received["updates"] / VIEWERS, 2, "updates"),
        BenchmarkResult("figures that each viewer asked for", best.received["figures"] / VIEWERS, "answers"),
        at_most("memory that the dashboard takes for its first viewers", memory[0] / 1e6, 64, "MB"),
        at_most("memory that it takes more for each later time", memory[-1] / 1e6, 32, "MB"),
    ]  # fmt: skip


def lived(store: Store, address: str = "", server: int = 0) -> Lived:
    """Run once, with viewers if there is an address."""
    known = {row.run for row in store.runs()}
    started, most, watchers = threading.Event(), [0.0], []

    def look() -> None:
        started.wait()
        (name,) = {row.run for row in store.runs()} - known
        host, port = re.findall(r"//([\d.]+):(\d+)", address)[0]
        script = Path(__file__).with_name("_viewers.py")
        arguments = [sys.executable, str(script), host, port, name, str(VIEWERS)]
        watchers.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True))
        while watchers[0].poll() is None:
            most[0] = max(most[0], resident(server))
            time.sleep(0.5)

    thread = threading.Thread(target=look, daemon=True)
    if address:
        thread.start()
    served_before = worked(server) if server else 0.0
    clock, work = time.perf_counter(), time.process_time()
    rules = Strategy(
        rounds=ROUNDS, seed=1, training=TrainSettings(epochs=2, batch_size=32, learning_rate=0.1)
    )
    federation = Federation(mlp(features=8, classes=2, hidden=(16,)), tables(seed=1, scale=0.3), rules)
    federation.run(store=store, watch=lambda state, event: started.set())
    seconds, own = time.perf_counter() - clock, time.process_time() - work
    if not address:
        return Lived(seconds, own)
    busy = worked(server) - served_before
    out, _ = watchers[0].communicate(timeout=120)
    thread.join(10)
    return Lived(seconds, own, busy, most[0], json.loads(out.strip().splitlines()[-1]))


def worked(process: int) -> float:
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
