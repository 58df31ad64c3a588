"""A real federation: a SuperLink, four sites with a node each, TLS and node keys, and what can go wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.engines.flower import federation as study
from tests.engines.flower.programs import Federation, running, until

from abaton.controller import Arrived, Failed, Noted, from_row
from abaton.controller.aggregation import CommunityModel
from abaton.engines import Driver, LocalEngine, Replayed, VirtualEngine
from abaton.engines.flower.server_processes import Address, Centre
from abaton.engines.flower.tls import issue
from abaton.engines.flower.site_processes import Membership, SitePrograms
from abaton.engines.flower.supervisor import free_port
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


def live(federation: Federation, run: str) -> None:
    about = {"run": run, "store": str(federation.folder / run), "centre": str(federation.centre.folder)}
    keeper = federation.centre.conduct(f"{PROGRAMS}:conduct", json.dumps(about), run)
    until(lambda: versions(federation, run) == study.rules(run).rounds)
    keeper.stop()


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
    live(federation, "rounds")
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
    run = "spoilt"
    strangers = [stranger(federation, site) for site in ("e", "f")]
    try:
        live(federation, run)
    finally:
        for programs in strangers:
            programs.stop()
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


def stranger(federation: Federation, site: str) -> SitePrograms:
    """A node, admitted and connected, that does not belong in the run."""
    member = replace(federation.sites["a"].member, site=site, folder=federation.folder / site)
    programs = SitePrograms(member, federation.said.append)
    programs.make_key()
    federation.centre.admit(programs.public_key(), site)
    programs.start()
    return programs


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


def state(programs: SitePrograms) -> str:
    return str(programs.standing().get("state"))


def test_a_revoked_site_is_cut_off_and_an_unknown_key_is_never_let_in(federation, tmp_path):
    out = federation.sites["d"]
    until(lambda: state(out) == "admitted")
    assert len(federation.centre.revoke("d")) == 1
    assert "d" not in federation.centre.admitted().values()
    foreign = SitePrograms(replace(out.member, site="mallory", folder=tmp_path), federation.said.append)
    foreign.make_key()
    foreign.start()
    try:
        until(lambda: state(foreign) == "connected")
        until(lambda: state(out) == "connected")
        assert foreign.standing()["trouble"] in ("status 401", "status 412")
    finally:
        foreign.stop()


def test_an_expired_certificate_keeps_nodes_out_until_it_is_renewed(tmp_path):
    said, days = [], timedelta(days=10)
    own = issue(tmp_path / "certificates", ["127.0.0.1"], datetime.now(UTC) - days, days=3)
    centre = Centre(tmp_path / "centre", Address("127.0.0.1", free_port()), own, said.append)
    member = Membership("a", str(centre.address), own.authority, f"{PROGRAMS}:open_desk", tmp_path / "a")
    site = SitePrograms(member, said.append)
    site.make_key()
    try:
        with pytest.raises(SettingsError, match="expired"):
            centre.start(patience=60)
        site.start()
        until(lambda: "certificate has expired" in str(site.standing().get("trouble")))
        centre.stop()
        issue(tmp_path / "certificates", ["127.0.0.1"], datetime.now(UTC))
        centre.start()
        centre.admit(site.public_key(), "a")
        until(lambda: state(site) == "admitted")
    finally:
        site.stop()
        centre.stop()
