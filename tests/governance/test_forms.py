"""Three forms of the real world, judged by the mapping that a site writes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fhir.resources.R4B.consent import Consent
from hypothesis import given
from hypothesis import strategies as st
from tests.governance.conftest import DOCUMENT, STUDY, person

from abaton.governance import Action, Ask, Reason, Registry, judge
from abaton.governance.consent import windows
from abaton.governance.external_consent import is_plain, keep_terms, set_opt_outs
from abaton.governance.consent_forms import Doubt, Form, is_clear, read, together

PLACE = Path(__file__).parent / "forms"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OID = "urn:oid:2.16.840.1.113883.3.1937.777.24.5.3"
CODE = "http://terminology.hl7.org/CodeSystem/"
FORMS = {
    "mii": Form(
        "Broad Consent",
        frozenset({"urn:oid:2.16.840.1.113883.3.1937.777.24.2.1790"}),
        {
            Action.COLLECT: frozenset({f"{OID}|2.16.840.1.113883.3.1937.777.24.5.3.7"}),
            Action.TRAIN: frozenset({f"{OID}|2.16.840.1.113883.3.1937.777.24.5.3.8"}),
        },
    ),
    "pcf": Form(
        "Research policy",
        frozenset({"https://hospital.example/policies/research/3"}),
        {Action.COLLECT: frozenset({"*"}), Action.TRAIN: frozenset({"*"})},
        scopes=frozenset({"patient-privacy"}),
    ),
    "us": Form(
        "Opt-in",
        frozenset({f"{CODE}v3-ActCode|OPTIN"}),
        {
            Action.COLLECT: frozenset({f"{CODE}consentaction|collect"}),
            Action.TRAIN: frozenset({f"{CODE}consentaction|use"}),
        },
        recipients=frozenset({"Organization/research"}),
    ),
}


def resources(name: str) -> list[dict]:
    return [json.loads(line) for line in (PLACE / f"{name}.ndjson").read_text("utf-8").splitlines()]


def terms(name: str) -> dict:
    """What everybody on a form allows, by their names in it."""
    people: dict = {}
    for resource in resources(name):
        reading = read(resource, FORMS.values())
        people.setdefault(reading.patient, []).append(reading)
    return {patient: together(readings) for patient, readings in people.items()}


@pytest.mark.parametrize("name", FORMS)
def test_the_forms_are_valid_fhir(name):
    for resource in resources(name):
        Consent.model_validate(resource)


EXPECTED = {
    "mii": {
        "allowed": {"collect", "train"}, "other-purpose": {"collect"}, "expired": set(), "withdrawn": set(),
        "inactive": set(), "again": {"collect", "train"}, "five-years": {"train"}, "turned-round": set(),
        "opts-out": {"collect", "train"},
    },
    "pcf": {
        "allowed": {"collect", "train"}, "other-purpose": set(), "expired": set(), "withdrawn": set(),
        "no-purpose": set(), "other-policy": set(), "no-research": set(), "no-marketing": {"collect", "train"},
        "timeframe": set(), "refused": set(), "opts-out": {"collect", "train"},
    },
    "us": {
        "allowed": {"collect", "train"}, "other-purpose": set(), "expired": set(), "withdrawn": set(),
        "other-recipient": set(), "only-collect": {"collect"}, "labelled": set(),
        "no-images": {"collect", "train"}, "some-kinds": {"collect", "train"}, "opted-out-rule": set(),
        "opts-out": {"collect", "train"},
    },
}  # fmt: skip
WORDS = {Action.COLLECT: "collect", Action.SEND: "send", Action.TRAIN: "train"}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_judged_right_today(name):
    found = {}
    for patient, allowed in terms(name).items():
        ask = Ask(person(patient), STUDY, DOCUMENT)
        consent = None if allowed.is_no else allowed.consent(ask)
        yes = {a for a in Action if judge(consent, Ask(ask.subject, STUDY, DOCUMENT, a), NOW).allows}
        found[patient] = {WORDS[action] for action in yes}
    assert found == EXPECTED[name]


@pytest.mark.parametrize("name", FORMS)
def test_the_registry_judges_the_same_and_an_opt_out_wins(database, name):
    registry, said = Registry(database), terms(name)
    registry.publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
    people = {person(patient): allowed for patient, allowed in said.items()}
    done = keep_terms(registry, people, STUDY, DOCUMENT, NOW)
    yes = {p for p, allowed in said.items() if not allowed.is_no and p != "withdrawn"}
    assert (done.written, done.same, done.out) == (len(yes), 0, ())
    assert keep_terms(registry, people, STUDY, DOCUMENT, NOW).same == len(yes)
    trained = {person(p) for p, actions in EXPECTED[name].items() if "train" in actions}
    assert registry.who_may(STUDY, Action.TRAIN, NOW) == (DOCUMENT, trained)
    assert registry.who_may(STUDY, Action.SEND, NOW)[1] == frozenset()  # no form names it
    set_opt_outs(registry, [person("opts-out")], NOW + timedelta(days=1))
    later = NOW + timedelta(days=2)
    assert registry.who_may(STUDY, Action.TRAIN, later)[1] == trained - {person("opts-out")}
    assert registry.reason(Ask(person("opts-out"), STUDY), later) is Reason.OPTED_OUT


def test_reasons_that_a_data_manager_understands(database):
    registry = Registry(database)
    registry.publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
    keep_terms(registry, {person(p): t for p, t in terms("us").items()}, STUDY, DOCUMENT, NOW)
    expected = {
        "expired": Reason.EXPIRED,
        "only-collect": Reason.NOT_PERMITTED,
        "allowed": Reason.IN_FORCE,
        "other-purpose": Reason.NOT_OPTED_IN,
    }
    for patient, reason in expected.items():
        assert registry.reason(Ask(person(patient), STUDY, DOCUMENT, Action.TRAIN), NOW) is reason
    kinds = ["Observation", "Media", "Patient"]
    asks = {p: Ask(person(p), STUDY, DOCUMENT) for p in ("no-images", "some-kinds", "allowed")}
    without = {p: registry.permission(ask, kinds, NOW) for p, ask in asks.items()}
    assert without["no-images"] == (Reason.IN_FORCE, {"Media"})
    assert without["some-kinds"] == (Reason.IN_FORCE, {"Media", "Patient"})
    assert without["allowed"] == (Reason.IN_FORCE, frozenset())


def test_a_yes_taken_back_on_the_form_is_out_and_a_form_that_is_gone_too(database):
    registry, said = Registry(database), terms("mii")
    registry.publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
    people = {person(patient): allowed for patient, allowed in said.items()}
    keep_terms(registry, people, STUDY, DOCUMENT, NOW)
    later = NOW + timedelta(days=1)
    allowed, again = person("allowed"), person("again")
    fewer = {**{s: t for s, t in people.items() if s != again}, allowed: said["withdrawn"]}
    done = keep_terms(registry, fewer, STUDY, DOCUMENT, later)
    assert (done.out, done.missing) == ((allowed,), (again,))
    assert {allowed, again}.isdisjoint(registry.who_may(STUDY, Action.TRAIN, later)[1])
    assert registry.reason(Ask(allowed, STUDY), later) is Reason.WITHDRAWN
    done = keep_terms(registry, people, STUDY, DOCUMENT, later + timedelta(days=1))
    inside = registry.who_may(STUDY, Action.TRAIN, later + timedelta(days=1))[1]
    assert again in inside  # the form is back
    assert allowed not in inside  # signed before the withdrawal
    assert done.withdrew_here == 1


def test_who_withdraws_here_stays_out_until_they_sign_again(database):
    registry, said = Registry(database), terms("pcf")
    registry.publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
    who = person("allowed")
    keep_terms(registry, {who: said["allowed"]}, STUDY, DOCUMENT, NOW)
    registry.withdraw(who, STUDY, NOW + timedelta(days=1))
    keep_terms(registry, {who: said["allowed"]}, STUDY, DOCUMENT, NOW + timedelta(days=2))
    assert registry.who_may(STUDY, Action.TRAIN, NOW + timedelta(days=2))[1] == frozenset()
    newer = {**resources("pcf")[0], "dateTime": (NOW + timedelta(days=3)).isoformat()}
    signed = together([read(newer, FORMS.values())])
    keep_terms(registry, {who: signed}, STUDY, DOCUMENT, NOW + timedelta(days=4))
    assert registry.who_may(STUDY, Action.TRAIN, NOW + timedelta(days=4))[1] == {who}


def test_what_goes_on_is_plain(database):
    for name in FORMS:
        for patient, allowed in terms(name).items():
            if not allowed.is_no:
                made = allowed.consent(Ask(person(patient), STUDY, DOCUMENT))
                Consent.model_validate(made)
                assert is_plain(made)
                assert patient not in json.dumps(made)


@pytest.mark.parametrize("name", FORMS)
def test_the_time_of_each_action_is_kept_exactly(name):
    for patient, allowed in terms(name).items():
        for action in [] if allowed.is_no else Action:
            ask = Ask(person(patient), STUDY, DOCUMENT, action)
            assert windows(allowed.consent(ask), ask) == allowed.windows[action]


YES = {name: resources(name)[0] for name in FORMS}


def paths(node: object, way: tuple = ()) -> list[tuple]:
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [way, *(found for key, value in inner for found in paths(value, (*way, key)))][0 if way else 1 :]


@given(st.sampled_from(list(FORMS)), st.data())
def test_less_in_a_yes_never_allows_more(name, data):
    whole = together([read(YES[name], FORMS.values())])
    way = data.draw(st.sampled_from(paths(YES[name])))
    value = data.draw(st.sampled_from([..., None, "x", 5, [], {}, [{}], {"coding": [{"code": "x"}]}]))
    cut = json.loads(json.dumps(YES[name]))
    node = cut
    for key in way[:-1]:
        node = node[key]
    if value is ...:
        del node[way[-1]]
    else:
        node[way[-1]] = value
    made = together([read(cut, FORMS.values())])
    limits = {"period", "end", "purpose", "actor", "class"}
    if value is ... and limits & {str(key) for key in way}:
        return  # a limit that is not there does not limit
    assert {a for a in Action if made.windows.get(a)} <= {a for a in Action if whole.windows.get(a)}


@pytest.mark.parametrize("nonsense", [None, 5, [], {}, {"resourceType": "Consent"}, {"patient": "x"}])
def test_nonsense_says_nothing(nonsense):
    reading = read(nonsense, FORMS.values())
    assert reading.doubt is Doubt.UNREADABLE
    assert together([reading]).is_no


def allowed_by(*consents: dict) -> set[str]:
    readings = [read(each, FORMS.values()) for each in consents]
    said = together(readings) if is_clear(readings) else None
    return set() if said is None else {WORDS[action] for action in Action if said.windows.get(action)}


def changed(consent: dict, **more: object) -> dict:
    return {**json.loads(json.dumps(consent)), **more}


MII = next(each for each in resources("mii") if each["patient"]["reference"] == "Patient/allowed")
LATER = "2025-06-01T10:00:00+02:00"


def test_a_no_inside_a_part_takes_something_out_however_deep():
    deep = changed(MII)
    part = next(each for each in deep["provision"]["provision"] if '.5.3.7"' in json.dumps(each))
    part["provision"] = [{"type": "deny", "code": part["code"]}]
    assert allowed_by(MII) == {"collect", "train"}
    assert allowed_by(deep) == {"train"}
    part["provision"] = [{"type": "deny", "provision": [{"type": "deny"}]}]
    assert allowed_by(deep) == set()
    part["provision"] = [{"type": "permit", "code": part["code"]}]  # does it widen or narrow?
    assert read(deep, FORMS.values()).doubt is Doubt.UNREADABLE
    assert allowed_by(deep) == set()


@pytest.mark.parametrize(
    "newer",
    [
        {"provision": {"type": "deny", "period": {"start": "some day"}}},
        {
            "provision": {
                "type": "permit",
                "provision": [{"type": "permit", "provision": [{"type": "permit"}]}],
            }
        },
        {"provision": None},
        {"modifierExtension": [{"url": "https://hospital.example/not"}]},
        {"implicitRules": "https://hospital.example/rules"},
    ],
)
def test_what_is_said_last_and_cannot_be_understood_lets_no_older_yes_stand(newer):
    last = changed(MII, dateTime=LATER, **newer)
    assert allowed_by(MII, last) == allowed_by(last, MII) == set()
    assert allowed_by(MII, changed(last, status="entered-in-error")) == {"collect", "train"}
    assert allowed_by(MII, changed(last, policy=[{"uri": "https://other.example"}])) == {"collect", "train"}
    assert allowed_by(changed(last, dateTime="2019-01-01"), MII) == {"collect", "train"}
    undated = {name: value for name, value in last.items() if name != "dateTime"}
    assert allowed_by(MII, undated) == set()
