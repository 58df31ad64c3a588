"""A survey finds what an export still holds of people, and counts what it may not hold."""

from __future__ import annotations

from abaton.deid.settings import DataRequest
from abaton.records.residual_check import KnownIdentifiers, ResidualCheck

BEFORE = {
    "resourceType": "Bundle",
    "type": "collection",
    "entry": [
        {
            "resource": {
                "resourceType": "Patient",
                "id": "mrn-4711",
                "name": [{"family": "van der Chalmers", "given": ["Amalia"]}],
                "telecom": [{"system": "phone", "value": "+39 050 123456"}],
                "address": [{"line": ["Via Lunga 7"], "postalCode": "56100"}],
                "contact": [{"name": {"family": "Rossini"}}],
            }
        }
    ],
}


def check_document(document):
    sought, survey = KnownIdentifiers(), ResidualCheck()
    sought.add(BEFORE)
    survey.add(document, DataRequest("s"), sought, year=2026)
    return survey


def test_names_numbers_and_addresses_are_found_anywhere_in_any_case():
    for value in ("CHALMERS", "amalia, 40", "+39 050 123456", "Via Lunga 7", "rossini", "mrn-4711"):
        assert (
            check_document({"resourceType": "Observation", "status": "final", "valueString": value}).residuals
            == 1
        ), value
    assert (
        check_document(
            {"resourceType": "Observation", "status": "final", "valueString": "der fasting"}
        ).residuals
        == 0
    )


def test_ids_that_stayed_are_found():
    assert check_document({"resourceType": "Patient", "id": "mrn-4711"}).residuals == 1


def test_texts_and_attachments_that_are_left_are_counted():
    survey = check_document(
        {
            "resourceType": "DocumentReference",
            "status": "current",
            "description": "a long story",
            "content": [{"attachment": {"contentType": "text/plain", "data": "AAAA"}}],
        }
    )
    assert (survey.texts, survey.attachments) == (1, 1)


def test_invalid_records_are_counted():
    survey = check_document({"resourceType": "Patient", "gender": 7})
    assert (survey.records, survey.invalid) == (1, 1)


def test_what_is_sought_is_not_kept_in_the_clear():
    sought = KnownIdentifiers()
    sought.add(BEFORE)
    assert len(sought) > 5
    assert b"halmers" not in b"".join(sought._terms)
