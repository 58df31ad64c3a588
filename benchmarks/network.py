"""A real network: what a message costs, what comes back how soon after kill -9, a whole study, and slow lines.

On loopback first, with TLS, node keys and the gate: a centre, its SuperLink and four sites, all on this machine. Then
the heart study of `examples/heart` from records to a judged model, over the same programs. Where the machine allows
network namespaces (root), the same model goes over lines of 1 Mbit/s by codec; bytes are the kernel's own count.
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

from abaton.benchmark import Measure, at_least, at_most
from abaton.cli.output import note

PATIENCE = 600.0
TRIPS, RUNS, ASKED = 60, 3, 5
SITES = ("north", "south", "eastern", "western-isles")
SLOW_SITES = SITES[:2]
LARGE = 20 << 20
BEFORE = {"trip": 5.1, "node": 62.0, "cpu": 1.3}
"""What was measured with Flower's own node and its process for every message, for the names of the rows."""


class Mark(NamedTuple):
    """Of a model: when it was there, what the sites had sent and received by then, and how good it is."""

    at: float
    sent: int
    received: int
    accuracy: float


def run() -> list[Measure]:
    """All measurements; none without Flower."""
    if importlib.util.find_spec("flwr") is None:
        return [Measure("not measured: Flower is missing", 0.0, "")]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path[1:]])
    made: list[Measure] = []
    for part in (_on_loopback, _heart, _on_slow_lines):
        for measure in part():
            note(
                f"network: {measure.name}: {measure.value:.4g} {measure.unit}"
            )  # the whole takes a quarter of an hour
            made.append(measure)
    return made


def _beside(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _until(so: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := so()):
        if time.monotonic() > end:
            raise TimeoutError("the network does not answer")
        time.sleep(0.02)
    return found


# ---- on loopback ------------------------------------------------------------------------------------------------


class _Programs:
    """A centre and its sites; one thread starts them and keeps them running."""

    def __init__(self, folder: Path, host: str, port: int, sites: Sequence[str]) -> None:
        from abaton.engines.flower.server_processes import Address, Centre
        from abaton.engines.flower.tls import issue
        from abaton.engines.flower.site_processes import Membership, SitePrograms

        self.folder, address = folder, Address(host, port)
        own = issue(folder / "certificates", address.hosts, datetime.now(UTC))
        self.centre = Centre(folder / "centre", address, own, lambda _: None)
        self.sites = {
            site: SitePrograms(
                Membership(site, str(address), own.authority, "_network_app:open_desk", folder / site),
                lambda _: None,
            )
            for site in sites
        }
        self.kept: list[Any] = []

    def admit(self) -> None:
        for site, programs in self.sites.items():
            programs.make_key()
            self.centre.admit(programs.public_key(), site)

    def watch(self) -> None:
        for programs in (self.centre, *self.sites.values(), *self.kept):
            programs.watch()

    def stop(self) -> None:
        for programs in (*self.kept, *self.sites.values(), self.centre):
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


def _on_loopback() -> list[Measure]:
    from abaton.engines.flower.server_processes import open_post
    from abaton.engines.flower.supervisor import free_port

    with tempfile.TemporaryDirectory() as place:
        programs = _Programs(Path(place), "127.0.0.1", free_port(), SITES)
        with programs.running():
            note("network: round trips")
            with open_post(programs.centre.folder) as post:
                _until(lambda: len(post.nodes()) == len(SITES))
                made = [*_trips(programs, post), *_hostile(programs, post)]
            note("network: several runs at once")
            made += _at_once(programs)
            note("network: kill -9")
            return [*made, *_kills(programs)]


def _asked(post: Any, node: int, blob: bytes = b"", kind: str = "query") -> Any:
    from abaton.engines.flower import Lost, Parcel

    letter = post.send(node, Parcel(kind, {"run": "ping"}, {"b": blob} if blob else {}), 600.0)
    answer = None
    while answer is None or isinstance(answer, Lost):
        time.sleep(0.1)  # as the engine does
        answer = post.collect([letter]).get(letter)
    return answer


def _trips(programs: _Programs, post: Any) -> list[Measure]:
    north = programs.sites["north"]
    node = next(node for node, site in programs.centre.admitted().items() if site == "north")
    _asked(post, node)
    pids = {"node": north.standing()["pid"], "SuperLink": programs.centre._kept[0].pid}
    before, seconds = {name: _cpu(pid) for name, pid in pids.items()}, []
    for _ in range(TRIPS):
        began = time.monotonic()
        _asked(post, node)
        seconds.append(time.monotonic() - began)
    cost = {name: (_cpu(pid) - before[name]) / TRIPS for name, pid in pids.items()}
    began, blob = time.monotonic(), secrets.token_bytes(LARGE)
    same = _asked(post, node, blob).blobs["b"] == blob
    large = time.monotonic() - began
    idle = {name: _cpu(pid) for name, pid in pids.items()}
    time.sleep(20.0)
    return [
        at_most(f"small round trip, median (before: {BEFORE['trip']} s)", median(seconds), 0.7, "s"),
        Measure("small round trip, 90 of 100 are quicker", quantiles(seconds, n=10)[-1], "s"),
        at_most(f"CPU of the node, a message (before: {BEFORE['cpu']} s)", cost["node"], 0.13, "s"),
        Measure("CPU of the SuperLink, a message, four nodes looking", cost["SuperLink"], "s"),
        Measure("20 MB there and back", large if same else float("nan"), "s"),
        *(
            Measure(f"CPU of the {name} while nothing happens", (_cpu(pid) - idle[name]) / 20.0, "cores")
            for name, pid in pids.items()
        ),
    ]


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    """Megabytes that a process has had at most."""
    (line,) = [x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def _hostile(programs: _Programs, post: Any) -> list[Measure]:
    """Messages of a centre that was taken over: every form but ours. Each is refused, and the node goes on."""
    from flwr.proto import message_pb2

    from abaton.engines.flower import Parcel, flower_protocol as wire

    node = next(node for node, site in programs.centre.admitted().items() if site == "north")
    pid = programs.sites["north"].standing()["pid"]
    before, sent = _memory(pid), 0
    named = iter(lambda: secrets.token_hex(32), "")

    def spoilt(made: wire.Posted, spoil: Callable[[Any], None]) -> wire.Posted:
        spoil(made.tree)
        return made

    def deep(tree: Any) -> None:
        for _ in range(60):
            tree = tree.children.add(object_id=next(named))

    def wide(tree: Any) -> None:
        for _ in range(wire.MOST_LEAVES + 1):
            tree.children[0].children.add(object_id=next(named))

    def branched(tree: Any) -> None:
        tree.children.append(message_pb2.ObjectTree(object_id=next(named)))

    def turning(tree: Any) -> None:
        tree.children[0].children[0].children.add(object_id=next(named))

    refused = 0
    for spoil in (deep, wide, branched, turning):
        head = wire.Head(post._runtime.run, wire.CENTRE, node, time.time(), 60.0)
        made = spoilt(wire.posted(head, Parcel("query", {"n": sent})), spoil)
        with _posting(wire, made):
            letter = post.send(node, Parcel("query", {"n": sent}), 60.0)
        sent += bool(letter)
        end = time.monotonic() + 30.0
        while letter and time.monotonic() < end:
            answer = post.collect([letter]).get(letter)
            if answer is not None:
                refused += getattr(answer, "reason", None) == "unknown message"
                break
            time.sleep(0.05)
    alive = bool(_asked(post, node)) and programs.sites["north"].standing()["pid"] == pid
    return [
        at_least(f"hostile trees refused, of {sent}", refused, sent, ""),
        at_least("the same node goes on after them", float(alive), 1, ""),
        at_most("memory of the node that they cost", _memory(pid) - before, 100, "MB"),
    ]


@contextmanager
def _posting(wire: Any, made: Any) -> Iterator[None]:
    """Let the next message be this one."""
    honest, wire.posted = wire.posted, lambda head, parcel: made
    try:
        yield
    finally:
        wire.posted = honest


def _at_once(programs: _Programs) -> list[Measure]:
    """Several runs, each with a post of its own, ask all nodes at the same time."""
    from abaton.engines.flower.server_processes import open_post

    answered: list[str] = []

    def live(name: str) -> None:
        with open_post(programs.centre.folder, name) as post:
            nodes = list(post.nodes())
            for _ in range(ASKED):
                answered.extend(_asked(post, node).about["site"] for node in nodes)

    began = time.monotonic()
    threads = [threading.Thread(target=live, args=(f"run-{i}",)) for i in range(RUNS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, wanted = time.monotonic() - began, RUNS * ASKED * len(SITES)
    return [
        at_least(
            f"answers of {len(SITES)} nodes to {RUNS} runs at once, of {wanted}", len(answered), wanted, ""
        ),
        Measure(f"answers a second, {RUNS} runs at once", len(answered) / seconds, "1/s"),
    ]


def _kills(programs: _Programs) -> list[Measure]:
    """How long it takes until a controller that asks all the time is answered again."""
    report = programs.folder / "ping.json"
    north = programs.sites["north"]
    programs.kept.append(programs.centre.conduct("_network_app:ping", str(report), "ping"))
    _until(report.exists)

    def told() -> tuple[int, int, float]:
        pid, count, at = json.loads(report.read_text())
        return pid, count, at

    def back(pid: int, enough: int, again: Callable[[], bool] = lambda: True) -> float:
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        _until(again)
        count = told()[1] if again() and told()[2] > killed else 0
        _until(lambda: told()[2] > killed and told()[1] >= count + enough)
        return time.time() - killed

    old = north.standing()["pid"]
    node = back(old, len(SITES), lambda: north.standing().get("pid", old) != old)
    first = told()[0]
    controller = back(first, 1, lambda: told()[0] != first)
    link = programs.centre._kept[0].pid
    superlink = back(link, len(SITES))
    return [
        at_most(f"kill -9 of a node: answered again (before: {BEFORE['node']:.0f} s)", node, 10.0, "s"),
        at_most("kill -9 of the controller: answered again (before: 10 to 30 s)", controller, 15.0, "s"),
        at_most("kill -9 of the SuperLink: answered again (before: 29 s)", superlink, 30.0, "s"),
    ]


# ---- a study ----------------------------------------------------------------------------------------------------


def _heart() -> list[Measure]:
    """The heart study over loopback, from records to a judged model; beside it the same on a simulated clock."""
    from abaton.federation import StudyOptions, run_study
    from abaton.store import Store
    from abaton.study import load_study

    heart = _beside("heart")
    if not (heart.DATA / "heart" / "processed.cleveland.data").is_file() or not heart.EXAMPLE.is_dir():
        note(
            "network: the heart study is left out: it needs examples/heart, and the heart files in ABATON_DATA"
        )
        return []
    note("network: the heart study")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        heart._write(folder)
        study = load_study(heart.EXAMPLE / "study.toml")
        sites = sorted((folder / "sites").glob("*.toml"))
        options, began = StudyOptions(resamples=200), time.monotonic()
        with Store(folder / "store") as store:
            row = run_study(study, sites, store, options, now=datetime.now(UTC), engine="flower").row
            seconds, versions = time.monotonic() - began, len(store.models(row.run)) - 1
    (line,) = [each for each in (row.result or {})["evaluation"]["lines"] if each["of"] == "all"]
    return [
        Measure(f"heart study, four sites, end to end, {versions} versions", seconds, "s"),
        at_most("heart study, a version", seconds / versions, 3.0, "s"),
        at_least("heart study, AUROC of the community model", line["measures"]["auroc"]["value"], 0.75, ""),
    ]


# ---- slow lines -------------------------------------------------------------------------------------------------


def _on_slow_lines() -> list[Measure]:
    hosts, app = _beside("_hosts"), _beside("_network_app")
    if why := hosts.why_not():
        return [Measure(f"lines of 1 Mbit/s are not measured: {why}", 0.0, "")]
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
        for site, each in programs.sites.items():
            with net.on(site):
                each.start()
            net.slow(site, queue="256kb")
        live = partial(_run_on, net, programs, [net.space(site) for site in SLOW_SITES])
        return list(_by_codec(app, live))


def _run_on(net: Any, programs: _Programs, spaces: Sequence[str], run: str, rounds: int) -> list[Mark]:
    """A run that is called after its codec."""
    store, report = programs.folder / "store", programs.folder / f"{run}.json"
    store.mkdir(exist_ok=True)
    told = {"run": run, "rounds": rounds, "spaces": list(spaces), "store": str(store), "report": str(report)}
    told["centre"] = str(programs.centre.folder)
    note(f"network: 1 Mbit/s, {run}")
    with net.on("centre"):
        controller = programs.centre.conduct("_network_app:conduct", json.dumps(told), run)
    try:
        _until(report.exists)
    finally:
        controller.stop()
    return [Mark(*row) for row in json.loads(report.read_text())]


def _by_codec(app: Any, live: Callable[[str, int], list[Mark]]) -> Iterator[Measure]:
    times, sizes = {}, {}
    for codec in app.CODECS:
        first, *rest = live(codec, app.ROUNDS)
        sizes[codec] = rest[-1].sent + rest[-1].received - first.sent - first.received
        yield Measure(f"1 Mbit/s, {codec}: bytes of the run, by the kernel", sizes[codec], "bytes")
        yield Measure(f"1 Mbit/s, {codec}: last accuracy", rest[-1].accuracy, "")
        reached = [mark.at - first.at for mark in rest if mark.accuracy >= app.ACCURACY]
        if reached:
            times[codec] = reached[0]
            yield Measure(f"1 Mbit/s, {codec}: time to accuracy {app.ACCURACY:g}", reached[0], "s")
        with suppress(KeyError, ZeroDivisionError):
            if codec != "raw":
                yield Measure(f"time, raw / {codec}", times["raw"] / times[codec], "ratio")
                yield Measure(f"bytes, raw / {codec}", sizes["raw"] / sizes[codec], "ratio")
