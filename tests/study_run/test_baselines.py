"""Baselines: trained on rows in force only, and as well as an analyst of these rows would."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from abaton.features import ColumnStatistics, FeatureColumn, ScaledTable
from abaton.metrics.classification import count_scores, evaluate_classifier
from abaton.models import logistic, mlp
from abaton.study_run import PreparedSite, PreparedSites, SubjectRows
from abaton.study_run.baselines import POOLED, local_only_name, train_baseline, train_baselines
from abaton.study_run.preparation_state import CommonScale, PreparationState
from abaton.training import TrainSettings

SETTINGS = TrainSettings(epochs=3, batch_size=16, learning_rate=0.1)
MODEL = logistic(features=3, classes=2)


def table(rng: np.random.Generator, name: str, count: int, *, is_curved: bool = False) -> ScaledTable:
    x = rng.normal(size=(count, 3)).astype(np.float32)
    risk = 2 * x[:, 0] ** 2 - 2.5 if is_curved else 1.5 * x[:, 0] - x[:, 1]
    y = (rng.random(count) < 1 / (1 + np.exp(-risk))).astype(np.int64)
    return ScaledTable(("a", "b", "c"), x, y, ("no", "yes"), tuple(f"{name} {i}" for i in range(count)))


def federation(*, is_curved: bool = False, size: int = 80) -> PreparedSites:
    rng, sites = np.random.default_rng(7), []
    for name in ("athens", "kos"):
        parts = [
            table(rng, f"{name} {part}", n, is_curved=is_curved)
            for part, n in (("t", size), ("v", 20), ("x", 400))
        ]
        limits = SimpleNamespace(max_batch_size=None)
        file = SimpleNamespace(config=SimpleNamespace(site=SimpleNamespace(id=name), limits=limits))
        sites.append(PreparedSite(file, {}, SubjectRows(*parts[:2]), parts[2], {}, 5, "d"))
    preparation = PreparationState(None, {}, CommonScale(ColumnStatistics({}), (0.0, 1.0)), {})
    columns = tuple(FeatureColumn(name, name) for name in "abc")
    return PreparedSites(tuple(sites), {}, columns, ("no", "yes"), preparation, None, {})


def with_rows(prepared: PreparedSites, change) -> PreparedSites:
    first, *others = prepared.sites
    rows = SubjectRows(change(first.rows.train), change(first.rows.validation))
    return replace(prepared, sites=(replace(first, rows=rows), *others))


def in_force(prepared: PreparedSites, withdrawn: set[str]) -> dict[str, frozenset[str]]:
    return {site.name: frozenset(site.all_subjects) - withdrawn for site in prepared.sites}


@pytest.mark.parametrize("model", [MODEL, mlp(features=3, hidden=(4,), classes=2)], ids=["logistic", "mlp"])
def test_a_withdrawn_subject_changes_no_byte_of_the_baselines(model):
    """Neither the subject's values nor its former presence are in the local-only or the pooled model."""
    prepared = federation()
    withdrawn = {"athens t 3", "athens v 1"}

    def remove(part: ScaledTable) -> ScaledTable:
        rows = [i for i, subject in enumerate(part.subjects) if subject not in withdrawn]
        return replace(part, x=part.x[rows], y=part.y[rows], subjects=tuple(part.subjects[i] for i in rows))

    def change(part: ScaledTable) -> ScaledTable:
        is_withdrawn = np.array([subject in withdrawn for subject in part.subjects])
        return replace(
            part,
            x=np.where(is_withdrawn[:, None], np.float32(9), part.x),
            y=np.where(is_withdrawn, 1 - part.y, part.y),
        )

    models = [
        train_baselines(data, model, SETTINGS, 8, 3, in_force(data, withdrawn))
        for data in (prepared, with_rows(prepared, remove), with_rows(prepared, change))
    ]
    assert set(models[0]) == {local_only_name("athens"), local_only_name("kos"), POOLED}
    for name in models[0]:
        first, *others = [baselines[name] for baselines in models]
        assert all(other.parameters.tobytes() == first.parameters.tobytes() for other in others)
        assert all(other.selected == first.selected for other in others)
    everyone = train_baselines(prepared, model, SETTINGS, 8, 3, in_force(prepared, set()))
    for name in (local_only_name("athens"), POOLED):
        assert everyone[name].parameters.tobytes() != models[0][name].parameters.tobytes()


def auroc(baseline, test: ScaledTable) -> float:
    counts = count_scores(baseline.predict(test.x)[:, 1], test.y)
    return evaluate_classifier(counts, resamples=0)["auroc"].value


def test_a_curved_risk_chooses_the_spline_regression():
    """A linear model cannot describe it; the baseline of an analyst does."""
    athens = federation(is_curved=True, size=300).sites[0]
    baseline = train_baseline(MODEL, [athens.rows], SETTINGS, 64, 3, 2)
    assert "penalty" in baseline.selected
    assert auroc(baseline, athens.test) > 0.8


def test_the_epochs_of_the_study_model_are_chosen_by_cross_validation():
    """An interaction that the regression lacks: the network is chosen, and not with all epochs that are allowed."""
    rng = np.random.default_rng(2)

    def interaction(name: str, count: int) -> ScaledTable:
        x = rng.normal(size=(count, 3)).astype(np.float32)
        y = ((x[:, 0] * x[:, 1] > 0) ^ (rng.random(count) < 0.2)).astype(np.int64)
        return ScaledTable(("a", "b", "c"), x, y, ("no", "yes"), tuple(f"{name} {i}" for i in range(count)))

    network = mlp(features=3, hidden=(32,), classes=2)
    rows, test = SubjectRows(interaction("t", 200), interaction("v", 40)), interaction("x", 500)
    baseline = train_baseline(network, [rows], SETTINGS, 1000, 3, 2)
    assert 2 <= baseline.selected["epochs"] < 1000
    assert auroc(baseline, test) > 0.65


def test_a_tuned_baseline_predicts_no_worse_than_all_epochs():
    from abaton.models import Examples, train_model

    losses = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        rows, test = SubjectRows(table(rng, "t", 30), table(rng, "v", 10)), table(rng, "x", 2000)
        network = mlp(features=3, hidden=(16,), classes=2)
        tuned = train_baseline(network, [rows], SETTINGS, 300, seed, 2).predict(test.x)
        data = Examples(
            np.concatenate([rows.train.x, rows.validation.x]),
            np.concatenate([rows.train.y, rows.validation.y]),
        )
        settings = replace(SETTINGS, epochs=300)
        vector = train_model(
            network, network.initial(seed), data, settings, np.random.default_rng(seed)
        ).vector
        untuned = network.score(vector, Examples(test.x, test.y)).predictions
        losses.append(
            [-np.log(np.clip(p[np.arange(len(test)), test.y], 1e-7, 1)).mean() for p in (tuned, untuned)]
        )
    assert np.mean(losses, axis=0)[0] < np.mean(losses, axis=0)[1] - 0.1


def test_a_site_without_enough_rows_in_force_has_no_local_only_model():
    prepared = federation()
    subjects = in_force(prepared, set())
    subjects["kos"] = frozenset(list(prepared.sites[1].rows.train.subjects)[:4])
    assert set(train_baselines(prepared, MODEL, SETTINGS, 4, 3, subjects)) == {
        local_only_name("athens"),
        POOLED,
    }


@pytest.mark.parametrize("cases", [0, 1, 2])
def test_few_cases_give_a_model(cases):
    rng = np.random.default_rng(cases)
    parts = [replace(table(rng, name, 20), y=np.zeros(20, np.int64)) for name in "tv"]
    parts[0].y[:cases] = 1
    baseline = train_baseline(MODEL, [SubjectRows(*parts)], SETTINGS, 4, 3, 2)
    assert np.isfinite(baseline.predict(parts[0].x)).all()
