"""Clinical metrics agree with scikit-learn and logistic regressions, and counts add up over sites."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score, roc_curve
from statsmodels.stats.proportion import proportion_confint

from abaton.errors import SettingsError
from abaton.metrics.classification import (
    BINS,
    ScoreHistogram,
    count_scores,
    evaluate_classifier,
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


@pytest.mark.parametrize("prevalence", [0.001, 0.0016, 0.01, 0.1, 0.5])
@pytest.mark.parametrize("distance", [0.3, 1.0, 3.0])
def test_bins_of_rare_and_common_outcomes_change_the_area_by_less_than_two_thousandths(prevalence, distance):
    rng = np.random.default_rng(8)
    labels = (rng.random(60_000) < prevalence).astype(np.int64)
    x = rng.normal(size=60_000) + distance * labels
    log_odds = math.log(prevalence / (1 - prevalence)) + distance * x - distance**2 / 2
    probabilities = (1 / (1 + np.exp(-log_odds))).astype(np.float32)
    binned = evaluate_classifier(count_scores(probabilities, labels, bins=BINS), resamples=0)["auroc"].value
    assert abs(binned - roc_auc_score(labels, probabilities)) < 0.002


@given(st.integers(0, 1000), st.integers(2, 5))
def test_exact_histograms_of_sites_merge_to_that_of_all(seed: int, sites: int) -> None:
    probabilities, labels = subjects(60, seed, digits=2)
    merged = merge_histograms(count_scores(probabilities[i::sites], labels[i::sites]) for i in range(sites))
    pooled = count_scores(probabilities, labels)
    for name in ("scores", "cases", "controls"):
        assert np.array_equal(getattr(merged, name), getattr(pooled, name))


def test_several_sites_have_the_values_of_all_and_strata_of_their_own() -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1, 0, 1], 100)
    probabilities = np.clip(rng.normal(0.3 + 0.2 * labels + 0.2 * (np.arange(400) > 199), 0.1), 0.01, 0.99)
    sites = [count_scores(probabilities[part], labels[part]) for part in (slice(200), slice(200, 400))]
    apart, pooled = evaluate_classifier(sites), evaluate_classifier(merge_histograms(sites))
    assert {name: estimate.value for name, estimate in apart.items()} == pytest.approx(
        {name: estimate.value for name, estimate in pooled.items()}
    )
    name = "sensitivity at specificity 0.9"
    assert apart[name].high - apart[name].low < pooled[name].high - pooled[name].low


@pytest.mark.parametrize("cases", [14, 15])
def test_intervals_need_fifteen_cases_and_controls(cases: int) -> None:
    rng = np.random.default_rng(0)
    labels = (np.arange(100) < cases).astype(np.int64)
    for flipped in (labels, 1 - labels):
        estimates = evaluate_classifier(count_scores(rng.beta(2 + flipped, 3), flipped))
        for name, estimate in estimates.items():
            assert math.isfinite(estimate.value)
            assert math.isfinite(estimate.low) == (cases == 15 or name == "accuracy"), name


def test_intervals_have_their_nominal_coverage() -> None:
    """Fewer repetitions than `abaton bench references`, with wide tolerance."""
    truth = {
        name: estimate.value
        for name, estimate in evaluate_classifier(count_scores(*subjects(400_000, 99)), resamples=0).items()
    }
    covered = dict.fromkeys(truth, 0)
    for seed in range(200):
        estimates = evaluate_classifier(count_scores(*subjects(150, seed)), resamples=100, seed=seed)
        for name, estimate in estimates.items():
            covered[name] += estimate.low <= truth[name] <= estimate.high
    for name, hits in covered.items():
        assert 178 <= hits <= 199, name  # 95 % of 200 is 190; the binomial's middle 99.9 %


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


def test_wilson_is_inside_zero_and_one() -> None:
    assert math.isclose(wilson(10, 10).high, 1.0)
    assert wilson(10, 10).low > 0.7
    assert math.isnan(wilson(0, 0).value)


def test_wilson_agrees_with_statsmodels() -> None:
    for n in (1, 7, 50, 300):
        for hits in {0, 1, n // 3, n}:
            low, high = proportion_confint(hits, n, method="wilson")
            assert (wilson(hits, n).low, wilson(hits, n).high) == pytest.approx((low, high), abs=1e-6)
