"""From a site's outbox to the centre's inbox and back."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.governance.conftest import (
    DAY,
    DOCUMENT,
    NEWER,
    NOW,
    STUDY,
    WHEN,
    pseudonym,
    query_for,
    random_source,
)

from abaton.errors import SettingsError
from abaton.governance import (
    AuditLog,
    ConsentAction,
    ConsentQuery,
    ConsentRegistry,
    DataPermit,
    DeniedError,
    EnvelopeHeader,
    Inbox,
    KeySet,
    Outbox,
    PublicKeySet,
    RefusalCode,
    SenderRegistry,
    SenderRole,
    metadata,
    record_permit,
    set_opt_outs,
    verifier,
    verify,
)
from abaton.governance.sealed_envelope import seal
from abaton.governance.signed_statements import read_deletion_receipt, write_order
from abaton.store import Database

CONTENT = b'{"resourceType":"Patient","id":"PSEUDONYM"}\n'


@pytest.fixture
def inbox(registry, centre, site, tmp_path):
    SenderRegistry(registry.database).register(site.public, SenderRole.SITE, NOW)
    return Inbox(tmp_path / "inbox", registry.database, centre.public, centre.signing_key)


@pytest.fixture
def outbox(tmp_path):
    with Database(tmp_path / "site.db", metadata) as database:
        registry = ConsentRegistry(database)
        registry.publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
        registry.enrol({pseudonym("ann"): None}, STUDY, DOCUMENT, NOW)
        yield Outbox(tmp_path / "outbox", database)


def queue(outbox, site, centre, name="ann", when=NOW, content=CONTENT):
    return outbox.put(
        query_for(name),
        [content],
        site.signing_key,
        centre.public.sealing_key,
        when,
        random_source("content"),
    )


def upload(inbox, outbox, queued, step=1000):
    data = outbox.path(queued).read_bytes()
    for offset in range(inbox.received_bytes(queued.digest), len(data), step):
        inbox.append_chunk(queued.digest, offset, data[offset : offset + step])


def audited(database) -> list[tuple[str, str]]:
    return [(entry["action"], entry["outcome"]) for entry in AuditLog(database).entries()]


def test_sent_received_opened_and_receipted(inbox, outbox, site, centre):
    queued = queue(outbox, site, centre)
    upload(inbox, outbox, queued, step=100)
    receipt = inbox.accept(queued.digest, NOW)
    assert inbox.accept(queued.digest, NOW + DAY) == receipt  # repeated, the same receipt
    path = outbox.path(queued)
    outbox.store_receipt(queued, json.loads(json.dumps(receipt)), verifier([centre.public.signing_key]), NOW)
    outbox.store_receipt(queued, receipt, verifier([centre.public.signing_key]), NOW)
    assert not path.exists()
    assert outbox.waiting() == []
    (received,) = inbox.received(STUDY)
    assert b"".join(inbox.open_content(received, centre)) == CONTENT
    assert CONTENT not in inbox.path(received.digest).read_bytes()
    assert audited(inbox.database).count(("envelope-received", "done")) == 1
    assert audited(outbox.database)[-2:] == [("envelope-queued", "done"), ("receipt-stored", "done")]
    assert verify(AuditLog(inbox.database).rows()) == []


def test_a_receipt_must_be_the_centres_and_for_this_envelope(inbox, outbox, site, centre):
    first, second = queue(outbox, site, centre), queue(outbox, site, centre)
    assert (first.sequence, second.sequence) == (1, 2)
    upload(inbox, outbox, first)
    receipt = inbox.accept(first.digest, NOW)
    with pytest.raises(DeniedError):
        outbox.store_receipt(first, receipt, verifier([site.public.signing_key]), NOW)
    with pytest.raises(DeniedError):
        outbox.store_receipt(second, receipt, verifier([centre.public.signing_key]), NOW)
    assert len(outbox.waiting()) == 2


def test_nothing_is_queued_without_consent(outbox, site, centre):
    with pytest.raises(DeniedError) as caught:
        queue(outbox, site, centre, "bob")
    assert caught.value.reason == "not-opted-in"
    ConsentRegistry(outbox.database).withdraw(pseudonym("ann"), STUDY, NOW + DAY)
    with pytest.raises(DeniedError) as caught:
        queue(outbox, site, centre, when=NOW + DAY)
    assert caught.value.reason == "withdrawn"
    assert list(outbox.folder.iterdir()) == []
    with pytest.raises(SettingsError):
        outbox.put(
            ConsentQuery("", STUDY, DOCUMENT),
            [],
            site.signing_key,
            centre.public.sealing_key,
            NOW,
            random_source("x"),
        )


def permit(**more) -> DataPermit:
    actions = (ConsentAction.COLLECT, ConsentAction.SEND)
    data_permit = DataPermit(
        "7", "body", NOW.date(), (NOW + 10 * DAY).date(), ("screening",), DOCUMENT, actions
    )
    return replace(data_permit, **more)


def test_records_are_sent_on_a_permit_that_says_so_minus_opt_outs_and_withdrawals(
    inbox, outbox, site, centre
):
    site_registry, centre_registry = ConsentRegistry(outbox.database), inbox.registry
    record_permit(site_registry, STUDY, "screening", permit(), NOW)
    queued = queue(outbox, site, centre, "bob")  # never enrolled
    upload(inbox, outbox, queued)
    with pytest.raises(DeniedError, match="sending is not allowed: not-opted-in"):
        inbox.accept(queued.digest, NOW)  # the permit must be recorded at the centre too
    record_permit(centre_registry, STUDY, "screening", permit(), NOW)
    upload(inbox, outbox, queued)
    assert inbox.accept(queued.digest, NOW)["body"]["sequence"] == queued.sequence
    set_opt_outs(site_registry, [pseudonym("carl")], NOW)
    site_registry.withdraw(pseudonym("ann"), STUDY, NOW)
    site_registry.withdraw(pseudonym("dora"), STUDY, NOW)  # refuses without an earlier consent
    late = queue(outbox, site, centre, "bob", content=b"more")
    for name, reason in (("carl", "opted-out"), ("ann", "withdrawn"), ("dora", "withdrawn")):
        with pytest.raises(DeniedError) as caught:
            queue(outbox, site, centre, name)
        assert caught.value.reason == reason
    upload(inbox, outbox, late)
    with pytest.raises(DeniedError, match="not-opted-in"):
        inbox.accept(late.digest, NOW + 11 * DAY)  # the permit has expired
    order = write_order(site.signing_key, STUDY, pseudonym("bob"), NOW + DAY)
    assert inbox.delete(order, NOW + DAY)["body"]["records"] == 1
    again = queue(outbox, site, centre, "bob", content=b"again")
    upload(inbox, outbox, again)
    with pytest.raises(DeniedError, match="withdrawn"):
        inbox.accept(again.digest, NOW + DAY)


@pytest.mark.parametrize(
    "changes",
    [
        {"actions": (ConsentAction.COLLECT, ConsentAction.TRAIN)},
        {"purposes": ("diagnostic",)},
        {"document": NEWER},
        {"start": (NOW + DAY).date()},
        {"end": (NOW - DAY).date()},
    ],
    ids=["not-to-send", "other-purpose", "other-document", "not-yet", "expired"],
)
def test_nothing_is_sent_on_a_permit_that_does_not_cover_it(outbox, site, centre, changes):
    record_permit(ConsentRegistry(outbox.database), STUDY, "screening", permit(**changes), NOW)
    with pytest.raises(DeniedError) as caught:
        queue(outbox, site, centre, "bob")
    assert caught.value.reason == "not-opted-in"


def test_a_permit_is_valid_to_the_end_of_its_last_day(outbox, site, centre):
    record_permit(ConsentRegistry(outbox.database), STUDY, "screening", permit(end=NOW.date()), NOW)
    midnight = NOW.replace(hour=0) + DAY
    queue(outbox, site, centre, "bob", when=midnight - timedelta(milliseconds=1))
    with pytest.raises(DeniedError):
        queue(outbox, site, centre, "bob", when=midnight)


def send(inbox, data: bytes, when=NOW):
    import hashlib

    digest = hashlib.sha256(data).hexdigest()
    inbox.append_chunk(digest, 0, data)
    return inbox.accept(digest, when)


def envelope(site, centre, **changes) -> bytes:
    header = EnvelopeHeader(
        STUDY, DOCUMENT, site.signing_key.id, centre.public.sealing_key.id, 1, pseudonym("ann"), WHEN
    )
    header = replace(header, **changes)
    return b"".join(seal([CONTENT], header, site.signing_key, centre.public.sealing_key, bytes(range(32))))


def test_attacks_are_refused_with_their_code_and_audited_without_content(inbox, site, centre):
    thief = KeySet.new("thief", random_source("thief"), WHEN)
    other = KeySet.new("other-centre", random_source("other"), WHEN)
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
        "no consent": (
            envelope(site, centre, sequence=2, subject=pseudonym("eve")),
            RefusalCode.NO_CONSENT,
        ),
        "no subject": (envelope(site, centre, sequence=2, subject=""), RefusalCode.NO_CONSENT),
        "a changed byte": (good[:-100] + bytes([good[-100] ^ 1]) + good[-99:], RefusalCode.FORGED),
        "noise": (b"noise" * 100, RefusalCode.MALFORMED),
    }
    for name, (data, code) in attacks.items():
        with pytest.raises(DeniedError) as caught:
            send(inbox, data)
        assert caught.value.code is code, name
        assert audited(inbox.database)[-1] == ("envelope-refused", code.value), name
    assert len(list(inbox.folder.iterdir())) == 1
    assert verify(AuditLog(inbox.database).rows()) == []


def test_a_sender_cannot_use_anothers_key_or_an_old_one(inbox, site, centre):
    new = site.rotate(random_source("r"), "2026-04-01T00:00:00.000Z")
    inbox.senders.register(new.public, SenderRole.SITE, NOW)
    with pytest.raises(DeniedError) as caught:
        send(inbox, envelope(site, centre))
    assert caught.value.code is RefusalCode.UNKNOWN_SENDER
    send(inbox, envelope(new, centre))
    inbox.senders.unregister("site-a", NOW)
    with pytest.raises(DeniedError):
        send(inbox, envelope(new, centre, sequence=2))
    with pytest.raises(DeniedError):
        inbox.senders.register(new.public, SenderRole.SITE, NOW)
    stranger = KeySet.new("site-a", random_source("stranger"), WHEN)
    with pytest.raises(DeniedError):
        inbox.senders.register(stranger.public, SenderRole.SITE, NOW)
    approver = KeySet.new("dpo", random_source("dpo"), WHEN)
    inbox.senders.register(approver.public, SenderRole.APPROVER, NOW)
    with pytest.raises(DeniedError):
        send(inbox, envelope(approver, centre))
    assert [sender.name for sender in inbox.senders.all()] == ["dpo", "site-a"]


def test_an_envelope_to_a_key_retired_before_the_grace_period_is_refused(registry, centre, site, tmp_path):
    new = centre.rotate(random_source("r"), "2026-03-02T00:00:00.000Z", hybrid=True)
    SenderRegistry(registry.database).register(site.public, SenderRole.SITE, NOW)
    inbox = Inbox(tmp_path / "inbox", registry.database, new.public, new.signing_key)
    send(inbox, envelope(site, centre), NOW + 10 * DAY)
    with pytest.raises(DeniedError) as caught:
        send(inbox, envelope(site, centre, sequence=2), NOW + 40 * DAY)
    assert caught.value.code is RefusalCode.RETIRED_KEY
    (received,) = inbox.received(STUDY)
    assert b"".join(inbox.open_content(received, new)) == CONTENT  # the old key still opens


def test_uploads_grow_in_order_within_their_limit(inbox):
    digest = "ab" * 32
    assert inbox.received_bytes(digest) == 0
    assert inbox.append_chunk(digest, 0, b"abc") == 3
    with pytest.raises(DeniedError):
        inbox.append_chunk(digest, 2, b"c")
    assert inbox.received_bytes(digest) == 3
    inbox.max_bytes = 5
    with pytest.raises(DeniedError) as caught:
        inbox.append_chunk(digest, 3, b"def")
    assert caught.value.code is RefusalCode.TOO_LARGE
    assert inbox.received_bytes(digest) == 0
    for name in ("../x", "", "AB" * 32, "ab" * 31, "a/b", "\0"):
        for call in (inbox.received_bytes, inbox.discard_upload, inbox.path, lambda n: inbox.accept(n, NOW)):
            with pytest.raises(DeniedError):
                call(name)
    with pytest.raises(DeniedError) as caught:
        inbox.accept("cd" * 32, NOW)
    assert caught.value.code is RefusalCode.NOT_FOUND


def test_an_upload_that_is_not_complete_can_go_on(inbox, outbox, site, centre):
    queued = queue(outbox, site, centre)
    data = outbox.path(queued).read_bytes()
    inbox.append_chunk(queued.digest, 0, data[:-10])
    with pytest.raises(DeniedError) as caught:
        inbox.accept(queued.digest, NOW)
    assert caught.value.code is RefusalCode.TRUNCATED
    upload(inbox, outbox, queued)
    inbox.accept(queued.digest, NOW)


def test_a_crash_between_list_and_file_is_recovered(inbox, outbox, site, centre):
    queued = queue(outbox, site, centre)
    upload(inbox, outbox, queued)
    inbox.accept(queued.digest, NOW)
    inbox.path(queued.digest).rename(inbox.folder / f"{queued.digest}.part")
    (received,) = inbox.received(STUDY)
    assert b"".join(inbox.open_content(received, centre)) == CONTENT
    inbox.path(queued.digest).rename(inbox.folder / f"{queued.digest}.part")
    inbox.accept(queued.digest, NOW)  # the sender, without a response, repeats the request
    assert b"".join(inbox.open_content(received, centre)) == CONTENT


def test_the_same_upload_may_be_completed_by_many_at_once(inbox, outbox, site, centre):
    queued = queue(outbox, site, centre, content=CONTENT * 5000)
    data = outbox.path(queued).read_bytes()
    inbox.append_chunk(queued.digest, 0, data)
    answers, go = [], threading.Barrier(6)

    def completing():
        trying(lambda: answers.append(inbox.accept(queued.digest, NOW)))

    def adding():
        trying(lambda: inbox.append_chunk(queued.digest, len(data), b"more"))

    def trying(work):
        go.wait()
        try:
            work()
        except DeniedError as error:
            answers.append(error.code)

    threads = [threading.Thread(target=work) for work in [completing] * 5 + [adding]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    receipts = [answer for answer in answers if isinstance(answer, dict)]
    if receipts:  # unless bytes were added first, which is detected
        assert all(receipt == receipts[0] for receipt in receipts)
        (received,) = inbox.received(STUDY)
        assert inbox.path(received.digest).read_bytes() == data


def test_a_deletion_order_is_executed_once(inbox, outbox, site, centre):
    find = verifier([centre.public.signing_key])
    for _ in range(3):
        queued = queue(outbox, site, centre)
        upload(inbox, outbox, queued)
        inbox.accept(queued.digest, NOW)
    data = outbox.path(queued).read_bytes()
    order = write_order(site.signing_key, STUDY, pseudonym("ann"), NOW + DAY)
    receipt = inbox.delete(json.loads(json.dumps(order)), NOW + DAY)
    assert read_deletion_receipt(receipt, find).records == 3
    assert inbox.delete(order, NOW + 2 * DAY) == receipt
    assert list(inbox.folder.iterdir()) == []
    assert inbox.received(STUDY) == []
    assert inbox.registry.decision(query_for(action=ConsentAction.SEND), NOW + DAY).value == "withdrawn"
    assert send(inbox, data, NOW + DAY)["kind"] == "receipt"  # a replay gets the stored receipt ...
    assert list(inbox.folder.iterdir()) == []  # ... and stores nothing
    with pytest.raises(DeniedError) as caught:
        send(inbox, envelope(site, centre, sequence=9), NOW + DAY)
    assert caught.value.code is RefusalCode.NO_CONSENT
    inbox.registry.enrol({pseudonym("ann"): None}, STUDY, DOCUMENT, NOW + 3 * DAY)
    send(inbox, envelope(site, centre, sequence=10), NOW + 3 * DAY)
    with pytest.raises(DeniedError) as caught:
        inbox.delete(order, NOW + 4 * DAY)
    assert caught.value.code is RefusalCode.REPLAYED
    again = inbox.delete(write_order(site.signing_key, STUDY, pseudonym("ann"), NOW + 4 * DAY), NOW + 4 * DAY)
    assert read_deletion_receipt(again, find).records == 1


def test_only_the_sender_can_order_deletion_and_only_of_its_own_records(inbox, outbox, site, centre):
    queued = queue(outbox, site, centre)
    upload(inbox, outbox, queued)
    inbox.accept(queued.digest, NOW)
    other = KeySet.new("site-b", random_source("b"), WHEN)
    with pytest.raises(DeniedError):
        inbox.delete(write_order(other.signing_key, STUDY, pseudonym("ann"), NOW), NOW)
    inbox.senders.register(other.public, SenderRole.SITE, NOW)
    receipt = inbox.delete(write_order(other.signing_key, STUDY, pseudonym("ann"), NOW + DAY), NOW + DAY)
    assert receipt["body"]["records"] == 0
    assert len(inbox.received(STUDY)) == 1
    for nonsense in (None, {}, [], {"kind": "deletion-order"}):
        with pytest.raises(DeniedError):
            inbox.delete(nonsense, NOW)


def test_withdrawal_and_upload_are_serialised(inbox, outbox, site, centre):
    """Whatever the order, no envelope of a withdrawn subject remains."""
    order = write_order(site.signing_key, STUDY, pseudonym("ann"), NOW + DAY)
    envelopes = [envelope(site, centre, sequence=i) for i in range(1, 9)]
    taken, go = [], threading.Barrier(9)

    def uploading(data):
        go.wait()
        try:
            taken.append(send(inbox, data, NOW + DAY))
        except DeniedError as error:
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


def test_an_outbox_deletes_subjects_and_leftovers(outbox, site, centre):
    first = queue(outbox, site, centre)
    (outbox.folder / "0123-9.sealed").write_bytes(b"left by a crash")
    assert outbox.sweep() == 1
    assert outbox.path(first).exists()
    assert outbox.delete_subject(STUDY, pseudonym("ann")) == 1
    assert outbox.delete_subject(STUDY, pseudonym("ann")) == 0
    assert outbox.all() == []
    assert list(outbox.folder.iterdir()) == []
    assert queue(outbox, site, centre).sequence == 2  # a sequence number is not reused


def test_public_key_sets_round_trip_through_the_register(inbox, site):
    sender = inbox.senders.find("site-a")
    assert sender.key_set == site.public == PublicKeySet.read(json.loads(json.dumps(site.public.row())))
    assert inbox.senders.find("unknown") is None
