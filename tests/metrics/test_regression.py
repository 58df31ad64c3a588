"""Sums of errors add up over sites and give the same metrics as the rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from abaton.metrics.classification import evaluate_regression
from abaton.metrics.regression import RegressionSums, add_errors, evaluate_sums, sum_errors


def test_sums_of_sites_give_the_metrics_of_all_rows():
    rng = np.random.default_rng(1)
    actual = rng.normal(100, 20, 400)
    predicted = actual + rng.normal(0, 8, 400)
    site_sums = [sum_errors(predicted[i::3], actual[i::3]) for i in range(3)]
    from_sums, from_rows = (
        evaluate_sums(add_errors(site_sums)),
        evaluate_regression(predicted, actual, resamples=2000),
    )
    for name in ("rmse", "mae", "r2"):
        assert from_sums[name].value == pytest.approx(from_rows[name].value)
        width, other = from_sums[name].high - from_sums[name].low, from_rows[name].high - from_rows[name].low
        assert width == pytest.approx(other, rel=0.2)


def test_metrics_without_subjects_or_variation_are_nan():
    assert math.isnan(evaluate_sums(RegressionSums())["rmse"].value)
    constant = sum_errors(np.ones(5), np.ones(5))
    assert evaluate_sums(constant)["rmse"].value == 0
    assert math.isnan(evaluate_sums(constant)["r2"].value)
