from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sql
from tests.governance.conftest import DAY, NOW, STUDY, WHEN, drawing

from abaton.deid.mapping_table import MappingRow
from abaton.deid.pseudonyms import Pseudonyms
from abaton.errors import SettingsError, StoreError
from abaton.governance import (
    Audit,
    Denied,
    RefusalCode,
    Ring,
    SenderRole,
    Senders,
    Vault,
    VaultPurpose,
    Wish,
    approve,
    reidentify,
    request,
    row_tag,
)
from abaton.governance.vault import row_keys, rows

CONTROLLER = Ring.new("controller", drawing("controller"), WHEN)
APPROVER = Ring.new("dpo", drawing("dpo"), WHEN)
IDENTITY = "https://hospital.example/4711-Chalmers"


@pytest.fixture
def vault(database_url, tmp_path, request):
    url = f"sqlite:///{tmp_path / 'vault.db'}"
    if database_url.startswith("postgresql"):
        url = request.getfixturevalue("new_database")()
    made = Vault(url, tmp_path / "vault-keys.db", CONTROLLER.public.sealing, drawing("vault"))
    yield made
    made.close()


@pytest.fixture
def senders(database):
    made = Senders(database)
    made.enter(CONTROLLER.public, SenderRole.CONTROLLER, NOW)
    made.enter(APPROVER.public, SenderRole.APPROVER, NOW)
    return made


def tag_of(i: int) -> str:
    return f"{'A' * 20}{i:06d}".translate(str.maketrans("0189", "ABCD"))


def row(i: int = 0, subject: str = IDENTITY) -> MappingRow:
    return MappingRow(STUDY, tag_of(i), f"PSEUDONYM{i}", subject)


def test_it_is_a_mapping_sink_for_the_pseudonyms(vault):
    names = Pseudonyms(STUDY, bytes(range(32)), sink=vault, issue=lambda: "issued-1")
    assert names.identity("Patient", "4711") == "issued-1"
    tag = row_tag(names, "4711")
    assert vault.find(STUDY, tag) == "issued-1"
    assert vault.open(vault.row(STUDY, tag), CONTROLLER) == "4711"
    assert vault.count(STUDY) == 1


def test_whoever_comes_first_wins(vault):
    assert vault.add(row(0)) == "PSEUDONYM0"
    assert vault.add(MappingRow(STUDY, tag_of(0), "LATER", IDENTITY)) == "PSEUDONYM0"
    assert vault.find(STUDY, "B" * 26) is None
    with pytest.raises(StoreError, match="two people"):
        vault.add(MappingRow(STUDY, tag_of(9), "PSEUDONYM0", IDENTITY))
    assert vault.sweep() == 0


def test_many_threads_give_one_identity(vault):
    given = []
    threads = [
        threading.Thread(
            target=lambda i=i: given.append(vault.add(MappingRow(STUDY, "A" * 26, f"P{i}", "4711")))
        )
        for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(given) == 6
    assert len(set(given)) == 1
    assert vault.sweep() == 0


def test_nothing_in_the_files_can_be_read(vault, tmp_path):
    vault.add_many(row(i) for i in range(50))
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert b"Chalmers" not in path.read_bytes()
            assert path.stat().st_mode & 0o077 == 0, path
    with pytest.raises(Denied):
        vault.open(vault.row(STUDY, tag_of(3)), Ring.new("thief", drawing("thief"), WHEN))


def test_rows_cannot_be_exchanged(vault):
    vault.add_many([row(0, "ann"), row(1, "bob")])
    other = vault.row(STUDY, tag_of(1))
    change = rows.update().where(rows.c.tag == tag_of(0))
    vault.database.write(lambda c: c.execute(change.values(sealed=other.sealed, key=other.key)))
    with pytest.raises(Denied) as caught:
        vault.open(vault.row(STUDY, tag_of(0)), CONTROLLER)
    assert caught.value.code is RefusalCode.TAMPERED


def test_a_row_without_its_key_is_unreadable_in_every_copy(vault, tmp_path):
    vault.add_many(row(i) for i in range(3))
    backup = vault.row(STUDY, tag_of(1))  # what a backup of the rows holds
    wrapped = vault.keys.read(
        lambda c: c.scalar(sql.select(row_keys.c.wrapped).where(row_keys.c.key == backup.key))
    )
    assert vault.destroy_key(STUDY, tag_of(1))
    assert not vault.destroy_key(STUDY, tag_of(1))
    with pytest.raises(Denied) as caught:
        vault.open(backup, CONTROLLER)
    assert caught.value.code is RefusalCode.NOT_FOUND
    assert vault.destroy_row(STUDY, tag_of(1))
    assert not vault.destroy_row(STUDY, tag_of(1))
    assert not vault.destroy_key(STUDY, tag_of(1))
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert wrapped not in path.read_bytes()
            assert backup.sealed not in path.read_bytes()
    assert vault.open(vault.row(STUDY, tag_of(2)), CONTROLLER) == IDENTITY


def test_the_controller_can_change_keys(vault):
    vault.add_many(row(i) for i in range(5))
    new = CONTROLLER.rotated(drawing("n"), "2027-01-01T00:00:00.000Z", hybrid=True)
    assert vault.rewrap(new) == 5
    assert vault.rewrap(new) == 0
    assert vault.open(vault.row(STUDY, tag_of(2)), new) == IDENTITY
    with pytest.raises(Denied):
        vault.open(vault.row(STUDY, tag_of(2)), CONTROLLER)


WISH = Wish(STUDY, "PSEUDONYM1", VaultPurpose.INCIDENTAL_FINDING, "T-17/4")


def test_two_people_learn_one_name_and_the_chain_knows_it_first(vault, audit, senders):
    vault.add_many(row(i, f"patient {i}") for i in range(3))
    asked = request(CONTROLLER.signing, WISH, NOW)
    approved = approve(APPROVER.signing, asked, NOW)
    assert reidentify(vault, audit, senders, CONTROLLER, asked, approved, NOW) == "patient 1"
    last = list(audit.entries())[-1]
    assert (last["action"], last["outcome"], last["about"]) == ("subject-reidentified", "done", tag_of(1))
    assert last["detail"]["purpose"] == "incidental-finding"
    assert "PSEUDONYM1" not in str(last)
    with pytest.raises(Denied) as caught:
        reidentify(vault, audit, senders, CONTROLLER, asked, approved, NOW)
    assert caught.value.code is RefusalCode.REPLAYED


def test_without_an_audit_entry_there_is_no_answer(vault, senders, monkeypatch):
    vault.add(row(1))
    opened = []
    monkeypatch.setattr(Vault, "open", lambda *a: opened.append(a))

    class Broken(Audit):
        def append(self, entry, when):
            raise StoreError("the disk is full")

    asked = request(CONTROLLER.signing, WISH, NOW)
    with pytest.raises(StoreError):
        reidentify(
            vault, Broken(senders.database), senders, CONTROLLER, asked, approve(APPROVER.signing, asked, NOW), NOW
        )  # fmt: skip
    assert opened == []


def test_everything_else_is_refused_and_audited(vault, audit, senders):
    vault.add(row(1))
    stranger = Ring.new("stranger", drawing("s"), WHEN)
    asked = request(CONTROLLER.signing, WISH, NOW)
    approved = approve(APPROVER.signing, asked, NOW)
    other = request(CONTROLLER.signing, Wish(STUDY, "NOBODY", VaultPurpose.SAFETY, "T"), NOW)
    by_approver = request(APPROVER.signing, WISH, NOW)
    cases = [
        (asked, approve(CONTROLLER.signing, asked, NOW), NOW, RefusalCode.NOT_APPROVED),
        (asked, approve(APPROVER.signing, other, NOW), NOW, RefusalCode.NOT_APPROVED),
        (asked, approve(stranger.signing, asked, NOW), NOW, RefusalCode.UNKNOWN_SENDER),
        (by_approver, approve(CONTROLLER.signing, by_approver, NOW), NOW, RefusalCode.UNKNOWN_SENDER),
        (asked, asked, NOW, RefusalCode.FORGED),
        (asked, approved, NOW + 2 * DAY, RefusalCode.EXPIRED),
        (asked, approved, NOW - DAY, RefusalCode.EXPIRED),
        ({**asked, "body": {**asked["body"], "pseudonym": "PSEUDONYM2"}}, approved, NOW, RefusalCode.FORGED),
        (other, approve(APPROVER.signing, other, NOW), NOW, RefusalCode.NOT_FOUND),
        ({}, {}, NOW, RefusalCode.MALFORMED),
    ]
    for first, second, when, code in cases:
        with pytest.raises(Denied) as caught:
            reidentify(vault, audit, senders, CONTROLLER, first, second, when)
        assert caught.value.code is code
        assert list(audit.entries())[-1]["outcome"] == code.value
    senders.dismiss("dpo", NOW)
    with pytest.raises(Denied):
        reidentify(vault, audit, senders, CONTROLLER, asked, approved, NOW)


def test_a_request_says_what_it_must():
    for study, pseudonym, ticket in [
        ("", "P", "T"),
        (STUDY, "", "T"),
        (STUDY, "P" * 65, "T"),
        (STUDY, "P", "a b"),
    ]:
        with pytest.raises(SettingsError):
            Wish(study, pseudonym, VaultPurpose.SAFETY, ticket)
    for days in (0, 8):
        with pytest.raises(SettingsError):
            request(CONTROLLER.signing, WISH, NOW, timedelta(days=days))


def test_a_whole_study_can_be_destroyed(vault):
    vault.add_many(row(i) for i in range(4))
    vault.add(MappingRow("other", "A" * 26, "X", "bob"))
    assert vault.destroy_study(STUDY) == 4
    assert (vault.count(STUDY), vault.count("other")) == (0, 1)
    assert vault.open(vault.row("other", "A" * 26), CONTROLLER) == "bob"
    assert Path(vault.keys.url.database).stat().st_mode & 0o777 == 0o600
