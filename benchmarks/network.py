"""A real network on hosts with lines of 1 Mbit/s: time to an accuracy by codec, and overhead beside Flower's FedAvg.

A centre and two sites are network namespaces; bytes are what the kernel counted on the sites' interfaces, with TLS,
heartbeats and polling, unless a row says that the idle traffic was taken off. Most of a round is Flower's polling and
process starts, so compare rows of one run with each other only.

Beside FedAvg everything is the same (model, learner, the two nodes that train, rounds, float32 updates, no evaluation)
but what rows name. `FedAvg` trains in the process that Flower starts for each message and so imports the learner each
time; `FedAvg with our desk` asks the program that stays, as ours does. What is left between that and ours: Flower's
strategies look for answers every 3 s, ours every 0.2 s; and our models go down as differences.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, NamedTuple

from abaton.bench import Measure

PATIENCE = 600.0
PLAIN_ROUNDS, TURNS = 5, 2
IDLE = 60.0

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
about = ""
""",
    "fedavg_app/__init__.py": "",
    "fedavg_app/server.py": "from flwr.serverapp import ServerApp\nfrom _network_fedavg import serve\n\n"
    "app = ServerApp()\napp.main()(serve)\n",
    "fedavg_app/client.py": "from flwr.clientapp import ClientApp\nfrom _network_fedavg import train\n\n"
    "app = ClientApp()\napp.train()(train)\n",
}


class Mark(NamedTuple):
    """Of a model: when it was there, what the sites had sent and received by then, and how good it is."""

    at: float
    sent: int
    received: int
    accuracy: float


def run() -> list[Measure]:
    """All measurements; none where the machine has no network namespaces or no Flower."""
    hosts = _beside("_hosts")
    if why := hosts.why_not() or ("" if importlib.util.find_spec("flwr") else "Flower is missing"):
        return [Measure(f"not measured: {why}", 0.0, "")]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        measured = _Federation(hosts.Hosts(["centre", *_SITES]), hosts.counted, folder)
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

    def __init__(self, net: Any, counted: Callable[[Sequence[str]], tuple[int, int]], folder: Path) -> None:
        self.net, self.folder, self._counted = net, folder, counted
        self._spaces = [net.space(site) for site in _SITES]
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

    def wait(self, until: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not until():
            if time.monotonic() > end:
                raise TimeoutError(f"see {self.folder}")
            time.sleep(0.25)

    def ours(self, run: str, rounds: int) -> list[Mark]:
        """Our controller's run, called after its codec."""
        told = self._told(run, rounds)
        with self.net.on("centre"):
            self.centre.submit("_network_app:conduct", json.dumps(told))
        return self._marks(told)

    def fedavg(self, run: str, rounds: int, *, desk: bool) -> list[Mark]:
        """A run of Flower's FedAvg; with a desk, the one that stays trains for it."""
        from abaton.engines.flower.keeper import call, surroundings

        app, told = self.folder / "fedavg", {**self._told(run, rounds), "desk": desk}
        for name, text in _FEDAVG.items():
            (app / name).parent.mkdir(parents=True, exist_ok=True)
            (app / name).write_text(text)
        settings = self.folder / "fedavg.toml"
        settings.write_text(f"about = {json.dumps(json.dumps(told))}\n")
        with self.net.on("centre"):
            words = ["flwr", "run", str(app), "--run-config", str(settings), "--format", "json"]
            call(words, surroundings(self.centre.folder / "flwr"), where="fedavg")
        return self._marks(told)

    def idle(self) -> tuple[float, float]:
        """Bytes that all nodes send and receive in a second while there is nothing to do."""
        before = self._counted(self._spaces)
        time.sleep(IDLE)
        sent, received = (now - then for now, then in zip(self._counted(self._spaces), before, strict=True))
        return sent / IDLE, received / IDLE

    def _told(self, run: str, rounds: int) -> dict[str, Any]:
        store, report = self.folder / "store", self.folder / f"{run}.json"
        store.mkdir(exist_ok=True)
        paths = {"store": str(store), "centre": str(self.centre.folder), "report": str(report)}
        return {"run": run, "rounds": rounds, "spaces": self._spaces, **paths}

    def _marks(self, told: dict[str, Any]) -> list[Mark]:
        report = Path(told["report"])
        self.wait(report.exists)
        return [Mark(*row) for row in json.loads(report.read_text())]


def _beside_fedavg(measured: _Federation) -> list[Measure]:
    """Three kinds of run in turns: two nodes train, by the same learner, and send 32 bits for each number."""
    kinds: dict[str, Callable[[str], list[Mark]]] = {
        "FedAvg": lambda turn: measured.fedavg(f"fedavg {turn}", PLAIN_ROUNDS, desk=False),
        "FedAvg with our desk": lambda turn: measured.fedavg(f"desk {turn}", PLAIN_ROUNDS, desk=True),
        "ours": lambda turn: measured.ours(f"raw {turn}", PLAIN_ROUNDS),
    }
    runs: dict[str, list[list[Mark]]] = {name: [] for name in kinds}
    for turn in range(TURNS):
        for name, live in kinds.items():
            runs[name].append(live(str(turn)))
    idle = measured.idle()
    costs = {name: _cost(marks, idle) for name, marks in runs.items()}
    made = [
        Measure(f"idle, four nodes: {way}", each, "bytes/s") for way, each in zip(_WAYS, idle, strict=True)
    ]
    for i, (what, unit) in enumerate(_COSTS):
        made += [Measure(f"{what}, {name}", cost[i], unit) for name, cost in costs.items()]
        made += [
            Measure(f"{what}, ours / {name}", costs["ours"][i] / cost[i], "ratio")
            for name, cost in costs.items()
            if name != "ours"
        ]
    for name, (marks, *_) in runs.items():
        made.append(Measure(f"accuracy after {PLAIN_ROUNDS} rounds, {name}", marks[-1].accuracy, ""))
    return made


_WAYS = ("sent by sites", "received by sites")
_COSTS = (
    ("seconds of a round (median)", "s"),
    ("an update, float32, without idle traffic", "bytes"),
    ("a model (ours: exact difference), without idle traffic", "bytes"),
)


def _cost(runs: Sequence[Sequence[Mark]], idle: tuple[float, float]) -> tuple[float, float, float]:
    """Of a round: its seconds; of a site in it: the bytes sent and received beyond the idle ones.

    The first round of each run is left out: FedAvg's nodes install its app in it, ours are sent a first whole model.
    """
    rounds = [pair for marks in runs for pair in pairwise(marks[1:])]
    seconds = [after.at - before.at for before, after in rounds]
    sent = sum(after.sent - before.sent for before, after in rounds) - idle[0] * sum(seconds)
    received = sum(after.received - before.received for before, after in rounds) - idle[1] * sum(seconds)
    updates = len(rounds) * len(_SITES)
    return median(seconds), sent / updates, received / updates


def _by_codec(measured: _Federation) -> list[Measure]:
    app = _beside("_network_app")
    for site in _SITES:
        measured.net.slow(site, queue="256kb")
    made, times, sizes = [], {}, {}
    for codec in app.CODECS:
        first, *rest = measured.ours(codec, app.ROUNDS)
        sizes[codec] = rest[-1].sent + rest[-1].received - first.sent - first.received
        made.append(Measure(f"1 Mbit/s, {codec}: bytes of the run, by the kernel", sizes[codec], "bytes"))
        made.append(Measure(f"1 Mbit/s, {codec}: last accuracy", rest[-1].accuracy, ""))
        reached = [mark.at - first.at for mark in rest if mark.accuracy >= app.ACCURACY]
        if reached:
            times[codec] = reached[0]
            made.append(Measure(f"1 Mbit/s, {codec}: time to accuracy {app.ACCURACY:g}", reached[0], "s"))
        with suppress(KeyError, ZeroDivisionError):
            if codec != "raw":
                made.append(Measure(f"time, raw / {codec}", times["raw"] / times[codec], "ratio"))
                made.append(Measure(f"bytes, raw / {codec}", sizes["raw"] / sizes[codec], "ratio"))
    return made
