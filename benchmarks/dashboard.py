"""The dashboard: how long pages take with 100 runs and 100,000 events, and what 200 viewers cost a run that goes on.

The dashboard is a process of its own, the viewers are a second one, the run is this one, with one thread; all on
loopback. The dashboard gives way to a run, as it always does; the viewers, who have machines of their own, do so too.
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

from abaton.benchmark import Measure, at_least, at_most
from abaton.controller import Rules, TrainSettings
from abaton.federation import Federation
from abaton.lab.synthetic_hospitals import tables
from abaton.learners import mlp
from abaton.store import Journal, ModelRow, RunRow, Store

RUNS, EVENTS, LARGE = 100, 100_000, 40_000
VIEWERS = int(os.environ.get("ABATON_BENCH_VIEWERS", "200"))
ROUNDS = int(os.environ.get("ABATON_BENCH_ROUNDS", "5000"))
REPEATS = int(os.environ.get("ABATON_BENCH_REPEATS", "3"))


def run() -> list[Measure]:
    """Pages first, then viewers."""
    with tempfile.TemporaryDirectory(prefix="abaton-bench-") as folder:
        return [*pages(Path(folder, "pages")), *viewers(Path(folder, "viewers"))]


def pages(folder: Path) -> list[Measure]:
    """Seconds until each page is there, with everything it draws, from a dashboard that has just been started."""
    with Store(folder) as store:
        small = (EVENTS - LARGE) // (RUNS - 1)
        for number in range(RUNS):
            fill(store, f"run-{number:03}", LARGE if number == 0 else small)
    asked = {
        "list of runs": ["/"],
        "run of 40,000 events, with its figures": ["/runs/run-000", "/runs/run-000/figures"],
        "run of 600 events, with its figures": ["/runs/run-001", "/runs/run-001/figures"],
        "log of 40,000 events, one learner": ["/runs/run-000/log?kind=Arrived&learner=site-3"],
        "comparison of two runs": [
            "/compare?run=run-000&run=run-001",
            "/compare/figures?run=run-000&run=run-001",
        ],
    }
    made = []
    with served(folder) as (address, server), httpx.Client(base_url=address, timeout=60) as client:
        client.get("/static/dashboard.css")
        for name, paths in asked.items():
            begun, work = time.perf_counter(), worked(server)
            size = sum(len(client.get(path).raise_for_status().content) for path in paths)
            made.append(at_most(f"{name}: seconds", time.perf_counter() - begun, 1.0, "s"))
            made.append(at_most(f"{name}: the dashboard's own work", worked(server) - work, 1.0, "s"))
            made.append(at_most(f"{name}: size", size / 1000, 400, "kB"))
    return made


def fill(store: Store, name: str, events: int) -> None:
    """Write a run of an asynchronous federation of ten learners: half of the events are updates, half scores."""
    store.add_run(RunRow(name, "2026-01-01T00:00:00+00:00", "virtual", {"name": "told"}, "", "running", None))
    journal, learners = Journal(store, name), [f"site-{number}" for number in range(10)]
    journal.publish(ModelRow(0, 0.0, "d", {"auroc": 0.5}))
    for learner in learners:
        journal.append("Joined", {"at": 0.0, "learner": learner, "examples": 100, "group": "", "labels": []})
    for turn in range((events - 10) // 2):
        learner, at, task = learners[turn % 10], 1.0 + turn / 10, f"{turn}.{turn % 10}"
        body = {"at": at, "learner": learner, "task": task, "payload": "p", "size": 1000 + turn % 97, "steps": 4,
                "examples": 100, "metrics": {"loss": 1.0}, "score": [], "cohort": ""}  # fmt: skip
        journal.append("Arrived", body)
        scorer = learners[(turn + 1) % 10]
        journal.append(
            "Scored", {"at": at + 0.05, "learner": scorer, "task": f"{task}@{scorer}", "score": [1, 2]}
        )
        commit = {"learner": learner, "task": task, "version": max(0, turn - 9), "began": at - 0.9, "arrived": at,
                  "uploading": 0.1, "at": at + 0.05, "size": 1000, "steps": 4, "weight": 1.0 + turn % 7, "missed": 9,
                  "staleness": 36 + turn % 11, "loss": 1.0, "validation": 1.0 / (turn + 1)}  # fmt: skip
        journal.note(
            [{"learner": learner, "task": f"{turn + 10}.{turn % 10}", "version": turn, "at": at}], [commit]
        )
        journal.publish(ModelRow(turn + 1, at, "d", {"auroc": 0.9}), updates=turn + 1, size=1000 * turn)
    journal.flush()
    store.finish_run(name, "finished", {"version": events // 2})


class Lived(NamedTuple):
    """One run: its seconds by the clock and of its own work, the dashboard's work and memory, what viewers heard."""

    seconds: float
    work: float
    served: float = 0.0
    memory: float = 0.0
    heard: Mapping[str, int] = MappingProxyType({})


def viewers(folder: Path) -> list[Measure]:
    """How much slower a run is while it is watched, and how much memory the dashboard takes for its viewers."""
    numba.set_num_threads(1)
    alone, watched, memory = [], [], []
    with Store(folder) as store, served(folder) as (address, server):
        lived(store)  # compiles
        for _ in range(REPEATS):
            alone.append(lived(store))
            before = resident(server)
            watched.append(lived(store, address, server))
            memory.append(watched[-1].memory - before)
    best, one = min(watched, key=lambda each: each.seconds), min(alone, key=lambda each: each.seconds)
    ratio = min(each.work for each in watched) / min(each.work for each in alone)
    return [
        at_most(f"a run with {VIEWERS} viewers against one with none: seconds by the clock",
                best.seconds / one.seconds, 1.05, "x"),
        at_most("the same: seconds of the run's own work", ratio, 1.05, "x"),
        Measure("seconds of the run alone", one.seconds, "s"),
        at_most("the dashboard's own work while it is watched, of one core", best.served / best.seconds, 0.5, "x"),
        at_least("viewers that heard of it", best.heard["listening"], VIEWERS, "viewers"),
        at_least("live updates that arrived at each viewer", best.heard["updates"] / VIEWERS, 2, "updates"),
        Measure("figures that each viewer asked for", best.heard["figures"] / VIEWERS, "answers"),
        at_most("memory that the dashboard takes for its first viewers", memory[0] / 1e6, 64, "MB"),
        at_most("memory that it takes more for each later time", memory[-1] / 1e6, 32, "MB"),
    ]  # fmt: skip


def lived(store: Store, address: str = "", server: int = 0) -> Lived:
    """Run once, watched if there is an address."""
    known = {row.run for row in store.runs()}
    begun, most, watchers = threading.Event(), [0.0], []

    def look() -> None:
        begun.wait()
        (name,) = {row.run for row in store.runs()} - known
        host, port = re.findall(r"//([\d.]+):(\d+)", address)[0]
        script = Path(__file__).with_name("_viewers.py")
        words = [sys.executable, str(script), host, port, name, str(VIEWERS)]
        watchers.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        while watchers[0].poll() is None:
            most[0] = max(most[0], resident(server))
            time.sleep(0.5)

    thread = threading.Thread(target=look, daemon=True)
    if address:
        thread.start()
    served_before = worked(server) if server else 0.0
    clock, work = time.perf_counter(), time.process_time()
    rules = Rules(rounds=ROUNDS, seed=1, training=TrainSettings(epochs=2, batch_size=32, learning_rate=0.1))
    made = Federation(mlp(features=8, classes=2, hidden=(16,)), tables(seed=1, scale=0.3), rules)
    made.run(store=store, watch=lambda state, event: begun.set())
    seconds, own = time.perf_counter() - clock, time.process_time() - work
    if not address:
        return Lived(seconds, own)
    busy = worked(server) - served_before
    out, _ = watchers[0].communicate(timeout=120)
    thread.join(10)
    return Lived(seconds, own, busy, most[0], json.loads(out.strip().splitlines()[-1]))


def worked(process: int) -> float:
    """Seconds that a process has worked."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(process: int) -> float:
    """Bytes of memory that a process has."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return 1024.0 * int(found.group(1)) if found else 0.0


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[str, int]]:
    """A dashboard over a store, as a process; its address and number."""
    words = ["dashboard", "--port", "0", "--store", str(folder)]
    program = f"import sys; sys.argv = ['abaton', *{words!r}]; from abaton.cli import main; main()"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.terminate()
        process.wait(30)
