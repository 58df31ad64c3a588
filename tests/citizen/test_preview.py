"""Preview: every value in exactly one row, and what is shown is what is sent."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from datetime import date

import pytest
from tests.citizen.conftest import HERE, served_form

from abaton.citizen.browser_api import BrowserApi
from abaton.citizen.preview import ValueOutcome, prepare_preview
from abaton.citizen.study_facts import study_facts_for_page
from abaton.citizen.uploads import UnusableReason, UploadError, read_upload
from abaton.deid import DataRequest, Pseudonyms
from abaton.errors import RefusedError
from abaton.fhir.bundles import bundle_resources
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


def count_values(node) -> int:
    if isinstance(node, dict):
        return sum(count_values(value) for key, value in node.items() if key != "resourceType")
    return sum(map(count_values, node)) if isinstance(node, list) else 1


def lines(*records: dict) -> bytes:
    return b"\n".join(json.dumps(record).encode() for record in records)


def bundle(*records: dict) -> dict:
    return {
        "resourceType": "Bundle",
        "type": "collection",
        "entry": [{"resource": value} for value in records],
    }


@pytest.fixture
def api(study) -> BrowserApi:
    opened = BrowserApi()
    opened.open_study(served_form(study), study.hash, DAY)
    return opened


@pytest.mark.parametrize("in_bundle", [False, True])
@pytest.mark.parametrize("everything", [False, True])
def test_every_value_is_in_exactly_one_row(study, in_bundle, everything):
    request = DataRequest.everything("x") if everything else study.data_request(date(2026, 11, 17))
    documents = [bundle(*RECORDS)] if in_bundle else RECORDS
    preview = prepare_preview(documents, request, Pseudonyms("x", KEY), year=2026)
    sent = [json.loads(line) for line in preview.content.splitlines()]
    assert sum(preview.counts[outcome] for outcome in ("unchanged", "changed", "removed")) == count_values(
        RECORDS
    )
    assert sum(preview.counts[outcome] for outcome in ("unchanged", "changed", "added")) == count_values(sent)
    for card in preview.cards:
        for row in card.rows:
            assert (row.after is None) == (row.outcome is ValueOutcome.REMOVED)
            assert (row.before is None) == (row.outcome is ValueOutcome.ADDED)
            assert (row.outcome is ValueOutcome.UNCHANGED) == (row.before == row.after)
    after = Counter(str(row.after) for card in preview.cards for row in card.rows if row.after is not None)
    assert after == Counter(str(leaf) for record in sent for leaf in leaves(record))


def leaves(node):
    if isinstance(node, dict):
        for key, value in node.items():
            if key != "resourceType":
                yield from leaves(value)
    elif isinstance(node, list):
        for value in node:
            yield from leaves(value)
    else:
        yield node


def test_the_rows_say_what_became_of_a_name_a_birthday_and_a_measurement(api):
    api.add_file(lines(*RECORDS))
    shown = json.loads(api.prepare_records(KEY, DAY))
    rows = {
        (path, str(before)): (after, outcome)
        for card in shown["cards"]
        for path, before, after, outcome in card["rows"]
    }
    assert rows["Patient.name.family", "Rossi"] == (None, "removed")
    assert rows["Patient.birthDate", "1980-02-03"] == ("1980", "changed")
    assert rows["Patient.gender", "female"] == ("female", "unchanged")
    assert rows["Observation.valueQuantity.value", "121"] == (121, "unchanged")
    assert shown["reasons"]["Patient.name"][1] == "not needed by the study"
    assert shown["values"] == count_values(RECORDS)
    assert shown["sha256"] == hashlib.sha256(api.content()).hexdigest()
    assert b"Rossi" not in api.content()
    api.clear_records()
    assert json.loads(api.prepare_records(KEY, DAY))["values"] == 0


def test_lines_and_a_bundle_of_the_same_records_send_the_same(study):
    contents = [
        prepare_preview(
            documents, study.data_request(date(2026, 11, 17)), Pseudonyms("x", KEY), year=2026
        ).content
        for documents in (RECORDS, [bundle(*RECORDS)])
    ]
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", UnusableReason.EMPTY),
        (b"ABATSEAL\x01", UnusableReason.SEALED),
        (b"shlink:/eyJ", UnusableReason.ENCRYPTED),
        (b"<Bundle/>", UnusableReason.XML),
        (b"hello", UnusableReason.NOT_JSON),
        (b'{"a": 1', UnusableReason.NOT_JSON),
        (b'{"a":' * 99 + b"1" + b"}" * 99, UnusableReason.TOO_DEEP),
        (b'{"hello": 1}', UnusableReason.NOT_FHIR),
        (b'{"resourceType": "Nothing"}', UnusableReason.NOT_FHIR),
        (b'{"resourceType": "ProcedureRequest"}', UnusableReason.OTHER_VERSION),
        (lines(ANN, {**ANN, "id": "bob"}), UnusableReason.SEVERAL_PATIENTS),
        (lines(bundle(ANN), bundle({**ANN, "id": "bob"})), UnusableReason.SEVERAL_PATIENTS),
    ],
)
def test_a_file_that_cannot_be_used_has_a_code_and_changes_nothing(api, raw, code):
    api.add_file(lines(*RECORDS))
    before = api.prepare_records(KEY, DAY)
    assert json.loads(api.add_file(raw)) == {"problem": code.value}
    assert api.prepare_records(KEY, DAY) == before


def test_a_file_that_is_too_large_is_not_looked_into(monkeypatch):
    monkeypatch.setattr("abaton.citizen.uploads.MAX_UPLOAD_BYTES", 10)
    with pytest.raises(UploadError, match="too-large"):
        read_upload(lines(ANN))


def test_a_byte_order_mark_and_spaces_are_no_obstacle():
    assert read_upload(b"\xef\xbb\xbf\n " + lines(ANN)) == [ANN]


def test_only_the_study_with_the_fingerprint_is_opened(study):
    for content in (served_form(study).replace("predict", "foresee"), json.dumps({"format": "other"}), "[]"):
        with pytest.raises(RefusedError):
            BrowserApi().open_study(content, study.hash, DAY)


def test_the_consents_refer_to_the_study_and_are_in_force(api, study):
    from datetime import UTC, datetime

    from abaton.governance import ConsentAction, ConsentQuery, DenialReason, evaluate_consent

    general, consent = json.loads(api.consents("A" * 26, "2026-11-17T09:00:00.000Z"))
    when = datetime(2026, 11, 17, 10, tzinfo=UTC)
    assert evaluate_consent(general, ConsentQuery("A" * 26), when) is DenialReason.IN_FORCE
    for action in ConsentAction:
        query = ConsentQuery("A" * 26, study.study.id, study.hash, action, "Observation")
        assert evaluate_consent(consent, query, when) is DenialReason.IN_FORCE
    assert (
        evaluate_consent(consent, ConsentQuery("A" * 26, study.study.id, "00" * 32), when)
        is DenialReason.OTHER_DOCUMENT
    )
    assert (
        evaluate_consent(
            consent, ConsentQuery("A" * 26, study.study.id, study.hash, resource_type="Coverage"), when
        )
        is DenialReason.NOT_PERMITTED
    )


def test_eligibility_says_why(api):
    api.add_file(lines({**ANN, "birthDate": "2020-01-01"}))
    assert json.loads(api.check_eligibility(DAY)) == {
        "eligible": False,
        "criteria": [{"answer": "not met", "reason": "the records do not meet it"}],
    }


def test_the_study_facts_contain_no_sentences(study):
    facts = study_facts_for_page(study, date(2026, 11, 17))
    assert facts["criteria"][0]["bounds"] == {"low": "18", "high": "89"}
    assert (facts["open"], facts["admission"], facts["until"]) == (True, "code", "2036-12-31")
    assert not study_facts_for_page(study, date(2040, 1, 1))["open"]


def test_citizens_need_a_study_with_a_consent_text():
    text = (HERE / "study.toml").read_text().partition("[consent]")[0]
    with pytest.raises(StudyError, match=r"\[citizens\] requires"):
        study_from_toml(text, "study.toml")


def test_citizen_section_is_in_the_hash_and_in_the_bundle(study):
    from abaton.study import study_from_json, write_bundle

    assert study_from_json(json.dumps(write_bundle(study))).hash == study.hash
    assert study.model_copy(update={"citizens": None}).content() != study.content()


def test_opening_shows_every_record_once():
    assert len(list(bundle_resources(bundle(*RECORDS)))) == len(RECORDS)
