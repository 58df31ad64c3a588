"""Personal models of a site."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.controller import TrainSettings
from abaton.errors import SettingsError
from abaton.learners.personalisation import METHODS, PersonalModel, personalise_model
from abaton.metrics.classification import (
    auroc,
    calibration_intercept,
    calibration_slope,
    count_scores,
    net_benefit,
    recalibration,
)
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
    intercept, slope = recalibration(counts)
    assert (intercept, slope) == (pytest.approx(0.7, abs=0.06), pytest.approx(0.5, abs=0.06))
    recalibrated = count_scores(1 / (1 + np.exp(-(intercept + slope * log_odds))), outcomes, bins=500)
    histogram = recalibrated.scores, recalibrated.cases[None], recalibrated.controls[None]
    assert calibration_slope(*histogram)[0] == pytest.approx(1.0, abs=0.02)
    assert calibration_intercept(*histogram)[0] == pytest.approx(0.0, abs=0.02)


def test_recalibration_does_not_reverse_the_order():
    assert recalibration(count_scores(np.array([0.2, 0.8] * 20), np.array([1, 0] * 20))) == (0.0, 1.0)
    assert recalibration(count_scores(np.array([0.2, 0.8]), np.array([1, 1]))) == (0.0, 1.0)


def test_decision_curve_of_four_subjects():
    counts = count_scores(np.array([0.9, 0.6, 0.4, 0.1]), np.array([1, 0, 1, 0]))
    model, treat_all = net_benefit(counts, np.array([0.5, 0.05]))
    assert model.tolist() == pytest.approx([1 / 4 - 1 / 4, 2 / 4 - 2 / 4 * 0.05 / 0.95])
    assert treat_all.tolist() == pytest.approx([2 / 4 - 2 / 4, 2 / 4 - 2 / 4 * 0.05 / 0.95])
