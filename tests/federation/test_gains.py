"""What each site gains: found at the site, from its own rows, of enough people, of those who are still in."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from abaton.features import Scaled
from abaton.federation import COMMUNITY, Member, Rows
from abaton.learners import logistic
from abaton.metrics.classification import judge
from abaton.study import Evaluation, Learning
from abaton.study_run.evaluation import site_counts, train_alone
from abaton.study_run.local_benefit import OWN, GainSettings, SiteGain, gains_row, personal_row, site_gain

WISH = GainSettings(epochs=8, seed=3, resamples=50)
TRUTH = np.array([1.5, -1.0, 0.0], np.float32)


def table(rng: np.random.Generator, name: str, count: int, *, classes: bool = True) -> Scaled:
    x = rng.normal(size=(count, 3)).astype(np.float32)
    score = x @ TRUTH + rng.normal(0, 1, count).astype(np.float32)
    subjects = tuple(f"{name} {i}" for i in range(count))
    if not classes:
        return Scaled(("a", "b", "c"), x, score, (), subjects)
    return Scaled(("a", "b", "c"), x, (score > 0).astype(np.int64), ("no", "yes"), subjects)


def site(
    *, train: int = 60, test: int = 80, floor: int = 5, classes: bool = True, batch: int | None = None
) -> Member:
    rng = np.random.default_rng(1)
    document = SimpleNamespace(site=SimpleNamespace(id="kos"), limits=SimpleNamespace(batch=batch))
    parts = [table(rng, name, n, classes=classes) for name, n in (("t", train), ("v", 10), ("x", test))]
    return Member(SimpleNamespace(document=document), {}, Rows(*parts[:2]), parts[2], {}, floor, "d")


JUDGED = SimpleNamespace(classes=("no", "yes"), label=(0.0, 1.0))
MODEL = logistic(features=3, classes=2)
BEST = np.concatenate([np.stack([-TRUTH, TRUTH]).reshape(-1), np.zeros(2, np.float32)]).astype(np.float32)


def everybody(member: Member) -> frozenset[str]:
    return frozenset(member.everybody)


def test_both_models_are_judged_as_everywhere_and_the_own_one_is_of_the_sites_rows_alone():
    member, learning = site(), Learning()
    found = site_gain(member, JUDGED, learning, (MODEL, BEST), everybody(member), WISH)
    own = train_alone(MODEL, member.rows, learning.rules(2).training, WISH.epochs, WISH.seed)
    for name, vector in ((OWN, own), (COMMUNITY, BEST)):
        exact = replace(member, floor=1)  # what leaves is in groups; the site itself compares its people
        (counts,) = next(iter(site_counts(exact, JUDGED, MODEL, vector, everybody(member)).values()))
        told = found.told[name].value
        assert told.value == pytest.approx(judge(counts, resamples=0)["auroc"].value, abs=1e-12)
    community = found.told[COMMUNITY]
    assert community.over_own.value == pytest.approx(community.value.value - found.told[OWN].value.value)
    assert found == site_gain(member, JUDGED, learning, (MODEL, BEST), everybody(member), WISH)
    assert (list(found.told), found.models, found.why) == ([OWN, COMMUNITY], {}, "")


def test_nothing_is_told_of_few_people():
    member = site()
    cases = [s for s, y in zip(member.test.subjects, member.test.y, strict=True) if y]
    inside = everybody(member) - set(cases[4:])
    nothing = SiteGain(None, "fewer than 5 subjects to train or to test with")
    assert site_gain(member, JUDGED, Learning(), (MODEL, BEST), inside, WISH) == nothing
    alone = frozenset([*member.test.subjects, *member.rows.train.subjects[:4]])
    assert site_gain(member, JUDGED, Learning(), (MODEL, BEST), alone, WISH) == nothing


def test_rows_of_those_who_left_are_not_used():
    member = site()
    gone = frozenset(member.rows.train.subjects[:30])
    kept = np.array([s not in gone for s in member.rows.train.subjects])
    rows = member.rows.train
    less = replace(
        rows, x=rows.x[kept], y=rows.y[kept], subjects=tuple(np.array(rows.subjects)[kept].tolist())
    )
    without = replace(member, rows=Rows(less, member.rows.validation))
    asked = (JUDGED, Learning(), (MODEL, BEST))
    assert site_gain(member, *asked, everybody(member) - gone, WISH) == site_gain(
        without, *asked, everybody(without), WISH
    )


def test_values_are_compared_by_the_studys_first_measure():
    learning = Learning(task="value", network="linear", evaluation=Evaluation(metrics=("rmse",)))
    member, model = site(classes=False), learning.model(features=3, classes=0)
    judged = SimpleNamespace(classes=(), label=(10.0, 2.0))
    found = site_gain(member, judged, learning, (model, model.initial(0)), everybody(member), WISH)
    worse = found.told[COMMUNITY].over_own
    assert worse.value > 0  # an error that grows: the untrained community model is worse
    sites = gains_row(learning, {"kos": found, "troy": SiteGain(None, "few")})["sites"]
    assert sites["troy"] is None
    assert sites["kos"]["difference"]["value"] == worse.value
    lines = personal_row(learning, {"kos": found, "troy": SiteGain(None, "few")}, {"kos": "80"})
    gain = lines["lines"][1]["gain"]  # here it is how much smaller the error is
    assert (gain["measure"], gain["value"], gain["low"]) == ("rmse", -worse.value, -worse.high)
    assert (lines["lines"][1]["subjects"], lines["left_out"]) == ("80", {"troy": "few"})


def test_a_site_does_no_more_work_than_it_bounds():
    assert GainSettings(10**9, 1, 10**9).bounded() == GainSettings(10_000, 1, 10_000)
