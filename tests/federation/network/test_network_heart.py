"""The heart study on a real network, start to end: a host for the centre and each hospital, and much that breaks.

One run, asynchronous, weighted by validation, with a compressing codec, from FHIR records, over TLS with node keys.
While it trains a node is killed, a hospital's cable is pulled for more than a minute, another has a lossy line of
1 Mbit/s, the controller is killed, and so is the SuperLink. Each test asks what one of these did to the run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.federation.network.commands import Federation
from tests.federation.network.heart import SITES, found, secrets_of, write_hospitals
from tests.federation.network.hosts import hosts

from abaton.controller import Arrived, Event, Joined, Noted, community_model, from_row
from abaton.engines import Driver, Replayed, VirtualEngine
from abaton.federation import Reading, federate, read_sites
from abaton.site import load_site
from abaton.store import Journal, RunRow, Store
from abaton.study import Study

pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.shared,
]

TRAINS_FOR = 420  # long enough for everything below on a machine that others use, too
CUT = 70.0
GONE, BACK = "node is gone, its task waits", "node is back"


@dataclass
class Life:
    """A run that has been lived, and what there is to look at; `versions` were there as the SuperLink was killed."""

    folder: Path
    study: Study
    row: RunRow
    events: list[Event]
    lost: int
    how: str
    versions: int
    said: dict[str, str] = field(default_factory=dict)

    def notes(self, learner: str) -> list[str]:
        return [e.what for e in self.events if isinstance(e, Noted) and e.learner == learner]

    def trained_again(self, learner: str) -> bool:
        """Whether a site was gone, came back (to a new controller it joins) and sent an update."""
        mine = [e for e in self.events if getattr(e, "learner", None) == learner]
        gone = [i for i, e in enumerate(mine) if isinstance(e, Noted) and e.what == GONE]
        rest = mine[gone[0] :] if gone else []
        back = [i for i, e in enumerate(rest) if isinstance(e, Joined) or getattr(e, "what", "") == BACK]
        return bool(back) and any(isinstance(e, Arrived) for e in rest[back[0] :])


@pytest.fixture(scope="module")
def life(shared, tmp_path_factory) -> Life:
    folder = tmp_path_factory.mktemp("heart")
    study = write_hospitals(shared, folder, {"rounds = 140": f"rounds = 1000\nseconds = {TRAINS_FOR}"})
    with hosts(["centre", *SITES]) as net, net.captured("centre", folder / "wire"):
        federation = Federation(net, folder, SITES)
        try:
            how = net.slow("long-beach", queue="1600b", loss="2%")
            federation.serve("--host", net.addresses["centre"], "--port", "8443")
            for name in SITES:
                federation.join(name, folder / "sites" / f"{name}.toml")
            made = lived(federation, study, how)
        finally:
            federation.stop()
    return made


def lived(federation: Federation, study: Study, how: str) -> Life:
    net, folder = federation.net, federation.folder
    federation.until(lambda: federation.version() >= 1, "the first version")
    killed = time.time()
    federation.kill("abaton.engines.flower.site_node", folder / "members" / "hungary")
    standing = folder / "members" / "hungary" / "node" / "standing.json"
    federation.until(
        lambda: standing.stat().st_mtime > killed and '"admitted"' in standing.read_text(), "the node is back"
    )
    net.cut("switzerland")
    mended = time.monotonic() + CUT
    words = "switzerland node is gone, its task waits"
    federation.until(lambda: words in federation.said("centre"), words)
    federation.until(lambda: time.monotonic() > mended, "the cable")
    net.mend("switzerland")
    federation.kill("abaton.engines.flower.server_processes", federation.store)
    federation.until(lambda: "is resumed" in federation.said("centre"), "a new controller")
    before = federation.version()
    federation.until(lambda: federation.version() > before, "a version by the new controller")
    versions = federation.version()
    federation.kill("flower-superlink", federation.store)
    run = federation.ended()
    with Store(federation.store) as store:
        row = store.run(run)
        events = [from_row(*each) for each in Journal(store, run).rows()]
    said = {host: federation.said(host) for host in federation.programs}
    return Life(folder, study, row, events, net.lost("long-beach"), how, versions, said)


def test_the_run_ends_with_a_model_that_is_right(life):
    assert life.row.status == "finished"
    assert set(life.row.recipe["tables"]) == set(SITES)
    (line,) = [each for each in life.row.result["evaluation"]["lines"] if each["of"] == "all"]
    assert line["sites"] == 4
    assert line["measures"]["auroc"]["value"] > 0.75
    assert all(each["bytes_up"] < each["uncompressed"] for each in life.row.result["traffic"].values())


def test_a_killed_node_comes_back_and_trains_on(life):
    assert "hungary/node ended (code -9) and is started again" in life.said["hungary"]
    assert GONE not in life.notes("hungary"), "it was back before anybody missed it"
    assert [e for e in life.events if isinstance(e, Arrived) and e.learner == "hungary"][-1].at > 60.0


def test_a_hospital_that_was_cut_off_for_a_minute_trains_on(life):
    assert GONE in life.notes("switzerland")
    assert life.trained_again("switzerland")


def test_a_killed_controller_is_started_again_and_goes_on(life):
    assert "the controller was started again" in life.notes("")
    assert "controller ended (code -9) and is started again" in life.said["centre"]


def test_a_killed_superlink_is_started_again_from_its_database(life):
    assert "superlink ended (code -9)" in life.said["centre"]
    arrived = [event.learner for event in life.events if isinstance(event, Arrived)]
    later = arrived[
        life.versions + 2 * len(SITES) :
    ]  # those before may have reached the centre before the kill
    assert set(later) == set(SITES), "it may be back before anybody misses it, but everybody trains on"


def test_a_lossy_line_of_one_megabit_only_takes_longer(life):
    assert life.lost > 0, life.how
    assert any(isinstance(e, Arrived) and e.learner == "long-beach" for e in life.events)


def test_nothing_of_a_record_is_on_the_wire(life):
    wire = life.folder / "wire"
    data = wire.read_bytes()
    assert data.count(b"\x17\x03\x03") > 1000, "TLS was captured"
    assert b"POST /" not in data, "and nothing beside it"
    assert found(list(secrets_of(life.folder, life.study)), wire) == set()


def test_nothing_of_a_record_is_at_the_centre_where_tls_ends(life):
    secrets = list(secrets_of(life.folder, life.study))
    samples = list((life.folder / "sampled").iterdir())
    assert found([b"ConfigRecord"], *samples), "messages were seen on their way"
    assert found(secrets, *samples) == set()
    assert found(secrets, *(life.folder / "store").rglob("*")) == set()
    assert found(secrets, *(life.folder / "members").glob("*/*.node")) == set()


def test_sites_forget_the_rows_of_a_run_that_has_ended(life):
    assert not list((life.folder / "members").glob("*/runs/*/*.safetensors"))


class Told(Replayed):
    """A journal told to a new controller, with the tasks that it asks for."""

    def submit(self, tasks) -> None:
        self.tasks = {**getattr(self, "tasks", {}), **{task.key: task for task in tasks}}
        super().submit(tasks)


def test_the_journal_alone_gives_the_same_versions_and_every_task_counted_once(life, tmp_path):
    learning, seed = life.study.learning, 1990
    readings: list[Reading] = read_sites(
        life.study, [load_site(life.folder / "sites" / f"{name}.toml") for name in SITES], datetime.now(UTC)
    )
    made = federate(life.study, readings, seed)
    assert {member.name for member in made.each} == set(life.row.recipe["tables"])
    model = learning.model(features=len(made.columns), classes=len(made.classes))
    with Store(life.folder / "store") as store, Store(tmp_path) as fresh:
        journal, again = Journal(store, life.row.run), Journal(fresh, "again")
        for event in life.events:
            if isinstance(event, Arrived):
                again.payloads.put(journal.payloads.get(event.payload))
        engine = Told(VirtualEngine({}, {}, keep=again.payloads.put, seed=0), life.events)
        rules = learning.rules(4, seed=seed)
        community = community_model(rules, model.layout, learning.pipeline(), model.initial(seed))
        Driver(rules, community, engine, again).run()
        assert [m.digest for m in fresh.models("again")] == [m.digest for m in store.models(life.row.run)]
        # Training again elsewhere gives other updates: the order of rows is a secret that sites forget with the run.
        counted = [event.task for event in life.events if isinstance(event, Arrived)]
        assert len(counted) == len(set(counted))
        assert set(counted) <= engine.tasks.keys()
