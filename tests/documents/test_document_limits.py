"""Untrusted documents: limits are checked before parsing, so memory and time stay bounded."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abaton.canonical_json import to_canonical_json
from abaton.documents.problems import MAX_PROBLEMS
from abaton.errors import SettingsError
from abaton.strict_json import StrictJsonError, parse_json_object
from abaton.strict_toml import MAX_DOCUMENT_BYTES, MAX_LEVELS, MAX_VALUES, StrictTomlError, parse_toml_table
from abaton.study import StudyError, study_from_json, study_from_toml

SIZE = 80_000
DEEP = "nested too deeply"
HOSTILE = {
    "dotted key": ("a." * (SIZE // 2) + "a = 1", DEEP),
    "dotted key below a known one": ("study.title." + "a." * (SIZE // 2) + "a = 1", DEEP),
    "dotted key after a comment": ("# ]\n'x'.\"y\". z = 1\n" + "a . " * (SIZE // 4) + "a = 1", DEEP),
    "header": ("[" + "a." * (SIZE // 2) + "a]", DEEP),
    "header of a list": ("[[" + "a." * (SIZE // 2) + "a]]", DEEP),
    "many headers": ("".join(f"[{'a.' * 200}b{i}]\n" for i in range(SIZE // 400)), DEEP),
    "dotted keys in tables": ("a = " + ("{" + "a." * 30 + "a=") * (SIZE // 66) + "1", DEEP),
    "lists": ("a = " + "[" * SIZE, DEEP),
    "closed lists": ("a = " + "[" * (SIZE // 2) + "]" * (SIZE // 2), DEEP),
    "inline tables": ("a = " + "{a=" * (SIZE // 4) + "1" + "}" * (SIZE // 4), DEEP),
    "long key": ("a" * SIZE + " = 1", "a key is too long"),
    "long quoted key": ('"' + "\\u00e9" * (SIZE // 6) + '" = 1', "a key is too long"),
    "long header": ("[" + "a" * SIZE + "]", "a key is too long"),
    "long number": ("a = " + "1" * SIZE, "too many digits"),
    "many values": ("a = [" + "1," * (MAX_VALUES + 1) + "]", "too many keys and values"),
    "many keys": ("".join(f"k{i}=1\n" for i in range(MAX_VALUES + 1)), "too many keys and values"),
}
CHILD = """
import resource, sys
from abaton.study import StudyError, study_from_toml
text = sys.stdin.read()
limit = int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmSize"))) * 1024
resource.setrlimit(resource.RLIMIT_AS, (limit + (400 << 20),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
try:
    study_from_toml(text)
except StudyError as error:
    print(len(error.problems), error.problems[0].what)
"""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_refused_before_it_is_parsed(name, monkeypatch):
    text, what = HOSTILE[name]
    if what != "too many digits":
        monkeypatch.setattr(tomllib, "loads", lambda _: pytest.fail("the text was parsed"))
    with pytest.raises(StudyError) as error:
        study_from_toml(text)
    (problem,) = error.value.problems
    assert what in problem.what
    assert problem.line is not None
    assert len(str(problem)) < 120


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE["dotted key"][0],  # took 6.3 GB
        "[study]\nregions = [" + "{}," * 45_000 + "]\n",
        "".join(f"k{i:x}=1\n" for i in range(50_000)),
        "".join(f"[{'a.' * 60}b{i}]\nx=1\n" for i in range(1_500)),
        "[study]\nquestion = '''" + "x" * 20_000_000 + "'''\n",
        '[study]\nquestion = """' + 'x" \\\\' * 500_000 + '"""\n',
    ],
    ids=["dotted key", "empty tables", "unknown keys", "deep headers", "long text", "long text with escapes"],
)
def test_memory_is_bounded(text):
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert 1 <= int(done.stdout.split()[0]) <= MAX_PROBLEMS + 1


def test_a_text_at_the_limits_is_parsed():
    deep = ".".join("a" * 1 for _ in range(MAX_LEVELS))
    assert parse_toml_table(f"{deep} = 1", "a.toml")
    assert len(parse_toml_table("a" * 200 + " = 1", "a.toml")) == 1
    assert len(parse_toml_table("a = [" + "1," * (MAX_VALUES - 2) + "]", "a.toml")["a"]) == MAX_VALUES - 2
    with pytest.raises(StrictTomlError, match=DEEP):
        parse_toml_table(f"{deep}.a = 1", "a.toml")


def test_strings_and_comments_are_not_counted():
    text = (
        "a = '''"
        + "[" * 500
        + "'''\nb = \""
        + "x." * 500
        + '=" # '
        + "[{" * 500
        + "\nc = '"
        + "{" * 99
        + "'\n"
    )
    assert parse_toml_table(text, "a.toml").keys() == {"a", "b", "c"}


def test_a_document_that_is_too_large(tmp_path):
    with pytest.raises(StrictTomlError, match="too large"):
        parse_toml_table(" " * (MAX_DOCUMENT_BYTES + 1), "a.toml")


names = st.text("ab-_", min_size=1, max_size=4)
scalars = st.integers() | st.floats(allow_nan=False) | st.text(max_size=30) | st.booleans()
tables = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(names, tables, max_size=5), st.booleans())
@settings(max_examples=200, deadline=None)
def test_documents_within_the_limits_are_read_as_by_tomllib(table, multiline):
    import tomli_w

    text = tomli_w.dumps(table, multiline_strings=multiline)
    assert parse_toml_table(text, "a.toml") == tomllib.loads(text)


@given(st.text("ab.=[]{}\"'#\\ \n,1", max_size=60))
@settings(max_examples=500, deadline=None)
def test_any_text_is_read_as_by_tomllib_or_refused_without_its_content(text):
    try:
        expected = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        with pytest.raises(StrictTomlError) as error:
            parse_toml_table(text, "a.toml")
        assert error.value.line <= text.count("\n") + 1
    else:
        assert parse_toml_table(text, "a.toml") == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"a":' * 101 + "1" + "}" * 101, DEEP),
        ("[" * SIZE, DEEP),
        ('{"' + "k" * 201 + '": 1}', "a key is too long"),
        ('{"a": [' + "1," * (MAX_VALUES + 1) + "1]}", "too many values"),
        ('{"a": [' + "{}," * (MAX_VALUES + 1) + "1]}", "too many values"),
        ('{"a": 1, "a": 2}', "a key occurs twice"),
    ],
)
def test_hostile_json_is_refused_before_it_is_parsed(text, what, monkeypatch):
    if what != "a key occurs twice":
        monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("the text was parsed"))
    with pytest.raises(StrictJsonError, match=what):
        parse_json_object(text, "a.json")
    with pytest.raises(StudyError):
        study_from_json(text)


def test_json_strings_are_not_counted():
    content = {"a": "[{" * 500, "b": ['"}', "\\", '\\"' + "[" * 200]}
    assert parse_json_object(json.dumps(content), "a.json") == content


def test_content_that_is_too_deep_has_no_canonical_form():
    value: object = 1
    for _ in range(5000):
        value = [value]
    with pytest.raises(SettingsError, match=DEEP):
        to_canonical_json(value)


def test_long_lists_of_problems_are_cut():
    with pytest.raises(StudyError) as error:
        study_from_toml("".join(f"k{i}=1\n" for i in range(5_000)))
    problems = error.value.problems
    assert len(problems) == MAX_PROBLEMS + 1
    assert "further problems are not listed" in problems[-1].what
    assert sum(len(str(problem)) for problem in problems) < 60_000
