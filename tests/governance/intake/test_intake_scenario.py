"""The whole protocol over HTTP, and finally a scan of all bytes: nothing of the subject remains."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sql
from sqlalchemy.engine import make_url
from tests.governance.intake.intake_hospital import IDS, NAMES, Deployment

from abaton.governance import (
    AuditLog,
    ConsentRegistry,
    DeniedError,
    Inbox,
    RefusalCode,
    RetentionTargets,
    SenderRegistry,
    SenderRole,
    Vault,
    enforce,
    metadata,
    vault_pseudonym,
    verify,
)
from abaton.records.export import pseudonyms_for
from abaton.site import load_site, retention_targets, subject_pseudonym
from abaton.store import Database

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture
def deployment(tmp_path, database_url, request):
    if database_url.startswith("sqlite"):
        urls = [f"sqlite:///{tmp_path / name}" for name in ("site.db", "centre.db", "vault.db")]
    else:
        urls = [database_url, *(request.getfixturevalue("new_database")() for _ in range(2))]
    deployment = Deployment(tmp_path, urls)
    deployment.build()
    yield deployment
    deployment.close()


def dumps(deployment: Deployment, folder: Path) -> None:
    """Write a backup of every database: pg_dump for PostgreSQL, SQLite's backup for files."""
    folder.mkdir()
    files = [deployment.hospital / "row-keys.db"]
    for number, url in enumerate((deployment.site_url, deployment.centre_url, deployment.vault_url)):
        parts = make_url(url)
        if parts.get_backend_name() == "sqlite":
            files.append(Path(str(parts.database)))
            continue
        program = shutil.which("pg_dump")
        if program is None:
            pytest.skip("pg_dump is missing: install Debian's 'postgresql-client'")
        host, schema = str(parts.query["host"]), str(parts.query["options"]).rpartition("=")[2]
        out = folder / f"{number}.sql"
        arguments = [program, "-h", host, "-U", "abaton", "-n", schema, "-f", str(out), "postgres"]
        subprocess.run(arguments, check=True, capture_output=True)
    for file in files:
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(folder / file.name)) as target:
            source.backup(target)


def forms(secret: bytes) -> list[bytes]:
    """Return the encodings in which bytes may appear in a file or dump."""
    return [secret, secret.hex().encode(), base64.b64encode(secret)]


def everywhere(deployment: Deployment) -> dict[Path, bytes]:
    """Return the content of all files except the hospital's records, PostgreSQL's table files included."""
    roots = [deployment.folder]
    parts = make_url(deployment.vault_url)
    if parts.get_backend_name() == "postgresql":
        engine = sql.create_engine(deployment.vault_url)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sql.text("CHECKPOINT"))
        engine.dispose()
        roots.append(Path(str(parts.query["host"])) / "data" / "base")
    own = deployment.hospital / "records"
    contents = {}
    for root in roots:
        for path in root.rglob("*"):
            if path.is_file() and own not in path.parents:
                contents[path] = path.read_bytes()
    return contents


def log_of(deployment: Deployment) -> bytes:
    """Return PostgreSQL's write-ahead log, which deletions do not change; empty for SQLite."""
    parts = make_url(deployment.vault_url)
    if parts.get_backend_name() != "postgresql":
        return b""
    folder = Path(str(parts.query["host"])) / "data" / "pg_wal"
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file())


def scan(deployment: Deployment, secrets: dict[str, bytes]) -> set[str]:
    """Return which secrets occur, in any encoding, in any file."""
    files = everywhere(deployment)
    return {
        name
        for name, secret in secrets.items()
        if any(form in content for form in forms(secret) for content in files.values())
    }


def test_scenario_from_consent_to_complete_deletion(deployment):
    # publish, at the centre; read it, at the site
    deployment.run("study", "publish", "study.toml", "--database", deployment.centre_url, where="research")
    deployment.serve()
    study, key_sets = deployment.study, deployment.key_sets
    # enrol two of three patients
    for who in IDS[:2]:
        deployment.site("enrol", "study.toml", who)
    # collect, de-identify, seal, send
    sent = json.loads(deployment.site("send", "study.toml", "--json").stdout)
    assert (sent["queued"], sent["sent"], sent["waiting"], sent["refused"]) == (2, 2, 0, {})
    status = json.loads(deployment.site("status", "--json").stdout)
    assert (status["receipts"], status["centre"]["envelopes"]) == (2, 2)

    # receive and decrypt, at the centre
    names = pseudonyms_for(
        study.data_request(datetime.now(UTC).date()), (deployment.hospital / "study.key").read_bytes(), "pisa"
    )
    controller = key_sets["controller"].public.sealing_key
    with (
        Database(deployment.centre_url, metadata) as far,
        closing(
            Vault(deployment.vault_url, deployment.hospital / "row-keys.db", controller, os.urandom)
        ) as vault,
    ):
        inbox = Inbox(
            deployment.research / "inbox", far, key_sets["centre"].public, key_sets["centre"].signing_key
        )
        row = vault.row(study.study.id, vault_pseudonym(names, IDS[0]))
        other = vault.row(study.study.id, vault_pseudonym(names, IDS[1]))
        assert row is not None
        assert other is not None
        contents = {
            one.digest: b"".join(inbox.open_content(one, key_sets["centre"]))
            for one in inbox.received(study.study.id)
        }
        (ours,) = [digest for digest, content in contents.items() if row.pseudonym.encode() in content]
        envelope = inbox.path(ours).read_bytes()
        for content in contents.values():
            assert not any(word.encode() in content for word in (*IDS, *NAMES, "ssn-"))
        with vault.keys.transaction(write=False) as connection:
            wrapped = connection.scalar(
                sql.text("SELECT wrapped FROM vault_row_keys WHERE key = :key"), {"key": row.key}
            )
        for name, role in (("controller", SenderRole.DATA_CONTROLLER), ("approver", SenderRole.APPROVER)):
            SenderRegistry(far).register(key_sets[name].public, role, datetime.now(UTC))

    secrets = {
        "identity": IDS[0].encode(), "name": NAMES[0].encode(), "number": b"ssn-1",
        "pseudonym": row.pseudonym.encode(), "sealed row": row.sealed, "row key": row.key.encode(),
        "wrapped key": bytes(wrapped), "envelope": envelope[-200:], "record": contents[ours].splitlines()[0],
    }  # fmt: skip
    stays = {"pseudonym": other.pseudonym.encode(), "sealed row": other.sealed, "row key": other.key.encode()}
    dumps(deployment, deployment.folder / "before")
    assert scan(deployment, secrets) == {"pseudonym", "sealed row", "row key", "wrapped key", "envelope"}
    assert scan(deployment, stays) == set(stays)

    # re-identify one subject, with approval
    given = ("--passphrase-env", "PHRASE")
    request_arguments = (study.study.id, row.pseudonym, "--purpose", "incidental-finding", "--ticket", "T-17")
    deployment.run(
        "vault",
        "request",
        *request_arguments,
        "--keys",
        "controller.keys",
        "--out",
        "ask.json",
        *given,
        where="research",
    )
    deployment.run(
        "vault",
        "approve",
        "ask.json",
        "--keys",
        "approver.keys",
        "--out",
        "yes.json",
        *given,
        where="research",
    )
    vaults = ("--vault", deployment.vault_url, "--vault-keys", str(deployment.hospital / "row-keys.db"))
    asking = ("vault", "reidentify", "ask.json", "yes.json", "--keys", "controller.keys", *vaults)
    known = deployment.run(*asking, "--database", deployment.centre_url, *given, "--json", where="research")
    assert json.loads(known.stdout) == {"identity": IDS[0]}
    for paper in ("ask.json", "yes.json"):  # the request contains the pseudonym
        (deployment.research / paper).unlink()

    # withdraw
    (case,) = json.loads(deployment.site("withdraw", "study.toml", IDS[0], "--json").stdout)
    assert case["step"] == "done"
    shutil.move(deployment.folder / "before", deployment.folder.with_name(deployment.folder.name + "-backup"))
    dumps(deployment, deployment.folder / "after")
    assert scan(deployment, secrets) == set()
    assert scan(deployment, stays) == set(stays)

    # the server's write-ahead log contains nothing that identifies the subject
    logged = log_of(deployment)
    for name in ("identity", "name", "record", "envelope", "wrapped key"):
        assert not any(form in logged for form in forms(secrets[name])), name

    # an earlier backup of the rows is useless: the key is destroyed and was not in it
    backup = deployment.folder.with_name(deployment.folder.name + "-backup")
    with closing(
        Vault(deployment.vault_url, deployment.hospital / "row-keys.db", controller, os.urandom)
    ) as vault:
        with pytest.raises(DeniedError) as error:
            vault.open(row, key_sets["controller"])
        assert error.value.code is RefusalCode.NOT_FOUND
        assert vault.open(other, key_sets["controller"]) == IDS[1]
    for path in backup.iterdir():
        assert IDS[0].encode() not in path.read_bytes()

    # the other subject is unaffected, nothing is sent again, and the audit logs are intact
    again = json.loads(deployment.site("send", "study.toml", "--json").stdout)
    assert (again["queued"], again["unchanged"], again["sent"]) == (0, 1, 0)
    assert json.loads(deployment.site("status", "--json").stdout)["centre"]["envelopes"] == 1
    for url in (deployment.site_url, deployment.centre_url):
        with Database(url, metadata) as database:
            assert verify(AuditLog(database).rows()) == []
    shutil.rmtree(backup)


def test_retention_deletes_everything_of_a_study(deployment):
    deployment.run("study", "publish", "study.toml", "--database", deployment.centre_url, where="research")
    deployment.serve()
    for who in IDS[:2]:
        deployment.site("enrol", "study.toml", who)
    deployment.site("send", "study.toml", "--json")
    deployment.site("withdraw", "study.toml", IDS[1])
    study, key_sets, file = (
        deployment.study,
        deployment.key_sets,
        load_site(deployment.hospital / "site.toml"),
    )
    names = pseudonyms_for(
        study.data_request(datetime.now(UTC).date()), (deployment.hospital / "study.key").read_bytes(), "pisa"
    )
    with retention_targets(file) as site_targets:
        row = site_targets.vault.row(study.study.id, vault_pseudonym(names, IDS[0]))
        subject = subject_pseudonym((deployment.hospital / "registry.key").read_bytes(), IDS[0])
        resource = ConsentRegistry(site_targets.database).consent(subject, study.study.id)
    envelope = next(path for path in (deployment.research / "inbox").iterdir()).read_bytes()
    secrets = {
        "pseudonym": row.pseudonym.encode(), "sealed row": row.sealed, "row key": row.key.encode(),
        "envelope": envelope[-200:], "consent": json.dumps(resource, sort_keys=True).encode(),
    }  # fmt: skip
    assert scan(deployment, secrets) == set(secrets)
    assert study.end is not None
    assert study.keep_until is not None

    deleted = {}
    for end, name in ((study.end, "ends"), (study.keep_until, "deleted"), (study.keep_until, "again")):
        when = end + timedelta(days=1)
        with retention_targets(file) as site_targets, Database(deployment.centre_url, metadata) as far:
            centre = RetentionTargets(far, folder=deployment.research / "inbox")
            deleted[name] = {
                (i, due.item): due.count
                for i, h in enumerate((site_targets, centre))
                for due in enforce(h, when)
            }
            for database in (site_targets.database, far):
                assert ConsentRegistry(database).study(study.study.id).closed
                assert verify(AuditLog(database).rows()) == []
    assert deleted["ends"] == {(0, "study-to-close"): 1, (1, "study-to-close"): 1}
    for item in ("consents", "subjects", "vault-rows", "withdrawals", "consent-receipts"):
        assert deleted["deleted"][0, item] >= 1
    for item in ("received-envelopes", "consents", "subjects", "deletion-receipts"):
        assert deleted["deleted"][1, item] >= 1
    assert deleted["again"] == {}
    assert scan(deployment, secrets) == set()
    assert key_sets
