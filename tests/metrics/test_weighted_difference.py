"""Mean difference of two models over several small sites."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.metrics.meta_analysis import weighted_difference
from abaton.metrics.paired_bootstrap import compare_models, probability_statistic


def _site(rng, cases: int, controls: int):
    """Return the difference of two models at a site, its standard error and its number of cases."""
    labels = np.repeat([1, 0], [cases, controls])
    signal = rng.normal(size=cases + controls) + 1.4 * labels
    models = {"good": signal, "noisy": signal + rng.normal(size=len(labels))}
    statistics = {
        name: probability_statistic(np.stack([1 - p, p], 1), labels, [1], "auroc")
        for name, scores in models.items()
        for p in [1 / (1 + np.exp(1.5 - scores))]
    }
    comparison = compare_models(statistics, labels, resamples=200, seed=int(rng.integers(2**31)))
    return (
        comparison.difference("good", "noisy").value,
        comparison.standard_error("good", "noisy"),
        cases,
    )


def test_the_interval_covers_the_mean_difference_of_small_sites():
    # AUROC of a binormal score with separation d is Phi(d / sqrt(2)); the noise doubles the variance.
    from scipy.stats import norm

    true_difference = norm.cdf(1.4 / np.sqrt(2)) - norm.cdf(1.4 / 2)
    rng, covered = np.random.default_rng(1), []
    for _ in range(150):
        sites = [_site(rng, cases, 12 * cases) for cases in (15, 9, 14, 10, 6, 7)]
        estimate = weighted_difference(*zip(*sites, strict=True))
        covered.append(estimate.low <= true_difference <= estimate.high)
    assert 0.90 <= np.mean(covered) <= 0.99


@pytest.mark.parametrize("counts", [(5, 9), (7, 7)])
def test_few_cases_in_total_have_no_interval(counts):
    estimate = weighted_difference([0.1, 0.2], [0.01, 0.01], counts)
    assert np.isnan(estimate.low)
    assert 0.1 < estimate.value < 0.2


def test_it_equals_the_mean_weighted_by_cases():
    estimate = weighted_difference([0.3, -0.1, 0.05], [0.1, 0.2, 0.05], [20, 10, 30])
    weights = np.array([20, 10, 30]) / 60
    assert estimate.value == pytest.approx(np.average([0.3, -0.1, 0.05], weights=weights))
    error = np.sqrt(((weights * [0.1, 0.2, 0.05]) ** 2).sum())
    assert estimate.high - estimate.value == pytest.approx(1.959964 * error)
