"""Interpretability and personal models from sums of sites: equal to pooled rows, with suppression of few subjects."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from abaton.controller import TrainSettings
from abaton.errors import SettingsError
from abaton.features import FeatureColumn, ScaledTable
from abaton.federation import COMMUNITY
from abaton.metrics.classification import auroc, count_scores
from abaton.models import Examples, logistic, train_model
from abaton.site import SiteLimits
from abaton.study import InterpretabilitySection, LearningSection
from abaton.study_run import PreparedSite, SubjectRows
from abaton.study_run.interpretability import (
    SiteInterpretability,
    combine_interpretability,
    explain_at_site,
    grid_points,
    interpretability_requests,
    linear_coefficients,
)
from abaton.study_run.local_benefit import (
    LOCAL_ONLY,
    LocalBenefitSettings,
    load_personal_model,
    personal_models_path,
    personalisation_results,
    save_personal_models,
    site_benefit,
)

COLUMNS = (
    FeatureColumn("age", "age", is_numeric=True, has_statistics=True),
    FeatureColumn("ecg=normal", "ecg", has_statistics=True),
    FeatureColumn("ecg=odd", "ecg", has_statistics=True),
    FeatureColumn("smoker", "smoker"),
    FeatureColumn("noise", "noise", is_numeric=True, has_statistics=True),
)
SCALE = {
    "age": [50.0, 10.0, True],
    "ecg=normal": [0.7, 0.46, False],
    "ecg=odd": [0.3, 0.46, False],
    "noise": [0.0, 1.0, True],
}
SECTION = InterpretabilitySection(
    permutation_repeats=4, partial_dependence=("age", "ecg", "smoker"), grid_points=5
)
TARGET = SimpleNamespace(classes=("no", "yes"), label=(0.0, 1.0))
DEPLOYMENT = {"scale": SCALE, "classes": ["no", "yes"], "label": [0.0, 1.0]}
MODEL = logistic(features=len(COLUMNS))
SETTINGS = TrainSettings(epochs=30, batch_size=16, learning_rate=0.05)


def table(seed: int, count: int, name: str, age: float = 1.5) -> ScaledTable:
    rng = np.random.default_rng(seed)
    odd = (rng.random(count) < 0.3).astype(np.float32)
    x = np.stack(
        [rng.normal(size=count), 1 - odd, odd, rng.random(count) < 0.5, rng.normal(size=count)], axis=1
    )
    ill = rng.random(count) < 1 / (1 + np.exp(-(age * x[:, 0] + 1.0 * odd - 0.3)))
    names = tuple(f"{name} {i}" for i in range(count))
    return ScaledTable(
        tuple(c.name for c in COLUMNS), x.astype(np.float32), ill.astype(np.int64), ("no", "yes"), names
    )


def prepared_site(
    name: str, seed: int, count: int, limits: SiteLimits | None = None, **different: float
) -> PreparedSite:
    document = SimpleNamespace(site=SimpleNamespace(id=name), limits=limits or SiteLimits())
    train, validation, test = (
        table(seed + i, n, f"{name} {i}", **different) for i, n in enumerate((2 * count, count // 2, count))
    )
    return PreparedSite(
        SimpleNamespace(config=document), {}, SubjectRows(train, validation), test, {}, 5, "d"
    )


@pytest.fixture(scope="module")
def community():
    rows = table(90, 600, "other site")
    data = Examples(rows.x, rows.y)
    return train_model(MODEL, MODEL.initial(0), data, SETTINGS, np.random.default_rng(0)).vector


def all_subjects(site: PreparedSite) -> frozenset[str]:
    return frozenset((*site.rows.train.subjects, *site.rows.validation.subjects, *site.test.subjects))


def explain(site: PreparedSite, vector, section: InterpretabilitySection = SECTION, subjects=None):
    eligible = all_subjects(site) if subjects is None else subjects
    return explain_at_site(site, section, COLUMNS, TARGET, MODEL, vector, eligible, seed=1)


def combine(vector, *sites: PreparedSite) -> dict:
    results = {site.name: explain(site, vector) for site in sites}
    return combine_interpretability(SECTION, COLUMNS, DEPLOYMENT, 5, results)


def test_permutation_importance_of_two_sites_equals_the_pooled_one(community):
    north, south = prepared_site("north", 1, 160), prepared_site("south", 11, 90)
    results = combine(community, north, south)
    overall = [row for row in results["importance"] if row["grouping"] == "all"]
    assert [row["input"] for row in overall][:2] == ["age", "ecg"]
    assert abs(next(row for row in overall if row["input"] == "noise")["value"]) < 0.02
    rng = np.random.default_rng(5)
    x, y = (np.concatenate([getattr(site.test, name) for site in (north, south)]) for name in "xy")
    permuted = x.copy()
    for block in (slice(0, 160), slice(160, 250)):  # each site permutes its own rows
        permuted[block, 0] = rng.permutation(x[block, 0])
    before, after = (
        _auroc(MODEL.score(community, Examples(rows, y)).predictions[:, 1], y) for rows in (x, permuted)
    )
    assert overall[0]["value"] == pytest.approx(before - after, abs=0.05)
    assert {row["group"] for row in results["importance"]} == {"all sites", "north", "south"}
    assert json.loads(json.dumps(results)) == results


def _auroc(probabilities, y) -> float:
    counts = count_scores(probabilities, y, bins=500)
    return float(auroc(counts.scores, counts.cases[None], counts.controls[None])[0])


def test_partial_dependence_is_the_mean_prediction_of_all_subjects(community):
    north, south = prepared_site("north", 1, 160), prepared_site("south", 11, 90)
    curve = combine(community, north, south)["partial_dependence"][0]
    assert curve["grid"] == pytest.approx([30.0, 40.0, 50.0, 60.0, 70.0])
    x = np.concatenate([north.test.x, south.test.x])
    for i, step in enumerate(np.linspace(-2, 2, 5)):
        x[:, 0] = step
        probabilities = MODEL.score(community, Examples(x, np.zeros(len(x), np.int64))).predictions[:, 1]
        assert curve["all"][i][0] == pytest.approx(probabilities.mean(), abs=1e-3)


def test_partial_dependence_skips_unobserved_categories(community):
    points = grid_points(SECTION, "ecg", COLUMNS)
    assert [(p.name, dict(p.cells)) for p in points] == [
        ("normal", {1: 1.0, 2: 0.0}),
        ("odd", {1: 0.0, 2: 1.0}),
    ]
    assert [p.name for p in grid_points(SECTION, "smoker", COLUMNS)] == ["no", "yes"]
    scale = {**SCALE, "ecg=odd": [0.0, 1.0, False]}
    sites = {"north": explain(prepared_site("north", 1, 160), community)}
    _, ecg, smoker = combine_interpretability(SECTION, COLUMNS, {**DEPLOYMENT, "scale": scale}, 5, sites)[
        "partial_dependence"
    ]
    assert (ecg["grid"], len(ecg["all"]), len(ecg["sites"]["north"])) == (["normal"], 1, 1)
    assert smoker["grid"] == ["no", "yes"]


def test_interpretability_requests_are_limited_by_the_site(community):
    assert interpretability_requests(SECTION, COLUMNS) == 4 * 4 + 5 + 2 + 2
    assert isinstance(
        explain(prepared_site("north", 1, 60, SiteLimits(max_interpretability_requests=25)), community),
        SiteInterpretability,
    )
    reason = explain(prepared_site("north", 1, 60, SiteLimits(max_interpretability_requests=24)), community)
    assert reason == "the site allows 24 interpretability requests, the study needs 25"
    combined = combine_interpretability(SECTION, COLUMNS, DEPLOYMENT, 5, {"north": reason})
    assert combined["excluded_sites"] == {"north": reason}
    assert combined["importance"] == combined["partial_dependence"] == combined["decision"] == []


def test_interpretability_of_few_subjects_is_suppressed(community):
    small = prepared_site("small", 3, 60)
    four_subjects = frozenset(small.test.subjects[:4])
    assert explain(small, community, subjects=four_subjects) == "fewer than 5 subjects to test"
    rare = replace(small, test=replace(small.test, y=np.array([1] * 57 + [0] * 3)))
    results = combine(community, rare)  # enough subjects, but only three controls
    assert results["importance"] == results["calibration"] == results["decision"] == []


def test_coefficients_are_log_odds_per_std_and_per_unit_without_interval(community):
    coefficients = linear_coefficients(MODEL, community, COLUMNS, DEPLOYMENT)
    age = coefficients[0]
    assert age["per_unit"] == pytest.approx(age["per_std"] / 10)
    x = np.zeros((2, len(COLUMNS)), np.float32)
    x[1, 0] = 1.0
    probabilities = MODEL.score(community, Examples(x, np.zeros(2, np.int64))).predictions[:, 1]
    odds = np.log(probabilities / (1 - probabilities))
    assert age["per_std"] == pytest.approx(odds[1] - odds[0], abs=1e-4)
    assert not {"low", "high"} & set(age)
    from abaton.learners import PersonalLayersModel
    from abaton.models import mlp

    deep = mlp(features=len(COLUMNS), classes=2, hidden=(3,))
    assert linear_coefficients(deep, deep.initial(0), COLUMNS, DEPLOYMENT) == []
    for hidden in (2, 3):
        part = PersonalLayersModel(mlp(features=len(COLUMNS), classes=2, hidden=(hidden,)), ["2.*"])
        assert [tensor.name for tensor in part.layout] == ["0.weight", "0.bias"]
        assert linear_coefficients(part, part.initial(0), COLUMNS, DEPLOYMENT) == []


LEARNING = LearningSection(
    personalise=("recalibrate", "fine-tune", "interpolate"),
    training={"batch_size": SETTINGS.batch_size, "learning_rate": SETTINGS.learning_rate},
)


def benefit_of(site: PreparedSite, vector, subjects=None):
    eligible = all_subjects(site) if subjects is None else subjects
    return site_benefit(
        site, TARGET, LEARNING, (MODEL, vector), eligible, LocalBenefitSettings(SETTINGS.epochs, 1, 50)
    )


def test_a_different_site_benefits_from_personal_models(community, tmp_path):
    benefit = benefit_of(prepared_site("odd", 21, 240, age=-1.5), community)
    results = json.loads(json.dumps(personalisation_results(LEARNING, {"odd": benefit}, {"odd": "240"})))
    rows = {row["model"]: row for row in results["rows"]}
    assert list(rows) == [LOCAL_ONLY, COMMUNITY, "recalibrate", "fine-tune", "interpolate"]
    assert rows[COMMUNITY]["gain_over_local_only"]["high"] < 0
    assert rows["interpolate"]["gain_over_community"]["low"] > 0.1
    assert rows["interpolate"]["gain_over_local_only"]["low"] > -0.05
    assert results["excluded_sites"] == {}
    assert {row["subjects"] for row in results["rows"]} == {"240"}
    path = personal_models_path(tmp_path, "odd")
    save_personal_models(path, benefit.personal_models)
    x = prepared_site("odd", 21, 20).test.x
    for method, personal_model in benefit.personal_models.items():
        loaded = load_personal_model(path, method).predict(MODEL, x, is_classification=True)
        np.testing.assert_array_equal(loaded, personal_model.predict(MODEL, x, is_classification=True))
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(SettingsError, match="there is no personal model"):
        load_personal_model(personal_models_path(tmp_path, "even"), "interpolate")


def test_personalisation_can_be_disabled_and_few_subjects_are_suppressed(community):
    disabled = benefit_of(prepared_site("shy", 31, 60, SiteLimits(personalise=False)), community)
    assert (disabled.reason, disabled.personal_models, list(disabled.benefits)) == (
        "the site does not allow personal models",
        {},
        [LOCAL_ONLY, COMMUNITY],
    )
    assert personalisation_results(LEARNING, {"shy": disabled}, {}) == {
        "rows": [],
        "excluded_sites": {"shy": disabled.reason},
    }
    small = prepared_site("small", 3, 60)
    assert benefit_of(small, community, frozenset(small.test.subjects[:4])).reason
    rare = replace(small, test=replace(small.test, y=np.array([1] * 57 + [0] * 3)))
    benefit = benefit_of(rare, community)
    assert (benefit.benefits, list(benefit.personal_models)) == (None, list(LEARNING.personalise))
    assert personalisation_results(LEARNING, {"rare": benefit}, {}) == {
        "rows": [],
        "excluded_sites": {"rare": benefit.reason},
    }


def test_withdrawn_subjects_are_not_trained_on(community):
    site = prepared_site("odd", 21, 240, age=-1.5)
    remaining = frozenset(
        (*site.rows.train.subjects[:300], *site.rows.validation.subjects, *site.test.subjects)
    )
    half = replace(site, rows=replace(site.rows, train=_first(site.rows.train, 300)))
    assert benefit_of(site, community, remaining).benefits == benefit_of(half, community).benefits


def _first(rows: ScaledTable, count: int) -> ScaledTable:
    return replace(rows, x=rows.x[:count], y=rows.y[:count], subjects=rows.subjects[:count])
