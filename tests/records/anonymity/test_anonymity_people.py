"""Classes count people: a checker of its own, in plain Python, over what is really shown."""

import json
import math
import random
from collections import Counter, defaultdict

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.anonymity import (
    AnonymitySettings,
    BinHierarchy,
    Closeness,
    Diversity,
    PrefixHierarchy,
    QuasiIdentifier,
    Sensitive,
    encode,
    examine,
)
from abaton.anonymity.equivalence_classes import people_of
from abaton.anonymity.federated_recoding import Choice, Histogram, choose, merge, show, site_histogram
from abaton.anonymity.release import as_is
from abaton.anonymity.risk_metrics import measure
from abaton.anonymity.table_files import recoded_frame
from abaton.disclosure.histograms import affordable, leaving
from abaton.errors import Refused, SettingsError

QUASI = (
    QuasiIdentifier("age", BinHierarchy((5.0, 10.0, 20.0, 40.0))),
    QuasiIdentifier("sex"),
    QuasiIdentifier("zip", PrefixHierarchy((3, 1))),
)
COLUMNS = [quasi.column for quasi in QUASI]


def stays(number=2520, people=1841, seed=7):
    """Stays in hospital: everybody has one, some have more; ages and places change between them."""
    draw = random.Random(seed)
    owners = [*range(people), *(draw.choice(range(people // 3)) for _ in range(number - people))]
    base = {
        who: (draw.randint(0, 95), draw.choice("fm"), f"{draw.choice('12345')}{draw.randint(0, 9999):04d}")
        for who in range(people)
    }
    rows = []
    for who in owners:
        age, sex, place = base[who]
        moved = f"{draw.choice('12345')}{draw.randint(0, 9999):04d}" if draw.random() < 0.1 else place
        ill = draw.choice(["I10", "I10", "I10", "E11", "E11", "J45", "C50"])
        rows.append((f"p{who}", age + draw.randint(0, 3), sex, moved, ill))
    draw.shuffle(rows)
    return rows


def frame(rows):
    schema = {"who": pl.String, "age": pl.Int64, "sex": pl.String, "zip": pl.String, "ill": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def asked(**options):
    return AnonymitySettings(QUASI, subject="who", **options)


def shown_rows(table_frame, table, shown, settings):
    """What is released, with the people behind it: the product's rows, joined to people by their number only."""
    numbered = table_frame.with_row_index("row")
    kept = AnonymitySettings(
        settings.quasi_identifiers,
        sensitive=(Sensitive("ill"),),
        keep=("row",),
        subject="who",
    )
    made = recoded_frame(numbered.lazy(), table, shown, kept).collect()
    whose = numbered["who"].to_list()
    return [(whose[row["row"]], tuple(row[c] for c in COLUMNS), row["ill"]) for row in made.to_dicts()]


# The checker: nothing below imports or calls the product.


def classes_of(rows):
    made = defaultdict(lambda: defaultdict(set))
    for who, names, ill in rows:
        made[names][who].add(ill)
    return made


def stand_for(values_of):
    """Everybody's one value: of theirs, the one that most people of the class have, else the first in order."""
    have = Counter(value for values in values_of.values() for value in values)
    return Counter(min(values, key=lambda v: (-have[v], v)) for values in values_of.values())


def distances(found, whole):
    values = sorted(whole)
    p = [found[v] / sum(found.values()) for v in values]
    q = [whole[v] / sum(whole.values()) for v in values]
    equal = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    running = [abs(sum(p[: i + 1]) - sum(q[: i + 1])) for i in range(len(values))]
    return equal, sum(running) / max(len(values) - 1, 1)


def check(rows, k, *, distinct=1, entropy=1.0, recursive=None, equal=1.0, ordered=1.0, whole=None):
    for values_of in classes_of(rows).values():
        assert len(values_of) >= k
        found = stand_for(values_of)
        total = sum(found.values())
        assert total == len(values_of)
        assert len(found) >= distinct
        shares = [n / total for n in found.values()]
        assert math.exp(-sum(s * math.log(s) for s in shares)) >= entropy - 1e-9
        if recursive is not None:
            c, least = recursive
            ranked = sorted(found.values(), reverse=True)
            assert ranked[0] < c * sum(ranked[least - 1 :])
        if whole is not None:
            far = distances(found, whole)
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
def test_no_class_has_fewer_than_k_people(hospital, method, k):
    table_frame = frame(hospital)
    settings = asked(k=k, method=method)
    made = examine(table_frame, settings)
    rows = shown_rows(table_frame, made.table, made.shown, settings)
    check(rows, k)
    smallest = min(len(people) for people in classes_of(rows).values())
    assert (made.after.k, made.after.records, made.after.people) == (
        smallest,
        len(rows),
        len({who for who, *_ in rows}),
    )
    assert made.after.people + made.after.people_left_out == 1841
    assert made.before.k == min(
        len(who) for who in classes_of([(w, (a, s, z), i) for w, a, s, z, i in hospital]).values()
    )


def test_counted_by_rows_the_same_table_shows_classes_of_fewer_people(hospital):
    """The checker can fail: rows taken for people give classes in which fewer than k people are."""
    table_frame = frame(hospital)
    settings = AnonymitySettings(QUASI, k=5, rows_are_people=True, method="mondrian")
    made = examine(table_frame, settings)
    rows = shown_rows(table_frame, made.table, made.shown, settings)
    assert made.after.k >= 5
    with pytest.raises(AssertionError):
        check(rows, 5)


ILL = [
    ({"diversity": Diversity(2)}, {"distinct": 2}),
    ({"diversity": Diversity(2.2, "entropy")}, {"entropy": 2.2}),
    ({"diversity": Diversity(2, "recursive", 2.0)}, {"recursive": (2.0, 2)}),
    ({"closeness": Closeness(0.25)}, {"equal": 0.25}),
    ({"closeness": Closeness(0.2, "ordered")}, {"ordered": 0.2}),
]


@pytest.mark.parametrize("method", ["recode", "mondrian"])
@pytest.mark.parametrize(("models", "checks"), ILL)
def test_diversity_and_closeness_count_people(hospital, method, models, checks):
    table_frame = frame(hospital)
    settings = asked(k=5, method=method, suppression_limit=0.3, sensitive=(Sensitive("ill", **models),))
    made = examine(table_frame, settings)
    assert made.refusal is None
    check(shown_rows(table_frame, made.table, made.shown, settings), 5, **checks, whole=whole_of(hospital))


def travel(thing):
    return type(thing).from_row(json.loads(json.dumps(thing.row())))


def whole_over(tables):
    """How many people really stand for each value, whatever is told of them."""
    whole = Counter()
    for column in (site_histogram(table).sensitive[0] for table in tables):
        whole.update(dict(zip(column.values, column.whole, strict=True)))
    return whole


# Sites assume the worst of people with several stays, so closeness is asked more mildly.
MILD = [
    ({"closeness": Closeness(0.5)}, {"equal": 0.5}),
    ({"closeness": Closeness(0.5, "ordered")}, {"ordered": 0.5}),
]


@pytest.mark.parametrize(("floor", "base"), [(1, (0, 0, 0)), (1, (2, 0, 2)), (3, None)])
@pytest.mark.parametrize(("models", "checks"), [({}, {}), *ILL[:3], *MILD])
def test_over_several_sites_every_class_has_k_people(hospital, floor, base, models, checks):
    sites = [[row for row in hospital if int(row[0][1:]) % 3 == site] for site in range(3)]
    limit = 0.9 if base else 0.3
    settings = asked(k=5, local_floor=floor, suppression_limit=limit, sensitive=(Sensitive("ill", **models),))
    tables = [encode(frame(rows), settings) for rows in sites]
    bases = [base or affordable(table, settings, floor) for table in tables]
    told = [
        travel(leaving(site_histogram(table, levels), floor))
        for table, levels in zip(tables, bases, strict=True)
    ]
    choice = travel(choose(told, settings))
    local = [
        shown_rows(frame(rows), table, show(table, mine, choice, floor), settings)
        for rows, table, mine in zip(sites, tables, told, strict=True)
    ]
    assert any(local)
    check([row for rows in local for row in rows], 5, **checks, whole=whole_over(tables))
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
    settings = asked(k=k, method=method, suppression_limit=0.6, sensitive=(Sensitive("ill", **models),))
    made = examine(table_frame, settings)
    before = classes_of([(w, (a, s, z), i) for w, a, s, z, i in rows])
    assert made.before.k == min(len(people) for people in before.values())
    assert made.before.sensitive[0].distinct == min(len(stand_for(people)) for people in before.values())
    assert made.before.people == len({row[0] for row in rows})
    if made.shown is not None:
        check(shown_rows(table_frame, made.table, made.shown, settings), k, **checks, whole=whole_of(rows))


@given(
    st.lists(ROWS, min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(1, 2),
    st.sampled_from([None, *range(5)]),
)
def test_small_sites_of_any_kind(sites, k, floor, which):
    models, checks = ({}, {}) if which is None else ILL[which]
    sites = [[(f"{site} {row[0]}", *row[1:]) for row in rows] for site, rows in enumerate(sites)]
    settings = asked(
        k=max(k, floor), local_floor=floor, suppression_limit=1.0, sensitive=(Sensitive("ill", **models),)
    )
    tables = [encode(frame(rows), settings) for rows in sites]
    told = [leaving(site_histogram(table), floor) for table in tables]
    try:
        choice = choose(told, settings)
    except Refused:
        return
    shown = [
        row
        for rows, table, mine in zip(sites, tables, told, strict=True)
        for row in shown_rows(frame(rows), table, show(table, mine, choice, floor), settings)
    ]
    check(shown, settings.k, **checks, whole=whole_over(tables))


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5)), min_size=1, max_size=30))
def test_at_home_everybody_counts_once_and_no_class_is_overstated(pairs):
    made = people_of(*(np.array(part) for part in zip(*pairs, strict=True)), 6)
    assert made.total == len({who for who, _ in pairs})
    kept = np.array([True, True, False, True, True, False])
    home = made.at_home(kept)
    assert home.sum() == len({who for who, place in pairs if kept[place]}) == made.shown(kept)
    key = np.array([0, 0, 1, 1, 2, 2])
    real = made.per_class(key, 3, kept)
    assert (np.bincount(key, home) <= real).all()
    assert real.tolist() == [
        len({who for who, place in pairs if kept[place] and key[place] == c}) for c in range(3)
    ]


def test_what_everybody_has_is_known_of_everybody():
    """Two values in every stay's row look diverse; that all three people have the first one is not."""
    rows = [(who, 30, "f", "10", ill) for who in "abc" for ill in ("x", who)]
    made = examine(frame(rows), asked(k=3, sensitive=(Sensitive("ill", Diversity(2)),)))
    assert made.before.sensitive[0].distinct == 1
    assert made.before.sensitive[0].certain == 1
    assert made.refusal is not None


def test_rows_of_nobody_are_one_person():
    rows = [(who, 30, "f", "10", "x") for who in ("a", " a ", None, "", "?", "b")]
    made = encode(frame(rows), asked(missing=("?",)))
    assert made.people.total == 3
    assert measure(made, as_is(made), asked()).k == 3


def test_it_must_be_said_whose_row_it_is():
    with pytest.raises(SettingsError, match="not said whose record a row is"):
        encode(frame(stays(10, 5)), AnonymitySettings(QUASI))
    with pytest.raises(SettingsError, match="did you mean 'who'"):
        encode(frame(stays(10, 5)), AnonymitySettings(QUASI, subject="whom"))


def test_risks_and_populations_are_those_of_people():
    rows = [("a", 30, "f", "10", "x")] * 8 + [("b", 30, "f", "10", "x")]
    made = examine(frame(rows), asked(k=1, population=20)).before
    assert (made.risk.prosecutor_highest, made.risk.journalist_highest) == (0.5, 0.05)
    assert made.histogram[1] == (2, 1, 2)
    with pytest.raises(SettingsError, match="2 people"):
        examine(frame(rows), asked(k=1, population=1))


def test_a_histogram_that_does_not_add_up_is_refused():
    settings = asked(k=1, sensitive=(Sensitive("ill"),))
    row = site_histogram(encode(frame(stays(20, 10)), settings)).row()
    (told,) = row["sensitive"]
    for spoilt in (
        {"people": row["people"][1:]},
        {"people": [n + 1 for n in row["counts"]]},
        {"cells": [[999] * 3] * len(row["cells"])},
        {"cells": [[0]] * len(row["cells"])},
        {"sensitive": [{**told, "triples": [[999, 0, 1]]}]},
        {"sensitive": [{**told, "triples": [[0, 999, 1]]}]},
        {"sensitive": [{**told, "triples": [[0, 0, -1]]}]},
        {"sensitive": [{**told, "unsure": []}]},
        {"sensitive": [{**told, "whole": [-1] * len(told["whole"])}]},
    ):
        with pytest.raises(SettingsError, match="does not add up"):
            merge([Histogram.from_row(json.loads(json.dumps(row | spoilt)))], settings)
    assert isinstance(choose([Histogram.from_row(row)], settings), Choice)
