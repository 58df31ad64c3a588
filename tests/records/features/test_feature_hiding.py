"""Anonymity over the tables of several sites: everybody who is left shares their ranges with k - 1 others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.errors import Refused, SettingsError
from abaton.anonymity import (
    AnonymitySettings,
    BandHierarchy,
    BinHierarchy,
    QuasiIdentifier,
    TableHierarchy,
)
from abaton.anonymity.federated_recoding import choose
from abaton.features import Column, Table, hidden, histogram, pooled, scaled, statistics
from abaton.features.anonymisation import middle

COLUMNS = (
    Column("age", "age", measured=True, pooled=True),
    Column("sex=female", "sex", pooled=True),
    Column("sex=male", "sex", pooled=True),
    Column("sex=other", "sex", pooled=True),
    Column("sex missing", "sex"),
)
ASKED = AnonymitySettings(
    (QuasiIdentifier("age", BinHierarchy((5.0, 10.0, 50.0))), QuasiIdentifier("sex")),
    k=3,
    suppression_limit=0.3,
)
people = st.tuples(st.integers(20, 89), st.sampled_from("fmo-"))


def table(rows):
    x = np.zeros((len(rows), len(COLUMNS)))
    for i, (age, sex) in enumerate(rows):
        x[i, 0] = age
        x[i, 1:4] = [np.nan] * 3 if sex == "-" else [sex == "f", sex == "m", sex == "o"]
        x[i, 4] = sex == "-"
    subjects = tuple(f"{i:03}" for i in range(len(rows)))
    return Table(COLUMNS, x, np.arange(len(rows)) % 2, ("no", "yes"), subjects, 1, "ill")


@given(sites=st.lists(st.lists(people, min_size=1, max_size=25), min_size=1, max_size=3))
def test_everybody_who_is_left_hides_among_k(sites):
    tables = [table(rows) for rows in sites]
    told = [histogram(each, ASKED) for each in tables]
    try:
        choice = choose(told, ASKED)
    except Refused:
        return
    shown = [hidden(each, mine, choice, ASKED) for each, mine in zip(tables, told, strict=True)]
    rows = Counter(tuple(np.nan_to_num(row, nan=-1.0).tolist()) for each in shown for row in each.x)
    assert not rows or min(rows.values()) >= ASKED.k
    assert sum(rows.values()) == sum(map(len, tables)) - choice.suppressed
    for before, after in zip(tables, shown, strict=True):
        assert set(after.subjects) <= set(before.subjects)
        assert list(after.subjects) == sorted(after.subjects)
    if all(len(each) for each in shown):
        whole = pooled(statistics(each) for each in shown)
        assert all(np.isfinite(scaled(each, whole).x).all() for each in shown)


def test_numbers_become_the_middle_of_their_range():
    made = table([(41, "m"), (42, "m"), (43, "m"), (57, "f"), (58, "f"), (56, "f")])
    told = histogram(made, ASKED)
    shown = hidden(made, told, choose([told], ASKED), ASKED)
    assert shown.x[:, 0].tolist() == [42.5] * 3 + [57.5] * 3
    assert shown.x[:, 1].tolist() == [0, 0, 0, 1, 1, 1]


def test_what_a_site_has_too_few_of_is_not_told():
    floor = replace(ASKED, local_floor=3)
    assert histogram(table([(41, "m")]), floor).counts == ()
    assert histogram(table([(41, "m")] * 3), floor).counts == (3,)


def test_rows_of_one_subject_are_one_person():
    made = table([(41, "m")] * 3 + [(42, "m")] * 2)
    made = replace(made, subjects=("a", "a", "a", "b", "c"))
    told = histogram(made, ASKED)
    assert (told.counts, told.people) == ((3, 2), (1, 2))
    assert choose([told], ASKED).node[0] > 0
    assert histogram(replace(made, floor=2), ASKED).base[0] > 0
    assert histogram(made, replace(ASKED, subject="patient")).row() == told.row()
    assert histogram(made, replace(ASKED, rows_are_people=True)).row() == told.row()


def test_the_label_may_be_asked_about_and_other_names_are_refused():
    made = table([(41, "m")] * 4)
    assert histogram(made, AnonymitySettings((QuasiIdentifier("ill"),), k=2)).counts == (2, 2)
    with pytest.raises(SettingsError, match="neither an input nor the label"):
        histogram(made, AnonymitySettings((QuasiIdentifier("zip"),), k=2))


@pytest.mark.parametrize(
    ("label", "number"), [("-10--1", -5), ("<18", 18), ("20-24", 22.5), ("[1.5, 2.5)", 2)]
)
def test_ranges_as_numbers(label, number):
    assert middle(label) == number


def test_bands_work_too():
    asked = AnonymitySettings((QuasiIdentifier("age", BandHierarchy(((40.0, 60.0),))),), k=3)
    made = table([(41, "m"), (42, "m"), (43, "m"), (70, "f"), (80, "f"), (90, "f")])
    told = histogram(made, asked)
    shown = hidden(made, told, choose([told], asked), asked)
    assert shown.x[:, 0].tolist() == [50.0] * 3 + [60.0] * 3


def test_a_category_whose_coarser_name_is_yes_or_no_is_coarsened_all_the_same():
    """Former and current smokers told together were trained on apart."""
    words = TableHierarchy((("f", "no", "*"), ("m", "yes", "*"), ("o", "yes", "*")))
    renamed = tuple(
        replace(each, name=each.name.replace("female", "f").replace("male", "m").replace("other", "o"))
        for each in COLUMNS
    )
    made = replace(table([(41, "f")] * 9 + [(41, "m")] * 8 + [(41, "o")]), columns=renamed, floor=5)
    asked = AnonymitySettings((QuasiIdentifier("sex", words),), k=5)
    told = histogram(made, asked)
    assert told.base == (1,)
    shown = hidden(made, told, choose([told], asked), asked)
    assert np.isnan(shown.x[:, 1:4]).all()


def test_what_is_learned_cannot_be_coarsened_and_is_no_quasi_identifier_then():
    made = replace(table([(41, "m")] * 12), y=np.array([1] + [0] * 11), floor=5)
    asked = AnonymitySettings((QuasiIdentifier("age", BinHierarchy((10.0,))), QuasiIdentifier("ill")), k=5)
    told = histogram(made, asked)
    with pytest.raises(Refused, match="name it under sensitive"):
        hidden(made, told, choose([told], asked), asked)
