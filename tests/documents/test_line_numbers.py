"""Line numbers of the keys of a TOML text."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path

import pytest
from tests.study.full_studies import long_starter

from abaton.documents.line_numbers import key_lines, nearest_line

HARD = '''# comment with [brackets] = "x"
a.b = 1
"quo.ted" = 'literal \\'
text = """
[not.a.table]
key = "no" """ # after
raw = \'\'\'
x = 1
\'\'\'
list = [ # comment ]
  1, "two, ]",
  { x = 1, y = [1,
     2] },
]
empty = []
none = {}
[t]
d = 1979-05-27T07:32:00Z
[[t.rows]]
k = 1
[[t.rows]]
k = 2
[t.rows.inner]
z = { deep = { er = "}" } }
'''


def paths(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from paths(item, (*path, key))


FULL = Path(__file__).parents[1] / "study" / "full.toml"


@pytest.mark.parametrize(
    "text", [HARD, long_starter(date(2026, 1, 1)), FULL.read_text("utf-8")], ids=["hard", "starter", "full"]
)
def test_every_path_that_tomllib_gives_has_a_line(text):
    lines = key_lines(text)
    assert set(paths(tomllib.loads(text))) == set(lines)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("a", "b"), 2),
        (("quo.ted",), 3),
        (("raw",), 7),
        (("list", 2, "y", 1), 13),
        (("t", "rows", 1, "k"), 22),
        (("t", "rows", 1, "inner", "z", "deep", "er"), 24),
    ],
)
def test_lines(path, line):
    assert key_lines(HARD)[path] == line


def test_missing_key_has_the_line_of_its_closest_table():
    lines = key_lines(HARD)
    assert nearest_line(lines, ("t", "rows", 0, "missing", "x")) == 19
    assert nearest_line(lines, ("nowhere",)) == 1
