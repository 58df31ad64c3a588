from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sql
from tests.governance.conftest import DAY, NOW, STUDY, WHEN, random_source

from abaton.deid.mapping_table import MappingRow
from abaton.deid.pseudonyms import Pseudonyms
from abaton.errors import SettingsError, StoreError
from abaton.governance import (
    AuditLog,
    DeniedError,
    KeySet,
    RefusalCode,
    ReidentificationRequest,
    SenderRegistry,
    SenderRole,
    Vault,
    VaultPurpose,
    approve,
    reidentify,
    request,
    vault_pseudonym,
)
from abaton.governance.vault import row_keys, rows

CONTROLLER = KeySet.new("controller", random_source("controller"), WHEN)
APPROVER = KeySet.new("dpo", random_source("dpo"), WHEN)
IDENTITY = "https://hospital.example/4711-Chalmers"


@pytest.fixture
def vault(database_url, tmp_path, request):
    url = f"sqlite:///{tmp_path / 'vault.db'}"
    if database_url.startswith("postgresql"):
        url = request.getfixturevalue("new_database")()
    opened = Vault(url, tmp_path / "vault-keys.db", CONTROLLER.public.sealing_key, random_source("vault"))
    yield opened
    opened.close()


@pytest.fixture
def senders(database):
    registered = SenderRegistry(database)
    registered.register(CONTROLLER.public, SenderRole.DATA_CONTROLLER, NOW)
    registered.register(APPROVER.public, SenderRole.APPROVER, NOW)
    return registered


def pseudonym_of(i: int) -> str:
    return f"{'A' * 20}{i:06d}".translate(str.maketrans("0189", "ABCD"))


def row(i: int = 0, subject: str = IDENTITY) -> MappingRow:
    return MappingRow(STUDY, pseudonym_of(i), f"PSEUDONYM{i}", subject)


def test_it_is_a_mapping_sink_for_the_pseudonyms(vault):
    names = Pseudonyms(STUDY, bytes(range(32)), sink=vault, issue=lambda: "issued-1")
    assert names.identity("Patient", "4711") == "issued-1"
    row_pseudonym = vault_pseudonym(names, "4711")
    assert vault.find(STUDY, row_pseudonym) == "issued-1"
    assert vault.open(vault.row(STUDY, row_pseudonym), CONTROLLER) == "4711"
    assert vault.count(STUDY) == 1


def test_the_first_row_of_a_subject_counts(vault):
    assert vault.add(row(0)) == "PSEUDONYM0"
    assert vault.add(MappingRow(STUDY, pseudonym_of(0), "LATER", IDENTITY)) == "PSEUDONYM0"
    assert vault.find(STUDY, "B" * 26) is None
    with pytest.raises(StoreError, match="two subjects"):
        vault.add(MappingRow(STUDY, pseudonym_of(9), "PSEUDONYM0", IDENTITY))
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
    with pytest.raises(DeniedError):
        vault.open(vault.row(STUDY, pseudonym_of(3)), KeySet.new("thief", random_source("thief"), WHEN))


def test_vault_rows_cannot_be_exchanged(vault):
    vault.add_many([row(0, "ann"), row(1, "bob")])
    other = vault.row(STUDY, pseudonym_of(1))
    change = rows.update().where(rows.c.subject_pseudonym == pseudonym_of(0))
    vault.database.write(lambda c: c.execute(change.values(sealed=other.sealed, key=other.key)))
    with pytest.raises(DeniedError) as caught:
        vault.open(vault.row(STUDY, pseudonym_of(0)), CONTROLLER)
    assert caught.value.code is RefusalCode.TAMPERED


def test_a_row_without_its_key_is_unreadable_in_every_copy(vault, tmp_path):
    vault.add_many(row(i) for i in range(3))
    backup = vault.row(STUDY, pseudonym_of(1))  # as in a backup of the rows
    wrapped = vault.keys.read(
        lambda c: c.scalar(sql.select(row_keys.c.wrapped).where(row_keys.c.key == backup.key))
    )
    assert vault.destroy_key(STUDY, pseudonym_of(1))
    assert not vault.destroy_key(STUDY, pseudonym_of(1))
    with pytest.raises(DeniedError) as caught:
        vault.open(backup, CONTROLLER)
    assert caught.value.code is RefusalCode.NOT_FOUND
    assert vault.destroy_row(STUDY, pseudonym_of(1))
    assert not vault.destroy_row(STUDY, pseudonym_of(1))
    assert not vault.destroy_key(STUDY, pseudonym_of(1))
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert wrapped not in path.read_bytes()
            assert backup.sealed not in path.read_bytes()
    assert vault.open(vault.row(STUDY, pseudonym_of(2)), CONTROLLER) == IDENTITY


def test_the_controller_can_change_keys(vault):
    vault.add_many(row(i) for i in range(5))
    new = CONTROLLER.rotate(random_source("n"), "2027-01-01T00:00:00.000Z", hybrid=True)
    assert vault.rewrap(new) == 5
    assert vault.rewrap(new) == 0
    assert vault.open(vault.row(STUDY, pseudonym_of(2)), new) == IDENTITY
    with pytest.raises(DeniedError):
        vault.open(vault.row(STUDY, pseudonym_of(2)), CONTROLLER)


REQUEST = ReidentificationRequest(STUDY, "PSEUDONYM1", VaultPurpose.INCIDENTAL_FINDING, "T-17/4")


def test_reidentification_with_two_signatures_is_audited_first(vault, audit, senders):
    vault.add_many(row(i, f"patient {i}") for i in range(3))
    signed_request = request(CONTROLLER.signing_key, REQUEST, NOW)
    approval = approve(APPROVER.signing_key, signed_request, NOW)
    assert reidentify(vault, audit, senders, CONTROLLER, signed_request, approval, NOW) == "patient 1"
    last = list(audit.entries())[-1]
    assert (last["action"], last["outcome"], last["about"]) == (
        "subject-reidentified",
        "done",
        pseudonym_of(1),
    )
    assert last["detail"]["purpose"] == "incidental-finding"
    assert "PSEUDONYM1" not in str(last)
    with pytest.raises(DeniedError) as caught:
        reidentify(vault, audit, senders, CONTROLLER, signed_request, approval, NOW)
    assert caught.value.code is RefusalCode.REPLAYED


def test_without_an_audit_entry_nothing_is_decrypted(vault, senders, monkeypatch):
    vault.add(row(1))
    opened = []
    monkeypatch.setattr(Vault, "open", lambda *a: opened.append(a))

    class Broken(AuditLog):
        def append(self, entry, when):
            raise StoreError("the disk is full")

    signed_request = request(CONTROLLER.signing_key, REQUEST, NOW)
    approval = approve(APPROVER.signing_key, signed_request, NOW)
    with pytest.raises(StoreError):
        reidentify(vault, Broken(senders.database), senders, CONTROLLER, signed_request, approval, NOW)
    assert opened == []


def test_everything_else_is_refused_and_audited(vault, audit, senders):
    vault.add(row(1))
    stranger = KeySet.new("stranger", random_source("s"), WHEN)
    signed_request = request(CONTROLLER.signing_key, REQUEST, NOW)
    approval = approve(APPROVER.signing_key, signed_request, NOW)
    other = request(
        CONTROLLER.signing_key, ReidentificationRequest(STUDY, "UNKNOWN", VaultPurpose.SAFETY, "T"), NOW
    )
    by_approver = request(APPROVER.signing_key, REQUEST, NOW)
    cases = [
        (signed_request, approve(CONTROLLER.signing_key, signed_request, NOW), NOW, RefusalCode.NOT_APPROVED),
        (signed_request, approve(APPROVER.signing_key, other, NOW), NOW, RefusalCode.NOT_APPROVED),
        (signed_request, approve(stranger.signing_key, signed_request, NOW), NOW, RefusalCode.UNKNOWN_SENDER),
        (by_approver, approve(CONTROLLER.signing_key, by_approver, NOW), NOW, RefusalCode.UNKNOWN_SENDER),
        (signed_request, signed_request, NOW, RefusalCode.FORGED),
        (signed_request, approval, NOW + 2 * DAY, RefusalCode.EXPIRED),
        (signed_request, approval, NOW - DAY, RefusalCode.EXPIRED),
        (
            {**signed_request, "body": {**signed_request["body"], "pseudonym": "PSEUDONYM2"}},
            approval,
            NOW,
            RefusalCode.FORGED,
        ),
        (other, approve(APPROVER.signing_key, other, NOW), NOW, RefusalCode.NOT_FOUND),
        ({}, {}, NOW, RefusalCode.MALFORMED),
    ]
    for first, second, when, code in cases:
        with pytest.raises(DeniedError) as caught:
            reidentify(vault, audit, senders, CONTROLLER, first, second, when)
        assert caught.value.code is code
        assert list(audit.entries())[-1]["outcome"] == code.value
    senders.unregister("dpo", NOW)
    with pytest.raises(DeniedError):
        reidentify(vault, audit, senders, CONTROLLER, signed_request, approval, NOW)


def test_an_incomplete_reidentification_request_is_refused():
    for study, pseudonym, ticket in [
        ("", "P", "T"),
        (STUDY, "", "T"),
        (STUDY, "P" * 65, "T"),
        (STUDY, "P", "a b"),
    ]:
        with pytest.raises(SettingsError):
            ReidentificationRequest(study, pseudonym, VaultPurpose.SAFETY, ticket)
    for days in (0, 8):
        with pytest.raises(SettingsError):
            request(CONTROLLER.signing_key, REQUEST, NOW, timedelta(days=days))


def test_all_rows_of_a_study_can_be_destroyed(vault):
    vault.add_many(row(i) for i in range(4))
    vault.add(MappingRow("other", "A" * 26, "X", "bob"))
    assert vault.destroy_study(STUDY) == 4
    assert (vault.count(STUDY), vault.count("other")) == (0, 1)
    assert vault.open(vault.row("other", "A" * 26), CONTROLLER) == "bob"
    assert Path(vault.keys.url.database).stat().st_mode & 0o777 == 0o600
