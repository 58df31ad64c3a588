import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.errors import LayoutError
from abaton.kernels import Layout, Role, Tensor

LAYOUT = Layout(
    [
        Tensor("weight", (2, 3), Role.DENSE),
        Tensor("bias", (2,), Role.BIAS),
        Tensor("empty", (0, 4), Role.OTHER),
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


W, B = Tensor("weight", (2, 3), Role.DENSE), Tensor("bias", (2,), Role.BIAS)


@pytest.mark.parametrize(
    "other",
    [
        [Tensor("weight", (3, 2), Role.DENSE), B],
        [Tensor("weight", (2, 3), Role.CONV), B],
        [Tensor("weights", (2, 3), Role.DENSE), B],
        [B, W],
        [W],
    ],
)
def test_every_change_of_name_shape_role_or_order_changes_the_digest(other):
    assert Layout(other).digest != Layout([W, B]).digest


@pytest.mark.parametrize(
    ("vector", "words"),
    [
        (np.zeros(7, np.float32), ["7", "8", "another model"]),
        (np.zeros(8), ["float64", "float32"]),
        (np.zeros((2, 4), np.float32), ["flat"]),
        ([0.0] * 8, ["list"]),
    ],
)
def test_what_does_not_fit_is_refused_with_what_and_why(vector, words):
    with pytest.raises(LayoutError) as caught:
        LAYOUT.check(vector, whose="the update of learner 'kos'")
    assert "kos" in str(caught.value)
    assert all(word in str(caught.value) for word in words)


@given(st.integers(0, 7), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_a_value_that_is_not_finite_is_found_and_its_tensor_named(position, value):
    vector = np.ones(8, np.float32)
    vector[position] = value
    with pytest.raises(LayoutError, match="'weight'" if position < 6 else "'bias'"):
        LAYOUT.check(vector)


def test_large_but_finite_values_pass():
    assert LAYOUT.check(np.full(8, 3e38, np.float32)) is not None


def test_two_tensors_of_one_name_and_unusable_names_are_refused():
    with pytest.raises(LayoutError, match="two tensors"):
        Layout([Tensor("a", (1,), Role.BIAS), Tensor("a", (1,), Role.BIAS)])
    with pytest.raises(LayoutError, match="line break"):
        Tensor("a\nb", (1,), Role.BIAS)
    with pytest.raises(LayoutError, match="no tensor 'c'"):
        LAYOUT.slice("c")
