"""Strict JSON: hostile documents are refused, and the bytes are the same with and without orjson."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.deid.record_examples import maker, run

from abaton.errors import RefusedError
from abaton.fhir import json_format

HOSTILE = {
    "key twice": b'{"resourceType":"Patient","id":"a","id":"b"}',
    "key twice, spaced": b'{"a":1,"a" :2}',
    "key twice, on another line": b'{"a":1,"a"\n:2}',
    "key twice, escaped": b'{"a":1,"\\u0061":2}',
    "key twice behind an escaped colon": b'{"a":1,"a":"x","b":"\\u003a"}',
    "key twice behind a backslash": b'{"a\\\\":1,"b":1,"b":2}',
    "key twice, deep": b'{"a":[{"b":{"c":1,"c":1}}]}',
    "key twice, other number form": b'{"a":1.10,"b":{"x":1,"x":1}}',
    "not a number": b'{"a":NaN}',
    "infinity": b'{"a":-Infinity}',
    "too large a number": b'{"a":1e999}',
    "byte order mark": b'\xef\xbb\xbf{"a":1}',
    "broken UTF-8": b'{"a":"\xff\xfe"}',
    "half a surrogate": b'{"a":"\\ud800"}',
    "deep": b'{"a":' + b"[" * 100 + b"]" * 100 + b"}",
    "very deep": b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "deep objects": b'{"a":' * 70 + b"1" + b"}" * 70,
    "XML": b'<?xml version="1.0"?><Patient xmlns="http://hl7.org/fhir"/>',
    "XML after space": b"  \n<Patient/>",
    "list": b"[1]",
    "text": b'"Patient"',
    "cut off": b'{"a":1',
    "two documents": b'{"a":1}{"b":2}',
    "raw control character": b'{"a":"\n"}',
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("fast", [True, False])
def test_hostile_documents_are_refused_without_their_content(name, fast, monkeypatch):
    if not fast:
        monkeypatch.setattr(json_format, "orjson", None)
    with pytest.raises(RefusedError) as refused:
        json_format.parse(HOSTILE[name].replace(b'"x"', b'"C4n4ry"'), where="file.json")
    assert "file.json" in str(refused.value)
    assert "C4n4ry" not in str(refused.value)


def test_size_has_a_limit():
    with pytest.raises(RefusedError, match="larger than"):
        json_format.parse(b'{"a":"' + b"x" * 100 + b'"}', limit=50)


@pytest.mark.parametrize("fast", [True, False])
def test_lines_parse_together_like_each_alone(fast, monkeypatch):
    if not fast:
        monkeypatch.setattr(json_format, "orjson", None)
    deep = b'{"a":' * 65 + b"1" + b"}" * 65
    batches = [
        [b'{"a":1}', b'{"b":[1,2]}'],
        [b'{"a":1}', b'{"a":1,"a":2}'],
        [b'{"a":[{}', b"{}]}", b"{},{}"],  # three lines that are valid only together
        [b'{"a":1}', b"[1]"],
        [b'{"a":1}', deep],
        [b'{"a": 1.0e2}', b'{"b":"\xff"}'],
    ]
    for batch in batches:
        alone = []
        for raw in batch:
            try:
                alone.append(json_format.parse(raw))
            except RefusedError as error:
                alone.append(error.what)
        assert [e.what if isinstance(e, RefusedError) else e for e in json_format.parse_all(batch)] == alone


def test_deep_nesting_is_refused_before_traversal():
    inner = document = {"resourceType": "Questionnaire", "id": "1"}
    for _ in range(100_000):
        inner["item"] = [{}]
        inner = inner["item"][0]
    with pytest.raises(RefusedError, match="nested more than 64"):
        run(maker(), document, check_input=False)
    with pytest.raises(RefusedError, match="nested more than 64"):
        json_format.parse(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)


@pytest.mark.parametrize("fast", [True, False])
def test_valid_documents_are_accepted(fast, monkeypatch):
    if not fast:
        monkeypatch.setattr(json_format, "orjson", None)
    for raw in (
        b'{"a": 1.10, "b": ":", "c": " : ", "d": "\\":"}',
        b'{\r\n\t"a" : [ {} , [] ] }',
        '{"ä":"\\u00e4"}'.encode(),
    ):
        assert json_format.parse(raw) == json.loads(raw)
    deep = b'{"a":' * 63 + b"{}" + b"}" * 63
    assert json_format.parse(deep)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), VALUES, max_size=5), st.sampled_from([None, 1, 2, "\t"]))
def test_the_standard_library_writes_the_same_bytes(document, indent):
    raw = json.dumps(document, indent=indent, ensure_ascii=indent is None).encode()
    fast = json_format.parse(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_format, "orjson", None)
        slow, text = json_format.parse(raw), json_format.dump(fast)
    assert slow == fast
    assert text == json_format.dump(fast)


@given(st.dictionaries(st.text(max_size=3), VALUES, min_size=1, max_size=4), st.data())
def test_duplicate_keys_are_always_refused(document, data):
    key = data.draw(st.sampled_from(sorted(document)))
    more = json.dumps(key) + data.draw(st.sampled_from([":", " :", ":\n", "\t:"])) + "0"
    body = json.dumps(document)
    raw = (body[:-1] + "," + more + "}").encode()
    with pytest.raises(RefusedError):
        json_format.parse(raw)


@pytest.mark.parametrize("depth", range(60, 68))
@pytest.mark.parametrize("inner", ["1", "[]", '{"a":[]}'])
@pytest.mark.parametrize("beside", ["", '"p":[' + "{}," * 70 + "1],", '"p":"' + "x" * 9_000 + '",'])
def test_the_limit_of_nesting_is_the_same_for_both_parsers(depth: int, inner: str, beside: str) -> None:
    raw = ("{" + beside + '"k":' + "[" * depth + inner + "]" * depth + "}").encode()
    levels = 1 + depth + inner.count("{") + inner.count("[")
    for parser in (json_format._parse_fast, json_format._parse_slow):
        if levels <= json_format.MAX_DEPTH:
            assert parser(raw, "")["k"]
        else:
            with pytest.raises(RefusedError, match="nested"):
                parser(raw, "")


@pytest.mark.parametrize("depth", [200, 100_000])
def test_deep_nesting_is_refused_without_orjson(monkeypatch, depth):
    monkeypatch.setattr(json_format, "orjson", None)
    monkeypatch.setattr(
        json_format, "_parse_slow", lambda *_: pytest.fail("the parser would have run out of stack")
    )
    for opened, closed in ((b'{"a":', b"}"), (b'{"a":[', b"]}")):
        for end in (b"1" + closed * depth, b""):
            with pytest.raises(RefusedError, match="nested"):
                json_format.parse(opened * depth + end)


def test_brackets_in_strings_are_not_nesting():
    assert json_format.bracket_depth(b'{"a": "' + b"[" * 1000 + b'\\"{", "b": [1]}') == 2
    assert json_format.bracket_depth(b'"' + b'\\"[' * 1000) == 0
