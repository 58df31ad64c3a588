"""Every method, by example."""

from __future__ import annotations

from datetime import date

import pytest
from making import deidentify, maker, rule, run

from abaton.deid.free_text import black_out, words_of
from abaton.records import Dates

UCUM = "http://unitsofmeasure.org"
CODE = {"coding": [{"system": "http://loinc.org", "code": "8310-5"}]}


def observed(**more):
    return deidentify(
        {"resourceType": "Observation", "id": "1", "status": "final", "code": CODE, **more.pop("raw")}, **more
    )


def patient(birth, **wish):
    return deidentify({"resourceType": "Patient", "id": "1", "birthDate": birth}, **wish).get("birthDate")


@pytest.mark.parametrize(
    ("birth", "kept"),
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
def test_a_birth_date_becomes_a_year_and_ages_over_89_one_class(birth, kept):
    assert patient(birth) == kept


def test_instants_are_floored_and_dates_cut():
    made = observed(
        raw={"effectiveDateTime": "2020-05-06T07:08:09Z", "issued": "2020-05-06T07:08:09.123+02:00"}
    )
    assert made["effectiveDateTime"] == "2020"
    assert made["issued"] == "2020-01-01T00:00:00Z"


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
        made = run(make, raw)
        return date.fromisoformat(made["effectiveDateTime"]), date.fromisoformat(made["issued"][:10])

    make = maker(dates=Dates.SHIFT)
    first, second = dates(make, "a")
    assert (second - first).days == 10
    assert 1 <= (date(2020, 5, 6) - first).days <= 180
    assert dates(make, "a") == (first, second)
    assert len({dates(make, subject)[0] for subject in "abcdefgh"}) > 4
    assert dates(maker(study="lung", dates=Dates.SHIFT), "a") != (first, second)


def test_partial_dates_keep_their_precision_and_without_a_subject_nothing_shifts():
    raw = {
        "resourceType": "Condition",
        "id": "1",
        "subject": {"reference": "Patient/a"},
        "onsetDateTime": "2020-05",
        "recordedDate": "2020",
    }
    made = deidentify(raw, dates=Dates.SHIFT)
    assert len(made["onsetDateTime"]) == 7
    assert len(made["recordedDate"]) == 4
    raw["subject"] = {"display": "x"}
    assert "onsetDateTime" not in deidentify(raw, dates=Dates.SHIFT)


def test_dates_can_be_removed():
    assert "effectiveDateTime" not in observed(raw={"effectiveDateTime": "2020-05-06"}, dates=Dates.REMOVE)


@pytest.mark.parametrize(
    ("quantity", "kept"),
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
def test_a_measure_keeps_its_number_and_a_unit_that_is_one(quantity, kept):
    made = observed(raw={"valueQuantity": quantity})
    assert made.get("valueQuantity") == kept
    assert ("dataAbsentReason" in made) == (kept is None)


def test_ages_are_capped():
    raw = {
        "resourceType": "Condition",
        "id": "1",
        "subject": {"reference": "Patient/a"},
        "onsetAge": {"value": 97, "code": "a", "system": "http://unitsofmeasure.org"},
    }
    assert deidentify(raw)["onsetAge"]["value"] == 90
    made = observed(raw={"valueInteger": 95}, rules=(rule("Observation.valueInteger", "cap", over="89"),))
    assert made["valueInteger"] == 90


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


def test_codes_and_places_keep_a_prefix():
    raw = {
        "resourceType": "Condition",
        "id": "1",
        "subject": {"reference": "Patient/a"},
        "code": {"coding": [{"system": "http://hl7.org/fhir/sid/icd-10", "code": "I47.1"}]},
    }
    made = deidentify(raw, rules=(rule("Condition.code.coding", "generalise", to="code-prefix", length="3"),))
    assert made["code"]["coding"][0]["code"] == "I47"
    where = {"resourceType": "Patient", "id": "1", "address": [{"postalCode": "00184", "city": "Rome"}]}
    made = deidentify(
        where, rules=(rule("Patient.address.postalCode", "generalise", to="prefix", length="2"),)
    )
    assert made["address"] == [{"postalCode": "00"}]


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
    made = run(make, raw)
    assert abs(made["valueQuantity"]["value"] - 60) <= 2
    assert made["valueQuantity"]["value"] != 60
    assert run(make, raw) == made
    assert run(make, made) == made


def test_a_fixed_value_can_stand_in():
    made = deidentify(
        {"resourceType": "Patient", "id": "1", "gender": "male"},
        rules=(rule("Patient.gender", "substitute", value="unknown"),),
    )
    assert made["gender"] == "unknown"


def test_text_is_scrubbed_of_the_persons_own_words():
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
    made = run(make, bundle)
    kept = made["entry"][1]["resource"]["valueString"]
    assert kept == "[…] […] came, […] too; call […] or mail […] on […]. Temperature 38.5."
    assert run(make, made) == made
    assert "valueString" not in deidentify(text, rules=scrubbed)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("karoIidis came", "[…] came"),
        ("KAR0LlD1S came", "[…] came"),
        ("n1kos-pau1", "[…]"),
        ("100 pills in 10 days", "100 pills in 10 days"),
    ],
)
def test_letters_and_digits_that_look_alike_are_seen_through(text, kept):
    person = {
        "resourceType": "Patient",
        "id": "77",
        "name": [{"family": "Karolidis", "given": ["Nikos", "Paul"]}],
    }
    assert black_out(text, words_of(person)) == kept


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
def test_only_codes_that_can_be_nothing_else_stay(coding, stays):
    made = observed(
        raw={"category": [{"coding": [{**coding, "display": "Smith", "version": "Smith"}], "text": "Smith"}]}
    )
    assert made.get("category") == ([{"coding": [coding]}] if stays else None)
    assert "Smith" not in str(made)
