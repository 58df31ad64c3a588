"""FHIR queries: only required types, and no filter that could change the result."""

from __future__ import annotations

from tests.site.site_cohort import study

from abaton.deid import CodeFilter, CodePattern, DataRequest, DataRequirement, DateFilter, RequirementPurpose
from abaton.site import FhirQuery, build_fhir_queries
from abaton.study import Criterion, Eligibility

ADULTS = Eligibility(criteria=(Criterion(type="age", low=18),))
TERM = {"system": "http://snomed.info/sct", "code": "1"}


def need(*wants: DataRequirement) -> DataRequest:
    return DataRequest("s", wants)


def coded(kind: str, path: str, *codes: tuple[str, str], **more) -> DataRequirement:
    return DataRequirement(
        kind, codes=(CodeFilter(path, tuple(CodePattern(*code) for code in codes)),), **more
    )


def test_codes_and_dates_are_sent_where_results_cannot_change():
    want = coded(
        "Observation",
        "code",
        ("http://loinc.org", "8480-6"),
        ("", "x"),
        dates=(DateFilter("effective", "2024-01-01", "2025-12-31"),),
    )
    assert build_fhir_queries(need(want), ADULTS) == (
        FhirQuery(
            "Observation",
            (("code", "http://loinc.org|8480-6,x"), ("date", "ge2023-12-31"), ("date", "le2026-01-01")),
        ),
        FhirQuery("Patient"),
    )


def test_code_prefixes_are_not_sent():
    chapter = DataRequirement(
        "Condition",
        codes=(
            CodeFilter("code", (CodePattern("urn:icd", "I5", is_prefix=True), CodePattern("urn:icd", "J1"))),
        ),
    )
    assert build_fhir_queries(need(chapter), ADULTS)[0] == FhirQuery("Condition")


def test_separators_in_codes_are_escaped():
    (first, _) = build_fhir_queries(need(coded("Observation", "code", ("urn:a,b", "x|y$z\\"))), ADULTS)
    assert first.parameters == (("code", "urn:a\\,b|x\\|y\\$z\\\\"),)


def test_types_of_eligibility_criteria_are_not_filtered():
    """A diagnosis in another code system makes a criterion unknown, so it must be read."""
    eligibility = Eligibility(criteria=(Criterion(type="condition", codes=(TERM,), exclude=True),))
    assert build_fhir_queries(need(coded("Condition", "code", ("s", "1"))), eligibility) == (
        FhirQuery("Condition"),
        FhirQuery("Patient"),
    )


def test_unsupported_filters_are_not_sent():
    want = DataRequirement(
        "Observation",
        codes=(CodeFilter("component.value", (CodePattern("s", "1"),)),),
        dates=(DateFilter("issued", "2024-01-01"),),
    )
    assert build_fhir_queries(need(want), ADULTS) == (FhirQuery("Observation"), FhirQuery("Patient"))


def test_requirements_of_a_type_are_separate_queries_unless_one_is_unfiltered():
    one, other = coded("Observation", "code", ("s", "1")), coded("Observation", "code", ("s", "2"))
    assert [q.parameters for q in build_fhir_queries(need(one, other, one), ADULTS)] == [
        (("code", "s|1"),),
        (("code", "s|2"),),
        (),
    ]
    unfiltered = DataRequirement("Observation", RequirementPurpose.COUNT)
    assert build_fhir_queries(need(one, unfiltered), ADULTS) == (
        FhirQuery("Observation"),
        FhirQuery("Patient"),
    )


def test_very_long_lists_are_not_sent():
    want = coded("Observation", "code", *(("http://loinc.org", f"{i}") for i in range(500)))
    assert build_fhir_queries(need(want), ADULTS)[0] == FhirQuery("Observation")


def test_queries_of_the_template_study():
    from datetime import date

    template_study = study()
    queries_by_type = {
        query.type: dict(query.parameters)
        for query in build_fhir_queries(
            template_study.data_request(date(2026, 11, 16)), template_study.eligibility
        )
    }
    assert set(queries_by_type) == {"Condition", "Observation", "Patient", "Procedure"}
    assert queries_by_type["Condition"] == queries_by_type["Procedure"] == queries_by_type["Patient"] == {}
    assert queries_by_type["Observation"]["code"] == "http://loinc.org|85354-9,http://loinc.org|8480-6"
