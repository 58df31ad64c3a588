"""Results on test subjects: counts of sites add up, small groups are not told, what is raw is refused by type."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from abaton.controller import TrainSettings
from abaton.federation import Member, Members, Rows, judge_models, site_counts
from abaton.study_run.preparation_state import Prepared, Scale
from abaton.learners import logistic, mlp, train_model
from abaton.metrics.classification import count_scores, judge
from abaton.features import Column, Scaled, Statistics
from abaton.study import Evaluation, Learning

ROOT = Path(__file__).resolve().parents[2]
FILE = SimpleNamespace(document=SimpleNamespace(site=SimpleNamespace(id="north")))


def scaled(rng, count: int, classes: tuple[str, ...]) -> Scaled:
    x = rng.normal(size=(count, 3)).astype(np.float32)
    if not classes:
        y = (x @ np.array([1.0, -2.0, 0.5], np.float32)).astype(np.float32)
    else:
        y = np.digitize(x[:, 0] + rng.normal(0, 0.5, count), np.linspace(-0.5, 0.5, len(classes) - 1))
    return Scaled(("a", "b", "c"), x, y, classes, tuple(f"{count} {i}" for i in range(count)))


def federation(classes: tuple[str, ...] = ("no", "yes"), small: int = 0, label=(0.0, 1.0)) -> Members:
    rng = np.random.default_rng(2)
    members = []
    for name, count in (("north", 60), ("south", 40)):
        test = scaled(rng, count, classes)
        few = small if name == "south" else 0
        groups = tuple("few" if i < few else ("a", "b")[i % 2] for i in range(count))
        file = SimpleNamespace(document=SimpleNamespace(site=SimpleNamespace(id=name)))
        members.append(Member(file, {}, Rows(test, test), test, {"sex": groups}, 5, "d"))
    prepared = Prepared(None, {}, Scale(Statistics({}), label), {})
    columns = tuple(Column(name, name) for name in "abc")
    return Members(tuple(members), {}, columns, classes, prepared, None, {})


def trained(model, made: Members):
    data = made.each[0].rows.train
    settings = TrainSettings(epochs=30, learning_rate=0.1)
    from abaton.study_run.consented_learner import examples

    return train_model(model, model.initial(0), examples(data), settings, np.random.default_rng(0)).vector


def everybody(member: Member) -> frozenset[str]:
    return frozenset(member.test.subjects)


def test_the_sum_of_the_sites_counts_is_judged_as_one_pile():
    made, model = federation(), logistic(features=3, classes=2)
    vector = trained(model, made)
    judged = judge_models(Learning(), made, model, {"community": vector}, everybody, resamples=100)
    lines = {each["subset"]: each for each in judged["lines"]}
    assert set(lines) == {"all sites", "north", "south", "sex: a", "sex: b"}
    from abaton.study_run.consented_learner import examples

    scores = np.concatenate([model.score(vector, examples(m.test)).predictions[:, 1] for m in made.each])
    labels = np.concatenate([m.test.y for m in made.each])
    exact = judge(count_scores(scores, labels), resamples=0)
    assert lines["all sites"]["measures"]["auroc"]["value"] == pytest.approx(exact["auroc"].value, abs=0.01)
    assert lines["all sites"]["subjects"] == "100"
    assert judged["curves"]["community"]["roc"][1][-1] == 1.0


def test_a_site_with_a_small_group_tells_nothing_by_that_input():
    made, model = federation(small=3), logistic(features=3, classes=2)
    told = site_counts(made.each[1], made, model, model.initial(0), everybody(made.each[1]))
    assert {each.of for each in told} == {"all", "site"}
    few = frozenset(made.each[1].test.subjects[:4])
    assert site_counts(made.each[1], made, model, model.initial(0), few) == {}


def test_more_than_two_classes_are_judged_one_against_the_rest():
    made, model = federation(("low", "middle", "high")), logistic(features=3, classes=3)
    judged = judge_models(
        Learning(), made, model, {"community": trained(model, made)}, everybody, resamples=0
    )
    assert {"all sites, low", "all sites, middle", "all sites, high"} <= {
        e["subset"] for e in judged["lines"]
    }


def test_values_are_judged_in_their_own_unit():
    made, model = federation((), label=(100.0, 10.0)), mlp(features=3, hidden=(), task="value")
    learning = Learning(task="value", network="linear", policy="SyncFedAvg", evaluation=Evaluation())
    judged = judge_models(learning, made, model, {"community": trained(model, made)}, everybody)
    measures = judged["lines"][0]["measures"]
    assert measures["r2"]["value"] > 0.95
    assert 0 < measures["rmse"]["value"] < 10


@pytest.mark.slow
def test_a_type_checker_refuses_records_where_a_scaled_table_is_needed(tmp_path):
    code = tmp_path / "wrong.py"
    code.write_text(
        "from abaton.federation import Rows\nfrom abaton.study_run.consented_learner import examples\n"
        "from abaton.record_types import Deidentified, Record\n"
        "def leak(raw: Record, clean: Deidentified) -> None:\n"
        "    examples(raw)\n    Rows(clean, clean)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(code)],
        cwd=ROOT, capture_output=True, text=True, check=False, env={"MYPYPATH": str(ROOT / "src"), "PATH": "/usr/bin"},
    )  # fmt: skip
    assert 'Argument 1 to "examples" has incompatible type "Record"' in done.stdout, done.stdout
    assert '"Deidentified"; expected "Scaled"' in done.stdout


SLOPE = ["calibration slope", "calibration intercept"]


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        (("brier",), ["brier"]),
        (("accuracy", "auroc"), ["accuracy", "auroc"]),
        (("calibration",), SLOPE),
        ((), ["auroc", "auprc", "sensitivity at specificity 0.9", *SLOPE, "brier"]),
    ],
)  # fmt: skip
def test_a_study_is_judged_by_the_measures_that_it_names(metrics, told):
    made, model = federation(), logistic(features=3)
    learning = Learning(evaluation=Evaluation(metrics=metrics))
    everybody = {each.name: frozenset(each.everybody) for each in made.each}
    judged = judge_models(
        learning, made, model, {"m": model.initial(0)}, lambda member: everybody[member.name], resamples=5
    )
    assert all(list(line["measures"]) == told for line in judged["lines"] if line["measures"])
    curves = judged["curves"]["m"]
    assert ("roc" in curves) == ("auroc" in told)
    assert ("calibration" in curves) == ("calibration slope" in told)


def test_accuracy_is_the_share_of_right_answers():
    counts = count_scores(np.array([0.2, 0.7, 0.6, 0.4]), np.array([False, True, False, True]))
    assert judge(counts, resamples=0)["accuracy"].value == 0.5
