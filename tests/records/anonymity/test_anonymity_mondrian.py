import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.errors import Refused
from abaton.records.anonymity import (
    AnonymitySettings,
    BinHierarchy,
    Closeness,
    Diversity,
    QuasiIdentifier,
    Sensitive,
    TableHierarchy,
    encode,
    examine,
    release,
)
from abaton.records.anonymity.releases import satisfied

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
    ROWS, st.integers(1, 4), st.sampled_from([None, Diversity(2)]), st.sampled_from([None, Closeness(0.3)])
)
def test_every_box_is_safe_and_nobody_is_left_out(rows, k, diversity, closeness):
    asked = AnonymitySettings(
        QUASI, k=k, sensitive=(Sensitive("s", diversity, closeness),), method="mondrian"
    )
    table = encode(pl.DataFrame(rows, schema=["age", "job", "s"], orient="row"), asked)
    try:
        shown = release(table, asked)
    except Refused:
        assert len(rows) < k or len({row[2] for row in rows}) < 2
        return
    assert shown.kept.all()
    assert satisfied(table, shown, asked)
    for i, made in enumerate(table.ladders):
        assert (shown.covered[i] >= 1).all()
        assert (shown.covered[i] <= made.size).all()


def test_boxes_are_named_by_the_hierarchy_or_by_their_ends():
    frame = pl.DataFrame({"age": [20, 21, 33, 34, 33, 34], "job": ["a", "b", "c", "c", "c", "c"]})
    shown = release(
        encode(frame, AnonymitySettings(QUASI, k=2)), AnonymitySettings(QUASI, k=2, method="mondrian")
    )
    assert set(shown.names[1]) <= {"ab", "c"}
    assert "20-29" in shown.names[0]


def test_mondrian_keeps_more_than_one_level_for_all():
    frame = pl.DataFrame({"age": list(range(40)) * 3, "job": list("abc") * 40})
    best = examine(frame, AnonymitySettings(QUASI, k=3))
    finer = examine(frame, AnonymitySettings(QUASI, k=3, method="mondrian"))
    assert finer.after.k >= 3
    assert finer.after.utility.loss <= best.after.utility.loss


def test_too_few_people_are_refused():
    asked = AnonymitySettings(QUASI, k=5, method="mondrian")
    table = encode(pl.DataFrame({"age": [1, 2], "job": ["a", "b"]}), asked)
    with pytest.raises(Refused, match="whole table"):
        release(table, asked)
