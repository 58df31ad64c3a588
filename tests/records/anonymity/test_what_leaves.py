"""What leaves a site of its combinations: whoever adds and subtracts all of it finds no group below the floor."""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.errors import Refused
from abaton.anonymity import (
    AnonymitySettings,
    BandHierarchy,
    BinHierarchy,
    Closeness,
    DateHierarchy,
    Diversity,
    PrefixHierarchy,
    QuasiIdentifier,
    Sensitive,
    TableHierarchy,
    encode,
)
from abaton.anonymity.federated_recoding import choose, show, site_histogram
from abaton.disclosure.histograms import affordable, leaving

QUASI = (
    QuasiIdentifier("age", BinHierarchy((5.0, 10.0, 40.0))),
    QuasiIdentifier("job", TableHierarchy((("a", "ab", "*"), ("b", "ab", "*"), ("c", "c", "*")))),
)
ASKED = AnonymitySettings(QUASI, k=5, suppression_limit=0.1, sensitive=(Sensitive("ill"),), subject="who")
ROWS = st.lists(
    st.tuples(st.integers(0, 90), st.integers(20, 59), st.sampled_from("abc"), st.sampled_from("xyz")),
    min_size=1,
    max_size=120,
)
ONE_ROW_EACH = ROWS.map(lambda rows: list({row[0]: row for row in rows}.values()))


def counted(rows, asked=ASKED):
    schema = {"who": pl.Int64, "age": pl.Int64, "job": pl.String, "ill": pl.String}
    return encode(pl.DataFrame(rows, schema=schema, orient="row"), asked)


def told_of(rows, floor, base=None):
    table = counted(rows)
    return leaving(site_histogram(table, base or affordable(table, ASKED, floor)), floor)


def enough(number, floor):
    return number == 0 or number >= floor


@given(rows=ROWS, floor=st.integers(1, 7), level=st.sampled_from([None, (0, 0), (1, 0), (2, 1)]))
def test_no_group_below_the_floor_can_be_worked_out(rows, floor, level):
    told, people = told_of(rows, floor, base=level), len({row[0] for row in rows})
    assert all(number >= floor for number in told.people)
    assert enough(people - sum(told.people), floor) or not told.people, "the rest, if the whole is known"
    assert enough(told.hidden, floor)
    (ill,) = told.sensitive
    within = Counter()
    for cell, _, number in ill.triples:
        assert number >= floor
        within[cell] += number
    for cell, number in enumerate(told.people):
        assert number == within[cell] + ill.unsure[cell]
        assert enough(ill.unsure[cell], floor), "who has another value in a combination"
    for value, number in enumerate(ill.whole):
        inside = sum(each for _, at, each in ill.triples if at == value)
        assert enough(number - inside, floor), "who has the value outside of what is told"
    assert enough(people - sum(ill.whole), floor) or not ill.whole


@given(rows=ROWS, floor=st.integers(1, 7))
def test_a_name_is_told_only_with_its_people_or_by_the_study_itself(rows, floor):
    told = told_of(rows, floor, base=(0, 0))
    ages, jobs = ({names[0] for names, _ in column} for column in told.chains)
    assert ages == {told.names(cell)[0] for cell in told.cells}, "that somebody here is 58 is not told"
    assert jobs == set("abc"), "the study's document lists them"


def test_how_many_values_a_range_holds_is_the_studys_word_and_not_the_sites():
    """Five people of five ages in a range of five: there would be one of each."""
    spread = told_of([(i, 30 + i, "a", "x") for i in range(5)], 5, base=(1, 0))
    alike = told_of([(i, 30, "a", "x") for i in range(5)], 5, base=(1, 0))
    assert spread.row() == alike.row()
    assert spread.chains[0] == ((("30-34", "30-39", "0-39", "*"), 5),)


def test_every_hierarchy_that_lists_no_values_says_how_wide_its_names_are():
    asked = AnonymitySettings(
        (
            QuasiIdentifier("age", BandHierarchy(((30.0, 50.0),))),
            QuasiIdentifier("zip", PrefixHierarchy((3, 1))),
            QuasiIdentifier("day", DateHierarchy(("year",))),
            QuasiIdentifier("sex"),
        ),
        rows_are_people=True,
    )
    frame = pl.DataFrame({"age": [31], "zip": ["10115"], "day": ["2001-02-03"], "sex": ["f"]})
    assert [made.covers for made in encode(frame, asked).ladders] == [
        (1, 2, 4),
        (1, 2, 4, 8),
        (1, 2, 4),
        (1, 2),
    ]


@given(rows=ONE_ROW_EACH, floor=st.integers(1, 6))
def test_the_finest_affordable_levels_leave_out_no_more_than_the_study_allows(rows, floor):
    table = counted(rows)
    base = affordable(table, ASKED, floor)
    told = leaving(site_histogram(table, base), floor)
    if len(rows) >= floor:
        assert table.records - sum(told.counts) <= ASKED.suppression_limit * table.records


def test_where_values_are_sensitive_so_much_is_told_that_a_choice_can_be_made():
    models = Sensitive("ill", Diversity(2), Closeness(0.5))
    asked = AnonymitySettings(QUASI, k=5, suppression_limit=0.1, sensitive=(models,), subject="who")
    rows = [(i, 20 + i % 40, "abc"[i % 3], "xyz"[i % 7 % 3]) for i in range(240)]
    table = counted(rows, asked)
    told = leaving(site_histogram(table, affordable(table, asked, 5)), 5)
    choice = choose([told], asked)
    assert choice.classes
    assert show(table, told, choice, 5).kept.mean() > 0.9
    bare = affordable(table, AnonymitySettings(QUASI, k=5, suppression_limit=0.1, subject="who"), 5)
    assert bare < affordable(table, asked, 5), "who need not tell of values tells more finely"


def test_a_missing_value_is_told_only_with_its_people_and_counts_for_no_listed_one():
    rows = [(i, 31, "ab"[i % 2], "x") for i in range(18)]
    odd = [*rows, (90, 31, None, "x")]
    for base in ((1, 0), (1, 2)):
        with_it, without = told_of(odd, 5, base=base), told_of(rows, 5, base=base)
        assert with_it.chains == without.chains
        assert with_it.cells


def test_where_no_value_may_be_told_nothing_is_shown_to_hold():
    """Of 60 people 3 have a rare value: told beside the others, it would be told of."""
    models = Sensitive("ill", closeness=Closeness(0.3))
    asked = AnonymitySettings(QUASI, k=5, suppression_limit=0.1, sensitive=(models,), subject="who")
    table = counted([(i, 31, "a", "x" if i < 3 else "y") for i in range(60)], asked)
    base = affordable(table, asked, 5)
    assert base == (4, 2)
    with pytest.raises(Refused):
        choose([leaving(site_histogram(table, base), 5)], asked)
