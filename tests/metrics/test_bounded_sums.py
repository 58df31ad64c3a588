"""Bounds of released sums: no subject moves a sum by more than its bound."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import rankdata

from abaton.errors import SettingsError
from abaton.metrics.bounded_sums import (
    PAIR_CENTRE,
    PAIR_SCALE,
    BoundedContributions,
    SlopeLine,
    auroc_contributions,
    brier_contributions,
    calibration_contributions,
    concordance_contributions,
    contributions_by_group,
    regression_contributions,
    slope_contributions,
)
from abaton.metrics.predictions import auroc
from abaton.metrics.survival import sum_pairs

Contribute = Callable[[NDArray[np.float64], NDArray[np.int64]], BoundedContributions]

PROBABILITIES = st.one_of(st.sampled_from([0.0, 1e-9, 0.2, 0.5, 0.5, 0.8, 1 - 1e-9, 1.0]), st.floats(0, 1))
SUBJECTS = st.lists(st.tuples(PROBABILITIES, st.integers(0, 1)), max_size=14)
ADDITIVE: dict[str, Contribute] = {
    "calibration": calibration_contributions,
    "brier": brier_contributions,
    "slope": lambda p, y: slope_contributions(p, y, SlopeLine(-1.5, -1.0, 4.0)),
    "flat slope": lambda p, y: slope_contributions(p, y, SlopeLine(0.5, 2.0, 0.2)),
    "steep slope": lambda p, y: slope_contributions(p, y, SlopeLine(-3.0, -3.0, 20.0)),
}


def _total(contribute: Contribute, subjects: list[tuple[float, int]]) -> NDArray[np.float64]:
    p, y = (np.array([subject[i] for subject in subjects], kind) for i, kind in ((0, float), (1, np.int64)))
    return np.asarray(contribute(p, y).rows.sum(0))


def _survival(p: NDArray[np.float64], y: NDArray[np.int64]) -> BoundedContributions:
    """Let the probability be split into a prediction and a time, so that the search finds censored pairs."""
    time = np.floor(p * 8) % 4 + 1
    return concordance_contributions(p, np.stack([time, y.astype(float)], axis=1))


@pytest.mark.parametrize("contribute", [auroc_contributions, _survival])
@settings(max_examples=300, deadline=None)
@given(
    subjects=SUBJECTS,
    first=st.tuples(PROBABILITIES, st.integers(0, 1)),
    other=st.tuples(PROBABILITIES, st.integers(0, 1)),
)
def test_no_subject_moves_the_pair_sums_by_more_than_one(
    contribute: Contribute,
    subjects: list[tuple[float, int]],
    first: tuple[float, int],
    other: tuple[float, int],
) -> None:
    without = _total(contribute, subjects)
    with_first, with_other = (_total(contribute, [*subjects, subject]) for subject in (first, other))
    assert np.linalg.norm(with_first - without) <= 1
    assert np.linalg.norm(with_first - with_other) <= 1


def test_the_bound_of_pair_sums_is_nearly_reached() -> None:
    """Extreme sites come close to 1, so the bound could not be much smaller."""
    controls = [(0.5, 0)] * 2000
    without = _total(auroc_contributions, controls)
    low, high = (_total(auroc_contributions, [*controls, (p, 1)]) for p in (0.0, 1.0))
    assert np.linalg.norm(low - without) == pytest.approx(np.hypot(PAIR_CENTRE, PAIR_SCALE), abs=0.001)
    assert 0.999 < np.linalg.norm(high - low) <= 1


def test_worst_pair_sums_over_random_sites() -> None:
    """Skewed sites of up to 60 subjects with tied scores: adding, removing or changing any subject stays below 1."""
    largest = 0.0
    kinds = [(score / 2, label) for score in range(3) for label in range(2)]
    rng = np.random.default_rng(0)
    for _ in range(1500):
        weights = rng.dirichlet(np.full(len(kinds), 0.2))
        subjects = [kinds[i] for i in rng.choice(len(kinds), rng.integers(1, 61), p=weights)]
        sums = [_total(auroc_contributions, [*subjects, kind]) for kind in kinds]
        sums.append(_total(auroc_contributions, subjects))
        largest = max(largest, *(float(np.linalg.norm(a - b)) for a in sums for b in sums))
    assert 0.95 < largest <= 1


@pytest.mark.parametrize("name", ADDITIVE)
def test_no_subject_exceeds_the_bound_of_a_sum(name: str) -> None:
    p = np.concatenate([np.linspace(0, 1, 4001), np.logspace(-14, -1, 400)])
    case, control = (ADDITIVE[name](p, np.full(len(p), label)) for label in (1, 0))
    for rows in (case.rows, control.rows, case.rows - control.rows):
        assert np.linalg.norm(rows, axis=1).max() <= case.bound * (1 + 1e-9)
    assert np.linalg.norm(case.rows - control.rows, axis=1).max() > 0.95 * case.bound


def test_no_value_exceeds_the_bound_of_regression_sums() -> None:
    values = np.linspace(-50, 250, 151)
    predicted, actual = (grid.ravel() for grid in np.meshgrid(values, values))
    all_rows = regression_contributions(predicted, actual, 0.0, 100.0)
    assert np.linalg.norm(all_rows.rows, axis=1).max() <= all_rows.bound
    by_prediction = all_rows.rows.reshape(len(values), len(values), -1)
    for column in range(len(values)):
        rows = by_prediction[:, column]
        distances = np.linalg.norm(rows[:, None] - rows[None], axis=2)
        assert distances.max() <= all_rows.bound


@settings(max_examples=200, deadline=None)
@given(subjects=st.lists(st.tuples(PROBABILITIES, st.integers(0, 1)), min_size=2, max_size=40))
def test_pair_sums_give_the_auroc(subjects: list[tuple[float, int]]) -> None:
    p, y = np.array([s[0] for s in subjects]), np.array([s[1] for s in subjects])
    deviation, pairs = auroc_contributions(p, y).rows.sum(0)
    expected_pairs = y.sum() * (1 - y).sum()
    assert pairs * len(y) / PAIR_SCALE == pytest.approx(expected_pairs)
    if expected_pairs:
        assert PAIR_CENTRE + deviation / pairs * PAIR_SCALE == pytest.approx(auroc(p, y))
        ranks = rankdata(p)
        by_ranks = (ranks[y == 1].sum() - y.sum() * (y.sum() + 1) / 2) / expected_pairs
        assert PAIR_CENTRE + deviation / pairs * PAIR_SCALE == pytest.approx(by_ranks)


def test_pair_sums_give_the_concordance() -> None:
    rng = np.random.default_rng(5)
    p, y = rng.random(60), np.stack([rng.integers(1, 20, 60), rng.integers(0, 2, 60)], axis=1).astype(float)
    deviation, pairs = concordance_contributions(p, y).rows.sum(0)
    sums = sum_pairs(p, y)
    assert PAIR_CENTRE + deviation / pairs * PAIR_SCALE == pytest.approx(sums.concordant / sums.pairs)
    assert 2 * pairs * 60 / PAIR_SCALE == pytest.approx(sums.pairs)


def test_groups_have_their_own_columns_and_pairs() -> None:
    rng = np.random.default_rng(6)
    p, y = rng.random(40), rng.integers(0, 2, 40)
    masks = [np.arange(40) < 15, np.arange(40) >= 25]
    grouped = contributions_by_group(lambda members: auroc_contributions(p[members], y[members]), masks)
    assert grouped.rows.shape == (40, 4)
    assert grouped.bound == 1.0
    for i, members in enumerate(masks):
        expected = auroc_contributions(p[members], y[members]).rows.sum(0)
        assert grouped.rows[:, 2 * i : 2 * i + 2].sum(0) == pytest.approx(expected)
    assert not grouped.rows[15:25].any()


def test_bad_input_is_refused() -> None:
    with pytest.raises(SettingsError, match="two groups"):
        contributions_by_group(
            lambda _: auroc_contributions(np.array([0.1]), np.array([1])), [np.array([True])] * 2
        )
    with pytest.raises(SettingsError, match="not between 0 and 1"):
        auroc_contributions(np.array([1.5]), np.array([1]))
    with pytest.raises(SettingsError, match="not between 0 and 1"):
        brier_contributions(np.array([np.nan]), np.array([1]))
    with pytest.raises(SettingsError, match="range of the outcome"):
        regression_contributions(np.array([1.0]), np.array([1.0]), 3.0, 3.0)
