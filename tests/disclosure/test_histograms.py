"""Released combination histograms: no group below min_cell_count can be derived by adding and subtracting counts."""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.anonymity import (
    AnonymitySettings,
    BandHierarchy,
    BinHierarchy,
    DateHierarchy,
    LDiversity,
    PrefixHierarchy,
    QuasiIdentifier,
    SensitiveAttribute,
    TableHierarchy,
    TCloseness,
    encode,
)
from abaton.anonymity.federated_recoding import apply_recoding, choose_recoding, site_histogram
from abaton.disclosure.histograms import releasable_levels, suppress_histogram
from abaton.errors import RefusedError

QUASI = (
    QuasiIdentifier("age", BinHierarchy((5.0, 10.0, 40.0))),
    QuasiIdentifier("job", TableHierarchy((("a", "ab", "*"), ("b", "ab", "*"), ("c", "c", "*")))),
)
SETTINGS = AnonymitySettings(
    QUASI, k=5, suppression_limit=0.1, sensitive=(SensitiveAttribute("ill"),), subject="who"
)
ROWS = st.lists(
    st.tuples(st.integers(0, 90), st.integers(20, 59), st.sampled_from("abc"), st.sampled_from("xyz")),
    min_size=1,
    max_size=120,
)
ONE_ROW_EACH = ROWS.map(lambda rows: list({row[0]: row for row in rows}.values()))


def encode_rows(rows, settings=SETTINGS):
    schema = {"who": pl.Int64, "age": pl.Int64, "job": pl.String, "ill": pl.String}
    return encode(pl.DataFrame(rows, schema=schema, orient="row"), settings)


def released_histogram(rows, min_cell_count, base=None):
    table = encode_rows(rows)
    return suppress_histogram(
        site_histogram(table, base or releasable_levels(table, SETTINGS, min_cell_count)), min_cell_count
    )


def is_zero_or_large(count, min_cell_count):
    return count == 0 or count >= min_cell_count


@given(rows=ROWS, min_cell_count=st.integers(1, 7), level=st.sampled_from([None, (0, 0), (1, 0), (2, 1)]))
def test_no_group_below_min_cell_count_can_be_derived(rows, min_cell_count, level):
    histogram, total = released_histogram(rows, min_cell_count, base=level), len({row[0] for row in rows})
    assert all(count >= min_cell_count for count in histogram.subjects)
    assert is_zero_or_large(total - sum(histogram.subjects), min_cell_count) or not histogram.subjects, (
        "the suppressed remainder, if the total is known"
    )
    assert is_zero_or_large(histogram.suppressed, min_cell_count)
    (ill,) = histogram.sensitive
    within = Counter()
    for cell, _, count in ill.triples:
        assert count >= min_cell_count
        within[cell] += count
    for cell, count in enumerate(histogram.subjects):
        assert count == within[cell] + ill.unknown_subjects[cell]
        assert is_zero_or_large(ill.unknown_subjects[cell], min_cell_count), (
            "subjects with another value in a combination"
        )
    for value, count in enumerate(ill.value_totals):
        released = sum(subjects for _, index, subjects in ill.triples if index == value)
        assert is_zero_or_large(count - released, min_cell_count), (
            "subjects with the value outside the released combinations"
        )
    assert is_zero_or_large(total - sum(ill.value_totals), min_cell_count) or not ill.value_totals


@given(rows=ROWS, min_cell_count=st.integers(1, 7))
def test_a_label_is_released_only_with_its_subjects_or_if_the_study_lists_it(rows, min_cell_count):
    histogram = released_histogram(rows, min_cell_count, base=(0, 0))
    ages, jobs = ({names[0] for names, _ in column} for column in histogram.chains)
    assert ages == {histogram.names(cell)[0] for cell in histogram.cells}, (
        "that a subject is 58 is not released"
    )
    assert jobs == set("abc"), "the study document lists them"


def test_the_width_of_a_range_depends_on_the_study_and_not_on_the_site():
    """Five subjects of five ages in a range of five would be one subject per age."""
    spread = released_histogram([(i, 30 + i, "a", "x") for i in range(5)], 5, base=(1, 0))
    alike = released_histogram([(i, 30, "a", "x") for i in range(5)], 5, base=(1, 0))
    assert spread.row() == alike.row()
    assert spread.chains[0] == ((("30-34", "30-39", "0-39", "*"), 5),)


def test_hierarchies_without_listed_values_state_the_width_of_their_labels():
    settings = AnonymitySettings(
        (
            QuasiIdentifier("age", BandHierarchy(((30.0, 50.0),))),
            QuasiIdentifier("zip", PrefixHierarchy((3, 1))),
            QuasiIdentifier("day", DateHierarchy(("year",))),
            QuasiIdentifier("sex"),
        ),
        one_row_per_subject=True,
    )
    frame = pl.DataFrame({"age": [31], "zip": ["10115"], "day": ["2001-02-03"], "sex": ["f"]})
    assert [hierarchy.covers for hierarchy in encode(frame, settings).hierarchies] == [
        (1, 2, 4),
        (1, 2, 4, 8),
        (1, 2, 4),
        (1, 2),
    ]


@given(rows=ONE_ROW_EACH, min_cell_count=st.integers(1, 6))
def test_the_finest_releasable_levels_stay_within_the_suppression_limit(rows, min_cell_count):
    table = encode_rows(rows)
    base = releasable_levels(table, SETTINGS, min_cell_count)
    histogram = suppress_histogram(site_histogram(table, base), min_cell_count)
    if len(rows) >= min_cell_count:
        assert table.records - sum(histogram.counts) <= SETTINGS.suppression_limit * table.records


def test_with_sensitive_attributes_the_released_histogram_allows_a_recoding():
    models = SensitiveAttribute("ill", LDiversity(2), TCloseness(0.5))
    settings = AnonymitySettings(QUASI, k=5, suppression_limit=0.1, sensitive=(models,), subject="who")
    rows = [(i, 20 + i % 40, "abc"[i % 3], "xyz"[i % 7 % 3]) for i in range(240)]
    table = encode_rows(rows, settings)
    histogram = suppress_histogram(site_histogram(table, releasable_levels(table, settings, 5)), 5)
    recoding = choose_recoding([histogram], settings)
    assert recoding.classes
    assert apply_recoding(table, histogram, recoding, 5).retained.mean() > 0.9
    bare = releasable_levels(table, AnonymitySettings(QUASI, k=5, suppression_limit=0.1, subject="who"), 5)
    assert bare < releasable_levels(table, settings, 5), "without sensitive attributes the levels are finer"


def test_a_rare_missing_value_does_not_change_the_released_labels():
    rows = [(i, 31, "ab"[i % 2], "x") for i in range(18)]
    odd = [*rows, (90, 31, None, "x")]
    for base in ((1, 0), (1, 2)):
        with_it, without = released_histogram(odd, 5, base=base), released_histogram(rows, 5, base=base)
        assert with_it.chains == without.chains
        assert with_it.cells


def test_without_releasable_values_no_recoding_is_possible():
    """Of 60 subjects 3 have a rare value: releasing the others would disclose it."""
    models = SensitiveAttribute("ill", closeness=TCloseness(0.3))
    settings = AnonymitySettings(QUASI, k=5, suppression_limit=0.1, sensitive=(models,), subject="who")
    table = encode_rows([(i, 31, "a", "x" if i < 3 else "y") for i in range(60)], settings)
    base = releasable_levels(table, settings, 5)
    assert base == (4, 2)
    with pytest.raises(RefusedError):
        choose_recoding([suppress_histogram(site_histogram(table, base), 5)], settings)
