"""Ages over 89 are one class, however they are written, also where they follow from two years."""

from __future__ import annotations

import pytest
from tests.deid.record_examples import deidentify, maker, rule, run

from abaton.deid import DateHandling, RulePreset

UCUM, LOINC = "http://unitsofmeasure.org", "http://loinc.org"
AGE = {"coding": [{"system": LOINC, "code": "30525-0"}]}
TWO = {
    "coding": [
        {"system": "http://snomed.info/sct", "code": "424144002"},
        {"system": LOINC, "code": "21612-7"},
    ]
}
OTHER = {"coding": [{"system": LOINC, "code": "8302-2"}]}


def observed(code, **more):
    return deidentify({"resourceType": "Observation", "id": "1", "status": "final", "code": code, **more})


@pytest.mark.parametrize("code", [AGE, TWO])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"valueInteger": 97}, {"valueInteger": 90}),
        ({"valueInteger": 89}, {"valueInteger": 89}),
        ({"valueQuantity": {"value": 97}}, {"valueQuantity": {"value": 90}}),
        ({"valueQuantity": {"value": 97, "unit": "summers"}}, {"valueQuantity": {"value": 90}}),
        (
            {"valueQuantity": {"value": 1164, "system": UCUM, "code": "mo"}},
            {"valueQuantity": {"value": 1080, "system": UCUM, "code": "mo"}},
        ),
        (
            {"valueQuantity": {"value": 35_430, "unit": "days"}},
            {"valueQuantity": {"value": 32_873, "system": UCUM, "code": "d"}},
        ),
        (
            {"valueQuantity": {"value": 97, "unit": "Jahre"}},
            {"valueQuantity": {"value": 90, "system": UCUM, "code": "a"}},
        ),
        (
            {"valueRange": {"low": {"value": 95}, "high": {"value": 99}}},
            {"valueRange": {"low": {"value": 90}, "high": {"value": 90}}},
        ),
    ],
)
def test_a_coded_age_is_capped_in_every_form(code, value, expected):
    deidentified = observed(code, **value)
    assert {name: deidentified[name] for name in value} == expected
    part = observed(OTHER, component=[{"code": code, **value}])["component"][0]
    assert {name: part[name] for name in value} == expected


OWN = {"coding": [{"system": "http://hospital.example/codes", "code": "AGE", "display": "Age at admission"}]}
KNOWN = {"coding": [{"system": LOINC, "code": "8302-2", "display": "Age (years)"}]}


@pytest.mark.parametrize(
    "code", [{"text": "Age"}, {"text": "Alter bei Aufnahme"}, OWN, KNOWN, {**KNOWN, "text": "x"}]
)
def test_an_age_in_the_display_text_is_capped(code):
    for value, expected in ((97, 90), (45, 45)):
        assert observed(code, valueInteger=value)["valueInteger"] == expected
        assert (
            observed(OTHER, component=[{"code": code, "valueInteger": value}])["component"][0]["valueInteger"]
            == expected
        )
    years = {"value": 97, "system": UCUM, "code": "a"}
    assert observed(code, valueQuantity=years)["valueQuantity"]["value"] == 90


@pytest.mark.parametrize("text", ["ALT", "Gestational age", "Age-adjusted D-dimer", "Average", ["Age"]])
def test_texts_without_an_age_are_not_changed(text):
    assert observed({"text": text}, valueInteger=280)["valueInteger"] == 280
    milligrams = {"value": 97, "system": UCUM, "code": "mg"}
    assert observed({"text": "Age pigment"}, valueQuantity=milligrams)["valueQuantity"] == milligrams


@pytest.mark.parametrize(
    "settings",
    [
        {"preset": RulePreset.PAPER},
        {"rules": (rule("Observation.code", "redact"),)},
        {"rules": (rule("nodesByType('Coding')", "keep"),)},
        {"rules": (rule("nodesByType('CodeableConcept').text", "keep"),)},
    ],
)
def test_other_rules_for_codes_hide_ages_as_well(settings):
    raw = {"resourceType": "Observation", "id": "1", "status": "final", "code": AGE, "valueInteger": 97}
    make = maker(**settings)
    for _ in range(2):
        assert run(make, raw)["valueInteger"] == 90
        parts = {**raw, "component": [{"code": AGE, "valueInteger": 97}]}
        assert run(make, parts)["component"][0]["valueInteger"] == 90


def test_values_that_are_not_ages_are_kept():
    assert observed(OTHER, valueInteger=97)["valueInteger"] == 97
    assert observed(OTHER, valueQuantity={"value": 97})["valueQuantity"]["value"] == 97
    days = {"value": 500, "system": UCUM, "code": "d"}
    assert observed(OTHER, valueQuantity=days)["valueQuantity"] == days


@pytest.mark.parametrize(
    ("unit", "value", "expected"), [("mo", 1164, 1080), ("d", 40_000, 32_873), ("wk", 5000, 4696)]
)
def test_no_age_over_89_years_remains_in_any_unit(unit, value, expected):
    deidentified = observed(OTHER, valueQuantity={"value": value, "system": UCUM, "code": unit})
    assert deidentified["valueQuantity"]["value"] == expected


@pytest.mark.parametrize("name", ["onsetRange", "abatementRange"])
def test_ranges_of_ages_are_ages(name):
    low, high = {"value": 95}, {"value": 1164, "system": UCUM, "code": "mo"}
    deidentified = deidentify({"resourceType": "Condition", "id": "1", name: {"low": low, "high": high}})[
        name
    ]
    assert (deidentified["low"]["value"], deidentified["high"]["value"]) == (90, 1080)


def test_an_age_in_an_unknown_unit_is_removed():
    deidentified = deidentify(
        {"resourceType": "Condition", "id": "1", "onsetAge": {"value": 1164, "unit": "moons"}}
    )
    assert "onsetAge" not in deidentified


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("What is your age?", {"valueInteger": 97}, 90),
        ("Wie alt sind Sie? (Alter)", {"valueDecimal": 97.5}, 90),
        ("Year of birth", {"valueInteger": 1928}, 1936),
        ("Blood pressure", {"valueInteger": 120}, 120),
        ("Birth weight (kg)", {"valueDecimal": 3.25}, 3.25),
        ("Percentage of dosage", {"valueInteger": 95}, 95),
    ],
)
def test_answers_to_questions_about_age_are_hidden(text, value, expected):
    item = {"linkId": "1", "text": text, "answer": [value]}
    deidentified = deidentify(
        {"resourceType": "QuestionnaireResponse", "id": "1", "status": "completed", "item": [item]}
    )
    assert deidentified["item"][0]["answer"][0][next(iter(value))] == expected


@pytest.mark.parametrize("dates", [DateHandling.YEAR, DateHandling.SHIFT])
def test_no_event_year_reveals_an_age_over_89(dates):
    raw = {"resourceType": "Condition", "id": "1", "subject": {"reference": "Patient/1"}}
    deidentified = deidentify(
        {**raw, "onsetDateTime": "1931-05-01", "recordedDate": "2020-05-01"}, dates=dates
    )
    assert deidentified["onsetDateTime"] == "1936"
    assert deidentified["recordedDate"][:4] in ("2019", "2020")


def test_birth_year_of_the_deceased_is_capped_from_death():
    def born(birth, **more):
        return deidentify({"resourceType": "Patient", "id": "1", "birthDate": birth, **more}).get("birthDate")

    assert born("1925-01-01") == "1936"  # alive in 2026
    assert born("1925-01-01", deceasedBoolean=False) == "1936"
    assert born("1900-01-01", deceasedDateTime="1960-05-05") == "1900"  # died at 60: not made younger
    assert born("1900-01-01", deceasedDateTime="1995-05-05") == "1905"  # died at 95
    assert born("1925-01-01", deceasedBoolean=True) is None  # the age at death is unknown
    assert born("1950-01-01", deceasedBoolean=True) == "1950"
    deidentified = deidentify({"resourceType": "Patient", "id": "1", "deceasedDateTime": "1930-01-01"})
    assert deidentified["deceasedDateTime"] == "1930"


def test_years_of_the_deceased_remain_if_the_document_has_the_death():
    patient = {"resourceType": "Patient", "id": "1", "birthDate": "1900", "deceasedDateTime": "1960"}
    event = {
        "resourceType": "Condition",
        "id": "2",
        "subject": {"reference": "Patient/1"},
        "onsetDateTime": "1930",
    }
    entries = [{"resource": patient}, {"resource": event}]
    deidentified = run(maker(), {"resourceType": "Bundle", "type": "collection", "entry": entries})
    assert deidentified["entry"][1]["resource"]["onsetDateTime"] == "1930"


def test_an_age_beside_a_year_does_not_reveal_a_birth_before_the_cap():
    # 85 in 2015 is 96 in 2026.
    age = {"value": 85, "system": UCUM, "code": "a"}
    deidentified = deidentify(
        {"resourceType": "Condition", "id": "1", "onsetAge": age, "recordedDate": "2015-01-01"}
    )
    assert "onsetAge" not in deidentified
    deidentified = deidentify(
        {"resourceType": "Condition", "id": "1", "onsetAge": age, "recordedDate": "2024-01-01"}
    )
    assert deidentified["onsetAge"]["value"] == 85
    assert "valueInteger" not in observed(AGE, valueInteger=85, effectiveDateTime="2015-01-01")
    assert observed(AGE, valueInteger=85, effectiveDateTime="2015-01-01")["dataAbsentReason"]
    assert observed(AGE, valueInteger=85, effectiveDateTime="2024-01-01")["valueInteger"] == 85


@pytest.mark.parametrize(
    ("code", "unit", "value", "stays"),
    [
        ("777-3", "/L", 250_000_000_000, True),
        ("777-3", "/L", 123_456_789, False),  # no count of platelets
        ("777-3", "/L", 250_123_456_789, False),  # exact to the last digit: no count at all
        ("777-3", "mg", 250_000_000_000, False),
        ("8302-2", "cm", 123_456_789, False),
        ("8302-2", "cm", 1_234_567.89, False),
        ("8302-2", "cm", 168.94285714285715, True),
    ],
)
def test_a_number_of_nine_digits_beside_a_unit_must_be_plausible(code, unit, value, stays):
    make = maker()
    code = {"coding": [{"system": LOINC, "code": code}]}
    raw = {"resourceType": "Observation", "id": "1", "status": "final", "code": code}
    for _ in range(2):  # the second time the unit is known
        deidentified = run(
            make, {**raw, "valueQuantity": {"value": value, "system": UCUM, "code": unit, "unit": unit}}
        )
        assert ("valueQuantity" in deidentified) is stays
    dropped = make.take_counts().dropped
    assert (("Observation.valueQuantity", "number too long") in dropped) is not stays


@pytest.mark.parametrize("code", [AGE, OTHER], ids=["an age", "any time"])
@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (9.7, "10.a", {"value": 9, "system": UCUM, "code": "10.a"}),
        (0.97, "100.a", {"value": 1, "system": UCUM, "code": "100.a"}),
        (3061, "Ms", {"value": 2841, "system": UCUM, "code": "Ms"}),
        (97, "a{in Pisa}", {"value": 90, "system": UCUM, "code": "a"}),
        (8.9, "10.a", {"value": 8.9, "system": UCUM, "code": "10.a"}),
    ],
)
def test_a_time_over_89_years_is_hidden_in_prefixed_multiplied_and_annotated_units(
    code, value, unit, expected
):
    deidentified = observed(code, valueQuantity={"value": value, "unit": "x", "system": UCUM, "code": unit})
    assert deidentified["valueQuantity"] == expected
