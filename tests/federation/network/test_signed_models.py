"""An honest federation whose sites sign what they learn: every model is scored, in every way of travelling."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.federation.network.loops import Loop
from tests.federation.network.test_network_study import FEW, Cut

from abaton.study_run.model_signatures import signing_key
from abaton.site import load_site
from abaton.store import Journal, Store
from abaton.study import load_study

SETTINGS = {
    "rounds": "",
    "waiting for nobody": 'policy = "AsyncDVW(na)"',
    "a buffer": 'policy = "FedBuffDVW"',
    "compressed both ways": 'codec = "error_feedback | stc(sparsity=0.2)"\ndownlink = "stc(sparsity=0.2)"',
    "layers of a site's own": '[learning.personal]\nlayers = ["2"]',
}


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened:
        yield opened


def federation(rounds, tmp_path, settings: str = "") -> Loop:
    """Three hospitals that list each other's keys."""
    file = rounds.sites[0].parent.parent / "study.toml"
    text = file.read_text()
    if settings.startswith("policy"):
        text = text.replace('policy = "SyncDVW"', settings)
    elif settings.startswith("["):
        text = text.replace('personalise = ["recalibrate", "interpolate"]\n', "")
        text = f"{text[: text.index('[learning.explanation]')]}{settings}\n"
    elif settings:
        text = re.sub("^codec = .*$", settings, text, flags=re.MULTILINE)
    file.write_text(text)
    sites = [site for site in rounds.sites if site.parent.name != "athens"]
    keys = {site.parent.name: signing_key(load_site(site)).id for site in sites}
    for site in sites:
        peers = "".join(f'{name} = "{key}"\n' for name, key in keys.items() if name != site.parent.name)
        site.write_text(f"{site.read_text()}\n[policy.peers]\n{peers}")
    return Loop(tmp_path, load_study(file), sites, FEW)


def asked(loop: Loop) -> list[dict]:
    """Every model that was to be scored."""
    return [
        task for _, parcel in loop.post.sent if parcel.kind == "evaluate" for task in parcel.about["tasks"]
    ]


@pytest.mark.parametrize(
    "way", [each if each == "rounds" else pytest.param(each, marks=pytest.mark.slow) for each in SETTINGS]
)
def test_every_model_is_scored_by_sites_that_list_each_other(rounds, store, tmp_path, way):
    loop = federation(rounds, tmp_path, SETTINGS[way])
    row = loop.run(store)
    rows = list(Journal(store, row.run).rows())
    assert row.status == "finished"
    assert not [body for kind, body in rows if kind == "Failed"]
    assert len([kind for kind, _ in rows if kind == "Scored"]) == len(asked(loop)) > 0
    assert all(len(task["signed"][2]) == 192 for task in asked(loop))
    assert ("steps" in asked(loop)[0]) == ("downlink" in SETTINGS[way]), (
        "models travel as updates if so asked"
    )


def test_signatures_survive_a_controller_that_is_killed(rounds, store, tmp_path):
    loop = federation(rounds, tmp_path)
    scored = []

    def fate(desk, parcel):
        if parcel.kind == "evaluate":
            scored.append(desk.name)
            if len(scored) == 5:
                raise Cut

    loop.post.fate = fate
    with pytest.raises(Cut):
        loop.run(store)
    before = len(asked(loop))
    row = loop.run(store)
    rows = list(Journal(store, row.run).rows())
    assert row.status == "finished"
    assert not [body for kind, body in rows if kind == "Failed"]
    assert all(len(body["signature"]) == 192 for kind, body in rows if kind == "Arrived")
    assert all(len(task["signed"][2]) == 192 for task in asked(loop)[before:])
    assert asked(loop)[before:]


def test_a_site_whose_key_nobody_lists_is_scored_by_nobody(rounds, store, tmp_path):
    """And one that listed nobody would have scored it: what a site does not know is refused, not the run."""
    loop = federation(rounds, tmp_path)
    for site in loop.post.desks.values():
        for desk in site.desks.values():
            peers = {name: key for name, key in desk.file.document.policy.peers.items() if name != "kos"}
            policy = desk.file.document.policy.model_copy(update={"peers": peers})
            document = desk.file.document.model_copy(update={"policy": policy})
            desk.file = replace(desk.file, document=document)
    row = loop.run(store)
    failed = [body for kind, body in Journal(store, row.run).rows() if kind == "Failed"]
    assert row.status == "finished"
    assert {body["reason"] for body in failed} == {"task was refused"}
    assert {body["task"].split("@")[0].split(".")[-1] for body in failed} == {"kos"}
