"""Weights for incomplete follow-up in a study: baselines, exact evaluation, stored rows and the report."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, roc_auc_score
from tests.study_run.test_baselines import MODEL, SETTINGS, federation

from abaton.disclosure.attrition import AttritionStage, attrition_cell
from abaton.features import FeatureColumn, FeatureTable, MissingReason
from abaton.report.performance_tables import censoring_table
from abaton.study import LearningSection
from abaton.study_run import SubjectRows
from abaton.study_run.baselines import train_baseline
from abaton.study_run.cohort_description import describe_censoring
from abaton.study_run.evaluation import evaluate_models
from abaton.study_run.prediction_performance import performance_results, predict_test_rows
from abaton.study_run.site_run_state import PendingTable, SiteRunFolder


def weighted_federation(*, constant: float | None = None):
    """Return two sites whose rows have weights, cases smaller ones."""
    rng, prepared = np.random.default_rng(1), federation()

    def with_weights(table):
        weights = np.where(table.y == 1, rng.uniform(1, 2, len(table)), 2.5)
        return replace(table, weights=weights if constant is None else np.full(len(table), constant))

    sites = tuple(
        replace(
            site,
            rows=SubjectRows(with_weights(site.rows.train), with_weights(site.rows.validation)),
            test=with_weights(site.test),
        )
        for site in prepared.sites
    )
    return replace(prepared, sites=sites)


def evaluate(prepared):
    learning = LearningSection(evaluation={"metrics": ["auroc", "brier", "calibration"]})
    vector = MODEL.initial(3)
    results = evaluate_models(
        learning, prepared, MODEL, {"community": vector}, lambda site: frozenset(site.all_subjects)
    )
    return vector, results


def test_exact_evaluation_has_the_metrics_of_weighted_subjects():
    prepared = weighted_federation()
    vector, results = evaluate(prepared)
    for row in results["rows"]:
        tables = [site.test for site in prepared.sites if row["group"] in ("all sites", site.name)]
        y, w = (np.concatenate([getattr(table, name) for table in tables]) for name in ("y", "weights"))
        p = MODEL.layout.views(vector)
        logits = np.concatenate([table.x for table in tables]) @ p["weight"].T + p["bias"]
        risk = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
        metrics = row["metrics"]
        assert row["subjects"] == str(len(y)), "subjects are counted, not weighed"
        assert metrics["auroc"]["value"] == pytest.approx(roc_auc_score(y, risk, sample_weight=w), abs=1e-6)
        assert metrics["brier"]["value"] == pytest.approx(
            brier_score_loss(y, risk, sample_weight=w), abs=1e-6
        )
    predictions = predict_test_rows(
        prepared, MODEL, vector, {s.name: frozenset(s.all_subjects) for s in prepared.sites}, {}
    )
    results = performance_results(predictions, 0.95)
    weights = np.concatenate([site.test.weights for site in prepared.sites])
    observed = np.concatenate([site.test.y for site in prepared.sites]) @ weights
    expected = predictions.probabilities @ weights
    assert results["calibration"]["observed_expected"]["value"] == pytest.approx(observed / expected)


def test_equal_weights_give_the_results_without_weights():
    (_, unweighted), (_, equal) = evaluate(federation()), evaluate(weighted_federation(constant=2.0))
    for row, other in zip(unweighted["rows"], equal["rows"], strict=True):
        for name, estimate in row["metrics"].items():
            assert other["metrics"][name] == pytest.approx(estimate, rel=1e-9), name


def test_baselines_use_weights_and_weights_of_one_change_no_byte():
    unweighted, ones, weighted = (
        train_baseline(MODEL, [prepared.sites[0].rows], SETTINGS, 8, 1, 2)
        for prepared in (federation(), weighted_federation(constant=1.0), weighted_federation())
    )
    assert ones.parameters.tobytes() == unweighted.parameters.tobytes()
    assert ones.selected == unweighted.selected
    x = federation().sites[0].test.x
    assert weighted.predict(x)[:, 1].mean() < unweighted.predict(x)[:, 1].mean() - 0.02, "cases weigh less"


def feature_table(count: int = 40) -> FeatureTable:
    rng = np.random.default_rng(2)
    columns = (FeatureColumn("age", "age", is_numeric=True),)
    return FeatureTable(
        columns,
        rng.normal(size=(count, 1)),
        rng.integers(0, 2, count),
        ("no", "yes"),
        tuple(f"s{i:02}" for i in range(count)),
        5,
        "ill",
        rng.uniform(1, 5, count),
    )


def test_a_site_stores_the_weights_of_its_rows(tmp_path):
    folder, table = SiteRunFolder(tmp_path / "run"), feature_table()
    for stored in (table, replace(table, weights=None)):
        folder.store_table(PendingTable(stored, {}))
        weights = folder.pending_table().table.weights
        assert (weights is None) == (stored.weights is None)
        assert weights is None or weights.tolist() == stored.weights.tolist()


def test_the_report_states_censored_subjects_weights_and_effective_size():
    table = replace(feature_table(), weights=np.append(np.full(30, 1.5), np.full(10, 5.0)))
    cell = attrition_cell(AttritionStage.ROWS, f"ill: {MissingReason.CENSORED.value}")
    cells = {"rows": tuple("abc"), cell: tuple(f"patient {i}" for i in range(23))}
    described = describe_censoring({"kos": table, "troy": replace(table, weights=None)}, {"kos": cells})
    assert list(described) == ["kos"]
    columns, rows = censoring_table(described)
    effective = (30 * 1.5 + 50) ** 2 / (30 * 1.5**2 + 250)
    assert rows == [("kos", "23", "1.50 to 5.00", "10", f"{effective:.0f} of 40")]
    assert len(columns) == len(rows[0])
