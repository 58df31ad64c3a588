from __future__ import annotations

import copy
import json
from contextlib import suppress
from dataclasses import replace

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from tests.governance.conftest import WHEN, drawing

from abaton.errors import AbatonError, SettingsError
from abaton.governance.keys import (
    Kind,
    PrivateKey,
    PublicKey,
    PublicRing,
    Ring,
    lock,
    read_public,
    read_ring,
    unlock,
    verifier,
    write_public,
    write_ring,
)
from abaton.governance.signed_statements import check, state
from abaton.governance.identifiers import Denied, RefusalCode

LATER, LAST = "2027-03-01T12:00:00Z", "2028-03-01T12:00:00Z"


def test_statements_say_who_and_what_and_nothing_else_passes(site, centre):
    said = state(site.signing, "receipt", {"n": 1})
    find = verifier([site.public.signing])
    assert check(json.loads(json.dumps(said)), "receipt", find) == {"n": 1}
    for change, code in [
        ({"body": {"n": 2}}, RefusalCode.FORGED),
        ({"kind": "order"}, RefusalCode.FORGED),
        ({"signer": centre.signing.id}, RefusalCode.UNKNOWN_SENDER),
        ({"signature": "AAAA"}, RefusalCode.FORGED),
        ({"signature": "?"}, RefusalCode.MALFORMED),
        ({"signature": 3}, RefusalCode.FORGED),
        ({"body": []}, RefusalCode.MALFORMED),
        ({"body": {"x": float("nan")}}, RefusalCode.MALFORMED),
        ({"more": 1}, RefusalCode.MALFORMED),
    ]:
        with pytest.raises(Denied) as caught:
            check({**said, **change}, "receipt", find)
        assert caught.value.code is code
    for nonsense in (None, [], "x", 3, {}):
        with pytest.raises(Denied):
            check(nonsense, "receipt", find)
    with pytest.raises(Denied):
        check(said, "deletion-order", find)


@pytest.mark.parametrize("kind", [Kind.SEAL, Kind.HYBRID])
def test_a_secret_opens_for_its_holder_in_its_context(kind):
    key = PrivateKey.new(kind, drawing("k"), WHEN)
    wrapped = key.public.wrap(b"secret", b"context")
    assert key.unwrap(wrapped, b"context") == b"secret"
    for data, info in [(wrapped, b"other"), (wrapped[:-1], b"context"), (b"", b"context")]:
        with pytest.raises(Denied):
            key.unwrap(data, info)
    with pytest.raises(Denied):
        PrivateKey.new(kind, drawing("other"), WHEN).unwrap(wrapped, b"context")


def test_signing_keys_do_not_seal_and_sealing_keys_do_not_sign(site):
    with pytest.raises(SettingsError):
        site.public.signing.wrap(b"x", b"")
    assert not site.public.sealing.verify(b"x" * 64, b"")
    assert "secret" not in repr(site.signing).lower() or site.signing.secret.hex() not in repr(site.signing)


WEAK = [  # the points of small order, RFC 7748 and 8032; also in forms that are larger than the prime
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
def test_keys_under_which_anybody_can_sign_are_none(weak, sign):
    raw = bytearray.fromhex(weak)
    raw[-1] |= sign
    with pytest.raises(Denied, match="anybody can sign"):
        PublicKey(Kind.SIGN, bytes(raw), WHEN)
    PublicKey(Kind.SEAL, bytes(raw), WHEN)


def test_a_signature_without_a_secret_would_hold_under_such_a_key():
    zero = Ed25519PublicKey.from_public_bytes(bytes(32))
    held = 0
    for number in range(64):
        with suppress(InvalidSignature):
            zero.verify(bytes(64), bytes([number]))
            held += 1
    assert held


def test_rotation_keeps_old_keys_for_opening_only(site):
    wrapped = site.public.sealing.wrap(b"old letter", b"")
    new = site.rotated(drawing("r"), LATER, hybrid=True).rotated(drawing("s"), LAST, hybrid=True)
    assert new.opening(site.public.sealing.id).unwrap(wrapped, b"") == b"old letter"
    assert new.public.sealing.kind is Kind.HYBRID
    assert [key.public.kind for key in new.secrets].count(Kind.SIGN) == 1
    read = PublicRing.read(json.loads(json.dumps(new.public.row())), trusted=site.public.signing.id)
    assert read == new.public
    assert read.accepts(site.public.sealing.id, WHEN).until == LATER
    with pytest.raises(Denied) as caught:
        read.accepts(site.public.sealing.id, LAST)
    assert caught.value.code is RefusalCode.RETIRED_KEY
    with pytest.raises(Denied) as caught:
        read.accepts(read.signing.id, WHEN)
    assert caught.value.code is RefusalCode.UNKNOWN_KEY


def test_rings_do_not_become_weaker_or_go_back(site):
    hybrid = Ring.new("h", drawing("h"), WHEN, hybrid=True)
    with pytest.raises(SettingsError, match="weaker"):
        hybrid.rotated(drawing("x"), LATER)
    with pytest.raises(SettingsError, match="clock"):
        site.rotated(drawing("x"), WHEN)


def test_a_ring_that_does_not_follow_from_the_trusted_key_is_refused(site):
    new = site.rotated(drawing("r"), LATER)
    thief = Ring.new("site-a", drawing("thief"), WHEN).rotated(drawing("t"), LATER)
    with pytest.raises(Denied):
        PublicRing.read(thief.public.row(), trusted=site.public.signing.id)
    forged = replace(new.public, rotations=thief.public.rotations)
    grafted = replace(new.public, keys=(*new.public.keys[:2], *thief.public.keys[2:]))
    alive = replace(new.public, keys=(replace(new.public.keys[0], until=LAST), *new.public.keys[1:]))
    unsigned = replace(new.public, rotations=())
    swapped = replace(new.public, keys=(*new.public.keys[:3], thief.public.keys[3]))
    for ring in (forged, grafted, alive, unsigned, swapped):
        with pytest.raises(Denied):
            PublicRing.read(ring.row())
    for row in (None, {}, [], {"format": "abaton-keys/1", "name": "x", "keys": [], "rotations": []}):
        with pytest.raises(Denied):
            PublicRing.read(row)


def test_key_files_open_with_the_passphrase_alone(site, tmp_path):
    ring = site.rotated(drawing("r"), LATER)
    content = lock(ring, b"a long sentence", drawing("f"), n=4)
    path = tmp_path / "site.keys"
    write_ring(path, content)
    assert path.stat().st_mode & 0o777 == 0o600
    opened = read_ring(path, b"a long sentence")
    assert opened.public == ring.public
    assert {key.id: key.secret for key in opened.secrets} == {key.id: key.secret for key in ring.secrets}
    assert all(key.secret.hex().encode() not in content for key in ring.secrets)
    with pytest.raises(SettingsError, match="passphrase"):
        read_ring(path, b"another sentence")
    path.chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        read_ring(path, b"a long sentence")
    with pytest.raises(SettingsError, match="already"):
        write_ring(path, content)
    write_public(tmp_path / "site.pub", ring.public)
    assert read_public(tmp_path / "site.pub") == read_public(path) == ring.public
    with pytest.raises(SettingsError, match="too short"):
        lock(ring, b"short", drawing("f"), n=4)


def test_a_changed_key_file_is_refused(site):
    row = json.loads(lock(site, b"a long sentence", drawing("f"), n=4))
    other = json.loads(lock(Ring.new("site-a", drawing("o"), WHEN), b"a long sentence", drawing("f"), n=4))
    for change in [("public",), ("scrypt",), ("sealed",), ("nonce",), ("format",)]:
        broken = copy.deepcopy(row)
        broken[change[0]] = other[change[0]] if change[0] in ("public", "sealed") else "x"
        with pytest.raises(AbatonError):
            unlock(json.dumps(broken).encode(), b"a long sentence")
    huge = {**row, "scrypt": {**row["scrypt"], "n": 2**40}}
    for content in (json.dumps(huge).encode(), b"", b"[]", b"\xff", b"{}"):
        with pytest.raises(SettingsError):
            unlock(content, b"a long sentence")
