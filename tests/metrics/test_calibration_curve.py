"""Calibration and decision curves of single predictions, against statsmodels, brute force and simulated coverage."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as statsmodels

from abaton.metrics.calibration_curve import (
    decision_curve,
    observed_expected_ratio,
    smooth_calibration,
    spline_basis,
)
from abaton.metrics.classification import count_scores, evaluate_classifier
from abaton.metrics.logistic_fit import fit_columns, log_odds


def logistic(x):
    return 1 / (1 + np.exp(-x))


def subjects(rng, count, intercept=-1.5, slope=1.0, shift=0.0):
    """Return predictions and outcomes of which the true log odds are `slope * predicted + shift`."""
    predicted = intercept + 1.3 * rng.normal(size=count)
    return logistic(predicted), (rng.random(count) < logistic(slope * predicted + shift)).astype(int)


def slope_estimate(p, y):
    return evaluate_classifier(count_scores(p, y), resamples=0)["calibration slope"]


def harrell_basis(x, knots):
    """Return Harrell's restricted cubic spline by its definition, one value at a time."""

    def cube(value):
        return max(value, 0.0) ** 3

    def term(value, knot):
        first, before, last = knots[0], knots[-2], knots[-1]
        outer = cube(value - before) * (last - knot) - cube(value - last) * (before - knot)
        return (cube(value - knot) - outer / (last - before)) / (last - first) ** 2

    return np.array([[1.0, value, *(term(value, knot) for knot in knots[:-2])] for value in x])


def test_the_curve_is_the_spline_regression_of_statsmodels():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        p, y = subjects(
            rng, int(rng.integers(60, 900)), rng.uniform(-3, 1), rng.uniform(0.3, 1.6), rng.normal()
        )
        if min(y.sum(), len(y) - y.sum()) < 5:
            continue
        curve = smooth_calibration(p, y)
        assert curve is not None
        basis = harrell_basis(log_odds(p), curve.knots)
        reference = statsmodels.Logit(y, basis).fit(disp=0, method="newton", tol=1e-12)
        smoothed = reference.predict()
        assert curve.ici == pytest.approx(np.abs(smoothed - p).mean(), abs=1e-6)
        assert curve.e50 == pytest.approx(np.median(np.abs(smoothed - p)), abs=1e-6)
        assert curve.e90 == pytest.approx(np.quantile(np.abs(smoothed - p), 0.9), abs=1e-6)
        order = np.argsort(p)
        inside = (p[order] > curve.predicted[0]) & (p[order] < curve.predicted[-1])
        at_subjects = np.interp(p[order][inside], curve.predicted, curve.observed)
        assert at_subjects == pytest.approx(smoothed[order][inside], abs=0.01)


def test_the_curve_is_close_to_lowess_in_a_large_sample():
    p, y = subjects(np.random.default_rng(3), 6000, -1.0, 0.6, 0.4)
    curve = smooth_calibration(p, y)
    lowess = statsmodels.nonparametric.lowess(y, p, frac=0.25, it=0, xvals=curve.predicted)
    assert np.abs(lowess - curve.observed).max() < 0.035
    truth = logistic(0.6 * log_odds(p) + 0.4)
    assert curve.ici == pytest.approx(np.abs(truth - p).mean(), abs=0.01)


def test_what_is_separated_or_constant_has_no_curve():
    separated = np.r_[np.linspace(0.01, 0.4, 60), np.linspace(0.6, 0.99, 60)]
    labels = np.r_[np.zeros(60, int), np.ones(60, int)]
    assert smooth_calibration(separated, labels) is None
    assert np.isnan(slope_estimate(separated, labels).value)
    assert smooth_calibration(np.full(120, 0.3), labels) is None
    assert smooth_calibration(separated, np.zeros(120, int)) is None


def test_extreme_predictions_converge():
    p = np.repeat([1e-4, 0.01, 0.9, 0.999], [40, 40, 10, 10])
    y = np.concatenate([np.arange(n) < k for n, k in ((40, 2), (40, 4), (10, 6), (10, 7))]).astype(int)
    estimate = slope_estimate(p, y)
    reference = statsmodels.Logit(y, statsmodels.add_constant(log_odds(p))).fit(disp=0)
    assert estimate.value == pytest.approx(reference.params[1], abs=1e-6)
    assert [estimate.low, estimate.high] == pytest.approx(reference.conf_int()[1].tolist(), abs=1e-4)
    assert estimate.value == pytest.approx(0.268, abs=0.001)


def test_the_fit_is_that_of_statsmodels_from_a_starting_point_at_which_plain_newton_diverges():
    rng = np.random.default_rng(5)
    for slope in (0.1, 0.3, 1.0):
        p, y = subjects(rng, 400, -4.0, slope)
        counts = count_scores(p, y)
        x = log_odds(counts.scores) * 3
        for knots in ((), tuple(np.quantile(x, [0.1, 0.5, 0.9]))):
            basis = spline_basis(x, knots)
            fit = fit_columns(basis.T, counts.cases[None], counts.controls[None])
            reference = statsmodels.Logit(counts.cases, basis).fit(disp=0, tol=1e-13, maxiter=200)
            assert fit.coefficients[0] == pytest.approx(reference.params, rel=1e-6, abs=1e-7)
            assert fit.covariance[0] == pytest.approx(reference.cov_params(), rel=1e-5)


def test_the_ratio_of_equal_predictions_has_wilsons_interval():
    from statsmodels.stats.proportion import proportion_confint

    for cases, count in ((0, 20), (3, 40), (20, 40), (40, 40)):
        estimate = observed_expected_ratio(np.full(count, 0.2), np.arange(count) < cases)
        low, high = proportion_confint(cases, count, method="wilson")
        assert estimate.value == pytest.approx(cases / count / 0.2)
        assert [estimate.low, estimate.high] == pytest.approx([low / 0.2, high / 0.2], abs=1e-6)


@pytest.mark.parametrize("count", [50, 100, 300])
@pytest.mark.parametrize("intercept", [-4.1, -2.3, -0.5])  # prevalence of about .03, .15 and .4
def test_the_interval_of_the_ratio_covers_as_often_as_it_says(count, intercept):
    rng, covered, repeats = np.random.default_rng(count), 0, 1500
    for _ in range(repeats):
        x = intercept + 1.3 * rng.normal(size=count)
        predicted, true = logistic(1.2 * x + 0.3), logistic(x)
        estimate = observed_expected_ratio(predicted, rng.random(count) < true)
        covered += estimate.low <= true.sum() / predicted.sum() <= estimate.high
    assert 0.92 <= covered / repeats <= 0.975  # 93 to 97 % with the error of the simulation


def test_the_band_of_the_curve_covers_as_often_as_it_says():
    rng, hits = np.random.default_rng(8), []
    for _ in range(600):
        p, y = subjects(rng, 300, -1.2, 1.0, -0.2)
        curve = smooth_calibration(p, y, points=9)
        true = logistic(log_odds(curve.predicted) - 0.2)
        hits.append((curve.low <= true) & (true <= curve.high))
    assert len(curve.knots) == 4
    assert (np.mean(hits, axis=0) >= 0.92).all()
    assert (np.mean(hits, axis=0) <= 0.98).all()


def test_the_interval_of_the_slope_covers_as_often_as_it_says():
    rng, hits = np.random.default_rng(9), []
    for _ in range(1500):
        estimate = slope_estimate(*subjects(rng, 100, -1.2, 0.7))
        hits.append(estimate.low <= 0.7 <= estimate.high)
    assert 0.93 <= np.mean(hits) <= 0.97


def test_net_benefit_is_that_of_its_definition_and_its_band_covers():
    rng = np.random.default_rng(6)
    thresholds = np.array([0.05, 0.2, 0.5])
    p, y = subjects(rng, 200)
    curve = decision_curve(p, y, thresholds)
    for i, t in enumerate(thresholds):
        treated = p >= t
        expected = ((treated & (y == 1)).sum() - (treated & (y == 0)).sum() * t / (1 - t)) / 200
        assert curve.model[i] == pytest.approx(expected)
        assert curve.treat_all[i] == pytest.approx((y.sum() - (200 - y.sum()) * t / (1 - t)) / 200)
    large_p, large_y = subjects(rng, 400_000)
    true = decision_curve(large_p, large_y, thresholds).model
    hits = []
    for _ in range(1500):
        p, y = subjects(rng, 100)
        curve = decision_curve(p, y, thresholds)
        hits.append((curve.low <= true) & (true <= curve.high))
    assert (np.mean(hits, axis=0) >= 0.92).all()
    assert (np.mean(hits, axis=0) <= 0.98).all()
