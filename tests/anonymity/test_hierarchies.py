import doctest

import pytest

from abaton.anonymity import (
    BandHierarchy,
    BinHierarchy,
    DateHierarchy,
    FileHierarchy,
    FlatHierarchy,
    PrefixHierarchy,
    QuasiIdentifier,
    TableHierarchy,
    hierarchies,
)
from abaton.anonymity.hierarchies import build_hierarchy, map_to_leaves
from abaton.errors import SettingsError


def chains(spec, values, **options):
    hierarchy_built = build_hierarchy(QuasiIdentifier("x", spec), values, **options)
    return {
        hierarchy_built.labels[0][leaf]: [
            labels[step[leaf]]
            for labels, step in zip(hierarchy_built.labels, hierarchy_built.ancestors, strict=True)
        ][1:]
        for leaf in range(len(hierarchy_built.labels[0]))
    }


@pytest.mark.parametrize(
    ("spec", "value", "names"),
    [
        (BinHierarchy((5.0, 10.0)), "37", ["35-39", "30-39", "*"]),
        (BinHierarchy((5.0,)), "-1", ["-5--1", "*"]),
        (BinHierarchy((0.5,)), "1.7", ["[1.5, 2)", "*"]),
        (BinHierarchy((10.0,), 18.0), "27.9", ["18-27", "*"]),
        (BandHierarchy(((18.0, 40.0, 65.0), (40.0,))), "17", ["<18", "<40", "*"]),
        (BandHierarchy(((18.0, 40.0, 65.0), (40.0,))), "40", ["40-64", ">=40", "*"]),
        (BandHierarchy(((18.0, 40.0, 65.0), (40.0,))), "90", [">=65", ">=40", "*"]),
        (PrefixHierarchy((3, 1)), "D0471", ["D04**", "D****", "*"]),
        (DateHierarchy(("month", "quarter", "century")), "1987-05-03", ["1987-05", "1987-Q2", "1900s", "*"]),
        (DateHierarchy(("month", "year")), "1987", ["1987", "1987", "*"]),
        (DateHierarchy(), "1987-05-03T10:00:00Z", ["1987", "1980s", "*"]),
        (FlatHierarchy(), "f", ["*"]),
    ],
)  # fmt: skip
def test_a_value_and_its_coarser_names(spec, value, names):
    assert chains(spec, [value])[value] == names


def test_a_file_as_arx_writes_it(tmp_path):
    (tmp_path / "job.csv").write_text("﻿nurse;care;*\nporter;care;*\nclerk;office;*\n", "utf-8")
    hierarchy_built = build_hierarchy(
        QuasiIdentifier("job", FileHierarchy("job.csv")), ["clerk"], folder=tmp_path
    )
    assert hierarchy_built.size == 3
    assert hierarchy_built.labels == (("nurse", "porter", "clerk"), ("care", "office"), ("*",))
    assert hierarchy_built.shares(1).tolist() == [2 / 3, 2 / 3, 1 / 3]


def test_a_missing_value_stays_apart_until_the_top():
    rows = TableHierarchy((("a", "ab", "*"), ("b", "ab", "*"), ("c", "c", "*")))
    assert chains(rows, ["a", None])[None] == [None, "*"]
    assert chains(BinHierarchy((5.0,)), ["3", None])[None] == [None, "*"]
    assert chains(FlatHierarchy(), [None])[None] == ["*"]


def test_a_missing_value_may_have_a_line_of_its_own():
    rows = TableHierarchy((("a", "known"), ("?", "unknown")))
    assert chains(rows, ["a", None], missing_values=["?"])[None] == ["unknown"]


def test_numbers_match_however_they_are_written():
    rows = TableHierarchy((("63", "60s"), ("063", "code")))
    hierarchy_built = build_hierarchy(QuasiIdentifier("x", rows), ["63.0", "63", "063"])
    assert map_to_leaves(hierarchy_built, ["63.0", "63", "063"]) == {"63.0": 1, "63": 1, "063": 0}
    hierarchy_built = build_hierarchy(
        QuasiIdentifier("x", TableHierarchy((("0.0", "*"), ("1.0", "*")))), ["0", "1"]
    )
    assert map_to_leaves(hierarchy_built, ["0", "1", "1.0"]) == {"0": 0, "1": 1, "1.0": 1}
    hierarchy_built = build_hierarchy(QuasiIdentifier("x", BinHierarchy((5.0,))), ["7", "7.00", "7.5", None])
    assert map_to_leaves(hierarchy_built, ["7", "7.00", "7.5", None]) == {
        "7": 0,
        "7.00": 0,
        "7.5": 1,
        None: 2,
    }


@pytest.mark.parametrize(
    ("spec", "values", "complaint"),
    [
        (TableHierarchy((("a", "*"), ("b", "*"))), ["a", "secret", "hidden"], "2 of 3 distinct values"),
        (TableHierarchy((("a", "*"), ("b",))), ["a"], "line 2 has 1 levels"),
        (TableHierarchy((("a", "x", "p"), ("b", "x", "q"))), ["a"], "two different names on level 2"),
        (TableHierarchy((("a", "*"), ("a", "*"))), ["a"], "listed twice"),
        (
            BinHierarchy((5.0,)),
            ["1", "secret", "nan"],
            "2 of 3 distinct values of the table are not a number",
        ),
        (DateHierarchy(), ["secret"], "not a date"),
        (FileHierarchy("none.csv"), ["a"], "cannot be read"),
    ],
)
def test_errors_contain_no_value(spec, values, complaint):
    with pytest.raises(SettingsError, match=complaint) as caught:
        build_hierarchy(QuasiIdentifier("x", spec), values)
    assert "secret" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_neighbours_share_their_coarser_names():
    spec = BandHierarchy(((18.0, 40.0),))
    assert build_hierarchy(QuasiIdentifier("x", spec), ["50", "9", "100", "20"]).labels[0] == (
        "9",
        "20",
        "50",
        "100",
    )


def test_examples_run():
    assert doctest.testmod(hierarchies).failed == 0
