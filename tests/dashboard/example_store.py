"""Runs written without training, a client without a network, and a dashboard in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from abaton.dashboard import DashboardState, make_dashboard
from abaton.store import Journal, ModelRow, RunRow, Store

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
STUDY = "Heart failure within a year of a check-up"
LEARNERS = ("athens", "kos", "pergamon")


def write_run(
    store: Store, run: str, rounds: int = 6, *, learners=LEARNERS, status: str = "finished", **recipe
):
    """Write a run of an asynchronous federation to a store and return its latest version."""
    full_recipe = {"name": "example", "settings": {"seed": 1, "rounds": rounds}, **recipe}
    created = "2026-03-01T12:00:00+00:00"
    store.add_run(RunRow(run, created, "virtual", full_recipe, "abc", "running", None))
    wall_times = iter(range(10**9))
    journal = Journal(store, run, wall_clock=lambda: 1_772_366_400.0 + 0.5 * next(wall_times))
    journal.publish(ModelRow(0, 0.0, "d0", {"auroc": 0.5, "loss": 0.7}))
    for number, name in enumerate(learners):
        body = {"timestamp": 0.0, "learner": name, "examples": 3 + 20 * number, "group": "", "labels": []}
        journal.append("learner_joined", body)
        journal.record_activity([{"learner": name, "task": f"0.{name}", "version": 0, "timestamp": 0.0}], [])
    version = total_bytes = 0
    for round_number in range(rounds):
        for number, name in enumerate(learners):
            timestamp, task = float(round_number + 1) + number / 10, f"{round_number}.{name}"
            payload_bytes = 100 + 10 * number
            journal.append(
                "update_received",
                {"timestamp": timestamp, "learner": name, "task": task, "payload": "p",
                 "payload_bytes": payload_bytes, "steps": 4, "examples": 3 + 20 * number,
                 "metrics": {"loss": 1.0, "upload": 0.1}, "counts": [], "cohort": "c"},
            )  # fmt: skip
            version, total_bytes = version + 1, total_bytes + payload_bytes
            commit = {
                "learner": name, "task": task, "version": max(0, version - 3), "started_at": timestamp - 0.9,
                "received_at": timestamp, "upload_seconds": 0.1, "timestamp": timestamp,
                "payload_bytes": payload_bytes, "steps": 4, "weight": 1.0 + number, "versions_missed": 2,
                "staleness": 12, "loss": 1.0 / version, "validation": 2.0 / version,
            }  # fmt: skip
            task_row = {
                "learner": name,
                "task": f"{round_number + 1}.{name}",
                "version": version,
                "timestamp": timestamp,
            }
            journal.record_activity([task_row], [commit])
            metrics = {"auroc": 1 - 0.5 / (version + 1), "loss": 0.7 / version}
            journal.publish(
                ModelRow(version, timestamp, f"d{version}", metrics), updates=version, size=total_bytes
            )
    journal.append(
        "task_failed",
        {"timestamp": rounds + 1.0, "learner": learners[0], "task": "x", "reason": "dropped out"},
    )
    journal.flush()
    if status != "running":
        result = {"version": version, "updates": version, "bytes_up": total_bytes}
        store.finish_run(run, status, result)
    return version


def train(store: Store, run: str, codec: str) -> None:
    """Train five learners of different speed with validation weighting and store the run."""
    import numpy as np

    from abaton.controller import STRATEGIES, Strategy, TrainSettings
    from abaton.engines import MachineProfile
    from abaton.federation import Federation, LocalSite, RunMetadata
    from abaton.metrics.predictions import score_metrics
    from abaton.models import Examples, mlp

    rng = np.random.default_rng(7)
    coefficients = rng.normal(size=12)

    def examples(number: int) -> Examples:
        x = rng.normal(size=(number, 12)).astype(np.float32)
        return Examples(x, (x @ coefficients + rng.normal(size=number) * 2 > 0).astype(np.int64))

    names = {"athens": 90, "epidaurus": 60, "kos": 25, "pergamon": 120, "trikala": 40}
    sites = {name: examples(number) for name, number in names.items()}
    validation = {name: examples(30) for name in names}
    test, model = examples(400), mlp(features=12, classes=2, hidden=(16,))
    speeds = {"athens": 20.0, "epidaurus": 26.0, "kos": 6.0, "pergamon": 14.0, "trikala": 5.0}
    profiles = {
        name: MachineProfile(speed, bandwidth=3e3, latency=0.1, dropout_probability=0.06 if name == "kos" else 0.0,
                      group="slow" if speed < 10 else "fast", leaves_at=26.0 if name == "trikala" else float("inf"))
        for name, speed in speeds.items()
    }  # fmt: skip
    strategy = Strategy(
        5, 90, training=TrainSettings(epochs=2, batch_size=16), seed=7, **STRATEGIES["AsyncDVW(na)"]
    )

    method = {"codec": codec, "strategy": "AsyncDVW", "rounds": 90}
    participants = {name: LocalSite(sites[name], validation[name], profiles[name]) for name in sites}
    metadata = RunMetadata(
        "study", {"seed": 7}, study_facts={"method": method, "study": {"title": STUDY}},
        observe=lambda vector: score_metrics(model.score(vector, test), test.y),
    )  # fmt: skip
    Federation(model, participants, strategy, codec, metadata=metadata).run(run, store=store)


class ManualClock:
    """Clock that is set by the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Client:
    """Client that calls an application directly, keeps cookies and follows no redirects."""

    def __init__(self, app: Any, base_url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base_url)
        self.cookies = self._client.cookies

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self._loop.run_until_complete(self._client.request(method, path, **more))

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self.request("POST", path, **more)

    def close(self) -> None:
        self._loop.run_until_complete(self._client.aclose())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


def sign_in(client: Client, token: str) -> str:
    """Open a session and return the CSRF token of its pages."""
    assert client.post("/login", data={"token": token}).status_code == 303
    page = client.get("/").text
    return page.split('name="key" value="')[1].split('"')[0]


@contextlib.contextmanager
def serve_in_thread(dashboard: DashboardState) -> Iterator[str]:
    """Yield the address of a dashboard that runs in a thread."""
    from abaton.governance.intake.intake_service import IntakeLimits
    from abaton.governance.intake.server import ListenSettings, _Server, configure

    ready: queue.Queue[str] = queue.Queue()
    config = configure(make_dashboard(dashboard), ListenSettings(port=0), IntakeLimits())
    config.timeout_graceful_shutdown = 1
    server = _Server(config, ready.put)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield ready.get(timeout=30)
    finally:
        server.should_exit = True
        thread.join(30)
