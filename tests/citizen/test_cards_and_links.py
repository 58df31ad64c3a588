"""Health cards are read like any file; what is wrong with one has plain words, and nothing unpacks without end."""

from __future__ import annotations

import base64
import json
import re
import zlib
from datetime import date

import pytest
from tests.citizen.test_citizen_pages import SOURCES

from abaton.citizen.preview import prepare
from abaton.citizen.study_facts import told
from abaton.citizen.uploads import PickedError, Unusable, one_person, read_picked
from abaton.deid.pseudonyms import Pseudonyms
from abaton.fhir.bundles import opened
from abaton.study.sections import Hospital, Persons

ANN = {
    "resourceType": "Patient",
    "name": [{"family": "Rossi"}],
    "birthDate": "1980-02-03",
    "gender": "female",
}
MEASURED = {
    "resourceType": "Observation",
    "status": "final",
    "subject": {"reference": "resource:0"},
    "code": {"coding": [{"system": "http://loinc.org", "code": "8480-6"}]},
    "effectiveDateTime": "2024-05-11",
    "valueQuantity": {"value": 121.50, "unit": "mmHg"},
}


def part(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def card(*resources: dict, pack: bool = True, raw: bytes = b"") -> str:
    """A health card as an issuer writes it."""
    entries = [{"fullUrl": f"resource:{i}", "resource": each} for i, each in enumerate(resources)]
    bundle = {"resourceType": "Bundle", "type": "collection", "entry": entries}
    body = (
        raw or json.dumps({"iss": "https://x", "vc": {"credentialSubject": {"fhirBundle": bundle}}}).encode()
    )
    head = {"alg": "ES256"} | ({"zip": "DEF"} if pack else {})
    if pack:
        packing = zlib.compressobj(wbits=-15)
        body = packing.compress(body) + packing.flush()
    return ".".join((part(json.dumps(head).encode()), part(body), part(b"signature")))


def file_of(*cards: str) -> bytes:
    return json.dumps({"verifiableCredential": cards}).encode()


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_a_health_card_is_read_like_any_other_file(study, pack, alone):
    text = card(ANN, MEASURED, pack=pack)
    (bundle,) = read_picked(text.encode() if alone else file_of(text))
    made = prepare([bundle], study.need(date(2026, 11, 17)), Pseudonyms("x", bytes(range(32))), year=2026)
    patient, observation = (json.loads(line) for line in made.content.splitlines())
    assert (patient["gender"], patient["birthDate"]) == ("female", "1980")
    assert observation["subject"]["reference"] == f"Patient/{patient['id']}"
    assert b"121.5" in made.content
    assert b"Rossi" not in made.content


def test_two_cards_of_one_person_fit_together_and_those_of_two_people_do_not():
    same = read_picked(
        file_of(card(ANN, MEASURED), card(ANN, MEASURED | {"effectiveDateTime": "2025-01-02"}))
    )
    one_person(same)
    assert len({record["id"] for bundle in same for record in opened(bundle)}) == 3
    with pytest.raises(PickedError, match="several-people"):
        one_person(read_picked(file_of(card(ANN), card(ANN | {"birthDate": "1981-02-03"}))))


@pytest.mark.parametrize(
    "text",
    [card(raw=b"[]"), card(raw=b"{"), card(raw=b'{"vc":{}}'), card(raw=b'{"a":' * 200), "eyJhIjoxfQ.*.*", "eyJ.e.e"],
)  # fmt: skip
def test_a_card_that_is_none_is_told(text):
    for raw in (text.encode(), file_of(text)):
        with pytest.raises(PickedError) as told:
            read_picked(raw)
        assert told.value.code is Unusable.NOT_JSON


def test_a_card_that_unpacks_without_end_is_not_unpacked(monkeypatch):
    bomb = card(raw=b"{" + b" " * 10_000_000)
    assert len(bomb) < 20_000
    monkeypatch.setattr("abaton.citizen.uploads.MOST_BYTES", 1_000_000)
    with pytest.raises(PickedError, match="not-json"):
        read_picked(bomb.encode())


def test_pages_of_a_server_are_one_file_and_find_each_other(study):
    def page(*resources: dict) -> bytes:
        entries = [{"fullUrl": f"https://h/{r['resourceType']}/{r['id']}", "resource": r} for r in resources]
        return json.dumps(
            {"resourceType": "Bundle", "type": "searchset", "entry": entries}, indent=1
        ).encode()

    ann, seen = ANN | {"id": "ann"}, MEASURED | {"id": "o", "subject": {"reference": "Patient/ann"}}
    apart = read_picked(b"\x1e" + page(ann) + b"\n\x1e" + page(seen) + b"\n")
    need, names = study.need(date(2026, 11, 17)), Pseudonyms("x", bytes(range(32)))
    made = prepare(apart, need, names, year=2026)
    assert made.content == prepare(read_picked(page(ann, seen)), need, names, year=2026).content
    assert len(made.content.splitlines()) == 2
    with pytest.raises(PickedError, match="empty"):
        read_picked(b"\x1e \x1e\n")


def test_a_hospital_is_asked_only_for_the_kinds_that_the_study_reads(study):
    hospital = Hospital(name="A", fhir="https://fhir.example.org/r4", client="abaton")
    persons = Persons(hospitals=(hospital,), sources=("https://sign-in.example.org",))
    facts = told(study.model_copy(update={"persons": persons}), date(2026, 11, 17))
    assert facts["kinds"] == ["Condition", "Observation", "Patient"]
    assert facts["reached"] == ["https://fhir.example.org", "https://sign-in.example.org"]
    assert facts["hospitals"][0]["client"] == "abaton"
    assert told(study, date(2026, 11, 17))["reached"] == []


@pytest.mark.parametrize(
    "address",
    [
        "http://fhir.example.org",
        "https://a b",
        "https://a;script-src *",
        "https://a/../x?y",
        "ftp://a",
        "https://a'",
    ],
)
def test_an_address_that_could_widen_the_policy_is_no_address(address):
    with pytest.raises(ValueError):
        Persons(sources=(address,))
    with pytest.raises(ValueError):
        Hospital(name="A", fhir=address, client="x")


def test_every_problem_of_links_and_hospitals_has_words():
    scripts = "".join(path.read_text("utf-8") for path in (SOURCES / "scripts").glob("*.js"))
    thrown = set(re.findall(r'"((?:link|source|hospital)-[a-z-]+)"', scripts)) - {"link-button"}
    english = json.loads((SOURCES / "texts" / "en.json").read_text("utf-8"))
    assert thrown - {"hospital-list"} == set(english["sources"])
