"""Pooled column statistics equal those of all rows, and small counts are suppressed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.errors import RefusedError, SettingsError
from abaton.features import FeatureColumn, FeatureTable, column_statistics, pool_statistics, scale_table

MEASURED = FeatureColumn("a", "a", is_numeric=True, has_statistics=True)
SHARE = FeatureColumn("s=x", "s", has_statistics=True)
INDICATOR = FeatureColumn("a missing", "a")


def table(x, *, columns=(MEASURED,), min_cell_count=1, y=None, classes=("no", "yes")):
    x = np.array(x, float).reshape(-1, len(columns))
    y = np.zeros(len(x), np.int64) if y is None else np.array(y)
    return FeatureTable(
        tuple(columns), x, y, classes, tuple(f"{i:04}" for i in range(len(x))), min_cell_count
    )


cells = st.floats(-1e4, 1e4, allow_nan=False) | st.just(float("nan"))
sites = st.lists(st.lists(cells, min_size=1, max_size=20), min_size=1, max_size=5)


@given(sites=sites, seed=st.randoms())
def test_pooled_statistics_equal_those_of_the_concatenation(sites, seed):
    concatenated = np.concatenate([np.array(site, float) for site in sites])
    known = concatenated[~np.isnan(concatenated)]
    released = [column_statistics(table(site)) for site in sites]
    pooled = pool_statistics(released).columns["a"]
    assert pooled.count == len(known)
    if len(known):
        assert pooled.mean == pytest.approx(known.mean(), rel=1e-9, abs=1e-9)
        if known.std() > 1e-3 * (1 + abs(known.mean())):
            assert pooled.std == pytest.approx(known.std(), rel=1e-6)
    seed.shuffle(released)
    assert pool_statistics(released).columns["a"] == pooled


@given(sites=sites)
def test_scaled_columns_have_mean_0_and_std_1_over_the_federation(sites):
    tables = [table(site) for site in sites]
    pooled = pool_statistics(column_statistics(site_table) for site_table in tables)
    x = np.concatenate([scale_table(site_table, pooled).x[:, 0] for site_table in tables]).astype(float)
    assert np.isfinite(x).all()
    known = np.concatenate([np.array(site, float) for site in sites])
    known = known[~np.isnan(known)]
    if len(known) and known.std() > 1e-3 * (1 + abs(known.mean())):
        there = ~np.isnan(np.concatenate([np.array(site, float) for site in sites]))
        assert x[there].mean() == pytest.approx(0, abs=1e-4)
        assert x[there].std() == pytest.approx(1, abs=1e-4)
        assert (x[~there] == 0).all()


@pytest.mark.parametrize("value", [0.0, 7.0, 1e9, -3.3])
def test_a_constant_column_becomes_0(value):
    constant = table([value] * 9)
    assert (scale_table(constant, pool_statistics([column_statistics(constant)])).x == 0).all()


def test_column_without_values_becomes_0():
    empty = table([float("nan")] * 9)
    assert (scale_table(empty, pool_statistics([column_statistics(empty)])).x == 0).all()


def test_few_values_are_suppressed():
    many, sparse = [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0] + [float("nan")] * 5
    assert column_statistics(table(many, min_cell_count=5)).columns["a"].count == 5
    assert column_statistics(table(sparse, min_cell_count=5)).columns["a"].count == 0


@pytest.mark.parametrize(
    ("ones", "zeros", "is_released"), [(0, 9, True), (9, 0, True), (5, 5, True), (2, 9, False), (9, 2, False)]
)
def test_rare_categories_are_suppressed(ones, zeros, is_released):
    column_moments = column_statistics(
        table([1.0] * ones + [0.0] * zeros, columns=(SHARE,), min_cell_count=5)
    ).columns["s=x"]
    assert (column_moments.count > 0) is is_released


def test_small_table_releases_nothing():
    with pytest.raises(RefusedError, match="fewer than 5 subjects"):
        column_statistics(table([1.0, 2.0], min_cell_count=5))


def test_indicators_and_constants_are_not_released():
    features = table([[1.0, 0.0], [float("nan"), 1.0]], columns=(MEASURED, INDICATOR))
    assert list(column_statistics(features).columns) == ["a"]
    assert scale_table(features, column_statistics(features)).x[:, 1].tolist() == [0.0, 1.0]


def test_missing_category_gets_the_mean_of_the_federation():
    features = table([1.0, 0.0, 0.0, 0.0, float("nan")], columns=(SHARE,))
    assert scale_table(features, pool_statistics([column_statistics(features)])).x[-1, 0] == 0.25


def test_statistics_of_another_study_are_refused():
    a, b = table([1.0]), table([1.0], columns=(SHARE,))
    with pytest.raises(SettingsError, match="different columns"):
        pool_statistics([column_statistics(a), column_statistics(b)])
    with pytest.raises(SettingsError, match="different columns"):
        scale_table(a, column_statistics(b))
    with pytest.raises(SettingsError, match="no site has statistics"):
        pool_statistics([])


def test_regression_labels_are_unchanged():
    features = table([1.0, 2.0], y=[0.5, 1.5], classes=())
    ready = scale_table(features, column_statistics(features))
    assert ready.y.dtype == np.float32
    assert ready.x.dtype == np.float32
    assert len(ready) == 2
    assert repr(ready) == "ScaledTable(1 columns)"


def test_withdrawn_subjects_are_removed_from_the_table():
    features = table([1.0, 2.0, 3.0]).without(frozenset({"0001"}))
    assert features.subjects == ("0000", "0002")
    assert features.x[:, 0].tolist() == [1.0, 3.0]
