"""Pseudonyms: keyed or random, recognised by their proof, unlinkable across studies and sites."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import sqlite3
import uuid

import pytest
from tests.deid.record_examples import KEY

from abaton.deid import MappingRow, MemoryMapping, Pseudonyms
from abaton.deid.mapping_table import MappingFile
from abaton.deid.pseudonyms import (
    decode_base32,
    derive,
    encode_base32,
    encode_base32_batch,
    uuid_url,
    uuid_urls,
)
from abaton.errors import SettingsError


def test_a_pseudonym_has_26_characters_and_is_a_valid_fhir_id():
    new = Pseudonyms("heart", KEY).identity("Patient", "3466")
    assert len(new) == 26
    assert set(new) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")


def test_the_body_is_keyed_blake2b_under_the_study_key_and_so_is_the_proof():
    token = decode_base32(Pseudonyms("heart", KEY, site="pisa").identity("Device", "7"))
    key, proof = (derive(KEY, "heart", purpose) for purpose in ("identity", "proof"))
    assert token[:11] == hashlib.blake2b(b"pisa\0\0Device\x007", key=key, digest_size=11).digest()
    assert token[11:] == hashlib.blake2b(b"proof\0" + token[:11], key=proof, digest_size=5).digest()


def test_base32_round_trip():
    for i in range(200):
        token = hmac.digest(b"k", str(i).encode(), "sha256")[:16]
        assert decode_base32(encode_base32(token)) == token
    assert uuid_url(bytes(16)) == "urn:uuid:00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize("number", [0, 1, 255, 256, 257, 600])
def test_identities_in_a_batch_equal_single_ones(number: int):
    tokens = [hmac.digest(b"k", str(i).encode(), "sha256")[:16] for i in range(number)]
    assert encode_base32_batch(tokens) == [base64.b32encode(token).decode().rstrip("=") for token in tokens]
    assert uuid_urls(tokens) == [f"urn:uuid:{uuid.UUID(bytes=token)}" for token in tokens]


@pytest.mark.parametrize("issue", [None, lambda: "issued-to-one"])
def test_identities_with_urls_equal_single_ones(issue):
    def names():
        return Pseudonyms("heart", KEY, sink=MemoryMapping(), issue=issue)

    ours = names().identity("Device", "x")
    wanted = [
        ("Device", "x", ""), ("Patient", "1", ""), ("Device", ours, ""), ("Device", "A" * 26, ""),
        ("Device", "x", "https://b.example"), ("Device", "issued-to-one", ""),
        ("Device", "é", ""), ("Patient", "1", ""),
    ]  # fmt: skip
    one_by_one = names()
    alone = [one_by_one.identity(*resource) for resource in wanted]
    assert names().identities(wanted) == alone
    assert names().identities_with_urls(wanted) == [
        (resource, one_by_one.full_url(resource)) for resource in alone
    ]
    assert names().identities_with_urls([]) == []


def test_studies_sites_types_servers_and_keys_are_unlinkable():
    outputs_by_key = {
        Pseudonyms("heart", KEY).identity("Patient", "1"),
        Pseudonyms("lung", KEY).identity("Patient", "1"),
        Pseudonyms("heart", KEY, site="pisa").identity("Patient", "1"),
        Pseudonyms("heart", bytes(range(1, 33))).identity("Patient", "1"),
        Pseudonyms("heart", KEY).identity("Practitioner", "1"),
        Pseudonyms("heart", KEY).identity("Patient", "1", "https://b.example"),
    }
    assert len(outputs_by_key) == 6


def test_an_own_pseudonym_is_kept_and_a_foreign_one_is_replaced():
    names = Pseudonyms("heart", KEY)
    new = names.identity("Patient", "1")
    assert names.identity("Patient", new) == new
    foreign = Pseudonyms("lung", KEY).identity("Patient", "1")
    assert names.identity("Patient", foreign) != foreign


def test_an_identity_proves_itself_under_its_own_key_only():
    first, second = Pseudonyms("heart", KEY), Pseudonyms("heart", bytes(range(1, 33)))
    new = first.identity("Patient", "1")
    assert first.identity("Patient", new) == new
    assert second.identity("Patient", new) != new
    # Without a key an attacker could write a proof, and a record number in that form would pass unchanged.
    body = b"Smith 47110"
    forged = encode_base32(body + hashlib.sha256(derive(b"", "heart", "proof") + body).digest()[:5])
    assert not first.is_own(forged)
    assert not second.is_own(forged)


def test_a_pseudo_identity_is_random_and_stored_in_the_table(tmp_path):
    numbers = itertools.count()
    for sink in (MemoryMapping(), MappingFile(tmp_path / "map.db")):
        issue = lambda: f"random-{next(numbers)}"  # noqa: E731
        names = Pseudonyms("heart", KEY, sink=sink, issue=issue)
        new = names.identity("Patient", "1")
        assert new.startswith("random-")
        assert Pseudonyms("heart", KEY, sink=sink, issue=issue).identity("Patient", "1") == new
        assert names.identity("Patient", new) == new
        assert names.identity("Patient", "2") != new
        assert not names.identity("Observation", "1").startswith("random-")


def test_mapping_rows_go_to_the_sink_and_have_no_repr():
    sink = MemoryMapping()
    new = Pseudonyms("heart", KEY, sink=sink).identity("Patient", "3466")
    (row,) = sink.rows.values()
    assert (row.study, row.pseudonym, row.subject) == ("heart", new, "3466")
    assert "3466" not in row.tag + repr(row)
    assert sink.add(MappingRow("heart", row.tag, "other", "3466")) == new


@pytest.mark.parametrize("key", [b"", b"short", bytes(32), b"a" * 64])
def test_weak_keys_are_refused(key):
    with pytest.raises(SettingsError, match="key is not usable"):
        Pseudonyms("heart", key)


@pytest.mark.parametrize("issued", ["", "x" * 65, "a b", "ä"])
def test_an_issued_identity_must_be_a_fhir_id(issued):
    with pytest.raises(SettingsError, match="not a valid FHIR id"):
        Pseudonyms("heart", KEY, issue=lambda: issued).identity("Patient", "1")


def test_a_mapping_table_of_another_version_is_refused_naming_both(tmp_path):
    table = MappingFile(tmp_path / "map.db")
    table.add(MappingRow("heart", "tag", "NEW", "old"))
    table.close()
    MappingFile(tmp_path / "map.db").close()
    with sqlite3.connect(tmp_path / "map.db") as before:
        before.execute("PRAGMA user_version = 0")
    with pytest.raises(SettingsError, match="version 1, expected 2") as refused:
        MappingFile(tmp_path / "map.db")
    assert "start a new table" in str(refused.value)


def test_a_name_with_the_content_of_a_bundle_is_not_cached():
    names = Pseudonyms("heart", bytes(range(32)))
    long = "|".join(f"o-{i}" for i in range(1000))
    assert names.identity("Bundle", long) == names.identity("Bundle", long)
    assert not names._known  # it would be kilobytes for every person
