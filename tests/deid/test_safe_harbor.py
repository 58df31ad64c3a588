"""HIPAA's eighteen identifiers: no mark at a path of the documentation's table occurs in the output."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from tests.deid.record_examples import deidentify

from abaton.fhir.elements import element_table, is_primitive

PAGE = Path(__file__).resolve().parents[2] / "docs" / "safe-harbor.md"
ROWS = re.findall(r"^\| ([A-R]) \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(), re.M)
WORD, NUMBER, DAY = "Quarkwright", 839201745, "1937-04-21"
MARKS = (WORD, str(NUMBER), "8392017", "04-21", "1937", base64.b64encode(WORD.encode()).decode())
NEEDED = {
    "Observation": {"status": "final", "code": {"text": "x"}},
    "Encounter": {"status": "finished", "class": {"code": "AMB"}},
}


def test_the_table_has_all_eighteen():
    assert [category for category, _, _ in ROWS] == list("ABCDEFGHIJKLMNOPQR")
    assert all(len(re.findall(r"`[^`]+`", elements)) >= 3 for _, _, elements in ROWS)


def value(kind):
    match kind:
        case "date":
            return DAY
        case "dateTime" | "instant":
            return f"{DAY}T13:37:59Z"
        case "decimal" | "integer" | "positiveInt" | "unsignedInt":
            return NUMBER
        case "base64Binary":
            return base64.b64encode(WORD.encode()).decode()
        case "xhtml":
            return f'<div xmlns="http://www.w3.org/1999/xhtml">{WORD}</div>'
        case "id":
            return f"{WORD}-{NUMBER}"
        case "uri" | "url" | "canonical" | "oid" | "uuid":
            return f"https://{WORD}.example/{NUMBER}"
    return f"{WORD} {NUMBER}"


def planted(path):
    """Return a resource with a mark at a path, in the form of its types."""
    kind, *names = path.split(".")
    document = {"resourceType": kind, "id": "1", **NEEDED.get(kind, {})}
    node, here = document, kind
    for i, name in enumerate(names):
        element = element_table()[here][name]
        if is_primitive(element.type):
            assert i == len(names) - 1, path
            mark = f"Patient/{WORD}" if name == "reference" else value(element.type)
            node[name] = [mark] if element.is_list else mark
            return document
        inner = {}
        node[name] = [inner] if element.is_list else inner
        node, here = inner, element.type
        if here == "Extension":
            node["url"] = f"https://{WORD}.example/x"
    raise AssertionError(f"{path} does not end at a value")


CASES = [
    (category, path) for category, _, paths_text in ROWS for path in re.findall(r"`([^`]+)`", paths_text)
]


@pytest.mark.parametrize(("category", "path"), CASES, ids=[f"{category} {path}" for category, path in CASES])
def test_no_part_of_an_identifier_occurs_in_the_output(category, path):
    raw = planted(path)
    written = json.dumps(raw)
    assert any(mark in written for mark in MARKS)
    output_text = json.dumps(deidentify(raw, dates="year"))
    # A birth or an event in 1937 is less than 90 years ago in 2026: its year may stay, its day may not.
    marks = [mark for mark in MARKS if not (category == "C" and mark == "1937")]
    assert not [mark for mark in marks if mark in output_text]
