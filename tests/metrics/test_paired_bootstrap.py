"""Paired comparison: each model has the same estimate as alone, and pairing narrows the interval of the difference."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from abaton.metrics.classification import count_scores, evaluate_classifier
from abaton.metrics.paired_bootstrap import compare_models, probability_statistic, regression_statistic

RNG = np.random.default_rng(4)
LABELS = (RNG.random(400) < 0.3).astype(np.int64)
LATENT = RNG.normal(LABELS * 1.2)


def predicted_probabilities(noise: float) -> np.ndarray:
    p = 1 / (1 + np.exp(-LATENT - noise * np.random.default_rng(9).normal(size=400)))
    return np.stack([1 - p, p], axis=1)


def statistic(noise: float, metric: str = "auroc"):
    return probability_statistic(predicted_probabilities(noise), LABELS, [1], metric)


def compare(first, second, strata, **options):
    return compare_models({"a": first, "b": second}, strata, **options)


def estimates(comparison):
    return [comparison.estimate("a"), comparison.estimate("b"), comparison.difference("b", "a")]


def test_each_model_has_the_estimate_of_its_counts():
    first, second, difference = estimates(compare(statistic(1.0), statistic(0.0), LABELS, resamples=10))
    for estimate, noise in ((first, 1.0), (second, 0.0)):
        histogram = count_scores(predicted_probabilities(noise)[:, 1], LABELS)
        assert estimate == evaluate_classifier(histogram, resamples=0)["auroc"]
    assert difference.value == pytest.approx(second.value - first.value)


@pytest.mark.parametrize("seed", range(200))
def test_the_auroc_is_that_of_scikit_learn_also_of_close_scores_and_of_resamples(seed):
    rng = np.random.default_rng(seed)
    labels = np.append((rng.random(int(rng.integers(4, 400))) < 0.2).astype(np.int64), [0, 1])
    spread = float(rng.choice([1e-6, 1e-3, 1.0]))  # bins would join scores that are this close
    scores = (1 / (1 + np.exp(3 - spread * rng.normal(labels * 1.0)))).astype(rng.choice(["f4", "f8"]))
    statistic = probability_statistic(np.stack([1 - scores, scores], 1), labels, [1], "auroc")
    expected = roc_auc_score(labels, scores)
    assert statistic.estimate(0.95).value == pytest.approx(expected, abs=1e-12)
    weights = np.stack([np.ones(len(labels)), rng.integers(1, 4, len(labels))])
    resampled = roc_auc_score(labels, scores, sample_weight=weights[1])
    assert statistic.evaluate(weights) == pytest.approx([expected, resampled], abs=1e-12)


def test_the_interval_of_the_difference_is_narrower_than_of_two_samples_and_seeded():
    comparison, repeated, other = (
        estimates(compare(statistic(0.3), statistic(0.0), LABELS, seed=seed)) for seed in (1, 1, 2)
    )
    assert comparison == repeated
    assert comparison != other
    widths = [estimate.high - estimate.low for estimate in comparison]
    assert widths[2] < 0.6 * np.hypot(*widths[:2])


def test_interval_agrees_with_resampled_ranks():
    rng, noisy_scores = np.random.default_rng(5), predicted_probabilities(0.4)[:, 1]
    difference = compare(statistic(0.0), statistic(0.4), LABELS, seed=1).difference("b", "a")
    resampled = []
    for _ in range(1500):
        sample = np.concatenate(
            [rng.choice(group, len(group)) for group in (np.flatnonzero(LABELS), np.flatnonzero(1 - LABELS))]
        )
        areas = [
            roc_auc_score(LABELS[sample], scores[sample])
            for scores in (noisy_scores, predicted_probabilities(0.0)[:, 1])
        ]
        resampled.append(areas[0] - areas[1])
    low, high = np.quantile(resampled, [0.025, 0.975])
    assert difference.low == pytest.approx(low, abs=0.01)
    assert difference.high == pytest.approx(high, abs=0.01)


def test_models_share_resamples_and_do_not_affect_each_other():
    two = compare(statistic(0.5), statistic(0.0), LABELS, resamples=50)
    three = compare_models(
        {"c": statistic(1.0), "a": statistic(0.5), "b": statistic(0.0)}, LABELS, resamples=50
    )
    assert estimates(two) == estimates(three)
    assert three.difference("c", "a").value < 0
    without_resamples = compare(statistic(0.5), statistic(0.0), LABELS, resamples=0)
    assert without_resamples.estimate("a").value == two.estimate("a").value
    assert np.isnan(without_resamples.difference("b", "a").low)


def test_difference_of_a_model_from_itself_is_zero():
    difference = compare(statistic(0.5), statistic(0.5), LABELS, resamples=50).difference("b", "a")
    assert (difference.value, difference.low, difference.high) == (0, 0, 0)


def test_interval_of_the_difference_has_its_nominal_coverage():
    hits = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        labels = (rng.random(150) < 0.4).astype(np.int64)
        one, two = (
            1 / (1 + np.exp(-rng.normal(labels * 1.0))) for _ in range(2)
        )  # equally good: the true difference is 0
        statistics = [
            probability_statistic(np.stack([1 - p, p], 1), labels, [1], "auroc") for p in (one, two)
        ]
        difference = compare(*statistics, labels, resamples=200, seed=seed).difference("b", "a")
        hits += difference.low <= 0 <= difference.high
    assert hits >= 52  # of 60 with fixed seeds; 57 are expected


@pytest.mark.parametrize("metric", ["rmse", "mae", "r2"])
def test_regressions_are_compared(metric):
    actual = RNG.normal(10, 3, 200)
    good, bad = actual + RNG.normal(0, 1, 200), actual + RNG.normal(0, 2, 200)
    comparison = compare(
        regression_statistic(bad, actual, metric),
        regression_statistic(good, actual, metric),
        np.zeros(200, np.int64),
    )
    difference = comparison.difference("b", "a")
    low, high = difference.low, difference.high
    assert (low > 0) if metric == "r2" else (high < 0)


def test_several_classes_are_each_compared_with_the_others():
    y = np.arange(90) % 3
    sure = np.eye(3)[y]
    vague = np.full((90, 3), 1 / 3)
    comparison = compare(
        *(probability_statistic(p, y, range(3), "auroc") for p in (vague, sure)), y, resamples=20
    )
    assert [estimate.value for estimate in estimates(comparison)] == [0.5, 1.0, 0.5]


@pytest.mark.parametrize("metric", ["auroc", "auprc", "brier", "calibration slope"])
def test_each_model_has_the_interval_that_it_has_alone(metric):
    comparison = compare(statistic(1.0, metric), statistic(0.0, metric), LABELS, resamples=20)
    histogram = count_scores(predicted_probabilities(1.0)[:, 1], LABELS)
    assert comparison.estimate("a") == evaluate_classifier(histogram)[metric]


def test_a_difference_without_its_coverage_has_no_interval():
    for metric in ("calibration slope", "sensitivity at specificity 0.9"):
        difference = compare(statistic(1.0, metric), statistic(0.0, metric), LABELS).difference("b", "a")
        assert np.isfinite(difference.value)
        assert np.isnan([difference.low, difference.high]).all()
    for cases in (14, 15):
        rows = np.concatenate([np.flatnonzero(LABELS)[:cases], np.flatnonzero(LABELS == 0)])
        models = [
            probability_statistic(predicted_probabilities(noise)[rows], LABELS[rows], [1], "auroc")
            for noise in (1.0, 0.0)
        ]
        difference = compare(*models, LABELS[rows], resamples=100).difference("b", "a")
        assert np.isfinite(difference.low) == (cases == 15)
