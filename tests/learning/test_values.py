"""Sums of errors add up over sites and give what the rows themselves give."""

from __future__ import annotations

import math

import numpy as np
import pytest

from abaton.metrics.classification import judge_values
from abaton.metrics.regression import ValueSums, add_errors, judge_sums, sum_errors


def test_sums_of_sites_give_what_all_rows_give():
    rng = np.random.default_rng(1)
    actual = rng.normal(100, 20, 400)
    predicted = actual + rng.normal(0, 8, 400)
    parts = [sum_errors(predicted[i::3], actual[i::3]) for i in range(3)]
    made, whole = judge_sums(add_errors(parts)), judge_values(predicted, actual, resamples=2000)
    for name in ("rmse", "mae", "r2"):
        assert made[name].value == pytest.approx(whole[name].value)
        width, other = made[name].high - made[name].low, whole[name].high - whole[name].low
        assert width == pytest.approx(other, rel=0.2)


def test_nothing_is_told_of_nobody_and_of_constants():
    assert math.isnan(judge_sums(ValueSums())["rmse"].value)
    same = sum_errors(np.ones(5), np.ones(5))
    assert judge_sums(same)["rmse"].value == 0
    assert math.isnan(judge_sums(same)["r2"].value)
