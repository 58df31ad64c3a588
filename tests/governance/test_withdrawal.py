from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from tests.governance.conftest import (
    DAY,
    DOCUMENT,
    NOW,
    STUDY,
    WHEN,
    pseudonym,
    query_for,
    random_source,
    store_consent,
)

from abaton.canonical_json import canonical_digest
from abaton.deid.mapping_table import MappingRow
from abaton.governance import (
    AuditLog,
    CascadeStep,
    CentreWithdrawal,
    ConsentAction,
    ConsentRegistry,
    DenialReason,
    DeniedError,
    Inbox,
    KeySet,
    Outbox,
    RefusalCode,
    SenderRegistry,
    SenderRole,
    SiteWithdrawal,
    Vault,
    WithdrawalCascade,
    make_consent,
    metadata,
    record_round,
    site_steps,
    snapshot_members,
    take_snapshot,
    verifier,
    verify,
)
from abaton.governance.cohorts import marked_rounds
from abaton.governance.signed_statements import write_order
from abaton.governance.timestamps import parse_timestamp
from abaton.governance.withdrawal import STEP_ORDER
from abaton.store import Database

ANN, ROW, IDENTITY = pseudonym("ann"), "R" * 26, "4711-Chalmers"
SITE = KeySet.new("site-a", random_source("site"), WHEN)
CENTRE = KeySet.new("centre", random_source("centre"), WHEN)
CONTROLLER = KeySet.new("controller", random_source("controller"), WHEN)


class World:
    """A site and a centre, each with its own databases."""

    def __init__(self, folder: Path, site_url: str, centre_url: str, vault_url: str) -> None:
        self.folder = folder
        self.database, self.centre_database = Database(site_url, metadata), Database(centre_url, metadata)
        self.registry, self.outbox = ConsentRegistry(self.database), Outbox(folder / "outbox", self.database)
        self.vault = Vault(vault_url, folder / "row-keys.db", CONTROLLER.public.sealing_key, os.urandom)
        self.inbox = Inbox(folder / "inbox", self.centre_database, CENTRE.public, CENTRE.signing_key)
        self.reachable = True
        centre = CentreWithdrawal(
            SITE.signing_key, lambda order: self.send(order), verifier([CENTRE.public.signing_key])
        )
        site = SiteWithdrawal(self.registry, self.outbox, self.vault, lambda: centre)
        self.actions = dict(site_steps(site))
        self.cascade = WithdrawalCascade(self.database, self.actions)

    def send(self, order):
        return self.inbox.delete(order, NOW + DAY) if self.reachable else None

    def fill(self) -> None:
        SenderRegistry(self.centre_database).register(SITE.public, SenderRole.SITE, NOW)
        for registry in (self.registry, ConsentRegistry(self.centre_database)):
            registry.publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
            for name in ("ann", "bob"):
                registry.enrol({pseudonym(name): None}, STUDY, DOCUMENT, NOW)
        self.vault.add_many(
            [
                MappingRow(STUDY, ROW, "PSEUDO-ANN", IDENTITY),
                MappingRow(STUDY, "B" * 26, "PSEUDO-BOB", "0815"),
            ]
        )
        for name in ("ann", "ann", "bob"):
            queued = self.put(name)
            self.inbox.append_chunk(queued.digest, 0, self.outbox.path(queued).read_bytes())
            self.inbox.accept(queued.digest, NOW)
        record_round(
            self.database, "run", 1, take_snapshot(self.registry, STUDY, ConsentAction.TRAIN, NOW), NOW
        )

    def put(self, name: str):
        return self.outbox.put(
            query_for(name), [b"x" * 500], SITE.signing_key, CENTRE.public.sealing_key, NOW, os.urandom
        )

    def close(self) -> None:
        for part in (self.database, self.centre_database, self.vault):
            part.close()


@pytest.fixture
def addresses(tmp_path, database_url, request):
    if database_url.startswith("sqlite"):
        return [f"sqlite:///{tmp_path / name}" for name in ("site.db", "centre.db", "vault.db")]
    return [database_url, *(request.getfixturevalue("new_database")() for _ in range(2))]


@pytest.fixture
def world(tmp_path, addresses):
    opened = World(tmp_path, *addresses)
    opened.fill()
    yield opened
    opened.close()


def bytes_on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def check_gone(world: World) -> None:
    """Check that nothing of Ann remains, everything of Bob does, and each step is audited once."""
    assert world.cascade.pending() == []
    assert [queued.subject for queued in world.outbox.all()] == [pseudonym("bob")]
    assert [received.subject for received in world.inbox.received(STUDY)] == [pseudonym("bob")]
    assert len(list((world.folder / "inbox").iterdir())) == 1
    assert world.vault.row(STUDY, ROW) is None
    assert world.vault.open(world.vault.row(STUDY, "B" * 26), CONTROLLER) == "0815"
    assert marked_rounds(world.database, STUDY, ANN) == [("run", 1)]
    steps = Counter(
        entry["detail"]["step"]
        for entry in AuditLog(world.database).entries()
        if entry["action"] == "withdrawal-step"
    )
    assert steps == dict.fromkeys([step.value for step in STEP_ORDER[:-1]], 1)
    centre_actions = [entry["action"] for entry in AuditLog(world.centre_database).entries()]
    assert centre_actions.count("records-deleted") == 1
    for database in (world.database, world.centre_database):
        assert verify(AuditLog(database).rows()) == []


def test_the_whole_cascade(world, tmp_path):
    row = world.vault.row(STUDY, ROW)
    envelopes = [
        world.inbox.path(r.digest).read_bytes() for r in world.inbox.received(STUDY) if r.subject == ANN
    ]
    case = world.cascade.advance(world.cascade.open(STUDY, ANN, ROW, NOW + DAY), NOW + DAY)
    assert case.step is CascadeStep.DONE
    assert case.evidence["rounds"] == [["run", 1]]
    assert case.evidence["receipt"]["body"]["records"] == 2
    assert case.vault_row == ""
    check_gone(world)
    snapshot = take_snapshot(world.registry, STUDY, ConsentAction.TRAIN, NOW + DAY)
    assert snapshot_members(world.database, snapshot.id) == [pseudonym("bob")]
    remaining = bytes_on_disk(tmp_path)
    for deleted in (IDENTITY.encode(), b"PSEUDO-ANN", ROW.encode(), row.sealed, row.key.encode(), *envelopes):
        assert deleted not in remaining


def test_a_pending_case_is_listed_with_its_time(world):
    world.reachable = False
    case = world.cascade.advance(world.cascade.open(STUDY, ANN, ROW, NOW + DAY), NOW + DAY)
    assert (case.step, case.pending_on, case.opened_at) == (
        CascadeStep.OBTAIN_RECEIPT,
        "centre-unreachable",
        "2026-03-02T12:00:00.000Z",
    )
    assert world.cascade.pending() == world.cascade.advance_all(NOW + 2 * DAY)
    assert world.cascade.open(STUDY, ANN, ROW, NOW + 2 * DAY).opened_at == case.opened_at
    with pytest.raises(DeniedError):
        world.put("ann")
    world.reachable = True
    assert world.cascade.advance_all(NOW + 3 * DAY) == []
    check_gone(world)


def test_a_forged_receipt_stops_the_cascade_visibly(world):
    from abaton.governance.signed_statements import DeletionOrder, write_deletion_receipt

    order, ordered = (
        DeletionOrder(STUDY, ANN, WHEN),
        canonical_digest(write_order(SITE.signing_key, STUDY, ANN, NOW + DAY)),
    )
    forged = [
        write_deletion_receipt(SITE.signing_key, order, ordered, "site-a", 2, NOW),
        write_deletion_receipt(
            CENTRE.signing_key, DeletionOrder("other", ANN, WHEN), ordered, "site-a", 2, NOW
        ),
        write_deletion_receipt(
            CENTRE.signing_key, order, "00" * 32, "site-a", 2, NOW
        ),  # for another order of the same subject
        {},
    ]
    for answer in forged:
        world.send = lambda order, answer=answer: answer
        cascade = world.cascade
        with pytest.raises(DeniedError):
            cascade.advance(cascade.open(STUDY, ANN, ROW, NOW + DAY), NOW + DAY)
        (case,) = cascade.pending()
        assert case.step is CascadeStep.OBTAIN_RECEIPT
        assert case.pending_on in set(RefusalCode)
        assert cascade.advance_all(NOW + DAY) == [case]
    assert (
        world.vault.open(world.vault.row(STUDY, ROW), CONTROLLER) == IDENTITY
    )  # nothing was destroyed too early


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("victim", STEP_ORDER[:-1])
def test_a_crash_before_or_after_any_action_is_recovered(world, victim, after):
    def dying(case, when):
        if after:
            world.actions[victim](case, when)
        raise Killed

    broken = WithdrawalCascade(world.database, {**world.actions, victim: dying})
    with pytest.raises(Killed):
        broken.advance(broken.open(STUDY, ANN, ROW, NOW + DAY), NOW + DAY)
    assert world.cascade.pending()[0].step is victim
    assert world.cascade.advance_all(NOW + DAY) == []
    check_gone(world)


def test_a_new_consent_can_be_withdrawn_again(world):
    first = world.cascade.advance(world.cascade.open(STUDY, ANN, ROW, NOW + DAY), NOW + DAY)
    assert world.cascade.case(STUDY, ANN) == first
    for registry in (world.registry, world.inbox.registry):
        registry.enrol({ANN: None}, STUDY, DOCUMENT, NOW + 2 * DAY)
    second = world.cascade.advance(world.cascade.open(STUDY, ANN, ROW, NOW + 3 * DAY), NOW + 3 * DAY)
    assert second.opened_at > first.opened_at
    with pytest.raises(DeniedError):
        world.cascade.case(STUDY, pseudonym("bob"))
    for study, subject, row in (("a b", ANN, ROW), (STUDY, "Peter", ROW), (STUDY, ANN, "x")):
        with pytest.raises(DeniedError):
            world.cascade.open(study, subject, row, NOW)


def test_every_withdrawal_after_a_new_consent_is_executed_at_the_centre(world):
    """Consent, withdrawal, consent, withdrawal without a transfer in between: each withdrawal gets its own receipt."""
    receipts = []
    for turn in range(3):
        when = NOW + (2 * turn + 1) * DAY
        case = world.cascade.advance(world.cascade.open(STUDY, ANN, ROW, when), when)
        assert case.step is CascadeStep.DONE
        assert world.inbox.registry.decision(query_for(), when) is DenialReason.WITHDRAWN
        receipts.append(case.evidence["receipt"]["body"]["order"])
        assert receipts[-1] == canonical_digest(case.evidence["order"])
        for registry in (world.registry, world.inbox.registry):
            registry.enrol({ANN: None}, STUDY, DOCUMENT, when + DAY)
        assert world.inbox.registry.decision(query_for(), when + DAY).permits
    assert len(set(receipts)) == 3


@pytest.mark.parametrize("skew", [-timedelta(hours=20), timedelta(hours=20)], ids=["behind", "ahead"])
def test_a_wrong_site_clock_does_not_prevent_a_withdrawal(world, skew):
    """The site dates its orders and consents by one clock; the centre has another."""
    here, there = NOW + DAY + skew, NOW + DAY
    consent = make_consent(query_for(), here - timedelta(hours=1), None)
    store_consent(
        world.inbox.registry, query_for(), consent, there
    )  # stored by the centre with its own clock
    case = world.cascade.open(STUDY, ANN, ROW, here)
    assert world.cascade.advance(case, here).step is CascadeStep.DONE
    assert world.inbox.registry.decision(query_for(), there) is DenialReason.WITHDRAWN
    old = case_order(world)
    for registry in (world.registry, world.inbox.registry):
        registry.enrol({ANN: None}, STUDY, DOCUMENT, here + timedelta(hours=1))
    world.inbox.delete(old, there)  # the executed order, repeated
    assert world.inbox.registry.decision(query_for(), here + timedelta(hours=1)).permits


def test_a_withdrawal_after_a_new_consent_during_a_pending_withdrawal_is_executed(world):
    """Consent, withdrawal while the centre is unreachable, consent, withdrawal: both are executed."""
    world.reachable = False
    first = world.cascade.advance(world.cascade.open(STUDY, ANN, ROW, NOW + DAY), NOW + DAY)
    assert first.step is CascadeStep.OBTAIN_RECEIPT
    for registry in (world.registry, world.inbox.registry):
        registry.enrol({ANN: None}, STUDY, DOCUMENT, NOW + 2 * DAY)
    assert world.registry.decision(query_for(), NOW + 3 * DAY).permits
    world.reachable = True
    case = world.cascade.advance(world.cascade.open(STUDY, ANN, ROW, NOW + 3 * DAY), NOW + 3 * DAY)
    assert (case.step, case.opened_at > first.opened_at) == (CascadeStep.DONE, True)
    for registry in (world.registry, world.inbox.registry):
        assert registry.decision(query_for(), NOW + 3 * DAY) is DenialReason.WITHDRAWN
    assert [received.subject for received in world.inbox.received(STUDY)] == [pseudonym("bob")]


@pytest.mark.parametrize("back", [timedelta(minutes=1), timedelta(hours=23)])
def test_a_clock_that_was_set_back_prevents_neither_withdrawal_nor_consent(world, back):
    """By the site's clock each withdrawal precedes its consent, and each consent the last withdrawal."""
    for turn in range(1, 4):
        when = NOW + DAY - turn * back
        for name in (ANN,):
            consent = world.registry.consent(name, STUDY)
            store_consent(
                world.inbox.registry, query_for(), consent, NOW + DAY
            )  # the centre has the site's consent
        case = world.cascade.advance(world.cascade.open(STUDY, ANN, ROW, when), when)
        assert case.step is CascadeStep.DONE
        assert world.inbox.registry.decision(query_for(), NOW + DAY) is DenialReason.WITHDRAWN
        world.registry.enrol({ANN: None}, STUDY, DOCUMENT, when - timedelta(seconds=1))
        new_consent = world.registry.consent(ANN, STUDY)
        assert new_consent["dateTime"] > case.opened_at  # required by receive_consent at the centre
        if turn == 1:
            old = write_order(
                SITE.signing_key, STUDY, ANN, parse_timestamp(case.opened_at) - timedelta(hours=1)
            )
            store_consent(world.inbox.registry, query_for(), new_consent, NOW + DAY)
            with pytest.raises(DeniedError, match="consented again"):  # a replayed order
                world.inbox.delete(old, NOW + DAY)


def test_an_open_upload_is_deleted_too(world):
    """A half-finished upload of a crashed site is not listed yet and must not stay for a week."""
    from abaton.governance.intake.intake_service import SenderQuota, Uploads

    uploads, parts = Uploads(world.inbox, SenderQuota()), {}
    for name in ("ann", "bob"):
        queued = world.put(name)
        uploads.announce(queued.digest, queued.size, "site-a", NOW)
        parts[name] = world.outbox.path(queued).read_bytes()[:-10]
        uploads.add(queued.digest, 0, parts[name], "site-a")
    world.cascade.advance(world.cascade.open(STUDY, ANN, ROW, NOW + DAY), NOW + DAY)
    left = bytes_on_disk(world.folder)
    assert parts["ann"][-100:] not in left
    assert parts["bob"][-100:] in left
    assert uploads.usage("site-a").pending == 1


def test_a_withdrawal_without_transfers_needs_no_centre(tmp_path, addresses):
    with Database(addresses[0], metadata) as database:
        registry = ConsentRegistry(database)
        registry.publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
        cascade = WithdrawalCascade(database, site_steps(SiteWithdrawal(registry)))
        for turn in range(2):
            when = NOW + 2 * turn * DAY
            registry.enrol({ANN: None}, STUDY, DOCUMENT, when)
            case = cascade.advance(cascade.open(STUDY, ANN, "", when + DAY, sent=False), when + DAY)
            assert case.step is CascadeStep.DONE
            assert registry.decision(query_for(), when + DAY) is DenialReason.WITHDRAWN
        registry.enrol({ANN: None}, STUDY, DOCUMENT, NOW + 9 * DAY)
        waiting = cascade.advance(cascade.open(STUDY, ANN, "", NOW + 9 * DAY, sent=True), NOW + 9 * DAY)
        assert (waiting.step, waiting.pending_on) == (CascadeStep.SIGN_ORDER, "centre-not-configured")


def case_order(world):
    return world.cascade.case(STUDY, ANN).evidence["order"]


VICTIM = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.governance.test_withdrawal import *
folder, addresses, step, when = Path(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4], sys.argv[5]
world = World(folder, *addresses)
def deadly(step, action):
    def act(case, now):
        if step == sys.argv[4] and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        evidence = action(case, now)
        if step == sys.argv[4] and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return evidence
    return act
cascade = WithdrawalCascade(world.database, {step: deadly(step, action) for step, action in world.actions.items()})
cascade.advance(cascade.open(STUDY, ANN, ROW, NOW + DAY), NOW + DAY)
"""


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["before", "after"])
def test_killed_at_every_step_it_completes_once(tmp_path, addresses, phase):
    """One site, killed at every step in turn, completes each step once."""
    world = World(tmp_path, *addresses)
    world.fill()
    root = str(Path(__file__).resolve().parents[2])
    for step in STEP_ORDER[:-1]:
        done = subprocess.run(
            [sys.executable, "-c", VICTIM, root, str(tmp_path), json.dumps(addresses), step.value, phase],
            check=False, capture_output=True,
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert world.cascade.pending()[0].step is step
    assert world.cascade.advance_all(NOW + DAY) == []
    check_gone(world)
    world.close()
