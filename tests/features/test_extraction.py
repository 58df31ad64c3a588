"""Aggregation of rows and partial dates."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.features import Aggregation
from abaton.features.extraction import (
    aggregate_category,
    aggregate_flag,
    aggregate_number,
    at_first_or_last_date,
)
from abaton.fhir.partial_dates import PartialDate, parse_partial_date

days = st.dates(date(1990, 1, 1), date(2030, 1, 1))
partial_dates = st.none() | days.map(lambda day: PartialDate(day, day))
numbers = st.floats(-1e6, 1e6, allow_nan=False)
AGGREGATIONS = [
    Aggregation.LATEST,
    Aggregation.EARLIEST,
    Aggregation.MEAN,
    Aggregation.MIN,
    Aggregation.MAX,
    Aggregation.COUNT,
    None,
]


@given(
    rows=st.lists(st.tuples(partial_dates, numbers), max_size=8),
    seed=st.randoms(),
    aggregation=st.sampled_from(AGGREGATIONS),
)
def test_numbers_do_not_depend_on_the_order_of_rows(rows, seed, aggregation):
    other = list(rows)
    seed.shuffle(other)
    assert aggregate_number(other, aggregation) == aggregate_number(rows, aggregation)


@given(
    rows=st.lists(st.tuples(partial_dates, st.integers(0, 3)), max_size=8),
    seed=st.randoms(),
    aggregation=st.sampled_from([Aggregation.LATEST, Aggregation.EARLIEST, Aggregation.ANY, None]),
)
def test_categories_do_not_depend_on_the_order_of_rows(rows, seed, aggregation):
    other = list(rows)
    seed.shuffle(other)
    assert aggregate_category(other, aggregation) == aggregate_category(rows, aggregation)
    assert aggregate_flag([(t, bool(v)) for t, v in other], aggregation) == aggregate_flag(
        [(t, bool(v)) for t, v in rows], aggregation
    )


@given(rows=st.lists(st.tuples(partial_dates, numbers), min_size=1, max_size=8))
def test_aggregations(rows):
    values = [value for _, value in rows]
    dated = [(then, value) for then, value in rows if then is not None]
    assert aggregate_number(rows, Aggregation.MIN) == min(values)
    assert aggregate_number(rows, Aggregation.MAX) == max(values)
    assert aggregate_number(rows, Aggregation.COUNT) == len(rows)
    assert aggregate_number(rows, Aggregation.MEAN) == pytest.approx(sum(values) / len(values), abs=1e-6)
    if dated:
        last = max(then for then, _ in dated)
        assert set(at_first_or_last_date(rows, Aggregation.LATEST)) <= {
            value for then, value in dated if then == last
        }
    else:
        assert sorted(at_first_or_last_date(rows, Aggregation.LATEST)) == sorted(values)


def test_rows_of_the_same_date_are_combined_by_mean_or_mode():
    year, earlier = parse_partial_date("2020"), parse_partial_date("2019")
    assert aggregate_number([(year, 1.0), (earlier, 100.0), (year, 2.0)], Aggregation.LATEST) == 1.5
    assert aggregate_category([(year, 2), (year, 1), (year, 2), (earlier, 0)], Aggregation.LATEST) == {2}
    assert aggregate_category([(year, 2), (year, 1)], Aggregation.LATEST) == {1}
    assert aggregate_category([(year, 2), (earlier, 1)], Aggregation.ANY) == {1, 2}


def test_partial_dates_have_bounds():
    assert parse_partial_date("2020-02-30") is None
    assert parse_partial_date("2020-13") is None
    assert parse_partial_date("0000") is None
    assert parse_partial_date("2020").last == date(2020, 12, 31)
    assert parse_partial_date("2020-01-01T00:30:00+02:00").first == date(2019, 12, 31)
    assert parse_partial_date("2020-01-01T10:00:00Z") < parse_partial_date("2020-01-01T09:30:00-01:00")


@given(index=days, event=days, window=st.integers(1, 900))
def test_events_in_an_outcome_window(index, event, window):
    apart = (event - index).days
    assert PartialDate(event, event).is_in_window(PartialDate(index, index), window) is (0 < apart <= window)


def test_coarse_dates_are_not_guessed():
    index = parse_partial_date("2020-06-01")
    assert parse_partial_date("2020").is_in_window(index, 30) is None
    assert parse_partial_date("2020-06-20").is_in_window(parse_partial_date("2020"), 30) is None
    assert parse_partial_date("2022").is_in_window(index, 30) is False
    assert parse_partial_date("2020-07").is_in_window(index, 90) is True
