"""Exact performance of a run on one machine: its parts, its limits, and the report of the demonstration."""

from __future__ import annotations

import numpy as np
import pytest
from tests.study_run.test_cohort_description import bounds, check_sums

from abaton.lab.demo import NOW
from abaton.report import render_report
from abaton.report.performance_tables import NOT_RELEASED
from abaton.store import Store
from abaton.study_run.coordinator import StudyOptions, run_study
from abaton.study_run.prediction_performance import HeldOutPredictions, performance_results


def predictions(count: int = 400, seed: int = 0) -> HeldOutPredictions:
    rng = np.random.default_rng(seed)
    x = -1.5 + 1.2 * rng.normal(size=count)
    labels = (rng.random(count) < 1 / (1 + np.exp(-x))).astype(int)
    sites = np.array(["kos", "troy", "small"], object)[np.minimum(np.arange(count) * 3 // count, 2)]
    sites[-count // 3 + 15 :] = "troy"
    groups = {"sex": np.array(["f", "m"], object)[rng.integers(0, 2, count)]}
    return HeldOutPredictions(1 / (1 + np.exp(-x)), labels, sites, groups)


def test_sites_and_groups_with_few_cases_have_no_result():
    test = predictions()
    results = performance_results(test, 0.95)
    assert results["heterogeneity"]["sites"]["small"] is None
    assert results["heterogeneity"]["auroc"]["sites"] == 2
    female, male = results["groups"]
    assert female["difference"]["value"] == pytest.approx(-male["difference"]["value"])
    assert female["others"] == male["auroc"]
    small = HeldOutPredictions(test.probabilities[:12], test.labels[:12], test.sites[:12], {})
    assert performance_results(small, 0.95)["calibration"] is None
    assert performance_results(small, 0.95)["decision"] is None


def test_the_auroc_of_a_group_is_that_of_scikit_learn():
    from sklearn.metrics import roc_auc_score

    test = predictions(seed=4)
    for row in performance_results(test, 0.95)["groups"]:
        members = test.groups["sex"] == row["group"].removeprefix("sex: ")
        auroc, others = (roc_auc_score(test.labels[m], test.probabilities[m]) for m in (members, ~members))
        assert row["auroc"]["value"] == pytest.approx(auroc)
        assert row["difference"]["value"] == pytest.approx(auroc - others)


@pytest.fixture(scope="module")
def run(written, tmp_path_factory):
    import shutil

    from abaton.lab.demo import open_demo
    from abaton.lab.synthetic_hospitals import FOUR_HOSPITALS

    folder = tmp_path_factory.mktemp("described")
    shutil.copytree(written, folder / "hospitals")
    demo = open_demo(folder / "hospitals", cohort=FOUR_HOSPITALS)
    options = StudyOptions(seed=3, profiles=demo.profiles)
    return run_study(demo.study, demo.sites, Store(folder / "store"), options, watch=demo.watch, now=NOW)


def test_the_counts_of_the_demonstration_add_up(run):
    report = run.report()
    for site, cohort in report["cohort"]["sites"].items():
        stages = [step["stage"] for step in cohort["attrition"]]
        assert stages[-3:] == ["anonymous", "in_force", "evaluated"], site
        check_sums(cohort["attrition"])
    evaluated = {row["group"]: row["subjects"] for row in report["results"]["evaluation"]["rows"]
                 if row["model"] == "community" and row["grouping"] in ("all", "site")}  # fmt: skip
    totals = [bounds(cohort["attrition"][-1]["subjects"]) for cohort in report["cohort"]["sites"].values()]
    assert sum(low for low, _ in totals) <= int(evaluated["all sites"]) <= sum(high for _, high in totals)
    for site, cohort in report["cohort"]["sites"].items():
        low, high = bounds(cohort["attrition"][-1]["subjects"])
        assert low <= int(evaluated[site]) <= high


def test_the_report_of_the_demonstration_shows_the_results(run):
    html = render_report(run.report())
    for text in ("Characteristics by site", "Events per parameter", "Heterogeneity between sites",
                 "observed to expected cases (O:E)", "Reporting checklist, TRIPOD+AI"):  # fmt: skip
        assert text in html, text
    assert NOT_RELEASED not in html


def test_a_report_without_exact_results_says_that_they_are_not_released(run):
    report = run.report()
    results = {key: value for key, value in report["results"].items()
               if key not in ("performance", "cohort_description")}  # fmt: skip
    results["evaluation"] = {**results["evaluation"], "is_exact": False}
    html = render_report({**report, "results": results})
    assert html.count(NOT_RELEASED) == 2
    assert "Heterogeneity between sites</h2>" not in html


def test_the_auroc_of_a_site_is_the_same_in_evaluation_local_benefit_and_heterogeneity(tmp_path):
    from abaton.lab.demo import make_demo
    from abaton.lab.synthetic_hospitals import FOUR_HOSPITALS

    demo = make_demo(tmp_path / "hospitals", 3, 1.0, rounds=4, cohort=FOUR_HOSPITALS)
    options = StudyOptions(seed=3, profiles=demo.profiles, bootstrap_resamples=20)
    with Store(tmp_path / "store") as store:
        results = run_study(demo.study, demo.sites, store, options, now=NOW).row.result
    rows = {
        row["group"]: row["metrics"]["auroc"]
        for row in results["evaluation"]["rows"]
        if row["model"] == "community" and row["grouping"] == "site" and row["metrics"]
    }
    benefits = results["evaluation"]["local_benefit"]["sites"]
    sites = {
        site: row["auroc"] for site, row in results["performance"]["heterogeneity"]["sites"].items() if row
    }
    assert any(estimate["low"] is not None for estimate in sites.values())
    for site, estimate in sites.items():
        assert estimate == rows[site] == benefits[site]["community"], site
