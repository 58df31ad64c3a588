"""The command line of governance: keys, sealing, vault, audit log and retention."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta

import pytest

from abaton.cli import main
from abaton.deid.mapping_table import MappingRow
from abaton.governance import AuditEntry, AuditLog, ConsentRegistry, Vault, metadata
from abaton.governance.identifiers import registry_pseudonym
from abaton.governance.key_files import read_public
from abaton.governance.withdrawal import CascadeStep, WithdrawalCascade, WithdrawalPendingError
from abaton.store import Database

NOW = datetime.now(UTC)
ANN = registry_pseudonym(bytes(range(32)), "subject", "ann")


@pytest.fixture(autouse=True)
def _quick_scrypt(monkeypatch, tmp_path):
    from abaton.governance import key_files

    derive_key = key_files._derive_key
    monkeypatch.setattr(key_files, "_derive_key", lambda phrase, salt, n: derive_key(phrase, salt, 16))
    monkeypatch.setenv("PHRASE", "a long enough sentence")
    monkeypatch.setenv("ABATON_GOVERNANCE", str(tmp_path / "governance.db"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys, monkeypatch):
    def call(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["abaton", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        assert left.value.code == code, err
        return json.loads(out) if "--json" in arguments and not code else err + out

    return call


PHRASE = ("--passphrase-env", "PHRASE")


@pytest.fixture
def keys(run):
    for name in ("site", "centre", "controller", "dpo"):
        run("keys", "new", f"{name}.keys", "--name", name, "--public", f"{name}.pub", *PHRASE)


def test_keys_are_created_shown_and_rotated(run, tmp_path, monkeypatch):
    run("keys", "new", "a.keys", "--name", "site-a", "--hybrid", *PHRASE)
    assert (tmp_path / "a.keys").stat().st_mode & 0o777 == 0o600
    before = run("keys", "show", "a.keys", "--json")
    assert [key["kind"] for key in before["keys"]] == ["ed25519", "mlkem768-x25519"]
    assert "the file exists" in run("keys", "new", "a.keys", "--name", "x", *PHRASE, code=2)
    assert "not hybrid" in run("keys", "rotate", "a.keys", *PHRASE, code=2)
    run("keys", "rotate", "a.keys", "--hybrid", "--public", "a.pub", *PHRASE)
    assert read_public(tmp_path / "a.pub", trusted=before["keys"][0]["id"]).rotations
    run("keys", "export", "a.keys", "--out", "again.pub")
    assert (tmp_path / "again.pub").read_bytes() == (tmp_path / "a.pub").read_bytes()
    monkeypatch.setenv("WRONG", "another long sentence")
    assert "passphrase" in run("keys", "rotate", "a.keys", "--hybrid", "--passphrase-env", "WRONG", code=2)
    assert "'NONE' is not set" in run("keys", "rotate", "a.keys", "--passphrase-env", "NONE", code=2)
    (tmp_path / "phrase").write_text("a long enough sentence\n")
    (tmp_path / "phrase").chmod(0o644)
    assert "chmod 600" in run("keys", "rotate", "a.keys", "--passphrase-file", "phrase", code=2)
    (tmp_path / "phrase").chmod(0o600)
    run("keys", "rotate", "a.keys", "--hybrid", "--passphrase-file", "phrase")
    assert "are both set" in run("keys", "rotate", "a.keys", "--passphrase-file", "phrase", *PHRASE, code=2)
    (tmp_path / "noise").write_bytes(b"\xff")
    assert "not a key file" in run("keys", "show", "noise", code=2)


def test_the_register_of_keys(run, keys):
    run("keys", "register", "site.pub", "--role", "site")
    assert [row["name"] for row in run("keys", "list", "--json")] == ["site"]
    assert "unknown role" in run("keys", "register", "site.pub", "--role", "king", code=2)
    run("keys", "unregister", "site")
    assert run("keys", "list", "--json")[0]["valid_until"]
    assert "no sender" in run("keys", "unregister", "other", code=2)


def test_seal_and_open(run, keys, tmp_path):
    run("study", "new", "study.toml", "--id", "s-1")
    run("study", "new", "other.toml", "--id", "s-2")
    (tmp_path / "in.ndjson").write_text('{"b": 1.0, "a": "x"}\n' * 1000)
    seal = (
        "seal",
        "in.ndjson",
        "sealed",
        "--keys",
        "site.keys",
        "--to",
        "centre.pub",
        "--study",
        "study.toml",
        *PHRASE,
    )
    output = run(*seal, "--sequence", "7", "--json")
    assert output["sequence"] == 7
    opening = ("open", "sealed", "out", "--keys", "centre.keys", "--from", "site.pub", *PHRASE)
    assert "another study" in run(*opening, "--study", "other.toml", code=3)
    assert "sender" in run(*opening[:6], "dpo.pub", *PHRASE, "--study", "study.toml", code=3)
    assert not (tmp_path / "out").exists()
    assert run(*opening, "--study", "study.toml", "--json")["sequence"] == 7
    assert (tmp_path / "out").read_text() == '{"a":"x","b":1}\n' * 1000
    assert "used this sequence number" in run(*opening, "--study", "study.toml", code=3)
    run(*opening, "--study", "study.toml", "--allow-reopen")
    run("seal", "in.ndjson", "raw", *seal[3:], "--no-canonicalise")
    run("open", "raw", "raw.out", *opening[3:], "--study", "study.toml")
    assert (tmp_path / "raw.out").read_bytes() == (tmp_path / "in.ndjson").read_bytes()
    assert "cannot be read" in run("seal", "nothing", *seal[2:], code=2)
    data = bytearray((tmp_path / "sealed").read_bytes())
    data[-70] ^= 1
    (tmp_path / "sealed").write_bytes(data)
    assert "signature" in run(*opening, "--study", "study.toml", "--allow-reopen", code=3)


def test_reidentification_needs_two_signatures(run, keys, tmp_path):
    vault = Vault(
        "vault.db",
        "row-keys.db",
        read_public(tmp_path / "controller.pub").sealing_key,
        lambda n: bytes(range(n)),
    )
    vault.add(MappingRow("s-1", "A" * 26, "P1", "4711"))
    vault.close()
    run("keys", "register", "controller.pub", "--role", "data_controller")
    run("keys", "register", "dpo.pub", "--role", "approver")
    ask = (
        "vault",
        "request",
        "s-1",
        "P1",
        "--ticket",
        "T-1",
        "--keys",
        "controller.keys",
        "--out",
        "ask.json",
        *PHRASE,
    )
    assert "unknown purpose" in run(*ask, "--purpose", "curiosity", code=2)
    run(*ask, "--purpose", "safety")
    shown = run("vault", "approve", "ask.json", "--keys", "dpo.keys", "--out", "yes.json", *PHRASE)
    assert "safety" in shown
    run("vault", "approve", "ask.json", "--keys", "controller.keys", "--out", "self.json", *PHRASE)
    where = ("--keys", "controller.keys", "--vault", "vault.db", "--vault-keys", "row-keys.db", *PHRASE)
    assert "same person" in run("vault", "reidentify", "ask.json", "self.json", *where, code=3)
    assert run("vault", "reidentify", "ask.json", "yes.json", *where, "--json") == {"identity": "4711"}
    assert "already" in run("vault", "reidentify", "ask.json", "yes.json", *where, code=3)
    run("keys", "rotate", "controller.keys", *PHRASE)
    assert run("vault", "rotate", *where, "--json") == {"rows": 1}
    assert run("vault", "rotate", *where, "--json") == {"rows": 0}
    with Database(tmp_path / "governance.db", metadata) as database:
        entries = [(entry["action"], entry["outcome"]) for entry in AuditLog(database).entries()]
    assert ("subject-reidentified", "not-approved") in entries
    assert ("subject-reidentified", "done") in entries


def test_the_audit_log(run, keys, tmp_path):
    with Database(tmp_path / "governance.db", metadata) as database:
        for _ in range(3):
            AuditLog(database).append(AuditEntry("data-retrieved", subject=ANN), NOW)
        run("audit", "checkpoint", "--keys", "centre.keys", "--out", "point.json", *PHRASE)
        assert "without a checkpoint" in run("audit", "verify")
        checkpoint_options = ("--checkpoint", "point.json", "--signer", "centre.pub")
        assert run("audit", "verify", *checkpoint_options, "--json") == {"ok": True, "faults": []}
        assert "--signer is missing" in run("audit", "verify", "--checkpoint", "point.json", code=2)
        lines = run("audit", "export").splitlines()
        assert [json.loads(line)["resourceType"] for line in lines] == ["AuditEvent"] * 3
        from abaton.governance.schema import audit

        database.write(lambda c: c.execute(audit.delete().where(audit.c.sequence == 2)))
        assert "ends before its checkpoint" in run("audit", "verify", *checkpoint_options, code=1)


def test_retention_and_pending_withdrawals(run, tmp_path):
    with Database(tmp_path / "governance.db", metadata) as database:
        registry = ConsentRegistry(database)
        registry.publish(
            "s-1", "ab" * 32, NOW - timedelta(days=9), ends=NOW - timedelta(days=1), keep_until=None
        )

        def wait(case, when):
            raise WithdrawalPendingError("centre-unreachable")

        cascade = WithdrawalCascade(database, dict.fromkeys(CascadeStep, wait))
        cascade.advance(cascade.open("s-1", ANN, ANN, NOW), NOW)
    (case,) = run("withdrawals", "--json")
    assert (case["step"], case["pending_on"]) == ("stop-collecting", "centre-unreachable")
    assert "pending withdrawals" in run("withdrawals")
    due = [{"item": "study-to-close", "study": "s-1", "count": 1}]
    assert run("retention", "--dry-run", "--json")["due"] == due
    assert run("retention", "--json")["due"] == due
    assert run("retention", "--json")["due"] == []
    assert "incomplete" in run("retention", "--vault", "v.db", code=2)
