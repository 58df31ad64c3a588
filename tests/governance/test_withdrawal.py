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
from tests.governance.conftest import DAY, DOCUMENT, NOW, STUDY, WHEN, asking, drawing, person, say

from abaton.canonical_json import digest
from abaton.deid.mapping_table import MappingRow
from abaton.governance import (
    Action,
    Audit,
    Cascade,
    CascadeStep,
    Denied,
    Inbox,
    LeavingSite,
    Outbox,
    Reason,
    RefusalCode,
    Registry,
    Ring,
    SenderRole,
    Senders,
    ToCentre,
    Vault,
    make_consent,
    members_of,
    metadata,
    note_round,
    site_actions,
    take_snapshot,
    verifier,
    verify,
)
from abaton.governance.cohorts import marked_rounds
from abaton.governance.identifiers import moment
from abaton.governance.signed_statements import write_order
from abaton.governance.withdrawal import ORDER_OF_STEPS
from abaton.store import Database

ANN, ROW, IDENTITY = person("ann"), "R" * 26, "4711-Chalmers"
SITE = Ring.new("site-a", drawing("site"), WHEN)
CENTRE = Ring.new("centre", drawing("centre"), WHEN)
CONTROLLER = Ring.new("controller", drawing("controller"), WHEN)


class World:
    """A site and a centre, each with its own databases."""

    def __init__(self, folder: Path, site_url: str, centre_url: str, vault_url: str) -> None:
        self.folder = folder
        self.database, self.far = Database(site_url, metadata), Database(centre_url, metadata)
        self.registry, self.outbox = Registry(self.database), Outbox(folder / "outbox", self.database)
        self.vault = Vault(vault_url, folder / "row-keys.db", CONTROLLER.public.sealing, os.urandom)
        self.inbox = Inbox(folder / "inbox", self.far, CENTRE.public, CENTRE.signing)
        self.reachable = True
        centre = ToCentre(SITE.signing, lambda order: self.send(order), verifier([CENTRE.public.signing]))
        site = LeavingSite(self.registry, self.outbox, self.vault, lambda: centre)
        self.actions = dict(site_actions(site))
        self.cascade = Cascade(self.database, self.actions)

    def send(self, order):
        return self.inbox.delete(order, NOW + DAY) if self.reachable else None

    def fill(self) -> None:
        Senders(self.far).enter(SITE.public, SenderRole.SITE, NOW)
        for registry in (self.registry, Registry(self.far)):
            registry.publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
            for name in ("ann", "bob"):
                registry.enrol({person(name): None}, STUDY, DOCUMENT, NOW)
        self.vault.add_many(
            [
                MappingRow(STUDY, ROW, "PSEUDO-ANN", IDENTITY),
                MappingRow(STUDY, "B" * 26, "PSEUDO-BOB", "0815"),
            ]
        )
        for name in ("ann", "ann", "bob"):
            queued = self.put(name)
            self.inbox.add_part(queued.digest, 0, self.outbox.path(queued).read_bytes())
            self.inbox.accept(queued.digest, NOW)
        note_round(self.database, "run", 1, take_snapshot(self.registry, STUDY, Action.TRAIN, NOW), NOW)

    def put(self, name: str):
        return self.outbox.put(
            asking(name), [b"x" * 500], SITE.signing, CENTRE.public.sealing, NOW, os.urandom
        )

    def close(self) -> None:
        for part in (self.database, self.far, self.vault):
            part.close()


@pytest.fixture
def addresses(tmp_path, database_url, request):
    if database_url.startswith("sqlite"):
        return [f"sqlite:///{tmp_path / name}" for name in ("site.db", "centre.db", "vault.db")]
    return [database_url, *(request.getfixturevalue("new_database")() for _ in range(2))]


@pytest.fixture
def world(tmp_path, addresses):
    made = World(tmp_path, *addresses)
    made.fill()
    yield made
    made.close()


def bytes_on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def check_gone(world: World) -> None:
    """Nothing of Ann is left, everything of Bob is there, and the chains tell each step once."""
    assert world.cascade.pending() == []
    assert [queued.subject for queued in world.outbox.all()] == [person("bob")]
    assert [received.subject for received in world.inbox.received(STUDY)] == [person("bob")]
    assert len(list((world.folder / "inbox").iterdir())) == 1
    assert world.vault.row(STUDY, ROW) is None
    assert world.vault.open(world.vault.row(STUDY, "B" * 26), CONTROLLER) == "0815"
    assert marked_rounds(world.database, STUDY, ANN) == [("run", 1)]
    steps = Counter(
        entry["detail"]["step"]
        for entry in Audit(world.database).entries()
        if entry["action"] == "withdrawal-step"
    )
    assert steps == dict.fromkeys([step.value for step in ORDER_OF_STEPS[:-1]], 1)
    far = [entry["action"] for entry in Audit(world.far).entries()]
    assert far.count("records-deleted") == 1
    for database in (world.database, world.far):
        assert verify(Audit(database).rows()) == []


def test_the_whole_cascade(world, tmp_path):
    row = world.vault.row(STUDY, ROW)
    envelopes = [
        world.inbox.path(r.digest).read_bytes() for r in world.inbox.received(STUDY) if r.subject == ANN
    ]
    case = world.cascade.advance(world.cascade.begin(STUDY, ANN, ROW, NOW + DAY), NOW + DAY)
    assert case.step is CascadeStep.DONE
    assert case.evidence["rounds"] == [["run", 1]]
    assert case.evidence["receipt"]["body"]["records"] == 2
    assert case.row == ""
    check_gone(world)
    snapshot = take_snapshot(world.registry, STUDY, Action.TRAIN, NOW + DAY)
    assert members_of(world.database, snapshot.id) == [person("bob")]
    left = bytes_on_disk(tmp_path)
    for gone in (IDENTITY.encode(), b"PSEUDO-ANN", ROW.encode(), row.sealed, row.key.encode(), *envelopes):
        assert gone not in left


def test_what_waits_is_on_a_list_with_since_when(world):
    world.reachable = False
    case = world.cascade.advance(world.cascade.begin(STUDY, ANN, ROW, NOW + DAY), NOW + DAY)
    assert (case.step, case.waits_for, case.since) == (
        CascadeStep.RECEIPT,
        "the-centre",
        "2026-03-02T12:00:00.000Z",
    )
    assert world.cascade.pending() == world.cascade.advance_all(NOW + 2 * DAY)
    assert world.cascade.begin(STUDY, ANN, ROW, NOW + 2 * DAY).since == case.since
    with pytest.raises(Denied):
        world.put("ann")
    world.reachable = True
    assert world.cascade.advance_all(NOW + 3 * DAY) == []
    check_gone(world)


def test_a_receipt_that_is_not_genuine_stops_the_cascade_visibly(world):
    from abaton.governance.signed_statements import Order, write_deleted

    order, ordered = Order(STUDY, ANN, WHEN), digest(write_order(SITE.signing, STUDY, ANN, NOW + DAY))
    forged = [
        write_deleted(SITE.signing, order, ordered, "site-a", 2, NOW),
        write_deleted(CENTRE.signing, Order("other", ANN, WHEN), ordered, "site-a", 2, NOW),
        write_deleted(
            CENTRE.signing, order, "00" * 32, "site-a", 2, NOW
        ),  # for another order of the same person
        {},
    ]
    for answer in forged:
        world.send = lambda order, answer=answer: answer
        cascade = world.cascade
        with pytest.raises(Denied):
            cascade.advance(cascade.begin(STUDY, ANN, ROW, NOW + DAY), NOW + DAY)
        (case,) = cascade.pending()
        assert case.step is CascadeStep.RECEIPT
        assert case.waits_for in set(RefusalCode)
        assert cascade.advance_all(NOW + DAY) == [case]
    assert (
        world.vault.open(world.vault.row(STUDY, ROW), CONTROLLER) == IDENTITY
    )  # nothing was destroyed too early


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("victim", ORDER_OF_STEPS[:-1])
def test_a_crash_before_or_after_any_action_is_made_good(world, victim, after):
    def dying(case, when):
        if after:
            world.actions[victim](case, when)
        raise Killed

    broken = Cascade(world.database, {**world.actions, victim: dying})
    with pytest.raises(Killed):
        broken.advance(broken.begin(STUDY, ANN, ROW, NOW + DAY), NOW + DAY)
    assert world.cascade.pending()[0].step is victim
    assert world.cascade.advance_all(NOW + DAY) == []
    check_gone(world)


def test_an_old_case_is_found_and_a_new_yes_can_be_withdrawn_again(world):
    first = world.cascade.advance(world.cascade.begin(STUDY, ANN, ROW, NOW + DAY), NOW + DAY)
    assert world.cascade.case(STUDY, ANN) == first
    for registry in (world.registry, world.inbox.registry):
        registry.enrol({ANN: None}, STUDY, DOCUMENT, NOW + 2 * DAY)
    second = world.cascade.advance(world.cascade.begin(STUDY, ANN, ROW, NOW + 3 * DAY), NOW + 3 * DAY)
    assert second.since > first.since
    with pytest.raises(Denied):
        world.cascade.case(STUDY, person("bob"))
    for study, subject, row in (("a b", ANN, ROW), (STUDY, "Peter", ROW), (STUDY, ANN, "x")):
        with pytest.raises(Denied):
            world.cascade.begin(study, subject, row, NOW)


def test_every_no_after_a_new_yes_is_carried_out_at_the_centre(world):
    """Yes, no, yes, no, and nothing sent in between: the second no must not get the receipt of the first."""
    receipts = []
    for turn in range(3):
        when = NOW + (2 * turn + 1) * DAY
        case = world.cascade.advance(world.cascade.begin(STUDY, ANN, ROW, when), when)
        assert case.step is CascadeStep.DONE
        assert world.inbox.registry.reason(asking(), when) is Reason.WITHDRAWN
        receipts.append(case.evidence["receipt"]["body"]["order"])
        assert receipts[-1] == digest(case.evidence["order"])
        for registry in (world.registry, world.inbox.registry):
            registry.enrol({ANN: None}, STUDY, DOCUMENT, when + DAY)
        assert world.inbox.registry.reason(asking(), when + DAY).allows
    assert len(set(receipts)) == 3


@pytest.mark.parametrize("skew", [-timedelta(hours=20), timedelta(hours=20)], ids=["behind", "ahead"])
def test_a_clock_that_is_wrong_does_not_keep_anybody_in(world, skew):
    """The site dates its orders, and the consents that it brings, by one clock; the centre has another."""
    here, there = NOW + DAY + skew, NOW + DAY
    consent = make_consent(asking(), here - timedelta(hours=1), None)
    say(world.inbox.registry, asking(), consent, there)  # as the centre wrote it down, by its own clock
    case = world.cascade.begin(STUDY, ANN, ROW, here)
    assert world.cascade.advance(case, here).step is CascadeStep.DONE
    assert world.inbox.registry.reason(asking(), there) is Reason.WITHDRAWN
    old = case_order(world)
    for registry in (world.registry, world.inbox.registry):
        registry.enrol({ANN: None}, STUDY, DOCUMENT, here + timedelta(hours=1))
    world.inbox.delete(old, there)  # the order that was carried out, sent once more
    assert world.inbox.registry.reason(asking(), here + timedelta(hours=1)).allows


def test_a_no_after_a_yes_that_came_while_the_first_no_waited_is_carried_out(world):
    """Yes, no while the centre is away, yes, no: the second no used to find the open case of the first."""
    world.reachable = False
    first = world.cascade.advance(world.cascade.begin(STUDY, ANN, ROW, NOW + DAY), NOW + DAY)
    assert first.step is CascadeStep.RECEIPT
    for registry in (world.registry, world.inbox.registry):
        registry.enrol({ANN: None}, STUDY, DOCUMENT, NOW + 2 * DAY)
    assert world.registry.reason(asking(), NOW + 3 * DAY).allows
    world.reachable = True
    case = world.cascade.advance(world.cascade.begin(STUDY, ANN, ROW, NOW + 3 * DAY), NOW + 3 * DAY)
    assert (case.step, case.since > first.since) == (CascadeStep.DONE, True)
    for registry in (world.registry, world.inbox.registry):
        assert registry.reason(asking(), NOW + 3 * DAY) is Reason.WITHDRAWN
    assert [received.subject for received in world.inbox.received(STUDY)] == [person("bob")]


@pytest.mark.parametrize("back", [timedelta(minutes=1), timedelta(hours=23)])
def test_a_clock_that_was_set_back_keeps_nobody_in_and_nobody_out(world, back):
    """By the site's clock each no comes before the yes that it takes back, and each yes before the last no."""
    for turn in range(1, 4):
        when = NOW + DAY - turn * back
        for name in (ANN,):
            consent = world.registry.consent(name, STUDY)
            say(world.inbox.registry, asking(), consent, NOW + DAY)  # the centre has what the site brought
        case = world.cascade.advance(world.cascade.begin(STUDY, ANN, ROW, when), when)
        assert case.step is CascadeStep.DONE
        assert world.inbox.registry.reason(asking(), NOW + DAY) is Reason.WITHDRAWN
        world.registry.enrol({ANN: None}, STUDY, DOCUMENT, when - timedelta(seconds=1))
        yes = world.registry.consent(ANN, STUDY)
        assert yes["dateTime"] > case.since  # what take_consent asks for at the centre
        if turn == 1:
            old = write_order(SITE.signing, STUDY, ANN, moment(case.since) - timedelta(hours=1))
            say(world.inbox.registry, asking(), yes, NOW + DAY)
            with pytest.raises(Denied, match="said yes again"):  # an order that somebody kept
                world.inbox.delete(old, NOW + DAY)


def test_an_upload_that_is_under_way_is_deleted_too(world):
    """What a site that died has sent half of is not on the list yet, and must not lie there for a week."""
    from abaton.governance.intake.intake_service import Room, Uploads

    uploads, parts = Uploads(world.inbox, Room()), {}
    for name in ("ann", "bob"):
        queued = world.put(name)
        uploads.announce(queued.digest, queued.size, "site-a", NOW)
        parts[name] = world.outbox.path(queued).read_bytes()[:-10]
        uploads.add(queued.digest, 0, parts[name], "site-a")
    world.cascade.advance(world.cascade.begin(STUDY, ANN, ROW, NOW + DAY), NOW + DAY)
    left = bytes_on_disk(world.folder)
    assert parts["ann"][-100:] not in left
    assert parts["bob"][-100:] in left
    assert uploads.account("site-a").open == 1


def test_where_nothing_was_sent_nobody_asks_for_a_centre(tmp_path, addresses):
    with Database(addresses[0], metadata) as database:
        registry = Registry(database)
        registry.publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
        cascade = Cascade(database, site_actions(LeavingSite(registry)))
        for turn in range(2):
            when = NOW + 2 * turn * DAY
            registry.enrol({ANN: None}, STUDY, DOCUMENT, when)
            case = cascade.advance(cascade.begin(STUDY, ANN, "", when + DAY, sent=False), when + DAY)
            assert case.step is CascadeStep.DONE
            assert registry.reason(asking(), when + DAY) is Reason.WITHDRAWN
        registry.enrol({ANN: None}, STUDY, DOCUMENT, NOW + 9 * DAY)
        waiting = cascade.advance(cascade.begin(STUDY, ANN, "", NOW + 9 * DAY, sent=True), NOW + 9 * DAY)
        assert (waiting.step, waiting.waits_for) == (CascadeStep.ORDER, "a-centre-in-the-site-document")


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
        found = action(case, now)
        if step == sys.argv[4] and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    return act
cascade = Cascade(world.database, {step: deadly(step, action) for step, action in world.actions.items()})
cascade.advance(cascade.begin(STUDY, ANN, ROW, NOW + DAY), NOW + DAY)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_every_step_it_completes_once(tmp_path, addresses, moment):
    """One world, killed at every step in turn: nine lives, and in the end it is done, once."""
    world = World(tmp_path, *addresses)
    world.fill()
    root = str(Path(__file__).resolve().parents[2])
    for step in ORDER_OF_STEPS[:-1]:
        done = subprocess.run(
            [sys.executable, "-c", VICTIM, root, str(tmp_path), json.dumps(addresses), step.value, moment],
            check=False, capture_output=True,
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert world.cascade.pending()[0].step is step
    assert world.cascade.advance_all(NOW + DAY) == []
    check_gone(world)
    world.close()
