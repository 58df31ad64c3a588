"""References: all seven forms lead to the same resource before and after."""

from __future__ import annotations

from typing import Any

from tests.deid.record_examples import KEY, deidentify, maker, run

from abaton.deid import Mechanism


def bundle(
    *resources: dict[str, Any], server: str = "https://a.example/fhir", kind: str = "collection"
) -> dict[str, Any]:
    entries = [{"fullUrl": f"{server}/{r['resourceType']}/{r['id']}", "resource": r} for r in resources]
    return {"resourceType": "Bundle", "id": "b", "type": kind, "entry": entries}


def observation(number: int, subject: Any) -> dict[str, Any]:
    code = {"coding": [{"system": "http://loinc.org", "code": "8310-5"}]}
    return {
        "resourceType": "Observation",
        "id": f"o{number}",
        "status": "final",
        "code": code,
        "subject": subject,
    }


PATIENT = {
    "resourceType": "Patient",
    "id": "p1",
    "identifier": [{"system": "http://hospital.example", "value": "MRN 7"}],
}
FORMS: list[Any] = [
    {"reference": "Patient/p1"},
    {"reference": "https://a.example/fhir/Patient/p1"},
    {"reference": "Patient/p1/_history/3"},
    {"reference": "https://a.example/fhir/Patient/p1/_history/3"},
    {"reference": "Patient?identifier=http://hospital.example|MRN%207"},
    {"identifier": {"system": "http://hospital.example", "value": "MRN 7"}, "type": "Patient"},
    {"identifier": {"system": "http://hospital.example", "value": "MRN 7"}, "display": "Jo Smith"},
    {"reference": "Patient/p1", "type": "Patient", "display": "Jo Smith"},
]


def test_all_forms_inside_a_bundle_lead_to_the_entry():
    deidentified = deidentify(bundle(PATIENT, *(observation(i, form) for i, form in enumerate(FORMS))))
    address = deidentified["entry"][0]["fullUrl"]
    assert address.startswith("urn:uuid:")
    assert {entry["resource"]["subject"]["reference"] for entry in deidentified["entry"][1:]} == {address}
    assert len({entry["fullUrl"] for entry in deidentified["entry"]}) == len(deidentified["entry"])


def test_urn_references_lead_to_the_entry_with_and_without_an_id():
    urn = "urn:uuid:d78af07c-9cb9-4f31-9b11-c45a28f2eec8"
    for patient in ({"resourceType": "Patient", "id": "x"}, {"resourceType": "Patient"}):
        entries = [{"fullUrl": urn, "resource": patient}, {"resource": observation(1, {"reference": urn})}]
        deidentified = deidentify({"resourceType": "Bundle", "type": "transaction", "entry": entries})
        assert (
            deidentified["entry"][1]["resource"]["subject"]["reference"]
            == deidentified["entry"][0]["fullUrl"]
        )
        assert deidentified["type"] == "collection"


def test_outside_a_bundle_relative_absolute_and_versioned_are_the_same():
    new = deidentify(PATIENT)["id"]
    for form in FORMS[:4]:
        assert deidentify(observation(1, form))["subject"]["reference"] == f"Patient/{new}"


def test_one_subject_keeps_one_identity_over_files_and_two_studies_never_share_it():
    one, other = (
        maker(mechanism=Mechanism.PSEUDONYMISE),
        maker(study="lung", mechanism=Mechanism.PSEUDONYMISE),
    )
    first, second = run(one, PATIENT), run(one, bundle(PATIENT))
    assert first["id"] == second["entry"][0]["resource"]["id"]
    assert run(other, PATIENT)["id"] != first["id"]
    assert run(other, PATIENT)["identifier"][0]["system"] != first["identifier"][0]["system"]
    assert run(maker(site="pisa", mechanism=Mechanism.PSEUDONYMISE), PATIENT)["id"] != first["id"]


def test_equal_ids_of_two_servers_are_two_subjects():
    both = bundle(PATIENT)["entry"] + bundle(PATIENT, server="https://b.example/fhir")["entry"]
    both += bundle(observation(1, {"reference": "https://b.example/fhir/Patient/p1"}))["entry"]
    deidentified = deidentify({"resourceType": "Bundle", "type": "collection", "entry": both})
    ids = [entry["resource"]["id"] for entry in deidentified["entry"]]
    assert ids[0] != ids[1]
    assert deidentified["entry"][2]["resource"]["subject"]["reference"] == deidentified["entry"][1]["fullUrl"]


def test_contained_resources_are_renamed_and_orphans_are_dropped():
    record = observation(1, {"reference": "#smith"})
    record["contained"] = [
        {"resourceType": "Patient", "id": "smith", "name": [{"family": "Smith"}], "gender": "male"},
        {"resourceType": "Practitioner", "id": "unreferenced"},
    ]
    deidentified = deidentify(record)
    (inner,) = deidentified["contained"]
    assert deidentified["subject"] == {"reference": f"#{inner['id']}"}
    assert inner["gender"] == "male"
    assert "mith" not in str(deidentified)
    assert "meta" not in inner


def test_a_contained_resource_may_lead_to_another():
    record = {
        "resourceType": "MedicationRequest", "id": "m", "status": "active", "intent": "order",
        "medicationReference": {"reference": "#a"}, "subject": {"reference": "Patient/p1"},
        "contained": [
            {"resourceType": "Organization", "id": "b", "name": "Smith Ltd"},
            {"resourceType": "Medication", "id": "a", "manufacturer": {"reference": "#b"}},
        ],
    }  # fmt: skip
    deidentified = deidentify(record)
    assert [resource["resourceType"] for resource in deidentified["contained"]] == [
        "Organization",
        "Medication",
    ]
    assert deidentified["contained"][1]["manufacturer"] == {
        "reference": f"#{deidentified['contained'][0]['id']}"
    }
    assert deidentified["contained"][0]["identifier"][0]["value"] == deidentified["contained"][0]["id"]


def test_unresolved_references_are_replaced_only_where_r4_requires_one():
    flag = {
        "resourceType": "Flag",
        "id": "f",
        "status": "active",
        "code": {"text": "x"},
        "subject": {"display": "Jo"},
    }
    assert deidentify(flag)["subject"] == {"display": "masked"}
    assert "subject" not in deidentify(observation(1, {"display": "Jo"}))


def test_addresses_queries_and_links_of_a_bundle_are_gone():
    record = bundle(PATIENT, kind="transaction")
    record["entry"][0] |= {
        "request": {"method": "PUT", "url": "Patient?identifier=MRN7", "ifNoneExist": "identifier=MRN7"},
        "response": {"status": "201", "location": "https://a.example/Patient/p1/_history/1"},
        "link": [{"relation": "self", "url": "https://a.example/Patient/p1"}],
    }
    record["link"] = [{"relation": "self", "url": "https://a.example/Patient?name=Smith"}]
    record["signature"] = {"data": "U21pdGg="}
    deidentified = deidentify(record)
    assert set(deidentified["entry"][0]) == {"fullUrl", "resource"}
    assert not {"link", "signature"} & set(deidentified)
    assert "a.example" not in str(deidentified)


def test_versions_of_one_resource_share_the_identity_but_not_the_address():
    deidentified = deidentify(bundle(PATIENT, PATIENT, kind="history"))
    first, second = deidentified["entry"]
    assert first["resource"]["id"] == second["resource"]["id"]
    assert "fullUrl" in first
    assert "fullUrl" not in second


def test_pseudonyms_depend_on_the_key():
    assert deidentify(PATIENT)["id"] != run(maker(key=KEY[::-1]), PATIENT)["id"]
