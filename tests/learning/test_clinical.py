"""Clinical measures agree with scikit-learn and statsmodels-style fits, and counts add up over sites."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, brier_score_loss, r2_score, roc_auc_score, roc_curve

from abaton.errors import SettingsError
from abaton.metrics.classification import BINS, ScoreCounts, count_scores, judge, judge_values, together, wilson


def subjects(n: int, seed: int, *, digits: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    ill = (rng.random(n) < 0.4).astype(np.int64)
    z = rng.normal(size=n) + 1.4 * ill - 0.7
    return np.round(1 / (1 + np.exp(-z)), digits), ill


@given(st.integers(0, 10_000), st.sampled_from([1, 2, 6]))
def test_agrees_with_scikit_learn_ties_included(seed: int, digits: int) -> None:
    chances, ill = subjects(120, seed, digits=digits)
    found = judge(count_scores(chances, ill), resamples=0)
    assert math.isclose(found["auroc"].value, roc_auc_score(ill, chances), abs_tol=1e-12)
    assert math.isclose(found["auprc"].value, average_precision_score(ill, chances), abs_tol=1e-12)
    assert math.isclose(found["brier"].value, brier_score_loss(ill, chances), abs_tol=1e-12)


def test_sensitivity_is_the_best_threshold_that_keeps_the_specificity() -> None:
    chances, ill = subjects(400, 3)
    fpr, tpr, _ = roc_curve(ill, chances, drop_intermediate=False)
    found = judge(count_scores(chances, ill), specificity=0.8, resamples=0)
    assert math.isclose(
        found["sensitivity at specificity 0.8"].value, tpr[fpr <= 0.2 + 1e-12].max(), abs_tol=1e-12
    )


def test_calibration_slope_is_that_of_a_logistic_regression() -> None:
    chances, ill = subjects(3000, 5)
    log_odds = np.log(chances / (1 - chances))
    fit = LogisticRegression(C=1e9, max_iter=1000).fit(log_odds[:, None], ill)
    found = judge(count_scores(chances, ill), resamples=0)
    assert math.isclose(found["calibration slope"].value, float(fit.coef_[0, 0]), rel_tol=1e-3)


def test_predictions_that_are_right_have_slope_one_and_intercept_zero() -> None:
    rng = np.random.default_rng(0)
    chances = rng.beta(2, 3, 40_000)
    found = judge(count_scores(chances, (rng.random(40_000) < chances).astype(int), bins=BINS), resamples=200)
    assert found["calibration slope"].low < 1 < found["calibration slope"].high
    assert found["calibration intercept"].low < 0 < found["calibration intercept"].high


@given(st.integers(0, 1000), st.integers(2, 5))
def test_counts_of_sites_add_up_to_the_counts_of_all(seed: int, sites: int) -> None:
    chances, ill = subjects(90, seed)
    parts = [count_scores(chances[i::sites], ill[i::sites], bins=50) for i in range(sites)]
    whole = count_scores(chances, ill, bins=50)
    summed = together(parts)
    assert np.array_equal(summed.cases, whole.cases)
    assert np.array_equal(summed.controls, whole.controls)


def test_bins_change_the_area_by_less_than_a_thousandth() -> None:
    chances, ill = subjects(2000, 8)
    exact, binned = (
        judge(count_scores(chances, ill, bins=bins), resamples=0)["auroc"].value for bins in (0, BINS)
    )
    assert abs(exact - binned) < 1e-3


def test_different_bins_do_not_add_up() -> None:
    chances, ill = subjects(20, 0)
    with pytest.raises(SettingsError, match="different bins"):
        together([count_scores(chances, ill, bins=10), count_scores(chances, ill, bins=20)])


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    truth = judge(count_scores(*subjects(200_000, 99), bins=BINS), resamples=0)["auroc"].value
    inside = 0
    for seed in range(200):
        found = judge(count_scores(*subjects(150, seed)), resamples=100, seed=seed)["auroc"]
        inside += found.low <= truth <= found.high
    assert 178 <= inside <= 199  # 95 % of 200 is 190; the binomial's middle 99.9 %


def test_same_seed_same_interval() -> None:
    counts = count_scores(*subjects(100, 1))
    assert judge(counts, seed=4) == judge(counts, seed=4)
    assert judge(counts, seed=4) != judge(counts, seed=5)


def test_one_class_only_has_no_area() -> None:
    found = judge(count_scores(np.array([0.2, 0.9]), np.array([1, 1])))
    assert math.isnan(found["auroc"].value)
    assert math.isclose(found["brier"].value, (0.64 + 0.01) / 2)


def test_nobody_gives_no_number() -> None:
    found = judge(count_scores(np.empty(0), np.empty(0, np.int64), bins=10))
    assert all(math.isnan(estimate.value) for estimate in found.values())


def test_one_score_for_all_has_no_slope() -> None:
    found = judge(count_scores(np.full(20, 0.5), np.arange(20) % 2), resamples=20)
    assert math.isnan(found["calibration slope"].value)
    assert found["auroc"].value == 0.5


@pytest.mark.parametrize("wrong", [1.5, -0.1, float("nan")])
def test_what_is_no_chance_is_refused(wrong: float) -> None:
    with pytest.raises(SettingsError, match="not between 0 and 1"):
        count_scores(np.array([0.5, wrong]), np.array([0, 1]))


def test_the_curve_goes_from_nobody_to_everybody() -> None:
    fpr, tpr = count_scores(*subjects(50, 2)).curve()
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    assert (np.diff(fpr) >= 0).all()
    assert (np.diff(tpr) >= 0).all()


def test_calibration_groups_hold_all_subjects() -> None:
    counts = count_scores(*subjects(1000, 4))
    groups = counts.calibration(10)
    assert len(groups) == 10
    shares = [estimate.value for _, estimate in groups]
    assert math.isclose(np.mean(shares), counts.cases.sum() / 1000, abs_tol=0.01)
    assert isinstance(counts, ScoreCounts)


def test_values_agree_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    actual = rng.normal(50, 10, 300)
    predicted = actual * 0.8 + 8 + rng.normal(0, 3, 300)
    found = judge_values(predicted, actual, resamples=200)
    assert math.isclose(found["r2"].value, r2_score(actual, predicted), abs_tol=1e-12)
    assert found["r2"].low < found["r2"].value < found["r2"].high
    assert math.isclose(found["calibration slope"].value, np.polyfit(predicted, actual, 1)[0], rel_tol=1e-9)


def test_no_value_is_explained_where_all_are_the_same() -> None:
    assert math.isnan(judge_values(np.array([1.0, 2.0]), np.array([3.0, 3.0]), resamples=5)["r2"].value)


def test_wilson_is_inside_zero_and_one() -> None:
    assert math.isclose(wilson(10, 10).high, 1.0)
    assert wilson(10, 10).low > 0.7
    assert math.isnan(wilson(0, 0).value)
