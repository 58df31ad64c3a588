from __future__ import annotations

import os

import sqlalchemy as sql
from tests.governance.conftest import DAY, NOW, STUDY, WHEN, query_for
from tests.governance.test_withdrawal import World, addresses, bytes_on_disk, world

from abaton.governance import (
    AuditLog,
    ConsentQuery,
    DenialReason,
    RetentionTargets,
    due_items,
    enforce,
    schema,
    verify,
)
from abaton.governance.cohorts import take_snapshot
from abaton.governance.consent import ConsentAction
from abaton.governance.retention import RetentionDue

__all__ = ["addresses", "world"]


def publish_terms(world: World) -> None:
    for registry in (world.registry, world.inbox.registry):
        registry.publish(STUDY, "ef" * 32, NOW, ends=NOW + 10 * DAY, keep_until=NOW + 20 * DAY)


def test_a_study_is_closed_then_deleted_and_reported(world, tmp_path):
    publish_terms(world)
    take_snapshot(world.registry, STUDY, ConsentAction.COLLECT, NOW)
    site_targets = RetentionTargets(world.database, outbox=world.outbox, vault=world.vault)
    centre_targets = RetentionTargets(world.centre_database, folder=world.inbox.folder)
    assert due_items(site_targets, NOW + DAY) == due_items(centre_targets, NOW + DAY) == []
    assert enforce(site_targets, NOW + 11 * DAY) == [RetentionDue("study-to-close", STUDY, 1)]
    assert enforce(site_targets, NOW + 12 * DAY) == []
    assert world.registry.decision(query_for(), NOW + 5 * DAY) is DenialReason.STUDY_CLOSED

    listed = due_items(site_targets, NOW + 21 * DAY)
    assert {(item.item, item.count) for item in listed} == {
        ("queued-envelopes", 3), ("consents", 2), ("subjects", 2), ("cohorts", 2), ("rounds", 1),
        ("vault-rows", 2), ("general-opt-ins", 2),
    }  # fmt: skip
    assert due_items(site_targets, NOW + 21 * DAY) == listed  # listing changes nothing
    assert enforce(site_targets, NOW + 21 * DAY) == listed
    assert enforce(site_targets, NOW + 21 * DAY) == []
    assert RetentionDue("received-envelopes", STUDY, 3) in enforce(centre_targets, NOW + 21 * DAY)
    assert list((tmp_path / "inbox").iterdir()) == list((tmp_path / "outbox").iterdir()) == []
    assert b"PSEUDO-ANN" not in bytes_on_disk(tmp_path)
    assert world.vault.count(STUDY) == 0
    for database in (world.database, world.centre_database):
        assert verify(AuditLog(database).rows()) == []
        assert [entry["action"] for entry in AuditLog(database).entries()].count("study-expired") == 1
    assert WHEN < "2027"


def test_abandoned_uploads_are_deleted(world):
    targets = RetentionTargets(world.centre_database, folder=world.inbox.folder)
    digest = "ab" * 32
    world.inbox.append_chunk(digest, 0, b"half")
    os.utime(world.inbox.folder / f"{digest}.part", (0, 0))
    assert due_items(targets, NOW) == [RetentionDue("stale-uploads", "", 1)]
    assert enforce(targets, NOW) == [RetentionDue("stale-uploads", "", 1)]
    assert world.inbox.received_bytes(digest) == 0
    assert len(world.inbox.received(STUDY)) == 3


def test_the_general_opt_in_is_deleted_with_the_last_study_and_a_refusal_stays(world):
    registry, other = world.registry, "other-study"
    publish_terms(world)
    ann, _ = registry.subjects(STUDY)
    registry.publish(other, "ab" * 32, NOW, ends=NOW + 30 * DAY, keep_until=NOW + 40 * DAY)
    registry.enrol({ann: None}, other, "ab" * 32, NOW)
    targets = RetentionTargets(world.database, outbox=world.outbox, vault=world.vault)
    assert RetentionDue("general-opt-ins", STUDY, 1) in enforce(targets, NOW + 21 * DAY)
    assert registry.decision(ConsentQuery(ann, other, "ab" * 32), NOW + 22 * DAY) is DenialReason.IN_FORCE
    registry.withdraw(ann, "", NOW + 23 * DAY)
    assert "general-opt-ins" not in {item.item for item in enforce(targets, NOW + 41 * DAY)}
    remaining = world.database.read(lambda c: {row.subject for row in c.execute(sql.select(schema.consents))})
    assert remaining == {ann}
