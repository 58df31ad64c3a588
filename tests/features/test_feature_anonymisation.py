"""k-anonymity over the feature tables of several sites."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.anonymity import (
    AnonymitySettings,
    BandHierarchy,
    BinHierarchy,
    QuasiIdentifier,
    TableHierarchy,
)
from abaton.anonymity.federated_recoding import choose_recoding
from abaton.errors import RefusedError, SettingsError
from abaton.features import (
    FeatureColumn,
    FeatureTable,
    anonymise_table,
    column_statistics,
    combination_histogram,
    pool_statistics,
    scale_table,
)
from abaton.features.anonymisation import range_midpoint

COLUMNS = (
    FeatureColumn("age", "age", is_numeric=True, has_statistics=True),
    FeatureColumn("sex=female", "sex", has_statistics=True),
    FeatureColumn("sex=male", "sex", has_statistics=True),
    FeatureColumn("sex=other", "sex", has_statistics=True),
    FeatureColumn("sex missing", "sex"),
)
SETTINGS = AnonymitySettings(
    (QuasiIdentifier("age", BinHierarchy((5.0, 10.0, 50.0))), QuasiIdentifier("sex")),
    k=3,
    suppression_limit=0.3,
)
subjects_strategy = st.tuples(st.integers(20, 89), st.sampled_from("fmo-"))


def table(rows):
    x = np.zeros((len(rows), len(COLUMNS)))
    for i, (age, sex) in enumerate(rows):
        x[i, 0] = age
        x[i, 1:4] = [np.nan] * 3 if sex == "-" else [sex == "f", sex == "m", sex == "o"]
        x[i, 4] = sex == "-"
    subjects = tuple(f"{i:03}" for i in range(len(rows)))
    return FeatureTable(COLUMNS, x, np.arange(len(rows)) % 2, ("no", "yes"), subjects, 1, "ill")


@given(sites=st.lists(st.lists(subjects_strategy, min_size=1, max_size=25), min_size=1, max_size=3))
def test_retained_subjects_are_k_anonymous(sites):
    tables = [table(rows) for rows in sites]
    histograms = [combination_histogram(site_table, SETTINGS) for site_table in tables]
    try:
        recoding = choose_recoding(histograms, SETTINGS)
    except RefusedError:
        return
    anonymised = [
        anonymise_table(site_table, histogram, recoding, SETTINGS)
        for site_table, histogram in zip(tables, histograms, strict=True)
    ]
    rows = Counter(
        tuple(np.nan_to_num(row, nan=-1.0).tolist()) for site_table in anonymised for row in site_table.x
    )
    assert not rows or min(rows.values()) >= SETTINGS.k
    assert sum(rows.values()) == sum(map(len, tables)) - recoding.suppressed
    for before, after in zip(tables, anonymised, strict=True):
        assert set(after.subjects) <= set(before.subjects)
        assert list(after.subjects) == sorted(after.subjects)
    if all(len(site_table) for site_table in anonymised):
        statistics = pool_statistics(column_statistics(site_table) for site_table in anonymised)
        assert all(np.isfinite(scale_table(site_table, statistics).x).all() for site_table in anonymised)


def test_numbers_become_the_midpoint_of_their_range():
    features = table([(41, "m"), (42, "m"), (43, "m"), (57, "f"), (58, "f"), (56, "f")])
    histogram = combination_histogram(features, SETTINGS)
    shown = anonymise_table(features, histogram, choose_recoding([histogram], SETTINGS), SETTINGS)
    assert shown.x[:, 0].tolist() == [42.5] * 3 + [57.5] * 3
    assert shown.x[:, 1].tolist() == [0, 0, 0, 1, 1, 1]


def test_combinations_below_the_minimum_cell_count_are_suppressed():
    floor = replace(SETTINGS, min_cell_count=3)
    assert combination_histogram(table([(41, "m")]), floor).counts == ()
    assert combination_histogram(table([(41, "m")] * 3), floor).counts == (3,)


def test_rows_of_one_subject_count_once():
    features = table([(41, "m")] * 3 + [(42, "m")] * 2)
    features = replace(features, subjects=("a", "a", "a", "b", "c"))
    histogram = combination_histogram(features, SETTINGS)
    assert (histogram.counts, histogram.subjects) == ((3, 2), (1, 2))
    assert choose_recoding([histogram], SETTINGS).node[0] > 0
    assert combination_histogram(replace(features, min_cell_count=2), SETTINGS).base[0] > 0
    assert combination_histogram(features, replace(SETTINGS, subject="patient")).row() == histogram.row()
    assert (
        combination_histogram(features, replace(SETTINGS, one_row_per_subject=True)).row() == histogram.row()
    )


def test_label_may_be_sensitive_and_unknown_columns_are_refused():
    features = table([(41, "m")] * 4)
    assert combination_histogram(features, AnonymitySettings((QuasiIdentifier("ill"),), k=2)).counts == (2, 2)
    with pytest.raises(SettingsError, match="neither an input nor the label"):
        combination_histogram(features, AnonymitySettings((QuasiIdentifier("zip"),), k=2))


@pytest.mark.parametrize(
    ("label", "number"), [("-10--1", -5), ("<18", 18), ("20-24", 22.5), ("[1.5, 2.5)", 2)]
)
def test_range_midpoints(label, number):
    assert range_midpoint(label) == number


def test_bands_work_too():
    settings = AnonymitySettings((QuasiIdentifier("age", BandHierarchy(((40.0, 60.0),))),), k=3)
    features = table([(41, "m"), (42, "m"), (43, "m"), (70, "f"), (80, "f"), (90, "f")])
    histogram = combination_histogram(features, settings)
    shown = anonymise_table(features, histogram, choose_recoding([histogram], settings), settings)
    assert shown.x[:, 0].tolist() == [50.0] * 3 + [60.0] * 3


def test_category_with_generalisation_yes_or_no_is_recoded():
    """Generalised categories named yes or no must be recoded like any other."""
    hierarchy = TableHierarchy((("f", "no", "*"), ("m", "yes", "*"), ("o", "yes", "*")))
    renamed = tuple(
        replace(column, name=column.name.replace("female", "f").replace("male", "m").replace("other", "o"))
        for column in COLUMNS
    )
    features = replace(
        table([(41, "f")] * 9 + [(41, "m")] * 8 + [(41, "o")]), columns=renamed, min_cell_count=5
    )
    settings = AnonymitySettings((QuasiIdentifier("sex", hierarchy),), k=5)
    histogram = combination_histogram(features, settings)
    assert histogram.base == (1,)
    shown = anonymise_table(features, histogram, choose_recoding([histogram], settings), settings)
    assert np.isnan(shown.x[:, 1:4]).all()


def test_label_as_quasi_identifier_is_refused_if_generalised():
    features = replace(table([(41, "m")] * 12), y=np.array([1] + [0] * 11), min_cell_count=5)
    settings = AnonymitySettings((QuasiIdentifier("age", BinHierarchy((10.0,))), QuasiIdentifier("ill")), k=5)
    histogram = combination_histogram(features, settings)
    with pytest.raises(RefusedError, match="list it under sensitive"):
        anonymise_table(features, histogram, choose_recoding([histogram], settings), settings)
