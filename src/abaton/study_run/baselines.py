"""Baselines of the community model: a site's local-only model and, in the lab only, the model of all rows pooled.

A baseline is what an analyst would fit to these rows alone: the better of the study's own model with its number of
epochs chosen by cross-validation, and a penalised spline regression (`abaton.study_run.ridge_regression`) with its
penalty chosen likewise. Both use the same stratified folds of training and validation rows, and the lower log-loss, or
squared error, decides. The cross-validated loss only chooses; it is no estimate of performance. Survival models have no
regression here: only their epochs are chosen.

A baseline is trained on rows of subjects whose consent is in force at the time of the evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.features import ScaledTable
from abaton.layout import Vector
from abaton.metrics.predictions import is_survival_label
from abaton.models import Examples, Model, train_model
from abaton.models.base import TrainingPlan, concatenate_examples
from abaton.study_run.consented_learner import SubjectRows, select_rows, to_examples
from abaton.study_run.preparation import PreparedSite, PreparedSites
from abaton.study_run.ridge_regression import fit_spline_regression, prediction_loss, stratified_folds
from abaton.training import TrainSettings

POOLED = "all data pooled"
STUDY_MODEL, SPLINE_REGRESSION = "study model", "spline regression"
"""Kinds of baselines; the first has a number of epochs, the second a penalty."""

_PATIENCE = 2  # candidates of epochs without a lower loss, after which no more are tried


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """Trained baseline.

    Attributes:
        selected: The chosen number of epochs, or the chosen penalty.
        parameters: All trained numbers.
        predict: Returns probabilities of classes, or values, for rows of inputs.
    """

    selected: Mapping[str, float]
    parameters: NDArray[Any]
    predict: Callable[[NDArray[Any]], NDArray[Any]]


def local_only_name(name: str) -> str:
    """Return the name of a site's local-only model, a baseline in the study's evaluation."""
    return f"{name} (local only)"


def baseline_kind(selected: Mapping[str, float]) -> dict[str, Any]:
    """Return a baseline's kind and setting as JSON values.

    >>> baseline_kind({"epochs": 8.0}), baseline_kind({"penalty": 10.0})
    ({'kind': 'study model', 'epochs': 8}, {'kind': 'spline regression', 'penalty': 10.0})
    """
    if "epochs" in selected:
        return {"kind": STUDY_MODEL, "epochs": int(selected["epochs"])}
    return {"kind": SPLINE_REGRESSION, "penalty": selected.get("penalty")}


def select_subjects(rows: SubjectRows, subjects: frozenset[str]) -> SubjectRows:
    """Return the training and validation rows of these subjects, for a baseline."""
    return SubjectRows(*(_select_table(table, subjects) for table in (rows.train, rows.validation)))


def train_baselines(
    prepared: PreparedSites,
    model: Model,
    settings: TrainSettings,
    max_epochs: int,
    seed: int,
    subjects: Mapping[str, frozenset[str]],
) -> dict[str, Baseline]:
    """Train every site's local-only model and the model of all rows pooled, on rows of these subjects only.

    A site with fewer than `min_cell_count` such subjects to train on has no local-only model.
    """
    site_rows = {site.name: select_subjects(site.rows, subjects[site.name]) for site in prepared.sites}
    large_enough = [site for site in prepared.sites if len(site_rows[site.name].train) >= site.min_cell_count]
    baselines = {
        local_only_name(site.name): train_baseline(
            model,
            [site_rows[site.name]],
            limit_batch_size(settings, site),
            max_epochs,
            seed,
            len(prepared.classes),
        )
        for site in large_enough
    }
    if any(len(rows.train) for rows in site_rows.values()):
        baselines[POOLED] = train_baseline(
            model, list(site_rows.values()), settings, max_epochs, seed, len(prepared.classes)
        )
    return baselines


def limit_batch_size(settings: TrainSettings, site: PreparedSite) -> TrainSettings:
    """Return the train settings of a local-only model with the batch size limited by the site."""
    limit = site.file.config.limits.max_batch_size
    return settings if limit is None else replace(settings, batch_size=min(settings.batch_size, limit))


def train_baseline(
    model: Model,
    site_rows: Sequence[SubjectRows],
    settings: TrainSettings,
    max_epochs: int,
    seed: int,
    class_count: int,
) -> Baseline:
    """Train a baseline on the rows of one or more sites: the better kind by cross-validated loss.

    Args:
        model: The study's model definition.
        site_rows: Training and validation rows; both are used.
        settings: The study's train settings.
        max_epochs: Largest number of epochs that is tried.
        seed: Seed of the folds, the initial weights and the order of the rows.
        class_count: Number of classes; 0 for regression and survival.
    """
    tables = [table for rows in site_rows for table in (rows.train, rows.validation)]
    data = concatenate_examples([to_examples(table) for table in tables])
    is_survival = is_survival_label(data.y)
    strata = data.y[:, 1].astype(np.int64) if is_survival else data.y
    folds = stratified_folds(strata, np.random.default_rng(seed))
    full_settings = replace(
        settings, epochs=max_epochs, update_thresholds=None, time_budget_seconds=0.0, steps=0, proximal_mu=0.0
    )
    epochs, loss = _choose_epochs(model, data, folds, full_settings, seed, class_count)
    if not is_survival:
        regression = fit_spline_regression(
            data.x, data.y, tables[0].columns, class_count, folds, data.weights
        )
        if regression.loss < loss:
            return Baseline(
                {"penalty": regression.penalty}, regression.coefficients.reshape(-1), regression.predict
            )
    vector = train_model(
        model, model.initial(seed), data, replace(full_settings, epochs=epochs), np.random.default_rng(seed)
    ).vector

    def predict(x: NDArray[Any]) -> NDArray[Any]:
        return model.score(
            vector, Examples(x, np.zeros((len(x), *data.y.shape[1:]), data.y.dtype))
        ).predictions

    return Baseline({"epochs": float(epochs)}, vector, predict)


def epoch_candidates(max_epochs: int) -> list[int]:
    """Return the numbers of epochs that cross-validation of a baseline tries: powers of two, and the largest.

    >>> epoch_candidates(20)
    [1, 2, 4, 8, 16, 20]
    """
    powers = [2**i for i in range(max(1, max_epochs).bit_length())]
    return sorted({*powers, max(1, max_epochs)})


def _choose_epochs(
    model: Model,
    data: Examples,
    folds: NDArray[np.int64],
    settings: TrainSettings,
    seed: int,
    class_count: int,
) -> tuple[int, float]:
    """Return a baseline's number of epochs with the least cross-validated loss, and that loss.

    All folds are trained to a candidate, then on to the next; it ends after two candidates without a lower loss.
    """
    names = np.unique(folds)
    if len(names) < 2:
        return 1, np.inf
    parts = [(data.select(folds != fold), data.select(folds == fold)) for fold in names]
    runs = [
        model.epochs(model.initial(seed), train, TrainingPlan(settings, np.random.default_rng(seed)))
        for train, _ in parts
    ]
    best, least, trained_epochs, worse = 1, np.inf, 0, 0
    for candidate in epoch_candidates(settings.epochs):
        loss = 0.0
        for run, (_, held_out) in zip(runs, parts, strict=True):
            *_, trained = islice(run, candidate - trained_epochs)
            loss += _loss(model, trained.vector, held_out, class_count)
        trained_epochs = candidate
        if loss < least:
            best, least, worse = candidate, loss, 0
        else:
            worse += 1
        if worse == _PATIENCE:
            break
    return best, least


def _loss(model: Model, vector: Vector, data: Examples, class_count: int) -> float:
    """Return the summed loss of the study's model as a baseline; of a survival model its own."""
    score = model.score(vector, data)
    if is_survival_label(data.y):
        return float(score.loss) * len(data)
    return prediction_loss(score.predictions, data.y, class_count, data.weights)


def _select_table(table: ScaledTable, subjects: frozenset[str]) -> ScaledTable:
    return select_rows(table, np.array([subject in subjects for subject in table.subjects], dtype=bool))
