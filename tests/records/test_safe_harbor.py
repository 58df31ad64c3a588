"""HIPAA's eighteen identifiers: the table of the documentation, executed. No mark in a place it names comes out."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from making import deidentify

from abaton.fhir.elements import is_primitive, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "safe-harbor.md"
ROWS = re.findall(r"^\| ([A-R]) \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(), re.M)
WORD, NUMBER, DAY = "Quarkwright", 839201745, "1937-04-21"
MARKS = (WORD, str(NUMBER), "8392017", "04-21", "1937", base64.b64encode(WORD.encode()).decode())
NEEDED = {
    "Observation": {"status": "final", "code": {"text": "x"}},
    "Encounter": {"status": "finished", "class": {"code": "AMB"}},
}


def test_the_table_has_all_eighteen():
    assert [letter for letter, _, _ in ROWS] == list("ABCDEFGHIJKLMNOPQR")
    assert all(len(re.findall(r"`[^`]+`", places)) >= 3 for _, _, places in ROWS)


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
    """A resource with a mark at a place, written down as its types say."""
    kind, *names = path.split(".")
    document = {"resourceType": kind, "id": "1", **NEEDED.get(kind, {})}
    node, here = document, kind
    for i, name in enumerate(names):
        element = table()[here][name]
        if is_primitive(element.type):
            assert i == len(names) - 1, path
            mark = f"Patient/{WORD}" if name == "reference" else value(element.type)
            node[name] = [mark] if element.many else mark
            return document
        inner = {}
        node[name] = [inner] if element.many else inner
        node, here = inner, element.type
        if here == "Extension":
            node["url"] = f"https://{WORD}.example/x"
    raise AssertionError(f"{path} does not end at a value")


CASES = [(letter, place) for letter, _, places in ROWS for place in re.findall(r"`([^`]+)`", places)]


@pytest.mark.parametrize(("letter", "path"), CASES, ids=[f"{letter} {path}" for letter, path in CASES])
def test_nothing_of_an_identifier_comes_out(letter, path):
    raw = planted(path)
    written = json.dumps(raw)
    assert any(mark in written for mark in MARKS)
    made = json.dumps(deidentify(raw, dates="year"))
    # A birth or an event in 1937 is less than 90 years ago in 2026: its year may stay, its day may not.
    marks = [mark for mark in MARKS if not (letter == "C" and mark == "1937")]
    assert not [mark for mark in marks if mark in made]
