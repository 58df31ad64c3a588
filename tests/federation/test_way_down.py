"""A compressed way down, from Python and from a study: it changes the run, is counted, told, pinned and resumed."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

from abaton.controller import Rules, TrainSettings
from abaton.errors import Refused, SettingsError
from abaton.federation import Federation, StudyOptions, run_study
from abaton.lab import demo
from abaton.learners import Examples, logistic
from abaton.report import page_of
from abaton.store import Store
from abaton.study import StudyError, describe, study_from_toml, write_toml

MODEL = logistic(features=300)


def federation(downlink: str | None = None) -> Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 300)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    sites = {"north": Examples(x[:50], y[:50]), "south": Examples(x[50:], y[50:])}
    rules = Rules(rounds=6, training=TrainSettings(batch_size=10))
    return Federation(MODEL, sites, rules, downlink=downlink, test=Examples(x, y))


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened:
        yield opened


def test_without_a_downlink_nothing_but_the_bytes_is_told(store):
    run = federation().run("plain", store=store)
    assert run.row.recipe["fingerprint"]["downlink"] is None
    assert "downlink" not in run.row.recipe["settings"]
    assert run.result["bytes_down"] == 12 * 4 * MODEL.layout.size


@pytest.mark.parametrize("engine", ["virtual", "local"])
def test_a_downlink_makes_another_run_with_fewer_bytes(store, engine):
    plain = federation().run("plain", store=store, engine=engine)
    small = federation("stc(sparsity=0.05)").run("small", store=store, engine=engine)
    assert small.result["digest"] != plain.result["digest"]
    assert small.result["bytes_down"] < 0.3 * plain.result["bytes_down"]
    assert small.row.recipe["fingerprint"]["downlink"] == "stc(sparsity=0.05)"
    assert small.metrics["accuracy"] > 0.6
    told = small.report()
    assert told["results"]["bytes_down"] == small.result["bytes_down"]
    assert sum(line["down"] for line in told["results"]["course"]["learners"]) == small.result["bytes_down"]
    assert told["method"]["downlink"] == "stc(sparsity=0.05)"
    assert f"{small.result['bytes_down']:,}" in small._repr_html_()


def test_the_model_that_is_judged_and_kept_is_the_one_that_everybody_holds(store):
    """Versions differ from each other by what was sent: of a sparse codec, in few of their numbers."""
    run = federation("stc(sparsity=0.02)").run("small", store=store)
    vectors = [run.vector(version.version) for version in run.versions]
    changed = [int((one != two).sum()) for one, two in pairwise(vectors)]
    biases, weights = 2, MODEL.layout.size - 2
    assert all(0 < count <= np.ceil(0.02 * weights) + biases for count in changed)


def test_a_run_is_not_gone_on_with_under_another_downlink(store):
    class Cut(Exception):
        pass

    def cut(state, event):
        if state.version == 3:
            raise Cut

    with pytest.raises(Cut):
        federation("stc(sparsity=0.05)").run("one", store=store, watch=cut)
    with pytest.raises(Refused, match=r"downlink was stc\(sparsity=0.05\) and is stc\(sparsity=0.1\)"):
        federation("stc(sparsity=0.1)").run("one", store=store)
    again = federation("stc(sparsity=0.05)").run("one", store=store)
    whole = federation("stc(sparsity=0.05)").run("two", store=store)
    assert again.result["digest"] == whole.result["digest"]
    assert again.result["bytes_down"] == whole.result["bytes_down"]


def test_an_impossible_downlink_is_refused_before_anything_runs():
    with pytest.raises(SettingsError, match="is for the updates of learners"):
        federation("clip(norm=1.0) | stc(sparsity=0.1)")
    with pytest.raises(SettingsError, match="there is no codec 'zip'"):
        federation("zip")


def with_downlink(study, line: str) -> str:
    text = re.sub(r"(?m)^network = .*$", 'network = "mlp(64)"', write_toml(study))
    return re.sub(r"(?m)^codec = .*$", lambda found: f'{found[0]}\ndownlink = "{line}"', text)


def test_a_study_document_names_a_downlink_and_the_report_tells_it(four, store, tmp_path):
    study = study_from_toml(with_downlink(four.study, "stc(sparsity=0.05)"))
    assert study.hash != four.study.hash, "sites agree to it"
    assert "stc(sparsity=0.05)" in describe(study)
    for i, site in enumerate(four.sites):  # a consent is for one study document
        (site.parent / "consents.db").unlink()
        demo._ask_everybody(site.parent, study, np.random.default_rng(i))
    options = StudyOptions(profiles=four.profiles, seed=5, resamples=0)
    run = run_study(study, four.sites, store, options, now=demo.NOW)
    traffic = run.result["traffic"]
    assert sum(each["bytes_down"] for each in traffic.values()) == run.result["bytes_down"]
    assert all(0 < each["bytes_down"] < each["uncompressed_down"] for each in traffic.values())
    page = page_of(run.report())
    assert "Models on the way down" in page
    assert "stc(sparsity=0.05)" in page


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("clip(norm=1.0) | stc(sparsity=0.1)", "is for the updates of learners"),
        ("stc(sparsity=7)", "sparsity"),
        ("zip", "there is no codec 'zip'"),
    ],
)
def test_an_impossible_downlink_is_refused_with_its_line(four, line, what):
    text = with_downlink(four.study, line)
    place = next(i for i, words in enumerate(text.splitlines(), 1) if words.startswith("downlink"))
    with pytest.raises(StudyError, match=what) as raised:
        study_from_toml(text)
    (problem,) = raised.value.problems
    assert (problem.line, problem.key) == (place, "learning.downlink")
    assert problem.remedy
