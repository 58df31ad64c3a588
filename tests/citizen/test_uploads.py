"""Health cards are read like any file; invalid ones are reported, and decompression is bounded."""

from __future__ import annotations

import base64
import json
import re
import zlib
from datetime import date

import pytest
from tests.citizen.test_page_files import SOURCES

from abaton.citizen.preview import prepare_preview
from abaton.citizen.study_facts import study_facts_for_page
from abaton.citizen.uploads import UnusableReason, UploadError, check_one_patient, read_upload
from abaton.deid.pseudonyms import Pseudonyms
from abaton.fhir.bundles import bundle_resources
from abaton.study.sections import CitizenHospital, CitizenSection

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


def base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def card(*resources: dict, compress: bool = True, raw: bytes = b"") -> str:
    """Return a health card as an issuer writes it."""
    entries = [{"fullUrl": f"resource:{i}", "resource": resource} for i, resource in enumerate(resources)]
    bundle = {"resourceType": "Bundle", "type": "collection", "entry": entries}
    body = (
        raw or json.dumps({"iss": "https://x", "vc": {"credentialSubject": {"fhirBundle": bundle}}}).encode()
    )
    header = {"alg": "ES256"} | ({"zip": "DEF"} if compress else {})
    if compress:
        compressor = zlib.compressobj(wbits=-15)
        body = compressor.compress(body) + compressor.flush()
    return ".".join((base64url(json.dumps(header).encode()), base64url(body), base64url(b"signature")))


def file_of(*cards: str) -> bytes:
    return json.dumps({"verifiableCredential": cards}).encode()


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_a_health_card_is_read_like_any_other_file(study, compress, alone):
    text = card(ANN, MEASURED, compress=compress)
    (bundle,) = read_upload(text.encode() if alone else file_of(text))
    preview = prepare_preview(
        [bundle], study.data_request(date(2026, 11, 17)), Pseudonyms("x", bytes(range(32))), year=2026
    )
    patient, observation = (json.loads(line) for line in preview.content.splitlines())
    assert (patient["gender"], patient["birthDate"]) == ("female", "1980")
    assert observation["subject"]["reference"] == f"Patient/{patient['id']}"
    assert b"121.5" in preview.content
    assert b"Rossi" not in preview.content


def test_two_cards_match_only_if_they_are_of_one_patient():
    same = read_upload(
        file_of(card(ANN, MEASURED), card(ANN, MEASURED | {"effectiveDateTime": "2025-01-02"}))
    )
    check_one_patient(same)
    assert len({record["id"] for bundle in same for record in bundle_resources(bundle)}) == 3
    with pytest.raises(UploadError, match="several-patients"):
        check_one_patient(read_upload(file_of(card(ANN), card(ANN | {"birthDate": "1981-02-03"}))))


@pytest.mark.parametrize(
    "text",
    [card(raw=b"[]"), card(raw=b"{"), card(raw=b'{"vc":{}}'), card(raw=b'{"a":' * 200), "eyJhIjoxfQ.*.*", "eyJ.e.e"],
)  # fmt: skip
def test_an_invalid_health_card_is_refused(text):
    for raw in (text.encode(), file_of(text)):
        with pytest.raises(UploadError) as error:
            read_upload(raw)
        assert error.value.code is UnusableReason.NOT_JSON


def test_decompression_of_a_card_is_bounded(monkeypatch):
    bomb = card(raw=b"{" + b" " * 10_000_000)
    assert len(bomb) < 20_000
    monkeypatch.setattr("abaton.citizen.uploads.MAX_UPLOAD_BYTES", 1_000_000)
    with pytest.raises(UploadError, match="not-json"):
        read_upload(bomb.encode())


def test_references_across_pages_of_a_server_resolve(study):
    def page(*resources: dict) -> bytes:
        entries = [{"fullUrl": f"https://h/{r['resourceType']}/{r['id']}", "resource": r} for r in resources]
        return json.dumps(
            {"resourceType": "Bundle", "type": "searchset", "entry": entries}, indent=1
        ).encode()

    ann, seen = ANN | {"id": "ann"}, MEASURED | {"id": "o", "subject": {"reference": "Patient/ann"}}
    apart = read_upload(b"\x1e" + page(ann) + b"\n\x1e" + page(seen) + b"\n")
    request, pseudonyms = study.data_request(date(2026, 11, 17)), Pseudonyms("x", bytes(range(32)))
    preview = prepare_preview(apart, request, pseudonyms, year=2026)
    assert (
        preview.content
        == prepare_preview(read_upload(page(ann, seen)), request, pseudonyms, year=2026).content
    )
    assert len(preview.content.splitlines()) == 2
    with pytest.raises(UploadError, match="empty"):
        read_upload(b"\x1e \x1e\n")


def test_a_hospital_is_queried_only_for_the_resource_types_that_the_study_reads(study):
    hospital = CitizenHospital(name="A", fhir="https://fhir.example.org/r4", client="abaton")
    citizens = CitizenSection(hospitals=(hospital,), sources=("https://sign-in.example.org",))
    facts = study_facts_for_page(study.model_copy(update={"citizens": citizens}), date(2026, 11, 17))
    assert facts["resource_types"] == ["Condition", "Observation", "Patient"]
    assert facts["connect_origins"] == ["https://fhir.example.org", "https://sign-in.example.org"]
    assert facts["hospitals"][0]["client"] == "abaton"
    assert study_facts_for_page(study, date(2026, 11, 17))["connect_origins"] == []


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
        CitizenSection(sources=(address,))
    with pytest.raises(ValueError):
        CitizenHospital(name="A", fhir=address, client="x")


def test_every_problem_of_links_and_hospitals_has_a_text():
    scripts = "".join(path.read_text("utf-8") for path in (SOURCES / "scripts").glob("*.js"))
    thrown = set(re.findall(r'"((?:link|source|hospital)-[a-z-]+)"', scripts)) - {"link-button"}
    english = json.loads((SOURCES / "texts" / "en.json").read_text("utf-8"))
    assert thrown - {"hospital-list"} == set(english["sources"])
