import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.errors import LayoutError
from abaton.layout import Layout, Tensor, TensorRole

LAYOUT = Layout(
    [
        Tensor("weight", (2, 3), TensorRole.DENSE),
        Tensor("bias", (2,), TensorRole.BIAS),
        Tensor("empty", (0, 4), TensorRole.OTHER),
    ]
)


def test_views_share_memory_and_cover_the_vector_without_gaps():
    vector = np.arange(8, dtype=np.float32)
    views = LAYOUT.views(vector)
    views["bias"][:] = -1
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, -1, -1]
    assert all(np.shares_memory(view, vector) for view in views.values() if view.size)
    assert np.array_equal(LAYOUT.view(vector, "weight"), views["weight"])


def test_the_digest_is_stable_across_releases():
    assert LAYOUT.digest == "8e1b420b5449f67c1283bb31000898a7b37d6cd9181a773a7e5ce11f2cd7acdd"
    assert Layout(LAYOUT.tensors).digest == LAYOUT.digest


W, B = Tensor("weight", (2, 3), TensorRole.DENSE), Tensor("bias", (2,), TensorRole.BIAS)


@pytest.mark.parametrize(
    "other",
    [
        [Tensor("weight", (3, 2), TensorRole.DENSE), B],
        [Tensor("weight", (2, 3), TensorRole.CONV), B],
        [Tensor("weights", (2, 3), TensorRole.DENSE), B],
        [B, W],
        [W],
    ],
)
def test_every_change_of_name_shape_role_or_order_changes_the_digest(other):
    assert Layout(other).digest != Layout([W, B]).digest


@pytest.mark.parametrize(
    ("vector", "fragments"),
    [
        (np.zeros(7, np.float32), ["7", "8", "another model"]),
        (np.zeros(8), ["float64", "float32"]),
        (np.zeros((2, 4), np.float32), ["flat"]),
        ([0.0] * 8, ["list"]),
    ],
)
def test_vector_that_does_not_fit_is_refused_with_details(vector, fragments):
    with pytest.raises(LayoutError) as caught:
        LAYOUT.check(vector, label="the update of learner 'kos'")
    assert "kos" in str(caught.value)
    assert all(fragment in str(caught.value) for fragment in fragments)


@given(st.integers(0, 7), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_error_names_the_tensor_of_a_value_that_is_not_finite(position, value):
    vector = np.ones(8, np.float32)
    vector[position] = value
    with pytest.raises(LayoutError, match="'weight'" if position < 6 else "'bias'"):
        LAYOUT.check(vector)


def test_large_but_finite_values_pass():
    assert LAYOUT.check(np.full(8, 3e38, np.float32)) is not None


def test_duplicate_and_invalid_tensor_names_are_refused():
    with pytest.raises(LayoutError, match="two tensors"):
        Layout([Tensor("a", (1,), TensorRole.BIAS), Tensor("a", (1,), TensorRole.BIAS)])
    with pytest.raises(LayoutError, match="line break"):
        Tensor("a\nb", (1,), TensorRole.BIAS)
    with pytest.raises(LayoutError, match="no tensor 'c'"):
        LAYOUT.slice("c")


def test_trained_tensors_come_before_statistics_and_frozen_tensors():
    trained, statistic, frozen = (
        Tensor(role, (2,), role) for role in (TensorRole.DENSE, TensorRole.STATISTIC, TensorRole.FROZEN)
    )
    layout = Layout([trained, statistic, frozen])
    assert (layout.trained.tensors, layout.statistics.tensors) == ((trained,), (statistic,))
    assert (layout.size, layout.update_size) == (6, 4)
    assert LAYOUT.trained is LAYOUT
    for order in ([statistic, trained], [frozen, statistic], [frozen, trained]):
        with pytest.raises(LayoutError, match="trained, statistics, frozen"):
            Layout(order)
