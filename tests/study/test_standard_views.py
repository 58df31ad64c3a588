"""Standard views on typical records: components, two codes, periods, void records."""

from __future__ import annotations

import pytest

from abaton.study.shorthand.derived_features import select_columns, standard_views
from abaton.views.definition import ViewDefinition
from abaton.views.required_elements import check_elements

LOINC, SNOMED, ICD = "http://loinc.org", "http://snomed.info/sct", "http://hl7.org/fhir/sid/icd-10"
ABOUT = {"subject": {"reference": "Patient/p"}}


def concept(*codes):
    return {"coding": [{"system": system, "code": code} for system, code in codes]}


def rows(name, *resources, without=("subject",)):
    view = ViewDefinition.load(select_columns(name, {"subject", *_columns(name)}))
    table_rows = list(view.table(resources))
    assert all(row["subject"] == "Patient/p" for row in table_rows)
    return [
        {key: value for key, value in row.items() if key not in without and value not in (None, [])}
        for row in table_rows
    ]


def _columns(name):
    view = ViewDefinition.load(
        {key: value for key, value in standard_views()[name].items() if key != "codes"}
    )
    return {column.name for column in view.columns}


@pytest.mark.parametrize("name", standard_views())
def test_every_view_reads_existing_elements_and_has_a_subject(name):
    view = select_columns(name, _columns(name))
    check_elements(view)
    assert ViewDefinition.load(view).columns[0].name == "subject"
    assert ViewDefinition.load(select_columns(name, {"subject"})).columns


def observation(**more):
    return {
        "resourceType": "Observation",
        "status": "final",
        "code": concept((LOINC, "8480-6")),
        **ABOUT,
        **more,
    }


def quantity(value):
    return {"value": value, "unit": "mmHg", "system": "http://unitsofmeasure.org", "code": "mm[Hg]"}


def test_a_number_is_found_in_the_observation_and_in_its_components():
    alone = observation(valueQuantity=quantity(140), effectiveDateTime="2026-01-02")
    parts = [
        {"code": concept((LOINC, "8480-6")), "valueQuantity": quantity(130)},
        {"code": concept((LOINC, "8462-4")), "valueQuantity": quantity(80)},
        {"code": concept((LOINC, "8478-0")), "dataAbsentReason": {"text": "not measured"}},
    ]
    panel = observation(
        code=concept((LOINC, "85354-9")), component=parts, effectivePeriod={"start": "2026-01-03"}
    )
    table_rows = rows("measurements", alone, panel)
    assert [(row["code"], row["value"], row["date"]) for row in table_rows] == [
        (["8480-6"], 140, "2026-01-02"),
        (["8480-6"], 130, "2026-01-03"),
        (["8462-4"], 80, "2026-01-03"),
    ]
    assert {row["unit"] for row in table_rows} == {"mm[Hg]"}


def test_other_forms_of_values():
    above = {**quantity(120), "comparator": ">"}
    table_rows = rows(
        "measurements",
        observation(valueQuantity=above),
        observation(valueBoolean=False),
        observation(valueInteger=3),
        observation(),
    )
    assert [(row.get("above"), row.get("yes"), row.get("number")) for row in table_rows] == [
        (True, None, None),
        (None, False, None),
        (None, None, 3),
    ]


def test_a_record_with_two_codes_is_one_row():
    twice = concept((SNOMED, "44054006"), (ICD, "E11.9"))
    twice["coding"].insert(1, {"code": "without a system"})
    sick = {"resourceType": "Condition", "code": twice, "onsetDateTime": "2020", **ABOUT}
    assert rows("diagnoses", sick) == [
        {"date": "2020", "system": [SNOMED, ICD], "code": ["44054006", "E11.9"]}
    ]


def test_void_records_are_dropped():
    status = {
        "coding": [
            {"system": "http://terminology.hl7.org/CodeSystem/condition-ver-status", "code": "refuted"}
        ]
    }
    code = {"code": concept((SNOMED, "84114007")), **ABOUT}
    assert rows("diagnoses", {"resourceType": "Condition", **code, "verificationStatus": status}) == []
    assert rows("measurements", observation(status="entered-in-error", valueInteger=1)) == []
    assert rows("procedures", {"resourceType": "Procedure", "status": "not-done", **code}) == []
    medicine = {"medicationCodeableConcept": concept(("http://www.whocc.no/atc", "C03CA01")), **ABOUT}
    ordered = {"resourceType": "MedicationRequest", "status": "active", "intent": "order", **medicine}
    assert len(rows("medicines", ordered)) == 1
    assert rows("medicines", {**ordered, "doNotPerform": True}) == []
    assert rows("visits", {"resourceType": "Encounter", "status": "cancelled", **ABOUT}) == []


def test_dates_come_from_every_date_element():
    code = {"code": concept((SNOMED, "84114007")), **ABOUT}
    sick = {"resourceType": "Condition", **code}
    assert [row["date"] for row in rows(
        "diagnoses",
        {**sick, "onsetDateTime": "2020-01-01", "recordedDate": "2021-01-01"},
        {**sick, "onsetPeriod": {"start": "2019-01"}},
        {**sick, "recordedDate": "2021-01-01"},
    )] == ["2020-01-01", "2019-01", "2021-01-01"]  # fmt: skip
    done = {"resourceType": "Procedure", "status": "completed", **code}
    assert [row["date"] for row in rows("procedures", {**done, "performedPeriod": {"start": "2018"}})] == [
        "2018"
    ]
    shot = {"resourceType": "Immunization", "status": "completed", "patient": {"reference": "Patient/p"}}
    shot |= {"vaccineCode": concept(("http://hl7.org/fhir/sid/cvx", "140")), "occurrenceDateTime": "2017"}
    assert [row["date"] for row in rows("vaccines", shot)] == ["2017"]


def test_deaths_with_and_without_a_date():
    person = {"resourceType": "Patient", "id": "p"}
    assert rows("deaths", person, {**person, "deceasedBoolean": False}) == []
    assert rows(
        "deaths", {**person, "deceasedBoolean": True}, {**person, "deceasedDateTime": "2024-05-06"}
    ) == [
        {},
        {"date": "2024-05-06"},
    ]


def test_answers_that_are_codes():
    never = observation(code=concept((LOINC, "72166-2")), valueCodeableConcept=concept((SNOMED, "266919005")))
    (row,) = rows("findings", never)
    assert (row["code"], row["answer_system"], row["answer"]) == (["72166-2"], [SNOMED], ["266919005"])
    assert rows("findings", observation(valueInteger=1)) == []
    assert [row["code"] for row in rows("measurements", never)] == [["72166-2"]]  # for presence
    part = {"code": concept((LOINC, "72166-2")), "valueCodeableConcept": concept((SNOMED, "8517006"))}
    (row,) = rows("findings", observation(code=concept((LOINC, "85354-9")), component=[part]))
    assert (row["code"], row["answer"]) == (["72166-2"], ["8517006"])
