"""Evaluation on test subjects: counts of sites add up, small groups are suppressed, raw records are type errors."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from abaton.controller import TrainSettings
from abaton.features import ColumnStatistics, FeatureColumn, ScaledTable
from abaton.metrics.classification import count_scores, evaluate_classifier
from abaton.models import logistic, mlp, train_model
from abaton.report.findings import main_finding
from abaton.study import EvaluationSection, LearningSection
from abaton.study_run import PreparedSite, PreparedSites, SubjectRows, evaluate_at_site, evaluate_models
from abaton.study_run.consented_learner import select_rows, to_examples
from abaton.study_run.evaluation import (
    ALL_SITES,
    EvaluationGroup,
    count_at_site,
    count_predictions,
    evaluate_counts,
    expand_counts,
    expand_groups,
)
from abaton.study_run.preparation_state import CommonScale, PreparationState

ROOT = Path(__file__).resolve().parents[2]
FILE = SimpleNamespace(config=SimpleNamespace(site=SimpleNamespace(id="north")))


def scaled(rng, count: int, classes: tuple[str, ...]) -> ScaledTable:
    x = rng.normal(size=(count, 3)).astype(np.float32)
    if not classes:
        y = (x @ np.array([1.0, -2.0, 0.5], np.float32)).astype(np.float32)
    else:
        y = np.digitize(x[:, 0] + rng.normal(0, 0.5, count), np.linspace(-0.5, 0.5, len(classes) - 1))
    return ScaledTable(("a", "b", "c"), x, y, classes, tuple(f"{count} {i}" for i in range(count)))


def federation(classes: tuple[str, ...] = ("no", "yes"), small: int = 0, label=(0.0, 1.0)) -> PreparedSites:
    rng = np.random.default_rng(2)
    sites = []
    for name, count in (("north", 60), ("south", 40)):
        test = scaled(rng, count, classes)
        group_size = small if name == "south" else 0
        groups = tuple("small" if i < group_size else ("a", "b")[i % 2] for i in range(count))
        file = SimpleNamespace(config=SimpleNamespace(site=SimpleNamespace(id=name)))
        sites.append(PreparedSite(file, {}, SubjectRows(test, test), test, {"sex": groups}, 5, "d"))
    preparation = PreparationState(None, {}, CommonScale(ColumnStatistics({}), label), {})
    columns = tuple(FeatureColumn(name, name) for name in "abc")
    return PreparedSites(tuple(sites), {}, columns, classes, preparation, None, {})


def trained(model, prepared: PreparedSites):
    data = prepared.sites[0].rows.train
    settings = TrainSettings(epochs=30, learning_rate=0.1)
    return train_model(model, model.initial(0), to_examples(data), settings, np.random.default_rng(0)).vector


def all_test_subjects(site: PreparedSite) -> frozenset[str]:
    return frozenset(site.test.subjects)


def test_metrics_of_summed_counts_equal_pooled_metrics():
    prepared, model = federation(), logistic(features=3, classes=2)
    vector = trained(model, prepared)
    results = evaluate_models(
        LearningSection(), prepared, model, {"community": vector}, all_test_subjects, bootstrap_resamples=100
    )
    rows = {row["group"]: row for row in results["rows"]}
    assert set(rows) == {"all sites", "north", "south", "sex: a", "sex: b"}
    from abaton.study_run.consented_learner import to_examples

    scores = np.concatenate(
        [model.score(vector, to_examples(m.test)).predictions[:, 1] for m in prepared.sites]
    )
    labels = np.concatenate([m.test.y for m in prepared.sites])
    exact = evaluate_classifier(count_scores(scores, labels), resamples=0)
    assert rows["all sites"]["metrics"]["auroc"]["value"] == pytest.approx(exact["auroc"].value, abs=1e-12)
    assert rows["all sites"]["subjects"] == "100"
    assert results["curves"]["community"]["roc"][1][-1] == 1.0


def validated(flip_validation: bool = False, flip_test: bool = False) -> PreparedSites:
    """Return sites with validation rows other than their test rows; labels may be flipped."""
    prepared, rng = federation(), np.random.default_rng(7)
    sites = []
    for site in prepared.sites:
        validation, test = scaled(rng, 80, ("no", "yes")), site.test
        if flip_validation:
            validation = replace(validation, y=1 - validation.y)
        if flip_test:
            test = replace(test, y=1 - test.y)
        sites.append(replace(site, rows=SubjectRows(site.rows.train, validation), test=test))
    return replace(prepared, sites=tuple(sites))


def recalibrate(prepared: PreparedSites, subjects_of=None) -> dict:
    model = logistic(features=3, classes=2)
    vector = trained(model, federation())
    subjects_of = subjects_of or (lambda site: frozenset(site.rows.validation.subjects + site.test.subjects))
    results = evaluate_models(
        LearningSection(), prepared, model, {"community": vector}, subjects_of, bootstrap_resamples=0
    )
    return results["recalibration"]["community"]


def test_the_recalibration_is_fitted_on_validation_rows_in_force_and_evaluated_on_test_rows():
    from sklearn.linear_model import LogisticRegression

    prepared, model = validated(), logistic(features=3, classes=2)
    vector, line = trained(model, federation()), recalibrate(validated())
    odds, labels, test_odds, test_labels = [], [], [], []
    for site in prepared.sites:
        for rows, xs, ys in ((site.rows.validation, odds, labels), (site.test, test_odds, test_labels)):
            p = model.score(vector, to_examples(rows)).predictions[:, 1].astype(float)
            xs.append(np.log(p / (1 - p)))
            ys.append(rows.y)
    reference = LogisticRegression(C=np.inf, tol=1e-10).fit(
        np.concatenate(odds)[:, None], np.concatenate(labels)
    )
    expected = [float(reference.intercept_[0]), float(reference.coef_[0, 0])]
    assert line["status"] == "fitted"
    assert [line["intercept"], line["slope"]] == pytest.approx(expected, abs=1e-4)
    after = reference.decision_function(np.concatenate(test_odds)[:, None])[:, None]
    on_test = LogisticRegression(C=np.inf, tol=1e-10).fit(after, np.concatenate(test_labels))
    assert line["test"]["calibration slope"]["value"] == pytest.approx(float(on_test.coef_[0, 0]), abs=1e-3)

    flipped = recalibrate(validated(flip_test=True))
    assert [flipped[name] for name in ("intercept", "slope")] == [
        line[name] for name in ("intercept", "slope")
    ]
    assert flipped["test"] != line["test"]
    reversed_line = recalibrate(validated(flip_validation=True))
    assert reversed_line["slope"] == pytest.approx(-line["slope"], rel=1e-6)
    assert (reversed_line["status"], reversed_line["test"]) == ("slope not above 0", None)


def test_withdrawn_validation_subjects_do_not_change_the_recalibration():
    prepared = validated()
    in_force = {site.name: frozenset(site.rows.validation.subjects[:50]) for site in prepared.sites}
    shorter = replace(prepared, sites=tuple(
        replace(site, rows=SubjectRows(
            site.rows.train, select_rows(site.rows.validation, np.arange(50)))) for site in prepared.sites
    ))  # fmt: skip
    withdrawn = recalibrate(prepared, lambda site: in_force[site.name] | frozenset(site.test.subjects))
    assert withdrawn == recalibrate(shorter)
    assert withdrawn["slope"] != recalibrate(prepared)["slope"]
    rare = recalibrate(prepared, lambda site: frozenset(site.rows.validation.subjects[:14]))
    assert rare == {"intercept": None, "slope": None, "status": "too few", "test": None}


def test_no_recalibration_is_released_on_a_network():
    site = example_site("north", 40, 60)
    results = evaluate_counts(LearningSection(), ("no", "yes"), 5, {"community": [released(site)]})
    expected = {"intercept": None, "slope": None, "status": "not released", "test": None}
    assert results["recalibration"] == {"community": expected}


def test_an_input_with_a_small_group_is_suppressed():
    prepared, model = federation(small=3), logistic(features=3, classes=2)
    counts = evaluate_at_site(
        prepared.sites[1], prepared, model, model.initial(0), all_test_subjects(prepared.sites[1])
    )
    assert {group.grouping for group in counts} == {"all", "site"}
    four_subjects = frozenset(prepared.sites[1].test.subjects[:4])
    assert evaluate_at_site(prepared.sites[1], prepared, model, model.initial(0), four_subjects) == {}


def test_more_than_two_classes_are_evaluated_one_against_the_rest():
    prepared, model = federation(("low", "middle", "high")), logistic(features=3, classes=3)
    results = evaluate_models(
        LearningSection(),
        prepared,
        model,
        {"community": trained(model, prepared)},
        all_test_subjects,
        bootstrap_resamples=0,
    )
    assert {"all sites, low", "all sites, middle", "all sites, high"} <= {
        row["group"] for row in results["rows"]
    }


def test_regression_metrics_are_in_the_unit_of_the_label():
    prepared, model = federation((), label=(100.0, 10.0)), mlp(features=3, hidden=(), task="regression")
    learning = LearningSection(
        task="regression", model="linear", strategy="SyncFedAvg", evaluation=EvaluationSection()
    )
    results = evaluate_models(
        learning, prepared, model, {"community": trained(model, prepared)}, all_test_subjects
    )
    metrics = results["rows"][0]["metrics"]
    assert metrics["r2"]["value"] > 0.95
    assert 0 < metrics["rmse"]["value"] < 10


@pytest.mark.slow
def test_a_type_checker_refuses_records_where_a_scaled_table_is_needed(tmp_path):
    code = tmp_path / "wrong.py"
    code.write_text(
        "from abaton.study_run.consented_learner import SubjectRows, to_examples\n"
        "from abaton.record_types import DeidentifiedRecord, Record\n"
        "def leak(raw: Record, deidentified: DeidentifiedRecord) -> None:\n"
        "    to_examples(raw)\n    SubjectRows(deidentified, deidentified)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(code)],
        cwd=ROOT, capture_output=True, text=True, check=False, env={"MYPYPATH": str(ROOT / "src"), "PATH": "/usr/bin"},
    )  # fmt: skip
    assert 'Argument 1 to "to_examples" has incompatible type "Record"' in done.stdout, done.stdout
    assert '"DeidentifiedRecord"; expected "ScaledTable"' in done.stdout


SLOPE = ["calibration slope", "calibration intercept"]


@pytest.mark.parametrize(
    ("metrics", "result_names"),
    [
        (("brier",), ["brier"]),
        (("accuracy", "auroc"), ["accuracy", "auroc"]),
        (("calibration",), SLOPE),
        ((), ["auroc", "auprc", "sensitivity at specificity 0.9", *SLOPE, "brier"]),
    ],
)  # fmt: skip
def test_a_study_is_evaluated_by_its_metrics(metrics, result_names):
    prepared, model = federation(), logistic(features=3)
    learning = LearningSection(evaluation=EvaluationSection(metrics=metrics))
    subjects = {site.name: frozenset(site.all_subjects) for site in prepared.sites}
    results = evaluate_models(
        learning,
        prepared,
        model,
        {"m": model.initial(0)},
        lambda member: subjects[member.name],
        bootstrap_resamples=5,
    )
    assert all(list(row["metrics"]) == result_names for row in results["rows"] if row["metrics"])
    curves = results["curves"]["m"]
    assert ("roc" in curves) == ("auroc" in result_names)
    assert ("calibration" in curves) == ("calibration slope" in result_names)


def test_accuracy_is_the_fraction_of_correct_predictions():
    counts = count_scores(np.array([0.2, 0.7, 0.6, 0.4]), np.array([False, True, False, True]))
    assert evaluate_classifier(counts, resamples=0)["accuracy"].value == 0.5


BINARY = SimpleNamespace(classes=("no", "yes"), label=(0.0, 1.0))


def example_site(name: str, cases: int, controls: int, groups=()) -> PreparedSite:
    rng = np.random.default_rng(cases)
    y = np.array([1] * cases + [0] * controls)
    x = (rng.normal(size=(len(y), 3)) + y[:, None]).astype(np.float32)
    test = ScaledTable(("a", "b", "c"), x, y, ("no", "yes"), tuple(f"{name} {i}" for i in range(len(y))))
    file = SimpleNamespace(config=SimpleNamespace(site=SimpleNamespace(id=name)))
    by_group = {"sex": tuple(groups)} if groups else {}
    return PreparedSite(file, {}, SubjectRows(test, test), test, by_group, 5, "d")


def released(site: PreparedSite):
    def predict(data):
        probabilities = 1 / (1 + np.exp(-data.x[:, :1].astype(np.float64)))
        return np.hstack([1 - probabilities, probabilities])

    return count_at_site(site, BINARY, predict, frozenset(site.test.subjects))


@pytest.mark.parametrize(("cases", "controls"), [(14, 90), (90, 14), (4, 90), (0, 90)])
def test_a_site_never_releases_controls_without_cases(cases, controls):
    for histograms in released(example_site("troy", cases, controls)).values():
        assert [(h.cases.sum(), h.controls.sum()) for h in histograms] == [(0, 0)]
    for histograms in released(example_site("troy", 15, 15)).values():
        assert [(h.cases.sum(), h.controls.sum()) for h in histograms] == [(15, 15)]


def test_the_finding_counts_sites_and_people_that_were_evaluated():
    """Five regions of which three have too few cases: neither they nor their people are in the sentence."""
    regions = {"west": (20, 80), "south": (16, 60), "asia": (3, 70), "north": (9, 40), "east": (0, 30)}
    counts = [expand_counts(released(example_site(name, *sizes))) for name, sizes in regions.items()]
    results = evaluate_counts(
        LearningSection(), ("no", "yes"), 5, {"community": counts}, bootstrap_resamples=20
    )
    overall, *others = results["rows"]
    assert (overall["subjects"], overall["sites"]) == ("176", 2)
    assert {row["group"] for row in others} == {"west", "south"}
    finding = main_finding({"outcome": "death"}, results)
    assert "in 176 held-out test subjects of 2 sites" in finding["text"]
    none = evaluate_counts(
        LearningSection(), ("no", "yes"), 5, {"community": counts[2:]}, bootstrap_resamples=0
    )
    assert [(row["group"], row["subjects"], row["sites"], row["metrics"]) for row in none["rows"]] == [
        ("all sites", "0", 0, None)
    ]
    assert main_finding({"outcome": "death"}, none) is None


def test_a_site_without_a_comparable_pair_is_not_counted():
    y = np.array([[float(i + 1), i % 2] for i in range(40)])
    target = SimpleNamespace(classes=(), label=(0.0, 1.0))
    sums = [count_predictions(np.linspace(1, 0, 40), y, target, 0)]
    sums.append(
        count_predictions(np.linspace(1, 0, 9), np.array([[float(i), 0.0] for i in range(9)]), target, 0)
    )
    learning = LearningSection(
        task="survival", model="logistic", evaluation=EvaluationSection(metrics=("concordance",))
    )
    group = EvaluationGroup(ALL_SITES, "all")
    results = evaluate_counts(learning, (), 5, {"community": [{group: part} for part in sums]})
    assert [(row["subjects"], row["sites"]) for row in results["rows"]] == [("40", 1)]


@pytest.mark.parametrize(("female_cases", "is_evaluated"), [(9, False), (10, True)])
def test_groups_need_ten_cases_and_ten_controls(female_cases, is_evaluated):
    sexes = ["f"] * female_cases + ["m"] * (60 - female_cases) + ["f"] * 40 + ["m"] * 40
    site = example_site("troy", 60, 80, sexes)
    prepared = PreparedSites(
        (site,), {}, tuple(FeatureColumn(name, name) for name in "abc"), ("no", "yes"),
        PreparationState(None, {}, CommonScale(ColumnStatistics({}), (0.0, 1.0)), {}), None, {},
    )  # fmt: skip
    model = logistic(features=3)
    results = evaluate_models(
        LearningSection(), prepared, model, {"m": model.initial(0)}, all_test_subjects, bootstrap_resamples=5
    )
    rows = {row["group"]: row for row in results["rows"]}
    assert (rows["sex: f"]["metrics"] is not None) == is_evaluated
    assert rows["sex: m"]["metrics"] is not None


@pytest.mark.parametrize(("female_cases", "is_released"), [(20, True), (8, True), (4, False), (0, False)])
def test_few_cases_of_a_group_cannot_be_found_by_differencing(female_cases, is_released):
    """All cases minus those of men would be the cases of women."""
    sexes = ["f"] * female_cases + ["m"] * 40 + ["f"] * 40 + ["m"] * 40
    counts = released(example_site("troy", female_cases + 40, 80, sexes))
    by_name = {group.name: counts[group][0].cases.sum() for group in counts}
    assert ("sex: m" in by_name) == is_released
    assert by_name.get("sex: f", 0) == (female_cases if female_cases >= 15 else 0)


def test_groups_of_fifteen_cases_hardly_bias_the_auroc():
    """Released counts against exact counts, for the sites that contribute."""
    differences = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        y = np.array([1] * 15 + [0] * 60)
        scores = 1 / (1 + np.exp(-(rng.normal(size=75) + y)))
        predicted = np.stack([1 - scores, scores], axis=1)
        aurocs = [
            evaluate_classifier(histogram, resamples=0)["auroc"].value
            for histogram in (
                expand_groups(count_predictions(predicted, y, BINARY, 5))[0],
                count_predictions(predicted, y, BINARY, 0)[0],
            )
        ]
        differences.append(aurocs[0] - aurocs[1])
    assert abs(np.mean(differences)) < 0.02
