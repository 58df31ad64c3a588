"""Meta-analysis of sites' AUROC against statsmodels, brute force and simulated coverage."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.metrics.classification import MetricEstimate, count_scores, evaluate_classifier
from abaton.metrics.classification_intervals import AurocEstimate, estimate_auroc
from abaton.metrics.meta_analysis import auroc_difference, combine_auroc


def logistic(x):
    return 1 / (1 + np.exp(-x))


def combine(values, errors):
    return combine_auroc([AurocEstimate(v, e, 50.0) for v, e in zip(values, errors, strict=True)])


def interval(scores, labels):
    return evaluate_classifier(count_scores(logistic(scores), labels), resamples=0)["auroc"]


def test_the_error_of_an_auroc_is_delongs():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        labels = rng.random(int(rng.integers(12, 200))) < 0.4
        scores = np.round(rng.normal(size=len(labels)) + labels, int(rng.integers(0, 4)))  # with ties
        if min(labels.sum(), (~labels).sum()) < 2:
            continue
        wins = (scores[labels][:, None] > scores[~labels]) + (scores[labels][:, None] == scores[~labels]) / 2
        variance = wins.mean(1).var(ddof=1) / labels.sum() + wins.mean(0).var(ddof=1) / (~labels).sum()
        counts = count_scores(logistic(scores), labels)
        estimate = estimate_auroc(counts.cases, counts.controls)
        assert estimate[:2] == pytest.approx((wins.mean(), np.sqrt(variance)))
        assert estimate.value == evaluate_classifier(counts, resamples=0)["auroc"].value, "to the last bit"


def test_it_is_the_meta_analysis_of_statsmodels():
    from statsmodels.stats.meta_analysis import combine_effects

    for seed in range(200):
        rng = np.random.default_rng(seed)
        sites = int(rng.integers(2, 12))
        values, errors = rng.uniform(0.55, 0.95, sites), rng.uniform(0.01, 0.08, sites)
        result = combine(values, errors)
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


def test_sites_without_an_error_are_dropped():
    assert combine([0.8, 1.0], [0.05, 0.0]) is None
    assert combine([0.8, 1.0, 0.7], [0.05, 0.0, 0.04]).sites == 2


@pytest.mark.parametrize("tau", [0.0, 0.4])
def test_the_interval_of_the_mean_covers_as_often_as_it_says(tau):
    rng, covered, repeats = np.random.default_rng(1), 0, 2000
    for _ in range(repeats):
        errors = rng.uniform(0.2, 0.4, 6)
        values = logistic(1.2 + tau * rng.normal(size=6) + errors * rng.normal(size=6))
        mean = combine(values, errors * values * (1 - values)).mean
        covered += mean.low <= logistic(1.2) <= mean.high
    assert 0.92 <= covered / repeats <= 0.98


@pytest.mark.parametrize("shifts", [(1.2, 0.8), (2.5, 1.5), (0.3, 0.0)])
@pytest.mark.parametrize(("cases", "controls"), [(15, 50), (15, 300), (40, 60)])
def test_the_difference_of_two_groups_covers_as_often_as_it_says(cases, controls, shifts):
    from statistics import NormalDist

    rng, covered = np.random.default_rng(4), []
    labels = np.arange(cases + controls) < cases
    first, second = (NormalDist().cdf(shift / np.sqrt(2)) for shift in shifts)
    for _ in range(1200):
        difference = auroc_difference(
            *(interval(rng.normal(size=len(labels)) + shift * labels, labels) for shift in shifts)
        )
        covered.append(difference.low <= first - second <= difference.high)
    assert 0.92 <= np.mean(covered) <= 0.98


def test_few_cases_and_an_auroc_of_one_have_no_interval():
    labels = np.arange(200) < 14
    assert np.isnan(interval(np.random.default_rng(0).normal(size=200), labels).low)
    estimate = interval(np.arange(200.0) / 50, np.arange(200) >= 30)
    assert estimate.value == 1
    assert np.isnan(estimate.low)
    assert np.isnan(auroc_difference(estimate, MetricEstimate(0.7, 0.6, 0.8)).low)
