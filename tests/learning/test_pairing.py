"""Some models on the same people: each has the number it has alone, and pairing makes the difference sharper."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from abaton.metrics.classification import BINS, count_scores, judge
from abaton.metrics.paired_bootstrap import chance_statistic, compare_models, value_statistic

RNG = np.random.default_rng(4)
ILL = (RNG.random(400) < 0.3).astype(np.int64)
SEEN = RNG.normal(ILL * 1.2)


def chances(noise: float) -> np.ndarray:
    p = 1 / (1 + np.exp(-SEEN - noise * np.random.default_rng(9).normal(size=400)))
    return np.stack([1 - p, p], axis=1)


def statistic(noise: float, measure: str = "auroc"):
    return chance_statistic(chances(noise), ILL, [1], measure)


def compare(first, second, strata, **how):
    return compare_models({"a": first, "b": second}, strata, **how)


def numbers(found):
    return [found.of("a"), found.of("b"), found.difference("b", "a")]


def test_each_model_has_the_number_that_its_counts_give():
    first, second, difference = numbers(compare(statistic(1.0), statistic(0.0), ILL, resamples=10))
    for found, noise in ((first, 1.0), (second, 0.0)):
        counted = count_scores(chances(noise)[:, 1], ILL, bins=BINS)
        assert found.value == pytest.approx(judge(counted, resamples=0)["auroc"].value, abs=1e-12)
        assert found.value == pytest.approx(roc_auc_score(ILL, chances(noise)[:, 1]), abs=2e-3)
    assert difference.value == pytest.approx(second.value - first.value)


def test_the_interval_of_the_difference_is_narrower_than_of_two_samples_and_seeded():
    found, again, other = (
        numbers(compare(statistic(0.3), statistic(0.0), ILL, seed=seed)) for seed in (1, 1, 2)
    )
    assert found == again
    assert found != other
    wide = [each.high - each.low for each in found]
    assert wide[2] < 0.6 * np.hypot(*wide[:2])


def test_the_interval_agrees_with_ranks_of_people_who_are_drawn_again():
    rng, chance = np.random.default_rng(5), chances(0.4)[:, 1]
    found = compare(statistic(0.0), statistic(0.4), ILL, seed=1).difference("b", "a")
    drawn = []
    for _ in range(1500):
        some = np.concatenate(
            [rng.choice(who, len(who)) for who in (np.flatnonzero(ILL), np.flatnonzero(1 - ILL))]
        )
        areas = [roc_auc_score(ILL[some], said[some]) for said in (chance, chances(0.0)[:, 1])]
        drawn.append(areas[0] - areas[1])
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert found.low == pytest.approx(low, abs=0.01)
    assert found.high == pytest.approx(high, abs=0.01)


def test_many_models_are_drawn_alike_and_none_changes_the_others():
    two = compare(statistic(0.5), statistic(0.0), ILL, resamples=50)
    three = compare_models({"c": statistic(1.0), "a": statistic(0.5), "b": statistic(0.0)}, ILL, resamples=50)
    assert numbers(two) == numbers(three)
    assert three.difference("c", "a").value < 0
    alone = compare(statistic(0.5), statistic(0.0), ILL, resamples=0)
    assert alone.of("a").value == two.of("a").value
    assert np.isnan(alone.difference("b", "a").low)


def test_a_model_against_itself_gains_nothing():
    difference = compare(statistic(0.5), statistic(0.5), ILL, resamples=50).difference("b", "a")
    assert (difference.value, difference.low, difference.high) == (0, 0, 0)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    hits = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        ill = (rng.random(150) < 0.4).astype(np.int64)
        one, two = (
            1 / (1 + np.exp(-rng.normal(ill * 1.0))) for _ in range(2)
        )  # equally good: the truth is 0
        made = [chance_statistic(np.stack([1 - p, p], 1), ill, [1], "auroc") for p in (one, two)]
        found = compare(*made, ill, resamples=200, seed=seed).difference("b", "a")
        hits += found.low <= 0 <= found.high
    assert hits >= 52  # of 60, seeds fixed; 57 are meant


@pytest.mark.parametrize("measure", ["rmse", "mae", "r2"])
def test_values_are_compared_too(measure):
    actual = RNG.normal(10, 3, 200)
    good, bad = actual + RNG.normal(0, 1, 200), actual + RNG.normal(0, 2, 200)
    found = compare(
        value_statistic(bad, actual, measure), value_statistic(good, actual, measure), np.zeros(200, np.int64)
    )
    difference = found.difference("b", "a")
    low, high = difference.low, difference.high
    assert (low > 0) if measure == "r2" else (high < 0)


def test_several_classes_are_each_held_against_the_rest():
    y = np.arange(90) % 3
    sure = np.eye(3)[y]
    vague = np.full((90, 3), 1 / 3)
    made = compare(*(chance_statistic(p, y, range(3), "auroc") for p in (vague, sure)), y, resamples=20)
    assert [each.value for each in numbers(made)] == [0.5, 1.0, 0.5]
