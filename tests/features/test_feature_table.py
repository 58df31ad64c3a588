"""Feature tables from de-identified records: units, codes, ages, labels and the data-quality report."""

from __future__ import annotations

import json
from datetime import date

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.deid.record_examples import LEGAL_BASIS
from tests.features.feature_examples import (
    ICD,
    LOINC,
    PRESSURE,
    SNOMED,
    VIEWS,
    condition,
    patient,
    plan,
    value,
    visit,
)

from abaton.deid import DataRequest, Deidentifier, Pseudonyms
from abaton.documents.fields import CodePrefix, Coding
from abaton.errors import RefusedError
from abaton.features import (
    Aggregation,
    Category,
    FollowUpSpec,
    Imputation,
    IndexDate,
    InputKind,
    InputSpec,
    LabelKind,
    LabelSpec,
    MissingReason,
    RowFilter,
    build_features,
    row_groups,
    suppress_count,
)
from abaton.fhir.file_reader import find_files, read_documents
from abaton.fhir.json_format import parse
from abaton.record_types import ConsentedRecord, DeidentifiedRecord, Record

NAN = float("nan")


def column(result, name="pressure"):
    names = [column.name for column in result.table.columns]
    return result.table.x[:, names.index(name)].tolist()


def reasons(result, name):
    return {issue.reason: issue for issue in result.report.issues_of(name)}


PATIENTS = [patient(who) for who in ("a", "b", "c")]


def test_one_row_per_subject_ordered_by_pseudonym():
    records = [value("c", 3), *reversed(PATIENTS), value("a", 1), value("b", 2), condition("b", "1")]
    result = build_features(plan(), records)
    assert result.table.subjects == ("Patient/a", "Patient/b", "Patient/c")
    assert column(result) == [1, 2, 3]
    assert result.table.y.tolist() == [0, 1, 0]
    assert result.table.classes == ("no", "yes")


@given(seed=st.randoms())
def test_the_order_of_records_does_not_matter(seed):
    records = [*PATIENTS, *(value(who, i * 7 % 5, when=f"202{i % 4}") for i, who in enumerate("abcabcab"))]
    latest = PRESSURE.model_copy(update={"date_column": "date", "aggregation": Aggregation.LATEST})
    first = build_features(plan(latest), records)
    seed.shuffle(records)
    again = build_features(plan(latest), records)
    assert again.table.subjects == first.table.subjects
    assert np.array_equal(again.table.x, first.table.x, equal_nan=True)


def test_units_are_converted_and_inconvertible_values_are_missing():
    records = [
        *PATIENTS,
        value("a", 16, "kPa"),
        value("b", 120, None),
        value("c", 5, "kg"),
        value("c", 5, "mmHg"),
    ]
    result = build_features(plan(min_cell_count=1), records)
    assert column(result)[0] == pytest.approx(120.0, abs=0.1)
    assert np.isnan(column(result)[1:]).all()
    issues = reasons(result, "pressure")
    assert issues[MissingReason.UNKNOWN_UNIT].count == "1"
    assert issues[MissingReason.NO_UNIT].count == "1"
    assert issues[MissingReason.OTHER_UNIT].count == "1"
    assert result.report.is_sufficient


def test_a_study_may_refuse_other_units():
    strict = PRESSURE.model_copy(update={"on_unit_mismatch": "refuse"})
    result = build_features(plan(strict), [*PATIENTS, value("a", 120, None)])
    assert result.table is None
    assert not result.report.is_sufficient
    assert reasons(result, "pressure")[MissingReason.NO_UNIT].is_fatal


def test_amounts_become_masses_with_a_molar_mass():
    chol = PRESSURE.model_copy(update={"name": "chol", "unit": "mg/dL", "molar_mass": 386.65})
    assert column(build_features(plan(chol), [patient("a"), value("a", 5, "mmol/L")]), "chol")[
        0
    ] == pytest.approx(193.3, abs=0.1)


SEX = InputSpec(
    name="sex",
    kind=InputKind.CATEGORY,
    view="patients",
    column="sex",
    categories=tuple(Category(name=name, values=(name,)) for name in ("female", "male")),
)


def test_unknown_codes_form_the_category_other():
    patients = [patient("a", gender="male"), patient("b", gender="other"), patient("c")]
    result = build_features(plan(SEX), patients)
    assert result.table.x[0].tolist() == [0, 1, 0]
    assert result.table.x[1].tolist() == [0, 0, 1]
    assert np.isnan(result.table.x[2]).all()
    assert reasons(result, "sex")[MissingReason.OTHER_CODE].count == "1"
    assert row_groups(result.table, "sex") == ("male", "other", "missing")


def test_missing_values_are_imputed_as_specified():
    records = [*PATIENTS, value("a", 100)]
    constant = PRESSURE.model_copy(
        update={"imputation": Imputation.CONSTANT, "fill_value": 80, "missing_indicator": True}
    )
    assert build_features(plan(constant), records).table.x.tolist() == [[100, 0], [80, 1], [80, 1]]
    drop = build_features(plan(PRESSURE.model_copy(update={"imputation": Imputation.DROP})), records)
    assert drop.table.subjects == ("Patient/a",)
    assert reasons(drop, "pressure")[MissingReason.DROPPED].count == "2"
    mean = build_features(plan(PRESSURE.model_copy(update={"missing_indicator": True})), records)
    assert mean.table.x[:, 1].tolist() == [0, 1, 1]
    assert np.isnan(mean.table.x[1, 0])
    named = SEX.model_copy(update={"imputation": Imputation.CONSTANT, "fill_value": "male"})
    assert build_features(plan(named), [patient("a")]).table.x.tolist() == [[0, 1, 0]]


def test_other_code_systems_are_named_only_if_public():
    kind = Category(name="diabetes", codes=(Coding(system=SNOMED, code="44054006"),))
    coded = InputSpec(
        name="kind",
        kind=InputKind.CATEGORY,
        view="codes",
        column="code",
        system_column="system",
        categories=(kind,),
    )
    records = [
        *PATIENTS,
        condition("a", "E11.9", ICD),
        condition("b", "E11.9", ICD),
        condition("c", "7", "urn:mary"),
    ]
    result = build_features(
        plan(coded, label=LabelSpec(name="ill", kind=LabelKind.ANY, view="values")), records
    )
    systems = {
        (f.system, f.count) for f in result.report.issues_of("kind") if f.reason is MissingReason.OTHER_SYSTEM
    }
    assert systems == {(ICD, "2"), ("local system", "1")}
    assert not any("mary" in str(finding) or "E11" in str(finding) for finding in result.report.issues)


def test_filter_without_match_reports_the_systems_found():
    where = RowFilter(column="code", codes=(Coding(system=SNOMED, code="44054006"),), system_column="system")
    diabetes = InputSpec(name="diabetes", kind=InputKind.FLAG, view="codes", where=where)
    result = build_features(
        plan(diabetes, label=LabelSpec(name="ill", kind=LabelKind.ANY, view="values")),
        [*PATIENTS, condition("a", "E11", ICD)],
    )
    assert column(result, "diabetes") == [0, 0, 0]
    issues = reasons(result, "diabetes")
    assert MissingReason.NO_ROWS in issues
    assert issues[MissingReason.OTHER_SYSTEM].system == ICD


def test_codes_match_by_system_and_prefix():
    prefix = Coding(system=ICD, code="E11", match=CodePrefix.STARTS_WITH)
    where = RowFilter(column="code", codes=(prefix,), system_column="system")
    diabetes = InputSpec(name="diabetes", kind=InputKind.FLAG, view="codes", where=where)
    records = [
        *PATIENTS,
        condition("a", "E11.9", ICD),
        condition("b", "E11.9", SNOMED),
        condition("c", "E12", ICD),
    ]
    assert column(build_features(plan(diabetes), records), "diabetes") == [1, 0, 0]


def test_ages_at_a_reference_date_and_at_the_index_date():
    patients = [patient("a", birthDate="1950-06-15"), patient("b", birthDate="1960"), patient("c")]
    at = InputSpec(
        name="age", kind=InputKind.AGE, view="patients", column="born", reference_date=date(2020, 6, 14)
    )
    assert column(build_features(plan(at), patients), "age")[:2] == [69, 60]
    index = IndexDate(view="visits", column="date", aggregation=Aggregation.EARLIEST)
    records = [*patients, visit("a", "2021-07-01"), visit("a", "2020-07-01"), visit("b", "2010")]
    result = build_features(plan(at.model_copy(update={"reference_date": None}), index_date=index), records)
    assert column(result, "age")[:2] == [70, 50]
    banded = build_features(plan(at.model_copy(update={"band_width": 10})), patients)
    assert column(banded, "age")[:2] == [65, 65]
    assert row_groups(result.table, "age", (60,)) == ("60 and above", "below 60", "missing")


def test_counts_flags_and_rows_after_the_index_date():
    index = IndexDate(view="visits", column="date", aggregation=Aggregation.EARLIEST)
    count = InputSpec(name="n", kind=InputKind.COUNT, view="values", date_column="date")
    records = [
        *PATIENTS,
        visit("a", "2020-05-05"),
        value("a", 1, when="2020-05-05"),
        value("a", 2, when="2020-05-06"),
    ]
    assert column(build_features(plan(count, index_date=index), records), "n") == [1, 0, 0]
    assert column(
        build_features(plan(count.model_copy(update={"after_index": True}), index_date=index), records), "n"
    ) == [2, 0, 0]
    positive = DeidentifiedRecord(
        {"resourceType": "Observation", "subject": {"reference": "Patient/b"}, "valueBoolean": True}
    )
    flag = InputSpec(name="yes", kind=InputKind.FLAG, view="values", column="yes")
    assert column(build_features(plan(flag), [*PATIENTS, positive]), "yes")[1] == 1
    assert np.isnan(column(build_features(plan(flag), [*PATIENTS, positive]), "yes")[0])


CLASSES = tuple(
    Category(name=name, codes=(Coding(system=SNOMED, code=code),))
    for name, code in (("mild", "1"), ("severe", "2"))
)


def test_labels_of_every_kind():
    records = [
        *PATIENTS,
        condition("a", "2"),
        condition("b", "1"),
        condition("c", "9"),
        value("a", 150),
        value("b", 120),
    ]
    by_code = LabelSpec(
        name="grade",
        kind=LabelKind.CLASSES,
        view="codes",
        column="code",
        system_column="system",
        classes=CLASSES,
    )
    result = build_features(plan(label=by_code), records)
    assert (result.table.y.tolist(), result.table.classes) == ([1, 0], ("mild", "severe"))
    assert reasons(result, "grade")[MissingReason.NO_LABEL].count == "1"
    source = {"view": "values", "column": "value", "unit": "mm[Hg]", "unit_column": "unit"}
    high = LabelSpec(name="high", kind=LabelKind.THRESHOLD, threshold=140, **source)
    assert build_features(plan(SEX, label=high), records).table.y.tolist() == [1, 0]
    worth = build_features(plan(SEX, label=LabelSpec(name="p", kind=LabelKind.VALUE, **source)), records)
    assert worth.table.y.tolist() == [150.0, 120.0]
    assert worth.table.classes == ()


def test_events_within_a_window_after_the_index_date():
    label = LabelSpec(
        name="event",
        kind=LabelKind.EVENT,
        view="codes",
        date_column="date",
        outcome_window="P365D",
        follow_up=FollowUpSpec(view="visits", date_column="date"),
    )
    index = IndexDate(view="visits", column="date", aggregation=Aggregation.EARLIEST)
    who = ["early", "late", "never", "lost", "before", "coarse", "undated", "absent"]
    starts = [visit(subject, "2020-01-01") for subject in who[:-1]]
    records = [
        *(patient(subject) for subject in who),
        *starts,
        condition("early", "1", when="2020-06-01"),
        condition("late", "1", when="2022-06-01"),
        visit("never", "2021-03-01"),
        visit("lost", "2020-03-01"),
        condition("before", "1", when="2019-01-01"),
        condition("coarse", "1", when="2020"),
        condition("undated", "1"),
    ]
    result = build_features(plan(SEX, label=label, index_date=index), records)
    assert dict(zip(result.table.subjects, result.table.y.tolist(), strict=True)) == {
        "Patient/early": 1,
        "Patient/late": 0,
        "Patient/never": 0,
    }
    issues = reasons(result, "event")
    assert {r: f.count for r, f in issues.items()} == {
        MissingReason.CENSORED: "1",
        MissingReason.BEFORE: "1",
        MissingReason.COARSE_DATE: "1",
        MissingReason.NO_DATE: "2",
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


def test_survival_times_end_with_window_death_or_last_contact():
    label = LabelSpec(
        name="ill",
        kind=LabelKind.TIME,
        view="codes",
        date_column="date",
        outcome_window="P365D",
        follow_up=FollowUpSpec(view="visits", date_column="date"),
        death=FollowUpSpec(view="deaths", date_column="date"),
    )
    index = IndexDate(view="visits", column="date", aggregation=Aggregation.EARLIEST)
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
        *(patient(who) for who in (*alive, "absent")),
        *(visit(who, "2020-01-01") for who in (*dead, *alive)),
        condition("ill", "1", when="2020-02-01"),  # after the last contact: an event is a contact
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
        visit("died", "2020-05-01"),  # after the death
        visit("died_unseen", "2020-02-01"),
    ]
    spec = plan(SEX, label=label, index_date=index).model_copy(update={"views": VIEWS | {"deaths": DEATHS}})
    result = build_features(spec, records)
    times = dict(zip(result.table.subjects, result.table.y.tolist(), strict=True))
    assert {who.removeprefix("Patient/"): tuple(row) for who, row in times.items()} == {
        "ill": (31, 1), "twice": (2, 1), "late": (365, 0), "lost": (60, 0), "stayed": (365, 0), "died": (10, 0),
        "died_ill": (10, 1), "died_unseen": (31, 0), "coarse_late": (365, 0),
    }  # fmt: skip
    assert result.table.is_survival
    assert result.table.classes == ()
    assert {reason: issue.count for reason, issue in reasons(result, "ill").items()} == {
        MissingReason.CENSORED: "2",  # no contact after the first day, or death on it
        MissingReason.BEFORE: "2",
        MissingReason.COARSE_DATE: "1",
        MissingReason.NO_DATE: "2",
    }
    nothing = build_features(
        plan(SEX, label=label.model_copy(update={"death": None}), index_date=index), [patient("absent")]
    )
    assert nothing.table is None
    new = build_features(
        plan(SEX, label=label.model_copy(update={"death": None}), index_date=index), records, labelled=False
    )
    assert new.table.y.shape == (len(dead) + len(alive) + 1, 2)


def test_site_without_events_is_reported():
    label = LabelSpec(
        name="ill", kind=LabelKind.TIME, view="codes", date_column="date", outcome_window="P1Y",
        follow_up=FollowUpSpec(view="visits", date_column="date"),
    )  # fmt: skip
    index = IndexDate(view="visits", column="date")
    seen = [visit(who, day) for who in "abc" for day in ("2020-01-01", "2020-02-01")]
    result = build_features(plan(SEX, label=label, index_date=index), [*PATIENTS, *seen])
    assert reasons(result, "ill")[MissingReason.NO_EVENT].count == "3"


def test_an_empty_cohort_and_a_small_one_have_no_table():
    empty = build_features(plan(), [])
    assert empty.table is None
    assert reasons(empty, "cohort")[MissingReason.EMPTY_COHORT].is_fatal
    small = build_features(plan(min_cell_count=5), [*PATIENTS, value("a", 1)])
    assert small.table is None
    assert small.report.subjects == "<5"
    assert reasons(small, "cohort")[MissingReason.TOO_FEW].count == "<5"


def test_single_class_is_reported():
    result = build_features(plan(), [*PATIENTS, value("a", 1)])
    assert result.table is not None
    assert MissingReason.ONE_CLASS in reasons(result, "ill")


def test_rows_without_subject_are_counted():
    stray = DeidentifiedRecord(
        {"resourceType": "Observation", "valueQuantity": {"value": 1, "code": "mm[Hg]"}}
    )
    assert (
        reasons(build_features(plan(), [*PATIENTS, stray]), "view values")[MissingReason.NO_SUBJECT].count
        == "1"
    )


def test_duplicate_records_count_once():
    twice = DeidentifiedRecord({**value("a", 5).content, "id": "o1"})
    count = InputSpec(name="n", kind=InputKind.COUNT, view="values")
    assert column(build_features(plan(count), [*PATIENTS, twice, twice, *PATIENTS]), "n") == [1, 0, 0]


def test_unreadable_records_are_counted_and_skipped():
    odd = DeidentifiedRecord({"resourceType": "Patient", "id": "z", "gender": ["male", "female"]})
    result = build_features(plan(SEX), [*PATIENTS, odd])
    assert len(result.table) == 3
    assert reasons(result, "view patients")[MissingReason.NOT_READ].count == "1"


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
    make = Deidentifier(DataRequest("heart"), Pseudonyms("heart", bytes(range(32))), year=2026)
    result = build_features(plan(), [make(ConsentedRecord(Record(raw), LEGAL_BASIS))])
    assert column(result) == [133]


def test_a_record_that_was_not_deidentified_is_refused():
    with pytest.raises(RefusedError, match="not been de-identified"):
        build_features(plan(), [Record({"resourceType": "Patient", "id": "Jo Smith"})])


def test_truncated_line_is_reported_by_location_and_skipped(tmp_path):
    lines = [json.dumps({"resourceType": "Patient", "id": f"p{i}", "gender": "male"}) for i in range(6)]
    lines[3] = lines[3][:25]
    (tmp_path / "Patient.ndjson").write_text("\n".join(lines))
    make = Deidentifier(DataRequest("heart"), Pseudonyms("heart", bytes(range(32))), year=2026)
    records, errors = [], []
    for raw, where in read_documents(find_files([str(tmp_path)])[0]):
        try:
            records.append(make(ConsentedRecord(Record(parse(raw, where=where)), LEGAL_BASIS)))
        except RefusedError as error:
            errors.append(str(error))
    assert len(errors) == 1
    assert "line 4" in errors[0]
    assert "p3" not in errors[0]
    assert len(build_features(plan(SEX), records).table) == 5


@pytest.mark.parametrize(
    ("count", "of", "expected"),
    [(0, None, "0"), (4, None, "<5"), (5, 100, "5"), (97, 100, ">95"), (100, 100, "100")],
)
def test_small_counts_and_complements_are_suppressed(count, of, expected):
    assert suppress_count(count, 5, total=of) == expected


def test_repr_contains_no_subject_data():
    result = build_features(plan(), [*PATIENTS, value("a", 987654)])
    assert "987654" not in repr(result.table)
    assert "Patient/a" not in repr(result)
    assert "987654" not in str(result.report)
