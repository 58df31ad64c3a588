"""Runs that are told instead of trained, a client without a network, and a dashboard in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from abaton.dashboard import Dashboard, make_dashboard
from abaton.store import Journal, ModelRow, RunRow, Store

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
STUDY = "Heart failure within a year of a check-up"
LEARNERS = ("athens", "kos", "pergamon")


def tell(store: Store, run: str, rounds: int = 6, *, learners=LEARNERS, status: str = "finished", **recipe):
    """Write a run into a store as an asynchronous federation would have left it; its newest version."""
    made = {"name": "told", "settings": {"seed": 1, "rounds": rounds}, **recipe}
    created = "2026-03-01T12:00:00+00:00"
    store.add_run(RunRow(run, created, "virtual", made, "abc", "running", None))
    wall = iter(range(10**9))
    journal = Journal(store, run, wall=lambda: 1_772_366_400.0 + 0.5 * next(wall))
    journal.publish(ModelRow(0, 0.0, "d0", {"auroc": 0.5, "loss": 0.7}))
    for number, name in enumerate(learners):
        body = {"at": 0.0, "learner": name, "examples": 3 + 20 * number, "group": "", "labels": []}
        journal.append("Joined", body)
        journal.note([{"learner": name, "task": f"0.{name}", "version": 0, "at": 0.0}], [])
    version = size = 0
    for turn in range(rounds):
        for number, name in enumerate(learners):
            at, task = float(turn + 1) + number / 10, f"{turn}.{name}"
            sent = 100 + 10 * number
            journal.append(
                "Arrived",
                {"at": at, "learner": name, "task": task, "payload": "p", "size": sent, "steps": 4,
                 "examples": 3 + 20 * number, "metrics": {"loss": 1.0, "upload": 0.1}, "score": [], "cohort": "c"},
            )  # fmt: skip
            version, size = version + 1, size + sent
            commit = {
                "learner": name, "task": task, "version": max(0, version - 3), "began": at - 0.9, "arrived": at,
                "uploading": 0.1, "at": at, "size": sent, "steps": 4, "weight": 1.0 + number, "missed": 2,
                "staleness": 12, "loss": 1.0 / version, "validation": 2.0 / version,
            }  # fmt: skip
            asked = {"learner": name, "task": f"{turn + 1}.{name}", "version": version, "at": at}
            journal.note([asked], [commit])
            metrics = {"auroc": 1 - 0.5 / (version + 1), "loss": 0.7 / version}
            journal.publish(ModelRow(version, at, f"d{version}", metrics), updates=version, size=size)
    journal.append(
        "Failed", {"at": rounds + 1.0, "learner": learners[0], "task": "x", "reason": "dropped out"}
    )
    journal.flush()
    if status != "running":
        result = {"version": version, "updates": version, "bytes_up": size}
        store.finish_run(run, status, result)
    return version


def train(store: Store, run: str, codec: str) -> None:
    """Let five learners of different speed really train, weighted by validation, and keep the run under a name."""
    import numpy as np

    from abaton.controller import POLICIES, Rules, TrainSettings
    from abaton.engines import Profile
    from abaton.federation import Dossier, Federation, Holding
    from abaton.learners import Examples, mlp
    from abaton.metrics.predictions import measures

    draw = np.random.default_rng(7)
    truth = draw.normal(size=12)

    def people(number: int) -> Examples:
        x = draw.normal(size=(number, 12)).astype(np.float32)
        return Examples(x, (x @ truth + draw.normal(size=number) * 2 > 0).astype(np.int64))

    names = {"athens": 90, "epidaurus": 60, "kos": 25, "pergamon": 120, "trikala": 40}
    sites = {name: people(number) for name, number in names.items()}
    validation = {name: people(30) for name in names}
    test, model = people(400), mlp(features=12, classes=2, hidden=(16,))
    speeds = {"athens": 20.0, "epidaurus": 26.0, "kos": 6.0, "pergamon": 14.0, "trikala": 5.0}
    profiles = {
        name: Profile(speed, bandwidth=3e3, latency=0.1, dropout=0.06 if name == "kos" else 0.0,
                      group="slow" if speed < 10 else "fast", leaves=26.0 if name == "trikala" else float("inf"))
        for name, speed in speeds.items()
    }  # fmt: skip
    rules = Rules(5, 90, training=TrainSettings(epochs=2, batch_size=16), seed=7, **POLICIES["AsyncDVW(na)"])

    method = {"codec": codec, "policy": "AsyncDVW", "rounds": 90}
    holdings = {name: Holding(sites[name], validation[name], profiles[name]) for name in sites}
    dossier = Dossier(
        "study", {"seed": 7}, facts={"method": method, "study": {"title": STUDY}},
        observe=lambda vector: measures(model.score(vector, test), test.y),
    )  # fmt: skip
    Federation(model, holdings, rules, codec, dossier=dossier).run(run, store=store)


class Ticks:
    """A clock that stands still until told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Client:
    """Asks an application directly; keeps cookies, follows nothing."""

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
    """Open a session; the form key of its pages."""
    assert client.post("/login", data={"token": token}).status_code == 303
    page = client.get("/").text
    return page.split('name="key" value="')[1].split('"')[0]


@contextlib.contextmanager
def served(dashboard: Dashboard) -> Iterator[str]:
    """The address of a dashboard, which runs in a thread."""
    from abaton.governance.intake.intake_service import Limits
    from abaton.governance.intake.server import Listen, _Server, configure

    ready: queue.Queue[str] = queue.Queue()
    config = configure(make_dashboard(dashboard), Listen(port=0), Limits())
    config.timeout_graceful_shutdown = 1
    server = _Server(config, ready.put)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield ready.get(timeout=30)
    finally:
        server.should_exit = True
        thread.join(30)
