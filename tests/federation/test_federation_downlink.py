"""Downlink compression from Python and from a study: changes the run, is counted, reported and resumed."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

from abaton.controller import Strategy, TrainSettings
from abaton.errors import RefusedError, SettingsError
from abaton.federation import Federation
from abaton.lab import demo
from abaton.models import Examples, logistic
from abaton.report import render_report
from abaton.store import Store
from abaton.study import StudyError, describe, study_from_toml, write_toml
from abaton.study_run import StudyOptions, run_study

MODEL = logistic(features=300)


def federation(downlink: str | None = None) -> Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 300)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    sites = {"north": Examples(x[:50], y[:50]), "south": Examples(x[50:], y[50:])}
    strategy = Strategy(rounds=6, training=TrainSettings(batch_size=10))
    return Federation(MODEL, sites, strategy, downlink=downlink, test=Examples(x, y))


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened:
        yield opened


def test_without_a_downlink_only_the_bytes_are_stored(store):
    run = federation().run("plain", store=store)
    assert run.row.recipe["manifest"]["downlink"] is None
    assert "downlink" not in run.row.recipe["settings"]
    assert run.result["bytes_down"] == 12 * 4 * MODEL.layout.size


@pytest.mark.parametrize("engine", ["virtual", "local"])
def test_a_downlink_makes_another_run_with_fewer_bytes(store, engine):
    uncompressed = federation().run("plain", store=store, engine=engine)
    compressed = federation("stc(sparsity=0.05)").run("small", store=store, engine=engine)
    assert compressed.result["digest"] != uncompressed.result["digest"]
    assert compressed.result["bytes_down"] < 0.3 * uncompressed.result["bytes_down"]
    assert compressed.row.recipe["manifest"]["downlink"] == "stc(sparsity=0.05)"
    assert compressed.metrics["accuracy"] > 0.6
    report = compressed.report()
    assert report["results"]["bytes_down"] == compressed.result["bytes_down"]
    assert (
        sum(row["downlink_bytes"] for row in report["results"]["training"]["learners"])
        == compressed.result["bytes_down"]
    )
    assert report["method"]["downlink"] == "stc(sparsity=0.05)"
    assert f"{compressed.result['bytes_down']:,}" in compressed._repr_html_()


def test_the_stored_model_is_the_one_that_all_sites_have(store):
    """Versions differ by the sent delta: with a sparse codec, in few values."""
    run = federation("stc(sparsity=0.02)").run("small", store=store)
    vectors = [run.vector(version.version) for version in run.versions]
    changed = [int((one != two).sum()) for one, two in pairwise(vectors)]
    biases, weights = 2, MODEL.layout.size - 2
    assert all(0 < count <= np.ceil(0.02 * weights) + biases for count in changed)


def test_a_run_is_not_resumed_with_another_downlink(store):
    class Interrupted(Exception):
        pass

    def interrupt(state, event):
        if state.version == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        federation("stc(sparsity=0.05)").run("one", store=store, watch=interrupt)
    with pytest.raises(RefusedError, match=r"downlink was stc\(sparsity=0.05\) and is stc\(sparsity=0.1\)"):
        federation("stc(sparsity=0.1)").run("one", store=store)
    again = federation("stc(sparsity=0.05)").run("one", store=store)
    uninterrupted = federation("stc(sparsity=0.05)").run("two", store=store)
    assert again.result["digest"] == uninterrupted.result["digest"]
    assert again.result["bytes_down"] == uninterrupted.result["bytes_down"]


def test_an_impossible_downlink_is_refused_before_anything_runs():
    with pytest.raises(SettingsError, match="applies to learners' updates"):
        federation("clip(norm=1.0) | stc(sparsity=0.1)")
    with pytest.raises(SettingsError, match="there is no codec 'zip'"):
        federation("zip")


def with_downlink(study, spec: str) -> str:
    text = re.sub(r"(?m)^model = .*$", 'model = "mlp(64)"', write_toml(study))
    return re.sub(r"(?m)^codec = .*$", lambda match: f'{match[0]}\ndownlink = "{spec}"', text)


def test_a_study_document_names_a_downlink_and_the_report_shows_it(four, store, tmp_path):
    study = study_from_toml(with_downlink(four.study, "stc(sparsity=0.05)"))
    assert study.hash != four.study.hash, "sites agree to it"
    assert "stc(sparsity=0.05)" in describe(study)
    for i, site in enumerate(four.sites):  # a consent is for one study document
        (site.parent / "consents.db").unlink()
        demo._record_consents(site.parent, study, np.random.default_rng(i))
    options = StudyOptions(profiles=four.profiles, seed=5, bootstrap_resamples=0)
    run = run_study(study, four.sites, store, options, now=demo.NOW)
    traffic = run.result["traffic"]
    assert sum(site_traffic["bytes_down"] for site_traffic in traffic.values()) == run.result["bytes_down"]
    assert all(
        0 < site_traffic["bytes_down"] < site_traffic["uncompressed_down"]
        for site_traffic in traffic.values()
    )
    page = render_report(run.report())
    assert "Models sent to sites" in page
    assert "stc(sparsity=0.05)" in page


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("clip(norm=1.0) | stc(sparsity=0.1)", "applies to learners' updates"),
        ("stc(sparsity=7)", "sparsity"),
        ("zip", "there is no codec of this name"),
    ],
)
def test_an_impossible_downlink_is_refused_with_its_line(four, spec, message):
    text = with_downlink(four.study, spec)
    line_number = next(
        i for i, text_line in enumerate(text.splitlines(), 1) if text_line.startswith("downlink")
    )
    with pytest.raises(StudyError, match=message) as raised:
        study_from_toml(text)
    (problem,) = raised.value.problems
    assert (problem.line, problem.key) == (line_number, "learning.downlink")
    assert problem.remedy
