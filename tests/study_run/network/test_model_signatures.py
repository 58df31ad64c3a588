"""Sites that sign their models: every model is evaluated, with every codec and scheduler."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.study_run.network.network_loopback import Loop
from tests.study_run.network.test_network_study import THREE_SITES, PowerCut

from abaton.site import load_site
from abaton.store import Journal, Store
from abaton.study import load_study
from abaton.study_run.model_signatures import signing_key

SETTINGS = {
    "rounds": "",
    "asynchronous": 'strategy = "AsyncDVW(na)"',
    "buffered": 'strategy = "FedBuffDVW"',
    "compressed both ways": 'codec = "error_feedback | stc(sparsity=0.2)"\ndownlink = "stc(sparsity=0.2)"',
    "personal layers": '[learning.personal_layers]\nlayers = ["2"]',
}


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened:
        yield opened


def federation(rounds, tmp_path, settings: str = "") -> Loop:
    """Return three hospitals that list each other's keys."""
    file = rounds.sites[0].parent.parent / "study.toml"
    text = file.read_text()
    if settings.startswith("strategy"):
        text = text.replace('strategy = "SyncDVW"', settings)
    elif settings.startswith("["):
        text = text.replace('personalise = ["recalibrate", "interpolate"]\n', "")
        text = f"{text[: text.index('[learning.interpretability]')]}{settings}\n"
    elif settings:
        text = re.sub("^codec = .*$", settings, text, flags=re.MULTILINE)
    file.write_text(text)
    sites = [site for site in rounds.sites if site.parent.name != "athens"]
    keys = {site.parent.name: signing_key(load_site(site)).id for site in sites}
    for site in sites:
        signers = "".join(f'{name} = "{key}"\n' for name, key in keys.items() if name != site.parent.name)
        site.write_text(f"{site.read_text()}\n[policy.trusted_signers]\n{signers}")
    return Loop(tmp_path, load_study(file), sites, THREE_SITES)


def requested_evaluations(loop: Loop) -> list[dict]:
    """Return every model that was sent for evaluation."""
    return [
        evaluation
        for _, message in loop.transport.sent
        if message.message_type == "evaluate"
        for evaluation in message.header["evaluations"]
    ]


@pytest.mark.parametrize(
    "case", [name if name == "rounds" else pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS]
)
def test_sites_that_list_each_other_evaluate_every_model(rounds, store, tmp_path, case):
    loop = federation(rounds, tmp_path, SETTINGS[case])
    row = loop.run(store)
    rows = list(Journal(store, row.run).rows())
    assert row.status == "finished"
    assert not [body for kind, body in rows if kind == "task_failed"]
    assert (
        len([kind for kind, _ in rows if kind == "evaluation_received"])
        == len(requested_evaluations(loop))
        > 0
    )
    assert all(len(task["signed_model"][2]) == 192 for task in requested_evaluations(loop))
    assert ("deltas" in requested_evaluations(loop)[0]) == ("downlink" in SETTINGS[case]), (
        "models travel as updates if so asked"
    )


def test_signatures_survive_a_killed_controller(rounds, store, tmp_path):
    loop = federation(rounds, tmp_path)
    evaluating = []

    def intercept(service, message):
        if message.message_type == "evaluate":
            evaluating.append(service.name)
            if len(evaluating) == 5:
                raise PowerCut

    loop.transport.intercept = intercept
    with pytest.raises(PowerCut):
        loop.run(store)
    before = len(requested_evaluations(loop))
    row = loop.run(store)
    rows = list(Journal(store, row.run).rows())
    assert row.status == "finished"
    assert not [body for kind, body in rows if kind == "task_failed"]
    assert all(len(body["signature"]) == 192 for kind, body in rows if kind == "update_received")
    assert all(len(task["signed_model"][2]) == 192 for task in requested_evaluations(loop)[before:])
    assert requested_evaluations(loop)[before:]


def test_models_of_an_unlisted_site_are_not_evaluated(rounds, store, tmp_path):
    """A site without a list would have evaluated it: the model is refused, and the run continues."""
    loop = federation(rounds, tmp_path)
    for site in loop.transport.workers.values():
        for service in site.workers.values():
            signers = {
                name: key for name, key in service.file.config.policy.trusted_signers.items() if name != "kos"
            }
            policy = service.file.config.policy.model_copy(update={"trusted_signers": signers})
            config = service.file.config.model_copy(update={"policy": policy})
            service.file = replace(service.file, config=config)
    row = loop.run(store)
    failed = [body for kind, body in Journal(store, row.run).rows() if kind == "task_failed"]
    assert row.status == "finished"
    assert {body["reason"] for body in failed} == {"refused"}
    assert {body["task"].split("@")[0].split(".")[-1] for body in failed} == {"kos"}
