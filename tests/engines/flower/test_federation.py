"""A real federation: Flower's programs, four sites with two nodes each, TLS and node keys, and what can go wrong."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.engines.flower import federation as study

from abaton.control import Arrived, Failed, Noted, Scored, from_row
from abaton.control.community import CommunityModel
from abaton.engines import Driver, LocalEngine, Replayed, Task, TrainTask, VirtualEngine
from abaton.engines.flower.centre import Address, Centre
from abaton.engines.flower.certificates import issue, node_key
from abaton.engines.flower.nodes import ROLES, Membership, Nodes, free_port
from abaton.learning import Learner
from abaton.store import Journal, Store

pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
pytestmark = [pytest.mark.network, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = "tests.engines.flower.federation"
PATIENCE = 1500.0


class Federation:
    """The centre's and the sites' programs, started once for all tests here."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, []
        certificates = issue(folder / "certificates", ["127.0.0.1"], datetime.now(UTC))
        address = Address("127.0.0.1", free_port())
        self.centre = Centre(folder / "centre", address, certificates, self.said.append)
        self.sites = {
            site: Nodes(
                Membership(
                    site,
                    str(address),
                    certificates.authority,
                    f"{PROGRAMS}:open_learner",
                    folder / site,
                    study.STUDY,
                ),
                self.said.append,
            )
            for site in study.SITES
        }

    def start(self) -> None:
        self.centre.start()
        for site, nodes in self.sites.items():
            for role in ROLES:
                _, public = node_key(nodes.key(role))
                self.centre.admit(public, site, role)
            nodes.start()

    def stop(self) -> None:
        for nodes in self.sites.values():
            nodes.stop()
        self.centre.stop()

    def submit(self, run: str) -> str:
        about = {"run": run, "store": str(self.folder / run), "centre": str(self.centre.folder)}
        return self.centre.submit(f"{PROGRAMS}:conduct", json.dumps(about))

    def tend(self, until: Callable[[], bool]) -> None:
        """Keep everything running until something is so."""
        end = time.monotonic() + PATIENCE
        while not until():
            assert time.monotonic() < end, self.said
            self.centre.watch()
            for nodes in self.sites.values():
                nodes.watch()
            time.sleep(0.5)

    def versions(self, run: str) -> int:
        folder = self.folder / run
        if not (folder / "abaton.db").exists():
            return -1
        with Store(folder) as store:
            return len(store.models(run)) - 1


@pytest.fixture(scope="module")
def federation(tmp_path_factory) -> Iterator[Federation]:
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT}"
    made = Federation(tmp_path_factory.mktemp("federation"))
    try:
        made.start()
        yield made
    finally:
        made.stop()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def events(journal: Journal) -> list:
    return [from_row(*row) for row in journal.rows()]


def digests(store: Store, run: str) -> list[str]:
    return [model.digest for model in store.models(run)]


def alone(run: str) -> tuple[dict, CommunityModel]:
    return {site: study.open_learner(site) for site in study.SITES}, study.community(run)


def test_rounds_give_the_same_digests_on_virtual_local_and_flower(federation, tmp_path):
    federation.submit("rounds")
    federation.tend(lambda: federation.versions("rounds") == study.rules("rounds").rounds)
    with Store(federation.folder / "rounds") as store:
        expected = digests(store, "rounds")
    with Store(tmp_path) as store:
        for name in ("virtual", "local"):
            journal = Journal(store, name)
            learners, community = alone("rounds")
            engine = (
                VirtualEngine(learners, {}, keep=journal.payloads.put, seed=0)
                if name == "virtual"
                else LocalEngine(
                    learners, keep=journal.payloads.put, check=study.check, states=tmp_path / "states"
                )
            )
            try:
                Driver(study.rules("rounds"), community, engine, journal).run()
            finally:
                engine.close()
            assert digests(store, name) == expected


def test_an_asynchronous_run_survives_its_node_its_controller_and_its_superlink(federation, tmp_path):
    run, folder = "async", federation.folder / "async"
    federation.submit(run)
    federation.tend(lambda: federation.versions(run) >= 2)
    os.killpg(federation.sites["b"].keepers["train"].pid, signal.SIGKILL)
    federation.tend(lambda: federation.versions(run) >= 6)
    os.kill(int((folder / "controller.pid").read_text()), signal.SIGKILL)
    federation.submit(run)
    federation.tend(lambda: federation.versions(run) >= 10)
    os.kill(federation.centre.link.pid, signal.SIGKILL)
    federation.tend(lambda: federation.versions(run) == study.rules(run).rounds)

    with Store(folder) as store:
        journal = Journal(store, run)
        told, expected = events(journal), digests(store, run)
        answered = [e.task for e in told if isinstance(e, Arrived | Scored | Failed)]
        assert len(answered) == len(set(answered)), "nothing counts twice"
        assert any("refuses a node for about a minute" in line for line in federation.said)
        assert any(line.startswith("superlink ended") for line in federation.said)
        words = {(e.learner, e.what) for e in told if isinstance(e, Noted)}
        assert ("b", "node is back") in words, "the journal explains what happened"
        tasks = replayed(journal, told, expected, tmp_path)
        check_memory(journal, told, tasks)


class Told(Replayed):
    """A journal told to a new controller, with the tasks that it asks for."""

    tasks: dict[str, Task]

    def submit(self, tasks: Sequence[Task]) -> None:
        self.tasks |= {task.key: task for task in tasks}
        super().submit(tasks)


def replayed(journal: Journal, told: list, expected: list[str], folder: Path) -> dict[str, Task]:
    """The journal alone gives the same versions; the tasks that were asked for on the way."""
    with Store(folder) as fresh:
        again = Journal(fresh, "again")
        for event in told:
            if isinstance(event, Arrived):
                again.payloads.put(journal.payloads.get(event.payload))
        engine = Told(VirtualEngine({}, {}, keep=again.payloads.put, seed=0), told)
        engine.tasks = {}
        Driver(study.rules("async"), study.community("async"), engine, again).run()
        assert digests(fresh, "again") == expected
        return engine.tasks


def check_memory(journal: Journal, told: list, tasks: dict[str, Task]) -> None:
    """Each site's memory moved once for each of its tasks, in spite of all that happened."""
    learners, _ = alone("async")
    for event in told:
        if isinstance(event, Arrived):
            task = tasks[event.task]
            assert isinstance(task, TrainTask)
            made = Learner.train(learners[event.learner], task.key, task.version, task.model, task.settings)
            assert made.payload == journal.payloads.get(event.payload)
