"""A subject's records are found again whatever order they came in and however they name the person."""

from __future__ import annotations

from pathlib import Path

import pytest
from cohort import condition, patient, people, pressure

from abaton.errors import SettingsError
from abaton.records import Record
from abaton.site.subject_grouper import Grouping
from abaton.site.sources.base import Faults

TYPES = frozenset({"Patient", "Condition", "Observation", "Medication", "MedicationRequest"})


def grouped(*contents: dict, memory: int = 2048) -> tuple[dict[str, list[str]], Faults]:
    faults = Faults()
    grouping = Grouping(TYPES, faults, memory=memory)
    for content in contents:
        grouping.add(Record(content))
    found = {s.id: sorted(f"{r.type}/{r.content.get('id')}" for r in s.records) for s in grouping.subjects()}
    grouping.close()
    return found, faults


def test_records_of_one_file_per_type_come_together():
    found, faults = grouped(*people(1, 2, 3))
    assert found["p2"] == ["Condition/c2", "Observation/o2", "Patient/p2"]
    assert list(found) == ["p1", "p2", "p3"]
    assert not faults.reasons


def test_the_patient_may_come_last():
    found, _ = grouped(pressure(1), condition(1), patient(1))
    assert found["p1"] == ["Condition/c1", "Observation/o1", "Patient/p1"]


@pytest.mark.parametrize(
    "pointer",
    [
        {"reference": "Patient/p1"},
        {"reference": "https://server.example/fhir/Patient/p1"},
        {"reference": "Patient/p1/_history/3"},
        {"reference": "urn:uuid:8a5d7c56-0b5a-4c0a-9a39-7b0a0c3f7d52"},
        {"reference": "Patient?identifier=urn:mrn|77"},
        {"identifier": {"system": "urn:mrn", "value": "77"}, "type": "Patient"},
    ],
)
def test_every_form_of_reference_finds_its_patient(pointer):
    whole = patient(1, identifier=[{"system": "urn:mrn", "value": "77"}])
    bundle = {
        "resourceType": "Bundle",
        "entry": [{"fullUrl": "urn:uuid:8a5d7c56-0b5a-4c0a-9a39-7b0a0c3f7d52", "resource": whole}],
    }
    found, faults = grouped({**pressure(1), "subject": pointer}, bundle, patient(2))
    assert found == {"p1": ["Observation/o1", "Patient/p1"], "p2": ["Patient/p2"]}
    assert not faults.reasons


def test_an_identifier_that_two_share_means_neither():
    same = [{"system": "urn:mrn", "value": "77"}]
    pointer = {"identifier": {"system": "urn:mrn", "value": "77"}}
    found, faults = grouped(
        patient(1, identifier=same), patient(2, identifier=same), {**pressure(1), "subject": pointer}
    )
    assert found == {"p1": ["Patient/p1"], "p2": ["Patient/p2"]}
    assert faults.reasons.total() == 1


def test_a_medication_that_belongs_to_nobody_is_found_by_those_who_take_it():
    request = {
        "resourceType": "MedicationRequest",
        "id": "m1",
        "subject": {"reference": "Patient/p1"},
        "medicationReference": {"reference": "Medication/aspirin"},
    }
    found, _ = grouped({"resourceType": "Medication", "id": "aspirin"}, request, patient(1), patient(2))
    assert found["p1"] == ["Medication/aspirin", "MedicationRequest/m1", "Patient/p1"]
    assert found["p2"] == ["Patient/p2"]


def test_what_belongs_to_nobody_here_is_counted():
    _, faults = grouped(patient(1), pressure(9), {**pressure(1), "subject": {"reference": "#me"}}, {"a": 1})
    assert sorted(faults.reasons.values()) == [1, 1, 1]


def test_a_record_read_twice_counts_once_and_the_newer_version_counts():
    found, faults = grouped(patient(1), pressure(1), pressure(1), {**patient(1), "gender": "male"})
    assert found == {"p1": ["Observation/o1", "Patient/p1"]}
    assert faults.reasons == {"a record was read twice; it counts once": 1}


def test_types_that_are_not_needed_are_counted_and_not_kept():
    faults = Faults()
    grouping = Grouping(TYPES, faults)
    grouping.add(Record({"resourceType": "Claim", "id": "1", "patient": {"reference": "Patient/p1"}}))
    grouping.add(Record(patient(1)))
    assert grouping.read == {"Claim": 1, "Patient": 1}
    assert [len(subject.records) for subject in grouping.subjects()] == [1]


def test_somebody_with_too_many_records_does_not_fill_the_memory():
    note = "x" * 200_000
    faults = Faults()
    grouping = Grouping(TYPES, faults, memory=1)
    for content in (patient(1), {**pressure(1), "note": [{"text": note}]}, patient(2)):
        grouping.add(Record(content))
    assert [(s.id, s.too_large, len(s.records)) for s in grouping.subjects()] == [
        ("p1", True, 0),
        ("p2", False, 1),
    ]


def test_the_temporary_file_has_no_name(tmp_path: Path):
    grouping = Grouping(TYPES, Faults(), tmp_path)
    for number in range(500):
        grouping.add(Record(patient(number)))
    assert list(tmp_path.iterdir()) == []
    assert sum(1 for _ in grouping.subjects()) == 500
    grouping.close()
    links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not any(str(tmp_path) in str(link) for link in links)


def test_without_a_place_for_it_nothing_is_begun(tmp_path: Path):
    with pytest.raises(SettingsError, match="no temporary file"):
        Grouping(TYPES, Faults(), tmp_path / "none")
