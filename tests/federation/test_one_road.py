"""The one road from Python: a run is made of what it says, resumed or refused, and its result can be used."""

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
from abaton.controller import POLICIES, Rules, TrainSettings
from abaton.errors import Refused, SettingsError
from abaton.federation import Federation, Holding, Run
from abaton.federation.engine_factory import kept_secret
from abaton.lab.byzantine_learners import Noise
from abaton.learners import Examples, SklearnModel, TorchModel, logistic, mlp
from abaton.store import Journal, Store


def site(seed: int, count: int = 60) -> Examples:
    x = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    return Examples(x, (x[:, 0] + 0.3 * x[:, 1] > 0).astype(np.int64))


SITES = {name: site(i) for i, name in enumerate(("athens", "kos", "pergamon"))}
TRAINING = TrainSettings(epochs=2, learning_rate=0.2)


def made(**more) -> Federation:
    parts = {
        "model": logistic(features=4), "sites": SITES, "rules": Rules(rounds=4, training=TRAINING), "codec": "raw",
        "test": site(9), **more,
    }  # fmt: skip
    return Federation(**parts)


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened:
        yield opened


class Cut(BaseException):
    """The power went."""


def after(events: int):
    left = [events]

    def watch(*_: object) -> None:
        left[0] -= 1
        if not left[0]:
            raise Cut

    return watch


def digests(store: Store, run: str) -> list[str]:
    return [model.digest for model in store.models(run)]


class Own(torch.nn.Module):
    """A module whose words are those of its layer, whatever it does with it."""

    def __init__(self, times: float = 1.0) -> None:
        super().__init__()
        self.layer, self.times = torch.nn.Linear(4, 2), times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.times * self.layer(x)


class Edited(Own):
    """The same after its author has changed what it does; it is still called the same."""

    __qualname__ = "Own"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).tanh()

    def _get_name(self) -> str:
        return "Own"


def beginning_at(value: float) -> TorchModel:
    def module() -> torch.nn.Module:
        made = torch.nn.Linear(4, 2)
        torch.nn.init.constant_(made.weight, value)
        return made

    return TorchModel(module)


class Lazy(Noise):
    """A learner that does less than it should."""

    def epochs(self, vector, data, lesson):
        for trained in super().epochs(vector, data, lesson):
            yield replace(trained, vector=vector)


OTHER = {
    "learning rate": (
        {"rules": Rules(rounds=4, training=replace(TRAINING, learning_rate=0.1))},
        "rules.training.learning_rate was 0.2 and is 0.1",
    ),
    "policy": (
        {"rules": Rules(rounds=4, training=TRAINING, **POLICIES["AsyncFedAvg"])},
        "rules.pacing was Synchronous and is Asynchronous",
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
        {"sites": {**SITES, "kos": Holding(SITES["kos"], profile=abaton.Profile(speed=3.0))}},
        "machines.kos was nothing and is {'speed': '3.0'}",
    ),
}


ALIKE = {
    "test examples": ({}, {"test": site(10)}, "test examples was"),
    "no test examples": ({}, {"test": None}, "test examples was"),
    "an edited module": (
        {"model": TorchModel(lambda: Own())},
        {"model": TorchModel(lambda: Edited())},
        "model was Own",
    ),
    "a module's setting": (
        {"model": TorchModel(lambda: Own())},
        {"model": TorchModel(lambda: Own(2.0))},
        "model was Own",
    ),
    "first weights": ({"model": beginning_at(0.0)}, {"model": beginning_at(1.0)}, "first weights was"),
    "what a site trains instead": (
        {"sites": {**SITES, "kos": Holding(SITES["kos"], model=Noise(logistic(features=4)))}},
        {"sites": {**SITES, "kos": Holding(SITES["kos"], model=Lazy(logistic(features=4)))}},
        "the data of 'kos'",
    ),
}


@pytest.mark.parametrize(("one", "other", "says"), ALIKE.values(), ids=ALIKE)
def test_what_only_looks_alike_is_refused_too(store, one, other, says):
    first = made(**one).run("mine", store=store)
    with pytest.raises(Refused, match="made of something else") as refused:
        made(**other).run("mine", store=store)
    assert says in str(refused.value)
    assert made(**one).run("mine", store=store).result == first.result, "itself it is given back"


@pytest.mark.parametrize(("other", "says"), OTHER.values(), ids=OTHER)
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "cut off"])
def test_something_else_under_a_known_name_is_refused_and_never_the_old_model(store, other, says, ended):
    if ended:
        before = made().run("mine", store=store).vector().copy()
    else:
        with pytest.raises(Cut):
            made().run("mine", store=store, watch=after(6))
        before = store.run("mine")
    with pytest.raises(Refused, match="made of something else") as refused:
        made(**other).run("mine", store=store)
    assert says in str(refused.value)
    if ended:
        assert np.array_equal(made().run("mine", store=store).vector(), before), "the old run is as it was"
        fresh = made(**other).run(store=store)
        assert fresh.name != "mine"
        assert not np.array_equal(fresh.vector(), before) or says.startswith(("machines", "codec"))
    else:
        assert store.run("mine") == before


def test_a_number_from_an_array_is_that_number(store):
    def rules(rounds, rate):
        return Rules(rounds=rounds, training=replace(TRAINING, learning_rate=rate))

    first = made(rules=rules(np.int64(4), np.float64(0.2))).run("mine", store=store)
    assert made(rules=rules(4, 0.2)).run("mine", store=store).result == first.result
    with pytest.raises(Refused, match="rules.rounds was 4 and is 5"):
        made(rules=rules(np.int64(5), 0.2)).run("mine", store=store)


def test_other_software_is_named(store, monkeypatch):
    with pytest.raises(Cut):
        made().run("mine", store=store, watch=after(6))
    monkeypatch.setattr("abaton.federation.federation.versions", lambda: {"abaton": "9.9"})
    with pytest.raises(Refused, match=r"software.abaton was 0.1.0 and is 9.9"):
        made().run("mine", store=store)


def test_a_run_that_has_ended_is_given_back_and_nothing_is_trained(store, monkeypatch):
    first = made().run("mine", store=store)
    monkeypatch.setattr("abaton.learners.learner.Learner.send", None)
    again = made().run("mine", store=store)
    assert (again.result, again.versions) == (first.result, first.versions)


@pytest.mark.parametrize("engine", ["virtual", "local"])
@pytest.mark.parametrize("policy", ["SyncFedAvg", "SyncDVW"])
def test_a_run_resumes_from_python_with_the_same_bits(store, monkeypatch, engine, policy):
    monkeypatch.setattr("abaton.store.journal._LONGEST_WAIT", 0.0)
    rules = Rules(rounds=3, training=TRAINING, **POLICIES[policy])
    kind = {"codec": "error_feedback | stc(sparsity=0.2)", "rules": rules}
    whole = made(**kind).run("whole", store=store, engine=engine)
    events = Journal(store, whole.name).known
    for cut in (2, events // 2, events - 1):
        with pytest.raises(Cut):
            made(**kind).run(f"cut{cut}", store=store, engine=engine, watch=after(cut))
        ended = made(**kind).run(f"cut{cut}", store=store, engine=engine)
        assert ended.status == "finished"
        assert digests(store, ended.name) == digests(store, whole.name)


def test_an_asynchronous_local_run_keeps_what_had_happened(store):
    rules = Rules(rounds=12, training=TRAINING, **POLICIES["AsyncFedAvg"])
    with pytest.raises(Cut):
        made(rules=rules).run("cut", store=store, engine="local", watch=after(9))
    before = list(Journal(store, "cut").rows())
    assert before
    made(rules=rules).run("cut", store=store, engine="local")
    assert list(Journal(store, "cut").rows())[: len(before)] == before


@pytest.mark.parametrize("engine", ["virtual", "local"])
def test_nothing_of_a_run_is_left_in_the_next_one(store, engine):
    federation = made(codec="error_feedback | stc(sparsity=0.1)")
    first, second = (federation.run(name, store=store, engine=engine) for name in ("first", "second"))
    assert digests(store, first.name) == digests(store, second.name)


def test_every_run_is_listed_shown_and_reported(store):
    run = made().run("mine", store=store)
    folder = ["--store", str(store.folder)]
    (line,) = json.loads(CliRunner().invoke(app, ["runs", "--json", *folder]).stdout)
    assert (line["run"], line["status"], line["versions"]) == ("mine", "finished", 4)
    assert json.loads(CliRunner().invoke(app, ["show", "mine", "--json", *folder]).stdout)["digest"]
    told = json.loads(CliRunner().invoke(app, ["report", "mine", "--json", *folder]).stdout)
    assert told["results"]["measures"]["auroc"] == pytest.approx(run.metrics["auroc"])
    page = store.folder / "mine.html"
    run.report(page)
    assert "A federation of 3 sites" in page.read_text()


def test_the_report_of_a_run_promises_no_program_that_it_does_not_have(store, tmp_path):
    told = made().run("mine", store=store).report(tmp_path / "mine.html")
    assert told["reproduce"]["program"] is None
    page = (tmp_path / "mine.html").read_text()
    assert "The program that made the run makes it again" in page
    assert "This program makes the run again" not in page


def test_a_run_made_by_a_program_is_resumed_by_it_and_the_command_says_so(store):
    with pytest.raises(Cut):
        made().run("mine", store=store, watch=after(6))
    said = CliRunner().invoke(app, ["resume", "mine", "--store", str(store.folder)])
    assert isinstance(said.exception, SettingsError)
    assert "Federation(...).run('mine') goes on with it" in str(said.exception)


def test_the_result_is_ready_to_be_used(store):
    run = made().run("mine", store=store)
    module, x = run.model, site(9).x
    assert isinstance(module, torch.nn.Module)
    chances = module(torch.from_numpy(x)).softmax(1).detach().numpy()
    assert np.allclose(chances, run.predict(x), atol=1e-6)
    assert (run.predict(x).argmax(1) == site(9).y).mean() == pytest.approx(run.metrics["accuracy"])
    assert "accuracy" in run._repr_html_()
    assert run.versions[-1].digest == run.result["digest"]
    assert not np.array_equal(run.vector(0), run.vector())
    use = run.row.recipe["use"]
    assert use["layout"] == [["weight", [2, 4], "dense"], ["bias", [2], "bias"]]
    assert use["training"]["learning_rate"] == "0.2"
    with pytest.raises(SettingsError, match="known to the program that made it"):
        Run(store, "mine").predict(x)
    assert np.array_equal(Run(store, "mine", logistic(features=4)).predict(x), run.predict(x))
    with pytest.raises(SettingsError, match="no version 99"):
        run.vector(99)


def test_an_estimator_comes_back_as_one(store):
    from sklearn.linear_model import SGDClassifier

    model = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=4, classes=2)
    run = made(model=model).run("mine", store=store)
    assert isinstance(run.model, SGDClassifier)
    assert np.allclose(run.model.predict_proba(site(9).x), run.predict(site(9).x), atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"model": torch.nn.Linear(4, 2)}, r"this is a Linear \(model\): give a Model"),
        ({"sites": list(SITES.values())}, r"this is a list \(sites\)"),
        ({"sites": {"kos": (SITES["kos"].x, SITES["kos"].y)}}, r"this is a tuple \(site 'kos'\)"),
        ({"rules": {"rounds": 3}}, r"this is a dict \(rules\)"),
        ({"test": (SITES["kos"].x, SITES["kos"].y)}, r"this is a tuple \(test\)"),
    ],
)
def test_what_is_of_another_kind_is_refused_in_words(wrong, says):
    with pytest.raises(SettingsError, match=says):
        made(**wrong)


@pytest.mark.parametrize("where", ["/tmp/somewhere", "postgresql://server/runs"])
def test_a_store_is_not_given_as_text(where):
    with pytest.raises(SettingsError, match=r"the store's folder is a str \(store\): give a pathlib.Path"):
        made().run("mine", store=where)


@pytest.mark.parametrize("where", ["learner 'kos'", "test examples"])
def test_a_column_of_labels_is_refused_before_anything_is_measured_wrongly(store, where):
    column = Examples(SITES["kos"].x, SITES["kos"].x[:, :1])
    values = {name: Examples(each.x, each.x[:, 0]) for name, each in SITES.items()}
    wrong = {"test": column} if where == "test examples" else {"sites": {**values, "kos": column}}
    model = TorchModel(lambda: torch.nn.Linear(4, 1), task="value")
    with pytest.raises(SettingsError, match=r"the labels have the shape \(60, 1\)") as refused:
        made(**{"model": model, "sites": values, "test": None, **wrong})
    assert where in str(refused.value)


def test_what_is_not_a_number_is_not_told(store):
    run = made(test=Examples(SITES["kos"].x, np.zeros(60, np.int64))).run("mine", store=store)
    json.dumps(run.result, allow_nan=False)
    assert set(run.metrics) == {"loss", "accuracy"}, "one class has no AUROC"
    unknown = {
        "model": "community",
        "of": "all",
        "measures": {"auroc": {"value": None}, "brier": {"value": 0.2}},
    }
    told = {"evaluation": {"lines": [unknown]}}
    store.finish_run("mine", "finished", told)
    assert run.metrics == {"brier": 0.2}
    assert "brier 0.200" in repr(run)


@pytest.mark.postgres
def test_a_run_is_kept_and_gone_on_with_in_postgresql(new_database, tmp_path):
    one_class = {"test": Examples(SITES["kos"].x, np.zeros(60, np.int64))}
    with Store(tmp_path / "store", new_database()) as store:
        with pytest.raises(Cut):
            made(**one_class).run("mine", store=store, watch=after(6))
        run = made(**one_class).run("mine", store=store)
        assert run.status == "finished"
        assert set(run.metrics) == {"loss", "accuracy"}
        with pytest.raises(Refused, match="codec was raw and is fp16"):
            made(**one_class, codec="fp16").run("mine", store=store)


def test_sites_set_validation_examples_aside_when_the_rules_need_them(store):
    federation = made(rules=Rules(rounds=4, training=TRAINING, **POLICIES["AsyncDVW(na)"]), validation=0.2)
    sizes = {name: (len(one.train), len(one.validation)) for name, one in federation.sites.items()}
    assert set(sizes.values()) == {(48, 12)}
    assert federation.run(store=store).status == "finished"


def test_importing_abaton_loads_nothing_and_using_a_name_loads_its_room():
    code = (
        "import sys, abaton\n"
        "heavy = [m for m in ('numpy', 'torch', 'typing', 'pydantic') if m in sys.modules]\n"
        "assert not heavy, heavy\n"
        "abaton.Rules\n"
        "assert 'numpy' in sys.modules and 'torch' not in sys.modules\n"
        "abaton.Federation\n"
        "assert 'abaton.study' not in sys.modules and 'abaton.governance' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-S", "-c", "import site; site.main()\n" + code], check=True)


def test_what_learners_kept_is_gone_when_the_run_has_ended_and_the_secret_stays(store):
    federation = made(codec="error_feedback | stc(sparsity=0.2)")
    with pytest.raises(Cut):
        federation.run("mine", store=store, engine="local", watch=after(8))
    states = store.folder / "states" / "mine"
    assert list((states / "learners").glob("*.safetensors"))
    federation.run("mine", store=store, engine="local")
    kept = sorted(path.suffix for path in states.rglob("*") if path.is_file())
    assert kept == [".secret"] * 4, "of each site, and of the test examples: the same run is known by them"
    assert all(path.stat().st_mode & 0o077 == 0 for path in states.rglob("*.secret"))


def test_a_secret_is_drawn_once_however_many_ask_for_it(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        drawn = set(pool.map(lambda _: kept_secret(tmp_path / "states", "athens"), range(64)))
    assert len(drawn) == 1
    assert [path.suffix for path in (tmp_path / "states").iterdir()] == [".secret"]


def test_who_is_told_to_go_on_with_a_run_of_a_program(store):
    with pytest.raises(Cut):
        made().run("mine", store=store, watch=after(6))
    shown = CliRunner().invoke(app, ["show", "mine", "--store", str(store.folder)])
    assert "run('mine') in its program" in " ".join(shown.stderr.split())
    with pytest.raises(SettingsError, match=r"run\('mine'\) in its program"):
        Run(store, "mine").report()
