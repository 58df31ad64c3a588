import itertools
import math
from collections import Counter

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.errors import Refused
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
    examine,
)
from abaton.anonymity.lattice import optimum
from abaton.anonymity.risk_metrics import measure
from abaton.anonymity.release import recoded, satisfied

SHADES = {
    "colour": [("red", "warm", "*"), ("orange", "warm", "*"), ("blue", "cold", "*"), ("green", "cold", "*")],
    "size": [("s", "small", "*"), ("m", "small", "*"), ("l", "large", "*")],
    "shape": [("round", "*"), ("square", "*")],
}
ROWS = st.lists(
    st.tuples(
        *(st.sampled_from([row[0] for row in rows]) for rows in SHADES.values()), st.sampled_from("xyz")
    ),
    min_size=1,
    max_size=30,
)


def settings(weights=(1, 1, 1), **options):
    quasi = tuple(
        QuasiIdentifier(name, TableHierarchy(tuple(rows)), weight)
        for (name, rows), weight in zip(SHADES.items(), weights, strict=True)
    )
    return AnonymitySettings(quasi, rows_are_people=True, **options)


def plain_optimum(rows, asked):
    """Every node, counted record by record."""
    best = None
    whole = Counter(row[3] for row in rows)
    weights = [quasi.weight for quasi in asked.quasi_identifiers]
    for node in itertools.product(*(range(len(h[0])) for h in SHADES.values())):
        names = [
            tuple(next(c for c in h if c[0] == row[i])[node[i]] for i, h in enumerate(SHADES.values()))
            for row in rows
        ]
        left_out = {n for n in set(names) if not plain_safe(names, rows, n, whole, asked)}
        suppressed = sum(name in left_out for name in names)
        if suppressed > math.floor(asked.suppression_limit * len(rows)):
            continue
        loss = 1.0
        for i, hierarchy in enumerate(SHADES.values()):
            covers = Counter(chain[node[i]] for chain in hierarchy)
            raw = sum(1 if name in left_out else covers[name[i]] / len(hierarchy) for name in names)
            least = len(rows) / len(hierarchy)
            loss *= (1 + max((raw - least) / (len(rows) - least), 0)) ** (weights[i] / sum(weights))
        if best is None or loss - 1 < best[0] - 1e-12:
            best = (loss - 1, suppressed)
    return best


def plain_safe(names, rows, name, whole, asked):
    values = Counter(row[3] for row, other in zip(rows, names, strict=True) if other == name)
    total = sum(values.values())
    if total < asked.k:
        return False
    for sensitive in asked.sensitive:
        if sensitive.diversity and sensitive.diversity.kind == "entropy":
            entropy = -sum(n / total * math.log(n / total) for n in values.values())
            if entropy < math.log(sensitive.diversity.l) - 1e-9:
                return False
        elif sensitive.diversity and len(values) < sensitive.diversity.l:
            return False
        if sensitive.closeness:
            far = 0.5 * sum(abs(values[v] / total - whole[v] / len(rows)) for v in whole)
            if far > sensitive.closeness.t + 1e-9:
                return False
    return True


@given(
    ROWS,
    st.integers(1, 5),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.sampled_from(
        [
            (),
            (Sensitive("s", Diversity(2)),),
            (Sensitive("s", Diversity(1.6, "entropy")),),
            (Sensitive("s", None, Closeness(0.3)),),
        ]
    ),
    st.sampled_from([(1, 1, 1), (1, 0, 3), (0.2, 5, 0.2)]),
)
def test_nothing_better_exists(rows, k, limit, sensitive, weights):
    asked = settings(weights, k=k, suppression_limit=limit, sensitive=sensitive)
    frame = pl.DataFrame(rows, schema=[*SHADES, "s"], orient="row")
    expected = plain_optimum(rows, asked)
    table = encode(frame, asked)
    if expected is None:
        with pytest.raises(Refused):
            optimum(table, asked)
        return
    found = optimum(table, asked)
    assert found.loss == pytest.approx(expected[0], abs=1e-12)
    shown = recoded(table, found)
    assert satisfied(table, shown, asked)
    again = measure(table, shown, asked)
    assert (again.utility.loss, again.suppressed) == (pytest.approx(found.loss), found.suppressed)


def test_one_value_only_loses_nothing():
    asked = AnonymitySettings((QuasiIdentifier("x"),), k=2, rows_are_people=True)
    made = examine(pl.DataFrame({"x": ["a", "a"]}), asked)
    assert made.shown.node == (0,)
    assert made.after.utility.loss == 0


def test_of_equally_good_nodes_the_finer_one_wins():
    quasi = (QuasiIdentifier("age", BinHierarchy((5.0,))), QuasiIdentifier("sex"))
    frame = pl.DataFrame({"age": [31, 34] * 3, "sex": ["f"] * 6})
    assert examine(frame, AnonymitySettings(quasi, rows_are_people=True)).shown.node == (1, 0)


def test_a_heavier_column_stays_finer():
    rows = [(colour, size, "round") for colour in ("red", "orange") for size in ("s", "m")]
    frame = pl.DataFrame(rows, schema=list(SHADES), orient="row")
    assert examine(frame, settings((5, 1, 1), k=2)).shown.node == (0, 1, 0)
    assert examine(frame, settings((1, 5, 1), k=2)).shown.node == (1, 0, 0)


ADULT = ("sex", "age", "race", "marital-status", "education", "native-country", "workclass", "occupation")
SALARY = "salary-class"
CASES = [
    (5, (), 0.05, (0, 3, 0, 0, 0), 0.0802157442, 1385),
    (8, (), 0.05, (0, 3, 0, 0, 1, 1, 1, 2), 0.2518517152, 1458),
    (8, (Sensitive(SALARY, Diversity(2)),), 0.05, (0, 4, 0, 2, 1, 1, 0, 1), 0.3282766575, 1389),
    (8, (), 1.0, None, 0.2200498762, 3049),
    *(
        (8, (Sensitive(SALARY, None, close),), 0.05, (0, 4, 0, 2, 3, 0, 1, 2), 0.4811442241, 1022)
        for close in (Closeness(0.2), Closeness(0.2, "ordered"))
    ),
]


@pytest.mark.shared
@pytest.mark.parametrize(("columns", "sensitive", "limit", "node", "loss", "suppressed"), CASES)
def test_the_optimum_is_the_one_arx_finds(shared, columns, sensitive, limit, node, loss, suppressed):
    folder = shared / "data/fhir/kanon"
    quasi = tuple(QuasiIdentifier(c, FileHierarchy(f"adult_hierarchy_{c}.csv")) for c in ADULT[:columns])
    asked = AnonymitySettings(quasi, sensitive=sensitive, suppression_limit=limit, rows_are_people=True)
    frame = pl.read_csv(folder / "adult.csv", separator=";", infer_schema=False)
    found = optimum(encode(frame, asked, folder=folder), asked)
    assert node is None or found.node == node
    assert round(found.loss, 10) == loss
    assert found.suppressed == suppressed
