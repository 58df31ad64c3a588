"""Federations from Python: a run has a manifest, is resumed or refused by it, and its result can be used."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import abaton
from abaton.cli.app import app
from abaton.controller import STRATEGIES, Strategy, TrainSettings
from abaton.errors import RefusedError, SettingsError
from abaton.federation import Federation, LocalSite, Run
from abaton.federation.engine_factory import load_run_secret
from abaton.lab.byzantine_learners import NoiseModel
from abaton.models import Examples, SklearnModel, TorchModel, logistic, mlp
from abaton.store import Journal, Store


def site(seed: int, count: int = 60) -> Examples:
    x = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    return Examples(x, (x[:, 0] + 0.3 * x[:, 1] > 0).astype(np.int64))


SITES = {name: site(i) for i, name in enumerate(("athens", "kos", "pergamon"))}
TRAINING = TrainSettings(epochs=2, learning_rate=0.2)


def build_federation(**settings) -> Federation:
    defaults = {
        "model": logistic(features=4), "sites": SITES, "strategy": Strategy(rounds=4, training=TRAINING),
        "codec": "raw",
        "test": site(9), **settings,
    }  # fmt: skip
    return Federation(**defaults)


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened:
        yield opened


class Interrupted(BaseException):
    """The process is interrupted."""


def interrupt_after(events: int):
    remaining = [events]

    def watch(*_: object) -> None:
        remaining[0] -= 1
        if not remaining[0]:
            raise Interrupted

    return watch


def digests(store: Store, run: str) -> list[str]:
    return [model.digest for model in store.models(run)]


class UserModule(torch.nn.Module):
    """Module whose description is that of its layer."""

    def __init__(self, times: float = 1.0) -> None:
        super().__init__()
        self.layer, self.times = torch.nn.Linear(4, 2), times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.times * self.layer(x)


class Edited(UserModule):
    """The same module with changed code and the same name."""

    __qualname__ = "UserModule"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).tanh()

    def _get_name(self) -> str:
        return "UserModule"


def model_with_weights(value: float) -> TorchModel:
    def module() -> torch.nn.Module:
        layer = torch.nn.Linear(4, 2)
        torch.nn.init.constant_(layer.weight, value)
        return layer

    return TorchModel(module)


class LazyLearner(NoiseModel):
    """Learner that does not train."""

    def epochs(self, vector, data, plan):
        for trained in super().epochs(vector, data, plan):
            yield replace(trained, vector=vector)


DIFFERENT = {
    "learning rate": (
        {"strategy": Strategy(rounds=4, training=replace(TRAINING, learning_rate=0.1))},
        "strategy.training.learning_rate was 0.2 and is 0.1",
    ),
    "strategy": (
        {"strategy": Strategy(rounds=4, training=TRAINING, **STRATEGIES["AsyncFedAvg"])},
        "strategy.scheduler was synchronous and is asynchronous",
    ),
    "codec": ({"codec": "fp16"}, "codec was raw and is fp16"),
    "data": ({"sites": {**SITES, "kos": site(77)}}, "the data of 'kos'"),
    "one label": (
        {
            "sites": {
                **SITES,
                "kos": Examples(SITES["kos"].x, np.r_[1 - SITES["kos"].y[:1], SITES["kos"].y[1:]]),
            }
        },
        "the data of 'kos'",
    ),
    "sites": ({"sites": {**SITES, "trikala": site(5)}}, "site 'trikala' is new"),
    "layout": ({"model": mlp(features=4, hidden=(3,))}, "layout was"),
    "another network with the same layout": (
        {"model": TorchModel(lambda: torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Tanh()))},
        "model was",
    ),
    "machine": (
        {"sites": {**SITES, "kos": LocalSite(SITES["kos"], profile=abaton.MachineProfile(speed=3.0))}},
        "machines.kos was nothing and is {'speed': '3.0'}",
    ),
}


SIMILAR = {
    "test examples": ({}, {"test": site(10)}, "test_examples was"),
    "no test examples": ({}, {"test": None}, "test_examples was"),
    "an edited module": (
        {"model": TorchModel(lambda: UserModule())},
        {"model": TorchModel(lambda: Edited())},
        "model was UserModule",
    ),
    "a module's setting": (
        {"model": TorchModel(lambda: UserModule())},
        {"model": TorchModel(lambda: UserModule(2.0))},
        "model was UserModule",
    ),
    "first weights": (
        {"model": model_with_weights(0.0)},
        {"model": model_with_weights(1.0)},
        "initial_model was",
    ),
    "what a site trains instead": (
        {"sites": {**SITES, "kos": LocalSite(SITES["kos"], model=NoiseModel(logistic(features=4)))}},
        {"sites": {**SITES, "kos": LocalSite(SITES["kos"], model=LazyLearner(logistic(features=4)))}},
        "the data of 'kos'",
    ),
}


@pytest.mark.parametrize(("first_settings", "other", "message"), SIMILAR.values(), ids=SIMILAR)
def test_similar_runs_are_refused(store, first_settings, other, message):
    first = build_federation(**first_settings).run("mine", store=store)
    with pytest.raises(RefusedError, match="has a different manifest") as refused:
        build_federation(**other).run("mine", store=store)
    assert message in str(refused.value)
    assert build_federation(**first_settings).run("mine", store=store).result == first.result, (
        "the same run is returned"
    )


@pytest.mark.parametrize(("other", "message"), DIFFERENT.values(), ids=DIFFERENT)
@pytest.mark.parametrize("is_finished", [True, False], ids=["finished", "interrupted"])
def test_a_different_run_with_a_known_name_is_refused(store, other, message, is_finished):
    if is_finished:
        before = build_federation().run("mine", store=store).vector().copy()
    else:
        with pytest.raises(Interrupted):
            build_federation().run("mine", store=store, watch=interrupt_after(6))
        before = store.run("mine")
    with pytest.raises(RefusedError, match="has a different manifest") as refused:
        build_federation(**other).run("mine", store=store)
    assert message in str(refused.value)
    if is_finished:
        assert np.array_equal(build_federation().run("mine", store=store).vector(), before), (
            "the old run is unchanged"
        )
        fresh = build_federation(**other).run(store=store)
        assert fresh.name != "mine"
        assert not np.array_equal(fresh.vector(), before) or message.startswith(("machines", "codec"))
    else:
        assert store.run("mine") == before


def test_numpy_numbers_equal_python_numbers(store):
    def strategy(rounds, rate):
        return Strategy(rounds=rounds, training=replace(TRAINING, learning_rate=rate))

    first = build_federation(strategy=strategy(np.int64(4), np.float64(0.2))).run("mine", store=store)
    assert build_federation(strategy=strategy(4, 0.2)).run("mine", store=store).result == first.result
    with pytest.raises(RefusedError, match="strategy.rounds was 4 and is 5"):
        build_federation(strategy=strategy(np.int64(5), 0.2)).run("mine", store=store)


def test_other_software_is_named(store, monkeypatch):
    with pytest.raises(Interrupted):
        build_federation().run("mine", store=store, watch=interrupt_after(6))
    monkeypatch.setattr("abaton.federation.federation.software_versions", lambda: {"abaton": "9.9"})
    with pytest.raises(RefusedError, match=r"software.abaton was 0.1.0 and is 9.9"):
        build_federation().run("mine", store=store)


def test_a_finished_run_is_returned_without_training(store, monkeypatch):
    first = build_federation().run("mine", store=store)
    monkeypatch.setattr("abaton.learners.learner.Learner.send", None)
    again = build_federation().run("mine", store=store)
    assert (again.result, again.versions) == (first.result, first.versions)


@pytest.mark.parametrize("engine", ["virtual", "local"])
@pytest.mark.parametrize("strategy_name", ["SyncFedAvg", "SyncDVW"])
def test_a_run_resumes_from_python_with_the_same_bits(store, monkeypatch, engine, strategy_name):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    strategy = Strategy(rounds=3, training=TRAINING, **STRATEGIES[strategy_name])
    settings = {"codec": "error_feedback | stc(sparsity=0.2)", "strategy": strategy}
    uninterrupted = build_federation(**settings).run("whole", store=store, engine=engine)
    events = Journal(store, uninterrupted.name).stored_events
    for cut in (2, events // 2, events - 1):
        with pytest.raises(Interrupted):
            build_federation(**settings).run(
                f"cut{cut}", store=store, engine=engine, watch=interrupt_after(cut)
            )
        resumed = build_federation(**settings).run(f"cut{cut}", store=store, engine=engine)
        assert resumed.status == "finished"
        assert digests(store, resumed.name) == digests(store, uninterrupted.name)


def test_an_asynchronous_local_run_keeps_what_had_happened(store):
    strategy = Strategy(rounds=12, training=TRAINING, **STRATEGIES["AsyncFedAvg"])
    with pytest.raises(Interrupted):
        build_federation(strategy=strategy).run("cut", store=store, engine="local", watch=interrupt_after(9))
    before = list(Journal(store, "cut").rows())
    assert before
    build_federation(strategy=strategy).run("cut", store=store, engine="local")
    assert list(Journal(store, "cut").rows())[: len(before)] == before


@pytest.mark.parametrize("engine", ["virtual", "local"])
def test_runs_are_independent(store, engine):
    federation = build_federation(codec="error_feedback | stc(sparsity=0.1)")
    first, second = (federation.run(name, store=store, engine=engine) for name in ("first", "second"))
    assert digests(store, first.name) == digests(store, second.name)


def test_every_run_is_listed_shown_and_reported(store):
    run = build_federation().run("mine", store=store)
    folder = ["--store", str(store.folder)]
    (line,) = json.loads(CliRunner().invoke(app, ["runs", "--json", *folder]).stdout)
    assert (line["run"], line["status"], line["versions"]) == ("mine", "finished", 4)
    assert json.loads(CliRunner().invoke(app, ["show", "mine", "--json", *folder]).stdout)["digest"]
    report = json.loads(CliRunner().invoke(app, ["report", "mine", "--json", *folder]).stdout)
    assert report["results"]["metrics"]["auroc"] == pytest.approx(run.metrics["auroc"])
    page = store.folder / "mine.html"
    run.report(page)
    assert "A federation of 3 sites" in page.read_text()


def test_the_report_of_a_user_defined_run_has_no_program(store, tmp_path):
    report = build_federation().run("mine", store=store).report(tmp_path / "mine.html")
    assert report["provenance"]["program"] is None
    page = (tmp_path / "mine.html").read_text()
    assert "Start the program of the run again" in page
    assert "This program repeats the run" not in page


def test_the_command_refers_to_the_program_of_a_run(store):
    with pytest.raises(Interrupted):
        build_federation().run("mine", store=store, watch=interrupt_after(6))
    result = CliRunner().invoke(app, ["resume", "mine", "--store", str(store.folder)])
    assert isinstance(result.exception, SettingsError)
    assert "Federation(...).run('mine') resumes the run" in str(result.exception)


def test_the_result_is_ready_to_be_used(store):
    run = build_federation().run("mine", store=store)
    module, x = run.model, site(9).x
    assert isinstance(module, torch.nn.Module)
    probabilities = module(torch.from_numpy(x)).softmax(1).detach().numpy()
    assert np.allclose(probabilities, run.predict(x), atol=1e-6)
    assert (run.predict(x).argmax(1) == site(9).y).mean() == pytest.approx(run.metrics["accuracy"])
    assert "accuracy" in run._repr_html_()
    assert run.versions[-1].digest == run.result["digest"]
    assert not np.array_equal(run.vector(0), run.vector())
    deployment = run.row.recipe["deployment"]
    assert deployment["layout"] == [["weight", [2, 4], "dense"], ["bias", [2], "bias"]]
    assert deployment["training"]["learning_rate"] == "0.2"
    with pytest.raises(SettingsError, match="defined by the program that created the run"):
        Run(store, "mine").predict(x)
    assert np.array_equal(Run(store, "mine", logistic(features=4)).predict(x), run.predict(x))
    with pytest.raises(SettingsError, match="no version 99"):
        run.vector(99)


def test_an_estimator_comes_back_as_one(store):
    from sklearn.linear_model import SGDClassifier

    model = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=4, classes=2)
    run = build_federation(model=model).run("mine", store=store)
    assert isinstance(run.model, SGDClassifier)
    assert np.allclose(run.model.predict_proba(site(9).x), run.predict(site(9).x), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": torch.nn.Linear(4, 2)}, r"the argument is a Linear \(model\): give a Model"),
        ({"sites": list(SITES.values())}, r"the argument is a list \(sites\)"),
        ({"sites": {"kos": (SITES["kos"].x, SITES["kos"].y)}}, r"the argument is a tuple \(site 'kos'\)"),
        ({"strategy": {"rounds": 3}}, r"the argument is a dict \(strategy\)"),
        ({"test": (SITES["kos"].x, SITES["kos"].y)}, r"the argument is a tuple \(test\)"),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(arguments, message):
    with pytest.raises(SettingsError, match=message):
        build_federation(**arguments)


@pytest.mark.parametrize("where", ["/tmp/store", "postgresql://server/runs"])
def test_a_store_is_not_given_as_text(where):
    with pytest.raises(SettingsError, match=r"the store's folder is a str \(store\): give a pathlib.Path"):
        build_federation().run("mine", store=where)


@pytest.mark.parametrize("where", ["learner 'kos'", "test examples"])
def test_a_column_of_labels_is_refused(store, where):
    column = Examples(SITES["kos"].x, SITES["kos"].x[:, :1])
    values = {name: Examples(examples.x, examples.x[:, 0]) for name, examples in SITES.items()}
    arguments = {"test": column} if where == "test examples" else {"sites": {**values, "kos": column}}
    model = TorchModel(lambda: torch.nn.Linear(4, 1), task="regression")
    with pytest.raises(SettingsError, match=r"the labels have the shape \(60, 1\)") as refused:
        build_federation(**{"model": model, "sites": values, "test": None, **arguments})
    assert where in str(refused.value)


def test_metrics_that_are_not_finite_are_omitted(store):
    run = build_federation(test=Examples(SITES["kos"].x, np.zeros(60, np.int64))).run("mine", store=store)
    json.dumps(run.result, allow_nan=False)
    assert set(run.metrics) == {"loss", "accuracy"}, "one class has no AUROC"
    unknown = {
        "model": "community",
        "grouping": "all",
        "metrics": {"auroc": {"value": None}, "brier": {"value": 0.2}},
    }
    report = {"evaluation": {"rows": [unknown]}}
    store.finish_run("mine", "finished", report)
    assert run.metrics == {"brier": 0.2}
    assert "brier 0.200" in repr(run)


@pytest.mark.postgres
def test_a_run_is_stored_and_resumed_in_postgresql(new_database, tmp_path):
    one_class = {"test": Examples(SITES["kos"].x, np.zeros(60, np.int64))}
    with Store(tmp_path / "store", new_database()) as store:
        with pytest.raises(Interrupted):
            build_federation(**one_class).run("mine", store=store, watch=interrupt_after(6))
        run = build_federation(**one_class).run("mine", store=store)
        assert run.status == "finished"
        assert set(run.metrics) == {"loss", "accuracy"}
        with pytest.raises(RefusedError, match="codec was raw and is fp16"):
            build_federation(**one_class, codec="fp16").run("mine", store=store)


def test_sites_hold_out_validation_examples_when_the_strategy_needs_them(store):
    federation = build_federation(
        strategy=Strategy(rounds=4, training=TRAINING, **STRATEGIES["AsyncDVW(na)"]), validation_fraction=0.2
    )
    sizes = {name: (len(local.train), len(local.validation)) for name, local in federation.sites.items()}
    assert set(sizes.values()) == {(48, 12)}
    assert federation.run(store=store).status == "finished"


def test_importing_abaton_loads_nothing_and_using_a_name_loads_its_package():
    code = (
        "import sys, abaton\n"
        "heavy = [m for m in ('numpy', 'torch', 'typing', 'pydantic') if m in sys.modules]\n"
        "assert not heavy, heavy\n"
        "abaton.Strategy\n"
        "assert 'numpy' in sys.modules and 'torch' not in sys.modules\n"
        "abaton.Federation\n"
        "assert 'abaton.study' not in sys.modules and 'abaton.governance' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-S", "-c", "import site; site.main()\n" + code], check=True)


def test_learner_states_are_deleted_after_a_run_and_secrets_are_kept(store):
    federation = build_federation(codec="error_feedback | stc(sparsity=0.2)")
    with pytest.raises(Interrupted):
        federation.run("mine", store=store, engine="local", watch=interrupt_after(8))
    states = store.folder / "states" / "mine"
    assert list((states / "learners").glob("*.safetensors"))
    federation.run("mine", store=store, engine="local")
    suffixes = sorted(path.suffix for path in states.rglob("*") if path.is_file())
    assert suffixes == [".secret"] * 4, "of each site, and of the test examples"
    assert all(path.stat().st_mode & 0o077 == 0 for path in states.rglob("*.secret"))


def test_concurrent_callers_get_one_secret(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(lambda _: load_run_secret(tmp_path / "states", "athens"), range(64)))
    assert len(secrets) == 1
    assert [path.suffix for path in (tmp_path / "states").iterdir()] == [".secret"]


def test_an_interrupted_run_refers_to_its_program(store):
    with pytest.raises(Interrupted):
        build_federation().run("mine", store=store, watch=interrupt_after(6))
    shown = CliRunner().invoke(app, ["show", "mine", "--store", str(store.folder)])
    assert "run('mine') in its program" in " ".join(shown.stderr.split())
    with pytest.raises(SettingsError, match=r"run\('mine'\) in its program"):
        Run(store, "mine").report()
