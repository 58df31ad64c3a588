"""Every setting of a study changes its run and is shown in its report."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from tests.study_run.network.network_loopback import Loop
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.errors import SettingsError
from abaton.lab.demo import NOW, open_demo
from abaton.lab.synthetic_hospitals import FOUR_HOSPITALS
from abaton.report import render_report
from abaton.site import load_site
from abaton.store import Journal, Store
from abaton.study import Study, write_toml
from abaton.study_run import NetworkRunOptions, StudyOptions, ingest_sites, run_prepared_study, run_study
from abaton.study_run.consented_learner import ConsentedLearner

OPTIONS = StudyOptions(seed=5, bootstrap_resamples=0)


@pytest.fixture(scope="module")
def hospitals(written, tmp_path_factory):
    """Four hospitals with a stated legal basis, so that other studies may use them, ingested once."""
    folder = tmp_path_factory.mktemp("free") / "hospitals"
    shutil.copytree(written, folder)
    demonstration = open_demo(folder, cohort=FOUR_HOSPITALS)
    for site in demonstration.sites:
        site.write_text(site.read_text().replace('registry = "consents.db"', 'legal_basis = "a vote"'))
    return demonstration, ingest_sites(
        demonstration.study, [load_site(site) for site in demonstration.sites], NOW
    )


def study_with(demonstration, **learning):
    """Return the hospitals' study with other learning settings."""
    defaults = {
        "rounds": 3,
        "strategy": "SyncFedAvg",
        "codec": "raw",
        "training": {"epochs": 2, "batch_size": 16},
    }
    learning_settings = {**demonstration.study.learning.model_dump(), **defaults, **learning}
    return Study.model_validate({**demonstration.study.model_dump(), "learning": learning_settings})


@pytest.fixture
def run(hospitals, tmp_path):
    demonstration, ingested = hospitals
    with Store(tmp_path / "store") as store:

        def start(engine="virtual", **learning):
            study = study_with(demonstration, **learning)
            return run_prepared_study(study, ingested, store, OPTIONS, now=NOW, engine=engine)

        yield start


SETTINGS = {
    "server adam": (
        {"server_optimiser": {"name": "adam", "rate": 0.25}},
        ("server_optimiser: name", "adam", "server_optimiser: rate", "0.25"),
    ),
    "server momentum": ({"server_optimiser": "momentum(beta=0.5)"}, ("momentum", "server_optimiser: beta")),
    "buffer": ({"strategy": {"name": "FedBuff", "buffer_size": 2}}, ("FedBuff", "strategy: buffer_size")),
    "median": ({"robust_aggregation": "median"}, ("robust_aggregation: name", "median")),
    "trimmed": (
        {"robust_aggregation": "trimmed_mean(fraction=0.3)"},
        ("trimmed_mean", "robust_aggregation: fraction"),
    ),
    "norm bound": ({"robust_aggregation": "norm_bound(norm=0.01)"}, ("norm_bound",)),
    "weighting": (
        {"weighting": ["staleness(kind=constant)"]},
        ("weighting 1: name", "staleness", "constant"),
    ),
    "estimator": ({"model": "SGDClassifier(alpha=0.01)"}, ("SGDClassifier(alpha=0.01)",)),
    "network of scikit-learn": ({"model": "MLPClassifier(4)"}, ("MLPClassifier(4)",)),
    "personal": ({"personal_layers": {"layers": ["2.bias"]}}, ("personal_layers: layers", "bias")),
    "privacy": (
        {"privacy": {"epsilon": 50, "delta": 1e-3, "noise_multiplier": 1.0, "clip_norm": 0.5}},
        ("privacy: epsilon", "50", "epsilon spent", "The privacy budget covers"),
    ),
}


@pytest.fixture(scope="module")
def default_run(hospitals, tmp_path_factory):
    """Digest, report and page of the run with default settings."""
    demonstration, ingested = hospitals
    with Store(tmp_path_factory.mktemp("usual")) as store:
        ended = run_prepared_study(study_with(demonstration), ingested, store, OPTIONS, now=NOW)
        report = ended.report()
        return ended.result["digest"], report, render_report(report)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_changes_the_run_and_is_in_its_report(default_run, run, name):
    settings, expected_texts = SETTINGS[name]
    digest, before, page_before = default_run
    finished = run(**settings)
    assert finished.status == "finished"
    assert finished.result["digest"] != digest
    report = finished.report()
    for key in settings:
        assert report["method"][key] != before["method"][key]
    page = render_report(report)
    for text in expected_texts:
        assert text in page
    assert any(text not in page_before for text in expected_texts)


DVW = {
    "own": {"name": "SyncDVW", "include_own_validation": False},
    **{
        metric: {"name": "SyncDVW", "metric": metric}
        for metric in ("macro_f1", "mcc", "geometric_mean", "accuracy")
    },
}


def test_every_metric_and_the_own_validation_set_change_the_weights(run):
    # Long enough to predict the outcome for some subject, with enough validation data for non-zero counts.
    training = {"epochs": 20, "batch_size": 8, "learning_rate": 0.1, "momentum": 0.5}
    shared = {"validation_fraction": 0.5, "training": training}
    default_run = run(strategy={"name": "SyncDVW"}, **shared)
    digests = {"usual": default_run.result["digest"]}
    for name, strategy_settings in DVW.items():
        finished = run(strategy=strategy_settings, **shared)
        digests[name] = finished.result["digest"]
        key = next(key for key in strategy_settings if key != "name")
        assert f"strategy: {key}" in render_report(finished.report())
    assert digests.pop("accuracy") == digests["usual"], "micro F1 equals accuracy with one label per row"
    assert len(set(digests.values())) == len(digests)


def test_a_learners_own_thresholds_change_when_it_sends(run):
    epochs = {"epochs": 6, "batch_size": 8}
    strategy_settings = {"name": "AsyncDVW(a)"}
    eager, patient = (
        run(strategy={**strategy_settings, "thresholds": thresholds}, training=epochs, rounds=12)
        for thresholds in ({"loss": 100, "tombstones": 0}, {"loss": 0, "tombstones": 5})
    )
    assert eager.result["digest"] != patient.result["digest"]
    assert "thresholds" in render_report(eager.report())


def test_a_run_ends_before_its_privacy_budget_is_overspent(run):
    budget = {"epsilon": 20.0, "delta": 1e-3, "noise_multiplier": 1.0}
    finished = run(privacy=budget, rounds=50)
    assert (finished.status, finished.result["reason"]) == ("stopped", "the privacy budget is spent")
    spent = [
        thresholds.metrics["epsilon"] for thresholds in finished.versions if "epsilon" in thresholds.metrics
    ]
    assert spent == sorted(spent)
    assert spent[-1] <= budget["epsilon"]
    assert finished.report()["privacy"]["epsilon_spent"] == spent[-1]
    updates = [
        body for kind, body in Journal(finished.store, finished.name).rows() if kind == "update_received"
    ]
    assert all(body.get("loss") is None and not body.get("counts") for body in updates)


@pytest.mark.slow
def test_a_privacy_budget_holds_in_processes_too(run):
    finished = run("local", privacy={"epsilon": 20.0, "delta": 1e-3, "noise_multiplier": 1.0}, rounds=50)
    assert (finished.status, finished.result["reason"]) == ("stopped", "the privacy budget is spent")
    assert finished.row.recipe["manifest"]["codec"] == "clip(norm=1.0) | gaussian_noise(std=1.0) | raw"


def run_over_network(hospitals, store, folder, **learning):
    demonstration, _ = hospitals
    options = NetworkRunOptions(min_sites=4, seed=5, bootstrap_resamples=0, poll_seconds=0.0)
    return Loop(folder, study_with(demonstration, **learning), demonstration.sites, options).run(store)


def test_a_privacy_budget_holds_over_a_network(hospitals, tmp_path):
    with Store(tmp_path / "store") as store:
        budget = {"epsilon": 20.0, "delta": 1e-3, "noise_multiplier": 1.0}
        row = run_over_network(hospitals, store, tmp_path, privacy=budget, rounds=50)
        assert (row.status, row.result["reason"]) == ("stopped", "the privacy budget is spent")
        updates = [body for kind, body in Journal(store, row.run).rows() if kind == "update_received"]
        assert all(body.get("loss") is None and not body.get("counts") for body in updates)
        assert store.models(row.run)[-1].metrics["epsilon"] <= 20


PERSONAL = {
    "model": "mlp(4)",
    "personal_layers": {"layers": ["2"]},
    "rounds": 4,
    "training": {"epochs": 10, "batch_size": 16, "learning_rate": 0.1},
}


def test_personal_layers_stay_at_the_site_and_are_used_for_evaluation(run, hospitals, tmp_path, monkeypatch):
    monkeypatch.setattr(ConsentedLearner, "has_secret_order", False)  # a secret order cannot be repeated
    local_run = run(**PERSONAL)
    names = [name for name, *_ in local_run.row.recipe["deployment"]["layout"]]
    assert names == ["0.weight", "0.bias"]
    with Store(tmp_path / "there") as store:
        network_run = run_over_network(hospitals, store, tmp_path, **PERSONAL)
    assert network_run.result["digest"] == local_run.result["digest"]
    # On one machine counts are exact; on a network these small sites release none.
    assert local_run.result["evaluation"]["is_exact"]
    assert not network_run.result["evaluation"]["is_exact"]
    fresh = run(**PERSONAL | {"training": {"epochs": 1, "learning_rate": 1e-12}})
    assert local_run.metrics["auroc"] > fresh.metrics["auroc"], "the personal layers have been trained"
    with pytest.raises(SettingsError, match="personal layers, which only the sites have"):
        local_run.predict(np.zeros((1, len(local_run.row.recipe["deployment"]["columns"]))))


@pytest.mark.slow
def test_personal_layers_in_processes_are_used_for_evaluation(run, monkeypatch):
    monkeypatch.setattr(ConsentedLearner, "has_secret_order", False)
    local_run, network_run = run(**PERSONAL), run("local", **PERSONAL)
    assert network_run.result["evaluation"] == local_run.result["evaluation"]


def test_baselines_of_personal_layers_are_refused(hospitals, tmp_path):
    demonstration, _ = hospitals
    study = study_with(demonstration, **PERSONAL)
    with pytest.raises(SettingsError, match="baselines need full models"):
        run_study(study, demonstration.sites, tmp_path / "store", replace(OPTIONS, baselines=True), now=NOW)


def test_an_estimator_of_a_study_is_there_to_be_used(run):
    finished = run(model="SGDClassifier")
    assert type(finished.model).__name__ == "SGDClassifier"
    rows = {name: [0.0, 1.0] for name in finished.row.recipe["deployment"]["columns"]}
    assert np.allclose(finished.predict(rows).sum(1), 1)


def test_the_command_that_runs_a_study_reaches_its_settings(hospitals, tmp_path):
    demonstration, _ = hospitals
    study = study_with(
        demonstration, server_optimiser="adam(rate=0.25)", robust_aggregation="median", rounds=2
    )
    (tmp_path / "study.toml").write_text(write_toml(study))
    expected_texts = ["run", str(tmp_path / "study.toml"), "--sites", *map(str, demonstration.sites)]
    done = CliRunner().invoke(app, [*expected_texts, "--store", str(tmp_path / "store"), "--json"])
    assert done.exit_code == 0, done.output
    run = json.loads(done.stdout)["run"]
    report = CliRunner().invoke(app, ["report", run, "--store", str(tmp_path / "store"), "--json"])
    method = json.loads(report.stdout)["method"]
    assert (method["server_optimiser"], method["robust_aggregation"]) == (
        {"name": "adam", "rate": 0.25},
        {"name": "median"},
    )
    shown = CliRunner().invoke(app, ["study", "show", str(tmp_path / "study.toml")]).stdout
    assert "adam(rate=0.25)" in shown
    assert "median" in shown
