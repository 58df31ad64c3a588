from __future__ import annotations

import copy
import json
from contextlib import suppress
from dataclasses import replace

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from tests.governance.conftest import WHEN, random_source

from abaton.errors import AbatonError, SettingsError
from abaton.governance.key_files import (
    decrypt_key_set,
    encrypt_key_set,
    read_key_set,
    read_public,
    write_key_set,
    write_public,
)
from abaton.governance.keys import KeyKind, KeySet, PrivateKey, PublicKey, PublicKeySet, verifier
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.governance.signed_statements import sign_statement, verify_statement

LATER, LAST = "2027-03-01T12:00:00Z", "2028-03-01T12:00:00Z"


def test_changed_statements_are_refused(site, centre):
    statement = sign_statement(site.signing_key, "receipt", {"n": 1})
    find = verifier([site.public.signing_key])
    assert verify_statement(json.loads(json.dumps(statement)), "receipt", find) == {"n": 1}
    for change, code in [
        ({"body": {"n": 2}}, RefusalCode.FORGED),
        ({"kind": "order"}, RefusalCode.FORGED),
        ({"signer": centre.signing_key.id}, RefusalCode.UNKNOWN_SENDER),
        ({"signature": "AAAA"}, RefusalCode.FORGED),
        ({"signature": "?"}, RefusalCode.MALFORMED),
        ({"signature": 3}, RefusalCode.FORGED),
        ({"body": []}, RefusalCode.MALFORMED),
        ({"body": {"x": float("nan")}}, RefusalCode.MALFORMED),
        ({"more": 1}, RefusalCode.MALFORMED),
    ]:
        with pytest.raises(DeniedError) as caught:
            verify_statement({**statement, **change}, "receipt", find)
        assert caught.value.code is code
    for nonsense in (None, [], "x", 3, {}):
        with pytest.raises(DeniedError):
            verify_statement(nonsense, "receipt", find)
    with pytest.raises(DeniedError):
        verify_statement(statement, "deletion-order", find)


@pytest.mark.parametrize("kind", [KeyKind.SEAL, KeyKind.HYBRID])
def test_a_secret_opens_for_its_holder_in_its_context(kind):
    key = PrivateKey.new(kind, random_source("k"), WHEN)
    wrapped = key.public.wrap(b"secret", b"context")
    assert key.unwrap(wrapped, b"context") == b"secret"
    for data, info in [(wrapped, b"other"), (wrapped[:-1], b"context"), (b"", b"context")]:
        with pytest.raises(DeniedError):
            key.unwrap(data, info)
    with pytest.raises(DeniedError):
        PrivateKey.new(kind, random_source("other"), WHEN).unwrap(wrapped, b"context")


def test_signing_keys_do_not_seal_and_sealing_keys_do_not_sign(site):
    with pytest.raises(SettingsError):
        site.public.signing_key.wrap(b"x", b"")
    assert not site.public.sealing_key.verify(b"x" * 64, b"")
    assert "secret" not in repr(site.signing_key).lower() or site.signing_key.secret.hex() not in repr(
        site.signing_key
    )


WEAK = [  # points of small order, RFC 7748 and 8032, also in non-canonical encodings
    "00" * 32,
    "01" + "00" * 31,
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ec" + "ff" * 30 + "7f",
    "ed" + "ff" * 30 + "7f",
    "ee" + "ff" * 30 + "7f",
]


@pytest.mark.parametrize("weak", WEAK)
@pytest.mark.parametrize("sign", [0, 0x80])
def test_public_keys_of_small_order_are_refused(weak, sign):
    raw = bytearray.fromhex(weak)
    raw[-1] |= sign
    with pytest.raises(DeniedError, match="small order"):
        PublicKey(KeyKind.SIGN, bytes(raw), WHEN)
    PublicKey(KeyKind.SEAL, bytes(raw), WHEN)


def test_a_signature_without_a_secret_would_hold_under_such_a_key():
    zero = Ed25519PublicKey.from_public_bytes(bytes(32))
    verified = 0
    for number in range(64):
        with suppress(InvalidSignature):
            zero.verify(bytes(64), bytes([number]))
            verified += 1
    assert verified


def test_rotation_keeps_old_keys_for_opening_only(site):
    wrapped = site.public.sealing_key.wrap(b"old message", b"")
    new = site.rotate(random_source("r"), LATER, hybrid=True).rotate(random_source("s"), LAST, hybrid=True)
    assert new.opening_key(site.public.sealing_key.id).unwrap(wrapped, b"") == b"old message"
    assert new.public.sealing_key.kind is KeyKind.HYBRID
    assert [key.public.kind for key in new.secrets].count(KeyKind.SIGN) == 1
    read = PublicKeySet.read(json.loads(json.dumps(new.public.row())), trusted=site.public.signing_key.id)
    assert read == new.public
    assert read.accepted_sealing_key(site.public.sealing_key.id, WHEN).until == LATER
    with pytest.raises(DeniedError) as caught:
        read.accepted_sealing_key(site.public.sealing_key.id, LAST)
    assert caught.value.code is RefusalCode.RETIRED_KEY
    with pytest.raises(DeniedError) as caught:
        read.accepted_sealing_key(read.signing_key.id, WHEN)
    assert caught.value.code is RefusalCode.UNKNOWN_KEY


def test_key_sets_stay_hybrid_and_move_forward(site):
    hybrid = KeySet.new("h", random_source("h"), WHEN, hybrid=True)
    with pytest.raises(SettingsError, match="not hybrid"):
        hybrid.rotate(random_source("x"), LATER)
    with pytest.raises(SettingsError, match="clock"):
        site.rotate(random_source("x"), WHEN)


def test_a_key_set_that_does_not_follow_from_the_trusted_key_is_refused(site):
    new = site.rotate(random_source("r"), LATER)
    thief = KeySet.new("site-a", random_source("thief"), WHEN).rotate(random_source("t"), LATER)
    with pytest.raises(DeniedError):
        PublicKeySet.read(thief.public.row(), trusted=site.public.signing_key.id)
    forged = replace(new.public, rotations=thief.public.rotations)
    grafted = replace(new.public, keys=(*new.public.keys[:2], *thief.public.keys[2:]))
    alive = replace(new.public, keys=(replace(new.public.keys[0], until=LAST), *new.public.keys[1:]))
    unsigned = replace(new.public, rotations=())
    swapped = replace(new.public, keys=(*new.public.keys[:3], thief.public.keys[3]))
    for key_set in (forged, grafted, alive, unsigned, swapped):
        with pytest.raises(DeniedError):
            PublicKeySet.read(key_set.row())
    for row in (None, {}, [], {"format": "abaton-keys/1", "name": "x", "keys": [], "rotations": []}):
        with pytest.raises(DeniedError):
            PublicKeySet.read(row)


def test_key_files_open_with_the_passphrase_alone(site, tmp_path):
    key_set = site.rotate(random_source("r"), LATER)
    content = encrypt_key_set(key_set, b"a long sentence", random_source("f"), n=4)
    path = tmp_path / "site.keys"
    write_key_set(path, content)
    assert path.stat().st_mode & 0o777 == 0o600
    opened = read_key_set(path, b"a long sentence")
    assert opened.public == key_set.public
    assert {key.id: key.secret for key in opened.secrets} == {key.id: key.secret for key in key_set.secrets}
    assert all(key.secret.hex().encode() not in content for key in key_set.secrets)
    with pytest.raises(SettingsError, match="passphrase"):
        read_key_set(path, b"another sentence")
    path.chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        read_key_set(path, b"a long sentence")
    with pytest.raises(SettingsError, match="exists"):
        write_key_set(path, content)
    write_public(tmp_path / "site.pub", key_set.public)
    assert read_public(tmp_path / "site.pub") == read_public(path) == key_set.public
    with pytest.raises(SettingsError, match="fewer than 8"):
        encrypt_key_set(key_set, b"short", random_source("f"), n=4)


def test_a_changed_key_file_is_refused(site):
    row = json.loads(encrypt_key_set(site, b"a long sentence", random_source("f"), n=4))
    other = json.loads(
        encrypt_key_set(
            KeySet.new("site-a", random_source("o"), WHEN), b"a long sentence", random_source("f"), n=4
        )
    )
    for change in [("public",), ("scrypt",), ("sealed",), ("nonce",), ("format",)]:
        broken = copy.deepcopy(row)
        broken[change[0]] = other[change[0]] if change[0] in ("public", "sealed") else "x"
        with pytest.raises(AbatonError):
            decrypt_key_set(json.dumps(broken).encode(), b"a long sentence")
    huge = {**row, "scrypt": {**row["scrypt"], "n": 2**40}}
    for content in (json.dumps(huge).encode(), b"", b"[]", b"\xff", b"{}"):
        with pytest.raises(SettingsError):
            decrypt_key_set(content, b"a long sentence")
