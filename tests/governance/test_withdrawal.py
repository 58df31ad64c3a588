from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.governance.conftest import DAY, DOCUMENT, NOW, STUDY, WHEN, asking, drawing, person

from abaton.governance import (
    Action,
    Audit,
    Cascade,
    CascadeStep,
    Denied,
    Inbox,
    LeavingSite,
    Outbox,
    RefusalCode,
    Registry,
    Ring,
    SenderRole,
    Senders,
    Vault,
    marked_rounds,
    members_of,
    metadata,
    note_round,
    site_actions,
    take_snapshot,
    verifier,
    verify,
)
from abaton.governance.withdrawal import ORDER_OF_STEPS
from abaton.records.deid.pseudonyms import MappingRow
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
        site = LeavingSite(
            self.registry, self.outbox, self.vault, SITE.signing, self.send, verifier([CENTRE.public.signing])
        )
        self.actions = dict(site_actions(site))
        self.cascade = Cascade(self.database, self.actions)

    def send(self, order):
        return self.inbox.delete(order, NOW + DAY) if self.reachable else None

    def fill(self) -> None:
        Senders(self.far).enter(SITE.public, SenderRole.SITE, NOW)
        for registry in (self.registry, Registry(self.far)):
            registry.publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
            for name in ("ann", "bob"):
                registry.opt_in(person(name), NOW)
                registry.enrol(person(name), STUDY, DOCUMENT, NOW)
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
    assert marked_rounds(world.database, STUDY) == [("run", 1)]
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
    check_gone(world)
    snapshot = take_snapshot(world.registry, STUDY, Action.TRAIN, NOW + DAY)
    assert members_of(world.database, snapshot.id) == [person("bob")]
    left = bytes_on_disk(tmp_path)
    for gone in (IDENTITY.encode(), b"PSEUDO-ANN", row.sealed, row.key.encode(), *envelopes):
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
    from abaton.governance.statements import Order, write_deleted

    order = Order(STUDY, ANN, WHEN)
    forged = [
        write_deleted(SITE.signing, order, "site-a", 2, NOW),
        write_deleted(CENTRE.signing, Order("other", ANN, WHEN), "site-a", 2, NOW),
        {},
    ]
    for answer in forged:
        world.send = lambda order, answer=answer: answer
        site = LeavingSite(
            world.registry, world.outbox, world.vault, SITE.signing, world.send, verifier([CENTRE.public.signing])
        )  # fmt: skip
        cascade = Cascade(world.database, site_actions(site))
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
        registry.enrol(ANN, STUDY, DOCUMENT, NOW + 2 * DAY)
    second = world.cascade.advance(world.cascade.begin(STUDY, ANN, ROW, NOW + 3 * DAY), NOW + 3 * DAY)
    assert second.since > first.since
    with pytest.raises(Denied):
        world.cascade.case(STUDY, person("bob"))
    for study, subject, row in (("a b", ANN, ROW), (STUDY, "Peter", ROW), (STUDY, ANN, "x")):
        with pytest.raises(Denied):
            world.cascade.begin(study, subject, row, NOW)


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
