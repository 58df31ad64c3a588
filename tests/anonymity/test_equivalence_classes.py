"""Classes count people: a checker of its own, in plain Python, over what is really shown."""

import json
import math
import random
from collections import Counter, defaultdict

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from abaton.anonymity import (
    AnonymitySettings,
    BinHierarchy,
    LDiversity,
    PrefixHierarchy,
    QuasiIdentifier,
    SensitiveAttribute,
    TCloseness,
    encode,
    examine,
)
from abaton.anonymity.equivalence_classes import index_subjects
from abaton.anonymity.federated_recoding import (
    CombinationHistogram,
    RecodingChoice,
    apply_recoding,
    choose_recoding,
    merge,
    site_histogram,
)
from abaton.anonymity.release import release_unchanged
from abaton.anonymity.risk_metrics import compute_metrics
from abaton.anonymity.table_files import recoded_frame
from abaton.disclosure.histograms import releasable_levels, suppress_histogram
from abaton.errors import RefusedError, SettingsError

QUASI = (
    QuasiIdentifier("age", BinHierarchy((5.0, 10.0, 20.0, 40.0))),
    QuasiIdentifier("sex"),
    QuasiIdentifier("zip", PrefixHierarchy((3, 1))),
)
COLUMNS = [quasi.column for quasi in QUASI]


def stays(number=2520, subject_count=1841, seed=7):
    """Stays in hospital: every subject has one, some have more; ages and places change between them."""
    draw = random.Random(seed)
    owners = [
        *range(subject_count),
        *(draw.choice(range(subject_count // 3)) for _ in range(number - subject_count)),
    ]
    base = {
        who: (draw.randint(0, 95), draw.choice("fm"), f"{draw.choice('12345')}{draw.randint(0, 9999):04d}")
        for who in range(subject_count)
    }
    rows = []
    for who in owners:
        age, sex, region = base[who]
        moved = f"{draw.choice('12345')}{draw.randint(0, 9999):04d}" if draw.random() < 0.1 else region
        ill = draw.choice(["I10", "I10", "I10", "E11", "E11", "J45", "C50"])
        rows.append((f"p{who}", age + draw.randint(0, 3), sex, moved, ill))
    draw.shuffle(rows)
    return rows


def frame(rows):
    schema = {"who": pl.String, "age": pl.Int64, "sex": pl.String, "zip": pl.String, "ill": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def settings_with(**options):
    return AnonymitySettings(QUASI, subject="who", **options)


def shown_rows(table_frame, table, shown, settings):
    """What is released, with the people behind it: the product's rows, joined to people by their number only."""
    numbered = table_frame.with_row_index("row")
    row_settings = AnonymitySettings(
        settings.quasi_identifiers,
        sensitive=(SensitiveAttribute("ill"),),
        passthrough_columns=("row",),
        subject="who",
    )
    recoded = recoded_frame(numbered.lazy(), table, shown, row_settings).collect()
    whose = numbered["who"].to_list()
    return [(whose[row["row"]], tuple(row[c] for c in COLUMNS), row["ill"]) for row in recoded.to_dicts()]


# The checker: nothing below imports or calls the product.


def classes_of(rows):
    classes = defaultdict(lambda: defaultdict(set))
    for who, names, ill in rows:
        classes[names][who].add(ill)
    return classes


def stand_for(values_of):
    """Return one value per subject: its most common value in the class, else the first in order."""
    have = Counter(value for values in values_of.values() for value in values)
    return Counter(min(values, key=lambda v: (-have[v], v)) for values in values_of.values())


def distances(tallies, overall):
    values = sorted(overall)
    p = [tallies[v] / sum(tallies.values()) for v in values]
    q = [overall[v] / sum(overall.values()) for v in values]
    equal = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    running = [abs(sum(p[: i + 1]) - sum(q[: i + 1])) for i in range(len(values))]
    return equal, sum(running) / max(len(values) - 1, 1)


def check(rows, k, *, distinct=1, entropy=1.0, recursive=None, equal=1.0, ordered=1.0, overall=None):
    for values_of in classes_of(rows).values():
        assert len(values_of) >= k
        value_counts = stand_for(values_of)
        total = sum(value_counts.values())
        assert total == len(values_of)
        assert len(value_counts) >= distinct
        shares = [n / total for n in value_counts.values()]
        assert math.exp(-sum(s * math.log(s) for s in shares)) >= entropy - 1e-9
        if recursive is not None:
            c, least = recursive
            ranked = sorted(value_counts.values(), reverse=True)
            assert ranked[0] < c * sum(ranked[least - 1 :])
        if overall is not None:
            far = distances(value_counts, overall)
            assert far[0] <= equal + 1e-9
            assert far[1] <= ordered + 1e-9


def whole_of(rows):
    values_of = defaultdict(set)
    for who, *_, ill in rows:
        values_of[who].add(ill)
    stand = stand_for(values_of)
    return {value: stand[value] for value in {row[-1] for row in rows}}


@pytest.fixture(scope="module")
def hospital():
    rows = stays()
    assert (len(rows), len({row[0] for row in rows})) == (2520, 1841)
    return rows


@pytest.mark.parametrize("method", ["recode", "mondrian"])
@pytest.mark.parametrize("k", [2, 5, 11])
def test_no_class_has_fewer_than_k_subjects(hospital, method, k):
    table_frame = frame(hospital)
    settings = settings_with(k=k, method=method)
    examined = examine(table_frame, settings)
    rows = shown_rows(table_frame, examined.table, examined.release, settings)
    check(rows, k)
    smallest = min(len(subjects) for subjects in classes_of(rows).values())
    assert (examined.after.k, examined.after.records, examined.after.subjects) == (
        smallest,
        len(rows),
        len({who for who, *_ in rows}),
    )
    assert examined.after.subjects + examined.after.suppressed_subjects == 1841
    assert examined.before.k == min(
        len(who) for who in classes_of([(w, (a, s, z), i) for w, a, s, z, i in hospital]).values()
    )


def test_counted_by_rows_the_same_table_shows_classes_of_fewer_people(hospital):
    """The checker can fail: rows taken for people give classes in which fewer than k people are."""
    table_frame = frame(hospital)
    settings = AnonymitySettings(QUASI, k=5, one_row_per_subject=True, method="mondrian")
    examined = examine(table_frame, settings)
    rows = shown_rows(table_frame, examined.table, examined.release, settings)
    assert examined.after.k >= 5
    with pytest.raises(AssertionError):
        check(rows, 5)


ILL = [
    ({"diversity": LDiversity(2)}, {"distinct": 2}),
    ({"diversity": LDiversity(2.2, "entropy")}, {"entropy": 2.2}),
    ({"diversity": LDiversity(2, "recursive", 2.0)}, {"recursive": (2.0, 2)}),
    ({"closeness": TCloseness(0.25)}, {"equal": 0.25}),
    ({"closeness": TCloseness(0.2, "ordered")}, {"ordered": 0.2}),
]
RECURSIVE = 2  # index of recursive diversity


@pytest.mark.parametrize("method", ["recode", "mondrian"])
@pytest.mark.parametrize(("models", "checks"), ILL)
def test_diversity_and_closeness_count_people(hospital, method, models, checks):
    table_frame = frame(hospital)
    settings = settings_with(
        k=5, method=method, suppression_limit=0.3, sensitive=(SensitiveAttribute("ill", **models),)
    )
    examined = examine(table_frame, settings)
    assert examined.refusal is None
    check(
        shown_rows(table_frame, examined.table, examined.release, settings),
        5,
        **checks,
        overall=whole_of(hospital),
    )


def travel(thing):
    return type(thing).from_row(json.loads(json.dumps(thing.row())))


def whole_over(tables):
    """Number of subjects per value, independent of the released counts."""
    overall = Counter()
    for column in (site_histogram(table).sensitive[0] for table in tables):
        overall.update(dict(zip(column.values, column.value_totals, strict=True)))
    return overall


# Sites assume the worst of people with several stays, so closeness is asked more mildly.
MILD = [
    ({"closeness": TCloseness(0.5)}, {"equal": 0.5}),
    ({"closeness": TCloseness(0.5, "ordered")}, {"ordered": 0.5}),
]


@pytest.mark.parametrize(("floor", "base"), [(1, (0, 0, 0)), (1, (2, 0, 2)), (3, None)])
@pytest.mark.parametrize(("models", "checks"), [({}, {}), *ILL[:3], *MILD])
def test_over_several_sites_every_class_has_k_people(hospital, floor, base, models, checks):
    sites = [[row for row in hospital if int(row[0][1:]) % 3 == site] for site in range(3)]
    limit = 0.9 if base else 0.3
    settings = settings_with(
        k=5, min_cell_count=floor, suppression_limit=limit, sensitive=(SensitiveAttribute("ill", **models),)
    )
    tables = [encode(frame(rows), settings) for rows in sites]
    bases = [base or releasable_levels(table, settings, floor) for table in tables]
    histograms = [
        travel(suppress_histogram(site_histogram(table, levels), floor))
        for table, levels in zip(tables, bases, strict=True)
    ]
    choice = travel(choose_recoding(histograms, settings))
    local = [
        shown_rows(frame(rows), table, apply_recoding(table, histogram, choice, floor), settings)
        for rows, table, histogram in zip(sites, tables, histograms, strict=True)
    ]
    assert any(local)
    check([row for rows in local for row in rows], 5, **checks, overall=whole_over(tables))
    for rows in local:
        check(rows, floor)


ROWS = st.lists(
    st.tuples(
        st.sampled_from("abcdefgh"),
        st.integers(0, 3),
        st.sampled_from("fm"),
        st.sampled_from(["10", "11", "20"]),
        st.sampled_from("xyz"),
    ),
    min_size=1,
    max_size=30,
)


@given(ROWS, st.integers(1, 4), st.sampled_from(["recode", "mondrian"]), st.sampled_from([None, *range(5)]))
def test_small_tables_of_any_kind(rows, k, method, which):
    models, checks = ({}, {}) if which is None else ILL[which]
    table_frame = frame(rows)
    settings = settings_with(
        k=k, method=method, suppression_limit=0.6, sensitive=(SensitiveAttribute("ill", **models),)
    )
    examined = examine(table_frame, settings)
    before = classes_of([(w, (a, s, z), i) for w, a, s, z, i in rows])
    assert examined.before.k == min(len(subjects) for subjects in before.values())
    assert examined.before.sensitive[0].distinct == min(
        len(stand_for(subjects)) for subjects in before.values()
    )
    assert examined.before.subjects == len({row[0] for row in rows})
    if examined.release is not None:
        check(
            shown_rows(table_frame, examined.table, examined.release, settings),
            k,
            **checks,
            overall=whole_of(rows),
        )


@given(
    st.lists(ROWS, min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(1, 2),
    st.sampled_from([None, *range(5)]),
)
def test_small_sites_of_any_kind(sites, k, min_count, which):
    assume(which != RECURSIVE or not any(has_several_combinations(rows) for rows in sites))
    check_sites(sites, k, min_count, which)


@pytest.mark.xfail(
    strict=True,
    reason="over several sites a subject with rows in several classes counts in one of them only, so recursive "
    "diversity can be missed in the others; a study has one row per subject",
)
def test_recursive_diversity_over_sites_with_several_rows_per_subject():
    row = ("a", 0, "f", "10", "x")
    check_sites([[row], [row, ("a", 0, "f", "11", "x"), ("b", 0, "f", "10", "y")]], 1, 1, RECURSIVE)


def has_several_combinations(rows):
    return len({row[0] for row in rows}) < len({row[:-1] for row in rows})


def check_sites(sites, k, min_count, which):
    models, checks = ({}, {}) if which is None else ILL[which]
    sites = [[(f"{site} {row[0]}", *row[1:]) for row in rows] for site, rows in enumerate(sites)]
    settings = settings_with(
        k=max(k, min_count),
        min_cell_count=min_count,
        suppression_limit=1.0,
        sensitive=(SensitiveAttribute("ill", **models),),
    )
    tables = [encode(frame(rows), settings) for rows in sites]
    histograms = [suppress_histogram(site_histogram(table), min_count) for table in tables]
    try:
        choice = choose_recoding(histograms, settings)
    except RefusedError:
        return
    shown = [
        row
        for rows, table, histogram in zip(sites, tables, histograms, strict=True)
        for row in shown_rows(
            frame(rows), table, apply_recoding(table, histogram, choice, min_count), settings
        )
    ]
    check(shown, settings.k, **checks, overall=whole_over(tables))


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5)), min_size=1, max_size=30))
def test_every_subject_counts_once_at_a_site_and_no_class_is_overstated(pairs):
    index = index_subjects(*(np.array(part) for part in zip(*pairs, strict=True)), 6)
    assert index.total == len({who for who, _ in pairs})
    is_released = np.array([True, True, False, True, True, False])
    home = index.count_once(is_released)
    assert (
        home.sum()
        == len({who for who, class_index in pairs if is_released[class_index]})
        == index.count_released(is_released)
    )
    key = np.array([0, 0, 1, 1, 2, 2])
    real = index.per_class(key, 3, is_released)
    assert (np.bincount(key, home) <= real).all()
    assert real.tolist() == [
        len({who for who, class_index in pairs if is_released[class_index] and key[class_index] == c})
        for c in range(3)
    ]


def test_a_value_shared_by_all_subjects_is_disclosed():
    """Two values in every stay's row look diverse; that all three people have the first one is not."""
    rows = [(who, 30, "f", "10", ill) for who in "abc" for ill in ("x", who)]
    examined = examine(frame(rows), settings_with(k=3, sensitive=(SensitiveAttribute("ill", LDiversity(2)),)))
    assert examined.before.sensitive[0].distinct == 1
    assert examined.before.sensitive[0].max_confidence == 1
    assert examined.refusal is not None


def test_rows_without_a_subject_count_as_one():
    rows = [(who, 30, "f", "10", "x") for who in ("a", " a ", None, "", "?", "b")]
    encoded = encode(frame(rows), settings_with(missing_values=("?",)))
    assert encoded.subjects.total == 3
    assert compute_metrics(encoded, release_unchanged(encoded), settings_with()).k == 3


def test_a_missing_subject_column_is_refused():
    with pytest.raises(SettingsError, match="neither subject nor one_row_per_subject"):
        encode(frame(stays(10, 5)), AnonymitySettings(QUASI))
    with pytest.raises(SettingsError, match="did you mean 'who'"):
        encode(frame(stays(10, 5)), AnonymitySettings(QUASI, subject="whom"))


def test_risks_and_populations_are_those_of_people():
    rows = [("a", 30, "f", "10", "x")] * 8 + [("b", 30, "f", "10", "x")]
    examined = examine(frame(rows), settings_with(k=1, population=20)).before
    assert (examined.risk.prosecutor_highest, examined.risk.journalist_highest) == (0.5, 0.05)
    assert examined.histogram[1] == (2, 1, 2)
    with pytest.raises(SettingsError, match="2 subjects"):
        examine(frame(rows), settings_with(k=1, population=1))


def test_a_histogram_that_does_not_add_up_is_refused():
    settings = settings_with(k=1, sensitive=(SensitiveAttribute("ill"),))
    row = site_histogram(encode(frame(stays(20, 10)), settings)).row()
    (histograms,) = row["sensitive"]
    for spoilt in (
        {"subjects": row["subjects"][1:]},
        {"subjects": [n + 1 for n in row["counts"]]},
        {"cells": [[999] * 3] * len(row["cells"])},
        {"cells": [[0]] * len(row["cells"])},
        {"sensitive": [{**histograms, "triples": [[999, 0, 1]]}]},
        {"sensitive": [{**histograms, "triples": [[0, 999, 1]]}]},
        {"sensitive": [{**histograms, "triples": [[0, 0, -1]]}]},
        {"sensitive": [{**histograms, "unknown_subjects": []}]},
        {"sensitive": [{**histograms, "value_totals": [-1] * len(histograms["value_totals"])}]},
    ):
        with pytest.raises(SettingsError, match="is inconsistent"):
            merge([CombinationHistogram.from_row(json.loads(json.dumps(row | spoilt)))], settings)
    assert isinstance(choose_recoding([CombinationHistogram.from_row(row)], settings), RecodingChoice)
