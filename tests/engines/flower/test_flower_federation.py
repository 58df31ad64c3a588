"""A real federation: Flower's programs, four sites with two nodes each, TLS and node keys, and what can go wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.engines.flower import federation as study
from tests.engines.flower.programs import Federation, running, until

from abaton.control import Arrived, Failed, Noted, from_row
from abaton.control.community import CommunityModel
from abaton.engines import Driver, LocalEngine, Replayed, VirtualEngine
from abaton.engines.flower.centre import Address, Centre
from abaton.engines.flower.certificates import issue, node_key
from abaton.engines.flower.nodes import ROLES, Membership, Nodes, free_port
from abaton.errors import SettingsError
from abaton.store import Journal, Store

pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
pytestmark = [pytest.mark.network, pytest.mark.slow]

PROGRAMS = "tests.engines.flower.federation"


@pytest.fixture(scope="module")
def federation(tmp_path_factory) -> Iterator[Federation]:
    """One federation for all tests here: its start is what takes long."""
    folder = tmp_path_factory.mktemp("federation")
    with running(folder, study.SITES, f"{PROGRAMS}:open_desk", study.TERMS) as made:
        yield made


def submit(federation: Federation, run: str) -> None:
    about = {"run": run, "store": str(federation.folder / run), "centre": str(federation.centre.folder)}
    federation.centre.submit(f"{PROGRAMS}:conduct", json.dumps(about))


def versions(federation: Federation, run: str) -> int:
    folder = federation.folder / run
    assert not (folder / "failed").exists(), (folder / "failed").read_text()
    if not (folder / "abaton.db").exists():
        return -1
    with Store(folder) as store:
        return len(store.models(run)) - 1


def events(journal: Journal) -> list:
    return [from_row(*row) for row in journal.rows()]


def digests(store: Store, run: str) -> list[str]:
    return [model.digest for model in store.models(run)]


def alone(run: str) -> tuple[dict, CommunityModel]:
    return {site: study.open_learner(site) for site in study.SITES}, study.community(run)


def test_rounds_give_the_same_digests_on_virtual_local_and_flower(federation, tmp_path):
    submit(federation, "rounds")
    federation.tend(lambda: versions(federation, "rounds") == study.rules("rounds").rounds)
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


def test_rubbish_numbers_that_are_none_bombs_and_strangers_spoil_nothing(federation, tmp_path):
    """One run: a site that answers rubbish, one that agreed to other terms, and one with another layout."""
    strangers = [stranger(federation, site) for site in ("e", "f")]
    run = "spoilt"
    try:
        submit(federation, run)
        federation.tend(lambda: versions(federation, run) == study.rules(run).rounds)
    finally:
        for keeper in (
            keeper for nodes in strangers for keeper in (nodes.keepers["train"], nodes.desks["train"])
        ):
            keeper.stop()
    with Store(federation.folder / run) as store:
        journal = Journal(store, run)
        told, expected = events(journal), digests(store, run)
        check_replay(journal, told, expected, tmp_path, run)
    failed = [e for e in told if isinstance(e, Failed) and e.learner == "d"]
    assert len(failed) >= 3
    assert {e.reason for e in failed} <= {"unreadable update", "learner is gone"}
    assert "d" not in {e.learner for e in told if isinstance(e, Arrived)}
    words = [e.what for e in told if isinstance(e, Noted) and not e.learner]
    assert any("is turned away: other terms" in each for each in words), words
    assert any("is turned away: another layout" in each for each in words), words


def stranger(federation: Federation, site: str) -> Nodes:
    """A node, admitted and connected, that does not belong in the run."""
    member = replace(federation.sites["a"].member, site=site, folder=federation.folder / site)
    nodes = Nodes(member, federation.said.append)
    _, public = node_key(nodes.key("train"))
    federation.centre.admit(public, site, "train")
    nodes.open()
    for keeper in (nodes.desks["train"], nodes.keepers["train"]):
        keeper.start()
    return nodes


def check_replay(journal: Journal, told: list, expected: list[str], folder: Path, run: str) -> None:
    """The journal alone gives the same versions."""
    with Store(folder) as fresh:
        again = Journal(fresh, "again")
        for event in told:
            if isinstance(event, Arrived):
                again.payloads.put(journal.payloads.get(event.payload))
        engine = Replayed(VirtualEngine({}, {}, keep=again.payloads.put, seed=0), told)
        Driver(study.rules(run), study.community(run), engine, again).run()
        assert digests(fresh, "again") == expected


def test_a_revoked_site_is_cut_off_and_an_unknown_key_is_never_let_in(federation, tmp_path):
    out, said = federation.sites["d"], []
    pids = {keeper.pid for keeper in out.keepers.values()}
    assert len(federation.centre.revoke("d")) == 2
    assert "d" not in {site for site, _ in federation.centre.admitted().values()}
    member = replace(out.member, site="mallory", folder=tmp_path)
    foreign = Nodes(member, said.append)
    for role in ROLES:
        node_key(foreign.key(role))
    foreign.start()
    try:
        federation.tend(lambda: foreign.watch() or len(said) >= 2)
        assert all("ended" in line for line in said)
        federation.tend(lambda: not pids & {keeper.pid for keeper in out.keepers.values()})
        federation.tend(lambda: refusals(out.member.folder) >= 1)
    finally:
        foreign.stop()
    assert refusals(tmp_path) >= 1


def test_an_expired_certificate_keeps_nodes_out_until_it_is_renewed(tmp_path):
    said, days = [], timedelta(days=10)
    own = issue(tmp_path / "certificates", ["127.0.0.1"], datetime.now(UTC) - days, days=3)
    centre = Centre(tmp_path / "centre", Address("127.0.0.1", free_port()), own, said.append)
    member = Membership("a", str(centre.address), own.authority, f"{PROGRAMS}:open_desk", tmp_path / "a")
    nodes = Nodes(member, said.append)
    _, public = node_key(nodes.key("train"))
    log = tmp_path / "a" / "logs" / "train.log"
    try:
        with pytest.raises(SettingsError, match="expired"):
            centre.start(patience=20)
        nodes.keepers["train"].start()
        until(lambda: log.exists() and "certificate has expired" in log.read_text())
        assert "SuperNode ID" not in log.read_text()
        centre.stop()
        issue(tmp_path / "certificates", ["127.0.0.1"], datetime.now(UTC))
        centre.start()
        centre.admit(public, "a", "train")
        until(lambda: nodes.keepers["train"].watch() or "SuperNode ID" in log.read_text())
    finally:
        nodes.keepers["train"].stop()
        centre.stop()


def refusals(folder: Path) -> int:
    """How often Flower did not let a node in, by its log."""
    return sum(path.read_text().count("Failed to activate") for path in (folder / "logs").iterdir())
