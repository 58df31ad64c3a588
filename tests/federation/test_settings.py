"""Every setting that a study names changes its run and is written in its report."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from tests.federation.network.loops import Loop
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.errors import SettingsError
from abaton.federation import StudyOptions, read_sites, run_readings, run_study
from abaton.study_run.consented_learner import ConsentedLearner
from abaton.study_run import Wish
from abaton.lab.demo import NOW, opened
from abaton.report import page_of
from abaton.site import load_site
from abaton.store import Journal, Store
from abaton.study import Study, write_toml

OPTIONS = StudyOptions(seed=5, resamples=0)


@pytest.fixture(scope="module")
def hospitals(written, tmp_path_factory):
    """The four hospitals on a ground of their own, so that the study can be another one, read once."""
    folder = tmp_path_factory.mktemp("free") / "hospitals"
    shutil.copytree(written, folder)
    made = opened(folder)
    for site in made.sites:
        site.write_text(site.read_text().replace('registry = "consents.db"', 'ground = "a vote"'))
    return made, read_sites(made.study, [load_site(site) for site in made.sites], NOW)


def study_with(made, **learning):
    """The hospitals' study with other settings of the learning."""
    usual = {"rounds": 3, "policy": "SyncFedAvg", "codec": "raw", "training": {"epochs": 2, "batch_size": 16}}
    whole = {**made.study.learning.model_dump(), **usual, **learning}
    return Study.model_validate({**made.study.model_dump(), "learning": whole})


@pytest.fixture
def run(hospitals, tmp_path):
    made, readings = hospitals
    with Store(tmp_path / "store") as store:

        def running(engine="virtual", **learning):
            study = study_with(made, **learning)
            return run_readings(study, readings, store, OPTIONS, now=NOW, engine=engine)

        yield running


SETTINGS = {
    "server adam": (
        {"server": {"name": "adam", "rate": 0.25}},
        ("server: name", "adam", "server: rate", "0.25"),
    ),
    "server momentum": ({"server": "momentum(beta=0.5)"}, ("momentum", "server: beta")),
    "buffer": ({"policy": {"name": "FedBuff", "buffer": 2}}, ("FedBuff", "policy: buffer")),
    "median": ({"robust": "median"}, ("robust: name", "median")),
    "trimmed": ({"robust": "trimmed(share=0.3)"}, ("trimmed", "robust: share")),
    "norm bound": ({"robust": "norm_bound(norm=0.01)"}, ("norm_bound",)),
    "weighting": (
        {"weighting": ["staleness(kind=constant)"]},
        ("weighting 1: name", "staleness", "constant"),
    ),
    "estimator": ({"network": "SGDClassifier(alpha=0.01)"}, ("SGDClassifier(alpha=0.01)",)),
    "network of scikit-learn": ({"network": "MLPClassifier(4)"}, ("MLPClassifier(4)",)),
    "personal": ({"personal": {"layers": ["2.bias"]}}, ("personal: layers", "bias")),
    "privacy": (
        {"privacy": {"epsilon": 50, "delta": 1e-3, "noise": 1.0, "clip": 0.5}},
        ("privacy: epsilon", "50", "epsilon that was spent", "The privacy budget covers"),
    ),
}


@pytest.fixture(scope="module")
def usual(hospitals, tmp_path_factory):
    """The run without any of these settings: its digest, its report and its page."""
    made, readings = hospitals
    with Store(tmp_path_factory.mktemp("usual")) as store:
        ended = run_readings(study_with(made), readings, store, OPTIONS, now=NOW)
        report = ended.report()
        return ended.result["digest"], report, page_of(report)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_changes_the_run_and_is_told_in_its_report(usual, run, name):
    settings, words = SETTINGS[name]
    digest, before, page_before = usual
    made = run(**settings)
    assert made.status == "finished"
    assert made.result["digest"] != digest
    report = made.report()
    for key in settings:
        assert report["method"][key] != before["method"][key]
    page = page_of(report)
    for word in words:
        assert word in page
    assert any(word not in page_before for word in words)


DVW = {
    "own": {"name": "SyncDVW", "own": False},
    **{
        measure: {"name": "SyncDVW", "measure": measure}
        for measure in ("macro_f1", "mcc", "geometric_mean", "accuracy")
    },
}


def test_every_measure_and_the_own_validation_set_change_who_counts_how_much(run):
    # Long enough to find somebody with the outcome, and enough to validate on that some site scores it.
    training = {"epochs": 20, "batch_size": 8, "learning_rate": 0.1, "momentum": 0.5}
    half = {"validation": 0.5, "training": training}
    usual = run(policy={"name": "SyncDVW"}, **half)
    digests = {"usual": usual.result["digest"]}
    for name, policy in DVW.items():
        made = run(policy=policy, **half)
        digests[name] = made.result["digest"]
        key = next(key for key in policy if key != "name")
        assert f"policy: {key}" in page_of(made.report())
    assert digests.pop("accuracy") == digests["usual"], "with one label for each row they are one number"
    assert len(set(digests.values())) == len(digests)


def test_a_learners_own_thresholds_change_when_it_sends(run):
    epochs = {"epochs": 6, "batch_size": 8}
    policy = {"name": "AsyncDVW(a)"}
    eager, patient = (
        run(policy={**policy, "thresholds": each}, training=epochs, rounds=12)
        for each in ({"loss": 100, "tombstones": 0}, {"loss": 0, "tombstones": 5})
    )
    assert eager.result["digest"] != patient.result["digest"]
    assert "thresholds" in page_of(eager.report())


def test_a_run_ends_before_its_privacy_budget_is_overspent(run):
    budget = {"epsilon": 20.0, "delta": 1e-3, "noise": 1.0}
    made = run(privacy=budget, rounds=50)
    assert (made.status, made.result["reason"]) == ("stopped", "the privacy budget is spent")
    spent = [each.metrics["epsilon"] for each in made.versions if "epsilon" in each.metrics]
    assert spent == sorted(spent)
    assert spent[-1] <= budget["epsilon"]
    assert made.report()["privacy"]["spent"] == spent[-1]
    arrived = [body for kind, body in Journal(made.store, made.name).rows() if kind == "Arrived"]
    assert all(body.get("loss") is None and not body.get("score") for body in arrived)


@pytest.mark.slow
def test_a_privacy_budget_holds_in_processes_too(run):
    made = run("local", privacy={"epsilon": 20.0, "delta": 1e-3, "noise": 1.0}, rounds=50)
    assert (made.status, made.result["reason"]) == ("stopped", "the privacy budget is spent")
    assert made.row.recipe["fingerprint"]["codec"] == "clip(norm=1.0) | gaussian_noise(std=1.0) | raw"


def over_a_network(hospitals, store, folder, **learning):
    made, _ = hospitals
    wish = Wish(sites=4, seed=5, resamples=0, poll=0.0)
    return Loop(folder, study_with(made, **learning), made.sites, wish).run(store)


def test_a_privacy_budget_holds_over_a_network(hospitals, tmp_path):
    with Store(tmp_path / "store") as store:
        budget = {"epsilon": 20.0, "delta": 1e-3, "noise": 1.0}
        row = over_a_network(hospitals, store, tmp_path, privacy=budget, rounds=50)
        assert (row.status, row.result["reason"]) == ("stopped", "the privacy budget is spent")
        arrived = [body for kind, body in Journal(store, row.run).rows() if kind == "Arrived"]
        assert all(body.get("loss") is None and not body.get("score") for body in arrived)
        assert store.models(row.run)[-1].metrics["epsilon"] <= 20


PERSONAL = {
    "network": "mlp(4)",
    "personal": {"layers": ["2"]},
    "rounds": 4,
    "training": {"epochs": 10, "batch_size": 16, "learning_rate": 0.1},
}


def test_personal_layers_stay_and_each_site_judges_with_its_own(run, hospitals, tmp_path, monkeypatch):
    monkeypatch.setattr(
        ConsentedLearner, "own_order", False
    )  # a site's own secret order is nobody's to repeat
    here = run(**PERSONAL)
    names = [name for name, *_ in here.row.recipe["use"]["layout"]]
    assert names == ["0.weight", "0.bias"]
    with Store(tmp_path / "there") as store:
        there = over_a_network(hospitals, store, tmp_path, **PERSONAL)
    assert there.result["digest"] == here.result["digest"]
    assert there.result["evaluation"] == here.result["evaluation"]
    fresh = run(**PERSONAL | {"training": {"epochs": 1, "learning_rate": 1e-12}})
    assert here.metrics["auroc"] > fresh.metrics["auroc"], "a site's own layers have learned something"
    with pytest.raises(SettingsError, match="personal layers, which are at the sites"):
        here.predict(np.zeros((1, len(here.row.recipe["use"]["columns"]))))


@pytest.mark.slow
def test_personal_layers_of_processes_are_judged_with(run, monkeypatch):
    monkeypatch.setattr(ConsentedLearner, "own_order", False)
    here, there = run(**PERSONAL), run("local", **PERSONAL)
    assert there.result["evaluation"] == here.result["evaluation"]


def test_baselines_of_personal_layers_are_refused(hospitals, tmp_path):
    made, _ = hospitals
    study = study_with(made, **PERSONAL)
    with pytest.raises(SettingsError, match="baselines are whole models"):
        run_study(study, made.sites, tmp_path / "store", replace(OPTIONS, baselines=True), now=NOW)


def test_an_estimator_of_a_study_is_there_to_be_used(run):
    made = run(network="SGDClassifier")
    assert type(made.model).__name__ == "SGDClassifier"
    rows = {name: [0.0, 1.0] for name in made.row.recipe["use"]["columns"]}
    assert np.allclose(made.predict(rows).sum(1), 1)


def test_the_command_that_runs_a_study_reaches_its_settings(hospitals, tmp_path):
    made, _ = hospitals
    study = study_with(made, server="adam(rate=0.25)", robust="median", rounds=2)
    (tmp_path / "study.toml").write_text(write_toml(study))
    words = ["run", str(tmp_path / "study.toml"), "--sites", *map(str, made.sites)]
    done = CliRunner().invoke(app, [*words, "--store", str(tmp_path / "store"), "--json"])
    assert done.exit_code == 0, done.output
    run = json.loads(done.stdout)["run"]
    told = CliRunner().invoke(app, ["report", run, "--store", str(tmp_path / "store"), "--json"])
    method = json.loads(told.stdout)["method"]
    assert (method["server"], method["robust"]) == ({"name": "adam", "rate": 0.25}, {"name": "median"})
    shown = CliRunner().invoke(app, ["study", "show", str(tmp_path / "study.toml")]).stdout
    assert "adam(rate=0.25)" in shown
    assert "median" in shown
