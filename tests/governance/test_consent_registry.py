from __future__ import annotations

import copy
import json
from collections import Counter
from datetime import UTC, datetime

import pytest
import sqlalchemy as sql
from fhir.resources.R4B.consent import Consent
from fhir.resources.R4B.researchsubject import ResearchSubject
from hypothesis import given
from hypothesis import strategies as st
from tests.governance.conftest import DAY, DOCUMENT, NEWER, NOW, STUDY, pseudonym, query_for, store_consent

from abaton.errors import SettingsError
from abaton.governance import (
    AuditLog,
    ConsentAction,
    ConsentQuery,
    DenialReason,
    DeniedError,
    RefusalCode,
    evaluate_consent,
    make_consent,
    record_round,
    rounds_with,
    schema,
    snapshot_members,
    take_snapshot,
)
from abaton.governance.cohorts import mark_rounds, marked_rounds, remove_from_cohorts
from abaton.governance.consent import deactivate


def test_consents_and_subjects_are_valid_fhir(registry):
    Consent.model_validate(registry.consent(pseudonym("ann"), STUDY))
    Consent.model_validate(registry.consent(pseudonym("ann")))
    ResearchSubject.model_validate(research_subject_of(registry))
    registry.withdraw(pseudonym("ann"), STUDY, NOW + DAY)
    Consent.model_validate(registry.consent(pseudonym("ann"), STUDY))
    ResearchSubject.model_validate(research_subject_of(registry))
    assert research_subject_of(registry)["status"] == "withdrawn"


def research_subject_of(registry) -> dict:
    """Return Ann's stored ResearchSubject."""
    return json.loads(registry.database.read(lambda c: c.scalar(sql.select(schema.subjects.c.resource))))


CONSENT = make_consent(query_for(), NOW, NOW + 10 * DAY, excluded_types=["Media"])


def changed(path: str, value: object) -> dict:
    consent = copy.deepcopy(CONSENT)
    *parents, last = path.split("/")
    node = consent
    for name in parents:
        node = node[int(name) if name.isdigit() else name]
    if value is ...:
        del node[last]
    else:
        node[int(last) if last.isdigit() else last] = value
    return consent


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("status", "inactive", DenialReason.NOT_ACTIVE),
        ("status", "proposed", DenialReason.NOT_ACTIVE),
        ("status", ..., DenialReason.MALFORMED),
        ("resourceType", "Patient", DenialReason.MALFORMED),
        ("scope/coding/0/code", "treatment", DenialReason.OTHER_SCOPE),
        ("scope", ..., DenialReason.MALFORMED),
        ("patient/reference", f"Patient/{pseudonym('bob')}", DenialReason.OTHER_SUBJECT),
        ("patient", ..., DenialReason.MALFORMED),
        ("policy/0/uri", "urn:abaton:study:lungs", DenialReason.OTHER_STUDY),
        ("policy/1/uri", f"urn:sha256:{NEWER}", DenialReason.OTHER_DOCUMENT),
        ("policy", ..., DenialReason.MALFORMED),
        ("provision", ..., DenialReason.MALFORMED),
        ("provision/type", "deny", DenialReason.UNCLEAR),
        ("provision/type", ..., DenialReason.MALFORMED),
        ("provision/actor", [{}], DenialReason.UNCLEAR),
        ("provision/dataPeriod", {}, DenialReason.UNCLEAR),
        ("provision/period", ..., DenialReason.MALFORMED),
        ("provision/period/start", ..., DenialReason.MALFORMED),
        ("provision/period/start", "soon", DenialReason.MALFORMED),
        ("provision/period/start", "2026-03-02", DenialReason.NOT_YET),
        ("provision/period/end", "2026-02", DenialReason.EXPIRED),
        ("provision/period/end", "2026-03-01", DenialReason.IN_FORCE),
        ("provision/period/end", "2026", DenialReason.IN_FORCE),
        ("provision/period/end", "2026-13", DenialReason.MALFORMED),
        ("provision/period/end", "2026-03-01T12:00:00", DenialReason.MALFORMED),
        ("provision/period/end", 5, DenialReason.MALFORMED),
        ("provision/action", [], DenialReason.NOT_PERMITTED),
        ("provision/action", ..., DenialReason.MALFORMED),
        ("provision/purpose/0/code", "HMARKT", DenialReason.UNCLEAR),
        ("provision/provision/0/type", "permit", DenialReason.UNCLEAR),
        ("provision/provision/0/class", ..., DenialReason.UNCLEAR),
        ("provision/provision/0/period", {}, DenialReason.UNCLEAR),
        ("modifierExtension", [{}], DenialReason.UNCLEAR),
        ("language", "en", DenialReason.IN_FORCE),
    ],
)
def test_a_consent_permits_only_what_is_clear(path, value, reason):
    assert evaluate_consent(changed(path, value), query_for(), NOW) is reason


def test_a_consent_has_bounds():
    assert evaluate_consent(CONSENT, query_for(), NOW) is DenialReason.IN_FORCE
    assert evaluate_consent(CONSENT, query_for(resource_type="Media"), NOW) is DenialReason.NOT_PERMITTED
    assert evaluate_consent(CONSENT, query_for(resource_type="Observation"), NOW) is DenialReason.IN_FORCE
    assert evaluate_consent(CONSENT, query_for(), NOW - DAY) is DenialReason.NOT_YET
    assert evaluate_consent(CONSENT, query_for(), NOW + 11 * DAY) is DenialReason.EXPIRED
    assert evaluate_consent(None, query_for(), NOW) is DenialReason.ABSENT
    only = make_consent(query_for(), NOW, None, actions=[ConsentAction.COLLECT], resource_types=["Patient"])
    assert evaluate_consent(only, query_for(resource_type="Patient"), NOW) is DenialReason.IN_FORCE
    assert evaluate_consent(only, query_for(resource_type="Observation"), NOW) is DenialReason.NOT_PERMITTED
    assert evaluate_consent(only, query_for(action=ConsentAction.TRAIN), NOW) is DenialReason.NOT_PERMITTED


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*CONSENT, "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON)
def test_invalid_json_never_permits_and_never_raises(nonsense):
    assert not evaluate_consent(nonsense, query_for(), NOW).permits


PATHS = ["status", "scope", "policy/0", "policy/1", "provision/period", "patient", "provision/action/0"]


@given(st.sampled_from(PATHS), JSON)
def test_a_damaged_consent_does_not_raise(path, value):
    assert evaluate_consent(changed(path, value), query_for(), NOW) in DenialReason


def test_decisions_after_each_change(registry):
    ann, bob = pseudonym("ann"), pseudonym("bob")
    assert registry.decision(query_for(), NOW) is DenialReason.IN_FORCE
    assert registry.decision(query_for("bob"), NOW) is DenialReason.NOT_OPTED_IN
    store_consent(registry, ConsentQuery(bob), make_consent(ConsentQuery(bob), NOW, NOW + 5 * DAY), NOW)
    registry.enrol({bob: None}, STUDY, DOCUMENT, NOW)
    assert registry.decision(query_for("bob"), NOW + 6 * DAY) is DenialReason.NOT_OPTED_IN
    registry.withdraw(ann, STUDY, NOW + DAY)
    registry.withdraw(ann, STUDY, NOW + DAY)
    assert registry.decision(query_for(), NOW + DAY) is DenialReason.WITHDRAWN
    registry.enrol({ann: None}, STUDY, DOCUMENT, NOW + 2 * DAY)
    assert registry.decision(query_for(), NOW + 2 * DAY) is DenialReason.IN_FORCE
    actions = Counter(entry["action"] for entry in AuditLog(registry.database).entries())
    assert actions["consent-withdrawn"] == 1
    assert actions["subject-enrolled"] == 3


def test_a_new_document_needs_a_new_consent(registry):
    registry.publish(STUDY, NEWER, NOW + DAY, ends=None, keep_until=None)
    assert registry.decision(query_for(), NOW + DAY) is DenialReason.OTHER_DOCUMENT
    assert (
        registry.decision(ConsentQuery(pseudonym("ann"), STUDY, NEWER), NOW + DAY)
        is DenialReason.OTHER_DOCUMENT
    )
    with pytest.raises(DeniedError) as caught:
        registry.enrol({pseudonym("ann"): None}, STUDY, DOCUMENT, NOW + DAY)
    assert caught.value.code is RefusalCode.WRONG_DOCUMENT
    registry.enrol({pseudonym("ann"): None}, STUDY, NEWER, NOW + DAY)
    assert registry.decision(ConsentQuery(pseudonym("ann"), STUDY, NEWER), NOW + DAY) is DenialReason.IN_FORCE


def test_closed_ended_and_unknown_studies_allow_nothing(registry):
    assert registry.decision(query_for(), NOW + 60 * DAY) is DenialReason.EXPIRED
    assert registry.decision(query_for(), NOW + 101 * DAY) is DenialReason.STUDY_CLOSED
    registry.close(STUDY, NOW + DAY)
    assert registry.decision(query_for(), NOW + DAY) is DenialReason.STUDY_CLOSED
    assert (
        registry.decision(ConsentQuery(pseudonym("ann"), "lungs", DOCUMENT), NOW) is DenialReason.STUDY_CLOSED
    )
    with pytest.raises(DeniedError):
        registry.enrol({pseudonym("ann"): None}, STUDY, DOCUMENT, NOW + DAY)


def test_subjects_are_identified_by_pseudonyms_only(registry):
    for name in ("Peter", "Patient/1", "", "'; DROP TABLE consents; --"):
        with pytest.raises(SettingsError):
            registry.enrol({name: None}, STUDY, DOCUMENT, NOW)
    for study, document in (("", DOCUMENT), ("a b", DOCUMENT), ("x", "zz")):
        with pytest.raises(SettingsError):
            registry.publish(study, document, NOW, ends=None, keep_until=None)


def test_an_imported_consent_is_evaluated_by_its_content(registry):
    bob = query_for("bob")
    registry.enrol({bob.subject: None}, STUDY, DOCUMENT, NOW)
    store_consent(registry, bob, {"resourceType": "Consent"}, NOW)
    assert registry.decision(bob, NOW) is DenialReason.MALFORMED
    store_consent(registry, bob, make_consent(bob, NOW, None, actions=[ConsentAction.COLLECT]), NOW)
    assert registry.decision(bob, NOW) is DenialReason.IN_FORCE
    assert registry.decision(query_for("bob", action=ConsentAction.SEND), NOW) is DenialReason.NOT_PERMITTED
    store_consent(registry, bob, {**make_consent(bob, NOW, None), "status": "rejected"}, NOW)
    assert registry.decision(bob, NOW) is DenialReason.NOT_ACTIVE


def test_eligible_subjects_equal_single_decisions(registry):
    names = ("ann", "expired", "partial", "withdrawn", "opted-out", "silent")
    ends = dict.fromkeys(map(pseudonym, names[1:-1])) | {pseudonym("expired"): NOW + DAY}
    registry.enrol(ends, STUDY, DOCUMENT, NOW)
    partial, opted_out = query_for("partial"), ConsentQuery(pseudonym("opted-out"))
    store_consent(registry, partial, make_consent(partial, NOW, None, actions=[ConsentAction.COLLECT]), NOW)
    registry.withdraw(pseudonym("withdrawn"), STUDY, NOW)
    store_consent(registry, opted_out, deactivate(make_consent(opted_out, NOW, None), NOW), NOW)
    for when in (NOW, NOW + 2 * DAY):
        for action in ConsentAction:
            eligible = {
                pseudonym(n) for n in names if registry.decision(query_for(n, action=action), when).permits
            }
            assert registry.eligible_subjects(STUDY, action, when) == (DOCUMENT, eligible)
    registry.publish(STUDY, "0" * 64, NOW, ends=None, keep_until=None)
    assert registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW) == ("0" * 64, frozenset())
    registry.close(STUDY, NOW)
    assert registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW)[1] == frozenset()


def test_cohorts_and_the_rounds_that_used_a_subject(registry):
    database, ann, bob = registry.database, pseudonym("ann"), pseudonym("bob")
    registry.enrol({bob: None}, STUDY, DOCUMENT, NOW)
    both = take_snapshot(registry, STUDY, ConsentAction.TRAIN, NOW)
    assert both.members == tuple(sorted([ann, bob]))
    assert take_snapshot(registry, STUDY, ConsentAction.TRAIN, NOW + DAY).id == both.id
    assert take_snapshot(registry, STUDY, ConsentAction.SEND, NOW).id != both.id
    record_round(database, "run-1", 1, both, NOW)
    record_round(database, "run-1", 1, both, NOW)
    registry.withdraw(ann, STUDY, NOW + DAY)
    later = take_snapshot(registry, STUDY, ConsentAction.TRAIN, NOW + DAY)
    assert later.members == (bob,)
    assert take_snapshot(registry, STUDY, ConsentAction.TRAIN, NOW + DAY, [ann]).members == ()
    record_round(database, "run-1", 2, later, NOW + DAY)
    remove_from_cohorts(database, STUDY, ann, NOW + DAY)
    assert snapshot_members(database, both.id) == [bob]
    assert rounds_with(database, STUDY, ann) == [("run-1", 1)]
    assert mark_rounds(database, STUDY, ann, NOW) == mark_rounds(database, STUDY, ann, NOW) == [("run-1", 1)]
    assert marked_rounds(database, STUDY, ann) == [("run-1", 1)]


def test_time_without_a_zone_is_refused(registry):
    with pytest.raises(SettingsError, match="time zone"):
        registry.enrol({pseudonym("bob"): None}, STUDY, DOCUMENT, datetime(2026, 1, 1))
    assert json.loads(json.dumps(registry.consent(pseudonym("ann"))))["status"] == "active"
    assert datetime(2026, 1, 1, tzinfo=UTC) < NOW
