"""Two models on the same people: each has the number it has alone, and pairing makes the difference sharper."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from abaton.learning.clinical import BINS, count_scores, judge
from abaton.learning.pairing import chance_statistic, compare_pair, value_statistic

RNG = np.random.default_rng(4)
ILL = (RNG.random(400) < 0.3).astype(np.int64)
SEEN = RNG.normal(ILL * 1.2)


def chances(noise: float) -> np.ndarray:
    p = 1 / (1 + np.exp(-SEEN - noise * np.random.default_rng(9).normal(size=400)))
    return np.stack([1 - p, p], axis=1)


def statistic(noise: float, measure: str = "auroc"):
    return chance_statistic(chances(noise), ILL, [1], measure)


def test_each_model_has_the_number_that_its_counts_give():
    pair = compare_pair(statistic(1.0), statistic(0.0), ILL, resamples=10)
    for found, noise in ((pair.first, 1.0), (pair.second, 0.0)):
        counted = count_scores(chances(noise)[:, 1], ILL, bins=BINS)
        assert found.value == pytest.approx(judge(counted, resamples=0)["auroc"].value, abs=1e-12)
        assert found.value == pytest.approx(roc_auc_score(ILL, chances(noise)[:, 1]), abs=2e-3)
    assert pair.difference.value == pytest.approx(pair.second.value - pair.first.value)


def test_the_interval_of_the_difference_is_narrower_than_of_two_samples_and_seeded():
    pair = compare_pair(statistic(0.3), statistic(0.0), ILL, seed=1)
    again = compare_pair(statistic(0.3), statistic(0.0), ILL, seed=1)
    assert pair == again
    assert pair != compare_pair(statistic(0.3), statistic(0.0), ILL, seed=2)
    apart = np.hypot(pair.first.high - pair.first.low, pair.second.high - pair.second.low)
    assert pair.difference.high - pair.difference.low < 0.6 * apart


def test_a_model_against_itself_gains_nothing():
    pair = compare_pair(statistic(0.5), statistic(0.5), ILL, resamples=50)
    assert (pair.difference.value, pair.difference.low, pair.difference.high) == (0, 0, 0)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    hits = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        ill = (rng.random(150) < 0.4).astype(np.int64)
        one, two = (
            1 / (1 + np.exp(-rng.normal(ill * 1.0))) for _ in range(2)
        )  # equally good: the truth is 0
        made = [chance_statistic(np.stack([1 - p, p], 1), ill, [1], "auroc") for p in (one, two)]
        found = compare_pair(*made, ill, resamples=200, seed=seed).difference
        hits += found.low <= 0 <= found.high
    assert hits >= 52  # of 60, seeds fixed; 57 are meant


@pytest.mark.parametrize("measure", ["rmse", "mae", "r2"])
def test_values_are_compared_too(measure):
    actual = RNG.normal(10, 3, 200)
    good, bad = actual + RNG.normal(0, 1, 200), actual + RNG.normal(0, 2, 200)
    pair = compare_pair(
        value_statistic(bad, actual, measure), value_statistic(good, actual, measure), np.zeros(200, np.int64)
    )
    low, high = pair.difference.low, pair.difference.high
    assert (low > 0) if measure == "r2" else (high < 0)


def test_several_classes_are_each_held_against_the_rest():
    y = np.arange(90) % 3
    sure = np.eye(3)[y]
    vague = np.full((90, 3), 1 / 3)
    pair = compare_pair(*(chance_statistic(p, y, range(3), "auroc") for p in (vague, sure)), y, resamples=20)
    assert (pair.first.value, pair.second.value, pair.difference.value) == (0.5, 1.0, 0.5)
