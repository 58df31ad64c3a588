"""Killed (-9) at every step, the service or the site: after a restart it is done, once, with nothing lost."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections import Counter
from contextlib import closing

import pytest
import sqlalchemy as sql
from tests.governance.service.hospital import IDS, Place

from abaton.governance import Audit, Inbox, Outbox, Vault, metadata, schema, verify
from abaton.governance.withdrawal import ORDER_OF_STEPS, pending
from abaton.site import subject_tag
from abaton.store import Database

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture
def place(tmp_path, database_url, request):
    if database_url.startswith("sqlite"):
        urls = [f"sqlite:///{tmp_path / name}" for name in ("site.db", "centre.db", "vault.db")]
    else:
        urls = [database_url, *(request.getfixturevalue("new_database")() for _ in range(2))]
    made = Place(tmp_path, urls)
    made.build(people=2)
    made.run("study", "publish", "study.toml", "--database", made.centre_url, where="research")
    made.write_site("http://127.0.0.1:9")
    for who in IDS[:2]:
        made.site("enrol", "study.toml", who)
    yield made
    made.close()


def killed(place, point: str, *words: str) -> bool:
    """Run a command of the site that kills itself at some point; whether it got there."""
    done = place.site(*words, code=None, point=point)
    assert done.wait() in (0, -signal.SIGKILL), done.stderr
    return done.wait() == -signal.SIGKILL


def counted(database, action: str) -> int:
    return sum(entry["action"] == action for entry in Audit(database).entries())


def check_sent(place, people: int = 2) -> None:
    """One envelope for each person, once, whole and readable; nothing is left over."""
    study = place.study.study.id
    with Database(place.centre_url, metadata) as far, Database(place.site_url, metadata) as near:
        inbox = Inbox(
            place.research / "inbox", far, place.rings["centre"].public, place.rings["centre"].signing
        )
        received = inbox.received(study)
        assert len(received) == len({one.subject for one in received}) == people
        for one in received:
            lines = b"".join(inbox.content(one, place.rings["centre"])).splitlines()
            assert Counter(json.loads(line)["resourceType"] for line in lines)["Observation"] == 60
        assert sorted(path.name for path in inbox.folder.iterdir()) == sorted(one.digest for one in received)
        outbox = Outbox(place.hospital / "outbox", near)
        assert outbox.waiting() == []
        assert {queued.digest for queued in outbox.all()} == {one.digest for one in received}
        outbox.sweep()
        assert list(outbox.folder.iterdir()) == []
        assert counted(far, "envelope-received") == people
        assert counted(near, "receipt-kept") == people
        assert counted(far, "subject-enrolled") == people
        assert (
            far.read(
                lambda connection: connection.scalar(sql.select(sql.func.count(schema.uploads.c.digest)))
            )
            == 0
        )
        for database in (far, near):
            assert verify(Audit(database).rows()) == []


SERVER_POINTS = [
    f"governance.{module}:{owner}:{name}:{moment}:1"
    for module, owner, name in [
        ("service.centre", "Centre", "caller"),
        ("service.centre", "Uploads", "announce"),
        ("inbox", "Inbox", "add_part"),
        ("service.centre", "Uploads", "finish"),
        ("inbox", "Inbox", "_take"),
        ("inbox", "Inbox", "path"),
        ("service.centre", "Uploads", "_forget"),
    ]
    for moment in ("before", "after")
]


def test_the_service_is_killed_at_every_step_of_an_upload(place):
    for point in [*SERVER_POINTS[:6], *SERVER_POINTS[4:6] * 2, *SERVER_POINTS[6:]]:
        place.serve(point)
        place.site("send", "study.toml", code=None)
        assert place.servers[-1].poll() == -signal.SIGKILL, point  # by its own hand
        place.stop(signal.SIGKILL)
    place.serve()
    place.site("send", "study.toml")
    check_sent(place)


def test_the_site_is_killed_at_every_step_of_an_upload(place):
    """Before and after each request, and around everything that it writes down, until it has nothing left to do."""
    place.serve()
    lives = 0
    for name in [
        "governance.outbox:Outbox:put",
        "site.centre:CentreClient:ask",
        "site.centre:CentreClient:upload",
        "governance.outbox:Outbox:settle",
    ]:
        for moment in ("before", "after"):
            for nth in (1, 2, 3, 4, 5) if name.endswith(":ask") else (1,):
                lives += killed(place, f"{name}:{moment}:{nth}", "send", "study.toml")
    assert lives >= 6
    place.site("send", "study.toml")
    check_sent(place)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_every_step_of_a_withdrawal(place, moment):
    """The site dies around the writing of every step, and the service around the deletion."""
    place.serve()
    place.site("send", "study.toml")
    tags = (place.hospital / "tags.key").read_bytes()
    ann = subject_tag(tags, IDS[0])
    with Database(place.site_url, metadata) as near:
        for number, step in enumerate(ORDER_OF_STEPS[:-1]):
            nth = 1 if moment == "after" or number == 0 else 2
            words = ("withdraw", "study.toml", IDS[0]) if number == 0 else ("withdraw",)
            point = f"governance.withdrawal:Cascade:_done:{moment}:{nth}"
            assert killed(place, point, *words), step
            left = [case.step for case in pending(near)]
            following = ORDER_OF_STEPS[number + 1]
            assert left == ([step] if moment == "before" else [following][: following != "done"])
        place.site("withdraw")
        assert pending(near) == []
        steps = Counter(
            entry["detail"]["step"] for entry in Audit(near).entries() if entry["action"] == "withdrawal-step"
        )
        assert steps == dict.fromkeys([step.value for step in ORDER_OF_STEPS[:-1]], 1)
    check_gone(place, ann)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_service_is_killed_around_a_deletion(place, moment):
    place.serve()
    place.site("send", "study.toml")
    place.stop()
    ann = subject_tag((place.hospital / "tags.key").read_bytes(), IDS[0])
    words: tuple[str, ...] = ("withdraw", "study.toml", IDS[0])
    for name in ("_delete", "_carry_out", "delete"):
        place.serve(f"governance.inbox:Inbox:{name}:{moment}:1")
        done = place.site(*words, code=1)
        assert "the-centre" in done.stdout
        assert place.servers[-1].wait() == -signal.SIGKILL
        place.stop(signal.SIGKILL)
        words = ("withdraw",)
    place.serve()
    place.site("withdraw")
    check_gone(place, ann)


def check_gone(place, ann: str) -> None:
    study = place.study.study.id
    controller = place.rings["controller"].public.sealing
    with Database(place.centre_url, metadata) as far, Database(place.site_url, metadata) as near:
        inbox = Inbox(
            place.research / "inbox", far, place.rings["centre"].public, place.rings["centre"].signing
        )
        (kept,) = inbox.received(study)
        assert kept.subject != ann
        assert [path.name for path in inbox.folder.iterdir()] == [kept.digest]
        assert counted(far, "records-deleted") == 1
        assert [queued.subject for queued in Outbox(place.hospital / "outbox", near).all()] == [kept.subject]
        for database in (far, near):
            assert verify(Audit(database).rows()) == []
    with closing(Vault(place.vault_url, place.hospital / "row-keys.db", controller, bytes)) as vault:
        assert vault.count(study) == 1
        assert vault.sweep() == 0
    with closing(sqlite3.connect(place.hospital / "row-keys.db")) as keys:
        assert keys.execute("SELECT count(*) FROM vault_row_keys").fetchone() == (1,)
