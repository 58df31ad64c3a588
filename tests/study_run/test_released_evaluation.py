"""Evaluation from released sizes and sums: near the exact metrics, within the privacy budget, by real gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, roc_auc_score

from abaton.disclosure.levels import DisclosureLevel, NoiseSettings
from abaton.disclosure.release_gate import ReleaseGate
from abaton.disclosure.release_register import ReleaseRegister
from abaton.features import ScaledTable
from abaton.lab.demo import NOW as DEMO_NOW
from abaton.lab.demo import Demonstration
from abaton.metrics.survival import add_pairs, sum_pairs
from abaton.report import make_run_report, render_run_report
from abaton.store import Store
from abaton.study import EvaluationSection, LearningSection
from abaton.study_run import PreparedSite, StudyOptions, SubjectRows, run_study
from abaton.study_run.released_evaluation import (
    BUDGET_USED_UP,
    NO_BOUNDED_SUM,
    TOO_FEW_SITES,
    EvaluatedModel,
    EvaluatedSite,
    evaluate_released,
)

NOW = datetime(2026, 5, 1, tzinfo=UTC)
PRECISE = NoiseSettings(
    table_sd=1.0, primary_multiplier=0.5, multiplier=0.5, study_budget=1000.0, yearly_budget=1000.0
)


def make_sites(
    folder: Path,
    sizes: Sequence[int],
    level: DisclosureLevel = DisclosureLevel.NOISY,
    settings: NoiseSettings = PRECISE,
) -> tuple[list[EvaluatedSite], EvaluatedModel]:
    """Build sites with calibrated predictions of two classes, and a grouping input."""
    rng = np.random.default_rng(3)
    sites, predictions = [], {}
    for number, size in enumerate(sizes):
        name = f"site{number}"
        probabilities = rng.beta(0.7, 1.6, size)
        y = (rng.random(size) < probabilities).astype(np.int64)
        test = ScaledTable(
            ("a",),
            probabilities[:, None].astype(np.float32),
            y,
            ("no", "yes"),
            tuple(f"{number} {i}" for i in range(size)),
        )
        file = SimpleNamespace(config=SimpleNamespace(site=SimpleNamespace(id=name)))
        groups = {"sex": tuple("female" if i % 2 else "male" for i in range(size))}
        prepared = PreparedSite(file, {}, SubjectRows(test, test), test, groups, 5, f"digest {number}")
        gate = ReleaseGate(
            ReleaseRegister(folder / f"{name}.db", folder / f"{name}.key"), level, settings, lambda: NOW
        )
        sites.append(EvaluatedSite(prepared, gate, np.ones(size, bool)))
        predictions[name] = np.stack([1 - probabilities, probabilities], axis=1)
    return sites, EvaluatedModel("community", "abc", predictions)


def rows_by_group(results: dict[str, Any]) -> dict[str, Any]:
    return {row["group"]: row for row in results["rows"]}


def learning(*metrics: str) -> LearningSection:
    return LearningSection(evaluation={"metrics": list(metrics)})


def test_released_metrics_are_near_the_exact_ones(tmp_path):
    sites, model = make_sites(tmp_path, [500, 400, 300])
    results = evaluate_released(
        learning("auroc", "calibration", "brier", "accuracy"), "study", ("no", "yes"), sites, [model]
    )
    rows = rows_by_group(results)
    assert set(rows) == {"all sites", "site0", "site1", "site2", "sex: female", "sex: male"}
    weights, aurocs = [], []
    for site in sites:
        y, p = site.labels, model.predictions[site.site.name][:, 1]
        weights.append(y.sum() * (1 - y).sum() / len(y))
        aurocs.append(roc_auc_score(y, p))
        assert rows[site.site.name]["metrics"]["auroc"]["value"] == pytest.approx(aurocs[-1], abs=0.03)
    overall = rows["all sites"]["metrics"]
    assert overall["auroc"]["value"] == pytest.approx(np.average(aurocs, weights=weights), abs=0.015)
    y = np.concatenate([site.labels for site in sites])
    p = np.concatenate([model.predictions[site.site.name][:, 1] for site in sites])
    assert overall["brier"]["value"] == pytest.approx(brier_score_loss(y, p), abs=0.01)
    assert overall["accuracy"]["value"] == pytest.approx(np.mean((p >= 0.5) == y), abs=0.02)
    assert overall["calibration intercept"]["low"] < 0.0 < overall["calibration intercept"]["high"]
    assert overall["calibration slope"]["low"] < 1.0 < overall["calibration slope"]["high"]
    for metric in overall.values():
        assert metric["low"] <= metric["value"] <= metric["high"]
    assert abs(int(rows["all sites"]["subjects"]) - 1200) < 30
    assert rows["all sites"]["subjects"] != "1200" or rows["site0"]["subjects"] != "500"
    assert results["pairs"] == "within sites"
    assert not results["is_exact"]


def test_the_budget_is_spent_in_order_and_never_exceeded(tmp_path):
    """Sizes cost 1/18, the first metric 1/2, others 1/8 each: the slope and the groups no longer fit into 1."""
    sites, model = make_sites(tmp_path, [500, 400, 300], settings=NoiseSettings())
    metrics = learning("auroc", "brier", "accuracy", "calibration")
    results = evaluate_released(metrics, "study", ("no", "yes"), sites, [model])
    rows = rows_by_group(results)
    overall = rows["all sites"]["metrics"]
    for metric in ("auroc", "brier", "accuracy", "calibration intercept"):
        assert overall[metric]["value"] is not None
    assert overall["calibration slope"]["reason"] == BUDGET_USED_UP
    assert rows["sex: female"]["metrics"]["auroc"]["reason"] == BUDGET_USED_UP
    for site in sites:
        assert site.gate.remaining("study") == pytest.approx(1 - 1 / 18 - 1 / 2 - 3 / 8)
    again = evaluate_released(metrics, "study", ("no", "yes"), sites, [model])
    assert again["rows"] == results["rows"]
    other = EvaluatedModel("other", "def", model.predictions)
    later = evaluate_released(metrics, "study", ("no", "yes"), sites, [other])
    assert rows_by_group(later)["all sites"]["metrics"]["auroc"]["reason"] == BUDGET_USED_UP


def test_no_site_is_charged_if_another_one_cannot_answer(tmp_path):
    sites, model = make_sites(tmp_path, [300, 300], settings=NoiseSettings())
    poor = ReleaseGate(
        sites[1].gate.register, DisclosureLevel.NOISY, NoiseSettings(study_budget=0.1), lambda: NOW
    )
    sites[1] = EvaluatedSite(sites[1].site, poor, sites[1].rows)
    results = evaluate_released(learning("auroc"), "study", ("no", "yes"), sites, [model])
    assert rows_by_group(results)["all sites"]["metrics"]["auroc"]["reason"] == BUDGET_USED_UP
    assert sites[0].gate.remaining("study") == pytest.approx(1 - 1 / 18)


def test_summed_level_has_exact_sums_and_no_site(tmp_path):
    sites, model = make_sites(tmp_path, [300, 200, 100], DisclosureLevel.SUMMED)
    rows = rows_by_group(
        evaluate_released(learning("auroc", "brier"), "study", ("no", "yes"), sites, [model])
    )
    assert set(rows) == {"all sites", "sex: female", "sex: male"}
    y = np.concatenate([site.labels for site in sites])
    p = np.concatenate([model.predictions[site.site.name][:, 1] for site in sites])
    assert rows["all sites"]["subjects"] == "600"
    assert rows["all sites"]["sites"] == 3
    assert rows["all sites"]["metrics"]["brier"]["value"] == pytest.approx(brier_score_loss(y, p), abs=1e-4)
    two = evaluate_released(learning("auroc"), "study", ("no", "yes"), sites[:2], [model])
    assert rows_by_group(two)["all sites"]["metrics"]["auroc"]["reason"] == TOO_FEW_SITES


def test_metrics_without_a_bounded_sum_and_small_groups_are_not_released(tmp_path):
    sites, model = make_sites(tmp_path, [30, 20])
    results = evaluate_released(
        learning("auroc", "auprc", "sensitivity"), "study", ("no", "yes"), sites, [model]
    )
    rows = rows_by_group(results)
    assert rows["all sites"]["metrics"]["auprc"]["reason"] == NO_BOUNDED_SUM
    assert rows["site1"]["metrics"]["auroc"]["value"] is None  # six cases


def set_policy(demonstration: Demonstration, lines: str) -> None:
    """Add lines to the policy of every site."""
    for site in demonstration.sites:
        text = site.read_text()
        text = text if "[policy]\n" in text else f"{text}\n[policy]\n"
        site.write_text(text.replace("[policy]\n", f"[policy]\n{lines}\n"))


@pytest.mark.parametrize("level", ["noisy", "summed"])
def test_a_run_is_evaluated_from_released_sums_and_its_report_says_so(four, tmp_path, level):
    set_policy(
        four, f'disclosure = "{level}"\nstudy_budget = 1000\nyearly_budget = 1000\nprimary_multiplier = 0.5'
    )
    options = StudyOptions(seed=5, profiles=four.profiles, bootstrap_resamples=0)
    with Store(tmp_path / "store") as store:
        run = run_study(four.study, four.sites, store, options, now=DEMO_NOW)
        results, exact_names = run.row.result, {"performance", "interpretability", "cohort_description"}
        assert not exact_names & results.keys()
        assert results["progress"] == []
        rows = rows_by_group(results["evaluation"])
        sites = {row["group"] for row in results["evaluation"]["rows"] if row["grouping"] == "site"}
        assert len(sites) == (0 if level == "summed" else 4)
        overall = rows["all sites"]["metrics"]
        assert overall["auprc"]["reason"] == NO_BOUNDED_SUM
        text = render_run_report(make_run_report(run.row, []))
    assert NO_BOUNDED_SUM in text
    assert "pairs of subjects within sites" in text
    assert f"level \u2018{level}\u2019" in text


def test_a_site_without_test_rows_adds_noise_only(tmp_path):
    sites, model = make_sites(tmp_path, [400, 300, 50])
    empty = EvaluatedSite(sites[2].site, sites[2].gate, np.zeros(50, bool))
    predictions = {**model.predictions, "site2": np.zeros((0, 2))}
    metrics = learning("auroc", "calibration", "brier")
    all_sites = [*sites[:2], empty]
    results = evaluate_released(
        metrics, "study", ("no", "yes"), all_sites, [EvaluatedModel("community", "abc", predictions)]
    )
    rows = rows_by_group(results)
    assert all(metric["value"] is not None for metric in rows["all sites"]["metrics"].values())
    assert rows["site2"]["metrics"]["auroc"]["value"] is None
    assert rows["site2"]["subjects"] == "<10"


def test_values_without_a_declared_range_are_not_released(tmp_path):
    sites, model = make_sites(tmp_path, [40, 40, 40])
    section = LearningSection(
        task="regression", model="linear", evaluation=EvaluationSection(metrics=("rmse",))
    )
    results = evaluate_released(section, "study", (), sites, [model])
    assert results["rows"] == []
    assert results["not_released"] == "the outcome has no declared range"
    assert sites[0].gate.remaining("study") == pytest.approx(PRECISE.study_budget)


def test_random_effects_from_five_sites_on(tmp_path):
    sites, model = make_sites(tmp_path, [200] * 5)
    five = evaluate_released(learning("auroc"), "study", ("no", "yes"), sites, [model])["random_effects"]
    assert five["sites"] == 5
    assert 0 <= five["mean"]["low"] < five["mean"]["value"] < five["mean"]["high"] <= 1
    four = evaluate_released(learning("auroc"), "study", ("no", "yes"), sites[:4], [model])
    assert four["random_effects"] is None


def test_concordance_of_survival_models(tmp_path):
    sites, model = make_sites(tmp_path, [300, 300, 300])
    rng = np.random.default_rng(5)
    survival, risks = [], {}
    for site in sites:
        risk = model.predictions[site.site.name][:, 1]
        time, end = rng.exponential(np.exp(-3 * risk)), rng.exponential(1.0, len(risk))
        y = np.stack([np.minimum(time, end), (time <= end).astype(float)], axis=1)
        test = ScaledTable(("a",), site.site.test.x, y, (), site.site.test.subjects)
        prepared = replace(site.site, test=test, groups={})
        survival.append(EvaluatedSite(prepared, site.gate, site.rows))
        risks[site.site.name] = risk
    section = LearningSection(
        task="survival", model="logistic", evaluation=EvaluationSection(metrics=("concordance",))
    )
    rows = rows_by_group(
        evaluate_released(section, "study", (), survival, [EvaluatedModel("community", "s", risks)])
    )
    value = rows["all sites"]["metrics"]["concordance"]["value"]
    sums = add_pairs(sum_pairs(risks[site.site.name], site.labels) for site in survival)
    assert value == pytest.approx(sums.concordant / sums.pairs, abs=0.015)


def test_several_classes_have_a_row_each(tmp_path):
    sites, model = make_sites(tmp_path, [400, 400])
    rng, thirds, predictions = np.random.default_rng(6), [], {}
    for site in sites:
        p = rng.dirichlet(np.ones(3), len(site.rows))
        y = np.array([rng.choice(3, p=row) for row in p])
        test = ScaledTable(("a",), site.site.test.x, y, ("low", "mid", "high"), site.site.test.subjects)
        prepared = replace(site.site, test=test, groups={})
        thirds.append(EvaluatedSite(prepared, site.gate, site.rows))
        predictions[site.site.name] = p
    model = EvaluatedModel("community", "three", predictions)
    rows = rows_by_group(
        evaluate_released(learning("auroc"), "study", ("low", "mid", "high"), thirds, [model])
    )
    for case, name in enumerate(("low", "mid", "high")):
        aurocs = [roc_auc_score(site.labels == case, predictions[site.site.name][:, case]) for site in thirds]
        value = rows[f"all sites, {name}"]["metrics"]["auroc"]["value"]
        assert value == pytest.approx(np.mean(aurocs), abs=0.02)
