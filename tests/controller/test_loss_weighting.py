"""Weighting by the loss at the other sites: exp(-k L/H), against references and with a site that miscodes."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import entropy
from sklearn.metrics import log_loss

from abaton import Examples, Federation, TrainSettings, strategy
from abaton.controller import Contribution, LossWeighting, UpdateReceived, ValidationWeighting, Weighting
from abaton.errors import SettingsError
from abaton.metrics.counts import combine_counts, relative_loss
from abaton.models import logistic
from abaton.store import Store, visible_activity
from abaton.study import LearningSection
from abaton.study_run.task_contract import TaskContract
from abaton.study_run.validation_scores import suppress_counts

CLEAN = ("athens", "pergamon", "trikala", "kos", "epidauros", "lebena")


def counts_of(y: np.ndarray, probabilities: np.ndarray) -> tuple[float, ...]:
    classes = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
    correct = np.bincount(y[predicted == y], minlength=classes)
    loss = log_loss(y, probabilities, labels=range(classes)) * len(y)
    margins = (np.bincount(y, minlength=classes), np.bincount(predicted, minlength=classes))
    return (*map(float, correct), *map(float, np.concatenate(margins)), loss)


@pytest.mark.parametrize("k", [1.0, 4.0, 16.0])
@pytest.mark.parametrize("classes", [2, 5])
def test_the_weight_is_exp_of_the_relative_loss(k, classes):
    """Counts of several evaluators give the value of scikit-learn and SciPy on their joint rows."""
    rng = np.random.default_rng(classes)
    for _ in range(200):
        prevalence = rng.dirichlet(np.full(classes, 0.7))
        sites = []
        for rows in rng.integers(5, 60, 3):
            y = rng.choice(classes, rows, p=prevalence)
            sites.append((y, rng.dirichlet(np.ones(classes), rows)))
        y, probabilities = (np.concatenate(parts) for parts in zip(*sites, strict=True))
        if len(set(y)) < 2:
            continue
        counts = combine_counts([counts_of(*site) for site in sites])
        update = UpdateReceived(0.0, "a", "t", "p", 1, 1, 1)
        weight = LossWeighting(k).weight(Contribution(update, 0, 0, 0, counts=counts))
        relative = log_loss(y, probabilities, labels=range(classes)) / entropy(np.bincount(y))
        assert weight == pytest.approx(max(math.exp(-k * relative), math.exp(-60)), rel=1e-9)


def test_counts_of_one_class_contain_relative_losses():
    """A study's evaluators release no counts of a rare class; they divide by the entropy of their own labels."""
    counts = (188, 3, 190, 10, 195, 5, 40.0)
    released = suppress_counts(counts, 5, "relative")
    frequency = 10.5 / 201
    own_entropy = entropy([frequency, 1 - frequency])
    assert released[2:4] == (190, 0)
    assert relative_loss(released, is_relative=True) == pytest.approx(0.2 / own_entropy)


def test_relative_losses_of_evaluators_with_other_majorities_are_averaged():
    controls = suppress_counts((80, 0, 90, 10, 90, 10, 20.0), 5, "relative")
    cases = suppress_counts((0, 50, 20, 60, 20, 60, 40.0), 5, "relative")
    both = combine_counts([controls, cases])
    mean = (controls[-1] + cases[-1]) / (controls[2] + cases[3])
    assert relative_loss(both, is_relative=True) == pytest.approx(mean)
    assert all(
        factor.is_relative for factor in LearningSection(weighting=["loss"]).build_strategy(4).weighting
    )


def test_bad_first_models_still_have_a_weight():
    """A weight of 0 for all would end the run; the smallest is above what aggregation counts as 0."""
    update = UpdateReceived(0.0, "a", "t", "p", 1, 1, 1)
    counts = (999.0, 0.0, 999.0, 1.0, 1000.0, 0.0, 1e30)
    assert LossWeighting().weight(Contribution(update, 0, 0, 0, counts=counts)) == math.exp(-60) > 1e-30
    assert LossWeighting().weight(Contribution(update, 0, 0, 0, counts=counts[:-1])) == 0


def hospitals(seed: int) -> dict[str, Examples]:
    """Return six hospitals with an outcome of about 7 %, and one that miscodes it."""
    rng = np.random.default_rng(seed)
    sites = {}
    for name, subjects in zip((*CLEAN, "messene"), (600, 500, 420, 320, 300, 260, 500), strict=True):
        x = rng.normal(size=(subjects, 8)).astype(np.float32)
        risk = 1 / (1 + np.exp(3.4 - x @ np.array([0.8, 0.7, -0.6, 0.5, 0.4, -0.4, 0.3, 0.2])))
        y = rng.random(subjects) < risk
        if name == "messene":  # 40 % of the cases are not coded, 25 % of the others are
            y = np.where(y, rng.random(subjects) >= 0.4, rng.random(subjects) < 0.25)
        sites[name] = Examples(x, y.astype(np.int64))
    return sites


def last_weights(folder: Path, seed: int, weighting: Weighting) -> dict[str, float]:
    training = TrainSettings(epochs=3, batch_size=16, learning_rate=0.1, momentum=0.5)
    rules = strategy("SyncDVW", rounds=20, weighting=(weighting,), training=training, seed=seed)
    with Store(folder) as store:
        run = Federation(logistic(features=8), hospitals(seed), rules, validation_fraction=0.15).run(
            store=store
        )
        learners = visible_activity(store, run.name).learners
    total = sum(learner.weight for learner in learners)
    return {learner.learner: learner.weight / total for learner in learners}


@pytest.mark.parametrize("seed", [101, 102, 103])
def test_a_site_that_miscodes_a_rare_outcome_loses_its_weight_by_loss_only(seed, tmp_path):
    by_f1 = last_weights(tmp_path, seed, ValidationWeighting("micro_f1", include_own_validation=False))
    assert max(by_f1[name] for name in CLEAN) - min(by_f1[name] for name in CLEAN) < 0.01
    assert by_f1["messene"] > 0.12
    by_loss = last_weights(tmp_path, seed, LossWeighting())
    assert by_loss["messene"] < 0.06
    assert min(by_loss[name] for name in CLEAN) > by_loss["messene"]


def test_a_study_document_names_it():
    learning = LearningSection(weighting=["loss(k=8)"])
    assert learning.build_strategy(3).weighting == (LossWeighting(k=8, is_relative=True),)
    assert learning.build_strategy(3).validation.include_own_validation is False
    assert TaskContract(SimpleNamespace(learning=learning)).released_loss == "relative"
    assert TaskContract(SimpleNamespace(learning=LearningSection())).released_loss == "none"


@pytest.mark.parametrize("task", [{"task": "regression", "model": "linear"}, {"task": "survival"}])
def test_it_is_refused_for_other_tasks(task):
    with pytest.raises(ValueError, match="does not fit the task"):
        LearningSection(weighting=["loss"], **task)


@pytest.mark.parametrize("settings", [{"k": 0}, {"k": math.inf}, {"k": True}, {"evaluators": 0}])
def test_invalid_settings_are_refused(settings):
    with pytest.raises(SettingsError):
        LossWeighting(**settings)
