"""Estimates from released sums: equal to the exact metrics without noise, and with intervals that cover with it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score, root_mean_squared_error

from abaton.metrics.bounded_sums import (
    BoundedContributions,
    auroc_contributions,
    brier_contributions,
    calibration_contributions,
    concordance_contributions,
    regression_contributions,
    slope_contributions,
)
from abaton.metrics.classification import MetricEstimate, count_scores, evaluate_classifier
from abaton.metrics.logistic_fit import sigmoid
from abaton.metrics.noisy_estimates import (
    SLOPE_NOISE_FACTORS,
    ReleasedSizes,
    ReleasedSum,
    add_sizes,
    add_sums,
    combine_sites,
    estimate_brier,
    estimate_intercept,
    estimate_pairs,
    estimate_regression,
    estimate_slope,
    pairs_error,
)
from abaton.metrics.survival import sum_pairs

Floats = NDArray[np.float64]
SEPARATION = 1.5  # AUROC .8556


def draw_site(
    rng: np.random.Generator, n: int, prevalence: float, shift: float = 0.0
) -> tuple[Floats, Floats]:
    """Draw calibrated predictions and outcomes; with a shift, the predictions lack these log odds."""
    y = (rng.random(n) < prevalence).astype(np.int64)
    score = rng.normal(size=n) + SEPARATION * y
    x = math.log(prevalence / (1 - prevalence)) + SEPARATION * score - SEPARATION**2 / 2
    return sigmoid(x - shift), y


def released(
    contributions: BoundedContributions, multiplier: float = 0.0, rng: np.random.Generator | None = None
) -> ReleasedSum:
    """Release a sum with noise, as a gate does."""
    values, sd = contributions.rows.sum(0), multiplier * contributions.bound
    return ReleasedSum(values if rng is None else values + sd * rng.normal(size=len(values)), sd)


def class_sizes(y: Floats, sd: float = 0.0, rng: np.random.Generator | None = None) -> ReleasedSizes:
    """Release class sizes with noise."""
    noise = np.zeros(2) if rng is None else sd * rng.normal(size=2)
    return ReleasedSizes(float(y.sum() + noise[0]), float(len(y) - y.sum() + noise[1]), sd)


def test_without_noise_one_site_has_the_exact_metrics() -> None:
    p, y = draw_site(np.random.default_rng(1), 3000, 0.2)
    exact, sizes = evaluate_classifier(count_scores(p, y), resamples=0), class_sizes(y)
    auroc = estimate_pairs(released(auroc_contributions(p, y)), sizes)
    assert auroc.value == pytest.approx(roc_auc_score(y, p))
    assert (auroc.low, auroc.high) == pytest.approx((exact["auroc"].low, exact["auroc"].high), abs=0.006)
    brier = estimate_brier(released(brier_contributions(p, y)), sizes)
    assert brier.value == pytest.approx(np.mean((p - y) ** 2))
    assert (brier.low, brier.high) == pytest.approx((exact["brier"].low, exact["brier"].high), abs=1e-4)
    slope = estimate_slope(lambda line, _: released(slope_contributions(p, y, line)), sizes)
    expected = exact["calibration slope"]
    assert slope.value == pytest.approx(expected.value, abs=0.01)
    assert (slope.low, slope.high) == pytest.approx((expected.low, expected.high), abs=0.02)


@pytest.mark.parametrize("shift", [-1.6, -0.8, -0.3, 0.0, 0.3, 0.8, 1.6])
def test_calibration_in_the_large_at_any_shift(shift: float) -> None:
    p, y = draw_site(np.random.default_rng(2), 20_000, 0.2, shift)
    expected = evaluate_classifier(count_scores(p, y), resamples=0)["calibration intercept"]
    estimate = estimate_intercept(released(calibration_contributions(p, y)), class_sizes(y))
    assert estimate.value == pytest.approx(expected.value, abs=0.02 if abs(shift) < 1 else 0.12)
    assert estimate.high - estimate.low == pytest.approx(expected.high - expected.low, rel=0.15)


def test_concordance_and_regression_without_noise() -> None:
    rng = np.random.default_rng(3)
    p = rng.random(200)
    labels = np.stack([rng.exponential(1 / (0.2 + p)), (rng.random(200) < 0.6).astype(float)], axis=1)
    sums, sizes = sum_pairs(p, labels), class_sizes(labels[:, 1])
    estimate = estimate_pairs(released(concordance_contributions(p, labels)), sizes, is_survival=True)
    assert estimate.value == pytest.approx(sums.concordant / sums.pairs)
    actual = np.clip(50 + 15 * rng.normal(size=400), 0, 100)
    predicted = np.clip(actual + 6 * rng.normal(size=400), 0, 100)
    metrics = estimate_regression(
        released(regression_contributions(predicted, actual, 0.0, 100.0)), 400, 0.0, 0.0, 100.0
    )
    assert metrics["mae"].value == pytest.approx(mean_absolute_error(actual, predicted))
    assert metrics["rmse"].value == pytest.approx(root_mean_squared_error(actual, predicted))
    assert metrics["r2"].value == pytest.approx(r2_score(actual, predicted))


def test_nothing_is_estimated_from_few_subjects_or_under_large_noise() -> None:
    p, y = draw_site(np.random.default_rng(4), 300, 0.2)
    total = released(auroc_contributions(p, y))
    for sizes in (ReleasedSizes(9.9, 240.0), ReleasedSizes(60.0, 9.0), ReleasedSizes(-3.0, 20.0)):
        assert math.isnan(estimate_pairs(total, sizes).value)
        assert math.isnan(estimate_intercept(released(calibration_contributions(p, y)), sizes).value)
        assert math.isnan(estimate_brier(released(brier_contributions(p, y)), sizes).value)
        slope = estimate_slope(lambda line, _: released(slope_contributions(p, y, line)), sizes)
        assert math.isnan(slope.value)
    assert math.isnan(estimate_regression(ReleasedSum(np.ones(5)), 9.0, 0.0, 0.0, 1.0)["rmse"].value)
    assert math.isnan(estimate_pairs(ReleasedSum(total.values, 50.0), class_sizes(y)).value)
    slope = estimate_slope(
        lambda line, _: ReleasedSum(released(slope_contributions(p, y, line)).values, 50.0), class_sizes(y)
    )
    assert math.isnan(slope.value)


def test_the_interval_contains_the_noise() -> None:
    p, y = draw_site(np.random.default_rng(5), 400, 0.2)
    sizes = class_sizes(y)

    def width(estimate: MetricEstimate) -> float:
        return estimate.high - estimate.low

    pairs, brier, shift = (
        released(part(p, y)) for part in (auroc_contributions, brier_contributions, calibration_contributions)
    )
    for estimate, total in ((estimate_pairs, pairs), (estimate_brier, brier), (estimate_intercept, shift)):
        exact, noisy = (width(estimate(ReleasedSum(total.values, sd), sizes)) for sd in (0.0, 6.0))
        assert noisy > 1.2 * exact
    # The noise alone: a standard deviation of 2 over the pairs per subject.
    expected = math.hypot(width(estimate_pairs(pairs, sizes)), 2 * 1.96 * 2 / (pairs.values[1] / 0.66))
    assert width(estimate_pairs(ReleasedSum(pairs.values, 2.0), sizes)) == pytest.approx(expected, rel=0.05)


def test_a_site_with_two_controls_contributes_its_cases() -> None:
    """Pairs within sites: a small site has a small weight and is not dropped."""
    rng = np.random.default_rng(6)
    sites = [draw_site(rng, 200, 0.3), (rng.random(40), np.array([1] * 38 + [0] * 2))]
    total = add_sums(released(auroc_contributions(*site)) for site in sites)
    sizes = add_sizes(class_sizes(y) for _, y in sites)
    weights = np.array([y.sum() * (1 - y).sum() / len(y) for _, y in sites])
    by_site = np.array([roc_auc_score(y, p) for p, y in sites])
    assert estimate_pairs(total, sizes).value == pytest.approx(weights @ by_site / weights.sum())
    assert weights[1] == pytest.approx(1.9)
    assert sizes.sites == 2


def test_random_effects_with_equal_weights_are_those_of_hartung_and_knapp() -> None:
    rng = np.random.default_rng(7)
    values, error = 0.8 + 0.05 * rng.normal(size=8), 0.02
    result = combine_sites(list(values), [error] * 8, [1.0] * 8)
    assert result is not None
    between = values.var(ddof=1)
    assert result.mean.value == pytest.approx(values.mean())
    assert result.tau2 == pytest.approx(max(0.0, between - error**2))
    half_width = (result.mean.high - result.mean.low) / 2
    assert half_width == pytest.approx(2.3646 * math.sqrt(between / 8), rel=1e-4)
    assert result.i2 == pytest.approx(1 - error**2 / between)
    assert combine_sites([0.8] * 4, [0.02] * 4, [1.0] * 4) is None


def coverage(
    simulate: Callable[[np.random.Generator], tuple[MetricEstimate, float]], samples: int
) -> tuple[float, float]:
    """Return bias and coverage of an estimate over simulated samples."""
    rng = np.random.default_rng(8)
    results = [simulate(rng) for _ in range(samples)]
    known = [(estimate, truth) for estimate, truth in results if math.isfinite(estimate.value)]
    assert len(known) > 0.9 * samples
    bias = float(np.mean([estimate.value - truth for estimate, truth in known]))
    return bias, float(np.mean([estimate.low <= truth <= estimate.high for estimate, truth in known]))


@pytest.mark.slow
@pytest.mark.parametrize("multiplier", [1.0, 2.0])
def test_coverage_of_concordance_with_noise(multiplier: float) -> None:
    def draw(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
        p = rng.random(n)
        time, end = rng.exponential(np.exp(-2.5 * p)), rng.exponential(0.8, n)
        return p, np.stack([np.minimum(time, end), (time <= end).astype(float)], axis=1)

    big = sum_pairs(*draw(np.random.default_rng(9), 20_000))
    truth = big.concordant / big.pairs

    def simulate(rng: np.random.Generator) -> tuple[MetricEstimate, float]:
        sites = [draw(rng, 100) for _ in range(4)]
        total = add_sums(released(concordance_contributions(*site), multiplier, rng) for site in sites)
        sizes = add_sizes(class_sizes(y[:, 1], 3.0, rng) for _, y in sites)
        return estimate_pairs(total, sizes, is_survival=True), truth

    bias, covered = coverage(simulate, 400)
    assert abs(bias) < 0.01
    assert 0.92 <= covered <= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["mae", "rmse", "r2"])
def test_coverage_of_regression_metrics_with_noise(metric: str) -> None:
    truths = {"mae": 8 * math.sqrt(2 / math.pi), "rmse": 8.0, "r2": 1 - 64 / (15**2 + 64)}

    def simulate(rng: np.random.Generator) -> tuple[MetricEstimate, float]:
        predicted = 50 + 15 * rng.normal(size=(4, 200))
        actual = predicted + 8 * rng.normal(size=(4, 200))
        total = add_sums(
            released(regression_contributions(p, y, -20.0, 120.0), 1.0, rng)
            for p, y in zip(predicted, actual, strict=True)
        )
        return estimate_regression(total, 800 + 6 * rng.normal(), 6.0, -20.0, 120.0)[metric], truths[metric]

    bias, covered = coverage(simulate, 400)
    assert abs(bias) < 0.02 * max(1.0, truths[metric])
    assert 0.92 <= covered <= 0.98


@pytest.mark.slow
def test_coverage_of_random_effects_over_sites_that_differ() -> None:
    from scipy.stats import norm

    def simulate(rng: np.random.Generator) -> tuple[MetricEstimate, float]:
        estimates = []
        for separation in rng.normal(1.5, 0.35, 10):
            y = (rng.random(300) < 0.3).astype(np.int64)
            p = sigmoid(rng.normal(size=300) + separation * y)
            estimates.append(
                pairs_error(released(auroc_contributions(p, y), 1.0, rng), class_sizes(y, 3.0, rng))
            )
        result = combine_sites(*(list(column) for column in zip(*estimates, strict=True)))
        assert result is not None
        return result.mean, truth

    truth = float(norm.cdf(np.random.default_rng(0).normal(1.5, 0.35, 200_000) / math.sqrt(2)).mean())
    bias, covered = coverage(simulate, 400)
    assert abs(bias) < 0.01
    assert 0.91 <= covered <= 0.98


def test_noise_factors_of_the_slope_cost_one_sum() -> None:
    assert sum(1 / factor**2 for factor in SLOPE_NOISE_FACTORS) == pytest.approx(1.0)
