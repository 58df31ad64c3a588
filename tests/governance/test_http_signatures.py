"""Signed requests: examples of the standards, golden bytes, and invalid requests."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_der_private_key
from http_message_signatures import HTTPMessageVerifier, HTTPSignatureKeyResolver, algorithms
from requests import Request
from tests.governance.conftest import NOW

from abaton.governance import DeniedError, RefusalCode
from abaton.governance.http_signatures import (
    COMPONENTS,
    WINDOW,
    SignedRequest,
    authenticate,
    content_digest,
    forget_nonces,
    signature_base,
    signed_headers,
)

NONCE = bytes(range(16))
CENTRE = "ed25519:" + "A" * 26
PARAMETERS = (
    '("@method" "@path" "@query" "content-digest" "abaton-centre");created=1772366400;keyid="{key}"'
    ';alg="ed25519";nonce="000102030405060708090a0b0c0d0e0f";tag="abaton-intake"'
)


def signed_request_with(**more: str) -> SignedRequest:
    default = SignedRequest.of(CENTRE, "POST", "/v1/uploads", "x=1", b"{}")
    return SignedRequest(**{**{f: getattr(default, f) for f in default.__slots__}, **more})


def test_the_example_of_rfc_9421_is_signed_to_the_same_bytes():
    """Appendix B.2.6: a request signed with the test key of appendix B.1.4."""
    key = load_der_private_key(
        base64.b64decode("MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF"), None
    )
    covered = [
        ("date", "Tue, 20 Apr 2021 02:07:55 GMT"),
        ("@method", "POST"),
        ("@path", "/foo"),
        ("@authority", "example.com"),
        ("content-type", "application/json"),
        ("content-length", "18"),
    ]
    names = " ".join(f'"{name}"' for name, _ in covered)
    base = signature_base(covered, f'({names});created=1618884473;keyid="test-key-ed25519"')
    assert base64.b64encode(key.sign(base)) == (
        b"wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw=="
    )


def test_the_example_of_rfc_9530_has_the_same_digest():
    assert content_digest(b'{"hello": "world"}') == "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"


def test_the_bytes_that_are_signed_never_change():
    parameters = PARAMETERS.format(key=CENTRE)
    assert signed_request_with().signed(parameters) == (
        b'"@method": POST\n"@path": /v1/uploads\n"@query": ?x=1\n'
        b'"content-digest": sha-256=:RBNvo1WzZ4oRRq0W9+hknpT7T8If536DEMBg9hyq/4o=:\n'
        b'"abaton-centre": ed25519:AAAAAAAAAAAAAAAAAAAAAAAAAA\n'
        b'"@signature-params": ' + parameters.encode()
    )


@pytest.mark.parametrize(("query", "body"), [("", b""), ("x=1&y=%20", b'{"a": 1}')])
def test_another_implementation_of_the_standard_verifies_our_signature(site, query, body):
    class Keys(HTTPSignatureKeyResolver):
        def resolve_public_key(self, key_id: str) -> Ed25519PublicKey:
            assert key_id == site.signing_key.id
            return Ed25519PublicKey.from_public_bytes(site.public.signing_key.raw)

        def resolve_private_key(self, key_id: str) -> None:
            raise AssertionError

    signed_request = SignedRequest.of(CENTRE, "PUT", "/v1/uploads/ab/parts/0", query, body)
    headers = signed_headers(site.signing_key, signed_request, datetime.now(UTC), NONCE)
    url = "https://centre.example/v1/uploads/ab/parts/0" + (f"?{query}" if query else "")
    message = Request("PUT", url, data=body, headers=headers).prepare()
    verifier = HTTPMessageVerifier(signature_algorithm=algorithms.ED25519, key_resolver=Keys())
    (result,) = verifier.verify(message, max_age=timedelta(minutes=1))
    assert set(result.covered_components) >= {f'"{name}"' for name in COMPONENTS}
    assert result.parameters["tag"] == "abaton-intake"


def test_a_request_is_valid_once_for_its_content_and_time(database, site, centre):
    headers = signed_headers(site.signing_key, signed_request_with(), NOW, NONCE)
    valid = headers["signature-input"], headers["signature"]
    assert valid[0] == "abaton=" + PARAMETERS.format(key=site.signing_key.id)
    theirs = signed_headers(centre.signing_key, signed_request_with(), NOW, NONCE)
    find, late = site.public.key, WINDOW + timedelta(seconds=1)
    assert authenticate(valid, signed_request_with(), find, database, NOW + WINDOW) == site.signing_key.id
    cases = [
        (valid, signed_request_with(), NOW, RefusalCode.REPLAYED),
        (valid, signed_request_with(method="PUT"), NOW, RefusalCode.FORGED),
        (valid, signed_request_with(path="/v1/consents"), NOW, RefusalCode.FORGED),
        (valid, signed_request_with(query="?x=2"), NOW, RefusalCode.FORGED),
        (valid, signed_request_with(content=content_digest(b"[]")), NOW, RefusalCode.FORGED),
        (valid, signed_request_with(centre="ed25519:" + "B" * 26), NOW, RefusalCode.FORGED),
        (
            valid,
            signed_request_with(path='/v1/uploads\n"@query": ?x=1'),
            NOW,
            RefusalCode.FORGED,
        ),
        (valid, signed_request_with(), NOW + late, RefusalCode.EXPIRED),
        (valid, signed_request_with(), NOW - late, RefusalCode.EXPIRED),
        (
            (valid[0].replace("created=17", "created=27"), valid[1]),
            signed_request_with(),
            NOW,
            RefusalCode.FORGED,
        ),
        (
            (theirs["signature-input"], theirs["signature"]),
            signed_request_with(),
            NOW,
            RefusalCode.UNKNOWN_SENDER,
        ),
        (("", ""), signed_request_with(), NOW, RefusalCode.UNSIGNED),
        ((valid[0], ""), signed_request_with(), NOW, RefusalCode.UNSIGNED),
        (
            (valid[0] + "\n", valid[1]),
            signed_request_with(),
            NOW,
            RefusalCode.UNSIGNED,
        ),
        (
            (f"{valid[0]}, {valid[0]}", valid[1]),
            signed_request_with(),
            NOW,
            RefusalCode.UNSIGNED,
        ),
        (
            (valid[0].replace('"content-digest" ', ""), valid[1]),
            signed_request_with(),
            NOW,
            RefusalCode.UNSIGNED,
        ),
        (
            (valid[0].replace('ed25519"', 'hmac-sha256"'), valid[1]),
            signed_request_with(),
            NOW,
            RefusalCode.UNSIGNED,
        ),
    ]
    for presented, signed_request, when, code in cases:
        with pytest.raises(DeniedError) as error:
            authenticate(presented, signed_request, find, database, when)
        assert error.value.code is code


def test_nonces_are_deleted_only_after_they_expire(database, site):
    headers = signed_headers(site.signing_key, signed_request_with(), NOW, NONCE)
    valid = headers["signature-input"], headers["signature"]
    authenticate(valid, signed_request_with(), site.public.key, database, NOW)
    assert forget_nonces(database, NOW + 2 * WINDOW) == 0
    assert forget_nonces(database, NOW + 3 * WINDOW) == 1
    with pytest.raises(DeniedError) as error:
        authenticate(valid, signed_request_with(), site.public.key, database, NOW + 3 * WINDOW)
    assert error.value.code is RefusalCode.EXPIRED
