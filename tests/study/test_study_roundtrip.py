"""Any study converts to TOML and Bundle and back without change."""

from __future__ import annotations

import json

import pytest
from fhir.resources.R4B.bundle import Bundle
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from abaton.study import Study, study_from_json, study_from_toml, write_bundle, write_toml

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    [
        '"""',
        "'''",
        "a\\",
        "\\n\nx",
        "\u2028\u0085x",
        "line\n\n\nline",
        "#x = [1]",
        "{",
        "é\u0301",
        "\\u0041",
        "x\ty",
    ]
)
numbers = st.floats(allow_nan=False, allow_infinity=False, width=32) | st.integers(-1000, 1000)
TEXTS = [
    ("study", "title"),
    ("study", "question"),
    ("study", "legal_basis"),
    ("study", "regions", 0, "display"),
    ("centre", "name"),
    ("centre", "address", "lines", 0),
    ("centre", "telecom", 0, "value"),
    ("contacts", 0, "name"),
    ("eligibility", "name"),
    ("eligibility", "criteria", 0, "note"),
    ("eligibility", "criteria", 3, "unit"),
    ("data", 0, "codes", 0, "any_of", 0, "code"),
    ("consent", "text"),
    ("consent", "statements", "models-stay"),
    ("documents", 0, "title"),
    ("privacy", "anonymity", "missing_values", 0),
    ("privacy", "anonymity", "quasi_identifiers", 0, "column"),
    ("questionnaires", 0, "resource", "item", 0, "text"),
]
NUMBERS = [
    ("eligibility", "criteria", 0, "low"),
    ("eligibility", "criteria", 3, "above"),
    ("data", 0, "frequency", "every"),
]


def changed(full, way, value):
    table = json.loads(json.dumps(full.content()))
    node = table
    for part in way[:-1]:
        node = node[part]
    node[way[-1]] = value
    try:
        return Study.model_validate_json(json.dumps(table), strict=True)
    except ValidationError:
        assume(False)


@pytest.mark.parametrize(
    "way", [TEXTS[1], *(pytest.param(way, marks=pytest.mark.slow) for way in TEXTS)], ids=str
)
@given(text=texts)
def test_any_text_roundtrips(full, way, text):
    study = changed(full, way, text)
    assert study_from_toml(write_toml(study)) == study
    bundle = json.dumps(write_bundle(study))
    back = study_from_json(bundle)
    assert back == study
    assert back.hash == study.hash


@pytest.mark.parametrize(
    "way", [NUMBERS[1], *(pytest.param(way, marks=pytest.mark.slow) for way in NUMBERS)], ids=str
)
@given(number=numbers)
def test_any_number_roundtrips(full, way, number):
    study = changed(full, way, number)
    assert study_from_toml(write_toml(study)) == study
    assert study_from_json(json.dumps(write_bundle(study))).hash == study.hash


@given(text=texts)
def test_bundles_stay_valid(full, text):
    Bundle.model_validate(write_bundle(changed(full, ("study", "title"), text)))
