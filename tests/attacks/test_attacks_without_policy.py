"""Positive controls: the same attacks succeed without a defence, so that their failure elsewhere is evidence."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.disclosure.levels import DisclosureLevel, NoiseSettings
from abaton.disclosure.release_gate import Question, ReleaseGate
from abaton.disclosure.release_register import ReleaseRegister
from abaton.lab.demo import NOW
from abaton.metrics.counts import micro_f1
from abaton.metrics.predictions import validation_counts
from abaton.site import ReleaseLog, load_site
from abaton.study_run import ingest_sites
from abaton.study_run.evaluation import count_predictions
from abaton.study_run.preparation import split_table, sum_columns
from abaton.study_run.validation_scores import noisy_counts, suppress_counts


@pytest.fixture
def ingest(four):
    site = next(path for path in four.sites if path.parent.name == "athens")
    return ingest_sites(four.study, [load_site(site)], NOW)[0]


def test_as_many_splits_as_subjects_reveal_every_value(four, ingest):
    """To a tenth of a standard deviation. Prevented: `test_splits_by_other_seeds_are_refused`."""
    table, learning = ingest.table, four.study.learning
    splits = [split_table(four.study, ingest, table, seed) for seed in range(len(table) + 60)]
    statistics = [sum_columns(learning, item).columns for item in splits]
    column = next(name for name, item in statistics[0].columns.items() if item.count and item.std > 1)
    indices = {subject: i for i, subject in enumerate(table.subjects)}
    membership = np.zeros((len(splits), len(table)))
    for row, item in zip(membership, splits, strict=True):
        row[[indices[subject] for subject in item.without_test.subjects]] = 1
    solution = np.linalg.lstsq(membership, [item.columns[column].sum for item in statistics], rcond=None)[0]
    values = table.x[:, [item.name for item in table.columns].index(column)]
    # Each split has the same number of each class, so a constant per class cannot be separated from the values.
    errors = solution - values
    for label in np.unique(table.y):
        errors[table.y == label] -= errors[table.y == label].mean()
    assert np.abs(errors).max() < 0.1 * values.std()


@pytest.mark.parametrize(("min_cell_count", "has_single_subjects"), [(1, True), (5, False)])
def test_a_one_column_model_reveals_values_unless_groups_are_large(min_cell_count, has_single_subjects):
    """Prevented: `test_groups_below_the_minimum_cell_count_are_not_evaluated`."""
    rng = np.random.default_rng(0)
    value, outcome = rng.random(80), rng.integers(0, 2, 80)

    class Two:
        classes, label = ("no", "yes"), (0.0, 1.0)

    (histogram,) = count_predictions(np.stack([1 - value, value], axis=1), outcome, Two(), min_cell_count)
    assert (
        any((numbers == 1).any() for numbers in (histogram.cases, histogram.controls)) is has_single_subjects
    )
    assert histogram.subjects == 80


@pytest.mark.parametrize(("level", "low", "high"), [("exact", 1.0, 1.0), ("noisy", 0.35, 0.7)])
def test_a_threshold_moved_by_one_subject_shows_in_counts_unless_they_have_noise(tmp_path, level, low, high):
    """The counts increase by the subject in every case, or hardly more often than not."""
    labels, register = np.repeat([0, 1], 20), ReleaseRegister(tmp_path / "register", tmp_path / "key")
    gate = ReleaseGate(register, DisclosureLevel.NOISY, NoiseSettings(study_budget=1e6, yearly_budget=1e6))
    subjects, settings = [f"person {i}" for i in range(40)], [(0.4, 0.6), (0.6, 0.4)]
    increases = []
    for trial in range(100):
        correct = []
        for model, first in enumerate(settings):
            probabilities = np.tile([0.4, 0.6], (40, 1))
            probabilities[0] = first
            if level == "exact":
                counts = suppress_counts(validation_counts(probabilities, labels), 5, "none")
            else:
                question = Question("score", "study", {"trial": trial, "model": model})
                counts = noisy_counts(gate, question, subjects, probabilities, labels, "none")
            correct.append(counts[0])
        increases.append(correct[1] > correct[0])
    assert low <= np.mean(increases) <= high


@pytest.mark.parametrize(("min_cell_count", "is_released"), [(1, True), (5, False)])
def test_differencing_two_counts_reveals_a_withdrawal_unless_the_release_log_blocks_it(
    tmp_path, min_cell_count, is_released
):
    """Prevented: `test_two_runs_around_a_withdrawal_reveal_nothing`."""
    release_log = ReleaseLog(tmp_path / "releases", str, min_cell_count)
    patients = [f"person {i}" for i in range(20)]
    assert release_log.may_release("validation", patients)
    assert release_log.may_release("validation", patients[1:]) is is_released


def test_implausible_counts_would_dominate_a_metric():
    """Prevented: `test_impossible_counts_of_an_evaluator_are_ignored`."""
    honest, huge = np.array((4, 4, 5, 5, 5, 5), float), np.array((0, 0, 1e15, 1e15, 1e15, 1e15))
    assert micro_f1(tuple(honest * 3)) == pytest.approx(0.8)
    assert micro_f1(tuple(honest * 3 + huge)) < 1e-12
