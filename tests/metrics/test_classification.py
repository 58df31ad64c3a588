"""Clinical metrics agree with scikit-learn and logistic regressions, and counts add up over sites."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, brier_score_loss, r2_score, roc_auc_score, roc_curve

from abaton.errors import SettingsError
from abaton.metrics.classification import (
    BINS,
    ScoreHistogram,
    count_scores,
    evaluate_classifier,
    evaluate_regression,
    merge_histograms,
    wilson,
)


def subjects(n: int, seed: int, *, digits: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < 0.4).astype(np.int64)
    z = rng.normal(size=n) + 1.4 * labels - 0.7
    return np.round(1 / (1 + np.exp(-z)), digits), labels


@given(st.integers(0, 10_000), st.sampled_from([1, 2, 6]))
def test_agrees_with_scikit_learn_ties_included(seed: int, digits: int) -> None:
    probabilities, labels = subjects(120, seed, digits=digits)
    estimates = evaluate_classifier(count_scores(probabilities, labels), resamples=0)
    assert math.isclose(estimates["auroc"].value, roc_auc_score(labels, probabilities), abs_tol=1e-12)
    assert math.isclose(
        estimates["auprc"].value, average_precision_score(labels, probabilities), abs_tol=1e-12
    )
    assert math.isclose(estimates["brier"].value, brier_score_loss(labels, probabilities), abs_tol=1e-12)


def test_sensitivity_is_that_of_the_best_threshold_with_the_specificity() -> None:
    probabilities, labels = subjects(400, 3)
    fpr, tpr, _ = roc_curve(labels, probabilities, drop_intermediate=False)
    estimates = evaluate_classifier(count_scores(probabilities, labels), specificity=0.8, resamples=0)
    assert math.isclose(
        estimates["sensitivity at specificity 0.8"].value, tpr[fpr <= 0.2 + 1e-12].max(), abs_tol=1e-12
    )


def test_calibration_slope_is_that_of_a_logistic_regression() -> None:
    probabilities, labels = subjects(3000, 5)
    log_odds = np.log(probabilities / (1 - probabilities))
    fit = LogisticRegression(C=1e9, max_iter=1000).fit(log_odds[:, None], labels)
    estimates = evaluate_classifier(count_scores(probabilities, labels), resamples=0)
    assert math.isclose(estimates["calibration slope"].value, float(fit.coef_[0, 0]), rel_tol=1e-3)


def test_calibrated_predictions_have_slope_one_and_intercept_zero() -> None:
    rng = np.random.default_rng(0)
    probabilities = rng.beta(2, 3, 40_000)
    estimates = evaluate_classifier(
        count_scores(probabilities, (rng.random(40_000) < probabilities).astype(int), bins=BINS),
        resamples=200,
    )
    assert estimates["calibration slope"].low < 1 < estimates["calibration slope"].high
    assert estimates["calibration intercept"].low < 0 < estimates["calibration intercept"].high


@given(st.integers(0, 1000), st.integers(2, 5))
def test_counts_of_sites_add_up_to_the_counts_of_all(seed: int, sites: int) -> None:
    probabilities, labels = subjects(90, seed)
    histograms = [count_scores(probabilities[i::sites], labels[i::sites], bins=50) for i in range(sites)]
    pooled = count_scores(probabilities, labels, bins=50)
    summed = merge_histograms(histograms)
    assert np.array_equal(summed.cases, pooled.cases)
    assert np.array_equal(summed.controls, pooled.controls)


def test_bins_change_the_area_by_less_than_a_thousandth() -> None:
    probabilities, labels = subjects(2000, 8)
    exact, binned = (
        evaluate_classifier(count_scores(probabilities, labels, bins=bins), resamples=0)["auroc"].value
        for bins in (0, BINS)
    )
    assert abs(exact - binned) < 1e-3


def test_different_bins_do_not_add_up() -> None:
    probabilities, labels = subjects(20, 0)
    with pytest.raises(SettingsError, match="different bins"):
        merge_histograms(
            [count_scores(probabilities, labels, bins=10), count_scores(probabilities, labels, bins=20)]
        )


def test_interval_has_its_nominal_coverage() -> None:
    truth = evaluate_classifier(count_scores(*subjects(200_000, 99), bins=BINS), resamples=0)["auroc"].value
    covered = 0
    for seed in range(200):
        estimates = evaluate_classifier(count_scores(*subjects(150, seed)), resamples=100, seed=seed)["auroc"]
        covered += estimates.low <= truth <= estimates.high
    assert 178 <= covered <= 199  # 95 % of 200 is 190; the binomial's middle 99.9 %


def test_same_seed_same_interval() -> None:
    counts = count_scores(*subjects(100, 1))
    assert evaluate_classifier(counts, seed=4) == evaluate_classifier(counts, seed=4)
    assert evaluate_classifier(counts, seed=4) != evaluate_classifier(counts, seed=5)


def test_one_class_only_has_no_area() -> None:
    estimates = evaluate_classifier(count_scores(np.array([0.2, 0.9]), np.array([1, 1])))
    assert math.isnan(estimates["auroc"].value)
    assert math.isclose(estimates["brier"].value, (0.64 + 0.01) / 2)


def test_no_subjects_give_nan() -> None:
    estimates = evaluate_classifier(count_scores(np.empty(0), np.empty(0, np.int64), bins=10))
    assert all(math.isnan(estimate.value) for estimate in estimates.values())


def test_one_score_for_all_has_no_slope() -> None:
    estimates = evaluate_classifier(count_scores(np.full(20, 0.5), np.arange(20) % 2), resamples=20)
    assert math.isnan(estimates["calibration slope"].value)
    assert estimates["auroc"].value == 0.5


@pytest.mark.parametrize("score", [1.5, -0.1, float("nan")])
def test_invalid_probability_is_refused(score: float) -> None:
    with pytest.raises(SettingsError, match="not between 0 and 1"):
        count_scores(np.array([0.5, score]), np.array([0, 1]))


def test_roc_curve_goes_from_none_to_all() -> None:
    fpr, tpr = count_scores(*subjects(50, 2)).curve()
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    assert (np.diff(fpr) >= 0).all()
    assert (np.diff(tpr) >= 0).all()


def test_calibration_groups_contain_all_subjects() -> None:
    counts = count_scores(*subjects(1000, 4))
    groups = counts.calibration(10)
    assert len(groups) == 10
    shares = [estimate.value for _, estimate in groups]
    assert math.isclose(np.mean(shares), counts.cases.sum() / 1000, abs_tol=0.01)
    assert isinstance(counts, ScoreHistogram)


def test_values_agree_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    actual = rng.normal(50, 10, 300)
    predicted = actual * 0.8 + 8 + rng.normal(0, 3, 300)
    estimates = evaluate_regression(predicted, actual, resamples=200)
    assert math.isclose(estimates["r2"].value, r2_score(actual, predicted), abs_tol=1e-12)
    assert estimates["r2"].low < estimates["r2"].value < estimates["r2"].high
    assert math.isclose(
        estimates["calibration slope"].value, np.polyfit(predicted, actual, 1)[0], rel_tol=1e-9
    )


def test_explained_variance_of_a_constant_is_nan() -> None:
    assert math.isnan(
        evaluate_regression(np.array([1.0, 2.0]), np.array([3.0, 3.0]), resamples=5)["r2"].value
    )


def test_wilson_is_inside_zero_and_one() -> None:
    assert math.isclose(wilson(10, 10).high, 1.0)
    assert wilson(10, 10).low > 0.7
    assert math.isnan(wilson(0, 0).value)
