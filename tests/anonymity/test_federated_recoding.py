import json
from collections import Counter
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.anonymity import (
    AnonymitySettings,
    BinHierarchy,
    FileHierarchy,
    LDiversity,
    QuasiIdentifier,
    SensitiveAttribute,
    TableHierarchy,
    TCloseness,
    encode,
)
from abaton.anonymity.federated_recoding import (
    CombinationHistogram,
    RecodingChoice,
    apply_recoding,
    choose_recoding,
    merge,
    site_histogram,
)
from abaton.anonymity.lattice import optimal_node
from abaton.anonymity.risk_metrics import compute_metrics
from abaton.disclosure.histograms import releasable_levels, suppress_histogram
from abaton.errors import RefusedError, SettingsError

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
        if shown.retained[i]:
            tally[tuple(n[p[i]] for n, p in zip(shown.names, shown.indices, strict=True))] += int(
                table.counts[i]
            )
    return tally


@given(SITES, st.integers(1, 5), st.integers(1, 3), st.integers(0, 1), st.sampled_from([None, LDiversity(2)]))
def test_k_holds_over_the_union_and_the_minimum_cell_count_at_every_site(
    sites, k, floor, base_level, diversity
):
    requested = AnonymitySettings(
        QUASI,
        k=max(k, floor),
        min_cell_count=floor,
        suppression_limit=0.8,
        sensitive=(SensitiveAttribute("s", diversity, TCloseness(0.8)),),
        one_row_per_subject=True,
    )
    tables = [encode(frame(rows), requested) for rows in sites]
    base = (base_level, base_level)
    histograms = [travel(suppress_histogram(site_histogram(table, base), floor)) for table in tables]
    try:
        choice = travel(choose_recoding(histograms, requested))
    except RefusedError:
        return
    local = [
        shown_names(t, apply_recoding(t, histogram, choice, floor))
        for t, histogram in zip(tables, histograms, strict=True)
    ]
    union = sum(local, Counter())
    assert all(count >= requested.k for count in union.values())
    assert all(count >= floor for site in local for count in site.values())
    assert set(union) == set(choice.classes)
    assert choice.records - sum(union.values()) == choice.suppressed
    assert choice.suppressed <= 0.8 * choice.records


@given(SITES, st.integers(1, 5))
def test_without_a_minimum_cell_count_the_recoding_is_that_of_the_pooled_table(sites, k):
    requested = AnonymitySettings(
        QUASI,
        k=k,
        suppression_limit=1.0,
        sensitive=(SensitiveAttribute("s", LDiversity(2)),),
        one_row_per_subject=True,
    )
    pooled = optimal_node(encode(frame([row for rows in sites for row in rows]), requested), requested)
    choice = choose_recoding([site_histogram(encode(frame(rows), requested)) for rows in sites], requested)
    assert (choice.node, choice.suppressed) == (pooled.node, pooled.suppressed)
    assert choice.loss == pytest.approx(pooled.loss, abs=1e-12)


def test_rare_combinations_never_leave_the_site():
    requested = AnonymitySettings(
        QUASI, k=3, min_cell_count=3, suppression_limit=0.5, one_row_per_subject=True
    )
    table = encode(frame([(31, "a", "x")] * 4 + [(47, "c", "y")] * 2 + [(11, "b", "y")]), requested)
    shared = suppress_histogram(site_histogram(table, (1, 0)), 3)
    assert (shared.counts, shared.suppressed) == ((4,), 3)
    choice = choose_recoding([shared], requested)
    assert (choice.suppressed, choice.records) == (3, 7)
    assert sum(shown_names(table, apply_recoding(table, shared, choice, 3)).values()) == 4


def test_sites_that_coarsen_differently_are_refused():
    other = (
        QUASI[0],
        QuasiIdentifier("job", TableHierarchy((("a", "a", "*"), ("b", "b", "*"), ("c", "c", "*")))),
    )
    one, two = (
        AnonymitySettings(QUASI, k=1, one_row_per_subject=True),
        AnonymitySettings(other, k=1, one_row_per_subject=True),
    )
    rows = [(1, "a", "x"), (2, "b", "y")]
    histograms = [site_histogram(encode(frame(rows), requested)) for requested in (one, two)]
    with pytest.raises(SettingsError, match="generalise the same value differently"):
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
    requested = AnonymitySettings(quasi, one_row_per_subject=True)
    adult = pl.read_csv(folder / "adult.csv", separator=";", infer_schema=False)
    tables = [encode(adult[i::4], requested, folder=folder) for i in range(4)]
    choice = choose_recoding([travel(site_histogram(table)) for table in tables], requested)
    assert (choice.node, round(choice.loss, 10), choice.suppressed) == ((0, 3, 0, 0, 0), 0.0802157442, 1385)
    floored = AnonymitySettings(quasi, min_cell_count=3, one_row_per_subject=True)
    histograms = [suppress_histogram(site_histogram(t, releasable_levels(t, floored, 3)), 3) for t in tables]
    stricter = choose_recoding(histograms, floored)
    assert stricter.loss > choice.loss
    for table, histogram in zip(tables, histograms, strict=True):
        assert compute_metrics(table, apply_recoding(table, histogram, stricter, 3), floored).k >= 3


@pytest.mark.shared
def test_four_heart_hospitals_lose_less_together(shared):
    quasi = (QuasiIdentifier("age", BinHierarchy((5.0, 10.0))), QuasiIdentifier("sex", SEX))
    requested = AnonymitySettings(quasi, suppression_limit=1.0, one_row_per_subject=True)
    tables = []
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        lines = (shared / f"data/heart/processed.{name}.data").read_text().split()
        rows = [line.split(",")[:2] for line in lines]
        tables.append(encode(pl.DataFrame(rows, schema=["age", "sex"], orient="row"), requested))
    alone = [optimal_node(table, requested).loss for table in tables]
    together = choose_recoding([site_histogram(table) for table in tables], requested)
    assert together.loss < min(alone)
    pooled = merge([site_histogram(table) for table in tables], requested)
    class_sizes = pooled.subjects.per_class(*pooled.classes((0, 0)))
    assert round(100 * (class_sizes == 1).sum() / pooled.records, 1) == 1.5


def test_histograms_are_json_values():
    requested = AnonymitySettings(QUASI, k=1, one_row_per_subject=True)
    histogram = site_histogram(encode(frame([(None, "a", "x")]), requested))
    assert travel(histogram).row() == histogram.row()
    choice = choose_recoding([histogram], requested)
    assert isinstance(travel(choice), RecodingChoice)
    assert travel(choice).classes == choice.classes
    assert isinstance(histogram, CombinationHistogram)
