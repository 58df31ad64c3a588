"""Eligibility: yes, no or unknown; unknown is not eligible; no reason holds a value."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.fhir.partial_dates import Days, days
from abaton.study import Answer, Criterion, Eligibility, Period, Term, judge, load_study
from abaton.study.eligibility.criterion_evaluation import completed
from abaton.study.eligibility.evidence import Finding, both, either, negated

MMHG = {"value": 145, "unit": "mm[Hg]"}
TODAY = date(2026, 11, 16)
ICD, SCT, LOINC = "http://hl7.org/fhir/sid/icd-10-cm", "http://snomed.info/sct", "http://loinc.org"


def term(system, code, match="exact"):
    return Term.model_validate({"system": system, "code": code, "match": match})


def ask(criterion, *records):
    verdict = judge(Eligibility(criteria=(criterion,)), records, TODAY).verdicts[0]
    return verdict.answer.value


def patient(**elements):
    return {"resourceType": "Patient", "id": "p", **elements}


def condition(code="I50.1", system=ICD, **elements):
    return {"resourceType": "Condition", "code": {"coding": [{"system": system, "code": code}]}, **elements}


def observation(value=None, code="8480-6", **elements):
    made = {
        "resourceType": "Observation",
        "status": "final",
        "code": {"coding": [{"system": LOINC, "code": code}]},
    }
    return {**made, **({"valueQuantity": value} if value else {}), **elements}


def status(name, code):
    return {name: {"coding": [{"code": code}]}}


@pytest.mark.parametrize(
    ("born", "bounds", "answer"),
    [
        ("2008-11-16", {"low": 18}, "yes"),
        ("2008-11-17", {"low": 18}, "no"),
        ("2008", {"low": 18}, "unknown"),
        ("2008-11", {"low": 18}, "unknown"),
        ("2008-10", {"low": 18}, "yes"),
        ("1936-11-17", {"high": 89}, "yes"),
        ("1936-11-16", {"high": 89}, "no"),
        ("1966-11-16", {"above": 60}, "no"),
        ("1965-11-16", {"above": 60}, "yes"),
        ("1966-11-16", {"equals": 60}, "yes"),
        ("2026-10-16", {"low": 1, "unit": "mo"}, "yes"),
        ("2026-10-17", {"low": 1, "unit": "mo"}, "no"),
        ("2026-11-02", {"low": 2, "unit": "wk"}, "yes"),
        ("2027-01-01", {"high": 89}, "unknown"),
        ("once", {"low": 18}, "unknown"),
        (None, {"low": 18}, "unknown"),
    ],
)
def test_age(born, bounds, answer):
    assert ask(Criterion(what="age", **bounds), patient(birthDate=born)) == answer


def test_age_over_a_period():
    then = Period(start=date(2000, 1, 1), end=date(2010, 1, 1))
    assert ask(Criterion(what="age", low=18, high=20, period=then), patient(birthDate="1985-05-05")) == "yes"
    assert ask(Criterion(what="age", low=60, period=then), patient(birthDate="1985-05-05")) == "no"
    assert ask(Criterion(what="age", low=25, period=then), patient(birthDate="1984")) == "yes"
    assert ask(Criterion(what="age", low=25, period=then), patient(birthDate="1985")) == "unknown"


@pytest.mark.parametrize(
    ("gender", "answer"), [("female", "yes"), ("male", "no"), ("unknown", "unknown"), (None, "unknown")]
)
def test_sex(gender, answer):
    criterion = Criterion(what="sex", sex=("female", "other"))
    assert ask(criterion, patient(gender=gender)) == answer
    assert ask(criterion) == "unknown"
    assert ask(criterion, patient(gender="female"), patient(gender="female")) == "unknown"


@pytest.mark.parametrize(
    ("record", "answer"),
    [
        (condition("I50.1"), "yes"),
        (condition("I50"), "yes"),
        (condition("I51"), "no"),
        (condition("I5"), "no"),
        (condition("84114007", SCT), "unknown"),
        ({"resourceType": "Condition", "code": {"text": "heart failure"}}, "unknown"),
        ({"resourceType": "Condition"}, "unknown"),
        (condition(**status("verificationStatus", "refuted")), "no"),
        (condition(**status("verificationStatus", "entered-in-error")), "no"),
        (condition(**status("verificationStatus", "provisional")), "unknown"),
        (condition(**status("verificationStatus", "confirmed")), "yes"),
        (observation(), "no"),
    ],
)
def test_condition(record, answer):
    criterion = Criterion(what="condition", codes=(term(ICD, "I50", "startsWith"), term(ICD, "Z99")))
    assert ask(criterion, patient(), record) == answer
    turned = {"yes": "no", "no": "yes", "unknown": "unknown"}[answer]
    assert ask(criterion.model_copy(update={"exclude": True}), patient(), record) == turned


def test_one_match_decides_over_what_is_not_known():
    criterion = Criterion(what="condition", codes=(term(ICD, "I50"),))
    assert ask(criterion, condition("x", SCT), condition("I50")) == "yes"


@pytest.mark.parametrize(
    ("elements", "answer"),
    [
        ({"onsetDateTime": "2019-06-01"}, "yes"),
        ({"onsetDateTime": "2018-06-01"}, "yes"),
        ({"onsetDateTime": "2018-06-01", "abatementDateTime": "2019-01-01"}, "no"),
        ({"onsetDateTime": "2018-06-01", **status("clinicalStatus", "resolved")}, "unknown"),
        ({"onsetDateTime": "2019-06-01", **status("clinicalStatus", "resolved")}, "yes"),
        ({"onsetDateTime": "2020"}, "unknown"),
        ({"onsetDateTime": "2021"}, "no"),
        ({"onsetPeriod": {"start": "2010", "end": "2019-12"}}, "yes"),
        ({"recordedDate": "2019-06-01"}, "yes"),
        ({}, "unknown"),
    ],
)
def test_condition_in_a_period(elements, answer):
    then = Period(start=date(2019, 5, 4), end=date(2020, 5, 4))
    criterion = Criterion(what="condition", codes=(term(ICD, "I50"),), period=then)
    assert ask(criterion, condition("I50", **elements)) == answer


@pytest.mark.parametrize(
    ("when", "answer"),
    [("2019-06-01T10:00:00+02:00", "yes"), ("2019", "unknown"), ("2018", "no"), ("2019-06", "yes")],
)
def test_observation_in_a_period_with_coarse_dates(when, answer):
    then = Period(start=date(2019, 5, 4), end=date(2020, 5, 4))
    criterion = Criterion(what="finding", codes=(term(LOINC, "8480-6"),), period=then)
    assert ask(criterion, observation(effectiveDateTime=when)) == answer


@pytest.mark.parametrize(
    ("record", "answer"),
    [
        (observation({"value": 150, "code": "mm[Hg]"}), "yes"),
        (observation({"value": 150, "unit": "mm[Hg]"}), "yes"),
        (observation({"value": 139.9, "code": "mm[Hg]"}), "no"),
        (observation({"value": 20, "code": "kPa"}), "unknown"),
        (observation({"value": 150, "code": "mm[Hg]", "comparator": ">"}), "unknown"),
        (observation({"value": 200, "code": "mm[Hg]", "comparator": ">"}), "no"),
        (observation({"value": 140, "code": "mm[Hg]", "comparator": "<"}), "no"),
        (observation({"value": 180, "code": "mm[Hg]", "comparator": "<="}), "unknown"),
        (observation(valueRange={"low": MMHG, "high": {**MMHG, "value": 150}}), "yes"),
        (observation({"code": "mm[Hg]"}), "unknown"),
        (observation(dataAbsentReason={}), "unknown"),
        (observation({"value": 150, "code": "mm[Hg]"}, status="entered-in-error"), "no"),
        (observation({"value": 150, "code": "mm[Hg]"}, code="0"), "no"),
        (observation(code="85354-9", component=[observation({"value": 150, "code": "mm[Hg]"})]), "yes"),
    ],
)  # fmt: skip
def test_measured_values(record, answer):
    criterion = Criterion(
        what="observation", codes=(term(LOINC, "8480-6"),), low=140, high=200, unit="mm[Hg]"
    )
    assert ask(criterion, record) == answer


def test_coded_values_and_flags():
    smoker = Criterion(what="observation", codes=(term(LOINC, "1"),), values=(term(SCT, "77176002"),))
    said = {"coding": [{"system": SCT, "code": "77176002"}]}
    assert ask(smoker, observation(code="1", valueCodeableConcept=said)) == "yes"
    assert (
        ask(smoker, observation(code="1", valueCodeableConcept={"coding": [{"system": SCT, "code": "2"}]}))
        == "no"
    )
    assert ask(smoker, observation(code="1", valueCodeableConcept={"text": "smokes"})) == "unknown"
    flag = Criterion(what="observation", codes=(term(LOINC, "1"),), flag=False)
    assert ask(flag, observation(code="1", valueBoolean=False)) == "yes"
    assert ask(flag, observation(code="1", valueBoolean=True)) == "no"


def test_medication_through_every_kind_of_reference():
    criterion = Criterion(what="medication", codes=(term(SCT, "41549009"),))
    drug = {
        "resourceType": "Medication",
        "id": "m",
        "code": {"coding": [{"system": SCT, "code": "41549009"}]},
    }
    request = {"resourceType": "MedicationRequest", "status": "active"}
    assert ask(criterion, {**request, "medicationCodeableConcept": drug["code"]}) == "yes"
    assert ask(criterion, {**request, "medicationReference": {"reference": "Medication/m"}}, drug) == "yes"
    assert (
        ask(criterion, {**request, "medicationReference": {"reference": "#m"}, "contained": [drug]}) == "yes"
    )
    bundle = {
        "resourceType": "Bundle",
        "entry": [
            {"fullUrl": "urn:uuid:1", "resource": {"resourceType": "Medication", "code": drug["code"]}},
            {"resource": {**request, "medicationReference": {"reference": "urn:uuid:1"}}},
        ],
    }
    assert ask(criterion, bundle) == "yes"
    assert ask(criterion, {**request, "medicationReference": {"reference": "Medication/gone"}}) == "unknown"
    assert (
        ask(criterion, {**request, "status": "cancelled", "medicationCodeableConcept": drug["code"]}) == "no"
    )


def test_presence_location_lifespan_and_numbers_that_records_cannot_answer():
    active = {"resourceType": "Consent", "status": "active"}
    assert ask(Criterion(what="consent", flag=True), active) == "yes"
    assert ask(Criterion(what="consent", flag=True), {**active, "status": "rejected"}) == "no"
    assert ask(Criterion(what="consent", flag=False)) == "yes"
    here = Criterion(
        what="location", codes=(Term(system="urn:iso:std:iso:3166", code="IT", display="Italy"),)
    )
    assert ask(here, patient(address=[{"country": "it"}])) == "yes"
    assert ask(here, patient(address=[{"country": "DE"}])) == "no"
    assert ask(here, patient(address=[{"country": "Deutschland"}])) == "unknown"
    assert ask(here, patient()) == "unknown"
    assert ask(Criterion(what="lifespan", low=5)) == "unknown"
    assert ask(Criterion(what="encounter", low=1, unit="a"), {"resourceType": "Encounter"}) == "unknown"


def test_encounter_and_test():
    visit = {"resourceType": "Encounter", "status": "finished", "class": {"system": "c", "code": "IMP"}}
    assert ask(Criterion(what="encounter", codes=(term("c", "IMP"),)), visit) == "yes"
    assert ask(Criterion(what="encounter", codes=(term("c", "IMP"),)), {**visit, "status": "planned"}) == "no"
    report = {
        "resourceType": "DiagnosticReport",
        "status": "final",
        "code": {"coding": [{"system": LOINC, "code": "1"}]},
    }
    assert ask(Criterion(what="test", codes=(term(LOINC, "1"),)), report) == "yes"


def test_all_criteria_must_hold_and_reasons_hold_no_values():
    criteria = Eligibility(
        criteria=(
            Criterion(what="age", low=18),
            Criterion(what="sex", sex=("female",)),
            Criterion(what="condition", codes=(term(ICD, "I50"),)),
            Criterion(what="observation", codes=(term(LOINC, "8480-6"),), low=140, unit="mm[Hg]"),
        )
    )
    canary = "CANARY"
    records = [
        patient(birthDate="2008", gender=canary, name=[{"family": canary}]),
        condition(canary, canary),
        observation({"value": 77.77, "unit": canary}, note=[{"text": canary}]),
    ]
    judgement = judge(criteria, records, TODAY)
    assert not judgement.eligible
    assert len(judgement.reasons) == 4
    said = " ".join(judgement.reasons)
    assert canary not in said
    assert "77" not in said
    assert "2008" not in said


hostile = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("2020-02-30"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["coding", "code", "system", "value", "low", "high", "start", "end", "reference", "unit"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
elements = st.sampled_from(
    "code status component onsetPeriod onsetDateTime valueQuantity valueRange birthDate effectivePeriod "  # noqa: SIM905
    "class verificationStatus address contained medicationReference entry gender type".split()
)
kinds = st.sampled_from(
    ["Patient", "Condition", "Observation", "MedicationRequest", "Bundle", "Encounter", "Consent"]
)


@given(st.lists(st.tuples(kinds, st.dictionaries(elements, hostile, max_size=5)), max_size=4))
def test_broken_records_never_stop_the_judgement(full, made):
    records = [{"resourceType": kind, **content} for kind, content in made]
    assert judge(full.eligibility, records, TODAY).eligible is False


answers = st.sampled_from([Finding(answer) for answer in Answer])


@given(answers, answers, answers)
def test_the_logic_is_kleenes(a, b, c):
    assert both(a, b).answer == both(b, a).answer
    assert both(a, both(b, c)).answer == both(both(a, b), c).answer
    assert negated(both(a, b)).answer == either([negated(a), negated(b)]).answer
    assert negated(negated(a)) == a


@given(st.dates(date(1900, 1, 1), date(2026, 1, 1)), st.integers(0, 40000))
def test_completed_ages_grow_and_agree(born, later):
    day = date.fromordinal(min(born.toordinal() + later, date(2100, 1, 1).toordinal()))
    years, months = completed(born, day, "a"), completed(born, day, "mo")
    assert months // 12 == years
    assert abs((day - born).days / 365.2425 - years) < 1.01


def test_coarse_dates():
    assert days("2020") == Days(date(2020, 1, 1), date(2020, 12, 31))
    assert days("2020-02-30") is None
    assert days("0000") is None


@pytest.mark.shared
def test_real_criteria_on_real_records(shared: Path):
    folder = shared / "data/fhir"
    study = load_study(folder / "iehr-rdd/RDDExampleBundle.json")
    record = json.loads((folder / "iehr-examples/ConditionExample-Bundle.json").read_text("utf-8"))
    judgement = judge(study.eligibility, [record], TODAY)
    assert len(judgement.verdicts) == 4
    assert not judgement.eligible
