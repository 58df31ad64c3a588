"""New identities: keyed or random, recognised when they come back, unlinkable across studies and sites."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import sqlite3
import uuid

import pytest
from making import KEY

from abaton.errors import SettingsError
from abaton.records import MappingRow, MemoryMapping, Pseudonyms
from abaton.deid.pseudonyms import addresses_of, as_uuid, derive, letters, letters_of, token_of
from abaton.deid.mapping_table import MappingFile


def test_an_identity_is_26_letters_and_valid_as_a_fhir_id():
    new = Pseudonyms("heart", KEY).identity("Patient", "3466")
    assert len(new) == 26
    assert set(new) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")


def test_the_body_is_keyed_blake2b_under_the_study_key_and_so_is_the_proof():
    token = token_of(Pseudonyms("heart", KEY, site="pisa").identity("Device", "7"))
    key, proof = (derive(KEY, "heart", purpose) for purpose in ("identity", "proof"))
    assert token[:11] == hashlib.blake2b(b"pisa\0\0Device\x007", key=key, digest_size=11).digest()
    assert token[11:] == hashlib.blake2b(b"proof\0" + token[:11], key=proof, digest_size=5).digest()


def test_letters_and_tokens_are_each_others_inverse():
    for i in range(200):
        token = hmac.digest(b"k", str(i).encode(), "sha256")[:16]
        assert token_of(letters(token)) == token
    assert as_uuid(bytes(16)) == "urn:uuid:00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize("number", [0, 1, 255, 256, 257, 600])
def test_many_identities_at_once_are_those_made_one_by_one(number: int):
    tokens = [hmac.digest(b"k", str(i).encode(), "sha256")[:16] for i in range(number)]
    assert letters_of(tokens) == [base64.b32encode(token).decode().rstrip("=") for token in tokens]
    assert addresses_of(tokens) == [f"urn:uuid:{uuid.UUID(bytes=token)}" for token in tokens]


@pytest.mark.parametrize("issue", [None, lambda: "issued-to-one"])
def test_pairs_gives_what_pair_gives_each(issue):
    def names():
        return Pseudonyms("heart", KEY, sink=MemoryMapping(), issue=issue)

    ours = names().identity("Device", "x")
    wanted = [
        ("Device", "x", ""), ("Patient", "1", ""), ("Device", ours, ""), ("Device", "A" * 26, ""),
        ("Device", "x", "https://b.example"), ("Device", "issued-to-one", ""),
        ("Device", "é", ""), ("Patient", "1", ""),
    ]  # fmt: skip
    one_by_one = names()
    alone = [one_by_one.identity(*each) for each in wanted]
    assert names().identities(wanted) == alone
    assert names().pairs(wanted) == [(each, one_by_one.address(each)) for each in alone]
    assert names().pairs([]) == []


def test_studies_sites_types_servers_and_keys_are_unlinkable():
    made = {
        Pseudonyms("heart", KEY).identity("Patient", "1"),
        Pseudonyms("lung", KEY).identity("Patient", "1"),
        Pseudonyms("heart", KEY, site="pisa").identity("Patient", "1"),
        Pseudonyms("heart", bytes(range(1, 33))).identity("Patient", "1"),
        Pseudonyms("heart", KEY).identity("Practitioner", "1"),
        Pseudonyms("heart", KEY).identity("Patient", "1", "https://b.example"),
    }
    assert len(made) == 6


def test_an_identity_made_here_comes_back_unchanged_and_a_foreign_one_does_not():
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
    # Without a key in it, anybody could write a proof, and a record number written so would pass as it is.
    body = b"Smith 47110"
    forged = letters(body + hashlib.sha256(derive(b"", "heart", "proof") + body).digest()[:5])
    assert not first.is_ours(forged)
    assert not second.is_ours(forged)


def test_a_pseudo_identity_is_random_and_lives_in_the_table(tmp_path):
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


def test_rows_go_to_the_sink_and_show_nothing():
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
    with pytest.raises(SettingsError, match="version 1; this is version 2") as refused:
        MappingFile(tmp_path / "map.db")
    assert "begin a new table" in str(refused.value)


def test_a_name_made_of_all_that_a_bundle_holds_is_not_remembered():
    names = Pseudonyms("heart", bytes(range(32)))
    long = "|".join(f"o-{i}" for i in range(1000))
    assert names.identity("Bundle", long) == names.identity("Bundle", long)
    assert not names._known  # it would be kilobytes for every person
