"""Grouping of records by subject, independent of their order and form of reference."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.site.site_cohort import cohort_resources, condition, patient, pressure

from abaton.errors import SettingsError
from abaton.record_types import Record
from abaton.site.sources.base import SourceErrors
from abaton.site.subject_grouper import SubjectGrouper

TYPES = frozenset({"Patient", "Condition", "Observation", "Medication", "MedicationRequest"})


def group(*contents: dict, memory_mib: int = 2048) -> tuple[dict[str, list[str]], SourceErrors]:
    errors = SourceErrors()
    grouping = SubjectGrouper(TYPES, errors, memory_mib=memory_mib)
    for content in contents:
        grouping.add(Record(content))
    groups = {s.id: sorted(f"{r.type}/{r.content.get('id')}" for r in s.records) for s in grouping.subjects()}
    grouping.close()
    return groups, errors


def test_records_in_one_file_per_type_are_grouped():
    groups, errors = group(*cohort_resources(1, 2, 3))
    assert groups["p2"] == ["Condition/c2", "Observation/o2", "Patient/p2"]
    assert list(groups) == ["p1", "p2", "p3"]
    assert not errors.reasons


def test_the_patient_may_come_last():
    groups, _ = group(pressure(1), condition(1), patient(1))
    assert groups["p1"] == ["Condition/c1", "Observation/o1", "Patient/p1"]


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
def test_every_form_of_reference_is_resolved(pointer):
    full_patient = patient(1, identifier=[{"system": "urn:mrn", "value": "77"}])
    bundle = {
        "resourceType": "Bundle",
        "entry": [{"fullUrl": "urn:uuid:8a5d7c56-0b5a-4c0a-9a39-7b0a0c3f7d52", "resource": full_patient}],
    }
    groups, errors = group({**pressure(1), "subject": pointer}, bundle, patient(2))
    assert groups == {"p1": ["Observation/o1", "Patient/p1"], "p2": ["Patient/p2"]}
    assert not errors.reasons


def test_shared_identifier_is_ambiguous():
    same = [{"system": "urn:mrn", "value": "77"}]
    pointer = {"identifier": {"system": "urn:mrn", "value": "77"}}
    groups, errors = group(
        patient(1, identifier=same), patient(2, identifier=same), {**pressure(1), "subject": pointer}
    )
    assert groups == {"p1": ["Patient/p1"], "p2": ["Patient/p2"]}
    assert errors.reasons.total() == 1


def test_shared_medication_is_added_to_its_subjects():
    request = {
        "resourceType": "MedicationRequest",
        "id": "m1",
        "subject": {"reference": "Patient/p1"},
        "medicationReference": {"reference": "Medication/aspirin"},
    }
    groups, _ = group({"resourceType": "Medication", "id": "aspirin"}, request, patient(1), patient(2))
    assert groups["p1"] == ["Medication/aspirin", "MedicationRequest/m1", "Patient/p1"]
    assert groups["p2"] == ["Patient/p2"]


def test_records_without_patient_are_counted():
    _, errors = group(patient(1), pressure(9), {**pressure(1), "subject": {"reference": "#me"}}, {"a": 1})
    assert sorted(errors.reasons.values()) == [1, 1, 1]


def test_a_record_read_twice_counts_once_and_the_newer_version_counts():
    groups, errors = group(patient(1), pressure(1), pressure(1), {**patient(1), "gender": "male"})
    assert groups == {"p1": ["Observation/o1", "Patient/p1"]}
    assert errors.reasons == {"a record was read twice; it counts once": 1}


def test_other_types_are_counted_and_not_stored():
    errors = SourceErrors()
    grouping = SubjectGrouper(TYPES, errors)
    grouping.add(Record({"resourceType": "Claim", "id": "1", "patient": {"reference": "Patient/p1"}}))
    grouping.add(Record(patient(1)))
    assert grouping.records_read == {"Claim": 1, "Patient": 1}
    assert [len(subject.records) for subject in grouping.subjects()] == [1]


def test_subject_with_too_many_records_is_not_loaded():
    note = "x" * 200_000
    errors = SourceErrors()
    grouping = SubjectGrouper(TYPES, errors, memory_mib=1)
    for content in (patient(1), {**pressure(1), "note": [{"text": note}]}, patient(2)):
        grouping.add(Record(content))
    assert [(s.id, s.is_too_large, len(s.records)) for s in grouping.subjects()] == [
        ("p1", True, 0),
        ("p2", False, 1),
    ]


def test_temporary_file_is_unlinked(tmp_path: Path):
    grouping = SubjectGrouper(TYPES, SourceErrors(), tmp_path)
    for number in range(500):
        grouping.add(Record(patient(number)))
    assert list(tmp_path.iterdir()) == []
    assert sum(1 for _ in grouping.subjects()) == 500
    grouping.close()
    links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not any(str(tmp_path) in str(link) for link in links)


def test_missing_temporary_folder_is_refused(tmp_path: Path):
    with pytest.raises(SettingsError, match="the temporary file"):
        SubjectGrouper(TYPES, SourceErrors(), tmp_path / "none")
