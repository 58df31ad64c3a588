from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.errors import SettingsError
from abaton.models.sampling import stratified_split


def split(labels, fraction=0.05, seed=0, rows=None):
    labels = np.asarray(labels)
    rows = np.arange(len(labels)) if rows is None else rows
    return stratified_split(labels, rows, fraction=fraction, rng=np.random.default_rng(seed), learner="kos")


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=12),
    st.floats(0.01, 0.6),
    st.integers(0, 2**32),
)
def test_every_row_is_on_one_side_and_every_class_stays_in_training(counts, fraction, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    if max(counts) == 1:
        with pytest.raises(SettingsError, match="learner 'kos'"):
            split(labels, fraction, seed)
        return
    train, validation = split(labels, fraction, seed)
    assert sorted([*train, *validation]) == list(range(len(labels)))
    assert set(labels[train]) == set(labels)
    validation_size = max(1, round(fraction * len(labels)))
    assert len(validation) == min(validation_size, len(labels) - len(counts))
    validation_counts = np.bincount(labels[validation], minlength=len(counts))
    assert all(validation_counts[j] == 0 for j, count in enumerate(counts) if count == 1)
    again = split(labels, fraction, seed)
    assert [rows_of_split.tolist() for rows_of_split in again] == [train.tolist(), validation.tolist()]


def test_every_class_contributes_the_same_fraction():
    labels = np.repeat(np.arange(3), [1000, 400, 20])
    _, validation = split(labels)
    assert np.bincount(labels[validation]).tolist() == [50, 20, 1]


def test_a_class_with_one_example_goes_to_training():
    labels = np.array([0] * 30 + [1])
    train, validation = split(labels, 0.2)
    assert 30 in train
    assert len(validation) == 6


def test_rows_keep_their_order_and_need_not_be_all():
    labels = np.arange(100) % 2
    train, validation = split(labels, 0.1, rows=np.arange(40, 100))
    assert train.tolist() == sorted(train)
    assert len(validation) == 6
    assert min(*train, *validation) >= 40


def test_there_is_at_least_one_validation_example():
    _, validation = split([0, 0], 0.01)
    assert len(validation) == 1


@pytest.mark.parametrize("labels", [[], [0], [0, 1], [2, 0, 1]])
def test_too_few_examples_are_refused_with_the_learner_and_the_remedy(labels):
    with pytest.raises(SettingsError, match="learner 'kos'.*two examples"):
        split(np.array(labels, dtype=int))


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan")])
def test_invalid_fraction_is_refused(fraction):
    with pytest.raises(SettingsError, match="fraction"):
        split([0, 0, 1, 1], fraction)
