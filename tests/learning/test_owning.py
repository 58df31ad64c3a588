"""A community model made a site's own."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.controller import TrainSettings
from abaton.errors import SettingsError
from abaton.learners import Examples, logistic, train_model
from abaton.metrics.classification import (
    auroc,
    calibration_intercept,
    calibration_slope,
    count_scores,
    net_benefit,
    recalibration,
)
from abaton.learners.personalisation import WAYS, OwnModel, make_own

SETTINGS = TrainSettings(epochs=40, batch_size=16, learning_rate=0.05)


def people(seed: int, count: int, weights: tuple[float, ...], shift: float = 0.0) -> Examples:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, len(weights))).astype(np.float32)
    ill = rng.random(count) < 1 / (1 + np.exp(-(x @ np.array(weights) + shift)))
    return Examples(x, ill.astype(np.int64))


def area(said, y) -> float:
    counts = count_scores(said, y)
    return float(auroc(counts.scores, counts.cases[None], counts.controls[None])[0])


@pytest.fixture(scope="module")
def strange():
    """A community model of people in whom the first input counts, and a site where the second does."""
    model = logistic(features=3)
    elsewhere = people(1, 800, (2.0, 0.0, 0.0))
    community = train_model(model, model.initial(0), elsewhere, SETTINGS, np.random.default_rng(0)).vector
    rows = {"train": people(2, 200, (0.4, 2.0, 0.0), 1.0), "validation": people(3, 80, (0.4, 2.0, 0.0), 1.0)}
    return model, community, rows, people(4, 2000, (0.4, 2.0, 0.0), 1.0)


def made(strange, way: str) -> OwnModel:
    model, community, rows, _ = strange
    return make_own(way, model, community, rows, SETTINGS, classes=True, seed=1)


def test_where_a_site_is_different_its_own_rows_win(strange):
    model, community, _, test = strange
    before = area(OwnModel("", community).predict(model, test.x, classes=True), test.y)
    tuned = area(made(strange, "fine-tune").predict(model, test.x, classes=True), test.y)
    mixed = made(strange, "interpolate")
    assert before < 0.7
    assert tuned > 0.85
    assert mixed.weight > 0.8
    assert area(mixed.predict(model, test.x, classes=True), test.y) > 0.85


def test_where_it_is_not_the_mixture_keeps_the_community_model(strange):
    model, community, _, _ = strange
    rows = {"train": people(5, 12, (2.0, 0.0, 0.0)), "validation": people(6, 60, (2.0, 0.0, 0.0))}
    own = make_own("interpolate", model, community, rows, SETTINGS, classes=True, seed=1)
    assert own.weight < 0.5


def test_recalibrating_mends_the_mean_and_leaves_the_order(strange):
    model, community, _, test = strange
    own = made(strange, "recalibrate")
    whole = OwnModel("", community)
    before, after = (each.predict(model, test.x, classes=True) for each in (whole, own))
    assert area(after, test.y) == pytest.approx(area(before, test.y), abs=1e-6)
    assert abs(after.mean() - test.y.mean()) < abs(before.mean() - test.y.mean())
    assert abs(after.mean() - test.y.mean()) < 0.08
    assert set(own.chosen()) == {"intercept", "slope"}


def test_few_people_hardly_move_a_calibration(strange):
    model, community, _, _ = strange
    rows = {"train": people(7, 30, (2.0, 0.0, 0.0)), "validation": people(8, 4, (2.0, 0.0, 0.0))}
    own = make_own("recalibrate", model, community, rows, SETTINGS, classes=True, seed=1)
    assert abs(own.line[0]) < 1.5
    assert 0.3 < own.line[1] < 1.7


def test_an_unknown_way_is_refused(strange):
    with pytest.raises(SettingsError, match="no way 'guess'"):
        made(strange, "guess")
    assert len(WAYS) == 3


def test_a_recalibration_makes_slope_and_intercept_right():
    rng = np.random.default_rng(3)
    log_odds = rng.normal(size=20_000)
    ill = (rng.random(20_000) < 1 / (1 + np.exp(-(0.7 + 0.5 * log_odds)))).astype(np.int64)
    counts = count_scores(1 / (1 + np.exp(-log_odds)), ill, bins=500)
    intercept, slope = recalibration(counts)
    assert (intercept, slope) == (pytest.approx(0.7, abs=0.06), pytest.approx(0.5, abs=0.06))
    right = count_scores(1 / (1 + np.exp(-(intercept + slope * log_odds))), ill, bins=500)
    shown = right.scores, right.cases[None], right.controls[None]
    assert calibration_slope(*shown)[0] == pytest.approx(1.0, abs=0.02)
    assert calibration_intercept(*shown)[0] == pytest.approx(0.0, abs=0.02)


def test_no_recalibration_turns_an_order_round():
    assert recalibration(count_scores(np.array([0.2, 0.8] * 20), np.array([1, 0] * 20))) == (0.0, 1.0)
    assert recalibration(count_scores(np.array([0.2, 0.8]), np.array([1, 1]))) == (0.0, 1.0)


def test_the_decision_curve_is_counted_by_hand():
    counts = count_scores(np.array([0.9, 0.6, 0.4, 0.1]), np.array([1, 0, 1, 0]))
    model, everybody = net_benefit(counts, np.array([0.5, 0.05]))
    assert model.tolist() == pytest.approx([1 / 4 - 1 / 4, 2 / 4 - 2 / 4 * 0.05 / 0.95])
    assert everybody.tolist() == pytest.approx([2 / 4 - 2 / 4, 2 / 4 - 2 / 4 * 0.05 / 0.95])
