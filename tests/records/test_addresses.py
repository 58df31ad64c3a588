"""References across files lead to the one pseudonym of what they mean, or nowhere; people are linked by identifier."""

from __future__ import annotations

import json

import pytest
from making import HELD, KEY, deidentify, maker, run

from abaton.errors import SettingsError
from abaton.records import Dates, Deidentification, Mechanism, Need, Want
from abaton.records.export import Job, export
from abaton.fhir.file_reader import find

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


def job(**wish):
    wish = {"mechanism": Mechanism.PSEUDONYMISE, "dates": Dates.SHIFT, **wish}
    return Job(Need("heart", (), Deidentification(**wish)), KEY, 2026, HELD)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("marks", [(", ", ": "), (",", ":")])
@pytest.mark.parametrize("processes", [1, 2])
def test_every_form_of_reference_means_one_person_in_every_file(tmp_path, processes, marks):
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
    outcomes = export(find([str(folder)]), tmp_path / "out", job(), processes=processes)
    assert not any(outcome.error for outcome in outcomes)
    assert len(outcomes) == 3
    (patient,) = lines(tmp_path / "out" / "Patient.ndjson")
    made = lines(tmp_path / "out" / "Condition.ndjson")
    assert {each["subject"]["reference"] for each in made} == {f"Patient/{patient['id']}"}
    assert len({each["recordedDate"] for each in made}) == 1
    assert made[0]["recordedDate"] != "2020-06-01"


def test_what_leads_nowhere_or_to_two_is_dropped_and_counted(tmp_path):
    (tmp_path / "Patient.ndjson").write_text(
        "".join(json.dumps({**PATIENT, "id": str(i)}) + "\n" for i in range(2))
    )
    asked = [FORMS[3], FORMS[5], {"reference": "urn:uuid:nobody"}, {"reference": "Patient?name=Smith"}]
    (tmp_path / "Condition.ndjson").write_text(
        "".join(json.dumps(condition(i, form)) + "\n" for i, form in enumerate(asked))
    )
    found = find([str(tmp_path / name) for name in ("Patient.ndjson", "Condition.ndjson")])
    *_, outcome = export(found, tmp_path / "out", job())
    assert {json.dumps(each["subject"]) for each in lines(tmp_path / "out" / "Condition.ndjson")} == {
        '{"display": "masked"}'
    }
    assert outcome.tally.dropped["Condition.subject", "reference that leads nowhere"] == 4


def test_a_document_alone_answers_for_itself_only():
    make = maker()
    made = run(make, condition(1, FORMS[3]))
    assert made["subject"] == {"display": "masked"}
    assert make.tally().dropped["Condition.subject", "reference that leads nowhere"] == 1


def test_a_logical_subject_has_the_offset_of_the_person():
    entries = [
        {"fullUrl": f"urn:uuid:{UUID}", "resource": PATIENT},
        {"fullUrl": "urn:uuid:b", "resource": {**PATIENT, "id": "b", "identifier": []}},
    ]
    for i, form in enumerate(FORMS):
        entries.append({"resource": condition(i, form)})
    made = deidentify({"resourceType": "Bundle", "type": "collection", "entry": entries}, dates=Dates.SHIFT)
    conditions = [entry["resource"] for entry in made["entry"][2:]]
    assert len({each["recordedDate"] for each in conditions}) == 1
    assert {each["subject"]["reference"] for each in conditions} == {made["entry"][0]["fullUrl"]}


def test_linking_sites_needs_an_identifier_that_the_study_names():
    with pytest.raises(SettingsError, match="identifier"):
        Deidentification(mechanism=Mechanism.PSEUDONYMISE, link_sites=True)
    with pytest.raises(SettingsError, match="anonymising"):
        Deidentification(link_sites=True, link_by="urn:national")


def test_people_are_linked_even_if_the_study_does_not_want_the_patient():
    wants = (Want("Condition"),)
    made = []
    for site, old in (("pisa", "1"), ("bonn", "2")):
        person = {
            "resourceType": "Patient",
            "id": old,
            "identifier": [{"system": "urn:national", "value": "7"}],
        }
        entries = [{"resource": person}, {"resource": condition(5, {"reference": f"Patient/{old}"})}]
        make = maker(
            wants, site=site, mechanism=Mechanism.PSEUDONYMISE, link_sites=True, link_by="urn:national"
        )
        bundle = run(make, {"resourceType": "Bundle", "type": "collection", "entry": entries})
        made.append(bundle["entry"][0]["resource"]["subject"]["reference"])
    assert made[0] == made[1]


def test_sites_link_people_by_that_identifier_and_nobody_by_a_local_id(tmp_path):
    linking = {"link_sites": True, "link_by": "urn:national"}
    made = {}
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
        at = Job(
            Need("heart", (), Deidentification(Mechanism.PSEUDONYMISE, dates=Dates.SHIFT, **linking)),
            KEY,
            2026,
            HELD,
            site,
        )
        outcomes = export(find([str(folder)]), tmp_path / f"out {site}", at)
        people = lines(tmp_path / f"out {site}" / "Patient.ndjson")
        (event,) = lines(tmp_path / f"out {site}" / "Condition.ndjson")
        assert event["subject"]["reference"] == f"Patient/{people[0]['id']}"
        dropped = sum(
            (outcome.tally.dropped for outcome in outcomes), start=type(outcomes[0].tally.dropped)()
        )
        assert dropped["Patient.identifier", "no linking identifier: not linked with other sites"] == 1
        made[site] = [person["id"] for person in people], event["recordedDate"], event["id"]
    assert made["pisa"][0][0] == made["bonn"][0][0]  # one person
    assert made["pisa"][1] == made["bonn"][1]  # and one offset
    assert made["pisa"][0][0] != made["lyon"][0][0]  # the same local id, somebody else
    assert len({ids[1] for ids, _, _ in made.values()}) == 3  # without the identifier: nobody is linked
    assert len({event for _, _, event in made.values()}) == 3
