"""A real federation: a SuperLink, four sites with a node each, TLS and node keys, and failures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.engines.flower import flower_federation as study
from tests.engines.flower.flower_processes import Federation, running, until

from abaton.controller import RunNote, TaskFailed, UpdateReceived, event_from_row
from abaton.controller.aggregation import CommunityModel
from abaton.engines import LocalEngine, ReplayedEngine, RunLoop, VirtualEngine
from abaton.engines.flower.server_processes import ServerAddress, ServerProcesses
from abaton.engines.flower.site_processes import SiteMembership, SiteProcesses
from abaton.engines.flower.supervisor import free_port
from abaton.engines.flower.tls import issue_certificate
from abaton.errors import SettingsError
from abaton.store import Journal, Store

pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
pytestmark = [pytest.mark.network, pytest.mark.slow]

MODULE = "tests.engines.flower.flower_federation"


@pytest.fixture(scope="module")
def federation(tmp_path_factory) -> Iterator[Federation]:
    """One federation for all tests, since its start is slow."""
    folder = tmp_path_factory.mktemp("federation")
    with running(folder, study.SITES, f"{MODULE}:open_worker", study.STUDY_HASH) as federation:
        yield federation


def run_once(federation: Federation, run: str) -> None:
    argument = {"run": run, "store": str(federation.folder / run), "centre": str(federation.centre.folder)}
    supervisor = federation.centre.start_controller(f"{MODULE}:run_controller", json.dumps(argument), run)
    until(lambda: versions(federation, run) == study.strategy(run).rounds)
    supervisor.stop()


def versions(federation: Federation, run: str) -> int:
    folder = federation.folder / run
    assert not (folder / "failed").exists(), (folder / "failed").read_text()
    if not (folder / "abaton.db").exists():
        return -1
    with Store(folder) as store:
        return len(store.models(run)) - 1


def events(journal: Journal) -> list:
    return [event_from_row(*row) for row in journal.rows()]


def digests(store: Store, run: str) -> list[str]:
    return [model.digest for model in store.models(run)]


def build_learners(run: str) -> tuple[dict, CommunityModel]:
    return {site: study.open_learner(site) for site in study.SITES}, study.community(run)


def test_rounds_give_the_same_digests_on_virtual_local_and_flower(federation, tmp_path):
    run_once(federation, "rounds")
    with Store(federation.folder / "rounds") as store:
        expected = digests(store, "rounds")
    with Store(tmp_path) as store:
        for name in ("virtual", "local"):
            journal = Journal(store, name)
            learners, community = build_learners("rounds")
            engine = (
                VirtualEngine(learners, {}, store_payload=journal.payloads.put, seed=0)
                if name == "virtual"
                else LocalEngine(
                    learners,
                    store_payload=journal.payloads.put,
                    check_payload=study.check,
                    state_dir=tmp_path / "states",
                )
            )
            try:
                RunLoop(study.strategy("rounds"), community, engine, journal).run()
            finally:
                engine.close()
            assert digests(store, name) == expected


def test_invalid_replies_and_foreign_nodes_do_not_change_a_run(federation, tmp_path):
    """One run with a site that sends invalid replies, one with another study, and one with another layout."""
    run = "corrupt"
    foreign_sites = [add_foreign_site(federation, site) for site in ("e", "f")]
    try:
        run_once(federation, run)
    finally:
        for site in foreign_sites:
            site.stop()
    with Store(federation.folder / run) as store:
        journal = Journal(store, run)
        journal_events, expected = events(journal), digests(store, run)
        check_replay(journal, journal_events, expected, tmp_path, run)
    failed = [e for e in journal_events if isinstance(e, TaskFailed) and e.learner == "d"]
    assert len(failed) >= 3
    assert {e.reason for e in failed} <= {"invalid_update", "learner_gone"}
    assert "d" not in {e.learner for e in journal_events if isinstance(e, UpdateReceived)}
    notes = [e.note for e in journal_events if isinstance(e, RunNote) and not e.learner]
    assert any("is refused: study_mismatch" in note for note in notes), notes
    assert any("is refused: layout_mismatch" in note for note in notes), notes


def add_foreign_site(federation: Federation, site: str) -> SiteProcesses:
    """Add an admitted and connected node that does not belong to the run."""
    membership = replace(federation.sites["a"].membership, site=site, folder=federation.folder / site)
    foreign = SiteProcesses(membership, federation.reports.append)
    foreign.make_key()
    federation.centre.admit(foreign.public_key(), site)
    foreign.start()
    return foreign


def check_replay(journal: Journal, journal_events: list, expected: list[str], folder: Path, run: str) -> None:
    """The journal build_learners gives the same versions."""
    with Store(folder) as fresh:
        again = Journal(fresh, "again")
        for event in journal_events:
            if isinstance(event, UpdateReceived):
                again.payloads.put(journal.payloads.get(event.payload))
        engine = ReplayedEngine(
            VirtualEngine({}, {}, store_payload=again.payloads.put, seed=0), journal_events
        )
        RunLoop(study.strategy(run), study.community(run), engine, again).run()
        assert digests(fresh, "again") == expected


def state(site: SiteProcesses) -> str:
    return str(site.node_status().get("state"))


def test_a_revoked_site_is_disconnected_and_an_unknown_key_refused(federation, tmp_path):
    revoked = federation.sites["d"]
    until(lambda: state(revoked) == "admitted")
    assert len(federation.centre.revoke("d")) == 1
    assert "d" not in federation.centre.admitted_nodes().values()
    foreign = SiteProcesses(
        replace(revoked.membership, site="mallory", folder=tmp_path), federation.reports.append
    )
    foreign.make_key()
    foreign.start()
    try:
        until(lambda: state(foreign) == "connected")
        until(lambda: state(revoked) == "connected")
        assert foreign.node_status()["problem"] in ("status 401", "status 412")
    finally:
        foreign.stop()


def test_an_expired_certificate_keeps_nodes_out_until_it_is_renewed(tmp_path):
    reports, days = [], timedelta(days=10)
    certificates = issue_certificate(
        tmp_path / "certificates", ["127.0.0.1"], datetime.now(UTC) - days, days=3
    )
    centre = ServerProcesses(
        tmp_path / "centre", ServerAddress("127.0.0.1", free_port()), certificates, reports.append
    )
    membership = SiteMembership(
        "a", str(centre.address), certificates.authority, f"{MODULE}:open_worker", tmp_path / "a"
    )
    site = SiteProcesses(membership, reports.append)
    site.make_key()
    try:
        with pytest.raises(SettingsError, match="expired"):
            centre.start(start_timeout=60)
        site.start()
        until(lambda: "certificate has expired" in str(site.node_status().get("problem")))
        centre.stop()
        issue_certificate(tmp_path / "certificates", ["127.0.0.1"], datetime.now(UTC))
        centre.start()
        centre.admit(site.public_key(), "a")
        until(lambda: state(site) == "admitted")
    finally:
        site.stop()
        centre.stop()
