from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from abaton.models.sampling import epoch_order


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(0, 70), st.integers(0, 9))
def test_every_example_occurs_once_and_within_its_window(labels, window, seed):
    labels = np.array(labels)
    order = epoch_order(labels, window, np.random.default_rng(seed))
    assert sorted(order.tolist()) == list(range(len(labels)))
    assert np.array_equal(order, epoch_order(labels, window, np.random.default_rng(seed)))
    if window:
        position = {row: i for i, row in enumerate(np.argsort(labels, kind="stable").tolist())}
        assert all(position[row] < index + window for index, row in enumerate(order.tolist()))


def test_a_small_window_leaves_classes_together_and_a_large_one_does_not():
    labels = np.repeat([1, 0], 500)

    def classes_in_a_batch(window: int) -> float:
        order = epoch_order(labels, window, np.random.default_rng(0))
        return float(np.mean([len(set(batch)) for batch in labels[order].reshape(-1, 20)]))

    assert classes_in_a_batch(10) < 1.1
    assert classes_in_a_batch(1000) > 1.95
    assert classes_in_a_batch(0) > 1.95


def test_sequences_of_labels_keep_their_stored_order():
    order = epoch_order(np.zeros((5, 3), np.int64), 1, np.random.default_rng(0))
    assert order.tolist() == [0, 1, 2, 3, 4]
