"""Signed requests: golden bytes, and each way in which one can be wrong."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.governance.conftest import NOW

from abaton.governance import Denied, RefusalCode
from abaton.governance.senders import WINDOW, Asked, authenticate, authorisation, forget_nonces

NONCE = bytes(range(16))


def asked(**more: str) -> Asked:
    made = Asked.of("ed25519:" + "A" * 26, "POST", "/v1/uploads?x=1", b"{}")
    return Asked(**{**{f: getattr(made, f) for f in made.__slots__}, **more})


def test_the_bytes_that_are_signed_never_change():
    assert asked().signed("2026-03-01T12:00:00.000Z", NONCE.hex()) == (
        b"abaton-request-1\0"
        b'{"body":"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",'
        b'"centre":"ed25519:AAAAAAAAAAAAAAAAAAAAAAAAAA","method":"POST",'
        b'"nonce":"000102030405060708090a0b0c0d0e0f","target":"/v1/uploads?x=1","time":"2026-03-01T12:00:00.000Z"}'
    )


def test_a_request_counts_once_for_what_it_says_and_now(database, site, centre):
    header = authorisation(site.signing, asked(), NOW, NONCE)
    find = site.public.key
    assert authenticate(header, asked(), find, database, NOW + WINDOW) == site.signing.id
    cases = [
        (header, asked(), NOW, RefusalCode.REPLAYED),
        (header, asked(method="PUT"), NOW, RefusalCode.FORGED),
        (header, asked(target="/v1/uploads?x=2"), NOW, RefusalCode.FORGED),
        (header, asked(body="00" * 32), NOW, RefusalCode.FORGED),
        (header, asked(centre="ed25519:" + "B" * 26), NOW, RefusalCode.FORGED),
        (header, asked(), NOW + WINDOW + timedelta(seconds=1), RefusalCode.EXPIRED),
        (header, asked(), NOW - WINDOW - timedelta(seconds=1), RefusalCode.EXPIRED),
        (header.replace("2026-03-01", "2026-99-01"), asked(), NOW, RefusalCode.FORGED),
        (authorisation(centre.signing, asked(), NOW, NONCE), asked(), NOW, RefusalCode.UNKNOWN_SENDER),
        ("", asked(), NOW, RefusalCode.UNSIGNED),
        (header + "\n", asked(), NOW, RefusalCode.UNSIGNED),
        (header.replace(", ", ","), asked(), NOW, RefusalCode.UNSIGNED),
    ]
    for words, what, when, code in cases:
        with pytest.raises(Denied) as error:
            authenticate(words, what, find, database, when)
        assert error.value.code is code


def test_a_date_that_does_not_exist_is_not_now(database, site):
    nonsense = "2026-13-45T99:99:99.000Z"
    signature = site.signing.sign(asked().signed(nonsense, NONCE.hex()))
    import base64

    header = (
        f'Abaton key="{site.signing.id}", time="{nonsense}", nonce="{NONCE.hex()}", '
        f'signature="{base64.b64encode(signature).decode()}"'
    )
    with pytest.raises(Denied) as error:
        authenticate(header, asked(), site.public.key, database, NOW)
    assert error.value.code is RefusalCode.EXPIRED


def test_old_nonces_are_forgotten_only_when_they_are_too_old_anyway(database, site):
    header = authorisation(site.signing, asked(), NOW, NONCE)
    authenticate(header, asked(), site.public.key, database, NOW)
    assert forget_nonces(database, NOW + 2 * WINDOW) == 0
    assert forget_nonces(database, NOW + 3 * WINDOW) == 1
    with pytest.raises(Denied) as error:
        authenticate(header, asked(), site.public.key, database, NOW + 3 * WINDOW)
    assert error.value.code is RefusalCode.EXPIRED
