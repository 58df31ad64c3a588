"""What is asked of a server: only what is needed, and no filter that could change the answer."""

from __future__ import annotations

from cohort import study

from abaton.records import Code, CodeFilter, DateFilter, Function, Need, Want
from abaton.site import Query, queries
from abaton.study import Criterion, Eligibility

ADULTS = Eligibility(criteria=(Criterion(what="age", low=18),))
TERM = {"system": "http://snomed.info/sct", "code": "1"}


def need(*wants: Want) -> Need:
    return Need("s", wants)


def coded(kind: str, path: str, *codes: tuple[str, str], **more) -> Want:
    return Want(kind, codes=(CodeFilter(path, tuple(Code(*code) for code in codes)),), **more)


def test_codes_and_dates_are_sent_where_that_is_safe():
    want = coded(
        "Observation",
        "code",
        ("http://loinc.org", "8480-6"),
        ("", "x"),
        dates=(DateFilter("effective", "2024-01-01", "2025-12-31"),),
    )
    assert queries(need(want), ADULTS) == (
        Query(
            "Observation",
            (("code", "http://loinc.org|8480-6,x"), ("date", "ge2023-12-31"), ("date", "le2026-01-01")),
        ),
        Query("Patient"),
    )


def test_how_a_code_begins_is_asked_of_no_server():
    chapter = Want(
        "Condition", codes=(CodeFilter("code", (Code("urn:icd", "I5", begins=True), Code("urn:icd", "J1"))),)
    )
    assert queries(need(chapter), ADULTS)[0] == Query("Condition")


def test_separators_in_codes_are_escaped():
    (first, _) = queries(need(coded("Observation", "code", ("urn:a,b", "x|y$z\\"))), ADULTS)
    assert first.parameters == (("code", "urn:a\\,b|x\\|y\\$z\\\\"),)


def test_records_that_eligibility_is_judged_by_are_never_filtered():
    """A diagnosis in another code system must be seen: it makes a person's eligibility unknown."""
    judged = Eligibility(criteria=(Criterion(what="condition", codes=(TERM,), exclude=True),))
    assert queries(need(coded("Condition", "code", ("s", "1"))), judged) == (
        Query("Condition"),
        Query("Patient"),
    )


def test_a_filter_that_servers_do_not_know_stays_here():
    want = Want(
        "Observation",
        codes=(CodeFilter("component.value", (Code("s", "1"),)),),
        dates=(DateFilter("issued", "2024-01-01"),),
    )
    assert queries(need(want), ADULTS) == (Query("Observation"), Query("Patient"))


def test_lines_about_one_type_are_asked_one_by_one_unless_one_wants_all():
    one, other = coded("Observation", "code", ("s", "1")), coded("Observation", "code", ("s", "2"))
    assert [q.parameters for q in queries(need(one, other, one), ADULTS)] == [
        (("code", "s|1"),),
        (("code", "s|2"),),
        (),
    ]
    whole = Want("Observation", Function.COUNT)
    assert queries(need(one, whole), ADULTS) == (Query("Observation"), Query("Patient"))


def test_very_long_lists_are_not_sent():
    want = coded("Observation", "code", *(("http://loinc.org", f"{i}") for i in range(500)))
    assert queries(need(want), ADULTS)[0] == Query("Observation")


def test_the_starter_study():
    from datetime import date

    made = study()
    found = {
        query.type: dict(query.parameters)
        for query in queries(made.need(date(2026, 11, 16)), made.eligibility)
    }
    assert set(found) == {"Condition", "Observation", "Patient", "Procedure"}
    assert found["Condition"] == found["Procedure"] == found["Patient"] == {}
    assert found["Observation"]["code"] == "http://loinc.org|85354-9,http://loinc.org|8480-6"
