"""The whole story over real HTTP, and in the end a scan of every byte: nothing of the person is left."""

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
from tests.governance.service.hospital import IDS, NAMES, Place

from abaton.governance import (
    Audit,
    Denied,
    Holdings,
    Inbox,
    RefusalCode,
    Registry,
    SenderRole,
    Senders,
    Vault,
    enforce,
    metadata,
    row_tag,
    verify,
)
from abaton.records.export import pseudonyms_for
from abaton.site import load_site, site_holdings, subject_tag
from abaton.store import Database

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture
def place(tmp_path, database_url, request):
    if database_url.startswith("sqlite"):
        urls = [f"sqlite:///{tmp_path / name}" for name in ("site.db", "centre.db", "vault.db")]
    else:
        urls = [database_url, *(request.getfixturevalue("new_database")() for _ in range(2))]
    made = Place(tmp_path, urls)
    made.build()
    yield made
    made.close()


def dumps(place: Place, folder: Path) -> None:
    """A backup of every database: pg_dump where it is PostgreSQL, SQLite's own backup where it is a file."""
    folder.mkdir()
    files = [place.hospital / "row-keys.db"]
    for number, url in enumerate((place.site_url, place.centre_url, place.vault_url)):
        parts = make_url(url)
        if parts.get_backend_name() == "sqlite":
            files.append(Path(str(parts.database)))
            continue
        program = shutil.which("pg_dump")
        if program is None:
            pytest.skip("pg_dump is missing: install Debian's 'postgresql-client'")
        host, schema = str(parts.query["host"]), str(parts.query["options"]).rpartition("=")[2]
        out = folder / f"{number}.sql"
        words = [program, "-h", host, "-U", "abaton", "-n", schema, "-f", str(out), "postgres"]
        subprocess.run(words, check=True, capture_output=True)
    for file in files:
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(folder / file.name)) as target:
            source.backup(target)


def forms(secret: bytes) -> list[bytes]:
    """How bytes may be written in a file or a dump."""
    return [secret, secret.hex().encode(), base64.b64encode(secret)]


def everywhere(place: Place) -> dict[Path, bytes]:
    """Every byte of every file but the hospital's own records; the files of PostgreSQL's tables included."""
    roots = [place.folder]
    parts = make_url(place.vault_url)
    if parts.get_backend_name() == "postgresql":
        engine = sql.create_engine(place.vault_url)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sql.text("CHECKPOINT"))
        engine.dispose()
        roots.append(Path(str(parts.query["host"])) / "data" / "base")
    own = place.hospital / "records"
    found = {}
    for root in roots:
        for path in root.rglob("*"):
            if path.is_file() and own not in path.parents:
                found[path] = path.read_bytes()
    return found


def log_of(place: Place) -> bytes:
    """The write-ahead log of PostgreSQL, which no deletion reaches; nothing where the databases are files."""
    parts = make_url(place.vault_url)
    if parts.get_backend_name() != "postgresql":
        return b""
    folder = Path(str(parts.query["host"])) / "data" / "pg_wal"
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file())


def scan(place: Place, secrets: dict[str, bytes]) -> set[str]:
    """Which of some secrets are found, in any form, in any file."""
    files = everywhere(place)
    return {
        name
        for name, secret in secrets.items()
        if any(form in content for form in forms(secret) for content in files.values())
    }


def test_from_consent_to_nothing_left(place):
    # publish, at the centre; read it, at the site
    place.run("study", "publish", "study.toml", "--database", place.centre_url, where="research")
    place.serve()
    study, rings = place.study, place.rings
    # opt in, enrol: two of three people
    for who in IDS[:2]:
        place.site("enrol", "study.toml", who)
    # collect, de-identify, seal, send
    sent = json.loads(place.site("send", "study.toml", "--json").stdout)
    assert (sent["queued"], sent["sent"], sent["waiting"], sent["refused"]) == (2, 2, 0, {})
    status = json.loads(place.site("status", "--json").stdout)
    assert (status["receipts"], status["centre"]["envelopes"]) == (2, 2)

    # receive and decrypt, at the centre
    names = pseudonyms_for(
        study.need(datetime.now(UTC).date()), (place.hospital / "study.key").read_bytes(), "pisa"
    )
    controller = rings["controller"].public.sealing
    with (
        Database(place.centre_url, metadata) as far,
        closing(Vault(place.vault_url, place.hospital / "row-keys.db", controller, os.urandom)) as vault,
    ):
        inbox = Inbox(place.research / "inbox", far, rings["centre"].public, rings["centre"].signing)
        row = vault.row(study.study.id, row_tag(names, IDS[0]))
        other = vault.row(study.study.id, row_tag(names, IDS[1]))
        assert row is not None
        assert other is not None
        contents = {
            one.digest: b"".join(inbox.content(one, rings["centre"]))
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
        for name, role in (("controller", SenderRole.CONTROLLER), ("approver", SenderRole.APPROVER)):
            Senders(far).enter(rings[name].public, role, datetime.now(UTC))

    secrets = {
        "identity": IDS[0].encode(), "name": NAMES[0].encode(), "number": b"ssn-1",
        "pseudonym": row.pseudonym.encode(), "sealed row": row.sealed, "row key": row.key.encode(),
        "wrapped key": bytes(wrapped), "envelope": envelope[-200:], "record": contents[ours].splitlines()[0],
    }  # fmt: skip
    stays = {"pseudonym": other.pseudonym.encode(), "sealed row": other.sealed, "row key": other.key.encode()}
    dumps(place, place.folder / "before")
    assert scan(place, secrets) == {"pseudonym", "sealed row", "row key", "wrapped key", "envelope"}
    assert scan(place, stays) == set(stays)

    # re-identify one person, with approval
    given = ("--passphrase-env", "PHRASE")
    wish = (study.study.id, row.pseudonym, "--purpose", "incidental-finding", "--ticket", "T-17")
    place.run(
        "vault", "request", *wish, "--keys", "controller.keys", "--out", "ask.json", *given, where="research"
    )
    place.run(
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
    vaults = ("--vault", place.vault_url, "--vault-keys", str(place.hospital / "row-keys.db"))
    asking = ("vault", "reidentify", "ask.json", "yes.json", "--keys", "controller.keys", *vaults)
    known = place.run(*asking, "--database", place.centre_url, *given, "--json", where="research")
    assert json.loads(known.stdout) == {"identity": IDS[0]}
    for paper in ("ask.json", "yes.json"):  # the request itself names the pseudonym
        (place.research / paper).unlink()

    # withdraw
    (case,) = json.loads(place.site("withdraw", "study.toml", IDS[0], "--json").stdout)
    assert case["step"] == "done"
    shutil.move(place.folder / "before", place.folder.with_name(place.folder.name + "-kept"))
    dumps(place, place.folder / "after")
    assert scan(place, secrets) == set()
    assert scan(place, stays) == set(stays)

    # what a server's own log keeps until it is recycled: nothing that says who it was
    logged = log_of(place)
    for name in ("identity", "name", "record", "envelope", "wrapped key"):
        assert not any(form in logged for form in forms(secrets[name])), name

    # a backup of the rows from before is of no use: the key is gone, and was never in it
    kept = place.folder.with_name(place.folder.name + "-kept")
    with closing(Vault(place.vault_url, place.hospital / "row-keys.db", controller, os.urandom)) as vault:
        with pytest.raises(Denied) as error:
            vault.open(row, rings["controller"])
        assert error.value.code is RefusalCode.NOT_FOUND
        assert vault.open(other, rings["controller"]) == IDS[1]
    for path in kept.iterdir():
        assert IDS[0].encode() not in path.read_bytes()

    # the other person is untouched, nothing is sent anew, and the chains are whole
    again = json.loads(place.site("send", "study.toml", "--json").stdout)
    assert (again["queued"], again["unchanged"], again["sent"]) == (0, 1, 0)
    assert json.loads(place.site("status", "--json").stdout)["centre"]["envelopes"] == 1
    for url in (place.site_url, place.centre_url):
        with Database(url, metadata) as database:
            assert verify(Audit(database).rows()) == []
    shutil.rmtree(kept)


def test_years_later_everything_of_the_study_is_gone(place):
    place.run("study", "publish", "study.toml", "--database", place.centre_url, where="research")
    place.serve()
    for who in IDS[:2]:
        place.site("enrol", "study.toml", who)
    place.site("send", "study.toml", "--json")
    place.site("withdraw", "study.toml", IDS[1])
    study, rings, file = place.study, place.rings, load_site(place.hospital / "site.toml")
    names = pseudonyms_for(
        study.need(datetime.now(UTC).date()), (place.hospital / "study.key").read_bytes(), "pisa"
    )
    with site_holdings(file) as near:
        row = near.vault.row(study.study.id, row_tag(names, IDS[0]))
        tags = subject_tag((place.hospital / "tags.key").read_bytes(), IDS[0])
        resource = Registry(near.database).consent(tags, study.study.id)
    envelope = next(each for each in (place.research / "inbox").iterdir()).read_bytes()
    secrets = {
        "pseudonym": row.pseudonym.encode(), "sealed row": row.sealed, "row key": row.key.encode(),
        "envelope": envelope[-200:], "consent": json.dumps(resource, sort_keys=True).encode(),
    }  # fmt: skip
    assert scan(place, secrets) == set(secrets)
    assert study.ends is not None
    assert study.keep_until is not None

    told = {}
    for moment, name in ((study.ends, "ends"), (study.keep_until, "gone"), (study.keep_until, "again")):
        when = moment + timedelta(days=1)
        with site_holdings(file) as near, Database(place.centre_url, metadata) as far:
            centre = Holdings(far, folder=place.research / "inbox")
            told[name] = {
                (i, due.what): due.count for i, h in enumerate((near, centre)) for due in enforce(h, when)
            }
            for database in (near.database, far):
                assert Registry(database).study(study.study.id).closed
                assert verify(Audit(database).rows()) == []
    assert told["ends"] == {(0, "study-to-close"): 1, (1, "study-to-close"): 1}
    for what in ("consents", "subjects", "vault-rows", "withdrawals", "confirmations"):
        assert told["gone"][0, what] >= 1
    for what in ("received-envelopes", "consents", "subjects", "deletion-receipts"):
        assert told["gone"][1, what] >= 1
    assert told["again"] == {}
    assert scan(place, secrets) == set()
    assert rings
