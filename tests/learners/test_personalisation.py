"""Personal models of a site."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.controller import TrainSettings
from abaton.errors import SettingsError
from abaton.learners.personalisation import METHODS, PersonalModel, _fit_calibration, personalise_model
from abaton.metrics.classification import (
    auroc,
    calibration_intercept,
    calibration_slope,
    count_scores,
    net_benefit,
    recalibration,
)
from abaton.metrics.logistic_fit import log_odds
from abaton.models import Examples, logistic, train_model

SETTINGS = TrainSettings(epochs=40, batch_size=16, learning_rate=0.05)


def subjects(seed: int, count: int, weights: tuple[float, ...], shift: float = 0.0) -> Examples:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, len(weights))).astype(np.float32)
    outcomes = rng.random(count) < 1 / (1 + np.exp(-(x @ np.array(weights) + shift)))
    return Examples(x, outcomes.astype(np.int64))


def area(predictions, y) -> float:
    counts = count_scores(predictions, y)
    return float(auroc(counts.scores, counts.cases[None], counts.controls[None])[0])


@pytest.fixture(scope="module")
def different_site():
    """Return a community model of subjects with an effect of the first input, and a site with one of the second."""
    model = logistic(features=3)
    other_sites = subjects(1, 800, (2.0, 0.0, 0.0))
    community = train_model(model, model.initial(0), other_sites, SETTINGS, np.random.default_rng(0)).vector
    rows = {
        "train": subjects(2, 200, (0.4, 2.0, 0.0), 1.0),
        "validation": subjects(3, 80, (0.4, 2.0, 0.0), 1.0),
    }
    return model, community, rows, subjects(4, 2000, (0.4, 2.0, 0.0), 1.0)


def personal_model(different_site, method: str) -> PersonalModel:
    model, community, rows, _ = different_site
    return personalise_model(method, model, community, rows, SETTINGS, is_classification=True, seed=1)


def test_fine_tuning_wins_at_a_different_site(different_site):
    model, community, _, test = different_site
    before = area(PersonalModel("", community).predict(model, test.x, is_classification=True), test.y)
    fine_tuned = area(
        personal_model(different_site, "fine-tune").predict(model, test.x, is_classification=True), test.y
    )
    interpolated = personal_model(different_site, "interpolate")
    assert before < 0.7
    assert fine_tuned > 0.85
    assert interpolated.weight > 0.8
    assert area(interpolated.predict(model, test.x, is_classification=True), test.y) > 0.85


def test_interpolation_keeps_the_community_model_at_a_similar_site(different_site):
    model, community, _, _ = different_site
    rows = {"train": subjects(5, 12, (2.0, 0.0, 0.0)), "validation": subjects(6, 60, (2.0, 0.0, 0.0))}
    interpolated = personalise_model(
        "interpolate", model, community, rows, SETTINGS, is_classification=True, seed=1
    )
    assert interpolated.weight < 0.5


def test_recalibration_corrects_the_mean_and_keeps_the_order(different_site):
    model, community, _, test = different_site
    recalibrated = personal_model(different_site, "recalibrate")
    community_only = PersonalModel("", community)
    before, after = (
        candidate.predict(model, test.x, is_classification=True)
        for candidate in (community_only, recalibrated)
    )
    assert area(after, test.y) == pytest.approx(area(before, test.y), abs=1e-6)
    assert abs(after.mean() - test.y.mean()) < abs(before.mean() - test.y.mean())
    assert abs(after.mean() - test.y.mean()) < 0.08
    assert set(recalibrated.selected()) == {"intercept", "slope"}


def test_recalibration_with_few_subjects_is_small(different_site):
    model, community, _, _ = different_site
    rows = {"train": subjects(7, 30, (2.0, 0.0, 0.0)), "validation": subjects(8, 4, (2.0, 0.0, 0.0))}
    recalibrated = personalise_model(
        "recalibrate", model, community, rows, SETTINGS, is_classification=True, seed=1
    )
    assert abs(recalibrated.calibration[0]) < 1.5
    assert 0.3 < recalibrated.calibration[1] < 1.7


def test_unknown_method_is_refused(different_site):
    with pytest.raises(SettingsError, match="no personalisation 'guess'"):
        personal_model(different_site, "guess")
    assert len(METHODS) == 3


def test_recalibration_corrects_slope_and_intercept():
    rng = np.random.default_rng(3)
    log_odds = rng.normal(size=20_000)
    outcomes = (rng.random(20_000) < 1 / (1 + np.exp(-(0.7 + 0.5 * log_odds)))).astype(np.int64)
    counts = count_scores(1 / (1 + np.exp(-log_odds)), outcomes, bins=500)
    line = recalibration(counts)
    intercept, slope = line.intercept, line.slope
    assert line.is_applicable
    assert (intercept, slope) == (pytest.approx(0.7, abs=0.06), pytest.approx(0.5, abs=0.06))
    recalibrated = count_scores(1 / (1 + np.exp(-(intercept + slope * log_odds))), outcomes, bins=500)
    histogram = recalibrated.scores, recalibrated.cases[None], recalibrated.controls[None]
    assert calibration_slope(*histogram)[0] == pytest.approx(1.0, abs=0.02)
    assert calibration_intercept(*histogram)[0] == pytest.approx(0.0, abs=0.02)


def test_recalibration_that_would_reverse_the_order_is_reported_and_not_applied():
    reversed_line = recalibration(count_scores(np.array([0.2, 0.8] * 20), np.array([1, 0] * 19 + [0, 1])))
    assert reversed_line.slope < 0
    assert reversed_line.status == "slope not above 0"
    assert not reversed_line.is_applicable
    for labels in ([1, 0] * 20, [1, 1] * 20):  # separated, one class only
        unknown = recalibration(count_scores(np.array([0.2, 0.8] * 20), np.array(labels)))
        assert unknown.status == "not estimable"
        assert np.isnan([unknown.intercept, unknown.slope]).all()


def test_personal_recalibration_is_fitted_on_validation_rows_only_and_agrees_with_an_optimiser(
    different_site,
):
    from scipy.optimize import minimize

    model, community, rows, _ = different_site
    fitted = personal_model(different_site, "recalibrate")
    other_train = {**rows, "train": subjects(99, 50, (0.0, 0.0, 5.0), -3.0)}
    again = personalise_model(
        "recalibrate", model, community, other_train, SETTINGS, is_classification=True, seed=2
    )
    assert again.calibration == fitted.calibration
    validation = rows["validation"]
    predictor = log_odds(model.score(community, validation).predictions[:, 1])

    def penalised(line):
        predicted = line[0] + line[1] * predictor
        loss = np.logaddexp(0, np.where(validation.y == 1, -predicted, predicted)).sum()
        return loss + line[0] ** 2 / 2 + 4 * (line[1] - 1) ** 2 / 2

    expected = minimize(penalised, [0.0, 1.0], method="BFGS", options={"gtol": 1e-9}).x
    assert fitted.calibration == pytest.approx(tuple(expected), abs=1e-5)


def test_personal_recalibration_with_a_negative_slope_is_reported_and_changes_no_prediction(different_site):
    model, community, rows, test = different_site
    reversed_rows = {**rows, "validation": Examples(test.x, 1 - (test.x[:, 0] > 0).astype(np.int64))}
    recalibrated = personalise_model(
        "recalibrate", model, community, reversed_rows, SETTINGS, is_classification=True, seed=1
    )
    assert recalibrated.selected()["slope"] < 0
    community_only = PersonalModel("", community)
    predictions = [
        candidate.predict(model, test.x, is_classification=True)
        for candidate in (recalibrated, community_only)
    ]
    assert np.array_equal(*predictions)


def test_recalibration_of_values_with_two_subjects_is_not_estimable(different_site):
    unknown = PersonalModel("recalibrate", different_site[1], calibration=_fit_calibration(
        np.array([1.0, 2.0]), np.array([1.0, 2.0]), is_classification=False
    ))  # fmt: skip
    assert unknown.selected() == {}
    assert unknown.applied_calibration == (0.0, 1.0)


def test_decision_curve_of_four_subjects():
    counts = count_scores(np.array([0.9, 0.6, 0.4, 0.1]), np.array([1, 0, 1, 0]))
    model, treat_all = net_benefit(counts, np.array([0.5, 0.05]))
    assert model.tolist() == pytest.approx([1 / 4 - 1 / 4, 2 / 4 - 2 / 4 * 0.05 / 0.95])
    assert treat_all.tolist() == pytest.approx([2 / 4 - 2 / 4, 2 / 4 - 2 / 4 * 0.05 / 0.95])
