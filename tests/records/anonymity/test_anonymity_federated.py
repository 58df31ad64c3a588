import json
from collections import Counter
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.errors import Refused, SettingsError
from abaton.anonymity import (
    AnonymitySettings,
    BinHierarchy,
    Closeness,
    Diversity,
    FileHierarchy,
    QuasiIdentifier,
    Sensitive,
    TableHierarchy,
    encode,
)
from abaton.anonymity.federated_recoding import Choice, Histogram, choose, merge, show, site_histogram
from abaton.anonymity.lattice import optimum
from abaton.disclosure.histograms import affordable, leaving
from abaton.anonymity.risk_metrics import measure

QUASI = (
    QuasiIdentifier("age", BinHierarchy((10.0, 20.0))),
    QuasiIdentifier("job", TableHierarchy((("a", "ab", "*"), ("b", "ab", "*"), ("c", "c", "*")))),
)
SEX = TableHierarchy((("0", "*"), ("1", "*")))
ROW = st.tuples(st.one_of(st.none(), st.integers(0, 50)), st.sampled_from("abc"), st.sampled_from("xyz"))
SITES = st.lists(st.lists(ROW, min_size=1, max_size=25), min_size=1, max_size=4)


def frame(rows):
    return pl.DataFrame(rows, schema={"age": pl.Int64, "job": pl.String, "s": pl.String}, orient="row")


def travel(thing):
    """As it arrives on the other side."""
    return type(thing).from_row(json.loads(json.dumps(thing.row())))


def shown_names(table, shown):
    """The names and the number of records of every combination a site shows."""
    tally = Counter()
    for i in range(len(table.counts)):
        if shown.kept[i]:
            tally[tuple(n[p[i]] for n, p in zip(shown.names, shown.places, strict=True))] += int(
                table.counts[i]
            )
    return tally


@given(SITES, st.integers(1, 5), st.integers(1, 3), st.integers(0, 1), st.sampled_from([None, Diversity(2)]))
def test_k_holds_over_the_union_and_the_floor_at_every_site(sites, k, floor, base_level, diversity):
    asked = AnonymitySettings(
        QUASI,
        k=max(k, floor),
        local_floor=floor,
        suppression_limit=0.8,
        sensitive=(Sensitive("s", diversity, Closeness(0.8)),),
        rows_are_people=True,
    )
    tables = [encode(frame(rows), asked) for rows in sites]
    base = (base_level, base_level)
    told = [travel(leaving(site_histogram(table, base), floor)) for table in tables]
    try:
        choice = travel(choose(told, asked))
    except Refused:
        return
    local = [shown_names(t, show(t, mine, choice, floor)) for t, mine in zip(tables, told, strict=True)]
    union = sum(local, Counter())
    assert all(count >= asked.k for count in union.values())
    assert all(count >= floor for site in local for count in site.values())
    assert set(union) == set(choice.classes)
    assert choice.records - sum(union.values()) == choice.suppressed
    assert choice.suppressed <= 0.8 * choice.records


@given(SITES, st.integers(1, 5))
def test_without_a_floor_the_choice_is_that_of_the_pooled_table(sites, k):
    asked = AnonymitySettings(
        QUASI, k=k, suppression_limit=1.0, sensitive=(Sensitive("s", Diversity(2)),), rows_are_people=True
    )
    pooled = optimum(encode(frame([row for rows in sites for row in rows]), asked), asked)
    choice = choose([site_histogram(encode(frame(rows), asked)) for rows in sites], asked)
    assert (choice.node, choice.suppressed) == (pooled.node, pooled.suppressed)
    assert choice.loss == pytest.approx(pooled.loss, abs=1e-12)


def test_rare_combinations_never_leave_the_site():
    asked = AnonymitySettings(QUASI, k=3, local_floor=3, suppression_limit=0.5, rows_are_people=True)
    table = encode(frame([(31, "a", "x")] * 4 + [(47, "c", "y")] * 2 + [(11, "b", "y")]), asked)
    shared = leaving(site_histogram(table, (1, 0)), 3)
    assert (shared.counts, shared.hidden) == ((4,), 3)
    choice = choose([shared], asked)
    assert (choice.suppressed, choice.records) == (3, 7)
    assert sum(shown_names(table, show(table, shared, choice, 3)).values()) == 4


def test_sites_that_coarsen_differently_are_refused():
    other = (
        QUASI[0],
        QuasiIdentifier("job", TableHierarchy((("a", "a", "*"), ("b", "b", "*"), ("c", "c", "*")))),
    )
    one, two = (
        AnonymitySettings(QUASI, k=1, rows_are_people=True),
        AnonymitySettings(other, k=1, rows_are_people=True),
    )
    rows = [(1, "a", "x"), (2, "b", "y")]
    histograms = [site_histogram(encode(frame(rows), asked)) for asked in (one, two)]
    with pytest.raises(SettingsError, match="coarsen the same value differently"):
        merge(histograms, one)
    with pytest.raises(SettingsError, match="different levels"):
        merge([histograms[0], replace(histograms[0], base=(1, 1))], one)
    with pytest.raises(SettingsError, match="no site"):
        merge([], one)


@pytest.mark.shared
def test_four_sites_of_adult_find_the_pooled_optimum(shared):
    folder = shared / "data/fhir/kanon"
    columns = ("sex", "age", "race", "marital-status", "education")
    quasi = tuple(QuasiIdentifier(c, FileHierarchy(f"adult_hierarchy_{c}.csv")) for c in columns)
    asked = AnonymitySettings(quasi, rows_are_people=True)
    adult = pl.read_csv(folder / "adult.csv", separator=";", infer_schema=False)
    tables = [encode(adult[i::4], asked, folder=folder) for i in range(4)]
    choice = choose([travel(site_histogram(table)) for table in tables], asked)
    assert (choice.node, round(choice.loss, 10), choice.suppressed) == ((0, 3, 0, 0, 0), 0.0802157442, 1385)
    floored = AnonymitySettings(quasi, local_floor=3, rows_are_people=True)
    told = [leaving(site_histogram(t, affordable(t, floored, 3)), 3) for t in tables]
    stricter = choose(told, floored)
    assert stricter.loss > choice.loss
    for table, mine in zip(tables, told, strict=True):
        assert measure(table, show(table, mine, stricter, 3), floored).k >= 3


@pytest.mark.shared
def test_four_heart_hospitals_hide_better_together(shared):
    quasi = (QuasiIdentifier("age", BinHierarchy((5.0, 10.0))), QuasiIdentifier("sex", SEX))
    asked = AnonymitySettings(quasi, suppression_limit=1.0, rows_are_people=True)
    tables = []
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        lines = (shared / f"data/heart/processed.{name}.data").read_text().split()
        rows = [line.split(",")[:2] for line in lines]
        tables.append(encode(pl.DataFrame(rows, schema=["age", "sex"], orient="row"), asked))
    alone = [optimum(table, asked).loss for table in tables]
    together = choose([site_histogram(table) for table in tables], asked)
    assert together.loss < min(alone)
    pooled = merge([site_histogram(table) for table in tables], asked)
    people = pooled.people.per_class(*pooled.classes((0, 0)))
    assert round(100 * (people == 1).sum() / pooled.records, 1) == 1.5


def test_what_travels_is_plain():
    asked = AnonymitySettings(QUASI, k=1, rows_are_people=True)
    made = site_histogram(encode(frame([(None, "a", "x")]), asked))
    assert travel(made).row() == made.row()
    choice = choose([made], asked)
    assert isinstance(travel(choice), Choice)
    assert travel(choice).classes == choice.classes
    assert isinstance(made, Histogram)
