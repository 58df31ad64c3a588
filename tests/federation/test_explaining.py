"""What a model goes by and what sites make of it, from sums alone: as one pile of rows would say; few stay unknown."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from abaton.controller import TrainSettings
from abaton.errors import SettingsError
from abaton.features import Column, Scaled
from abaton.federation import COMMUNITY, Member, Rows
from abaton.learners import Examples, logistic, train_model
from abaton.metrics.classification import auroc, count_scores
from abaton.site import Limits
from abaton.study import Explanation, Learning
from abaton.study_run.interpretability import (
    SiteExplained,
    coefficients_of,
    explanation_of,
    points_of,
    questions_of,
    site_explained,
)
from abaton.study_run.local_benefit import (
    OWN,
    GainSettings,
    keep_own,
    kept_own,
    own_path,
    personal_row,
    site_gain,
)

COLUMNS = (
    Column("age", "age", measured=True, pooled=True),
    Column("ecg=normal", "ecg", pooled=True),
    Column("ecg=odd", "ecg", pooled=True),
    Column("smoker", "smoker"),
    Column("noise", "noise", measured=True, pooled=True),
)
SCALE = {
    "age": [50.0, 10.0, True],
    "ecg=normal": [0.7, 0.46, False],
    "ecg=odd": [0.3, 0.46, False],
    "noise": [0.0, 1.0, True],
}
ASKED = Explanation(importance=4, dependence=("age", "ecg", "smoker"), points=5)
JUDGED = SimpleNamespace(classes=("no", "yes"), label=(0.0, 1.0))
USE = {"scale": SCALE, "classes": ["no", "yes"], "label": [0.0, 1.0]}
MODEL = logistic(features=len(COLUMNS))
SETTINGS = TrainSettings(epochs=30, batch_size=16, learning_rate=0.05)


def table(seed: int, count: int, name: str, age: float = 1.5) -> Scaled:
    rng = np.random.default_rng(seed)
    odd = (rng.random(count) < 0.3).astype(np.float32)
    x = np.stack(
        [rng.normal(size=count), 1 - odd, odd, rng.random(count) < 0.5, rng.normal(size=count)], axis=1
    )
    ill = rng.random(count) < 1 / (1 + np.exp(-(age * x[:, 0] + 1.0 * odd - 0.3)))
    names = tuple(f"{name} {i}" for i in range(count))
    return Scaled(
        tuple(c.name for c in COLUMNS), x.astype(np.float32), ill.astype(np.int64), ("no", "yes"), names
    )


def member(name: str, seed: int, count: int, limits: Limits | None = None, **different: float) -> Member:
    document = SimpleNamespace(site=SimpleNamespace(id=name), limits=limits or Limits())
    train, held, test = (
        table(seed + i, n, f"{name} {i}", **different) for i, n in enumerate((2 * count, count // 2, count))
    )
    return Member(SimpleNamespace(document=document), {}, Rows(train, held), test, {}, 5, "d")


@pytest.fixture(scope="module")
def community():
    rows = table(90, 600, "elsewhere")
    data = Examples(rows.x, rows.y)
    return train_model(MODEL, MODEL.initial(0), data, SETTINGS, np.random.default_rng(0)).vector


def everybody(each: Member) -> frozenset[str]:
    return frozenset((*each.rows.train.subjects, *each.rows.validation.subjects, *each.test.subjects))


def explained(each: Member, vector, asked: Explanation = ASKED, inside=None):
    who = everybody(each) if inside is None else inside
    return site_explained(each, asked, COLUMNS, JUDGED, MODEL, vector, who, seed=1)


def told(vector, *members: Member) -> dict:
    sites = {each.name: explained(each, vector) for each in members}
    return explanation_of(ASKED, COLUMNS, USE, 5, sites)


def test_shuffled_counts_of_two_sites_say_what_one_pile_would(community):
    north, south = member("north", 1, 160), member("south", 11, 90)
    found = told(community, north, south)
    whole = [each for each in found["importance"] if each["of"] == "all"]
    assert [each["input"] for each in whole][:2] == ["age", "ecg"]
    assert abs(next(each for each in whole if each["input"] == "noise")["value"]) < 0.02
    rng = np.random.default_rng(5)
    x, y = (np.concatenate([getattr(each.test, part) for each in (north, south)]) for part in "xy")
    mixed = x.copy()
    for block in (slice(0, 160), slice(160, 250)):  # each site shuffles its own
        mixed[block, 0] = rng.permutation(x[block, 0])
    before, after = (
        _area(MODEL.score(community, Examples(rows, y)).predictions[:, 1], y) for rows in (x, mixed)
    )
    assert whole[0]["value"] == pytest.approx(before - after, abs=0.05)
    assert {each["subset"] for each in found["importance"]} == {"all sites", "north", "south"}
    assert json.loads(json.dumps(found)) == found


def _area(said, y) -> float:
    counts = count_scores(said, y, bins=500)
    return float(auroc(counts.scores, counts.cases[None], counts.controls[None])[0])


def test_a_curve_is_the_mean_of_all_peoples_predictions(community):
    north, south = member("north", 1, 160), member("south", 11, 90)
    curve = told(community, north, south)["dependence"][0]
    assert curve["at"] == pytest.approx([30.0, 40.0, 50.0, 60.0, 70.0])
    x = np.concatenate([north.test.x, south.test.x])
    for i, step in enumerate(np.linspace(-2, 2, 5)):
        x[:, 0] = step
        said = MODEL.score(community, Examples(x, np.zeros(len(x), np.int64))).predictions[:, 1]
        assert curve["all"][i][0] == pytest.approx(said.mean(), abs=1e-3)


def test_a_category_is_set_whole_and_one_nobody_had_is_left_out(community):
    points = points_of(ASKED, "ecg", COLUMNS)
    assert [(p.name, dict(p.cells)) for p in points] == [
        ("normal", {1: 1.0, 2: 0.0}),
        ("odd", {1: 0.0, 2: 1.0}),
    ]
    assert [p.name for p in points_of(ASKED, "smoker", COLUMNS)] == ["no", "yes"]
    rare = {**SCALE, "ecg=odd": [0.0, 1.0, False]}
    sites = {"north": explained(member("north", 1, 160), community)}
    _, ecg, smoker = explanation_of(ASKED, COLUMNS, {**USE, "scale": rare}, 5, sites)["dependence"]
    assert (ecg["at"], len(ecg["all"]), len(ecg["sites"]["north"])) == (["normal"], 1, 1)
    assert smoker["at"] == ["no", "yes"]


def test_what_is_asked_counts_against_a_sites_limit(community):
    assert questions_of(ASKED, COLUMNS) == 4 * 4 + 5 + 2 + 2
    assert isinstance(explained(member("north", 1, 60, Limits(explanations=25)), community), SiteExplained)
    found = explained(member("north", 1, 60, Limits(explanations=24)), community)
    assert found == "the site answers 24 such questions, the study asks 25"
    both = explanation_of(ASKED, COLUMNS, USE, 5, {"north": found})
    assert both["left_out"] == {"north": found}
    assert both["importance"] == both["dependence"] == both["decision"] == []


def test_nothing_is_told_of_few_people(community):
    small = member("small", 3, 60)
    few = frozenset(small.test.subjects[:4])
    assert explained(small, community, inside=few) == "fewer than 5 subjects to test"
    rare = replace(small, test=replace(small.test, y=np.array([1] * 57 + [0] * 3)))
    found = told(community, rare)  # people enough, but only three controls
    assert found["importance"] == found["calibration"] == found["decision"] == []


def test_coefficients_are_log_odds_by_deviation_and_by_unit_and_have_no_interval(community):
    made = coefficients_of(MODEL, community, COLUMNS, USE)
    age = made[0]
    assert age["per_unit"] == pytest.approx(age["per_deviation"] / 10)
    x = np.zeros((2, len(COLUMNS)), np.float32)
    x[1, 0] = 1.0
    said = MODEL.score(community, Examples(x, np.zeros(2, np.int64))).predictions[:, 1]
    odds = np.log(said / (1 - said))
    assert age["per_deviation"] == pytest.approx(odds[1] - odds[0], abs=1e-4)
    assert not {"low", "high"} & set(age)
    from abaton.learners import Personal, mlp

    deep = mlp(features=len(COLUMNS), classes=2, hidden=(3,))
    assert coefficients_of(deep, deep.initial(0), COLUMNS, USE) == []
    for hidden in (2, 3):
        part = Personal(mlp(features=len(COLUMNS), classes=2, hidden=(hidden,)), ["2.*"])
        assert [tensor.name for tensor in part.layout] == ["0.weight", "0.bias"]
        assert coefficients_of(part, part.initial(0), COLUMNS, USE) == []


LEARNING = Learning(
    personalise=("recalibrate", "fine-tune", "interpolate"),
    training={"batch_size": SETTINGS.batch_size, "learning_rate": SETTINGS.learning_rate},
)


def own(each: Member, vector, inside=None):
    who = everybody(each) if inside is None else inside
    return site_gain(each, JUDGED, LEARNING, (MODEL, vector), who, GainSettings(SETTINGS.epochs, 1, 50))


def test_a_site_that_is_different_gains_by_its_own_model_and_says_so(community, tmp_path):
    made = own(member("odd", 21, 240, age=-1.5), community)
    told = json.loads(json.dumps(personal_row(LEARNING, {"odd": made}, {"odd": "240"})))
    lines = {line["model"]: line for line in told["lines"]}
    assert list(lines) == [OWN, COMMUNITY, "recalibrate", "fine-tune", "interpolate"]
    assert lines[COMMUNITY]["gain"]["high"] < 0
    assert lines["interpolate"]["over_community"]["low"] > 0.1
    assert lines["interpolate"]["gain"]["low"] > -0.05
    assert told["left_out"] == {}
    assert {line["subjects"] for line in told["lines"]} == {"240"}
    path = own_path(tmp_path, "odd")
    keep_own(path, made.models)
    x = member("odd", 21, 20).test.x
    for way, each in made.models.items():
        again = kept_own(path, way).predict(MODEL, x, classes=True)
        np.testing.assert_array_equal(again, each.predict(MODEL, x, classes=True))
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(SettingsError, match="no model of the site's own"):
        kept_own(own_path(tmp_path, "even"), "interpolate")


def test_a_site_may_say_no_and_few_are_not_told(community):
    shy = own(member("shy", 31, 60, Limits(personalise=False)), community)
    assert (shy.why, shy.models, list(shy.told)) == (
        "the site makes no model of its own",
        {},
        [OWN, COMMUNITY],
    )
    assert personal_row(LEARNING, {"shy": shy}, {}) == {"lines": [], "left_out": {"shy": shy.why}}
    small = member("small", 3, 60)
    assert own(small, community, frozenset(small.test.subjects[:4])).why
    rare = replace(small, test=replace(small.test, y=np.array([1] * 57 + [0] * 3)))
    found = own(rare, community)
    assert (found.told, list(found.models)) == (None, list(LEARNING.personalise))
    assert personal_row(LEARNING, {"rare": found}, {}) == {"lines": [], "left_out": {"rare": found.why}}


def test_whoever_has_left_is_not_trained_on(community):
    site = member("odd", 21, 240, age=-1.5)
    left = frozenset((*site.rows.train.subjects[:300], *site.rows.validation.subjects, *site.test.subjects))
    half = replace(site, rows=replace(site.rows, train=_first(site.rows.train, 300)))
    assert own(site, community, left).told == own(half, community).told


def _first(rows: Scaled, count: int) -> Scaled:
    return replace(rows, x=rows.x[:count], y=rows.y[:count], subjects=rows.subjects[:count])
