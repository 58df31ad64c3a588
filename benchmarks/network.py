"""A real network on hosts with lines of 1 Mbit/s: time to an accuracy by codec, and overhead beside Flower's FedAvg.

A centre and two sites are network namespaces; bytes are what the kernel counted on the sites' interfaces, in both
directions, with TLS, heartbeats and polling. Most of a round is Flower's polling and process starts, so compare rows of
one run with each other only.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from abaton.bench import Measure

PATIENCE = 600.0
PLAIN_ROUNDS = 3

_FEDAVG = {
    "pyproject.toml": """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedavg-app"
version = "1.0.0"
description = "Flower's own FedAvg, to be measured beside."
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<1.42"]

[tool.flwr.app]
publisher = "abaton"

[tool.flwr.app.components]
serverapp = "fedavg_app.server:app"
clientapp = "fedavg_app.client:app"

[tool.flwr.app.config]
rounds = 3
report = ""
""",
    "fedavg_app/__init__.py": "",
    "fedavg_app/server.py": "from flwr.serverapp import ServerApp\nfrom _network_app import serve_fedavg\n\n"
    "app = ServerApp()\napp.main()(serve_fedavg)\n",
    "fedavg_app/client.py": "from flwr.clientapp import ClientApp\nfrom _network_app import train_fedavg\n\n"
    "app = ClientApp()\napp.train()(train_fedavg)\n",
}


def run() -> list[Measure]:
    """All measurements; none where the machine has no network namespaces or no Flower."""
    hosts = _beside("_hosts")
    if why := hosts.why_not() or ("" if importlib.util.find_spec("flwr") else "Flower is missing"):
        return [Measure(f"not measured: {why}", 0.0, "")]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        measured = _Federation(hosts.Hosts(["centre", *_SITES]), folder)
        stack.callback(measured.stop)
        measured.start()
        return [*_beside_fedavg(measured), *_by_codec(measured)]


_SITES = ("north", "south")


def _beside(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Federation:
    """A centre and two sites, each on its own host."""

    def __init__(self, net: Any, folder: Path) -> None:
        self.net, self.folder = net, folder
        self.sites: dict[str, Any] = {}
        self.centre: Any = None
        here = str(Path(__file__).parent)
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *sys.path[1:]])

    def start(self) -> None:
        from abaton.engines.flower.centre import Address, Centre
        from abaton.engines.flower.certificates import issue, node_key
        from abaton.engines.flower.nodes import ROLES, Membership, Nodes

        self.net.start()
        address = Address(self.net.addresses["centre"], 8443)
        own = issue(self.folder / "certificates", address.hosts, datetime.now(UTC))
        self.centre = Centre(self.folder / "centre", address, own, print)
        with self.net.on("centre"):
            self.centre.start()
        for site in _SITES:
            member = Membership(
                site, str(address), own.authority, "_network_app:open_desk", self.folder / site
            )
            self.sites[site] = Nodes(member, print)
            for role in ROLES:
                _, public = node_key(self.sites[site].key(role))
                with self.net.on("centre"):
                    self.centre.admit(public, site, role)
            with self.net.on(site):
                self.sites[site].start()

    def stop(self) -> None:
        for nodes in self.sites.values():
            nodes.stop()
        if self.centre is not None:
            self.centre.stop()
        self.net.stop()

    def carried(self) -> int:
        return sum(self.net.carried(site) for site in _SITES)

    def wait(self, until: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not until():
            if time.monotonic() > end:
                raise TimeoutError(f"see {self.folder}")
            time.sleep(0.25)

    def ours(self, run: str, rounds: int) -> tuple[list[tuple[float, float]], int]:
        """The times and accuracies of a run's versions, and the bytes that it took."""
        store = self.folder / "store"
        store.mkdir(exist_ok=True)
        told = {"run": run, "store": str(store), "centre": str(self.centre.folder), "rounds": rounds}
        before = self.carried()
        with self.net.on("centre"):
            self.centre.submit("_network_app:conduct", json.dumps(told))
        report = store / f"{run}.json"
        self.wait(report.exists)
        return [(at, accuracy) for at, accuracy in json.loads(report.read_text())], self.carried() - before

    def fedavg(self, rounds: int) -> tuple[float, int]:
        """Seconds of a round of Flower's FedAvg, and the bytes that its run took."""
        from abaton.engines.flower.keeper import call, surroundings

        app, report = self.folder / "fedavg", self.folder / "fedavg.json"
        for name, text in _FEDAVG.items():
            (app / name).parent.mkdir(parents=True, exist_ok=True)
            (app / name).write_text(text)
        config = f"rounds={rounds} report='{report}'"
        words = ["flwr", "run", str(app), "--run-config", config, "--format", "json"]
        before = self.carried()
        with self.net.on("centre"):
            call(words, surroundings(self.centre.folder / "flwr"), where="fedavg")
        self.wait(report.exists)
        return float(json.loads(report.read_text())), self.carried() - before


def _beside_fedavg(measured: _Federation) -> list[Measure]:
    theirs, their_bytes = measured.fedavg(PLAIN_ROUNDS)
    versions, our_bytes = measured.ours("raw plain", PLAIN_ROUNDS)
    ours = versions[-1][0] / PLAIN_ROUNDS
    updates, nodes = PLAIN_ROUNDS * len(_SITES), 2  # FedAvg trains on both nodes of each site
    return [
        Measure("round trip of a round, Flower's FedAvg", theirs, "s"),
        Measure("round trip of a round, ours", ours, "s"),
        Measure("round trip, ours / FedAvg", ours / theirs, "ratio"),
        Measure("bytes for an update and its model, Flower's FedAvg", their_bytes / updates / nodes, "bytes"),
        Measure("bytes for an update and its model, ours, raw", our_bytes / updates, "bytes"),
        Measure("bytes, ours / FedAvg", our_bytes / updates / (their_bytes / updates / nodes), "ratio"),
    ]


def _by_codec(measured: _Federation) -> list[Measure]:
    app = _beside("_network_app")
    for site in _SITES:
        measured.net.slow(site, queue="256kb")
    made, times, sizes = [], {}, {}
    for codec in app.CODECS:
        versions, carried = measured.ours(codec, app.ROUNDS)
        reached = [at for at, accuracy in versions if accuracy >= app.ACCURACY]
        made.append(Measure(f"1 Mbit/s, {codec}: bytes of the run, by the kernel", carried, "bytes"))
        made.append(Measure(f"1 Mbit/s, {codec}: last accuracy", versions[-1][1], ""))
        sizes[codec] = carried
        if reached:
            times[codec] = reached[0]
            made.append(Measure(f"1 Mbit/s, {codec}: time to accuracy {app.ACCURACY:g}", reached[0], "s"))
        with suppress(KeyError, ZeroDivisionError):
            if codec != "raw":
                made.append(Measure(f"time, raw / {codec}", times["raw"] / times[codec], "ratio"))
                made.append(Measure(f"bytes, raw / {codec}", sizes["raw"] / sizes[codec], "ratio"))
    return made
