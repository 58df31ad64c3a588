"""Calibration fits agree with statsmodels on random and extreme inputs, and are NaN where no fit exists."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import statsmodels.api as sm

from abaton.metrics.classification import MetricEstimate, count_scores, evaluate_classifier, recalibration
from abaton.metrics.logistic_fit import fit_line, fit_shift, has_overlap, log_odds, sigmoid

EXTREME = np.repeat([1e-4, 0.01, 0.9, 0.999], [40, 40, 10, 10])
EXTREME_LABELS = np.concatenate(
    [np.arange(size) < cases for size, cases in ((40, 2), (40, 4), (10, 6), (10, 7))]
).astype(int)


def random_subjects(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    """Return log odds, labels and the true slope of a random data set: rare, tied or almost separated."""
    n, slope = int(rng.choice([20, 60, 200, 1000])), float(rng.choice([0.1, 0.2, 0.3, 0.5, 1, 2, 5]))
    x = rng.normal(rng.choice([0, -3, -8, -15]), rng.choice([0.1, 1, 4, 12]), n)
    x = np.clip(np.round(x) if rng.random() < 0.2 else x, -27.6, 27.6)
    y = rng.random(n) < sigmoid(rng.choice([-4, -2, 0]) + slope * (x - x.mean()))
    if rng.random() < 0.3:
        y = x > np.quantile(x, 0.8)
        if rng.random() < 0.5:
            y[rng.integers(n)] ^= True
    return x, y.astype(int), slope


def fits(probabilities: np.ndarray, y: np.ndarray):
    counts = count_scores(probabilities, y)
    arrays = log_odds(counts.scores), counts.cases[None], counts.controls[None]
    return fit_line(*arrays), fit_shift(*arrays)


def test_slopes_and_intercepts_of_extreme_probabilities_agree_with_statsmodels():
    rng, compared, unknown = np.random.default_rng(0), 0, 0
    warnings.simplefilter("ignore")
    for _ in range(1500):
        x, y, _ = random_subjects(rng)
        probabilities = sigmoid(x)
        x = log_odds(probabilities)  # the reference has the same log odds
        line, (shift, shift_error) = fits(probabilities, y)
        if y.min() == y.max():
            assert np.isnan([line.slope[0], line.intercept[0], shift[0]]).all()
            continue
        is_separated = x[y == 1].min() >= x[y == 0].max() or x[y == 0].min() >= x[y == 1].max()
        unknown += is_separated
        assert math.isnan(line.slope[0]) == is_separated
        # Maximum likelihood solves these equations; statsmodels' own iteration diverges on some inputs.
        assert abs((y - sigmoid(x + shift[0])).sum()) < 1e-9
        reference = sm.GLM(y, np.ones(len(y)), family=sm.families.Binomial(), offset=x).fit(
            start_params=[shift[0]], maxiter=5
        )
        assert reference.params[0] == pytest.approx(shift[0], rel=1e-9, abs=1e-9)
        assert reference.bse[0] == pytest.approx(shift_error[0], rel=1e-6)
        if is_separated:
            continue
        scale = x.std()
        design = np.stack([np.ones(len(x)), (x - x.mean()) / scale], axis=1)
        reference = sm.Logit(y, design).fit(disp=0, maxiter=300, tol=1e-13)
        if reference.mle_retvals["converged"]:
            compared += 1
            assert reference.params[1] / scale == pytest.approx(line.slope[0], rel=1e-9, abs=1e-10)
            assert reference.bse[1] / scale == pytest.approx(line.slope_error[0], rel=1e-6)
    assert compared > 800
    assert unknown > 150


@pytest.mark.parametrize("true_slope", [0.3, 0.2, 0.1])
def test_flat_slopes_have_their_sign(true_slope):
    rng = np.random.default_rng(1)
    x = rng.normal(-3, 5, (150, 2000))
    slopes = [
        fits(sigmoid(row), (rng.random(2000) < sigmoid(true_slope * row)).astype(int))[0].slope[0]
        for row in x
    ]
    assert min(slopes) > 0
    assert np.mean(slopes) == pytest.approx(true_slope, abs=0.01)


def test_the_slope_of_probabilities_near_zero_and_one():
    line = recalibration(count_scores(EXTREME, EXTREME_LABELS))
    assert line.slope == pytest.approx(0.26809, abs=1e-5)
    assert line.is_applicable


def test_single_precision_probabilities_are_not_clipped():
    probabilities = np.array([1.1e-12, 6e-8, 0.5, 1 - 6e-8], np.float32)
    exact = probabilities.astype(float)
    assert log_odds(probabilities) == pytest.approx(np.log(exact / (1 - exact)), rel=1e-9)
    assert log_odds(np.array([0.0, 1.0])) == pytest.approx([-27.631, 27.631], abs=1e-3)


def test_many_rows_at_once_equal_single_rows():
    rng = np.random.default_rng(2)
    x = np.sort(rng.normal(-2, 6, 30))
    cases, controls = (rng.integers(0, limit, (200, 30)).astype(float) for limit in (2, 4))
    cases[rng.random((200, 30)) < 0.9] = 0
    together = fit_line(x, cases, controls)
    alone = [fit_line(x, cases[i : i + 1], controls[i : i + 1]).slope[0] for i in range(200)]
    assert np.array_equal(together.slope, alone, equal_nan=True)
    assert np.array_equal(np.isnan(together.slope), ~has_overlap(cases, controls))
    shifts = [fit_shift(x, cases[i : i + 1], controls[i : i + 1])[0][0] for i in range(200)]
    assert np.array_equal(fit_shift(x, cases, controls)[0], shifts, equal_nan=True)


@pytest.mark.parametrize(
    ("probabilities", "labels"),
    [
        ([0.1, 0.2, 0.8, 0.9] * 5, [0, 0, 1, 1] * 5),  # separated
        ([0.1, 0.2, 0.2, 0.9] * 5, [0, 0, 1, 1] * 5),  # separated up to a tie
        ([0.1, 0.2, 0.8, 0.9] * 5, [1, 1, 0, 0] * 5),  # separated in reverse
        ([0.3] * 20, [0, 1] * 10),  # one score
    ],
)
def test_what_has_no_slope_is_not_estimable(probabilities, labels):
    estimate = evaluate_classifier(count_scores(np.array(probabilities), np.array(labels)))[
        "calibration slope"
    ]
    assert str(estimate) == "not estimable"
    assert math.isnan(estimate.low)
    assert str(MetricEstimate(0.5, math.nan, math.nan)) == "0.500"
