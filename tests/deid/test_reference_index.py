"""References across files have the pseudonym of their target or are dropped; subjects are linked by identifier."""

from __future__ import annotations

import json

import pytest
from tests.deid.record_examples import KEY, LEGAL_BASIS, deidentify, maker, run

from abaton.deid import DataRequest, DataRequirement, DateHandling, DeidentificationSettings, Mechanism
from abaton.errors import SettingsError
from abaton.fhir.file_reader import find_files
from abaton.records.export import ExportJob, export_records

UUID = "8f5b3c1e-0000-4000-8000-00000000000a"
MRN = "https://hospital.example/mrn"
PATIENT = {
    "resourceType": "Patient",
    "id": UUID,
    "identifier": [{"system": MRN, "value": "4711"}],
    "birthDate": "1980-02-03",
}
FORMS = [
    {"reference": f"Patient/{UUID}"},
    {"reference": f"https://fhir.example/r4/Patient/{UUID}/_history/2"},
    {"reference": f"urn:uuid:{UUID}"},
    {"reference": f"Patient?identifier={MRN}|4711"},
    {"reference": f"Patient?identifier={MRN}%7C4711"},
    {"type": "Patient", "identifier": {"system": MRN, "value": "4711"}},
    {"identifier": {"system": MRN, "value": "4711"}},
]


def condition(number, subject):
    return {"resourceType": "Condition", "id": str(number), "subject": subject, "recordedDate": "2020-06-01"}


def job(**settings):
    settings = {"mechanism": Mechanism.PSEUDONYMISE, "dates": DateHandling.SHIFT, **settings}
    return ExportJob(DataRequest("heart", (), DeidentificationSettings(**settings)), KEY, 2026, LEGAL_BASIS)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("marks", [(", ", ": "), (",", ":")])
@pytest.mark.parametrize("processes", [1, 2])
def test_every_form_of_reference_leads_to_one_subject_in_every_file(tmp_path, processes, marks):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "Condition.ndjson").write_text(
        "".join(json.dumps(condition(i, form), separators=marks) + "\n" for i, form in enumerate(FORMS))
    )
    (folder / "Patient.ndjson").write_text(json.dumps(PATIENT) + "\n")
    (folder / "Observation.ndjson").write_text(
        json.dumps({"resourceType": "Observation", "id": "1", "status": "final", "code": {"text": "x"}})
        + "\n"
    )
    outcomes = export_records(find_files([str(folder)]), tmp_path / "out", job(), processes=processes)
    assert not any(outcome.error for outcome in outcomes)
    assert len(outcomes) == 3
    (patient,) = lines(tmp_path / "out" / "Patient.ndjson")
    files = lines(tmp_path / "out" / "Condition.ndjson")
    assert {resource["subject"]["reference"] for resource in files} == {f"Patient/{patient['id']}"}
    assert len({resource["recordedDate"] for resource in files}) == 1
    assert files[0]["recordedDate"] != "2020-06-01"


def test_unresolved_and_ambiguous_references_are_dropped_and_counted(tmp_path):
    (tmp_path / "Patient.ndjson").write_text(
        "".join(json.dumps({**PATIENT, "id": str(i)}) + "\n" for i in range(2))
    )
    requested = [FORMS[3], FORMS[5], {"reference": "urn:uuid:missing"}, {"reference": "Patient?name=Smith"}]
    (tmp_path / "Condition.ndjson").write_text(
        "".join(json.dumps(condition(i, form)) + "\n" for i, form in enumerate(requested))
    )
    sources = find_files([str(tmp_path / name) for name in ("Patient.ndjson", "Condition.ndjson")])
    *_, outcome = export_records(sources, tmp_path / "out", job())
    assert {json.dumps(resource["subject"]) for resource in lines(tmp_path / "out" / "Condition.ndjson")} == {
        '{"display": "masked"}'
    }
    assert outcome.transform_counts.dropped["Condition.subject", "reference to an unknown resource"] == 4


def test_a_single_document_resolves_only_its_own_references():
    make = maker()
    deidentified = run(make, condition(1, FORMS[3]))
    assert deidentified["subject"] == {"display": "masked"}
    assert make.take_counts().dropped["Condition.subject", "reference to an unknown resource"] == 1


def test_a_logical_subject_has_the_offset_of_the_person():
    entries = [
        {"fullUrl": f"urn:uuid:{UUID}", "resource": PATIENT},
        {"fullUrl": "urn:uuid:b", "resource": {**PATIENT, "id": "b", "identifier": []}},
    ]
    for i, form in enumerate(FORMS):
        entries.append({"resource": condition(i, form)})
    deidentified = deidentify(
        {"resourceType": "Bundle", "type": "collection", "entry": entries}, dates=DateHandling.SHIFT
    )
    conditions = [entry["resource"] for entry in deidentified["entry"][2:]]
    assert len({resource["recordedDate"] for resource in conditions}) == 1
    assert {resource["subject"]["reference"] for resource in conditions} == {
        deidentified["entry"][0]["fullUrl"]
    }


def test_linking_sites_needs_an_identifier_that_the_study_names():
    with pytest.raises(SettingsError, match="identifier"):
        DeidentificationSettings(mechanism=Mechanism.PSEUDONYMISE, link_across_sites=True)
    with pytest.raises(SettingsError, match="anonymise"):
        DeidentificationSettings(link_across_sites=True, link_identifier="urn:national")


def test_subjects_are_linked_without_a_requirement_for_patients():
    wants = (DataRequirement("Condition"),)
    outputs = []
    for site, old in (("pisa", "1"), ("bonn", "2")):
        person = {
            "resourceType": "Patient",
            "id": old,
            "identifier": [{"system": "urn:national", "value": "7"}],
        }
        entries = [{"resource": person}, {"resource": condition(5, {"reference": f"Patient/{old}"})}]
        make = maker(
            wants,
            site=site,
            mechanism=Mechanism.PSEUDONYMISE,
            link_across_sites=True,
            link_identifier="urn:national",
        )
        bundle = run(make, {"resourceType": "Bundle", "type": "collection", "entry": entries})
        outputs.append(bundle["entry"][0]["resource"]["subject"]["reference"])
    assert outputs[0] == outputs[1]


def test_sites_link_subjects_by_that_identifier_and_not_by_a_local_id(tmp_path):
    linking = {"link_across_sites": True, "link_identifier": "urn:national"}
    outputs_by_key = {}
    for site, number in (("pisa", "7"), ("bonn", "7"), ("lyon", "8")):
        person = {
            "resourceType": "Patient",
            "id": "1",
            "identifier": [{"system": "urn:national", "value": number}],
        }
        stranger = {"resourceType": "Patient", "id": "2", "birthDate": "1970"}
        folder = tmp_path / site
        folder.mkdir()
        # The condition is read before the person it is about.
        (folder / "Condition.ndjson").write_text(json.dumps(condition(5, {"reference": "Patient/1"})) + "\n")
        (folder / "Patient.ndjson").write_text(f"{json.dumps(person)}\n{json.dumps(stranger)}\n")
        at = ExportJob(
            DataRequest(
                "heart",
                (),
                DeidentificationSettings(Mechanism.PSEUDONYMISE, dates=DateHandling.SHIFT, **linking),
            ),
            KEY,
            2026,
            LEGAL_BASIS,
            site,
        )
        outcomes = export_records(find_files([str(folder)]), tmp_path / f"out {site}", at)
        patients = lines(tmp_path / f"out {site}" / "Patient.ndjson")
        (event,) = lines(tmp_path / f"out {site}" / "Condition.ndjson")
        assert event["subject"]["reference"] == f"Patient/{patients[0]['id']}"
        dropped = sum(
            (outcome.transform_counts.dropped for outcome in outcomes),
            start=type(outcomes[0].transform_counts.dropped)(),
        )
        assert dropped["Patient.identifier", "no linking identifier: not linked with other sites"] == 1
        outputs_by_key[site] = [person["id"] for person in patients], event["recordedDate"], event["id"]
    assert outputs_by_key["pisa"][0][0] == outputs_by_key["bonn"][0][0]  # one person
    assert outputs_by_key["pisa"][1] == outputs_by_key["bonn"][1]  # and one offset
    assert (
        outputs_by_key["pisa"][0][0] != outputs_by_key["lyon"][0][0]
    )  # the same local id of another subject
    assert (
        len({ids[1] for ids, _, _ in outputs_by_key.values()}) == 3
    )  # without the identifier no subject is linked
    assert len({event for _, _, event in outputs_by_key.values()}) == 3
