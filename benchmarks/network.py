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

PATIENCE = 600.0
TRIPS, RUNS, REQUESTS = 60, 3, 5
SITES = ("north", "south", "eastern", "western-isles")
SLOW_SITES = SITES[:2]
LARGE = 20 << 20
BEFORE = {"trip": 5.1, "node": 62.0, "cpu": 1.3}
"""What was measured with Flower's own node and its process for every message, for the names of the rows."""


class Mark(NamedTuple):
    """For a version: time, bytes that the sites had sent and received, and accuracy."""

    at: float
    sent: int
    received: int
    accuracy: float


def run() -> list[BenchmarkResult]:
    """Run all measurements; none without Flower."""
    if importlib.util.find_spec("flwr") is None:
        return [BenchmarkResult("not measured: Flower is missing", 0.0, "")]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path[1:]])
    results: list[BenchmarkResult] = []
    for part in (_on_loopback, _heart, _on_slow_lines):
        for measure in part():
            note(
                f"network: {measure.name}: {measure.value:.4g} {measure.unit}"
            )  # the whole takes a quarter of an hour
            results.append(measure)
    return results


def _beside(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _until(so: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (value := so()):
        if time.monotonic() > end:
            raise TimeoutError("the network does not answer")
        time.sleep(0.02)
    return value


# ---- on loopback ------------------------------------------------------------------------------------------------


class _Programs:
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
                SiteMembership(site, str(address), own.authority, "_network_app:open_desk", folder / site),
                lambda _: None,
            )
            for site in sites
        }
        self.supervisor: list[Any] = []

    def admit(self) -> None:
        for site, programs in self.sites.items():
            programs.make_key()
            self.centre.admit(programs.public_key(), site)

    def watch(self) -> None:
        for programs in (self.centre, *self.sites.values(), *self.supervisor):
            programs.watch()

    def stop(self) -> None:
        for programs in (*self.supervisor, *self.sites.values(), self.centre):
            programs.stop()

    @contextmanager
    def running(self) -> Iterator[None]:
        started, ended = threading.Event(), threading.Event()

        def tend() -> None:
            for programs in self.sites.values():
                programs.start()
            started.set()
            while not ended.wait(0.05):
                self.watch()

        thread = threading.Thread(target=tend)
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
        programs = _Programs(Path(temporary), "127.0.0.1", free_port(), SITES)
        with programs.running():
            note("network: round trips")
            with open_transport(programs.centre.folder) as post:
                _until(lambda: len(post.nodes()) == len(SITES))
                results = [*_trips(programs, post), *_hostile(programs, post)]
            note("network: several runs at once")
            results += _at_once(programs)
            note("network: kill -9")
            return [*results, *_kills(programs)]


def _round_trips(post: Any, node: int, blob: bytes = b"", kind: str = "query") -> Any:
    from abaton.engines.flower import Message, MessageLost

    message_id = post.send(node, Message(kind, {"run": "ping"}, {"b": blob} if blob else {}), 600.0)
    answer = None
    while answer is None or isinstance(answer, MessageLost):
        time.sleep(0.1)  # as the engine does
        answer = post.collect([message_id]).get(message_id)
    return answer


def _trips(programs: _Programs, post: Any) -> list[BenchmarkResult]:
    north = programs.sites["north"]
    node = next(node for node, site in programs.centre.admitted_nodes().items() if site == "north")
    _round_trips(post, node)
    pids = {"node": north.node_status()["pid"], "SuperLink": programs.centre._supervisors[0].pid}
    before, seconds = {name: _cpu(pid) for name, pid in pids.items()}, []
    for _ in range(TRIPS):
        began = time.monotonic()
        _round_trips(post, node)
        seconds.append(time.monotonic() - began)
    cost = {name: (_cpu(pid) - before[name]) / TRIPS for name, pid in pids.items()}
    began, blob = time.monotonic(), secrets.token_bytes(LARGE)
    same = _round_trips(post, node, blob).blobs["b"] == blob
    large = time.monotonic() - began
    idle = {name: _cpu(pid) for name, pid in pids.items()}
    time.sleep(20.0)
    return [
        at_most(f"small round trip, median (before: {BEFORE['trip']} s)", median(seconds), 0.7, "s"),
        BenchmarkResult("small round trip, 90 of 100 are quicker", quantiles(seconds, n=10)[-1], "s"),
        at_most(f"CPU of the node, a message (before: {BEFORE['cpu']} s)", cost["node"], 0.13, "s"),
        BenchmarkResult("CPU of the SuperLink, a message, four nodes looking", cost["SuperLink"], "s"),
        BenchmarkResult("20 MB there and back", large if same else float("nan"), "s"),
        *(
            BenchmarkResult(
                f"CPU of the {name} while nothing happens", (_cpu(pid) - idle[name]) / 20.0, "cores"
            )
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


def _hostile(programs: _Programs, post: Any) -> list[BenchmarkResult]:
    """Send malformed messages of a compromised centre; each must be refused and the node must continue."""
    from flwr.proto import message_pb2

    from abaton.engines.flower import Message
    from abaton.engines.flower import flower_protocol as wire

    node = next(node for node, site in programs.centre.admitted_nodes().items() if site == "north")
    pid = programs.sites["north"].node_status()["pid"]
    before, sent = _memory(pid), 0
    named = iter(lambda: secrets.token_hex(32), "")

    def spoilt(outgoing: wire.OutgoingMessage, spoil: Callable[[Any], None]) -> wire.OutgoingMessage:
        spoil(outgoing.tree)
        return outgoing

    def deep(tree: Any) -> None:
        for _ in range(60):
            tree = tree.children.add(object_id=next(named))

    def many_children(tree: Any) -> None:
        for _ in range(wire.MAX_OBJECTS + 1):
            tree.children[0].children.add(object_id=next(named))

    def branched(tree: Any) -> None:
        tree.children.append(message_pb2.ObjectTree(object_id=next(named)))

    def turning(tree: Any) -> None:
        tree.children[0].children[0].children.add(object_id=next(named))

    refused = 0
    for spoil in (deep, many_children, branched, turning):
        head = wire.MessageMetadata(post._runtime.run, wire.SUPERLINK_NODE_ID, node, time.time(), 60.0)
        outgoing = spoilt(wire.encode_message(head, Message("query", {"n": sent})), spoil)
        with _posting(wire, outgoing):
            message_id = post.send(node, Message("query", {"n": sent}), 60.0)
        sent += bool(message_id)
        end = time.monotonic() + 30.0
        while message_id and time.monotonic() < end:
            answer = post.collect([message_id]).get(message_id)
            if answer is not None:
                refused += getattr(answer, "reason", None) == "unknown_message"
                break
            time.sleep(0.05)
    alive = bool(_round_trips(post, node)) and programs.sites["north"].node_status()["pid"] == pid
    return [
        at_least(f"hostile trees refused, of {sent}", refused, sent, ""),
        at_least("the same node goes on after them", float(alive), 1, ""),
        at_most("memory of the node that they cost", _memory(pid) - before, 100, "MB"),
    ]


@contextmanager
def _posting(wire: Any, outgoing: Any) -> Iterator[None]:
    """Replace the next outgoing message."""
    honest, wire.posted = wire.posted, lambda head, message: outgoing
    try:
        yield
    finally:
        wire.posted = honest


def _at_once(programs: _Programs) -> list[BenchmarkResult]:
    """Measure concurrent runs with a transport each that send requests to all nodes."""
    from abaton.engines.flower.server_processes import open_transport

    answered: list[str] = []

    def live(name: str) -> None:
        with open_transport(programs.centre.folder, name) as post:
            nodes = list(post.nodes())
            for _ in range(REQUESTS):
                answered.extend(_round_trips(post, node).about["site"] for node in nodes)

    began = time.monotonic()
    threads = [threading.Thread(target=live, args=(f"run-{i}",)) for i in range(RUNS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, wanted = time.monotonic() - began, RUNS * REQUESTS * len(SITES)
    return [
        at_least(
            f"answers of {len(SITES)} nodes to {RUNS} runs at once, of {wanted}", len(answered), wanted, ""
        ),
        BenchmarkResult(f"answers a second, {RUNS} runs at once", len(answered) / seconds, "1/s"),
    ]


def _kills(programs: _Programs) -> list[BenchmarkResult]:
    """Measure the time until a controller that sends requests continuously receives replies again."""
    report = programs.folder / "ping.json"
    north = programs.sites["north"]
    programs.supervisor.append(programs.centre.start_controller("_network_app:ping", str(report), "ping"))
    _until(report.exists)

    def progress() -> tuple[int, int, float]:
        pid, count, at = json.loads(report.read_text())
        return pid, count, at

    def back(pid: int, enough: int, again: Callable[[], bool] = lambda: True) -> float:
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        _until(again)
        count = progress()[1] if again() and progress()[2] > killed else 0
        _until(lambda: progress()[2] > killed and progress()[1] >= count + enough)
        return time.time() - killed

    old = north.node_status()["pid"]
    node = back(old, len(SITES), lambda: north.node_status().get("pid", old) != old)
    first = progress()[0]
    controller = back(first, 1, lambda: progress()[0] != first)
    link = programs.centre._supervisors[0].pid
    superlink = back(link, len(SITES))
    return [
        at_most(f"kill -9 of a node: answered again (before: {BEFORE['node']:.0f} s)", node, 10.0, "s"),
        at_most("kill -9 of the controller: answered again (before: 10 to 30 s)", controller, 15.0, "s"),
        at_most("kill -9 of the SuperLink: answered again (before: 29 s)", superlink, 30.0, "s"),
    ]


# ---- a study ----------------------------------------------------------------------------------------------------


def _heart() -> list[BenchmarkResult]:
    """Run the heart study over loopback, and the same under the virtual clock."""
    from abaton.store import Store
    from abaton.study import load_study
    from abaton.study_run import StudyOptions, run_study

    heart = _beside("heart")
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
        options, began = StudyOptions(bootstrap_resamples=200), time.monotonic()
        with Store(folder / "store") as store:
            row = run_study(study, sites, store, options, now=datetime.now(UTC), engine="flower").row
            seconds, versions = time.monotonic() - began, len(store.models(row.run)) - 1
    (line,) = [
        line_item for line_item in (row.result or {})["evaluation"]["lines"] if line_item["of"] == "all"
    ]
    return [
        BenchmarkResult(f"heart study, four sites, end to end, {versions} versions", seconds, "s"),
        at_most("heart study, a version", seconds / versions, 3.0, "s"),
        at_least("heart study, AUROC of the community model", line["measures"]["auroc"]["value"], 0.75, ""),
    ]


# ---- slow lines -------------------------------------------------------------------------------------------------


def _on_slow_lines() -> list[BenchmarkResult]:
    hosts, app = _beside("_hosts"), _beside("_network_app")
    if why := hosts.why_not():
        return [BenchmarkResult(f"lines of 1 Mbit/s are not measured: {why}", 0.0, "")]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        net = hosts.Hosts(["centre", *SLOW_SITES])
        stack.callback(net.stop)
        net.start()
        programs = _Programs(folder, net.addresses["centre"], 8443, SLOW_SITES)
        stack.callback(programs.stop)
        with net.on("centre"):
            programs.centre.start()
            programs.admit()
        for site, process in programs.sites.items():
            with net.on(site):
                process.start()
            net.slow(site, queue="256kb")
        live = partial(_run_on, net, programs, [net.space(site) for site in SLOW_SITES])
        return list(_by_codec(app, live))


def _run_on(net: Any, programs: _Programs, spaces: Sequence[str], run: str, rounds: int) -> list[Mark]:
    """Run once; the run is named after its codec."""
    store, report = programs.folder / "store", programs.folder / f"{run}.json"
    store.mkdir(exist_ok=True)
    settings = {
        "run": run,
        "rounds": rounds,
        "spaces": list(spaces),
        "store": str(store),
        "report": str(report),
    }
    settings["centre"] = str(programs.centre.folder)
    note(f"network: 1 Mbit/s, {run}")
    with net.on("centre"):
        controller = programs.centre.start_controller("_network_app:conduct", json.dumps(settings), run)
    try:
        _until(report.exists)
    finally:
        controller.stop()
    return [Mark(*row) for row in json.loads(report.read_text())]


def _by_codec(app: Any, live: Callable[[str, int], list[Mark]]) -> Iterator[BenchmarkResult]:
    times, sizes = {}, {}
    for codec in app.CODECS:
        first, *rest = live(codec, app.ROUNDS)
        sizes[codec] = rest[-1].sent + rest[-1].received - first.sent - first.received
        yield BenchmarkResult(f"1 Mbit/s, {codec}: bytes of the run, by the kernel", sizes[codec], "bytes")
        yield BenchmarkResult(f"1 Mbit/s, {codec}: last accuracy", rest[-1].accuracy, "")
        reached = [mark.at - first.at for mark in rest if mark.accuracy >= app.ACCURACY]
        if reached:
            times[codec] = reached[0]
            yield BenchmarkResult(f"1 Mbit/s, {codec}: time to accuracy {app.ACCURACY:g}", reached[0], "s")
        with suppress(KeyError, ZeroDivisionError):
            if codec != "raw":
                yield BenchmarkResult(f"time, raw / {codec}", times["raw"] / times[codec], "ratio")
                yield BenchmarkResult(f"bytes, raw / {codec}", sizes["raw"] / sizes[codec], "ratio")
