import itertools
import math
from collections import Counter

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
    examine,
)
from abaton.anonymity.lattice import optimal_node
from abaton.anonymity.release import is_satisfied, release_recoding
from abaton.anonymity.risk_metrics import compute_metrics
from abaton.errors import RefusedError

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
    return AnonymitySettings(quasi, one_row_per_subject=True, **options)


def plain_optimum(rows, requested):
    """Every node, counted record by record."""
    best = None
    overall = Counter(row[3] for row in rows)
    weights = [quasi.weight for quasi in requested.quasi_identifiers]
    for node in itertools.product(*(range(len(h[0])) for h in SHADES.values())):
        names = [
            tuple(next(c for c in h if c[0] == row[i])[node[i]] for i, h in enumerate(SHADES.values()))
            for row in rows
        ]
        left_out = {n for n in set(names) if not plain_safe(names, rows, n, overall, requested)}
        suppressed = sum(name in left_out for name in names)
        if suppressed > math.floor(requested.suppression_limit * len(rows)):
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


def plain_safe(names, rows, name, overall, requested):
    values = Counter(row[3] for row, other in zip(rows, names, strict=True) if other == name)
    total = sum(values.values())
    if total < requested.k:
        return False
    for sensitive in requested.sensitive:
        if sensitive.diversity and sensitive.diversity.kind == "entropy":
            entropy = -sum(n / total * math.log(n / total) for n in values.values())
            if entropy < math.log(sensitive.diversity.l) - 1e-9:
                return False
        elif sensitive.diversity and len(values) < sensitive.diversity.l:
            return False
        if sensitive.closeness:
            far = 0.5 * sum(abs(values[v] / total - overall[v] / len(rows)) for v in overall)
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
            (SensitiveAttribute("s", LDiversity(2)),),
            (SensitiveAttribute("s", LDiversity(1.6, "entropy")),),
            (SensitiveAttribute("s", None, TCloseness(0.3)),),
        ]
    ),
    st.sampled_from([(1, 1, 1), (1, 0, 3), (0.2, 5, 0.2)]),
)
def test_nothing_better_exists(rows, k, limit, sensitive, weights):
    requested = settings(weights, k=k, suppression_limit=limit, sensitive=sensitive)
    frame = pl.DataFrame(rows, schema=[*SHADES, "s"], orient="row")
    expected = plain_optimum(rows, requested)
    table = encode(frame, requested)
    if expected is None:
        with pytest.raises(RefusedError):
            optimal_node(table, requested)
        return
    recoding = optimal_node(table, requested)
    assert recoding.loss == pytest.approx(expected[0], abs=1e-12)
    shown = release_recoding(table, recoding)
    assert is_satisfied(table, shown, requested)
    again = compute_metrics(table, shown, requested)
    assert (again.utility.loss, again.suppressed) == (pytest.approx(recoding.loss), recoding.suppressed)


def test_one_value_only_loses_nothing():
    requested = AnonymitySettings((QuasiIdentifier("x"),), k=2, one_row_per_subject=True)
    examined = examine(pl.DataFrame({"x": ["a", "a"]}), requested)
    assert examined.release.node == (0,)
    assert examined.after.utility.loss == 0


def test_of_equally_good_nodes_the_finer_one_wins():
    quasi = (QuasiIdentifier("age", BinHierarchy((5.0,))), QuasiIdentifier("sex"))
    frame = pl.DataFrame({"age": [31, 34] * 3, "sex": ["f"] * 6})
    assert examine(frame, AnonymitySettings(quasi, one_row_per_subject=True)).release.node == (1, 0)


def test_a_heavier_column_stays_finer():
    rows = [(colour, size, "round") for colour in ("red", "orange") for size in ("s", "m")]
    frame = pl.DataFrame(rows, schema=list(SHADES), orient="row")
    assert examine(frame, settings((5, 1, 1), k=2)).release.node == (0, 1, 0)
    assert examine(frame, settings((1, 5, 1), k=2)).release.node == (1, 0, 0)


ADULT = ("sex", "age", "race", "marital-status", "education", "native-country", "workclass", "occupation")
SALARY = "salary-class"
CASES = [
    (5, (), 0.05, (0, 3, 0, 0, 0), 0.0802157442, 1385),
    (8, (), 0.05, (0, 3, 0, 0, 1, 1, 1, 2), 0.2518517152, 1458),
    (8, (SensitiveAttribute(SALARY, LDiversity(2)),), 0.05, (0, 4, 0, 2, 1, 1, 0, 1), 0.3282766575, 1389),
    (8, (), 1.0, None, 0.2200498762, 3049),
    *(
        (8, (SensitiveAttribute(SALARY, None, close),), 0.05, (0, 4, 0, 2, 3, 0, 1, 2), 0.4811442241, 1022)
        for close in (TCloseness(0.2), TCloseness(0.2, "ordered"))
    ),
]


@pytest.mark.shared
@pytest.mark.parametrize(("columns", "sensitive", "limit", "node", "loss", "suppressed"), CASES)
def test_the_optimum_is_the_one_arx_finds(shared, columns, sensitive, limit, node, loss, suppressed):
    folder = shared / "data/fhir/kanon"
    quasi = tuple(QuasiIdentifier(c, FileHierarchy(f"adult_hierarchy_{c}.csv")) for c in ADULT[:columns])
    requested = AnonymitySettings(
        quasi, sensitive=sensitive, suppression_limit=limit, one_row_per_subject=True
    )
    frame = pl.read_csv(folder / "adult.csv", separator=";", infer_schema=False)
    recoding = optimal_node(encode(frame, requested, folder=folder), requested)
    assert node is None or recoding.node == node
    assert round(recoding.loss, 10) == loss
    assert recoding.suppressed == suppressed
