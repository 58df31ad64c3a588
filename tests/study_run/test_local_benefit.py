"""Local benefit: computed at the site from rows of eligible subjects, suppressed for few subjects."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from abaton.features import ScaledTable
from abaton.federation import COMMUNITY
from abaton.metrics.classification import evaluate_classifier
from abaton.models import logistic
from abaton.study import EvaluationSection, LearningSection
from abaton.study_run import PreparedSite, SubjectRows
from abaton.study_run.baselines import train_baseline
from abaton.study_run.consented_learner import to_examples
from abaton.study_run.evaluation import count_at_site
from abaton.study_run.local_benefit import (
    LOCAL_ONLY,
    LocalBenefitSettings,
    SiteBenefit,
    local_benefit_results,
    personalisation_results,
    site_benefit,
)

SETTINGS = LocalBenefitSettings(epochs=8, seed=3, bootstrap_resamples=50)
TRUTH = np.array([1.5, -1.0, 0.0], np.float32)


def table(rng: np.random.Generator, name: str, count: int, *, classes: bool = True) -> ScaledTable:
    x = rng.normal(size=(count, 3)).astype(np.float32)
    score = x @ TRUTH + rng.normal(0, 1, count).astype(np.float32)
    subjects = tuple(f"{name} {i}" for i in range(count))
    if not classes:
        return ScaledTable(("a", "b", "c"), x, score, (), subjects)
    return ScaledTable(("a", "b", "c"), x, (score > 0).astype(np.int64), ("no", "yes"), subjects)


def site(
    *,
    train: int = 60,
    test: int = 80,
    min_cell_count: int = 5,
    classes: bool = True,
    batch: int | None = None,
) -> PreparedSite:
    rng = np.random.default_rng(1)
    config = SimpleNamespace(site=SimpleNamespace(id="kos"), limits=SimpleNamespace(max_batch_size=batch))
    tables = [table(rng, name, n, classes=classes) for name, n in (("t", train), ("v", 10), ("x", test))]
    return PreparedSite(
        SimpleNamespace(config=config), {}, SubjectRows(*tables[:2]), tables[2], {}, min_cell_count, "d"
    )


TARGET = SimpleNamespace(classes=("no", "yes"), label=(0.0, 1.0))
MODEL = logistic(features=3, classes=2)
BEST = np.concatenate([np.stack([-TRUTH, TRUTH]).reshape(-1), np.zeros(2, np.float32)]).astype(np.float32)


def all_subjects(site: PreparedSite) -> frozenset[str]:
    return frozenset(site.all_subjects)


def test_benefits_equal_the_evaluation_of_local_only_and_community_models():
    kos, learning = site(), LearningSection()
    benefit = site_benefit(kos, TARGET, learning, (MODEL, BEST), all_subjects(kos), SETTINGS)
    training = learning.build_strategy(2).training
    local_only = train_baseline(MODEL, [kos.rows], training, SETTINGS.epochs, SETTINGS.seed, 2)
    predictions = {
        LOCAL_ONLY: local_only.predict(kos.test.x),
        COMMUNITY: MODEL.score(BEST, to_examples(kos.test)).predictions,
    }
    for name, predicted in predictions.items():
        counts = count_at_site(kos, TARGET, lambda data, p=predicted: p, all_subjects(kos), is_exact=True)
        (exact,) = next(iter(counts.values()))
        estimate = benefit.benefits[name].value
        assert estimate.value == pytest.approx(
            evaluate_classifier(exact, resamples=0)["auroc"].value, abs=0.002
        )
    community = benefit.benefits[COMMUNITY]
    assert community.gain_over_local_only.value == pytest.approx(
        community.value.value - benefit.benefits[LOCAL_ONLY].value.value
    )
    assert benefit == site_benefit(kos, TARGET, learning, (MODEL, BEST), all_subjects(kos), SETTINGS)
    assert (list(benefit.benefits), benefit.personal_models, benefit.reason) == (
        [LOCAL_ONLY, COMMUNITY],
        {},
        "",
    )


def test_local_benefit_of_few_subjects_is_suppressed():
    kos = site()
    cases = [s for s, y in zip(kos.test.subjects, kos.test.y, strict=True) if y]
    subjects = all_subjects(kos) - set(cases[4:])
    nothing = SiteBenefit(None, "fewer than 5 subjects to train or test with")
    assert site_benefit(kos, TARGET, LearningSection(), (MODEL, BEST), subjects, SETTINGS) == nothing
    few_subjects = frozenset([*kos.test.subjects, *kos.rows.train.subjects[:4]])
    assert site_benefit(kos, TARGET, LearningSection(), (MODEL, BEST), few_subjects, SETTINGS) == nothing


def test_rows_of_withdrawn_subjects_are_not_used():
    kos = site()
    withdrawn = frozenset(kos.rows.train.subjects[:30])
    is_remaining = np.array([s not in withdrawn for s in kos.rows.train.subjects])
    rows = kos.rows.train
    remaining = replace(
        rows,
        x=rows.x[is_remaining],
        y=rows.y[is_remaining],
        subjects=tuple(np.array(rows.subjects)[is_remaining].tolist()),
    )
    without = replace(kos, rows=SubjectRows(remaining, kos.rows.validation))
    arguments = (TARGET, LearningSection(), (MODEL, BEST))
    assert site_benefit(kos, *arguments, all_subjects(kos) - withdrawn, SETTINGS) == site_benefit(
        without, *arguments, all_subjects(without), SETTINGS
    )


def test_regression_models_are_compared_by_the_first_metric():
    learning = LearningSection(
        task="regression", model="linear", evaluation=EvaluationSection(metrics=("rmse",))
    )
    kos, model = site(classes=False), learning.build_model(features=3, classes=0)
    target = SimpleNamespace(classes=(), label=(10.0, 2.0))
    benefit = site_benefit(kos, target, learning, (model, model.initial(0)), all_subjects(kos), SETTINGS)
    worse = benefit.benefits[COMMUNITY].gain_over_local_only
    assert worse.value > 0  # the error of the untrained community model is larger
    sites = local_benefit_results(learning, {"kos": benefit, "troy": SiteBenefit(None, "few")})["sites"]
    assert sites["troy"] is None
    assert sites["kos"]["difference"]["value"] == worse.value
    results = personalisation_results(
        learning, {"kos": benefit, "troy": SiteBenefit(None, "few")}, {"kos": "80"}
    )
    gain = results["rows"][1]["gain_over_local_only"]  # the decrease of the error
    assert (gain["metric"], gain["value"], gain["low"]) == ("rmse", -worse.value, -worse.high)
    assert (results["rows"][1]["subjects"], results["excluded_sites"]) == ("80", {"troy": "few"})


def test_requested_work_is_bounded():
    assert LocalBenefitSettings(10**9, 1, 10**9).bounded() == LocalBenefitSettings(2_000, 1, 10_000)
