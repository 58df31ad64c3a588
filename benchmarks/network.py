"""A real network: cost of a message, recovery after kill -9, a complete study, and slow links.

First on loopback, with TLS, node keys and the proxy: a centre, its SuperLink and four sites on this machine. Then
the heart study of `examples/heart` from records to an evaluated model, over the same processes. Where network
namespaces are allowed (root), the same model is trained over links of 1 Mbit/s by codec; bytes are counted by the
kernel.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from types import ModuleType
from typing import Any, NamedTuple

from abaton.benchmark import BenchmarkResult, at_least, at_most
from abaton.cli.output import note

TIMEOUT_SECONDS = 600.0
ROUND_TRIPS, RUNS, REQUESTS = 60, 3, 5
SITES = ("north", "south", "eastern", "western-isles")
SLOW_SITES = SITES[:2]
LARGE = 20 << 20
BEFORE = {"trip": 5.1, "node": 62.0, "cpu": 1.3}
"""Values measured with Flower's own node, which starts a process for each message."""


class VersionMark(NamedTuple):
    """For a version: time, bytes that the sites had sent and received, and accuracy."""

    timestamp: float
    sent: int
    received: int
    accuracy: float


def run() -> list[BenchmarkResult]:
    """Run all measurements, a quarter of an hour; none without Flower."""
    if importlib.util.find_spec("flwr") is None:
        return [BenchmarkResult("not measured: Flower is missing", 0.0, "")]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path[1:]])
    results: list[BenchmarkResult] = []
    for part in (_on_loopback, _heart, _on_slow_links):
        for result in part():
            note(f"network: {result.name}: {result.value:.4g} {result.unit}")
            results.append(result)
    return results


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _wait_until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError("the network does not respond")
        time.sleep(0.02)
    return value


# ---- on loopback ------------------------------------------------------------------------------------------------


class _NetworkProcesses:
    """A centre and its sites; one thread starts and supervises them."""

    def __init__(self, folder: Path, host: str, port: int, sites: Sequence[str]) -> None:
        from abaton.engines.flower.server_processes import ServerAddress, ServerProcesses
        from abaton.engines.flower.site_processes import SiteMembership, SiteProcesses
        from abaton.engines.flower.tls import issue_certificate

        self.folder, address = folder, ServerAddress(host, port)
        own = issue_certificate(folder / "certificates", address.hosts, datetime.now(UTC))
        self.centre = ServerProcesses(folder / "centre", address, own, lambda _: None)
        self.sites = {
            site: SiteProcesses(
                SiteMembership(
                    site, str(address), own.authority, "_network_app:make_site_worker", folder / site
                ),
                lambda _: None,
            )
            for site in sites
        }
        self.supervisor: list[Any] = []

    def admit(self) -> None:
        for site, processes in self.sites.items():
            processes.make_key()
            self.centre.admit(processes.public_key(), site)

    def watch(self) -> None:
        for processes in (self.centre, *self.sites.values(), *self.supervisor):
            processes.watch()

    def stop(self) -> None:
        for processes in (*self.supervisor, *self.sites.values(), self.centre):
            processes.stop()

    @contextmanager
    def running(self) -> Iterator[None]:
        started, ended = threading.Event(), threading.Event()

        def supervise() -> None:
            for processes in self.sites.values():
                processes.start()
            started.set()
            while not ended.wait(0.05):
                self.watch()

        thread = threading.Thread(target=supervise)
        try:
            self.centre.start()
            self.admit()
            thread.start()
            started.wait()
            yield
        finally:
            ended.set()
            if thread.ident:
                thread.join()
            self.stop()


def _on_loopback() -> list[BenchmarkResult]:
    from abaton.engines.flower.server_processes import open_transport
    from abaton.engines.flower.supervisor import free_port

    with tempfile.TemporaryDirectory() as temporary:
        processes = _NetworkProcesses(Path(temporary), "127.0.0.1", free_port(), SITES)
        with processes.running():
            note("network: round trips")
            with open_transport(processes.centre.folder) as transport:
                _wait_until(lambda: len(transport.nodes()) == len(SITES))
                results = [*_round_trips(processes, transport), *_malformed(processes, transport)]
            note("network: concurrent runs")
            results += _concurrent_runs(processes)
            note("network: kill -9")
            return [*results, *_kills(processes)]


def _round_trip(transport: Any, node: int, content: bytes = b"") -> Any:
    """Send a ping to a node and return the reply."""
    from abaton.engines.flower import Message, MessageLost

    message_id = transport.send(
        node, Message("query", {"run": "ping"}, {"content": content} if content else {}), 600.0
    )
    reply = None
    while reply is None or isinstance(reply, MessageLost):
        time.sleep(0.1)  # as the engine does
        reply = transport.collect([message_id]).get(message_id)
    return reply


def _round_trips(processes: _NetworkProcesses, transport: Any) -> list[BenchmarkResult]:
    north = processes.sites["north"]
    node = next(node for node, site in processes.centre.admitted_nodes().items() if site == "north")
    _round_trip(transport, node)
    pids = {"node": north.node_status()["pid"], "SuperLink": processes.centre._supervisors[0].pid}
    before, seconds = {name: _cpu(pid) for name, pid in pids.items()}, []
    for _ in range(ROUND_TRIPS):
        started_at = time.monotonic()
        _round_trip(transport, node)
        seconds.append(time.monotonic() - started_at)
    cost = {name: (_cpu(pid) - before[name]) / ROUND_TRIPS for name, pid in pids.items()}
    started_at, content = time.monotonic(), secrets.token_bytes(LARGE)
    same = _round_trip(transport, node, content).attachments["content"] == content
    large = time.monotonic() - started_at
    idle = {name: _cpu(pid) for name, pid in pids.items()}
    time.sleep(20.0)
    return [
        at_most(f"small round trip, median (before: {BEFORE['trip']} s)", median(seconds), 0.7, "s"),
        BenchmarkResult("small round trip, 90th percentile", quantiles(seconds, n=10)[-1], "s"),
        at_most(f"CPU of the node per message (before: {BEFORE['cpu']} s)", cost["node"], 0.13, "s"),
        BenchmarkResult("CPU of the SuperLink per message, four nodes polling", cost["SuperLink"], "s"),
        BenchmarkResult("20 MB, round trip", large if same else float("nan"), "s"),
        *(
            BenchmarkResult(f"CPU of the {name} while idle", (_cpu(pid) - idle[name]) / 20.0, "cores")
            for name, pid in pids.items()
        ),
    ]


def _cpu(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    """Return the peak memory of a process in megabytes."""
    (line,) = [x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def _malformed(processes: _NetworkProcesses, transport: Any) -> list[BenchmarkResult]:
    """Send malformed messages of a compromised centre; each must be refused and the node must continue."""
    from flwr.proto import message_pb2

    from abaton.engines.flower import Message
    from abaton.engines.flower import flower_protocol as wire

    node = next(node for node, site in processes.centre.admitted_nodes().items() if site == "north")
    pid = processes.sites["north"].node_status()["pid"]
    before, sent = _memory(pid), 0
    object_ids = iter(lambda: secrets.token_hex(32), "")

    def nested(tree: Any) -> None:
        for _ in range(60):
            tree = tree.children.add(object_id=next(object_ids))

    def many_children(tree: Any) -> None:
        for _ in range(wire.MAX_OBJECTS + 1):
            tree.children[0].children.add(object_id=next(object_ids))

    def two_branches(tree: Any) -> None:
        tree.children.append(message_pb2.ObjectTree(object_id=next(object_ids)))

    def deep_leaf(tree: Any) -> None:
        tree.children[0].children[0].children.add(object_id=next(object_ids))

    refused = 0
    for corrupt in (nested, many_children, two_branches, deep_leaf):
        metadata = wire.MessageMetadata(
            transport._runtime.run, wire.SUPERLINK_NODE_ID, node, time.time(), 60.0
        )
        outgoing = wire.encode_message(metadata, Message("query", {"n": sent}))
        corrupt(outgoing.tree)
        with _outgoing(wire, outgoing):
            message_id = transport.send(node, Message("query", {"n": sent}), 60.0)
        sent += bool(message_id)
        end = time.monotonic() + 30.0
        while message_id and time.monotonic() < end:
            reply = transport.collect([message_id]).get(message_id)
            if reply is not None:
                refused += getattr(reply, "reason", None) == "unknown_message"
                break
            time.sleep(0.05)
    alive = bool(_round_trip(transport, node)) and processes.sites["north"].node_status()["pid"] == pid
    return [
        at_least(f"malformed messages refused, of {sent}", refused, sent, ""),
        at_least("the same node continues after them", float(alive), 1, ""),
        at_most("memory that they add to the node", _memory(pid) - before, 100, "MB"),
    ]


@contextmanager
def _outgoing(wire: Any, outgoing: Any) -> Iterator[None]:
    """Replace the next outgoing message."""
    encode_message, wire.encode_message = wire.encode_message, lambda metadata, message: outgoing
    try:
        yield
    finally:
        wire.encode_message = encode_message


def _concurrent_runs(processes: _NetworkProcesses) -> list[BenchmarkResult]:
    """Measure concurrent runs with a transport each that send requests to all nodes."""
    from abaton.engines.flower.server_processes import open_transport

    replies: list[str] = []

    def send_requests(name: str) -> None:
        with open_transport(processes.centre.folder, name) as transport:
            nodes = list(transport.nodes())
            for _ in range(REQUESTS):
                replies.extend(_round_trip(transport, node).header["site"] for node in nodes)

    started_at = time.monotonic()
    threads = [threading.Thread(target=send_requests, args=(f"run-{i}",)) for i in range(RUNS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, wanted = time.monotonic() - started_at, RUNS * REQUESTS * len(SITES)
    return [
        at_least(
            f"replies of {len(SITES)} nodes to {RUNS} concurrent runs, of {wanted}", len(replies), wanted, ""
        ),
        BenchmarkResult(f"replies per second, {RUNS} concurrent runs", len(replies) / seconds, "1/s"),
    ]


def _kills(processes: _NetworkProcesses) -> list[BenchmarkResult]:
    """Measure the time until a controller that sends requests continuously receives replies again."""
    report = processes.folder / "ping.json"
    north = processes.sites["north"]
    processes.supervisor.append(processes.centre.start_controller("_network_app:ping", str(report), "ping"))
    _wait_until(report.exists)

    def progress() -> tuple[int, int, float]:
        pid, count, timestamp = json.loads(report.read_text())
        return pid, count, timestamp

    def recovery(pid: int | None, replies: int, has_restarted: Callable[[], bool] = lambda: True) -> float:
        """Return the seconds from a kill until a number of new replies."""
        assert pid is not None
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        _wait_until(has_restarted)
        count = progress()[1] if has_restarted() and progress()[2] > killed else 0
        _wait_until(lambda: progress()[2] > killed and progress()[1] >= count + replies)
        return time.time() - killed

    old = north.node_status()["pid"]
    node = recovery(old, len(SITES), lambda: north.node_status().get("pid", old) != old)
    first = progress()[0]
    controller = recovery(first, 1, lambda: progress()[0] != first)
    superlink = recovery(processes.centre._supervisors[0].pid, len(SITES))
    return [
        at_most(
            f"kill -9 of a node: seconds until a reply (before: {BEFORE['node']:.0f} s)", node, 10.0, "s"
        ),
        at_most(
            "kill -9 of the controller: seconds until a reply (before: 10 to 30 s)", controller, 15.0, "s"
        ),
        at_most("kill -9 of the SuperLink: seconds until a reply (before: 29 s)", superlink, 30.0, "s"),
    ]


# ---- a study ----------------------------------------------------------------------------------------------------


def _heart() -> list[BenchmarkResult]:
    """Run the heart study over loopback."""
    from abaton.store import Store
    from abaton.study import load_study
    from abaton.study_run import StudyOptions, run_study

    heart = _load("heart")
    if not (heart.DATA / "heart" / "processed.cleveland.data").is_file() or not heart.EXAMPLE.is_dir():
        note(
            "network: the heart study is skipped: it needs examples/heart, and the heart files in ABATON_DATA"
        )
        return []
    note("network: the heart study")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        heart._write(folder)
        study = load_study(heart.EXAMPLE / "study.toml")
        sites = sorted((folder / "sites").glob("*.toml"))
        options, started_at = StudyOptions(bootstrap_resamples=200), time.monotonic()
        with Store(folder / "store") as store:
            run = run_study(study, sites, store, options, now=datetime.now(UTC), engine="flower").row
            seconds, versions = time.monotonic() - started_at, len(store.models(run.run)) - 1
    rows = (run.result or {})["evaluation"]["rows"]
    (community,) = [row for row in rows if row["grouping"] == "all"]
    return [
        BenchmarkResult(f"heart study, four sites, end to end, {versions} versions", seconds, "s"),
        at_most("heart study, time per version", seconds / versions, 3.0, "s"),
        at_least(
            "heart study, AUROC of the community model", community["metrics"]["auroc"]["value"], 0.75, ""
        ),
    ]


# ---- slow links -------------------------------------------------------------------------------------------------


def _on_slow_links() -> list[BenchmarkResult]:
    hosts, app = _load("_hosts"), _load("_network_app")
    if why := hosts.why_not():
        return [BenchmarkResult(f"links of 1 Mbit/s are not measured: {why}", 0.0, "")]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hosts_network = hosts.Hosts(["centre", *SLOW_SITES])
        stack.callback(hosts_network.stop)
        hosts_network.start()
        processes = _NetworkProcesses(folder, hosts_network.addresses["centre"], 8443, SLOW_SITES)
        stack.callback(processes.stop)
        with hosts_network.on("centre"):
            processes.centre.start()
            processes.admit()
        for site, process in processes.sites.items():
            with hosts_network.on(site):
                process.start()
            hosts_network.slow(site, queue="256kb")
        run = partial(_run_on, hosts_network, processes, [hosts_network.space(site) for site in SLOW_SITES])
        return list(_by_codec(app, run))


def _run_on(
    hosts_network: Any, processes: _NetworkProcesses, spaces: Sequence[str], run: str, rounds: int
) -> list[VersionMark]:
    """Run the controller once; the run is named after its codec."""
    store, report = processes.folder / "store", processes.folder / f"{run}.json"
    store.mkdir(exist_ok=True)
    settings = {
        "run": run,
        "rounds": rounds,
        "spaces": list(spaces),
        "store": str(store),
        "report": str(report),
    }
    settings["centre"] = str(processes.centre.folder)
    note(f"network: 1 Mbit/s, {run}")
    with hosts_network.on("centre"):
        controller = processes.centre.start_controller(
            "_network_app:run_controller", json.dumps(settings), run
        )
    try:
        _wait_until(report.exists)
    finally:
        controller.stop()
    return [VersionMark(*row) for row in json.loads(report.read_text())]


def _by_codec(app: Any, run: Callable[[str, int], list[VersionMark]]) -> Iterator[BenchmarkResult]:
    times, sizes = {}, {}
    for codec in app.CODECS:
        first, *rest = run(codec, app.ROUNDS)
        sizes[codec] = rest[-1].sent + rest[-1].received - first.sent - first.received
        yield BenchmarkResult(f"1 Mbit/s, {codec}: bytes of the run, by the kernel", sizes[codec], "bytes")
        yield BenchmarkResult(f"1 Mbit/s, {codec}: last accuracy", rest[-1].accuracy, "")
        reached = [mark.timestamp - first.timestamp for mark in rest if mark.accuracy >= app.ACCURACY]
        if reached:
            times[codec] = reached[0]
            yield BenchmarkResult(f"1 Mbit/s, {codec}: time to accuracy {app.ACCURACY:g}", reached[0], "s")
        with suppress(KeyError, ZeroDivisionError):
            if codec != "raw":
                yield BenchmarkResult(f"time, raw / {codec}", times["raw"] / times[codec], "ratio")
                yield BenchmarkResult(f"bytes, raw / {codec}", sizes["raw"] / sizes[codec], "ratio")
