"""Three consent forms from practice, evaluated with a site's mapping."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fhir.resources.R4B.consent import Consent
from hypothesis import given
from hypothesis import strategies as st
from tests.governance.conftest import DOCUMENT, STUDY, pseudonym

from abaton.governance import ConsentAction, ConsentQuery, ConsentRegistry, DenialReason, evaluate_consent
from abaton.governance.consent import permitted_periods
from abaton.governance.consent_forms import (
    ConsentForm,
    FormIssue,
    combine_consents,
    is_unambiguous,
    read_form,
)
from abaton.governance.external_consent import has_only_codes, import_consents, set_opt_outs

FORMS_FOLDER = Path(__file__).parent / "forms"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OID = "urn:oid:2.16.840.1.113883.3.1937.777.24.5.3"
CODE = "http://terminology.hl7.org/CodeSystem/"
FORMS = {
    "mii": ConsentForm(
        "Broad Consent",
        frozenset({"urn:oid:2.16.840.1.113883.3.1937.777.24.2.1790"}),
        {
            ConsentAction.COLLECT: frozenset({f"{OID}|2.16.840.1.113883.3.1937.777.24.5.3.7"}),
            ConsentAction.TRAIN: frozenset({f"{OID}|2.16.840.1.113883.3.1937.777.24.5.3.8"}),
        },
    ),
    "pcf": ConsentForm(
        "Research policy",
        frozenset({"https://hospital.example/policies/research/3"}),
        {ConsentAction.COLLECT: frozenset({"*"}), ConsentAction.TRAIN: frozenset({"*"})},
        scopes=frozenset({"patient-privacy"}),
    ),
    "us": ConsentForm(
        "Opt-in",
        frozenset({f"{CODE}v3-ActCode|OPTIN"}),
        {
            ConsentAction.COLLECT: frozenset({f"{CODE}consentaction|collect"}),
            ConsentAction.TRAIN: frozenset({f"{CODE}consentaction|use"}),
        },
        recipients=frozenset({"Organization/research"}),
    ),
}


def resources(name: str) -> list[dict]:
    return [json.loads(line) for line in (FORMS_FOLDER / f"{name}.ndjson").read_text("utf-8").splitlines()]


def terms(name: str) -> dict:
    """Return what each patient of a form permits."""
    readings_by_patient: dict = {}
    for resource in resources(name):
        reading = read_form(resource, FORMS.values())
        readings_by_patient.setdefault(reading.patient, []).append(reading)
    return {patient: combine_consents(readings) for patient, readings in readings_by_patient.items()}


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
ACTION_NAMES = {ConsentAction.COLLECT: "collect", ConsentAction.SEND: "send", ConsentAction.TRAIN: "train"}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_evaluated_correctly(name):
    permitted = {}
    for patient, allowed in terms(name).items():
        query = ConsentQuery(pseudonym(patient), STUDY, DOCUMENT)
        consent = None if allowed.is_refusal else allowed.study_consent(query)
        actions = {
            a
            for a in ConsentAction
            if evaluate_consent(consent, ConsentQuery(query.subject, STUDY, DOCUMENT, a), NOW).permits
        }
        permitted[patient] = {ACTION_NAMES[action] for action in actions}
    assert permitted == EXPECTED[name]


@pytest.mark.parametrize("name", FORMS)
def test_the_registry_decides_the_same_and_an_opt_out_wins(database, name):
    registry, terms_by_patient = ConsentRegistry(database), terms(name)
    registry.publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
    terms_by_subject = {pseudonym(patient): allowed for patient, allowed in terms_by_patient.items()}
    result = import_consents(registry, terms_by_subject, STUDY, DOCUMENT, NOW)
    consenting = {p for p, allowed in terms_by_patient.items() if not allowed.is_refusal and p != "withdrawn"}
    assert (result.written, result.unchanged, result.withdrawn) == (len(consenting), 0, ())
    assert import_consents(registry, terms_by_subject, STUDY, DOCUMENT, NOW).unchanged == len(consenting)
    trained = {pseudonym(p) for p, actions in EXPECTED[name].items() if "train" in actions}
    assert registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW) == (DOCUMENT, trained)
    assert registry.eligible_subjects(STUDY, ConsentAction.SEND, NOW)[1] == frozenset()  # no form covers it
    set_opt_outs(registry, [pseudonym("opts-out")], NOW + timedelta(days=1))
    later = NOW + timedelta(days=2)
    assert registry.eligible_subjects(STUDY, ConsentAction.TRAIN, later)[1] == trained - {
        pseudonym("opts-out")
    }
    assert registry.decision(ConsentQuery(pseudonym("opts-out"), STUDY), later) is DenialReason.OPTED_OUT


def test_denial_reasons_of_imported_consents(database):
    registry = ConsentRegistry(database)
    registry.publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
    import_consents(registry, {pseudonym(p): t for p, t in terms("us").items()}, STUDY, DOCUMENT, NOW)
    expected = {
        "expired": DenialReason.EXPIRED,
        "only-collect": DenialReason.NOT_PERMITTED,
        "allowed": DenialReason.IN_FORCE,
        "other-purpose": DenialReason.NOT_OPTED_IN,
    }
    for patient, reason in expected.items():
        assert (
            registry.decision(ConsentQuery(pseudonym(patient), STUDY, DOCUMENT, ConsentAction.TRAIN), NOW)
            is reason
        )
    resource_types = ["Observation", "Media", "Patient"]
    asks = {p: ConsentQuery(pseudonym(p), STUDY, DOCUMENT) for p in ("no-images", "some-kinds", "allowed")}
    without = {p: registry.permission(query, resource_types, NOW) for p, query in asks.items()}
    assert without["no-images"] == (DenialReason.IN_FORCE, {"Media"})
    assert without["some-kinds"] == (DenialReason.IN_FORCE, {"Media", "Patient"})
    assert without["allowed"] == (DenialReason.IN_FORCE, frozenset())


def test_a_form_that_is_withdrawn_or_missing_excludes_the_subject(database):
    registry, terms_by_patient = ConsentRegistry(database), terms("mii")
    registry.publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
    terms_by_subject = {pseudonym(patient): allowed for patient, allowed in terms_by_patient.items()}
    import_consents(registry, terms_by_subject, STUDY, DOCUMENT, NOW)
    later = NOW + timedelta(days=1)
    allowed, again = pseudonym("allowed"), pseudonym("again")
    fewer = {
        **{s: t for s, t in terms_by_subject.items() if s != again},
        allowed: terms_by_patient["withdrawn"],
    }
    result = import_consents(registry, fewer, STUDY, DOCUMENT, later)
    assert (result.withdrawn, result.missing) == ((allowed,), (again,))
    assert {allowed, again}.isdisjoint(registry.eligible_subjects(STUDY, ConsentAction.TRAIN, later)[1])
    assert registry.decision(ConsentQuery(allowed, STUDY), later) is DenialReason.WITHDRAWN
    result = import_consents(registry, terms_by_subject, STUDY, DOCUMENT, later + timedelta(days=1))
    inside = registry.eligible_subjects(STUDY, ConsentAction.TRAIN, later + timedelta(days=1))[1]
    assert again in inside  # the form is back
    assert allowed not in inside  # signed before the withdrawal
    assert result.withdrawn_here == 1


def test_a_subject_withdrawn_here_is_excluded_until_a_new_signature(database):
    registry, terms_by_patient = ConsentRegistry(database), terms("pcf")
    registry.publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
    who = pseudonym("allowed")
    import_consents(registry, {who: terms_by_patient["allowed"]}, STUDY, DOCUMENT, NOW)
    registry.withdraw(who, STUDY, NOW + timedelta(days=1))
    import_consents(registry, {who: terms_by_patient["allowed"]}, STUDY, DOCUMENT, NOW + timedelta(days=2))
    assert registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW + timedelta(days=2))[1] == frozenset()
    newer = {**resources("pcf")[0], "dateTime": (NOW + timedelta(days=3)).isoformat()}
    signed = combine_consents([read_form(newer, FORMS.values())])
    import_consents(registry, {who: signed}, STUDY, DOCUMENT, NOW + timedelta(days=4))
    assert registry.eligible_subjects(STUDY, ConsentAction.TRAIN, NOW + timedelta(days=4))[1] == {who}


def test_imported_consents_contain_only_codes(database):
    for name in FORMS:
        for patient, allowed in terms(name).items():
            if not allowed.is_refusal:
                consent = allowed.study_consent(ConsentQuery(pseudonym(patient), STUDY, DOCUMENT))
                Consent.model_validate(consent)
                assert has_only_codes(consent)
                assert patient not in json.dumps(consent)


@pytest.mark.parametrize("name", FORMS)
def test_the_period_of_each_action_is_preserved_exactly(name):
    for patient, allowed in terms(name).items():
        for action in [] if allowed.is_refusal else ConsentAction:
            query = ConsentQuery(pseudonym(patient), STUDY, DOCUMENT, action)
            assert permitted_periods(allowed.study_consent(query), query) == allowed.windows[action]


PERMITTING = {name: resources(name)[0] for name in FORMS}


def paths(node: object, prefix: tuple = ()) -> list[tuple]:
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [prefix, *(path for key, value in inner for path in paths(value, (*prefix, key)))][
        0 if prefix else 1 :
    ]


@given(st.sampled_from(list(FORMS)), st.data())
def test_removing_from_a_consent_never_permits_more(name, data):
    full_terms = combine_consents([read_form(PERMITTING[name], FORMS.values())])
    path = data.draw(st.sampled_from(paths(PERMITTING[name])))
    value = data.draw(st.sampled_from([..., None, "x", 5, [], {}, [{}], {"coding": [{"code": "x"}]}]))
    cut = json.loads(json.dumps(PERMITTING[name]))
    node = cut
    for key in path[:-1]:
        node = node[key]
    if value is ...:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    reduced_terms = combine_consents([read_form(cut, FORMS.values())])
    limits = {"period", "end", "purpose", "actor", "class"}
    if value is ... and limits & {str(key) for key in path}:
        return  # a removed restriction does not restrict
    assert {a for a in ConsentAction if reduced_terms.windows.get(a)} <= {
        a for a in ConsentAction if full_terms.windows.get(a)
    }


@pytest.mark.parametrize("nonsense", [None, 5, [], {}, {"resourceType": "Consent"}, {"patient": "x"}])
def test_malformed_consents_have_no_effect(nonsense):
    reading = read_form(nonsense, FORMS.values())
    assert reading.issue is FormIssue.UNREADABLE
    assert combine_consents([reading]).is_refusal


def allowed_by(*consents: dict) -> set[str]:
    readings = [read_form(consent, FORMS.values()) for consent in consents]
    terms = combine_consents(readings) if is_unambiguous(readings) else None
    return (
        set()
        if terms is None
        else {ACTION_NAMES[action] for action in ConsentAction if terms.windows.get(action)}
    )


def changed(consent: dict, **more: object) -> dict:
    return {**json.loads(json.dumps(consent)), **more}


MII = next(resource for resource in resources("mii") if resource["patient"]["reference"] == "Patient/allowed")
LATER = "2025-06-01T10:00:00+02:00"


def test_a_nested_denial_applies_at_any_depth():
    deep = changed(MII)
    part = next(
        provision for provision in deep["provision"]["provision"] if '.5.3.7"' in json.dumps(provision)
    )
    part["provision"] = [{"type": "deny", "code": part["code"]}]
    assert allowed_by(MII) == {"collect", "train"}
    assert allowed_by(deep) == {"train"}
    part["provision"] = [{"type": "deny", "provision": [{"type": "deny"}]}]
    assert allowed_by(deep) == set()
    part["provision"] = [{"type": "permit", "code": part["code"]}]  # widening or narrowing is undefined
    assert read_form(deep, FORMS.values()).issue is FormIssue.UNREADABLE
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
def test_an_unclear_latest_statement_suspends_older_permissions(newer):
    last = changed(MII, dateTime=LATER, **newer)
    assert allowed_by(MII, last) == allowed_by(last, MII) == set()
    assert allowed_by(MII, changed(last, status="entered-in-error")) == {"collect", "train"}
    assert allowed_by(MII, changed(last, policy=[{"uri": "https://other.example"}])) == {"collect", "train"}
    assert allowed_by(changed(last, dateTime="2019-01-01"), MII) == {"collect", "train"}
    undated = {name: value for name, value in last.items() if name != "dateTime"}
    assert allowed_by(MII, undated) == set()
