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
from tests.governance.conftest import DAY, DOCUMENT, NEWER, NOW, STUDY, asking, person, say

from abaton.errors import SettingsError
from abaton.governance import (
    Action,
    Ask,
    Audit,
    Denied,
    Reason,
    RefusalCode,
    judge,
    make_consent,
    members_of,
    note_round,
    rounds_with,
    schema,
    take_snapshot,
)
from abaton.governance.cohorts import leave_cohorts, mark_rounds, marked_rounds
from abaton.governance.consent import ended


def test_consents_and_subjects_are_valid_fhir(registry):
    Consent.model_validate(registry.consent(person("ann"), STUDY))
    Consent.model_validate(registry.consent(person("ann")))
    ResearchSubject.model_validate(stands(registry))
    registry.withdraw(person("ann"), STUDY, NOW + DAY)
    Consent.model_validate(registry.consent(person("ann"), STUDY))
    ResearchSubject.model_validate(stands(registry))
    assert stands(registry)["status"] == "withdrawn"


def stands(registry) -> dict:
    """Where Ann stands, as it is written down."""
    return json.loads(registry.database.read(lambda c: c.scalar(sql.select(schema.subjects.c.resource))))


YES = make_consent(asking(), NOW, NOW + 10 * DAY, except_kinds=["Media"])


def changed(path: str, value: object) -> dict:
    made = copy.deepcopy(YES)
    *way, last = path.split("/")
    node = made
    for name in way:
        node = node[int(name) if name.isdigit() else name]
    if value is ...:
        del node[last]
    else:
        node[int(last) if last.isdigit() else last] = value
    return made


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("status", "inactive", Reason.NOT_ACTIVE),
        ("status", "proposed", Reason.NOT_ACTIVE),
        ("status", ..., Reason.MALFORMED),
        ("resourceType", "Patient", Reason.MALFORMED),
        ("scope/coding/0/code", "treatment", Reason.OTHER_SCOPE),
        ("scope", ..., Reason.MALFORMED),
        ("patient/reference", f"Patient/{person('bob')}", Reason.OTHER_SUBJECT),
        ("patient", ..., Reason.MALFORMED),
        ("policy/0/uri", "urn:abaton:study:lungs", Reason.OTHER_STUDY),
        ("policy/1/uri", f"urn:sha256:{NEWER}", Reason.OTHER_DOCUMENT),
        ("policy", ..., Reason.MALFORMED),
        ("provision", ..., Reason.MALFORMED),
        ("provision/type", "deny", Reason.UNCLEAR),
        ("provision/type", ..., Reason.MALFORMED),
        ("provision/actor", [{}], Reason.UNCLEAR),
        ("provision/dataPeriod", {}, Reason.UNCLEAR),
        ("provision/period", ..., Reason.MALFORMED),
        ("provision/period/start", ..., Reason.MALFORMED),
        ("provision/period/start", "soon", Reason.MALFORMED),
        ("provision/period/start", "2026-03-02", Reason.NOT_YET),
        ("provision/period/end", "2026-02", Reason.EXPIRED),
        ("provision/period/end", "2026-03-01", Reason.IN_FORCE),
        ("provision/period/end", "2026", Reason.IN_FORCE),
        ("provision/period/end", "2026-13", Reason.MALFORMED),
        ("provision/period/end", "2026-03-01T12:00:00", Reason.MALFORMED),
        ("provision/period/end", 5, Reason.MALFORMED),
        ("provision/action", [], Reason.NOT_PERMITTED),
        ("provision/action", ..., Reason.MALFORMED),
        ("provision/purpose/0/code", "HMARKT", Reason.UNCLEAR),
        ("provision/provision/0/type", "permit", Reason.UNCLEAR),
        ("provision/provision/0/class", ..., Reason.UNCLEAR),
        ("provision/provision/0/period", {}, Reason.UNCLEAR),
        ("modifierExtension", [{}], Reason.UNCLEAR),
        ("language", "en", Reason.IN_FORCE),
    ],
)
def test_whatever_is_not_a_clear_yes_is_a_no(path, value, reason):
    assert judge(changed(path, value), asking(), NOW) is reason


def test_a_yes_has_bounds():
    assert judge(YES, asking(), NOW) is Reason.IN_FORCE
    assert judge(YES, asking(kind="Media"), NOW) is Reason.NOT_PERMITTED
    assert judge(YES, asking(kind="Observation"), NOW) is Reason.IN_FORCE
    assert judge(YES, asking(), NOW - DAY) is Reason.NOT_YET
    assert judge(YES, asking(), NOW + 11 * DAY) is Reason.EXPIRED
    assert judge(None, asking(), NOW) is Reason.ABSENT
    only = make_consent(asking(), NOW, None, actions=[Action.COLLECT], kinds=["Patient"])
    assert judge(only, asking(kind="Patient"), NOW) is Reason.IN_FORCE
    assert judge(only, asking(kind="Observation"), NOW) is Reason.NOT_PERMITTED
    assert judge(only, asking(action=Action.TRAIN), NOW) is Reason.NOT_PERMITTED


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*YES, "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON)
def test_nonsense_is_never_a_yes_and_never_an_exception(nonsense):
    assert not judge(nonsense, asking(), NOW).allows


PATHS = ["status", "scope", "policy/0", "policy/1", "provision/period", "patient", "provision/action/0"]


@given(st.sampled_from(PATHS), JSON)
def test_a_yes_with_a_damaged_part_is_not_an_exception(path, value):
    assert judge(changed(path, value), asking(), NOW) in Reason


def test_the_verbs_in_order(registry):
    ann, bob = person("ann"), person("bob")
    assert registry.reason(asking(), NOW) is Reason.IN_FORCE
    assert registry.reason(asking("bob"), NOW) is Reason.NOT_OPTED_IN
    say(registry, Ask(bob), make_consent(Ask(bob), NOW, NOW + 5 * DAY), NOW)
    registry.enrol({bob: None}, STUDY, DOCUMENT, NOW)
    assert registry.reason(asking("bob"), NOW + 6 * DAY) is Reason.NOT_OPTED_IN
    registry.withdraw(ann, STUDY, NOW + DAY)
    registry.withdraw(ann, STUDY, NOW + DAY)
    assert registry.reason(asking(), NOW + DAY) is Reason.WITHDRAWN
    registry.enrol({ann: None}, STUDY, DOCUMENT, NOW + 2 * DAY)
    assert registry.reason(asking(), NOW + 2 * DAY) is Reason.IN_FORCE
    told = Counter(entry["action"] for entry in Audit(registry.database).entries())
    assert told["consent-withdrawn"] == 1
    assert told["subject-enrolled"] == 3


def test_a_new_document_needs_a_new_consent(registry):
    registry.publish(STUDY, NEWER, NOW + DAY, ends=None, keep_until=None)
    assert registry.reason(asking(), NOW + DAY) is Reason.OTHER_DOCUMENT
    assert registry.reason(Ask(person("ann"), STUDY, NEWER), NOW + DAY) is Reason.OTHER_DOCUMENT
    with pytest.raises(Denied) as caught:
        registry.enrol({person("ann"): None}, STUDY, DOCUMENT, NOW + DAY)
    assert caught.value.code is RefusalCode.WRONG_DOCUMENT
    registry.enrol({person("ann"): None}, STUDY, NEWER, NOW + DAY)
    assert registry.reason(Ask(person("ann"), STUDY, NEWER), NOW + DAY) is Reason.IN_FORCE


def test_closed_ended_and_unknown_studies_allow_nothing(registry):
    assert registry.reason(asking(), NOW + 60 * DAY) is Reason.EXPIRED
    assert registry.reason(asking(), NOW + 101 * DAY) is Reason.STUDY_CLOSED
    registry.close(STUDY, NOW + DAY)
    assert registry.reason(asking(), NOW + DAY) is Reason.STUDY_CLOSED
    assert registry.reason(Ask(person("ann"), "lungs", DOCUMENT), NOW) is Reason.STUDY_CLOSED
    with pytest.raises(Denied):
        registry.enrol({person("ann"): None}, STUDY, DOCUMENT, NOW + DAY)


def test_people_are_known_by_tags_only(registry):
    for name in ("Peter", "Patient/1", "", "'; DROP TABLE consents; --"):
        with pytest.raises(SettingsError):
            registry.enrol({name: None}, STUDY, DOCUMENT, NOW)
    for study, document in (("", DOCUMENT), ("a b", DOCUMENT), ("x", "zz")):
        with pytest.raises(SettingsError):
            registry.publish(study, document, NOW, ends=None, keep_until=None)


def test_a_consent_from_elsewhere_counts_for_what_it_says(registry):
    bob = asking("bob")
    registry.enrol({bob.subject: None}, STUDY, DOCUMENT, NOW)
    say(registry, bob, {"resourceType": "Consent"}, NOW)
    assert registry.reason(bob, NOW) is Reason.MALFORMED
    say(registry, bob, make_consent(bob, NOW, None, actions=[Action.COLLECT]), NOW)
    assert registry.reason(bob, NOW) is Reason.IN_FORCE
    assert registry.reason(asking("bob", action=Action.SEND), NOW) is Reason.NOT_PERMITTED
    say(registry, bob, {**make_consent(bob, NOW, None), "status": "rejected"}, NOW)
    assert registry.reason(bob, NOW) is Reason.NOT_ACTIVE


def test_asking_for_everybody_gives_what_asking_for_each_gives(registry):
    names = ("ann", "expired", "partial", "gone", "left", "silent")
    people = dict.fromkeys(map(person, names[1:-1])) | {person("expired"): NOW + DAY}
    registry.enrol(people, STUDY, DOCUMENT, NOW)
    partial, left = asking("partial"), Ask(person("left"))
    say(registry, partial, make_consent(partial, NOW, None, actions=[Action.COLLECT]), NOW)
    registry.withdraw(person("gone"), STUDY, NOW)
    say(registry, left, ended(make_consent(left, NOW, None), NOW), NOW)
    for when in (NOW, NOW + 2 * DAY):
        for action in Action:
            each = {person(n) for n in names if registry.reason(asking(n, action=action), when).allows}
            assert registry.who_may(STUDY, action, when) == (DOCUMENT, each)
    registry.publish(STUDY, "0" * 64, NOW, ends=None, keep_until=None)
    assert registry.who_may(STUDY, Action.TRAIN, NOW) == ("0" * 64, frozenset())
    registry.close(STUDY, NOW)
    assert registry.who_may(STUDY, Action.TRAIN, NOW)[1] == frozenset()


def test_cohorts_and_the_rounds_that_used_somebody(registry):
    database, ann, bob = registry.database, person("ann"), person("bob")
    registry.enrol({bob: None}, STUDY, DOCUMENT, NOW)
    both = take_snapshot(registry, STUDY, Action.TRAIN, NOW)
    assert both.members == tuple(sorted([ann, bob]))
    assert take_snapshot(registry, STUDY, Action.TRAIN, NOW + DAY).id == both.id
    assert take_snapshot(registry, STUDY, Action.SEND, NOW).id != both.id
    note_round(database, "run-1", 1, both, NOW)
    note_round(database, "run-1", 1, both, NOW)
    registry.withdraw(ann, STUDY, NOW + DAY)
    later = take_snapshot(registry, STUDY, Action.TRAIN, NOW + DAY)
    assert later.members == (bob,)
    assert take_snapshot(registry, STUDY, Action.TRAIN, NOW + DAY, [ann]).members == ()
    note_round(database, "run-1", 2, later, NOW + DAY)
    leave_cohorts(database, STUDY, ann, NOW + DAY)
    assert members_of(database, both.id) == [bob]
    assert rounds_with(database, STUDY, ann) == [("run-1", 1)]
    assert mark_rounds(database, STUDY, ann, NOW) == mark_rounds(database, STUDY, ann, NOW) == [("run-1", 1)]
    assert marked_rounds(database, STUDY, ann) == [("run-1", 1)]


def test_time_without_a_zone_is_refused(registry):
    with pytest.raises(SettingsError, match="time zone"):
        registry.enrol({person("bob"): None}, STUDY, DOCUMENT, datetime(2026, 1, 1))
    assert json.loads(json.dumps(registry.consent(person("ann"))))["status"] == "active"
    assert datetime(2026, 1, 1, tzinfo=UTC) < NOW
