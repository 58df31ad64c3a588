"""Penalised spline regression against scikit-learn and direct formulas, on random and extreme rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from abaton.study_run.ridge_regression import (
    PENALTIES,
    choose_knots,
    fit_linear,
    fit_logistic,
    fit_spline_regression,
    prediction_loss,
    spline_columns,
    stratified_folds,
)


@pytest.mark.parametrize("seed", range(30))
def test_the_logistic_fit_equals_that_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    n, p = int(rng.integers(12, 300)), int(rng.integers(1, 9))
    z = rng.normal(size=(n, p)) * rng.choice([0.01, 1.0, 30.0])
    y = (rng.random(n) < 1 / (1 + np.exp(-z[:, 0] + rng.choice([0.0, 3.0])))).astype(float)
    y[:2] = 0, 1
    penalty = float(rng.choice(PENALTIES))
    reference = LogisticRegression(C=1 / penalty, tol=1e-12, max_iter=10_000, solver="newton-cholesky").fit(
        z, y
    )
    fitted = fit_logistic(z, y, penalty)
    expected = np.append(reference.intercept_, reference.coef_)
    assert fitted == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_the_logistic_fit_is_a_minimum_of_separated_rows(penalty):
    z, y = np.linspace(-1, 1, 20)[:, None] * 1000, (np.arange(20) >= 10).astype(float)
    fitted = fit_logistic(z, y, penalty)
    probabilities = 1 / (1 + np.exp(-np.clip(fitted[0] + z[:, 0] * fitted[1], -700, 700)))
    assert np.isfinite(fitted).all()
    assert abs((probabilities - y).sum()) < 1e-6
    assert abs(z[:, 0] @ (probabilities - y) + penalty * fitted[1]) < 1e-4


def test_one_class_gives_a_constant():
    fitted = fit_logistic(np.ones((9, 2)), np.zeros(9), 1.0)
    assert fitted.tolist() == [pytest.approx(np.log(0.05 / 0.95)), 0.0, 0.0]


@pytest.mark.parametrize("seed", range(10))
def test_the_linear_fit_equals_that_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    z, penalty = rng.normal(1, 3, size=(40, 5)), float(rng.choice(PENALTIES))
    y = z @ rng.normal(size=5) + rng.normal(size=40) + 7
    reference = Ridge(alpha=penalty).fit(z, y)
    assert fit_linear(z, y, penalty) == pytest.approx(np.append(reference.intercept_, reference.coef_))


def test_spline_columns_are_smooth_and_linear_beyond_the_outer_knots():
    knots, step = (-1.0, 0.3, 2.0), 1e-4
    values = np.array([-4.0, -2.0, -1.0, 0.3, 2.0, 3.0, 9.0])

    def cubic(x):
        return spline_columns(x[:, None], [knots])[:, 1]

    second = (cubic(values + step) - 2 * cubic(values) + cubic(values - step)) / step**2
    assert second[[0, 1, 5, 6]] == pytest.approx(np.zeros(4), abs=1e-5)
    first = [(cubic(values + h) - cubic(values)) / h for h in (step, -step)]
    assert first[0] == pytest.approx(first[1], abs=1e-3)


def test_only_columns_with_several_values_and_no_declared_spline_get_knots():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(50, 3)), rng.integers(0, 2, 50), rng.integers(0, 4, 50)])
    knots = choose_knots(x, ("bmi", "age", "age'", "sex", "visits"))
    assert [k is not None for k in knots] == [True, False, False, False, False]
    assert knots[0] == pytest.approx(tuple(np.quantile(x[:, 0], [0.1, 0.5, 0.9])))


@pytest.mark.parametrize("cases", [1, 3, 5, 12])
def test_folds_spread_few_cases(cases):
    y = np.array([1] * cases + [0] * 40)
    folds = stratified_folds(y, np.random.default_rng(cases))
    case_counts, sizes = np.bincount(folds[y == 1], minlength=5), np.bincount(folds, minlength=5)
    assert case_counts.max() - case_counts.min() <= 1
    assert sizes.max() - sizes.min() <= 1
    fitted = fit_spline_regression(y[:, None] + np.arange(len(y))[:, None] % 7, y, ("a",), 2, folds)
    assert np.isfinite(fitted.coefficients).all()


def test_the_penalty_has_the_least_loss_over_the_folds():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(120, 3))
    y = (rng.random(120) < 1 / (1 + np.exp(2 - x[:, 0] ** 2))).astype(np.int64)
    folds = stratified_folds(y, rng)
    fitted = fit_spline_regression(x, y, ("a", "b", "c"), 2, folds)
    z = (spline_columns(x, fitted.knots) - fitted.mean) / fitted.std
    losses = {}
    for penalty in PENALTIES:
        predicted = np.empty((120, 2))
        for fold in range(5):
            model = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=10_000)
            model.fit(z[folds != fold], y[folds != fold])
            predicted[folds == fold] = model.predict_proba(z[folds == fold])
        losses[penalty] = prediction_loss(predicted, y, 2)
    assert fitted.penalty == min(losses, key=losses.__getitem__)
    assert fitted.loss == pytest.approx(losses[fitted.penalty], rel=1e-4)


def test_several_classes_have_probabilities_with_a_sum_of_one():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(90, 2))
    y = np.digitize(x[:, 0], [-0.5, 0.5])
    fitted = fit_spline_regression(x, y, ("a", "b"), 3, stratified_folds(y, rng))
    predicted = fitted.predict(x)
    assert predicted.sum(1) == pytest.approx(np.ones(90))
    assert (predicted.argmax(1) == y).mean() > 0.9


def test_weighted_fits_equal_scikit_learn():
    rng = np.random.default_rng(8)
    for penalty in (0.3, 10.0):
        z, weights = rng.normal(size=(120, 4)), rng.uniform(1, 5, 120)
        y = (rng.random(120) < 1 / (1 + np.exp(-z[:, 0]))).astype(float)
        reference = LogisticRegression(C=1 / penalty, tol=1e-12, max_iter=10_000).fit(z, y, weights)
        ours = fit_logistic(z, y, penalty, weights)
        assert ours == pytest.approx([*reference.intercept_, *reference.coef_[0]], abs=1e-5)
        linear = Ridge(alpha=penalty).fit(z, z[:, 1] + y, weights)
        ours = fit_linear(z, z[:, 1] + y, penalty, weights)
        assert ours == pytest.approx([linear.intercept_, *linear.coef_], abs=1e-9)


def test_cross_validation_weights_the_loss():
    assert prediction_loss(
        np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([1, 1]), 2, np.array([3.0, 1.0])
    ) == pytest.approx(-3 * np.log(0.5) - np.log(0.8))
    rng = np.random.default_rng(9)
    x, y, weights = rng.normal(size=(90, 2)), rng.integers(0, 2, 90), rng.uniform(1, 5, 90)
    folds = stratified_folds(y, np.random.default_rng(0))
    ones, unweighted, weighted = (
        fit_spline_regression(x, y, ("a", "b"), 2, folds, w) for w in (np.ones(90), None, weights)
    )
    assert ones.coefficients.tobytes() == unweighted.coefficients.tobytes()
    assert ones.loss == unweighted.loss
    assert weighted.loss > unweighted.loss
