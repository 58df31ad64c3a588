"""Before and after: every value in exactly one row, and what is shown is what is sent."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from datetime import date

import pytest
from tests.citizen.conftest import HERE, served_form

from abaton.citizen.browser_api import Phone
from abaton.citizen.preview import Fate, prepare
from abaton.citizen.study_facts import told
from abaton.citizen.uploads import PickedError, Unusable, read_picked
from abaton.errors import Refused
from abaton.records import Need, Pseudonyms, opened
from abaton.study import StudyError, study_from_toml

DAY = "2026-11-17"
KEY = bytes(range(32))


def observation(number: int, **more) -> dict:
    return {
        "resourceType": "Observation",
        "id": f"o{number}",
        "status": "final",
        "subject": {"reference": "Patient/ann"},
        "code": {
            "coding": [{"system": "http://loinc.org", "code": "8480-6", "display": "Systolic"}],
            "text": "x",
        },
        "effectiveDateTime": "2024-05-06",
        "valueQuantity": {
            "value": 120 + number,
            "unit": "mmHg",
            "system": "http://unitsofmeasure.org",
            "code": "mm[Hg]",
        },
        **more,
    }


ANN = {
    "resourceType": "Patient",
    "id": "ann",
    "gender": "female",
    "birthDate": "1980-02-03",
    "name": [{"family": "Rossi", "given": ["Ann", "Maria"]}, {"text": "Annie"}],
    "identifier": [{"system": "urn:x", "value": "4711"}],
    "address": [{"city": "Pisa"}],
}
RECORDS = [
    ANN,
    observation(1),
    observation(2, note=[{"text": "tall"}]),
    {"resourceType": "Coverage", "id": "c"},
]


def values(node) -> int:
    if isinstance(node, dict):
        return sum(values(each) for key, each in node.items() if key != "resourceType")
    return sum(map(values, node)) if isinstance(node, list) else 1


def lines(*records: dict) -> bytes:
    return b"\n".join(json.dumps(record).encode() for record in records)


def bundle(*records: dict) -> dict:
    return {"resourceType": "Bundle", "type": "collection", "entry": [{"resource": each} for each in records]}


@pytest.fixture
def phone(study) -> Phone:
    made = Phone()
    made.open_study(served_form(study), study.hash, DAY)
    return made


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("everything", [False, True])
def test_every_value_is_in_exactly_one_row(study, whole, everything):
    need = Need.everything("x") if everything else study.need(date(2026, 11, 17))
    documents = [bundle(*RECORDS)] if whole else RECORDS
    made = prepare(documents, need, Pseudonyms("x", KEY), year=2026)
    sent = [json.loads(line) for line in made.content.splitlines()]
    assert sum(made.counts[fate] for fate in ("kept", "changed", "removed")) == values(RECORDS)
    assert sum(made.counts[fate] for fate in ("kept", "changed", "added")) == values(sent)
    for card in made.cards:
        for row in card.rows:
            assert (row.after is None) == (row.fate is Fate.REMOVED)
            assert (row.before is None) == (row.fate is Fate.ADDED)
            assert (row.fate is Fate.KEPT) == (row.before == row.after)
    after = Counter(str(row.after) for card in made.cards for row in card.rows if row.after is not None)
    assert after == Counter(str(leaf) for record in sent for leaf in leaves(record))


def leaves(node):
    if isinstance(node, dict):
        for key, each in node.items():
            if key != "resourceType":
                yield from leaves(each)
    elif isinstance(node, list):
        for each in node:
            yield from leaves(each)
    else:
        yield node


def test_the_rows_say_what_became_of_a_name_a_birthday_and_a_measurement(phone):
    phone.pick(lines(*RECORDS))
    shown = json.loads(phone.prepare(KEY, DAY))
    rows = {
        (path, str(before)): (after, fate)
        for card in shown["cards"]
        for path, before, after, fate in card["rows"]
    }
    assert rows["Patient.name.family", "Rossi"] == (None, "removed")
    assert rows["Patient.birthDate", "1980-02-03"] == ("1980", "changed")
    assert rows["Patient.gender", "female"] == ("female", "kept")
    assert rows["Observation.valueQuantity.value", "121"] == (121, "kept")
    assert shown["reasons"]["Patient.name"][1] == "not needed by the study"
    assert shown["values"] == values(RECORDS)
    assert shown["sha256"] == hashlib.sha256(phone.content()).hexdigest()
    assert b"Rossi" not in phone.content()
    phone.forget()
    assert json.loads(phone.prepare(KEY, DAY))["values"] == 0


def test_lines_and_a_bundle_of_the_same_records_send_the_same(study):
    made = [
        prepare(documents, study.need(date(2026, 11, 17)), Pseudonyms("x", KEY), year=2026).content
        for documents in (RECORDS, [bundle(*RECORDS)])
    ]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", Unusable.EMPTY),
        (b"ABATSEAL\x01", Unusable.SEALED),
        (b"shlink:/eyJ", Unusable.ENCRYPTED),
        (b"<Bundle/>", Unusable.XML),
        (b"hello", Unusable.NOT_JSON),
        (b'{"a": 1', Unusable.NOT_JSON),
        (b'{"a":' * 99 + b"1" + b"}" * 99, Unusable.TOO_DEEP),
        (b'{"hello": 1}', Unusable.NOT_FHIR),
        (b'{"resourceType": "Nothing"}', Unusable.NOT_FHIR),
        (b'{"resourceType": "ProcedureRequest"}', Unusable.OTHER_VERSION),
        (lines(ANN, {**ANN, "id": "bob"}), Unusable.SEVERAL_PEOPLE),
        (lines(bundle(ANN), bundle({**ANN, "id": "bob"})), Unusable.SEVERAL_PEOPLE),
    ],
)
def test_a_file_that_cannot_be_used_has_a_code_and_changes_nothing(phone, raw, code):
    phone.pick(lines(*RECORDS))
    before = phone.prepare(KEY, DAY)
    assert json.loads(phone.pick(raw)) == {"problem": code.value}
    assert phone.prepare(KEY, DAY) == before


def test_a_file_that_is_too_large_is_not_looked_into(monkeypatch):
    monkeypatch.setattr("abaton.citizen.uploads.MOST_BYTES", 10)
    with pytest.raises(PickedError, match="too-large"):
        read_picked(lines(ANN))


def test_a_byte_order_mark_and_spaces_are_no_obstacle():
    assert read_picked(b"\xef\xbb\xbf\n " + lines(ANN)) == [ANN]


def test_only_the_study_with_the_fingerprint_is_opened(study):
    for content in (served_form(study).replace("foretell", "predict"), json.dumps({"format": "other"}), "[]"):
        with pytest.raises(Refused):
            Phone().open_study(content, study.hash, DAY)


def test_the_consents_are_pinned_to_the_study_and_judged_as_a_yes(phone, study):
    from datetime import UTC, datetime

    from abaton.governance import Action, Ask, Reason, judge

    wish, consent = json.loads(phone.consents("A" * 26, "2026-11-17T09:00:00.000Z"))
    when = datetime(2026, 11, 17, 10, tzinfo=UTC)
    assert judge(wish, Ask("A" * 26), when) is Reason.IN_FORCE
    for action in Action:
        ask = Ask("A" * 26, study.study.id, study.hash, action, "Observation")
        assert judge(consent, ask, when) is Reason.IN_FORCE
    assert judge(consent, Ask("A" * 26, study.study.id, "00" * 32), when) is Reason.OTHER_DOCUMENT
    assert (
        judge(consent, Ask("A" * 26, study.study.id, study.hash, kind="Coverage"), when)
        is Reason.NOT_PERMITTED
    )


def test_eligibility_says_why(phone):
    phone.pick(lines({**ANN, "birthDate": "2020-01-01"}))
    assert json.loads(phone.eligible(DAY)) == {
        "eligible": False,
        "verdicts": [{"answer": "no", "reason": "the records do not show it"}],
    }


def test_the_study_is_told_without_sentences(study):
    facts = told(study, date(2026, 11, 17))
    assert facts["criteria"][0]["bounds"] == {"low": "18", "high": "89"}
    assert (facts["open"], facts["admission"], facts["until"]) == (True, "code", "2036-12-31")
    assert not told(study, date(2040, 1, 1))["open"]


def test_people_need_a_study_with_a_consent_text():
    text = (HERE / "study.toml").read_text().partition("[consent]")[0]
    with pytest.raises(StudyError, match=r"\[persons\] needs"):
        study_from_toml(text, "study.toml")


def test_how_people_take_part_is_in_the_hash_and_in_the_bundle(study):
    from abaton.study import study_from_json, write_bundle

    assert study_from_json(json.dumps(write_bundle(study))).hash == study.hash
    assert study.model_copy(update={"persons": None}).content() != study.content()


def test_opening_shows_every_record_once():
    assert len(list(opened(bundle(*RECORDS)))) == len(RECORDS)
