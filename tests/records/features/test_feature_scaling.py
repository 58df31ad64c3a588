"""What sites tell of their columns, added up, is what the whole would tell; and few people are never told of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.errors import Refused, SettingsError
from abaton.features import Column, Table, pooled, scaled, statistics

MEASURED = Column("a", "a", measured=True, pooled=True)
SHARE = Column("s=x", "s", pooled=True)
INDICATOR = Column("a missing", "a")


def table(x, *, columns=(MEASURED,), floor=1, y=None, classes=("no", "yes")):
    x = np.array(x, float).reshape(-1, len(columns))
    y = np.zeros(len(x), np.int64) if y is None else np.array(y)
    return Table(tuple(columns), x, y, classes, tuple(f"{i:04}" for i in range(len(x))), floor)


cells = st.floats(-1e4, 1e4, allow_nan=False) | st.just(float("nan"))
sites = st.lists(st.lists(cells, min_size=1, max_size=20), min_size=1, max_size=5)


@given(sites=sites, seed=st.randoms())
def test_pooled_is_what_the_concatenation_gives(sites, seed):
    whole = np.concatenate([np.array(site, float) for site in sites])
    known = whole[~np.isnan(whole)]
    told = [statistics(table(site)) for site in sites]
    made = pooled(told).of["a"]
    assert made.count == len(known)
    if len(known):
        assert made.mean == pytest.approx(known.mean(), rel=1e-9, abs=1e-9)
        if known.std() > 1e-3 * (1 + abs(known.mean())):
            assert made.deviation == pytest.approx(known.std(), rel=1e-6)
    seed.shuffle(told)
    assert pooled(told).of["a"] == made


@given(sites=sites)
def test_scaled_columns_have_mean_0_and_deviation_1_over_the_federation(sites):
    tables = [table(site) for site in sites]
    made = pooled(statistics(each) for each in tables)
    x = np.concatenate([scaled(each, made).x[:, 0] for each in tables]).astype(float)
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
    made = table([value] * 9)
    assert (scaled(made, pooled([statistics(made)])).x == 0).all()


def test_a_column_that_nobody_has_becomes_0():
    made = table([float("nan")] * 9)
    assert (scaled(made, pooled([statistics(made)])).x == 0).all()


def test_few_values_are_not_told():
    many, few = [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0] + [float("nan")] * 5
    assert statistics(table(many, floor=5)).of["a"].count == 5
    assert statistics(table(few, floor=5)).of["a"].count == 0


@pytest.mark.parametrize(
    ("yes", "no", "told"), [(0, 9, True), (9, 0, True), (5, 5, True), (2, 9, False), (9, 2, False)]
)
def test_few_people_in_a_category_are_not_told(yes, no, told):
    made = statistics(table([1.0] * yes + [0.0] * no, columns=(SHARE,), floor=5)).of["s=x"]
    assert (made.count > 0) is told


def test_a_small_table_tells_nothing():
    with pytest.raises(Refused, match="fewer than 5 subjects"):
        statistics(table([1.0, 2.0], floor=5))


def test_indicators_and_constants_are_not_told_at_all():
    made = table([[1.0, 0.0], [float("nan"), 1.0]], columns=(MEASURED, INDICATOR))
    assert list(statistics(made).of) == ["a"]
    assert scaled(made, statistics(made)).x[:, 1].tolist() == [0.0, 1.0]


def test_a_missing_category_gets_the_share_of_the_federation():
    made = table([1.0, 0.0, 0.0, 0.0, float("nan")], columns=(SHARE,))
    assert scaled(made, pooled([statistics(made)])).x[-1, 0] == 0.25


def test_statistics_of_another_study_are_refused():
    a, b = table([1.0]), table([1.0], columns=(SHARE,))
    with pytest.raises(SettingsError, match="different columns"):
        pooled([statistics(a), statistics(b)])
    with pytest.raises(SettingsError, match="do not belong"):
        scaled(a, statistics(b))
    with pytest.raises(SettingsError, match="no statistics"):
        pooled([])


def test_values_to_learn_stay_values():
    made = table([1.0, 2.0], y=[0.5, 1.5], classes=())
    ready = scaled(made, statistics(made))
    assert ready.y.dtype == np.float32
    assert ready.x.dtype == np.float32
    assert len(ready) == 2
    assert repr(ready) == "Scaled(1 columns)"


def test_who_has_withdrawn_is_out_of_the_table():
    made = table([1.0, 2.0, 3.0]).without(frozenset({"0001"}))
    assert made.subjects == ("0000", "0002")
    assert made.x[:, 0].tolist() == [1.0, 3.0]
