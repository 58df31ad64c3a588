"""An attacker who never saw the rules: names and numbers in every form and place, records of no form at all."""

from __future__ import annotations

import json
import random

import pytest
from disguises import NAMES, disguised, record, seen_through
from making import KEY, deidentify, maker, rule, run

from abaton.errors import Refused
from abaton.records import (
    Dates,
    Function,
    Mechanism,
    Need,
    Preset,
    Pseudonyms,
    Record,
    Want,
    explain,
)
from abaton.deid.deidentifier import UNEXPECTED
from abaton.deid.settings import Code, CodeFilter, DateFilter
from abaton.fhir.elements import resources

WISHES = [{"mechanism": mechanism, "dates": dates} for mechanism in Mechanism for dates in Dates]
UCUM = "http://unitsofmeasure.org"


def attack(kinds, wishes, draw):
    makes = [maker(keep_country=True, **wish) for wish in wishes]
    for number, kind in enumerate(kinds):
        make = makes[number % len(makes)]
        raw = record(kind, draw)
        try:
            told = json.dumps(run(make, raw), ensure_ascii=False)
        except Refused as error:
            told = str(error)
            assert UNEXPECTED not in told
        told += json.dumps(make.tally().row())
        assert not seen_through(told), kind
        # A month may move onto itself when dates are shifted; a day never does.
        assert wishes[number % len(wishes)]["dates"] is Dates.SHIFT or "1937-04" not in told


def test_the_search_sees_through_every_disguise():
    draw = random.Random(1)
    for name in NAMES:
        for _ in range(40):
            assert seen_through(json.dumps({"x": disguised(name, draw)}, ensure_ascii=False))
    assert len(seen_through(json.dumps(record("Patient", draw), ensure_ascii=False))) > 5


def test_no_disguised_name_of_the_usual_types_comes_out():
    usual = (
        "Patient",
        "Observation",
        "Bundle",
        "Parameters",
        "QuestionnaireResponse",
        "AuditEvent",
        "Claim",
        "Group",
    )
    attack(usual, WISHES, random.Random(2))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_no_disguised_name_of_any_type_comes_out(seed):
    attack(sorted(resources()), WISHES, random.Random(seed))


def test_explaining_sees_nothing_through_a_disguise():
    names, need = Pseudonyms("s", KEY), Need("s")
    raw = record("Patient", random.Random(3))
    told = explain(Record(raw), need, names, year=2026)
    assert not seen_through(str(told))


def test_nothing_but_a_number_as_short_as_a_count_stays():
    def answer(**value):
        raw = {"resourceType": "QuestionnaireResponse", "item": [{"linkId": "1", "answer": [value]}]}
        made = deidentify({"id": "1", "status": "completed", **raw})["item"][0]
        return made.get("answer", [{}])[0].get(next(iter(value)))

    assert answer(valueInteger=120_000) == 120_000
    assert answer(valueInteger=83_920_174) is None
    assert answer(valueDecimal=-5_031_537.5) is None
    assert answer(valueQuantity={"value": 83_920_174}) is None
    assert answer(valueQuantity={"value": 83_920_174, "system": UCUM, "code": "/mL"}) is not None
    assert answer(valueQuantity={"value": 839_201_745, "system": UCUM, "code": "/mL"}) is None
    assert answer(valueQuantity={"value": 8_392_017.45, "system": UCUM, "code": "kg"}) is None


@pytest.mark.parametrize(
    ("age", "kept"),
    [
        ({"value": 95, "system": UCUM, "code": "a"}, 90),
        ({"value": 95, "unit": "Years"}, 90),
        ({"value": 1200, "system": UCUM, "code": "mo"}, 1080),
        ({"value": 100, "system": UCUM, "code": "mo"}, 100),
        ({"value": 40_000, "unit": "days"}, 32_873),
        ({"value": 30, "system": UCUM, "code": "d"}, 30),
    ],
)
def test_an_age_is_capped_in_the_unit_it_is_told_in(age, kept):
    made = deidentify({"resourceType": "Condition", "id": "1", "onsetAge": age})
    assert made["onsetAge"]["value"] == kept
    assert deidentify(made)["onsetAge"] == made["onsetAge"]


def test_relatives_over_89_are_one_class_too():
    history = {"resourceType": "FamilyMemberHistory", "id": "1", "status": "completed"}
    for born in ({"bornDate": "1901-02-03"}, {"bornPeriod": {"start": "1901", "end": "1902"}}):
        for dates in (Dates.YEAR, Dates.SHIFT):
            assert "190" not in json.dumps(deidentify(history | born, dates=dates))


def test_a_country_stays_only_if_it_is_one():
    def country(text):
        raw = {"resourceType": "Patient", "id": "1", "address": [{"country": text, "city": "Pisa"}]}
        return deidentify(raw, keep_country=True).get("address")

    assert country("IT") == [{"country": "IT"}]
    assert country("ITA") == [{"country": "ITA"}]
    for text in ("Quarkwright", "LEE", "Via Roma 1, Pisa", "it"):
        assert country(text) is None


def test_the_size_of_an_attachment_does_not_stay():
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
    place = {"url": "http://x", "valueAddress": {"city": "Zebulonstadt"}}
    patient = {"resourceType": "Patient", "id": "1", "name": [{"family": "Müller"}], "extension": [place]}
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
    made = deidentify(raw, rules=(rule("Observation.valueString", "scrub"),))
    assert "[…]" in made["entry"][1]["resource"]["valueString"]
    assert not any(
        word in json.dumps(made, ensure_ascii=False)
        for word in ("ller", "LLER", "llеr", "LLΕR", "𝐥𝐥", "Jones", "Zebulon", "TcO8")
    )


def test_studies_sites_and_exports_share_no_identity_and_no_shift():
    def all_new(**names):
        patient = {"resourceType": "Patient", "id": "1", "deceasedDateTime": "2020-06-15"}
        return run(maker(dates=Dates.SHIFT, mechanism=Mechanism.PSEUDONYMISE, **names), patient)

    made = [all_new(study=s, site=h) for s in ("a", "b") for h in ("x", "y")] + [
        all_new(key=bytes(range(1, 33)))
    ]
    assert len({each["id"] for each in made}) == 5
    days = {each["deceasedDateTime"] for each in made}
    assert len(days) > 2
    assert all("2019-12-18" <= day < "2020-06-15" for day in days)


ODD = (
    None, True, 0, -1, 1.5, "", "x", "#", "urn:uuid:", [], {}, [None], [[]], [{}], {"x": 1}, {"resourceType": []},
    {"resourceType": {}}, ["Patient"], {"reference": []}, {"coding": None}, {"coding": 5}, {"start": []}, "2020-13-45",
    "９９９９-01", {"id": []}, {"extension": 5},
)  # fmt: skip


def broken(raw, draw):
    """A record with an odd value somewhere."""
    raw = json.loads(json.dumps(raw))
    node, key = raw, draw.choice(list(raw))
    while isinstance(node[key], dict | list) and node[key] and draw.random() < 0.85:
        node = node[key]
        key = draw.choice(list(node)) if isinstance(node, dict) else draw.randrange(len(node))
    node[key] = draw.choice(ODD)
    return raw


def test_records_of_no_form_are_made_valid_or_refused_by_name():
    draw = random.Random(4)
    code = CodeFilter("code", (Code("", "x"),))
    wants = (
        Want("Observation", Function.DATA, codes=(code,)),
        Want("Observation", Function.COUNT, dates=(DateFilter("", "2000-01-01", "2030-01-01"),)),
        Want("Observation", Function.AGE_FROM_DATE, ("effectiveDateTime",)),
        Want("Patient", Function.ELEMENT, ("gender",)),
    )
    scrubbing = (rule("nodesByType('string')", "scrub"), rule("nodesByType('Identifier')", "pseudonymise"))
    makes = [
        maker(), maker(wants), maker(dates=Dates.SHIFT), maker(rules=scrubbing), maker(preset=Preset.PAPER),
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
        {"fullUrl": f"http://{server}/Patient/1", "resource": each}
        for server in "ab"
        for each in (patient, seen)
    ]
    bundle = {"resourceType": "Bundle", "id": "3", "type": "collection", "entry": entries}
    refusals = set()
    for _ in range(400):
        raw = broken(draw.choice((bundle, seen, patient)), draw)
        for make in makes:
            try:
                run(make, raw)
            except Refused as error:
                refusals.add(error.what)
    assert refusals == {"a resource has no type that R4 knows"}


def test_what_nobody_thought_of_is_refused_without_a_word_of_it(monkeypatch):
    make = maker()
    monkeypatch.setattr(make, "_documents", lambda raws: {}[raws[0]["id"]])
    with pytest.raises(Refused) as caught:
        run(make, {"resourceType": "Patient", "id": "Quarkwright"})
    assert "Quarkwright" not in str(caught.value)
    assert caught.value.__cause__ is None
