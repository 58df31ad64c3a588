"""Equal content, equal bytes: RFC 8785 with its own examples."""

from __future__ import annotations

import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.canonical_json import canonical_digest, to_canonical_json
from abaton.errors import SettingsError

texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
    ],
)
def test_numbers_are_written_as_in_the_appendix_of_the_standard(bits, text):
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert to_canonical_json(number) == text.encode()


def test_keys_are_sorted_by_utf16_units_as_in_the_standard():
    keys = {"€": 1, "\r": 2, "\ufb33": 3, "1": 4, "😀": 5, "\x80": 6, "ö": 7}
    assert list(json.loads(to_canonical_json(keys))) == ["\r", "1", "\x80", "ö", "€", "😀", "\ufb33"]


def test_escapes_are_the_shortest():
    assert (
        to_canonical_json('€$\x0f\nA\'B"\\\\"/\x7f\u2028')
        == '"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/\x7f\u2028"'.encode()
    )


@given(values)
def test_reading_back_gives_the_same_content(value):
    assert json.loads(to_canonical_json(value), parse_int=float) == value


@given(st.dictionaries(texts, st.integers(-1000, 1000)))
def test_order_of_keys_and_kind_of_number_do_not_matter(value):
    turned = {key: float(value[key]) for key in reversed(list(value))}
    assert canonical_digest(turned) == canonical_digest(value)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 2**53, {1: 2}, {"a": {3}}, "\ud800", b"bytes", {"\udc00": 1}]
)
def test_values_without_a_json_form_are_refused(value):
    with pytest.raises(SettingsError):
        to_canonical_json(value)


def test_golden():
    data = {"title": "Heart", "n": [1, 2.5, -0.0], "deep": {"z": None, "a": True}}
    assert to_canonical_json(data) == b'{"deep":{"a":true,"z":null},"n":[1,2.5,0],"title":"Heart"}'
    assert canonical_digest(data) == "71606089036d38cce5a161b15c1770ec0a751a287d896eb7d5d3d262d7272a4d"
