"""Examples of every method."""

from __future__ import annotations

from datetime import date

import pytest
from tests.deid.record_examples import deidentify, maker, rule, run

from abaton.deid import DateHandling
from abaton.deid.free_text import person_terms, redact_text

UCUM = "http://unitsofmeasure.org"
CODE = {"coding": [{"system": "http://loinc.org", "code": "8310-5"}]}


def observed(**more):
    return deidentify(
        {"resourceType": "Observation", "id": "1", "status": "final", "code": CODE, **more.pop("raw")}, **more
    )


def patient(birth, **settings):
    return deidentify({"resourceType": "Patient", "id": "1", "birthDate": birth}, **settings).get("birthDate")


@pytest.mark.parametrize(
    ("birth", "expected"),
    [
        ("1980-02-03", "1980"),
        ("1980-02", "1980"),
        ("1980", "1980"),
        ("1921-01-01", "1936"),
        ("1936", "1936"),
        ("Smith", None),
        ("19801", None),
        (1980, None),
    ],
)
def test_a_birth_date_becomes_a_year_and_ages_over_89_one_class(birth, expected):
    assert patient(birth) == expected


def test_instants_and_dates_are_generalised_to_the_year():
    deidentified = observed(
        raw={"effectiveDateTime": "2020-05-06T07:08:09Z", "issued": "2020-05-06T07:08:09.123+02:00"}
    )
    assert deidentified["effectiveDateTime"] == "2020"
    assert deidentified["issued"] == "2020-01-01T00:00:00Z"


def test_dates_shift_by_one_offset_per_subject_and_study():
    def dates(make, subject):
        raw = {
            "resourceType": "Observation",
            "id": "1",
            "status": "final",
            "code": CODE,
            "subject": {"reference": f"Patient/{subject}"},
        }
        raw |= {"effectiveDateTime": "2020-05-06T07:08:09Z", "issued": "2020-05-16T01:01:01Z"}
        deidentified = run(make, raw)
        return date.fromisoformat(deidentified["effectiveDateTime"]), date.fromisoformat(
            deidentified["issued"][:10]
        )

    make = maker(dates=DateHandling.SHIFT)
    first, second = dates(make, "a")
    assert (second - first).days == 10
    assert 1 <= (date(2020, 5, 6) - first).days <= 180
    assert dates(make, "a") == (first, second)
    assert len({dates(make, subject)[0] for subject in "abcdefgh"}) > 4
    assert dates(maker(study="lung", dates=DateHandling.SHIFT), "a") != (first, second)


def test_partial_dates_keep_their_precision_and_without_a_subject_nothing_shifts():
    raw = {
        "resourceType": "Condition",
        "id": "1",
        "subject": {"reference": "Patient/a"},
        "onsetDateTime": "2020-05",
        "recordedDate": "2020",
    }
    deidentified = deidentify(raw, dates=DateHandling.SHIFT)
    assert len(deidentified["onsetDateTime"]) == 7
    assert len(deidentified["recordedDate"]) == 4
    raw["subject"] = {"display": "x"}
    assert "onsetDateTime" not in deidentify(raw, dates=DateHandling.SHIFT)


def test_dates_can_be_removed():
    assert "effectiveDateTime" not in observed(
        raw={"effectiveDateTime": "2020-05-06"}, dates=DateHandling.REMOVE
    )


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        ({"value": 6, "unit": "mg/l", "system": UCUM, "code": "mg/L"}, {"value": 6, "system": UCUM, "code": "mg/L"}),
        ({"value": 6.3, "unit": "mmol/L"}, {"value": 6.3, "unit": "mmol/L"}),
        ({"value": 6.3, "unit": "per Smith"}, {"value": 6.3}),
        ({"value": 6.3, "code": "{Smith}", "system": "http://unitsofmeasure.org"}, {"value": 6.3}),
        ({"value": 97, "system": UCUM, "code": "%{saturation}"}, {"value": 97, "system": UCUM, "code": "%"}),
        ({"value": 8, "system": UCUM, "code": "{Smith}/min"}, {"value": 8, "system": UCUM, "code": "/min"}),
        ({"value": 8, "unit": "mmol/mol{Hb}"}, {"value": 8, "unit": "mmol/mol"}),
        ({"value": 8, "system": UCUM, "code": "mg/{Smith}"}, {"value": 8}),
        ({"value": 93, "unit": "years", "system": UCUM, "code": "a"}, {"value": 90, "system": UCUM, "code": "a"}),
        ({"value": 5, "comparator": "<"}, {"value": 5, "comparator": "<"}),
        ({"value": 5, "comparator": "Smith"}, {"value": 5}),
        ({"value": "Smith"}, None),
    ],
)  # fmt: skip
def test_measure_keeps_the_number_and_a_valid_unit(quantity, expected):
    deidentified = observed(raw={"valueQuantity": quantity})
    assert deidentified.get("valueQuantity") == expected
    assert ("dataAbsentReason" in deidentified) == (expected is None)


def test_ages_are_capped():
    raw = {
        "resourceType": "Condition",
        "id": "1",
        "subject": {"reference": "Patient/a"},
        "onsetAge": {"value": 97, "code": "a", "system": "http://unitsofmeasure.org"},
    }
    assert deidentify(raw)["onsetAge"]["value"] == 90
    deidentified = observed(
        raw={"valueInteger": 95}, rules=(rule("Observation.valueInteger", "cap", over="89"),)
    )
    assert deidentified["valueInteger"] == 90


def test_numbers_are_binned_and_ages_banded():
    bins = (rule("Observation.valueQuantity", "generalise", to="bins", width="5"),)
    assert observed(raw={"valueQuantity": {"value": 63.7}}, rules=bins)["valueQuantity"] == {"value": 60}
    band = (rule("Condition.onsetAge", "generalise", to="age-band", width="10"),)
    raw = {
        "resourceType": "Condition",
        "id": "1",
        "subject": {"reference": "Patient/a"},
        "onsetAge": {"value": 47},
    }
    assert deidentify(raw, rules=band)["onsetAge"] == {"value": 40}


def test_codes_and_postal_codes_keep_a_prefix():
    raw = {
        "resourceType": "Condition",
        "id": "1",
        "subject": {"reference": "Patient/a"},
        "code": {"coding": [{"system": "http://hl7.org/fhir/sid/icd-10", "code": "I47.1"}]},
    }
    deidentified = deidentify(
        raw, rules=(rule("Condition.code.coding", "generalise", to="code-prefix", length="3"),)
    )
    assert deidentified["code"]["coding"][0]["code"] == "I47"
    where = {"resourceType": "Patient", "id": "1", "address": [{"postalCode": "00184", "city": "Rome"}]}
    deidentified = deidentify(
        where, rules=(rule("Patient.address.postalCode", "generalise", to="prefix", length="2"),)
    )
    assert deidentified["address"] == [{"postalCode": "00"}]


def test_noise_is_bounded_repeatable_and_added_once():
    noise = (rule("Observation.valueQuantity", "perturb", range="2", digits="1"),)
    make = maker(rules=noise)
    raw = {
        "resourceType": "Observation",
        "id": "1",
        "status": "final",
        "code": CODE,
        "valueQuantity": {"value": 60.0},
    }
    deidentified = run(make, raw)
    assert abs(deidentified["valueQuantity"]["value"] - 60) <= 2
    assert deidentified["valueQuantity"]["value"] != 60
    assert run(make, raw) == deidentified
    assert run(make, deidentified) == deidentified


def test_a_fixed_value_can_be_substituted():
    deidentified = deidentify(
        {"resourceType": "Patient", "id": "1", "gender": "male"},
        rules=(rule("Patient.gender", "substitute", value="unknown"),),
    )
    assert deidentified["gender"] == "unknown"


def test_text_is_redacted_of_the_names_of_the_person():
    person = {
        "resourceType": "Patient",
        "id": "77",
        "name": [{"family": "Smith-Jones", "given": ["Jo"]}],
        "birthDate": "1980-02-03",
        "telecom": [{"value": "+39 050 3153711"}],
    }
    note = "Jo SMITH came, Jones too; call +39 050 3153711 or mail a.b@c.de on 2020-03-04. Temperature 38.5."
    text = {"resourceType": "Observation", "id": "1", "status": "final", "code": CODE, "valueString": note}
    scrubbed = (rule("Observation.valueString", "scrub"),)
    make = maker(rules=scrubbed)
    bundle = {
        "resourceType": "Bundle",
        "type": "collection",
        "entry": [{"resource": person}, {"resource": text}],
    }
    deidentified = run(make, bundle)
    expected = deidentified["entry"][1]["resource"]["valueString"]
    assert expected == "[…] […] came, […] too; call […] or mail […] on […]. Temperature 38.5."
    assert run(make, deidentified) == deidentified
    assert "valueString" not in deidentify(text, rules=scrubbed)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("karoIidis came", "[…] came"),
        ("KAR0LlD1S came", "[…] came"),
        ("n1kos-pau1", "[…]"),
        ("100 pills in 10 days", "100 pills in 10 days"),
    ],
)
def test_look_alike_characters_are_folded(text, expected):
    person = {
        "resourceType": "Patient",
        "id": "77",
        "name": [{"family": "Karolidis", "given": ["Nikos", "Paul"]}],
    }
    assert redact_text(text, person_terms(person)) == expected


@pytest.mark.parametrize(
    ("coding", "stays"),
    [
        ({"system": "http://snomed.info/sct", "code": "38341003"}, True),
        ({"system": "http://snomed.info/sct", "code": "38341004"}, False),
        ({"system": "http://loinc.org", "code": "8310-5"}, True),
        ({"system": "http://loinc.org", "code": "Smith"}, False),
        ({"system": "http://hospital.example", "code": "8310-5"}, False),
        ({"code": "8310-5"}, False),
        ({"system": ["http://loinc.org"], "code": "8310-5"}, False),
        ({"system": "http://terminology.hl7.org/CodeSystem/observation-category", "code": "exam"}, True),
        ({"system": "http://terminology.hl7.org/CodeSystem/observation-category", "code": "smith"}, False),
    ],
)
def test_only_codes_of_public_terminologies_are_kept(coding, stays):
    deidentified = observed(
        raw={"category": [{"coding": [{**coding, "display": "Smith", "version": "Smith"}], "text": "Smith"}]}
    )
    assert deidentified.get("category") == ([{"coding": [coding]}] if stays else None)
    assert "Smith" not in str(deidentified)
