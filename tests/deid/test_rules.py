"""Rule tables: matching of paths, precedence of the first match, and refusal of invalid paths at load."""

from __future__ import annotations

import pytest
from tests.deid.record_examples import deidentify, maker, rule

from abaton.deid.rules import read_path, read_table
from abaton.errors import SettingsError

PATIENT = {
    "resourceType": "Patient",
    "id": "1",
    "name": [{"family": "Smith", "given": ["Jo"]}],
    "telecom": [{"system": "phone", "value": "050"}, {"system": "email", "value": "jo@x"}],
    "address": [{"city": "Rome", "postalCode": "00184", "country": "IT"}],
    "birthDate": "1980-02-03",
}


@pytest.mark.parametrize(
    "path",
    [
        "", "Patient", "patient.name", "Smith.name", "Patient.nmae", "Patient..name", "Patient.name[0]",
        "Patient.name.exists()", "nodesByType('Smith')", "nodesByType(HumanName)", "Patient.name.where(use)",
        "Patient.name.where(use = 'a' and x='b')", "Patient.name | Patient.id", "nodesByName('name')", "%resource.id",
        "Patient.name.where(nothing='x')", "Patient.id", "Patient.identifier", "Resource.meta",
        "nodesByType('Patient')",
    ],
)  # fmt: skip
def test_unknown_syntax_and_unknown_elements_fail_at_load(path):
    with pytest.raises(SettingsError):
        maker(rules=(rule(path, "redact"),))


@pytest.mark.parametrize(
    ("path", "method", "settings"),
    [
        ("Patient.name", "shred", {}),
        ("Patient.name", "shift", {}),
        ("Patient.birthDate", "generalise", {}),
        ("Patient.birthDate", "generalise", {"to": "decade"}),
        ("Patient.birthDate", "generalise", {"to": "bins", "width": "5"}),
        ("Patient.birthDate", "redact", {"loud": "yes"}),
        ("Observation.value", "perturb", {"range": "x"}),
        ("Patient.gender", "perturb", {"range": "1"}),
        ("Patient.name", "substitute", {}),
        ("Patient.active", "scrub", {}),
        ("Patient.active", "terminology", {}),
        ("Patient.active", "pseudonymise", {}),
        ("Patient.active", "cap", {}),
    ],
)
def test_a_method_that_does_not_fit_its_element_fails_at_load(path, method, settings):
    with pytest.raises(SettingsError):
        maker(rules=(rule(path, method, **settings),))


def test_the_first_match_wins():
    both = (rule("Patient.birthDate", "redact"), rule("Patient.birthDate", "keep"))
    assert "birthDate" not in deidentify(PATIENT, rules=both)
    assert deidentify(PATIENT, rules=both[::-1])["birthDate"] == "1980-02-03"


def test_a_rule_below_an_element_comes_before_a_later_rule_for_the_whole():
    deidentified = deidentify(PATIENT, rules=(rule("Patient.address.country", "keep"),))
    assert deidentified["address"] == [{"country": "IT"}]
    assert deidentify(PATIENT, keep_country=True)["address"] == [{"country": "IT"}]
    assert "address" not in deidentify(PATIENT)


def test_where_selects_values():
    deidentified = deidentify(PATIENT, rules=(rule("Patient.telecom.where(system='phone').value", "keep"),))
    assert deidentified["telecom"] == [{"value": "050"}]
    deidentified = deidentify(
        PATIENT, rules=(rule("nodesByType('ContactPoint').where(system='email')", "keep"),)
    )
    assert deidentified["telecom"] == [{"system": "email", "value": "jo@x"}]


def test_keep_on_an_object_keeps_what_is_in_it_but_remaps_references():
    record = {
        "resourceType": "Observation", "id": "1", "status": "final", "code": {"text": "free"},
        "component": [{"code": {"text": "words"}, "valueString": "more"}],
        "note": [{"text": "note", "authorReference": {"reference": "Practitioner/9"}}],
    }  # fmt: skip
    deidentified = deidentify(
        record, rules=(rule("Observation.note", "keep"), rule("Observation.component.code", "keep"))
    )
    assert deidentified["note"][0]["text"] == "note"
    assert "Practitioner/9" not in str(deidentified["note"])
    assert deidentified["component"][0]["code"] == {"text": "words"}
    assert deidentified["code"] == {"text": "masked"}


def test_an_extension_can_be_allowed_by_its_address():
    race = "http://hl7.org/fhir/us/core/StructureDefinition/us-core-birthsex"
    record = {
        **PATIENT,
        "extension": [{"url": race, "valueCode": "F"}, {"url": "http://x", "valueString": "Smith"}],
    }
    deidentified = deidentify(record, rules=(rule(f"nodesByType('Extension').where(url='{race}')", "keep"),))
    assert [resource["url"] for resource in deidentified["extension"]][1:] == [race]


def test_rules_of_a_block_hold_inside_itself():
    item = {"linkId": "q1", "item": [{"linkId": "q2", "answer": [{"valueInteger": 3}]}]}
    record = {"resourceType": "QuestionnaireResponse", "id": "1", "status": "completed", "item": [item]}
    deidentified = deidentify(record)
    inner = deidentified["item"][0]["item"][0]
    assert inner["answer"] == [{"valueInteger": 3}]
    assert inner["linkId"] not in ("q2", deidentified["item"][0]["linkId"])
    expected = deidentify(record, rules=(rule("QuestionnaireResponse.item.linkId", "keep"),))
    assert expected["item"][0]["item"][0]["linkId"] == "q2"


def test_a_table_is_read_from_text():
    (one,) = read_table("# remark\n\nPatient.telecom.where(system='the phone')  redact\n")
    assert read_path(one.path).text == "Patient.telecom.where(system='the phone')"
    with pytest.raises(SettingsError, match="line 1"):
        read_table("Patient.name")
