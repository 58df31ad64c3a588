"""From de-identified records to tables: units, codes, ages, labels, and what a site is told when some are missing."""

from __future__ import annotations

import json
from datetime import date

import numpy as np
import pytest
from building import ICD, LOINC, PRESSURE, SNOMED, VIEWS, condition, patient, plan, value, visit
from hypothesis import given
from hypothesis import strategies as st
from tests.records.making import HELD

from abaton.documents.fields import Match, Term
from abaton.errors import Refused
from abaton.records import Consented, Deidentified, Deidentifier, Need, Pseudonyms, Record, parse
from abaton.features import (
    Category,
    FollowUp,
    IndexDate,
    Input,
    Join,
    Kind,
    Label,
    Missing,
    Outcome,
    Reason,
    Where,
    featurise,
    groups,
    masked,
)
from abaton.fhir.file_reader import documents, find

NAN = float("nan")


def column(made, name="pressure"):
    names = [column.name for column in made.table.columns]
    return made.table.x[:, names.index(name)].tolist()


def reasons(made, about):
    return {finding.reason: finding for finding in made.report.about(about)}


PEOPLE = [patient(who) for who in ("a", "b", "c")]


def test_one_row_per_subject_in_the_order_of_their_identities():
    records = [value("c", 3), *reversed(PEOPLE), value("a", 1), value("b", 2), condition("b", "1")]
    made = featurise(plan(), records)
    assert made.table.subjects == ("Patient/a", "Patient/b", "Patient/c")
    assert column(made) == [1, 2, 3]
    assert made.table.y.tolist() == [0, 1, 0]
    assert made.table.classes == ("no", "yes")


@given(seed=st.randoms())
def test_the_order_of_records_does_not_matter(seed):
    records = [*PEOPLE, *(value(who, i * 7 % 5, when=f"202{i % 4}") for i, who in enumerate("abcabcab"))]
    latest = PRESSURE.model_copy(update={"when": "date", "join": Join.LATEST})
    first = featurise(plan(latest), records)
    seed.shuffle(records)
    again = featurise(plan(latest), records)
    assert again.table.subjects == first.table.subjects
    assert np.array_equal(again.table.x, first.table.x, equal_nan=True)


def test_units_are_converted_and_what_cannot_be_is_missing_and_counted():
    records = [
        *PEOPLE,
        value("a", 16, "kPa"),
        value("b", 120, None),
        value("c", 5, "kg"),
        value("c", 5, "mmHg"),
    ]
    made = featurise(plan(floor=1), records)
    assert column(made)[0] == pytest.approx(120.0, abs=0.1)
    assert np.isnan(column(made)[1:]).all()
    found = reasons(made, "pressure")
    assert found[Reason.UNKNOWN_UNIT].count == "1"
    assert found[Reason.NO_UNIT].count == "1"
    assert found[Reason.OTHER_UNIT].count == "1"
    assert made.report.usable


def test_a_study_may_refuse_other_units():
    strict = PRESSURE.model_copy(update={"wrong_unit": "refuse"})
    made = featurise(plan(strict), [*PEOPLE, value("a", 120, None)])
    assert made.table is None
    assert not made.report.usable
    assert reasons(made, "pressure")[Reason.NO_UNIT].fatal


def test_amounts_become_masses_with_a_molar_mass():
    chol = PRESSURE.model_copy(update={"name": "chol", "unit": "mg/dL", "molar_mass": 386.65})
    assert column(featurise(plan(chol), [patient("a"), value("a", 5, "mmol/L")]), "chol")[0] == pytest.approx(
        193.3, abs=0.1
    )


SEX = Input(
    name="sex",
    kind=Kind.CATEGORY,
    view="patients",
    column="sex",
    categories=tuple(Category(name=each, values=(each,)) for each in ("female", "male")),
)


def test_categories_have_an_unknown_bucket():
    people = [patient("a", gender="male"), patient("b", gender="other"), patient("c")]
    made = featurise(plan(SEX), people)
    assert made.table.x[0].tolist() == [0, 1, 0]
    assert made.table.x[1].tolist() == [0, 0, 1]
    assert np.isnan(made.table.x[2]).all()
    assert reasons(made, "sex")[Reason.OTHER_CODE].count == "1"
    assert groups(made.table, "sex") == ("male", "other", "missing")


def test_missing_values_are_handled_as_the_study_says():
    records = [*PEOPLE, value("a", 100)]
    constant = PRESSURE.model_copy(update={"missing": Missing.CONSTANT, "fill": 80, "indicator": True})
    assert featurise(plan(constant), records).table.x.tolist() == [[100, 0], [80, 1], [80, 1]]
    drop = featurise(plan(PRESSURE.model_copy(update={"missing": Missing.DROP})), records)
    assert drop.table.subjects == ("Patient/a",)
    assert reasons(drop, "pressure")[Reason.DROPPED].count == "2"
    mean = featurise(plan(PRESSURE.model_copy(update={"indicator": True})), records)
    assert mean.table.x[:, 1].tolist() == [0, 1, 1]
    assert np.isnan(mean.table.x[1, 0])
    named = SEX.model_copy(update={"missing": Missing.CONSTANT, "fill": "male"})
    assert featurise(plan(named), [patient("a")]).table.x.tolist() == [[0, 1, 0]]


def test_other_code_systems_are_told_by_name_only_if_public():
    kind = Category(name="diabetes", codes=(Term(system=SNOMED, code="44054006"),))
    coded = Input(
        name="kind",
        kind=Kind.CATEGORY,
        view="codes",
        column="code",
        system_column="system",
        categories=(kind,),
    )
    records = [
        *PEOPLE,
        condition("a", "E11.9", ICD),
        condition("b", "E11.9", ICD),
        condition("c", "7", "urn:mary"),
    ]
    made = featurise(plan(coded, label=Label(name="ill", kind=Outcome.ANY, view="values")), records)
    found = {(f.system, f.count) for f in made.report.about("kind") if f.reason is Reason.OTHER_SYSTEM}
    assert found == {(ICD, "2"), ("a system of no public list", "1")}
    assert not any("mary" in str(finding) or "E11" in str(finding) for finding in made.report.findings)


def test_a_filter_that_finds_nothing_tells_which_systems_were_there():
    where = Where(column="code", codes=(Term(system=SNOMED, code="44054006"),), system_column="system")
    diabetes = Input(name="diabetes", kind=Kind.FLAG, view="codes", where=where)
    made = featurise(
        plan(diabetes, label=Label(name="ill", kind=Outcome.ANY, view="values")),
        [*PEOPLE, condition("a", "E11", ICD)],
    )
    assert column(made, "diabetes") == [0, 0, 0]
    found = reasons(made, "diabetes")
    assert Reason.NO_ROWS in found
    assert found[Reason.OTHER_SYSTEM].system == ICD


def test_codes_match_by_system_and_beginning():
    begun = Term(system=ICD, code="E11", match=Match.STARTS_WITH)
    where = Where(column="code", codes=(begun,), system_column="system")
    diabetes = Input(name="diabetes", kind=Kind.FLAG, view="codes", where=where)
    records = [
        *PEOPLE,
        condition("a", "E11.9", ICD),
        condition("b", "E11.9", SNOMED),
        condition("c", "E12", ICD),
    ]
    assert column(featurise(plan(diabetes), records), "diabetes") == [1, 0, 0]


def test_ages_at_a_day_and_at_the_index_date():
    people = [patient("a", birthDate="1950-06-15"), patient("b", birthDate="1960"), patient("c")]
    at = Input(name="age", kind=Kind.AGE, view="patients", column="born", at=date(2020, 6, 14))
    assert column(featurise(plan(at), people), "age")[:2] == [69, 60]
    index = IndexDate(view="visits", column="date", join=Join.EARLIEST)
    records = [*people, visit("a", "2021-07-01"), visit("a", "2020-07-01"), visit("b", "2010")]
    made = featurise(plan(at.model_copy(update={"at": None}), index=index), records)
    assert column(made, "age")[:2] == [70, 50]
    banded = featurise(plan(at.model_copy(update={"band": 10})), people)
    assert column(banded, "age")[:2] == [65, 65]
    assert groups(made.table, "age", (60,)) == ("60 and above", "below 60", "missing")


def test_counts_flags_and_rows_after_the_index_date():
    index = IndexDate(view="visits", column="date", join=Join.EARLIEST)
    count = Input(name="n", kind=Kind.COUNT, view="values", when="date")
    records = [
        *PEOPLE,
        visit("a", "2020-05-05"),
        value("a", 1, when="2020-05-05"),
        value("a", 2, when="2020-05-06"),
    ]
    assert column(featurise(plan(count, index=index), records), "n") == [1, 0, 0]
    assert column(
        featurise(plan(count.model_copy(update={"after_index": True}), index=index), records), "n"
    ) == [2, 0, 0]
    yes = Deidentified(
        {"resourceType": "Observation", "subject": {"reference": "Patient/b"}, "valueBoolean": True}
    )
    told = Input(name="yes", kind=Kind.FLAG, view="values", column="yes")
    assert column(featurise(plan(told), [*PEOPLE, yes]), "yes")[1] == 1
    assert np.isnan(column(featurise(plan(told), [*PEOPLE, yes]), "yes")[0])


CLASSES = tuple(
    Category(name=name, codes=(Term(system=SNOMED, code=code),))
    for name, code in (("mild", "1"), ("severe", "2"))
)


def test_labels_of_every_kind():
    records = [
        *PEOPLE,
        condition("a", "2"),
        condition("b", "1"),
        condition("c", "9"),
        value("a", 150),
        value("b", 120),
    ]
    by_code = Label(
        name="grade",
        kind=Outcome.CLASSES,
        view="codes",
        column="code",
        system_column="system",
        classes=CLASSES,
    )
    made = featurise(plan(label=by_code), records)
    assert (made.table.y.tolist(), made.table.classes) == ([1, 0], ("mild", "severe"))
    assert reasons(made, "grade")[Reason.NO_LABEL].count == "1"
    source = {"view": "values", "column": "value", "unit": "mm[Hg]", "unit_column": "unit"}
    high = Label(name="high", kind=Outcome.THRESHOLD, above=140, **source)
    assert featurise(plan(SEX, label=high), records).table.y.tolist() == [1, 0]
    worth = featurise(plan(SEX, label=Label(name="p", kind=Outcome.VALUE, **source)), records)
    assert worth.table.y.tolist() == [150.0, 120.0]
    assert worth.table.classes == ()


def test_events_within_a_window_after_the_index_date():
    label = Label(
        name="event",
        kind=Outcome.EVENT,
        view="codes",
        when="date",
        window="P365D",
        follow_up=FollowUp(view="visits", when="date"),
    )
    index = IndexDate(view="visits", column="date", join=Join.EARLIEST)
    who = ["early", "late", "never", "lost", "before", "coarse", "undated", "nobody"]
    starts = [visit(each, "2020-01-01") for each in who[:-1]]
    records = [
        *(patient(each) for each in who),
        *starts,
        condition("early", "1", when="2020-06-01"),
        condition("late", "1", when="2022-06-01"),
        visit("never", "2021-03-01"),
        visit("lost", "2020-03-01"),
        condition("before", "1", when="2019-01-01"),
        condition("coarse", "1", when="2020"),
        condition("undated", "1"),
    ]
    made = featurise(plan(SEX, label=label, index=index), records)
    assert dict(zip(made.table.subjects, made.table.y.tolist(), strict=True)) == {
        "Patient/early": 1,
        "Patient/late": 0,
        "Patient/never": 0,
    }
    found = reasons(made, "event")
    assert {r: f.count for r, f in found.items()} == {
        Reason.CENSORED: "1",
        Reason.BEFORE: "1",
        Reason.COARSE_DATE: "1",
        Reason.NO_DATE: "2",
    }


DEATHS = {
    "resource": "Patient",
    "where": [{"path": "deceased.ofType(dateTime).exists()"}],
    "select": [
        {
            "column": [
                {"name": "subject", "path": "getResourceKey()"},
                {"name": "date", "path": "deceased.ofType(dateTime)"},
            ]
        }
    ],
}


def test_times_until_an_event_end_with_the_window_a_death_or_the_last_contact():
    label = Label(
        name="ill",
        kind=Outcome.TIME,
        view="codes",
        when="date",
        window="P365D",
        follow_up=FollowUp(view="visits", when="date"),
        death=FollowUp(view="deaths", when="date"),
    )
    index = IndexDate(view="visits", column="date", join=Join.EARLIEST)
    dead = {"died": "2020-01-11", "died_ill": "2020-01-11", "died_unseen": "2020-06-01", "dead": "2020-01-01"}
    alive = [
        "ill",
        "twice",
        "late",
        "lost",
        "stayed",
        "unseen",
        "before",
        "today",
        "coarse",
        "undated",
        "coarse_late",
    ]
    records = [
        *(patient(who, deceasedDateTime=when) for who, when in dead.items()),
        *(patient(who) for who in (*alive, "nobody")),
        *(visit(who, "2020-01-01") for who in (*dead, *alive)),
        condition("ill", "1", when="2020-02-01"),  # after the last contact: it is one itself
        condition("twice", "1", when="2020-03-01"),
        condition("twice", "1", when="2020-01-03T12:00:00Z"),
        condition("late", "1", when="2021-06-01"),
        visit("lost", "2020-03-01"),
        visit("stayed", "2022-01-01"),
        condition("before", "1", when="2019-01-01"),
        condition("today", "1", when="2020-01-01"),
        condition("coarse", "1", when="2020"),
        condition("coarse_late", "1", when="2022"),
        condition("undated", "1"),
        condition("died_ill", "1", when="2020-01-11"),
        visit("died", "2020-05-01"),  # a bill, perhaps
        visit("died_unseen", "2020-02-01"),
    ]
    watched = plan(SEX, label=label, index=index).model_copy(update={"views": VIEWS | {"deaths": DEATHS}})
    made = featurise(watched, records)
    found = dict(zip(made.table.subjects, made.table.y.tolist(), strict=True))
    assert {who.removeprefix("Patient/"): tuple(row) for who, row in found.items()} == {
        "ill": (31, 1), "twice": (2, 1), "late": (365, 0), "lost": (60, 0), "stayed": (365, 0), "died": (10, 0),
        "died_ill": (10, 1), "died_unseen": (31, 0), "coarse_late": (365, 0),
    }  # fmt: skip
    assert made.table.timed
    assert made.table.classes == ()
    assert {reason: each.count for reason, each in reasons(made, "ill").items()} == {
        Reason.CENSORED: "2",  # nobody saw them after the first day, or they died on it
        Reason.BEFORE: "2",
        Reason.COARSE_DATE: "1",
        Reason.NO_DATE: "2",
    }
    nothing = featurise(
        plan(SEX, label=label.model_copy(update={"death": None}), index=index), [patient("nobody")]
    )
    assert nothing.table is None
    new = featurise(
        plan(SEX, label=label.model_copy(update={"death": None}), index=index), records, labelled=False
    )
    assert new.table.y.shape == (len(dead) + len(alive) + 1, 2)


def test_a_site_where_nothing_happened_is_told():
    label = Label(
        name="ill", kind=Outcome.TIME, view="codes", when="date", window="P1Y",
        follow_up=FollowUp(view="visits", when="date"),
    )  # fmt: skip
    index = IndexDate(view="visits", column="date")
    seen = [visit(who, day) for who in "abc" for day in ("2020-01-01", "2020-02-01")]
    made = featurise(plan(SEX, label=label, index=index), [*PEOPLE, *seen])
    assert reasons(made, "ill")[Reason.NO_EVENT].count == "3"


def test_an_empty_cohort_and_a_small_one_have_no_table():
    empty = featurise(plan(), [])
    assert empty.table is None
    assert reasons(empty, "cohort")[Reason.EMPTY_COHORT].fatal
    small = featurise(plan(floor=5), [*PEOPLE, value("a", 1)])
    assert small.table is None
    assert small.report.subjects == "<5"
    assert reasons(small, "cohort")[Reason.TOO_FEW].count == "<5"


def test_one_class_only_is_told():
    made = featurise(plan(), [*PEOPLE, value("a", 1)])
    assert made.table is not None
    assert Reason.ONE_CLASS in reasons(made, "ill")


def test_rows_of_nobody_are_counted():
    stray = Deidentified({"resourceType": "Observation", "valueQuantity": {"value": 1, "code": "mm[Hg]"}})
    assert reasons(featurise(plan(), [*PEOPLE, stray]), "view values")[Reason.NO_SUBJECT].count == "1"


def test_a_record_that_stands_twice_counts_once():
    twice = Deidentified({**value("a", 5).content, "id": "o1"})
    count = Input(name="n", kind=Kind.COUNT, view="values")
    assert column(featurise(plan(count), [*PEOPLE, twice, twice, *PEOPLE]), "n") == [1, 0, 0]


def test_a_record_that_the_view_cannot_read_is_counted_and_the_others_go_on():
    odd = Deidentified({"resourceType": "Patient", "id": "z", "gender": ["male", "female"]})
    made = featurise(plan(SEX), [*PEOPLE, odd])
    assert len(made.table) == 3
    assert reasons(made, "view patients")[Reason.NOT_READ].count == "1"


def test_bundles_are_unpacked_and_their_references_followed():
    raw = {
        "resourceType": "Bundle",
        "type": "collection",
        "entry": [
            {
                "fullUrl": "http://x/Patient/1",
                "resource": {"resourceType": "Patient", "id": "1", "gender": "male"},
            },
            {
                "fullUrl": "urn:uuid:0c3151bd-1cbf-4d64-b04d-cd9187a4c6e0",
                "resource": {
                    "resourceType": "Observation",
                    "id": "2",
                    "status": "final",
                    "code": {"coding": [{"system": LOINC, "code": "8480-6"}]},
                    "subject": {"reference": "Patient/1"},
                    "valueQuantity": {"value": 133, "system": "http://unitsofmeasure.org", "code": "mm[Hg]"},
                },
            },
        ],
    }
    make = Deidentifier(Need("heart"), Pseudonyms("heart", bytes(range(32))), year=2026)
    made = featurise(plan(), [make(Consented(Record(raw), HELD))])
    assert column(made) == [133]


def test_a_record_that_was_not_deidentified_is_refused():
    with pytest.raises(Refused, match="not de-identified"):
        featurise(plan(), [Record({"resourceType": "Patient", "id": "Jo Smith"})])


def test_a_half_written_line_is_told_by_its_place_and_the_others_go_on(tmp_path):
    lines = [json.dumps({"resourceType": "Patient", "id": f"p{i}", "gender": "male"}) for i in range(6)]
    lines[3] = lines[3][:25]
    (tmp_path / "Patient.ndjson").write_text("\n".join(lines))
    make = Deidentifier(Need("heart"), Pseudonyms("heart", bytes(range(32))), year=2026)
    kept, told = [], []
    for raw, where in documents(find([str(tmp_path)])[0]):
        try:
            kept.append(make(Consented(Record(parse(raw, where=where)), HELD)))
        except Refused as error:
            told.append(str(error))
    assert len(told) == 1
    assert "line 4" in told[0]
    assert "p3" not in told[0]
    assert len(featurise(plan(SEX), kept).table) == 5


@pytest.mark.parametrize(
    ("count", "of", "told"),
    [(0, None, "0"), (4, None, "<5"), (5, 100, "5"), (97, 100, ">95"), (100, 100, "100")],
)
def test_few_and_all_but_few_are_masked(count, of, told):
    assert masked(count, 5, of=of) == told


def test_nothing_of_a_person_is_shown():
    made = featurise(plan(), [*PEOPLE, value("a", 987654)])
    assert "987654" not in repr(made.table)
    assert "Patient/a" not in repr(made)
    assert "987654" not in str(made.report)
