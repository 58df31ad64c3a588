"""Sums of errors add up over sites, give the metrics of scikit-learn, and intervals with their coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from abaton.metrics.regression import RegressionSums, add_errors, evaluate_sums, sum_errors


@given(st.integers(0, 10_000), st.sampled_from([0.0, 100.0, -1e4]), st.sampled_from([1e-3, 1.0, 50.0]))
def test_sums_of_sites_agree_with_scikit_learn(seed, mean, scale):
    rng = np.random.default_rng(seed)
    actual = rng.normal(mean, scale, 60)
    predicted = actual + rng.standard_t(3, 60) * scale * rng.choice([0.1, 2])
    estimates = evaluate_sums(
        add_errors(sum_errors(predicted[i::3], actual[i::3], centre=round(mean)) for i in range(3))
    )
    expected = {
        "rmse": root_mean_squared_error(actual, predicted),
        "mae": mean_absolute_error(actual, predicted),
        "r2": r2_score(actual, predicted),
    }
    assert {name: estimates[name].value for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert all(estimate.low < estimate.value < estimate.high for estimate in estimates.values())


def test_explained_variance_below_zero_has_an_interval_as_wide_as_the_bootstrap():
    rng = np.random.default_rng(1)
    for error_scale in (0.4, 1.0, 1.5):
        actual = rng.normal(100, 20, 400)
        predicted = actual + rng.normal(0, 20 * error_scale, 400)
        sums = sum_errors(predicted, actual, centre=100.0)
        rows = rng.integers(0, 400, (1000, 400))
        for name, metric in (
            ("r2", r2_score),
            ("rmse", root_mean_squared_error),
            ("mae", mean_absolute_error),
        ):
            low, high = np.quantile([metric(actual[row], predicted[row]) for row in rows], [0.025, 0.975])
            estimate = evaluate_sums(sums)[name]
            assert estimate.high - estimate.low == pytest.approx(high - low, rel=0.2)


def test_intervals_have_their_nominal_coverage():
    rng, covered = np.random.default_rng(2), {"rmse": 0, "mae": 0, "r2": 0}
    truth = {"rmse": 1.2, "mae": 1.2 * math.sqrt(2 / math.pi), "r2": 1 - 1.44}
    for _ in range(600):
        actual = rng.normal(size=50)
        estimates = evaluate_sums(sum_errors(actual + 1.2 * rng.normal(size=50), actual))
        for name, value in truth.items():
            covered[name] += estimates[name].low <= value <= estimates[name].high
    for name, hits in covered.items():
        assert 0.92 < hits / 600 < 0.98, name


def test_metrics_without_subjects_or_variation_are_nan():
    assert math.isnan(evaluate_sums(RegressionSums())["rmse"].value)
    constant = sum_errors(np.ones(60), np.full(60, 0.1))
    assert evaluate_sums(constant)["rmse"].value == pytest.approx(0.9)
    assert math.isnan(evaluate_sums(constant)["r2"].value)
    assert evaluate_sums(sum_errors(np.ones(60), np.ones(60)))["rmse"].value == 0


@pytest.mark.parametrize(("n", "names"), [(19, ""), (20, "mae"), (49, "mae"), (50, "mae r2 rmse")])
def test_intervals_need_enough_subjects(n, names):
    actual = np.random.default_rng(0).normal(size=(2, n))
    estimates = evaluate_sums(sum_errors(actual[0], actual[1]))
    assert (
        sorted(name for name, estimate in estimates.items() if math.isfinite(estimate.low)) == names.split()
    )
