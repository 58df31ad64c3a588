import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.anonymity import (
    AnonymitySettings,
    BinHierarchy,
    DateHierarchy,
    FlatHierarchy,
    LDiversity,
    QuasiIdentifier,
    SensitiveAttribute,
    TableHierarchy,
    TCloseness,
    encode,
    examine,
    make_release,
)
from abaton.anonymity.hierarchies import build_hierarchy
from abaton.anonymity.mondrian import _RangeNames
from abaton.anonymity.release import is_satisfied
from abaton.anonymity.table_files import recoded_frame
from abaton.errors import RefusedError

QUASI = (
    QuasiIdentifier("age", BinHierarchy((10.0,))),
    QuasiIdentifier("job", TableHierarchy((("a", "ab", "*"), ("b", "ab", "*"), ("c", "c", "*")))),
)
ROWS = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 60)), st.sampled_from("abc"), st.sampled_from("xy")),
    min_size=2,
    max_size=80,
)


@given(
    ROWS, st.integers(1, 4), st.sampled_from([None, LDiversity(2)]), st.sampled_from([None, TCloseness(0.3)])
)
def test_every_partition_is_safe_and_complete(rows, k, diversity, closeness):
    requested = AnonymitySettings(
        QUASI,
        k=k,
        sensitive=(SensitiveAttribute("s", diversity, closeness),),
        method="mondrian",
        one_row_per_subject=True,
    )
    table = encode(pl.DataFrame(rows, schema=["age", "job", "s"], orient="row"), requested)
    try:
        shown = make_release(table, requested)
    except RefusedError:
        assert len(rows) < k or len({row[2] for row in rows}) < 2
        return
    assert shown.retained.all()
    assert is_satisfied(table, shown, requested)
    for i, hierarchy_built in enumerate(table.hierarchies):
        assert (shown.covered[i] >= 1).all()
        assert (shown.covered[i] <= hierarchy_built.size).all()


def test_boxes_are_named_by_the_hierarchy_or_by_their_ends():
    frame = pl.DataFrame({"age": [20, 21, 33, 34, 33, 34], "job": ["a", "b", "c", "c", "c", "c"]})
    shown = make_release(
        encode(frame, AnonymitySettings(QUASI, k=2, one_row_per_subject=True)),
        AnonymitySettings(QUASI, k=2, method="mondrian", one_row_per_subject=True),
    )
    assert set(shown.names[1]) <= {"ab", "c"}
    assert "20-29" in shown.names[0]


def test_mondrian_keeps_more_than_one_level_for_all():
    frame = pl.DataFrame({"age": list(range(40)) * 3, "job": list("abc") * 40})
    best = examine(frame, AnonymitySettings(QUASI, k=3, one_row_per_subject=True))
    finer = examine(frame, AnonymitySettings(QUASI, k=3, method="mondrian", one_row_per_subject=True))
    assert finer.after.k >= 3
    assert finer.after.utility.loss <= best.after.utility.loss


def test_too_few_subjects_are_refused():
    requested = AnonymitySettings(QUASI, k=5, method="mondrian", one_row_per_subject=True)
    table = encode(pl.DataFrame({"age": [1, 2], "job": ["a", "b"]}), requested)
    with pytest.raises(RefusedError, match="whole table"):
        make_release(table, requested)


@pytest.mark.parametrize(
    ("spec", "values", "low", "high", "name", "covers"),
    [
        (BinHierarchy((10.0,)), ["3", "7", "12", None], 1, 2, "7-12", (1, 2)),
        (BinHierarchy((10.0,)), ["3", "7", "12", None], 0, 1, "0-9", (0, 1)),
        (BinHierarchy((10.0,)), ["3", "7", "12", None], 1, 3, "7-12|missing", (1, 3)),
        (BinHierarchy((10.0,)), ["3", "7", "12", None], 2, 3, "12|missing", (2, 3)),
        (DateHierarchy(), ["1987-05-01", "1988-01-01", "1999-01-01"], 1, 2, "1988-01-01/1999-01-01", (1, 2)),
        (FlatHierarchy(), ["a", "b", None], 1, 2, "b|missing", (1, 2)),
        (FlatHierarchy(), [f"v{i}" for i in range(30)], 2, 28, "*", (0, 29)),
        (FlatHierarchy(), ["a", None], 1, 1, None, (1, 1)),
    ],
)
def test_a_range_gets_the_shortest_true_name(spec, values, low, high, name, covers):
    hierarchy_built = build_hierarchy(QuasiIdentifier("x", spec), values)
    assert _RangeNames(hierarchy_built).name(low, high) == (name, *covers)


def test_numbers_out_of_order_are_listed():
    hierarchy_built = build_hierarchy(
        QuasiIdentifier("x", TableHierarchy((("1", "odd"), ("2", "even"), ("3", "odd")))), ["1"]
    )
    assert hierarchy_built.labels[0] == ("2", "1", "3")
    assert _RangeNames(hierarchy_built).name(0, 1)[0] == "2|1"


def test_a_heavier_column_is_cut_first():
    frame = pl.DataFrame({"x": [0, 0, 1, 1], "y": [0, 1, 0, 1]})
    for weights, expected in [((5, 1), ["0", "0", "1", "1"]), ((1, 5), ["0-1"] * 4)]:
        quasi = tuple(
            QuasiIdentifier(name, BinHierarchy((10.0,)), weight)
            for name, weight in zip("xy", weights, strict=True)
        )
        requested = AnonymitySettings(quasi, k=2, method="mondrian", one_row_per_subject=True)
        examined = examine(frame, requested)
        shown = recoded_frame(frame.lazy(), examined.table, examined.release, requested).collect()
        assert [name.replace("0-9", "0-1") for name in shown["x"].to_list()] == expected
