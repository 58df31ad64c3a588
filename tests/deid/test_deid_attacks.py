"""Hostile records: names and numbers in every form and element, and malformed records."""

from __future__ import annotations

import json
import random

import pytest
from tests.deid.disguised_text import NAMES, disguised, record, seen_through
from tests.deid.record_examples import KEY, deidentify, maker, rule, run

from abaton.deid import (
    DataRequest,
    DataRequirement,
    DateHandling,
    Mechanism,
    Pseudonyms,
    RequirementPurpose,
    RulePreset,
    explain,
)
from abaton.deid.deidentifier import UNEXPECTED
from abaton.deid.settings import CodeFilter, CodePattern, DateFilter
from abaton.errors import RefusedError
from abaton.fhir.elements import resource_types
from abaton.record_types import Record

SETTINGS = [{"mechanism": mechanism, "dates": dates} for mechanism in Mechanism for dates in DateHandling]
UCUM = "http://unitsofmeasure.org"


def attack(kinds, settings_list, draw):
    makes = [maker(keep_country=True, **settings) for settings in settings_list]
    for number, kind in enumerate(kinds):
        make = makes[number % len(makes)]
        raw = record(kind, draw)
        try:
            output = json.dumps(run(make, raw), ensure_ascii=False)
        except RefusedError as error:
            output = str(error)
            assert UNEXPECTED not in output
        output += json.dumps(make.take_counts().row())
        assert not seen_through(output), kind
        # A month may move onto itself when dates are shifted; a day never does.
        assert (
            settings_list[number % len(settings_list)]["dates"] is DateHandling.SHIFT
            or "1937-04" not in output
        )


def test_the_search_sees_through_every_disguise():
    draw = random.Random(1)
    for name in NAMES:
        for _ in range(40):
            assert seen_through(json.dumps({"x": disguised(name, draw)}, ensure_ascii=False))
    assert len(seen_through(json.dumps(record("Patient", draw), ensure_ascii=False))) > 5


def test_no_disguised_name_of_the_usual_types_comes_out():
    common_types = (
        "Patient",
        "Observation",
        "Bundle",
        "Parameters",
        "QuestionnaireResponse",
        "AuditEvent",
        "Claim",
        "Group",
    )
    attack(common_types, SETTINGS, random.Random(2))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_no_disguised_name_of_any_type_comes_out(seed):
    attack(sorted(resource_types()), SETTINGS, random.Random(seed))


def test_explain_shows_no_disguised_name():
    names, need = Pseudonyms("s", KEY), DataRequest("s")
    raw = record("Patient", random.Random(3))
    output = explain(Record(raw), need, names, year=2026)
    assert not seen_through(str(output))


def test_only_numbers_as_short_as_a_count_are_kept():
    def answer(**value):
        raw = {"resourceType": "QuestionnaireResponse", "item": [{"linkId": "1", "answer": [value]}]}
        deidentified = deidentify({"id": "1", "status": "completed", **raw})["item"][0]
        return deidentified.get("answer", [{}])[0].get(next(iter(value)))

    assert answer(valueInteger=120_000) == 120_000
    assert answer(valueInteger=83_920_174) is None
    assert answer(valueDecimal=-5_031_537.5) is None
    assert answer(valueQuantity={"value": 83_920_174}) is None
    assert answer(valueQuantity={"value": 83_920_174, "system": UCUM, "code": "/mL"}) is not None
    assert answer(valueQuantity={"value": 839_201_745, "system": UCUM, "code": "/mL"}) is None
    assert answer(valueQuantity={"value": 8_392_017.45, "system": UCUM, "code": "kg"}) is None


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        ({"value": 95, "system": UCUM, "code": "a"}, 90),
        ({"value": 95, "unit": "Years"}, 90),
        ({"value": 1200, "system": UCUM, "code": "mo"}, 1080),
        ({"value": 100, "system": UCUM, "code": "mo"}, 100),
        ({"value": 40_000, "unit": "days"}, 32_873),
        ({"value": 30, "system": UCUM, "code": "d"}, 30),
    ],
)
def test_an_age_is_capped_in_its_own_unit(age, expected):
    deidentified = deidentify({"resourceType": "Condition", "id": "1", "onsetAge": age})
    assert deidentified["onsetAge"]["value"] == expected
    assert deidentify(deidentified)["onsetAge"] == deidentified["onsetAge"]


def test_relatives_over_89_are_one_class():
    history = {"resourceType": "FamilyMemberHistory", "id": "1", "status": "completed"}
    for born in ({"bornDate": "1901-02-03"}, {"bornPeriod": {"start": "1901", "end": "1902"}}):
        for dates in (DateHandling.YEAR, DateHandling.SHIFT):
            assert "190" not in json.dumps(deidentify(history | born, dates=dates))


def test_only_valid_countries_are_kept():
    def country(text):
        raw = {"resourceType": "Patient", "id": "1", "address": [{"country": text, "city": "Pisa"}]}
        return deidentify(raw, keep_country=True).get("address")

    assert country("IT") == [{"country": "IT"}]
    assert country("ITA") == [{"country": "ITA"}]
    for text in ("Quarkwright", "LEE", "Via Roma 1, Pisa", "it"):
        assert country(text) is None


def test_the_size_of_an_attachment_is_dropped():
    raw = {
        "resourceType": "Media",
        "id": "1",
        "status": "completed",
        "content": {"size": 4711, "data": "QUJD"},
    }
    assert "4711" not in json.dumps(deidentify(raw))


def test_a_condition_on_the_resource_itself_decides():
    line = (rule("Observation.where(status='final').issued", "redact"),)
    for status, stays in (("final", False), ("amended", True)):
        raw = {"resourceType": "Observation", "id": "1", "status": status, "issued": "2020-01-01T00:00:00Z"}
        assert ("issued" in deidentify(raw, rules=line)) is stays


@pytest.mark.parametrize(
    "text",
    [
        "seen Mu\u0308ller today", "MÜLLER", "Müllers Frau", "M&uuml;ller", "M%C3%BCller", "TcO8bGxlcg==",
        "Mül\u00adler", "ＭÜＬＬＥＲ", "called Muller", "Мüllеr", "ΜÜLLΕR", "𝐌𝐮̈𝐥𝐥𝐞𝐫", "Mü\u200bller",
        "Dr Jonesová said", "born in Zebulonstadt",
    ],
)  # fmt: skip
def test_scrubbing_sees_through_writing_forms(text):
    location = {"url": "http://x", "valueAddress": {"city": "Zebulonstadt"}}
    patient = {"resourceType": "Patient", "id": "1", "name": [{"family": "Müller"}], "extension": [location]}
    doctor = {"reference": "Practitioner/9", "display": "Jonesová"}
    seen = {
        "resourceType": "Observation",
        "id": "2",
        "status": "final",
        "performer": [doctor],
        "valueString": text,
    }
    raw = {
        "resourceType": "Bundle",
        "type": "collection",
        "entry": [{"resource": patient}, {"resource": seen}],
    }
    deidentified = deidentify(raw, rules=(rule("Observation.valueString", "scrub"),))
    assert "[…]" in deidentified["entry"][1]["resource"]["valueString"]
    assert not any(
        word in json.dumps(deidentified, ensure_ascii=False)
        for word in ("ller", "LLER", "llеr", "LLΕR", "𝐥𝐥", "Jones", "Zebulon", "TcO8")
    )


def test_studies_sites_and_exports_share_no_identity_and_no_shift():
    def all_new(**names):
        patient = {"resourceType": "Patient", "id": "1", "deceasedDateTime": "2020-06-15"}
        return run(maker(dates=DateHandling.SHIFT, mechanism=Mechanism.PSEUDONYMISE, **names), patient)

    deidentified = [all_new(study=s, site=h) for s in ("a", "b") for h in ("x", "y")] + [
        all_new(key=bytes(range(1, 33)))
    ]
    assert len({resource["id"] for resource in deidentified}) == 5
    days = {resource["deceasedDateTime"] for resource in deidentified}
    assert len(days) > 2
    assert all("2019-12-18" <= day < "2020-06-15" for day in days)


ODD = (
    None, True, 0, -1, 1.5, "", "x", "#", "urn:uuid:", [], {}, [None], [[]], [{}], {"x": 1}, {"resourceType": []},
    {"resourceType": {}}, ["Patient"], {"reference": []}, {"coding": None}, {"coding": 5}, {"start": []}, "2020-13-45",
    "９９９９-01", {"id": []}, {"extension": 5},
)  # fmt: skip


def broken(raw, draw):
    """Return a record with an unusual value in one element."""
    raw = json.loads(json.dumps(raw))
    node, key = raw, draw.choice(list(raw))
    while isinstance(node[key], dict | list) and node[key] and draw.random() < 0.85:
        node = node[key]
        key = draw.choice(list(node)) if isinstance(node, dict) else draw.randrange(len(node))
    node[key] = draw.choice(ODD)
    return raw


def test_malformed_records_become_valid_or_are_refused_by_name():
    draw = random.Random(4)
    code = CodeFilter("code", (CodePattern("", "x"),))
    wants = (
        DataRequirement("Observation", RequirementPurpose.DATA, codes=(code,)),
        DataRequirement(
            "Observation", RequirementPurpose.COUNT, dates=(DateFilter("", "2000-01-01", "2030-01-01"),)
        ),
        DataRequirement("Observation", RequirementPurpose.AGE_FROM_DATE, ("effectiveDateTime",)),
        DataRequirement("Patient", RequirementPurpose.ELEMENT, ("gender",)),
    )
    scrubbing = (rule("nodesByType('string')", "scrub"), rule("nodesByType('Identifier')", "pseudonymise"))
    makes = [
        maker(), maker(wants), maker(dates=DateHandling.SHIFT), maker(rules=scrubbing), maker(preset=RulePreset.PAPER),
    ]  # fmt: skip
    inside = {"resourceType": "Practitioner", "id": "d", "name": [{"family": "X"}]}
    seen = {
        "resourceType": "Observation", "id": "2", "status": "final", "contained": [inside],
        "code": {"coding": [{"system": "http://loinc.org", "code": "8310-5"}]}, "subject": {"reference": "Patient/1"},
        "performer": [{"reference": "#d"}], "effectiveDateTime": "2020-02-03", "valueQuantity": {"value": 1},
        "component": [{"code": {"text": "x"}, "valueString": "y"}], "meta": {"security": [{"code": "R"}]},
    }  # fmt: skip
    patient = {"resourceType": "Patient", "id": "1", "birthDate": "1980-02-03", "name": [{"family": "X"}]}
    entries = [
        {"fullUrl": f"http://{server}/Patient/1", "resource": resource}
        for server in "ab"
        for resource in (patient, seen)
    ]
    bundle = {"resourceType": "Bundle", "id": "3", "type": "collection", "entry": entries}
    refusals = set()
    for _ in range(400):
        raw = broken(draw.choice((bundle, seen, patient)), draw)
        for make in makes:
            try:
                run(make, raw)
            except RefusedError as error:
                refusals.add(error.what)
    assert refusals == {"a resource has no R4 resource type"}


def test_unexpected_errors_are_refused_without_content(monkeypatch):
    make = maker()
    monkeypatch.setattr(make, "_documents", lambda raws: {}[raws[0]["id"]])
    with pytest.raises(RefusedError) as caught:
        run(make, {"resourceType": "Patient", "id": "Quarkwright"})
    assert "Quarkwright" not in str(caught.value)
    assert caught.value.__cause__ is None
