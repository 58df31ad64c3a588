"""Service or site killed (-9) at every step: after a restart each step is complete, once."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections import Counter
from contextlib import closing

import pytest
import sqlalchemy as sql
from tests.governance.intake.intake_hospital import IDS, Deployment

from abaton.governance import AuditLog, Inbox, Outbox, Vault, metadata, schema, verify
from abaton.governance.withdrawal import STEP_ORDER, pending
from abaton.site import subject_pseudonym
from abaton.store import Database

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture
def deployment(tmp_path, database_url, request):
    if database_url.startswith("sqlite"):
        urls = [f"sqlite:///{tmp_path / name}" for name in ("site.db", "centre.db", "vault.db")]
    else:
        urls = [database_url, *(request.getfixturevalue("new_database")() for _ in range(2))]
    deployment = Deployment(tmp_path, urls)
    deployment.build(patients=2)
    deployment.run("study", "publish", "study.toml", "--database", deployment.centre_url, where="research")
    deployment.write_site("http://127.0.0.1:9")
    for who in IDS[:2]:
        deployment.site("enrol", "study.toml", who)
    yield deployment
    deployment.close()


def killed(deployment, point: str, *arguments: str) -> bool:
    """Run a command of the site that kills itself at a point; return whether it got there."""
    done = deployment.site(*arguments, code=None, point=point)
    assert done.wait() in (0, -signal.SIGKILL), done.stderr
    return done.wait() == -signal.SIGKILL


def counted(database, action: str) -> int:
    return sum(entry["action"] == action for entry in AuditLog(database).entries())


def check_sent(deployment, subjects: int = 2) -> None:
    """Check that each subject has one complete, readable envelope and nothing is left over."""
    study = deployment.study.study.id
    with (
        Database(deployment.centre_url, metadata) as centre_database,
        Database(deployment.site_url, metadata) as site_database,
    ):
        inbox = Inbox(
            deployment.research / "inbox",
            centre_database,
            deployment.key_sets["centre"].public,
            deployment.key_sets["centre"].signing_key,
        )
        received = inbox.received(study)
        assert len(received) == len({one.subject for one in received}) == subjects
        for one in received:
            lines = b"".join(inbox.open_content(one, deployment.key_sets["centre"])).splitlines()
            assert Counter(json.loads(line)["resourceType"] for line in lines)["Observation"] == 60
        assert sorted(path.name for path in inbox.folder.iterdir()) == sorted(one.digest for one in received)
        outbox = Outbox(deployment.hospital / "outbox", site_database)
        assert outbox.waiting() == []
        assert {queued.digest for queued in outbox.all()} == {one.digest for one in received}
        outbox.sweep()
        assert list(outbox.folder.iterdir()) == []
        assert counted(centre_database, "envelope-received") == subjects
        assert counted(site_database, "receipt-stored") == subjects
        assert counted(centre_database, "subject-enrolled") == subjects
        assert (
            centre_database.read(
                lambda connection: connection.scalar(sql.select(sql.func.count(schema.uploads.c.digest)))
            )
            == 0
        )
        for database in (centre_database, site_database):
            assert verify(AuditLog(database).rows()) == []


SERVER_POINTS = [
    f"governance.{module}:{owner}:{name}:{phase}:1"
    for module, owner, name in [
        ("intake.intake_service", "IntakeService", "authenticate_caller"),
        ("intake.intake_service", "Uploads", "announce"),
        ("inbox", "Inbox", "append_chunk"),
        ("intake.intake_service", "Uploads", "finish"),
        ("inbox", "Inbox", "_store"),
        ("inbox", "Inbox", "path"),
        ("intake.intake_service", "Uploads", "_forget"),
    ]
    for phase in ("before", "after")
]


def test_the_service_is_killed_at_every_step_of_an_upload(deployment):
    for point in [*SERVER_POINTS[:6], *SERVER_POINTS[4:6] * 2, *SERVER_POINTS[6:]]:
        deployment.serve(point)
        deployment.site("send", "study.toml", code=None)
        assert deployment.servers[-1].poll() == -signal.SIGKILL, point  # killed by itself
        deployment.stop(signal.SIGKILL)
    deployment.serve()
    deployment.site("send", "study.toml")
    check_sent(deployment)


def test_the_site_is_killed_at_every_step_of_an_upload(deployment):
    """Before and after each request, and around every write, until nothing remains to be done."""
    deployment.serve()
    lives = 0
    for name in [
        "governance.outbox:Outbox:put",
        "site.centre_client:CentreClient:request",
        "site.centre_client:CentreClient:upload",
        "governance.outbox:Outbox:store_receipt",
    ]:
        for when in ("before", "after"):
            for nth in (1, 2, 3, 4, 5) if name.endswith(":request") else (1,):
                lives += killed(deployment, f"{name}:{when}:{nth}", "send", "study.toml")
    assert lives >= 6
    deployment.site("send", "study.toml")
    check_sent(deployment)


@pytest.mark.parametrize("phase", ["before", "after"])
def test_killed_at_every_step_of_a_withdrawal(deployment, phase):
    """The site is killed around the recording of every step, and the service around the deletion."""
    deployment.serve()
    deployment.site("send", "study.toml")
    registry_key = (deployment.hospital / "registry.key").read_bytes()
    ann = subject_pseudonym(registry_key, IDS[0])
    with Database(deployment.site_url, metadata) as site_database:
        for number, step in enumerate(STEP_ORDER[:-1]):
            nth = 1 if phase == "after" or number == 0 else 2
            arguments = ("withdraw", "study.toml", IDS[0]) if number == 0 else ("withdraw",)
            point = f"governance.withdrawal:WithdrawalCascade:_record_step:{phase}:{nth}"
            assert killed(deployment, point, *arguments), step
            left = [case.step for case in pending(site_database)]
            following = STEP_ORDER[number + 1]
            assert left == ([step] if phase == "before" else [following][: following != "done"])
        deployment.site("withdraw")
        assert pending(site_database) == []
        steps = Counter(
            entry["detail"]["step"]
            for entry in AuditLog(site_database).entries()
            if entry["action"] == "withdrawal-step"
        )
        assert steps == dict.fromkeys([step.value for step in STEP_ORDER[:-1]], 1)
    check_gone(deployment, ann)


@pytest.mark.parametrize("phase", ["before", "after"])
def test_the_service_is_killed_around_a_deletion(deployment, phase):
    deployment.serve()
    deployment.site("send", "study.toml")
    deployment.stop()
    ann = subject_pseudonym((deployment.hospital / "registry.key").read_bytes(), IDS[0])
    arguments: tuple[str, ...] = ("withdraw", "study.toml", IDS[0])
    for name in ("_delete", "_execute_order", "delete"):
        deployment.serve(f"governance.inbox:Inbox:{name}:{phase}:1")
        done = deployment.site(*arguments, code=1)
        assert "centre-unreachable" in done.stdout
        assert deployment.servers[-1].wait() == -signal.SIGKILL
        deployment.stop(signal.SIGKILL)
        arguments = ("withdraw",)
    deployment.serve()
    deployment.site("withdraw")
    check_gone(deployment, ann)


def check_gone(deployment, ann: str) -> None:
    study = deployment.study.study.id
    controller = deployment.key_sets["controller"].public.sealing_key
    with (
        Database(deployment.centre_url, metadata) as centre_database,
        Database(deployment.site_url, metadata) as site_database,
    ):
        inbox = Inbox(
            deployment.research / "inbox",
            centre_database,
            deployment.key_sets["centre"].public,
            deployment.key_sets["centre"].signing_key,
        )
        (remaining,) = inbox.received(study)
        assert remaining.subject != ann
        assert [path.name for path in inbox.folder.iterdir()] == [remaining.digest]
        assert counted(centre_database, "records-deleted") == 1
        assert [queued.subject for queued in Outbox(deployment.hospital / "outbox", site_database).all()] == [
            remaining.subject
        ]
        for database in (centre_database, site_database):
            assert verify(AuditLog(database).rows()) == []
    with closing(
        Vault(deployment.vault_url, deployment.hospital / "row-keys.db", controller, bytes)
    ) as vault:
        assert vault.count(study) == 1
        assert vault.sweep() == 0
    with closing(sqlite3.connect(deployment.hospital / "row-keys.db")) as keys:
        assert keys.execute("SELECT count(*) FROM vault_row_keys").fetchone() == (1,)
