"""From a site's outbox to the centre's inbox, and back out of it."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.governance.conftest import DAY, DOCUMENT, NEWER, NOW, STUDY, WHEN, asking, drawing, person

from abaton.errors import SettingsError
from abaton.governance import (
    Action,
    Ask,
    Audit,
    Denied,
    Header,
    Inbox,
    Outbox,
    Permit,
    PublicRing,
    RefusalCode,
    Registry,
    Ring,
    SenderRole,
    Senders,
    metadata,
    note_permit,
    set_opt_outs,
    verifier,
    verify,
)
from abaton.governance.sealed_envelope import seal
from abaton.governance.signed_statements import read_deleted, write_order
from abaton.store import Database

CONTENT = b'{"resourceType":"Patient","id":"PSEUDONYM"}\n'


@pytest.fixture
def inbox(registry, centre, site, tmp_path):
    Senders(registry.database).enter(site.public, SenderRole.SITE, NOW)
    return Inbox(tmp_path / "inbox", registry.database, centre.public, centre.signing)


@pytest.fixture
def outbox(tmp_path):
    with Database(tmp_path / "site.db", metadata) as database:
        registry = Registry(database)
        registry.publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
        registry.enrol({person("ann"): None}, STUDY, DOCUMENT, NOW)
        yield Outbox(tmp_path / "outbox", database)


def queue(outbox, site, centre, name="ann", when=NOW, content=CONTENT):
    return outbox.put(asking(name), [content], site.signing, centre.public.sealing, when, drawing("content"))


def upload(inbox, outbox, queued, step=1000):
    data = outbox.path(queued).read_bytes()
    for offset in range(inbox.uploaded(queued.digest), len(data), step):
        inbox.add_part(queued.digest, offset, data[offset : offset + step])


def told(database) -> list[tuple[str, str]]:
    return [(entry["action"], entry["outcome"]) for entry in Audit(database).entries()]


def test_sent_received_read_and_settled(inbox, outbox, site, centre):
    queued = queue(outbox, site, centre)
    upload(inbox, outbox, queued, step=100)
    receipt = inbox.accept(queued.digest, NOW)
    assert inbox.accept(queued.digest, NOW + DAY) == receipt  # asked again, the same answer
    path = outbox.path(queued)
    outbox.settle(queued, json.loads(json.dumps(receipt)), verifier([centre.public.signing]), NOW)
    outbox.settle(queued, receipt, verifier([centre.public.signing]), NOW)
    assert not path.exists()
    assert outbox.waiting() == []
    (received,) = inbox.received(STUDY)
    assert b"".join(inbox.content(received, centre)) == CONTENT
    assert CONTENT not in inbox.path(received.digest).read_bytes()
    assert told(inbox.database).count(("envelope-received", "done")) == 1
    assert told(outbox.database)[-2:] == [("envelope-queued", "done"), ("receipt-kept", "done")]
    assert verify(Audit(inbox.database).rows()) == []


def test_a_receipt_must_be_the_centres_and_for_this_envelope(inbox, outbox, site, centre):
    first, second = queue(outbox, site, centre), queue(outbox, site, centre)
    assert (first.sequence, second.sequence) == (1, 2)
    upload(inbox, outbox, first)
    receipt = inbox.accept(first.digest, NOW)
    with pytest.raises(Denied):
        outbox.settle(first, receipt, verifier([site.public.signing]), NOW)
    with pytest.raises(Denied):
        outbox.settle(second, receipt, verifier([centre.public.signing]), NOW)
    assert len(outbox.waiting()) == 2


def test_nothing_is_queued_without_consent(outbox, site, centre):
    with pytest.raises(Denied) as caught:
        queue(outbox, site, centre, "bob")
    assert caught.value.reason == "not-opted-in"
    Registry(outbox.database).withdraw(person("ann"), STUDY, NOW + DAY)
    with pytest.raises(Denied) as caught:
        queue(outbox, site, centre, when=NOW + DAY)
    assert caught.value.reason == "withdrawn"
    assert list(outbox.folder.iterdir()) == []
    with pytest.raises(SettingsError):
        outbox.put(Ask("", STUDY, DOCUMENT), [], site.signing, centre.public.sealing, NOW, drawing("x"))


def permit(**more) -> Permit:
    actions = (Action.COLLECT, Action.SEND)
    made = Permit("7", "body", NOW.date(), (NOW + 10 * DAY).date(), ("screening",), DOCUMENT, actions)
    return replace(made, **more)


def test_records_are_sent_on_a_permit_that_says_so_minus_opt_outs_and_withdrawals(
    inbox, outbox, site, centre
):
    near, far = Registry(outbox.database), inbox.registry
    note_permit(near, STUDY, "screening", permit(), NOW)
    queued = queue(outbox, site, centre, "bob")  # who has never been asked
    upload(inbox, outbox, queued)
    with pytest.raises(Denied, match="sending is not allowed: not-opted-in"):
        inbox.accept(queued.digest, NOW)  # the centre has to know of the permit, too
    note_permit(far, STUDY, "screening", permit(), NOW)
    upload(inbox, outbox, queued)
    assert inbox.accept(queued.digest, NOW)["body"]["sequence"] == queued.sequence
    set_opt_outs(near, [person("carl")], NOW)
    near.withdraw(person("ann"), STUDY, NOW)
    near.withdraw(person("dora"), STUDY, NOW)  # who has no consent to take back, and says no
    late = queue(outbox, site, centre, "bob", content=b"more")
    for name, reason in (("carl", "opted-out"), ("ann", "withdrawn"), ("dora", "withdrawn")):
        with pytest.raises(Denied) as caught:
            queue(outbox, site, centre, name)
        assert caught.value.reason == reason
    upload(inbox, outbox, late)
    with pytest.raises(Denied, match="not-opted-in"):
        inbox.accept(late.digest, NOW + 11 * DAY)  # the permit has expired meanwhile
    order = write_order(site.signing, STUDY, person("bob"), NOW + DAY)
    assert inbox.delete(order, NOW + DAY)["body"]["records"] == 1
    again = queue(outbox, site, centre, "bob", content=b"again")
    upload(inbox, outbox, again)
    with pytest.raises(Denied, match="withdrawn"):
        inbox.accept(again.digest, NOW + DAY)


@pytest.mark.parametrize(
    "wrong",
    [
        {"actions": (Action.COLLECT, Action.TRAIN)},
        {"purposes": ("diagnostic",)},
        {"document": NEWER},
        {"start": (NOW + DAY).date()},
        {"end": (NOW - DAY).date()},
    ],
    ids=["not-to-send", "other-purpose", "other-document", "not-yet", "expired"],
)
def test_nothing_is_sent_on_a_permit_that_does_not_cover_it(outbox, site, centre, wrong):
    note_permit(Registry(outbox.database), STUDY, "screening", permit(**wrong), NOW)
    with pytest.raises(Denied) as caught:
        queue(outbox, site, centre, "bob")
    assert caught.value.reason == "not-opted-in"


def test_a_permit_holds_to_the_last_moment_of_its_last_day(outbox, site, centre):
    note_permit(Registry(outbox.database), STUDY, "screening", permit(end=NOW.date()), NOW)
    midnight = NOW.replace(hour=0) + DAY
    queue(outbox, site, centre, "bob", when=midnight - timedelta(milliseconds=1))
    with pytest.raises(Denied):
        queue(outbox, site, centre, "bob", when=midnight)


def send(inbox, data: bytes, when=NOW):
    import hashlib

    digest = hashlib.sha256(data).hexdigest()
    inbox.add_part(digest, 0, data)
    return inbox.accept(digest, when)


def envelope(site, centre, **changes) -> bytes:
    header = Header(STUDY, DOCUMENT, site.signing.id, centre.public.sealing.id, 1, person("ann"), WHEN)
    header = replace(header, **changes)
    return b"".join(seal([CONTENT], header, site.signing, centre.public.sealing, bytes(range(32))))


def test_attacks_are_refused_with_their_code_and_audited_without_content(inbox, site, centre):
    thief = Ring.new("thief", drawing("thief"), WHEN)
    other = Ring.new("other-centre", drawing("other"), WHEN)
    good = envelope(site, centre)
    send(inbox, good)
    attacks = {
        "another content under the same number": (
            envelope(site, centre, created="later"),
            RefusalCode.REPLAYED,
        ),
        "an unknown sender": (envelope(thief, centre, sequence=2), RefusalCode.UNKNOWN_SENDER),
        "another study": (envelope(site, centre, sequence=2, study="lungs"), RefusalCode.WRONG_STUDY),
        "an older document": (envelope(site, centre, sequence=2, document=NEWER), RefusalCode.WRONG_DOCUMENT),
        "another centre's key": (envelope(site, other, sequence=2), RefusalCode.UNKNOWN_KEY),
        "nobody's consent": (
            envelope(site, centre, sequence=2, subject=person("eve")),
            RefusalCode.NO_CONSENT,
        ),
        "no subject": (envelope(site, centre, sequence=2, subject=""), RefusalCode.NO_CONSENT),
        "a changed byte": (good[:-100] + bytes([good[-100] ^ 1]) + good[-99:], RefusalCode.FORGED),
        "noise": (b"noise" * 100, RefusalCode.MALFORMED),
    }
    for name, (data, code) in attacks.items():
        with pytest.raises(Denied) as caught:
            send(inbox, data)
        assert caught.value.code is code, name
        assert told(inbox.database)[-1] == ("envelope-refused", code.value), name
    assert len(list(inbox.folder.iterdir())) == 1
    assert verify(Audit(inbox.database).rows()) == []


def test_a_sender_cannot_use_anothers_key_or_an_old_one(inbox, site, centre):
    new = site.rotated(drawing("r"), "2026-04-01T00:00:00.000Z")
    inbox.senders.enter(new.public, SenderRole.SITE, NOW)
    with pytest.raises(Denied) as caught:
        send(inbox, envelope(site, centre))
    assert caught.value.code is RefusalCode.UNKNOWN_SENDER
    send(inbox, envelope(new, centre))
    inbox.senders.dismiss("site-a", NOW)
    with pytest.raises(Denied):
        send(inbox, envelope(new, centre, sequence=2))
    with pytest.raises(Denied):
        inbox.senders.enter(new.public, SenderRole.SITE, NOW)
    stranger = Ring.new("site-a", drawing("stranger"), WHEN)
    with pytest.raises(Denied):
        inbox.senders.enter(stranger.public, SenderRole.SITE, NOW)
    approver = Ring.new("dpo", drawing("dpo"), WHEN)
    inbox.senders.enter(approver.public, SenderRole.APPROVER, NOW)
    with pytest.raises(Denied):
        send(inbox, envelope(approver, centre))
    assert [sender.name for sender in inbox.senders.everybody()] == ["dpo", "site-a"]


def test_what_is_sealed_to_a_key_long_retired_is_not_taken(registry, centre, site, tmp_path):
    new = centre.rotated(drawing("r"), "2026-03-02T00:00:00.000Z", hybrid=True)
    Senders(registry.database).enter(site.public, SenderRole.SITE, NOW)
    inbox = Inbox(tmp_path / "inbox", registry.database, new.public, new.signing)
    send(inbox, envelope(site, centre), NOW + 10 * DAY)
    with pytest.raises(Denied) as caught:
        send(inbox, envelope(site, centre, sequence=2), NOW + 40 * DAY)
    assert caught.value.code is RefusalCode.RETIRED_KEY
    (received,) = inbox.received(STUDY)
    assert b"".join(inbox.content(received, new)) == CONTENT  # the old key still opens


def test_uploads_grow_in_order_within_their_limit_and_under_their_name(inbox):
    digest = "ab" * 32
    assert inbox.uploaded(digest) == 0
    assert inbox.add_part(digest, 0, b"abc") == 3
    with pytest.raises(Denied):
        inbox.add_part(digest, 2, b"c")
    assert inbox.uploaded(digest) == 3
    inbox.most_bytes = 5
    with pytest.raises(Denied) as caught:
        inbox.add_part(digest, 3, b"def")
    assert caught.value.code is RefusalCode.TOO_LARGE
    assert inbox.uploaded(digest) == 0
    for name in ("../x", "", "AB" * 32, "ab" * 31, "a/b", "\0"):
        for call in (inbox.uploaded, inbox.drop_part, inbox.path, lambda n: inbox.accept(n, NOW)):
            with pytest.raises(Denied):
                call(name)
    with pytest.raises(Denied) as caught:
        inbox.accept("cd" * 32, NOW)
    assert caught.value.code is RefusalCode.NOT_FOUND


def test_an_upload_that_is_not_complete_can_go_on(inbox, outbox, site, centre):
    queued = queue(outbox, site, centre)
    data = outbox.path(queued).read_bytes()
    inbox.add_part(queued.digest, 0, data[:-10])
    with pytest.raises(Denied) as caught:
        inbox.accept(queued.digest, NOW)
    assert caught.value.code is RefusalCode.TRUNCATED
    upload(inbox, outbox, queued)
    inbox.accept(queued.digest, NOW)


def test_a_crash_between_list_and_file_is_mended(inbox, outbox, site, centre):
    queued = queue(outbox, site, centre)
    upload(inbox, outbox, queued)
    inbox.accept(queued.digest, NOW)
    inbox.path(queued.digest).rename(inbox.folder / f"{queued.digest}.part")
    (received,) = inbox.received(STUDY)
    assert b"".join(inbox.content(received, centre)) == CONTENT
    inbox.path(queued.digest).rename(inbox.folder / f"{queued.digest}.part")
    inbox.accept(queued.digest, NOW)  # the sender, who heard nothing, asks again
    assert b"".join(inbox.content(received, centre)) == CONTENT


def test_the_same_upload_may_be_completed_by_many_at_once(inbox, outbox, site, centre):
    queued = queue(outbox, site, centre, content=CONTENT * 5000)
    data = outbox.path(queued).read_bytes()
    inbox.add_part(queued.digest, 0, data)
    answers, go = [], threading.Barrier(6)

    def completing():
        trying(lambda: answers.append(inbox.accept(queued.digest, NOW)))

    def adding():
        trying(lambda: inbox.add_part(queued.digest, len(data), b"more"))

    def trying(work):
        go.wait()
        try:
            work()
        except Denied as error:
            answers.append(error.code)

    threads = [threading.Thread(target=work) for work in [completing] * 5 + [adding]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    receipts = [answer for answer in answers if isinstance(answer, dict)]
    if receipts:  # unless bytes were added first, which is noticed
        assert all(receipt == receipts[0] for receipt in receipts)
        (received,) = inbox.received(STUDY)
        assert inbox.path(received.digest).read_bytes() == data


def test_a_deletion_order_is_carried_out_once_and_for_good(inbox, outbox, site, centre):
    find = verifier([centre.public.signing])
    for _ in range(3):
        queued = queue(outbox, site, centre)
        upload(inbox, outbox, queued)
        inbox.accept(queued.digest, NOW)
    data = outbox.path(queued).read_bytes()
    order = write_order(site.signing, STUDY, person("ann"), NOW + DAY)
    receipt = inbox.delete(json.loads(json.dumps(order)), NOW + DAY)
    assert read_deleted(receipt, find).records == 3
    assert inbox.delete(order, NOW + 2 * DAY) == receipt
    assert list(inbox.folder.iterdir()) == []
    assert inbox.received(STUDY) == []
    assert inbox.registry.reason(asking(action=Action.SEND), NOW + DAY).value == "withdrawn"
    assert send(inbox, data, NOW + DAY)["kind"] == "receipt"  # a replay is answered from the ledger ...
    assert list(inbox.folder.iterdir()) == []  # ... and keeps nothing
    with pytest.raises(Denied) as caught:
        send(inbox, envelope(site, centre, sequence=9), NOW + DAY)
    assert caught.value.code is RefusalCode.NO_CONSENT
    inbox.registry.enrol({person("ann"): None}, STUDY, DOCUMENT, NOW + 3 * DAY)
    send(inbox, envelope(site, centre, sequence=10), NOW + 3 * DAY)
    with pytest.raises(Denied) as caught:
        inbox.delete(order, NOW + 4 * DAY)
    assert caught.value.code is RefusalCode.REPLAYED
    again = inbox.delete(write_order(site.signing, STUDY, person("ann"), NOW + 4 * DAY), NOW + 4 * DAY)
    assert read_deleted(again, find).records == 1


def test_only_the_sender_can_order_and_only_his_own(inbox, outbox, site, centre):
    queued = queue(outbox, site, centre)
    upload(inbox, outbox, queued)
    inbox.accept(queued.digest, NOW)
    other = Ring.new("site-b", drawing("b"), WHEN)
    with pytest.raises(Denied):
        inbox.delete(write_order(other.signing, STUDY, person("ann"), NOW), NOW)
    inbox.senders.enter(other.public, SenderRole.SITE, NOW)
    receipt = inbox.delete(write_order(other.signing, STUDY, person("ann"), NOW + DAY), NOW + DAY)
    assert receipt["body"]["records"] == 0
    assert len(inbox.received(STUDY)) == 1
    for nonsense in (None, {}, [], {"kind": "deletion-order"}):
        with pytest.raises(Denied):
            inbox.delete(nonsense, NOW)


def test_a_withdrawal_and_an_upload_cannot_pass_each_other(inbox, outbox, site, centre):
    """However they race: afterwards there is no envelope of a person who has withdrawn."""
    order = write_order(site.signing, STUDY, person("ann"), NOW + DAY)
    envelopes = [envelope(site, centre, sequence=i) for i in range(1, 9)]
    taken, go = [], threading.Barrier(9)

    def uploading(data):
        go.wait()
        try:
            taken.append(send(inbox, data, NOW + DAY))
        except Denied as error:
            taken.append(error.code)

    threads = [threading.Thread(target=uploading, args=(data,)) for data in envelopes]
    for thread in threads:
        thread.start()
    go.wait()
    receipt = inbox.delete(order, NOW + DAY)
    for thread in threads:
        thread.join()
    accepted = [answer for answer in taken if isinstance(answer, dict)]
    assert len(taken) == 8
    assert set(taken_codes(taken)) <= {RefusalCode.NO_CONSENT}
    assert receipt["body"]["records"] == len(accepted)
    assert inbox.received(STUDY) == []
    assert [path for path in inbox.folder.iterdir() if not path.name.endswith(".part")] == []


def taken_codes(taken):
    return [answer for answer in taken if isinstance(answer, RefusalCode)]


def test_an_outbox_forgets_and_sweeps(outbox, site, centre):
    first = queue(outbox, site, centre)
    (outbox.folder / "0123-9.sealed").write_bytes(b"left by a crash")
    assert outbox.sweep() == 1
    assert outbox.path(first).exists()
    assert outbox.forget(STUDY, person("ann")) == 1
    assert outbox.forget(STUDY, person("ann")) == 0
    assert outbox.all() == []
    assert list(outbox.folder.iterdir()) == []
    assert queue(outbox, site, centre).sequence == 2  # a number is never used again


def test_public_rings_come_back_from_the_register(inbox, site):
    found = inbox.senders.find("site-a")
    assert found.ring == site.public == PublicRing.read(json.loads(json.dumps(site.public.row())))
    assert inbox.senders.find("nobody") is None
