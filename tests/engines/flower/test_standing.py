"""What a site hears of how it stands with the centre, without a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from abaton.engines.flower.site_processes import Membership, SitePrograms, SiteState, Standing


class Site:
    """A site whose node is a file, and a clock that is set by hand."""

    def __init__(self, folder: Path) -> None:
        (folder / "ca.pem").write_text("certificate")
        member = Membership("kos", "centre.example:8443", folder / "ca.pem", "m:f", folder / "kos")
        self.programs = SitePrograms(member, lambda _: None)
        self.programs.open()
        self.said, self.now = [], 0.0
        self.standing = Standing(self.programs, self.said.append, lambda: self.now)

    def after(self, seconds: float) -> SiteState:
        self.now += seconds
        self.standing.look()
        return self.standing.state

    def node(self, state: str, trouble: str = "", **more) -> None:
        said = {"state": state, "trouble": trouble, **more}
        (self.programs.home / "standing.json").write_text(json.dumps(said))

    def does(self, kind: str) -> None:
        (self.programs.member.folder / "desk-evaluate.doing").write_text(kind)


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path)
    yield made
    made.programs.stop()


def test_every_state_is_told_once_when_it_begins(site):
    site.after(0)
    site.after(5)
    site.node("connected", "status 401")
    site.after(5)
    site.node("admitted")
    site.after(1)
    site.after(1)
    site.does("train")
    site.after(1)
    site.does("")
    assert site.after(1) is SiteState.TRAINING, "a short pause between two tasks is not told"
    site.after(12)
    site.does("evaluate")
    site.after(1)
    assert site.said == [
        "kos: connecting to centre.example:8443",
        "kos: connected; waiting until the centre admits its key",
        "kos: admitted",
        "kos: training",
        "kos: idle",
        "kos: training",
    ]


def test_what_is_wrong_is_said_after_a_minute_and_again_after_as_long(site):
    site.node("connected", "status 401")
    for _ in range(13):
        site.after(10)
    assert len(site.said) == 3
    assert all("for 60 s the centre does not let its node in" in line for line in site.said[1:])
    site.node("admitted")
    assert site.after(1) is SiteState.ADMITTED


def test_a_centre_that_cannot_be_reached_is_named_with_the_reason(site):
    site.node("connecting", "connection refused")
    site.after(0)
    site.after(70)
    assert "the centre at centre.example:8443 cannot be reached: connection refused" in site.said[-1]
    assert len(site.said) == 2


def test_a_node_whose_account_can_read_the_sites_keys_is_warned_of_once(site):
    site.node("admitted", closed=False, readable=["/var/lib/abaton/study.key"])
    site.after(0)
    site.after(1)
    (warning,) = [line for line in site.said if "warning" in line]
    assert "can read /var/lib/abaton/study.key" in warning
    assert "--node-account" in warning


def test_a_node_that_can_read_nothing_is_no_warning(site):
    site.node("admitted", closed=True, readable=[])
    site.after(0)
    assert site.said == ["kos: admitted"]
