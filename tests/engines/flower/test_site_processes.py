"""Reports of a site's connection state, without a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from abaton.engines.flower.site_processes import (
    ConnectionStatus,
    SiteConnectionState,
    SiteMembership,
    SiteProcesses,
)


class Site:
    """Site whose node is a status file, with a simulated clock."""

    def __init__(self, folder: Path) -> None:
        (folder / "ca.pem").write_text("certificate")
        membership = SiteMembership("kos", "centre.example:8443", folder / "ca.pem", "m:f", folder / "kos")
        self.processes = SiteProcesses(membership, lambda _: None)
        self.processes.open()
        self.reports, self.now = [], 0.0
        self.status = ConnectionStatus(self.processes, self.reports.append, lambda: self.now)

    def after(self, seconds: float) -> SiteConnectionState:
        self.now += seconds
        self.status.update()
        return self.status.state

    def node(self, state: str, problem: str = "", **fields) -> None:
        status = {"state": state, "problem": problem, **fields}
        (self.processes.node_dir / "node_status.json").write_text(json.dumps(status))

    def set_activity(self, message_type: str) -> None:
        (self.processes.membership.folder / "worker-evaluate.activity").write_text(message_type)


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    yield site
    site.processes.stop()


def test_every_state_is_reported_once(site):
    site.after(0)
    site.after(5)
    site.node("connected", "status 401")
    site.after(5)
    site.node("admitted")
    site.after(1)
    site.after(1)
    site.set_activity("train")
    site.after(1)
    site.set_activity("")
    assert site.after(1) is SiteConnectionState.TRAINING, "a short pause between two tasks is not reported"
    site.after(12)
    site.set_activity("evaluate")
    site.after(1)
    assert site.reports == [
        "kos: connecting to centre.example:8443",
        "kos: connected; waiting for the centre to admit its key",
        "kos: admitted",
        "kos: training",
        "kos: idle",
        "kos: training",
    ]


def test_a_problem_is_reported_after_a_minute_and_repeated(site):
    site.node("connected", "status 401")
    for _ in range(13):
        site.after(10)
    assert len(site.reports) == 3
    assert all("for 60 s the centre refuses the node" in line for line in site.reports[1:])
    site.node("admitted")
    assert site.after(1) is SiteConnectionState.ADMITTED


def test_a_centre_that_does_not_respond_is_reported_with_the_reason(site):
    site.node("connecting", "connection refused")
    site.after(0)
    site.after(70)
    assert "the centre at centre.example:8443 does not respond: connection refused" in site.reports[-1]
    assert len(site.reports) == 2


def test_a_node_that_can_read_the_sites_keys_causes_one_warning(site):
    site.node("admitted", is_restricted=False, readable_paths=["/var/lib/abaton/study.key"])
    site.after(0)
    site.after(1)
    (warning,) = [line for line in site.reports if "warning" in line]
    assert "can read /var/lib/abaton/study.key" in warning
    assert "--node-user" in warning


def test_a_restricted_node_causes_no_warning(site):
    site.node("admitted", is_restricted=True, readable_paths=[])
    site.after(0)
    assert site.reports == ["kos: admitted"]
