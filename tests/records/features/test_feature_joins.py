"""Joins give the same whatever the order of the rows, and mean what they say."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.features import Join
from abaton.features.extraction import at_one_moment, category, flag, number
from abaton.fhir.partial_dates import Moment, moment, within

days = st.dates(date(1990, 1, 1), date(2030, 1, 1))
moments = st.none() | days.map(lambda day: Moment(day, day))
numbers = st.floats(-1e6, 1e6, allow_nan=False)
JOINS = [Join.LATEST, Join.EARLIEST, Join.MEAN, Join.MIN, Join.MAX, Join.COUNT, None]


@given(rows=st.lists(st.tuples(moments, numbers), max_size=8), seed=st.randoms(), join=st.sampled_from(JOINS))
def test_numbers_do_not_depend_on_the_order_of_rows(rows, seed, join):
    other = list(rows)
    seed.shuffle(other)
    assert number(other, join) == number(rows, join)


@given(
    rows=st.lists(st.tuples(moments, st.integers(0, 3)), max_size=8),
    seed=st.randoms(),
    join=st.sampled_from([Join.LATEST, Join.EARLIEST, Join.ANY, None]),
)
def test_categories_do_not_depend_on_the_order_of_rows(rows, seed, join):
    other = list(rows)
    seed.shuffle(other)
    assert category(other, join) == category(rows, join)
    assert flag([(then, bool(v)) for then, v in other], join) == flag([(t, bool(v)) for t, v in rows], join)


@given(rows=st.lists(st.tuples(moments, numbers), min_size=1, max_size=8))
def test_joins_are_what_they_are_called(rows):
    values = [value for _, value in rows]
    dated = [(then, value) for then, value in rows if then is not None]
    assert number(rows, Join.MIN) == min(values)
    assert number(rows, Join.MAX) == max(values)
    assert number(rows, Join.COUNT) == len(rows)
    assert number(rows, Join.MEAN) == pytest.approx(sum(values) / len(values), abs=1e-6)
    if dated:
        last = max(then for then, _ in dated)
        assert set(at_one_moment(rows, Join.LATEST)) <= {value for then, value in dated if then == last}
    else:
        assert sorted(at_one_moment(rows, Join.LATEST)) == sorted(values)


def test_of_the_same_moment_the_mean_or_the_most_frequent_is_taken():
    year, earlier = moment("2020"), moment("2019")
    assert number([(year, 1.0), (earlier, 100.0), (year, 2.0)], Join.LATEST) == 1.5
    assert category([(year, 2), (year, 1), (year, 2), (earlier, 0)], Join.LATEST) == {2}
    assert category([(year, 2), (year, 1)], Join.LATEST) == {1}
    assert category([(year, 2), (earlier, 1)], Join.ANY) == {1, 2}


def test_moments_know_how_coarse_they_are():
    assert moment("2020-02-30") is None
    assert moment("2020-13") is None
    assert moment("0000") is None
    assert moment("2020").last == date(2020, 12, 31)
    assert moment("2020-01-01T00:30:00+02:00").first == date(2019, 12, 31)
    assert moment("2020-01-01T10:00:00Z") < moment("2020-01-01T09:30:00-01:00")


@given(index=days, event=days, window=st.integers(1, 900))
def test_whether_an_event_falls_into_a_window(index, event, window):
    apart = (event - index).days
    assert within(Moment(event, event), Moment(index, index), window) is (0 < apart <= window)


def test_coarse_dates_are_not_guessed():
    index = moment("2020-06-01")
    assert within(moment("2020"), index, 30) is None
    assert within(moment("2020-06-20"), moment("2020"), 30) is None
    assert within(moment("2022"), index, 30) is False
    assert within(moment("2020-07"), index, 90) is True
