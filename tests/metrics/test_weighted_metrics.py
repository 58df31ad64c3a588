"""Weights of subjects: metrics equal those of scikit-learn, and censoring no longer biases them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, average_precision_score, brier_score_loss, roc_auc_score

from abaton.features.labels import censoring_weights
from abaton.metrics.calibration_curve import decision_curve, observed_expected_ratio, smooth_calibration
from abaton.metrics.classification import count_scores, evaluate_classifier, merge_histograms, net_benefit
from abaton.metrics.paired_bootstrap import compare_models, probability_statistic


def sample(rng: np.random.Generator, n: int, prevalence: float = 0.3):
    labels = (rng.random(n) < prevalence).astype(int)
    scores = rng.normal(size=n) + 1.3 * labels
    return labels, 1 / (1 + np.exp(-(np.log(prevalence / (1 - prevalence)) + 1.3 * scores - 0.845)))


def estimates(p, labels, weights=None):
    metrics = evaluate_classifier(count_scores(p, labels, weights=weights), resamples=50)
    return {name: (e.value, e.low, e.high) for name, e in metrics.items()}


def test_weighted_metrics_equal_scikit_learn():
    rng = np.random.default_rng(1)
    for _ in range(300):
        labels, p = sample(rng, int(rng.choice([12, 60, 400])))
        if labels.min() == labels.max():
            continue
        p, w = np.round(p, int(rng.choice([1, 2, 12]))), rng.uniform(1, 5, len(p))
        metrics = estimates(p, labels, w)
        assert metrics["auroc"][0] == pytest.approx(roc_auc_score(labels, p, sample_weight=w), abs=1e-12)
        assert metrics["auprc"][0] == pytest.approx(
            average_precision_score(labels, p, sample_weight=w), abs=1e-12
        )
        assert metrics["accuracy"][0] == pytest.approx(
            accuracy_score(labels, p >= 0.5, sample_weight=w), abs=1e-12
        )
        assert metrics["brier"][0] == pytest.approx(brier_score_loss(labels, p, sample_weight=w), abs=1e-12)


@pytest.mark.parametrize("constant", [1.0, 2.5])
def test_equal_weights_change_neither_a_value_nor_an_interval(constant):
    rng = np.random.default_rng(2)
    labels, p = sample(rng, 300)
    weights = np.full(300, constant)
    exact = {"rel": 1e-12, "abs": 0} if constant > 1 else {"rel": 0, "abs": 0}
    with_weights, without = estimates(p, labels, weights), estimates(p, labels)
    for name, values in without.items():
        assert with_weights[name] == pytest.approx(values, **exact), name
    ratio, weighted_ratio = (observed_expected_ratio(p, labels, weights=w) for w in (None, weights))
    assert (weighted_ratio.value, weighted_ratio.low) == pytest.approx((ratio.value, ratio.low), rel=1e-9)
    curve, weighted_curve = (smooth_calibration(p, labels, weights=w) for w in (None, weights))
    assert weighted_curve.high == pytest.approx(curve.high, rel=1e-6)
    assert weighted_curve.ici == pytest.approx(curve.ici, rel=1e-6)
    thresholds = np.array([0.1, 0.3, 0.9])
    decision, weighted_decision = (decision_curve(p, labels, thresholds, weights=w) for w in (None, weights))
    assert weighted_decision.low == pytest.approx(decision.low, rel=1e-9)
    counts = count_scores(p, labels, weights=weights)
    assert net_benefit(counts, thresholds)[0] == pytest.approx(decision.model)
    assert counts.subjects == 300


def test_a_weight_is_that_many_equal_subjects():
    rng = np.random.default_rng(3)
    labels, p = sample(rng, 200)
    weights = rng.integers(1, 4, 200)
    repeated = np.repeat(np.arange(200), weights)
    for name, (value, *_) in estimates(p, labels, weights.astype(float)).items():
        assert value == pytest.approx(estimates(p[repeated], labels[repeated])[name][0], rel=1e-9), name
    curve = smooth_calibration(p, labels, weights=weights.astype(float))
    thresholds = np.array([0.2, 0.5])
    decision = decision_curve(p, labels, thresholds, weights=weights.astype(float))
    assert decision.model == pytest.approx(
        decision_curve(p[repeated], labels[repeated], thresholds).model, rel=1e-9
    )
    assert curve is not None
    statistics = {
        name: probability_statistic(
            np.stack([1 - q, q], 1), labels, [1], "auroc", row_weights=weights.astype(float)
        )
        for name, q in (("a", p), ("b", np.round(p, 1)))
    }
    comparison = compare_models(statistics, labels, resamples=50)
    expected = roc_auc_score(labels, p, sample_weight=weights) - roc_auc_score(
        labels, np.round(p, 1), sample_weight=weights
    )
    assert comparison.difference("a", "b").value == pytest.approx(expected)


def test_sites_with_and_without_weights_add_up():
    rng = np.random.default_rng(4)
    (y1, p1), (y2, p2), w = sample(rng, 80), sample(rng, 90), rng.uniform(1, 3, 80)
    parts = [count_scores(p1, y1, weights=w), count_scores(p2, y2)]
    pooled = count_scores(np.append(p1, p2), np.append(y1, y2), weights=np.append(w, np.ones(90)))
    merged = merge_histograms(parts)
    assert merged.subjects == pooled.subjects == 170
    assert merged.squared.cases == pytest.approx(pooled.squared.cases)
    one, other = (evaluate_classifier(counts, resamples=0) for counts in (merged, pooled))
    assert str(one) == str(other)
    by_site = evaluate_classifier(parts, resamples=0)
    assert by_site["auroc"] == one["auroc"]


def test_intervals_need_enough_subjects_not_enough_weight():
    labels, p = np.array([1] * 10 + [0] * 60), np.linspace(0.9, 0.1, 70)
    p[5], p[20] = 0.05, 0.95
    metrics = estimates(p, labels, np.full(70, 5.0))
    assert np.isnan(metrics["auroc"][1]), "10 cases of weight 5 are 10 cases"


def test_censoring_biases_a_calibrated_model_without_weights_only():
    """Independent censoring of half the subjects: the risk without weights is a fifth too high, and so is O:E."""
    results = {"weighted": [], "excluded": []}
    for seed in range(30):
        rng = np.random.default_rng([5, seed])
        labels, p = sample(rng, 1000, 0.2)
        event = np.where(labels == 1, rng.uniform(0, 1, 1000), 2.0)
        end = np.where(rng.random(1000) < 0.5, rng.uniform(0, 1, 1000), 2.0)
        lost = end < np.minimum(event, 1.0)
        times = np.minimum(np.minimum(event, end), 1.0)
        weights = censoring_weights(list(zip(times, event <= end, strict=True)), lost.tolist())
        uncensored, truth = ~lost, brier_score_loss(labels, p)
        for name, w in (("weighted", weights[uncensored]), ("excluded", None)):
            metrics = evaluate_classifier(
                count_scores(p[uncensored], labels[uncensored], weights=w), resamples=0
            )
            ratio = observed_expected_ratio(p[uncensored], labels[uncensored], weights=w)
            risk = np.average(labels[uncensored], weights=w)
            results[name].append(
                (
                    risk / 0.2,
                    metrics["calibration intercept"].value,
                    metrics["brier"].value / truth,
                    ratio.value,
                )
            )
    weighted, excluded = (np.array(results[name]) for name in ("weighted", "excluded"))
    errors = weighted.std(0) / np.sqrt(30)
    assert abs(weighted.mean(0) - (1, 0, 1, 1)) == pytest.approx(np.zeros(4), abs=3 * errors.max())
    risk, intercept, brier, ratio = excluded.mean(0)
    assert risk > 1.2
    assert intercept > 0.2
    assert brier > 1.1
    assert ratio > 1.15
