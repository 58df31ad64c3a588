"""Opt-in rules for the United States (US Core, HIPAA's ZIP codes), and other versions of FHIR."""

from __future__ import annotations

import json

import pytest
from tests.deid.record_examples import KEY, LEGAL_BASIS, deidentify, maker, rule, run

from abaton.deid import DataRequest, DataRequirement, DeidentificationSettings, RequirementPurpose, RuleOptIn
from abaton.deid.methods import small_zip3_areas
from abaton.errors import RefusedError
from abaton.fhir.file_reader import find_files
from abaton.fhir.validation import validate_resource
from abaton.records.export import ExportJob, export_records

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


def test_us_core_elements_are_dropped_without_the_opt_in():
    deidentified = deidentify(PATIENT)
    assert len(deidentified["extension"]) == 1  # the mark
    assert "address" not in deidentified


def test_us_core_keeps_codes_without_displays():
    deidentified = deidentify(PATIENT, opt_ins=(RuleOptIn.US_CORE,))
    assert not validate_resource(deidentified)
    assert "Smith" not in json.dumps(deidentified)
    expected = {resource["url"].removeprefix(CORE): resource for resource in deidentified["extension"][1:]}
    assert set(expected) == {"race", "ethnicity", "birthsex"}
    assert expected["race"]["extension"] == [
        {"url": "ombCategory", "valueCoding": {"system": OMB, "code": "2106-3"}}
    ]
    assert expected["birthsex"]["valueCode"] == "F"
    assert deidentify(deidentified, opt_ins=(RuleOptIn.US_CORE,)) == deidentified


def test_zip_codes_follow_the_rule_for_small_areas():
    make = maker(opt_ins=(RuleOptIn.ZIP3,))
    deidentified = run(make, PATIENT)
    assert deidentified["address"] == [
        {"state": "MA", "postalCode": "021"},
        {"state": "NH", "postalCode": "000"},
    ]
    assert make.take_counts().dropped["Patient.address.postalCode", "not a US ZIP code"] == 1
    year, small = small_zip3_areas()
    assert year == 2000
    assert len(small) == 17
    other = deidentify(PATIENT, rules=(rule("Patient.address.postalCode", "generalise", to="zip3"),))
    assert [resource["postalCode"] for resource in other["address"]] == ["021", "000"]


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
            with pytest.raises(RefusedError, match=f"FHIR {version}") as refused:
                run(maker(), document)
            assert "Smith" not in str(refused.value)
    (tmp_path / "x.ndjson").write_text(
        '{"resourceType":"Patient","id":"1"}\n' + json.dumps({"id": "1", **raw}) + "\n"
    )
    # The version is also refused if the study does not require the element that shows it, or the type.
    for wants in (
        (),
        (DataRequirement("Condition", RequirementPurpose.ELEMENT, ("code",)), DataRequirement("Patient")),
    ):
        job = ExportJob(DataRequest("s", wants, DeidentificationSettings()), KEY, 2026, LEGAL_BASIS)
        (outcome,) = export_records(
            find_files([str(tmp_path / "x.ndjson")]), tmp_path / f"out-{len(wants)}", job
        )
        assert f"FHIR {version}" in outcome.error
        assert "file 1 line 2" in outcome.error
