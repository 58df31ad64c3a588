"""The shipped tables equal the results of their solvers; the closed form solves the published program."""

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import ndtr, ndtri

from abaton.codecs import CodecKey, Tcdq, ecdq
from abaton.codecs.quicfl import DEFAULT_SHARED_BITS, codebooks, reconstruction_table
from abaton.codecs.quicfl_solver import OUTLIERS, THRESHOLD, error, solve, staircase
from abaton.codecs.tcdq_rate_model import solve_step, trellis_rate_model
from abaton.layout import Layout, Tensor, TensorRole

PUBLISHED = {1: 1.4654, 2: 0.21355, 3: 0.042638, 4: 0.009513}
SETTINGS = [
    (bits, shared) for bits, max_shared in DEFAULT_SHARED_BITS.items() for shared in range(max_shared + 1)
]


def means_and_squares(values, z):
    """Return E[Ẑ | z, h] for every codebook, and E[Ẑ² | z], of the randomised selection of the encoder."""
    _, knots, rank = staircase(values)
    low, high = knots[rank], knots[rank + 1]
    above = np.clip((z[:, None, None] - low) / (high - low), 0, 1)
    means = values[:, 0] + (above * np.diff(values)).sum(axis=2)
    mean_squares = values[:, 0] ** 2 + (above * np.diff(values**2)).sum(axis=2)
    return means, mean_squares.mean(axis=1)


def test_threshold_is_exceeded_by_one_value_in_512():
    assert 2 * ndtr(-THRESHOLD) == pytest.approx(OUTLIERS, rel=1e-12)


@pytest.mark.parametrize(("bits", "shared"), SETTINGS)
def test_shipped_tables_are_valid(bits, shared):
    values = reconstruction_table(bits, shared)
    assert (np.diff(values, axis=1) > 0).all()
    np.testing.assert_array_equal(values, -values[::-1, ::-1])
    z = np.linspace(-1, 1, 4001) * float(codebooks(bits, shared).edge)
    weights = np.exp(-z * z / 2)
    means, mean_squares = means_and_squares(values, z)
    np.testing.assert_allclose(means.mean(axis=1), z, atol=1e-6)
    # A codebook's error has zero mean, so the 16 lanes of a vector may share it.
    np.testing.assert_allclose(weights @ (means - z[:, None]) / weights.sum(), 0, atol=1e-3)
    measured = weights @ (mean_squares - z * z) / weights.sum() * (1 - OUTLIERS)
    assert measured == pytest.approx(error(values), rel=1e-3)


@pytest.mark.parametrize("bits", PUBLISHED)
def test_shipped_tables_have_the_published_error(bits):
    assert error(reconstruction_table(bits, DEFAULT_SHARED_BITS[bits])) == pytest.approx(
        PUBLISHED[bits], rel=1e-4
    )


def test_more_shared_bits_reduce_the_error():
    errors = [
        [error(reconstruction_table(b, s)) for s in range(DEFAULT_SHARED_BITS[b] + 1)]
        for b in DEFAULT_SHARED_BITS
    ]
    assert all(np.all(np.diff(row) < 0) for row in errors)
    assert errors[0][0] == pytest.approx(8.597, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "shared"), SETTINGS)
def test_solving_again_gives_the_shipped_tables(bits, shared):
    solved = solve(bits, shared)
    assert error(solved) == pytest.approx(error(reconstruction_table(bits, shared)), rel=1e-5)
    assert solved[:, -1].mean() >= THRESHOLD - 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_the_published_linear_program_has_the_same_optimum(bits):
    """For fixed R, Eq. 22-24 at the quantiles, solved one quantile at a time by a general solver."""
    values = reconstruction_table(bits, DEFAULT_SHARED_BITS[bits])
    size, messages = values.shape
    inside = 1 - OUTLIERS
    quantiles = ndtri(OUTLIERS / 2 + inside * np.linspace(0, 1, 512))
    one_each = np.kron(np.eye(size), np.ones(messages))
    edge = float(codebooks(bits, DEFAULT_SHARED_BITS[bits]).edge)
    total = 0.0
    for z in np.clip(quantiles, -edge, edge):
        solution = linprog(
            (values**2).ravel() / size,
            A_eq=np.vstack([one_each, values.ravel() / size]),
            b_eq=np.append(np.ones(size), z),
        )
        _, closed_form = means_and_squares(values, np.array([z]))
        assert solution.fun == pytest.approx(closed_form[0], rel=1e-6)
        total += solution.fun - z * z
    # The discretised objective overestimates the error of the same table: it gives the edges too much weight.
    assert error(values) < inside * total / 512 < 1.1 * error(values)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_solving_ecdq_again_gives_the_shipped_model(bits):
    shipped, (step, counts) = ecdq.rate_model(bits), ecdq.solve(bits)
    assert step == pytest.approx(shipped.step, abs=1e-6)
    np.testing.assert_allclose(counts, shipped.cumulative, atol=1)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_shipped_frequencies_are_valid(bits):
    model = ecdq.rate_model(bits)
    frequencies = model.cumulative[model.strata :] - model.cumulative[: -model.strata]
    assert frequencies.min() >= 1
    rows = ecdq.outcome_frequencies(model.cumulative, model.strata)
    assert sorted(rows[rows > 0]) == sorted(frequencies)
    assert (rows.sum(axis=1) == ecdq.TOTAL).all()
    assert (model.cumulative[: model.strata] == 0).all()
    assert (model.cumulative[-model.strata :] == ecdq.TOTAL).all()
    assert (np.diff(model.cumulative) >= 0).all()
    assert ecdq.rate(model.step, model.strata, model.cumulative) < bits + 0.002


@pytest.mark.parametrize("states", [8, 64, 256])
def test_shipped_trellis_rows_are_valid_at_every_rate(states):
    steps = []
    for units in range(6, 121, 2):
        model = trellis_rate_model(units / 20, states)
        assert model.rows.min() >= 1
        assert (model.rows.sum(axis=1) == 1 << 14).all()
        np.testing.assert_array_equal(model.rows, model.rows[::-1, ::-1])
        steps.append(model.step / model.sampled_share)
    assert (np.diff(steps) < 0).all()


@pytest.mark.parametrize(("bits", "states"), [(0.5, 64), (1, 8), (2, 64), (4, 256), (6, 64)])
def test_the_trellis_model_predicts_the_rate(bits, states):
    """The ideal length of real symbols is the model's rate, which is the nominal one."""
    layout, codec = Layout([Tensor("w", (1 << 18,), TensorRole.DENSE)]), Tcdq(bits, states)
    update = np.random.default_rng(1).standard_normal(layout.size).astype(np.float32)
    payload = codec.encode(update, layout, CodecKey(b"key", "north"))
    overhead = 8 * (28 + 8 + 8 * 4 + 34)
    assert (8 * len(payload) - overhead) / layout.size == pytest.approx(bits, abs=0.004)


@pytest.mark.slow
@pytest.mark.parametrize("states", [8, 64, 256])
def test_solving_trellis_steps_again_gives_the_shipped_ones(states):
    for bits in (0.4, 0.5, 1, 2, 3.35, 6):
        assert solve_step(bits, states) == round(trellis_rate_model(bits, states).step * 1e5)
