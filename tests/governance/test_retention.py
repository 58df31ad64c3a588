from __future__ import annotations

import os

import sqlalchemy as sql
from tests.governance.conftest import DAY, NOW, STUDY, WHEN, asking
from tests.governance.test_withdrawal import World, addresses, bytes_on_disk, world

from abaton.governance import Ask, Audit, Holdings, Reason, due, enforce, schema, verify
from abaton.governance.cohorts import take_snapshot
from abaton.governance.consent import Action
from abaton.governance.retention import Due

__all__ = ["addresses", "world"]


def publish_terms(world: World) -> None:
    for registry in (world.registry, world.inbox.registry):
        registry.publish(STUDY, "ef" * 32, NOW, ends=NOW + 10 * DAY, keep_until=NOW + 20 * DAY)


def test_a_study_ends_then_goes_and_the_report_says_so(world, tmp_path):
    publish_terms(world)
    take_snapshot(world.registry, STUDY, Action.COLLECT, NOW)
    near = Holdings(world.database, outbox=world.outbox, vault=world.vault)
    far = Holdings(world.far, folder=world.inbox.folder)
    assert due(near, NOW + DAY) == due(far, NOW + DAY) == []
    assert enforce(near, NOW + 11 * DAY) == [Due("study-to-close", STUDY, 1)]
    assert enforce(near, NOW + 12 * DAY) == []
    assert world.registry.reason(asking(), NOW + 5 * DAY) is Reason.STUDY_CLOSED

    listed = due(near, NOW + 21 * DAY)
    assert {(item.what, item.count) for item in listed} == {
        ("queued-envelopes", 3), ("consents", 2), ("subjects", 2), ("cohorts", 2), ("rounds", 1),
        ("vault-rows", 2), ("general-opt-ins", 2),
    }  # fmt: skip
    assert due(near, NOW + 21 * DAY) == listed  # looking changes nothing
    assert enforce(near, NOW + 21 * DAY) == listed
    assert enforce(near, NOW + 21 * DAY) == []
    assert Due("received-envelopes", STUDY, 3) in enforce(far, NOW + 21 * DAY)
    assert list((tmp_path / "inbox").iterdir()) == list((tmp_path / "outbox").iterdir()) == []
    assert b"PSEUDO-ANN" not in bytes_on_disk(tmp_path)
    assert world.vault.count(STUDY) == 0
    for database in (world.database, world.far):
        assert verify(Audit(database).rows()) == []
        assert [entry["action"] for entry in Audit(database).entries()].count("study-expired") == 1
    assert WHEN < "2027"


def test_uploads_that_nobody_completed_are_swept(world):
    holdings = Holdings(world.far, folder=world.inbox.folder)
    digest = "ab" * 32
    world.inbox.add_part(digest, 0, b"half")
    os.utime(world.inbox.folder / f"{digest}.part", (0, 0))
    assert due(holdings, NOW) == [Due("stale-uploads", "", 1)]
    assert enforce(holdings, NOW) == [Due("stale-uploads", "", 1)]
    assert world.inbox.uploaded(digest) == 0
    assert len(world.inbox.received(STUDY)) == 3


def test_a_persons_wish_to_be_told_goes_with_their_last_study_and_a_no_stays(world):
    registry, other = world.registry, "other-study"
    publish_terms(world)
    ann, _ = registry.subjects(STUDY)
    registry.publish(other, "ab" * 32, NOW, ends=NOW + 30 * DAY, keep_until=NOW + 40 * DAY)
    registry.enrol({ann: None}, other, "ab" * 32, NOW)
    holdings = Holdings(world.database, outbox=world.outbox, vault=world.vault)
    assert Due("general-opt-ins", STUDY, 1) in enforce(holdings, NOW + 21 * DAY)
    assert registry.reason(Ask(ann, other, "ab" * 32), NOW + 22 * DAY) is Reason.IN_FORCE
    registry.withdraw(ann, "", NOW + 23 * DAY)
    assert "general-opt-ins" not in {item.what for item in enforce(holdings, NOW + 41 * DAY)}
    held = world.database.read(lambda c: {row.subject for row in c.execute(sql.select(schema.consents))})
    assert held == {ann}
