"""Rules of the United States that a study allows by name (US Core, HIPAA's ZIP codes), and other versions of FHIR."""

from __future__ import annotations

import json

import pytest
from making import HELD, KEY, deidentify, maker, rule, run

from abaton.errors import Refused
from abaton.records import Allowed, Deidentification, Function, Need, Want, problems
from abaton.deid.methods import small_areas
from abaton.records.export import Job, export
from abaton.fhir.file_reader import find

CORE = "http://hl7.org/fhir/us/core/StructureDefinition/us-core-"
OMB = "urn:oid:2.16.840.1.113883.6.238"


def race(name="race"):
    return {
        "url": f"{CORE}{name}",
        "extension": [
            {
                "url": "ombCategory",
                "valueCoding": {"system": OMB, "code": "2106-3", "display": "White Smith"},
            },
            {"url": "detailed", "valueCoding": {"system": "http://smith.example", "code": "Smith"}},
            {"url": "text", "valueString": "Smith"},
        ],
    }


PATIENT = {
    "resourceType": "Patient",
    "id": "1",
    "extension": [
        race(),
        race("ethnicity"),
        {"url": f"{CORE}birthsex", "valueCode": "F"},
        {"url": f"{CORE}birthsex", "valueCode": "Smith"},
        {"url": f"{CORE}tribal-affiliation", "extension": [{"url": "x", "valueString": "Smith"}]},
        {"url": "http://smith.example", "valueString": "Smith"},
    ],
    "address": [
        {
            "line": ["1 Smith Street"],
            "city": "Boston",
            "state": "MA",
            "postalCode": "02134-1234",
            "country": "US",
        },
        {"state": "Smithland", "postalCode": "Smith"},
        {"state": "NH", "postalCode": "03601"},
    ],
}


def test_nothing_of_it_stays_unless_it_is_allowed():
    made = deidentify(PATIENT)
    assert len(made["extension"]) == 1  # the mark
    assert "address" not in made


def test_us_core_keeps_the_codes_and_no_word():
    made = deidentify(PATIENT, allow=(Allowed.US_CORE,))
    assert not problems(made)
    assert "Smith" not in json.dumps(made)
    kept = {each["url"].removeprefix(CORE): each for each in made["extension"][1:]}
    assert set(kept) == {"race", "ethnicity", "birthsex"}
    assert kept["race"]["extension"] == [
        {"url": "ombCategory", "valueCoding": {"system": OMB, "code": "2106-3"}}
    ]
    assert kept["birthsex"]["valueCode"] == "F"
    assert deidentify(made, allow=(Allowed.US_CORE,)) == made


def test_zip_codes_follow_the_rule_for_small_areas():
    make = maker(allow=(Allowed.ZIP3,))
    made = run(make, PATIENT)
    assert made["address"] == [{"state": "MA", "postalCode": "021"}, {"state": "NH", "postalCode": "000"}]
    assert make.tally().dropped["Patient.address.postalCode", "no ZIP code of the United States"] == 1
    year, small = small_areas()
    assert year == 2000
    assert len(small) == 17
    other = deidentify(PATIENT, rules=(rule("Patient.address.postalCode", "generalise", to="zip3"),))
    assert [each["postalCode"] for each in other["address"]] == ["021", "000"]


CODE = {"coding": [{"system": "http://loinc.org", "code": "8302-2"}]}


@pytest.mark.parametrize(
    ("version", "raw"),
    [
        ("STU3", {"resourceType": "ProcedureRequest"}),
        ("STU3", {"resourceType": "Condition", "clinicalStatus": "active"}),
        ("STU3", {"resourceType": "Observation", "status": "final", "code": CODE, "comment": "Smith"}),
        ("STU3", {"resourceType": "Patient", "animal": {}}),
        ("STU3 or R5", {"resourceType": "Encounter", "status": "finished", "reason": [{"text": "Smith"}]}),
        ("R5", {"resourceType": "DeviceUsage"}),
        ("R5", {"resourceType": "Encounter", "status": "completed", "class": [{"coding": []}]}),
        ("R5", {"resourceType": "MedicationRequest", "medication": {"concept": CODE}}),
        ("R5", {"resourceType": "Procedure", "status": "completed", "occurrenceDateTime": "2020"}),
    ],
)
def test_other_versions_are_refused_by_their_name(version, raw, tmp_path):
    for document in (
        {"id": "1", **raw},
        {"resourceType": "Bundle", "type": "collection", "entry": [{"resource": {"id": "1", **raw}}]},
    ):
        for _ in range(2):
            with pytest.raises(Refused, match=f"FHIR {version}") as refused:
                run(maker(), document)
            assert "Smith" not in str(refused.value)
    (tmp_path / "x.ndjson").write_text(
        '{"resourceType":"Patient","id":"1"}\n' + json.dumps({"id": "1", **raw}) + "\n"
    )
    # A study that does not need the element that shows the version, or not even the type, is told as well.
    for wants in ((), (Want("Condition", Function.ELEMENT, ("code",)), Want("Patient"))):
        job = Job(Need("s", wants, Deidentification()), KEY, 2026, HELD)
        (outcome,) = export(find([str(tmp_path / "x.ndjson")]), tmp_path / f"out-{len(wants)}", job)
        assert f"FHIR {version}" in outcome.error
        assert "file 1 line 2" in outcome.error
