"""Meta-analysis of sites' AUROC against statsmodels, brute force and simulated coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t

from abaton.metrics.classification import MetricEstimate
from abaton.metrics.meta_analysis import auroc_difference, auroc_interval, auroc_with_error, combine_auroc


def logistic(x):
    return 1 / (1 + np.exp(-x))


def test_the_error_of_an_auroc_is_delongs():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        labels = rng.random(int(rng.integers(12, 200))) < 0.4
        scores = np.round(rng.normal(size=len(labels)) + labels, int(rng.integers(0, 4)))  # with ties
        if min(labels.sum(), (~labels).sum()) < 2:
            continue
        wins = (scores[labels][:, None] > scores[~labels]) + (scores[labels][:, None] == scores[~labels]) / 2
        variance = wins.mean(1).var(ddof=1) / labels.sum() + wins.mean(0).var(ddof=1) / (~labels).sum()
        assert auroc_with_error(scores, labels) == pytest.approx((wins.mean(), np.sqrt(variance)))


def test_it_is_the_meta_analysis_of_statsmodels():
    combine_effects = pytest.importorskip("statsmodels.stats.meta_analysis").combine_effects
    for seed in range(200):
        rng = np.random.default_rng(seed)
        sites = int(rng.integers(2, 12))
        values, errors = rng.uniform(0.55, 0.95, sites), rng.uniform(0.01, 0.08, sites)
        result = combine_auroc(values, errors)
        logits, scaled = np.log(values / (1 - values)), errors / (values * (1 - values))
        with np.errstate(invalid="ignore"):
            reference = combine_effects(logits, scaled**2, method_re="chi2", use_t=True)
            intervals = reference.conf_int()
        is_homogeneous = (
            reference.tau2 <= 0
        )  # statsmodels does not truncate at 0: compare with its fixed effect
        effect = reference.mean_effect_fe if is_homogeneous else reference.mean_effect_re
        low, high = intervals[2 if is_homogeneous else 3]  # by Hartung and Knapp
        assert result.tau2 == pytest.approx(max(reference.tau2, 0), rel=1e-9, abs=1e-12)
        assert result.q == pytest.approx(reference.q)
        assert result.i2 == pytest.approx(max(reference.i2, 0))
        assert result.mean.value == pytest.approx(logistic(effect))
        assert [result.mean.low, result.mean.high] == pytest.approx([logistic(low), logistic(high)])
        assert (result.prediction is None) == (sites < 5)
        if result.prediction:
            error = (high - low) / 2 / t.ppf(0.975, sites - 1)
            spread = t.ppf(0.975, sites - 2) * np.sqrt(max(reference.tau2, 0) + error**2)
            expected = [logistic(effect - spread), logistic(effect + spread)]
            assert result.prediction == pytest.approx(expected)


def test_sites_without_an_error_are_dropped():
    assert combine_auroc([0.8, 1.0], [0.05, 0.0]) is None
    assert combine_auroc([0.8, 1.0, 0.7], [0.05, 0.0, 0.04]).sites == 2


@pytest.mark.parametrize("tau", [0.0, 0.4])
def test_the_interval_of_the_mean_covers_as_often_as_it_says(tau):
    rng, covered, repeats = np.random.default_rng(1), 0, 2000
    for _ in range(repeats):
        errors = rng.uniform(0.2, 0.4, 6)
        values = logistic(1.2 + tau * rng.normal(size=6) + errors * rng.normal(size=6))
        mean = combine_auroc(values, errors * values * (1 - values)).mean
        covered += mean.low <= logistic(1.2) <= mean.high
    assert 0.92 <= covered / repeats <= 0.98


@pytest.mark.parametrize(("count", "prevalence"), [(100, 0.15), (100, 0.4), (300, 0.15), (400, 0.05)])
def test_the_difference_of_two_groups_covers_as_often_as_it_says(count, prevalence):
    from statistics import NormalDist

    rng, covered, repeats = np.random.default_rng(4), [], 1200
    for _ in range(repeats):
        estimates = []
        for shift in (1.2, 0.8):
            labels = rng.random(count) < prevalence
            if min(labels.sum(), count - labels.sum()) < 10:
                break
            estimates.append(
                auroc_interval(*auroc_with_error(rng.normal(size=count) + shift * labels, labels))
            )
        else:
            difference = auroc_difference(*estimates)
            true = NormalDist().cdf(1.2 / np.sqrt(2)) - NormalDist().cdf(0.8 / np.sqrt(2))
            covered.append(difference.low <= true <= difference.high)
    assert 0.92 <= np.mean(covered) <= 0.98


def test_an_auroc_of_one_has_no_interval():
    estimate = auroc_interval(1.0, 0.0)
    assert np.isnan(estimate.low)
    assert np.isnan(auroc_difference(estimate, MetricEstimate(0.7, 0.6, 0.8)).low)
