"""Site node without a network: what it stores before processing, and what it does after a restart."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

import pytest
from tests.engines.flower.flower_processes import until

from abaton.engines.base import PROCESS_EXITED
from abaton.engines.flower.flower_messages import Message
from abaton.engines.flower.superlink_client import (
    HELD_MESSAGES,
    SuperLinkRefusedError,
    SuperLinkUnavailableError,
)

pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")

from abaton.engines.flower.flower_protocol import MessageMetadata, encode_message
from abaton.engines.flower.site_node import MessageSpool, SiteNode
from abaton.engines.flower.site_processes import NodeSettings

TRAIN, EVALUATE = Message("train", {"task_id": "t"}, {"model": b"abc"}), Message("evaluate", {"task_id": "e"})


class Fleet:
    """SuperLink that delivers each message once and records calls."""

    def __init__(self) -> None:
        self.queue: deque = deque()
        self.objects: dict[str, bytes] = {}
        self.calls: list[str] = []
        self.pushed: list[tuple[MessageMetadata, Message]] = []
        self.errors: deque = deque()
        self.over = False

    def give(self, message: Message, number: int = 0) -> MessageMetadata:
        built = encode_message(MessageMetadata(7, 1, 99, 2e9 + number, 1e9), message)
        self.objects |= built.objects
        request_metadata = MessageMetadata.from_proto(built.message.metadata)
        self.queue.append((request_metadata, built.tree))
        return request_metadata

    def activate(self, public_key: bytes, interval: float) -> int:
        self.calls.append("activate")
        return 99

    def deactivate(self, node: int) -> None:
        self.calls.append(f"deactivate {node}")

    def send_heartbeat(self, interval: float) -> bool:
        return True

    def pull(self):
        if self.over:
            raise SystemExit
        return self.queue.popleft() if self.queue else None

    def object(self, run: int, object_id: str) -> bytes | None:
        return self.objects.get(object_id)

    def confirm(self, request_metadata: MessageMetadata) -> None:
        self.calls.append(f"confirm {request_metadata.message_id}")

    def push(self, request_metadata: MessageMetadata, message: Message) -> None:
        if self.errors:
            raise self.errors.popleft()
        self.pushed.append((request_metadata, message))


class Site:
    """Node of such a SuperLink, with a worker that a test can delay."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fleet, self.handled = folder, Fleet(), []
        self.may_train = threading.Event()
        self.may_train.set()
        self._thread: threading.Thread | None = None

    @property
    def spool(self) -> MessageSpool:
        return MessageSpool(self.folder / "messages")

    def forward_message(self, role: str, message: Message) -> Message:
        self.handled.append((role, message, self.spool.message_ids()))
        if role == "train":
            self.may_train.wait()
        return Message("reply", {"to": message.message_type})

    def start(self) -> Site:
        node = SiteNode(NodeSettings("c:1", self.folder, {}), self.fleet, b"key", self.forward_message)

        def run() -> None:
            with suppress(SystemExit):
                node.run()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        self.fleet.over = True
        self._thread.join()


@pytest.fixture
def site(tmp_path):
    built = Site(tmp_path)
    yield built
    built.may_train.set()
    built.stop()


def test_a_message_is_stored_confirmed_processed_and_replied_to(site):
    request_metadata = site.fleet.give(TRAIN)
    site.start()
    until(lambda: site.fleet.pushed and not site.spool.message_ids())
    ((role, message, names),) = site.handled
    assert (role, message, names) == ("train", TRAIN, [request_metadata.message_id]), (
        "it was on disk before it was processed"
    )
    assert f"confirm {request_metadata.message_id}" in site.fleet.calls
    ((metadata, reply),) = site.fleet.pushed
    assert reply == Message("reply", {"to": "train"})
    assert (metadata.reply_to, metadata.source, metadata.target) == (request_metadata.message_id, 99, 1)
    assert metadata.created_at + metadata.ttl == pytest.approx(
        request_metadata.created_at + request_metadata.ttl
    )


def test_a_site_evaluates_while_it_trains(site):
    site.may_train.clear()
    for number, message in enumerate((TRAIN, EVALUATE, Message("introduce", {}), Message("progress", {}))):
        site.fleet.give(message, number)
    site.start()
    until(lambda: len(site.fleet.pushed) == 3)
    assert [message.header["to"] for _, message in site.fleet.pushed] == ["evaluate", "introduce", "progress"]
    site.may_train.set()
    until(lambda: len(site.fleet.pushed) == 4)


def test_after_a_restart_stored_messages_are_processed_once(site):
    done, open_one = (
        MessageMetadata(7, 1, 99, 2e9, 1e9, "", "a" * 64),
        MessageMetadata(7, 1, 99, 2e9, 1e9, "", "b" * 64),
    )
    site.spool.store_request(done, TRAIN)
    reply = done.reply(2e9)
    site.spool.store_reply(done.message_id, reply, Message("reply", {"stored": "before"}))
    site.spool.store_request(open_one, EVALUATE)
    (site.folder / "node_id").write_text("99")
    site.start()
    until(lambda: len(site.fleet.pushed) == 2 and not site.spool.message_ids())
    assert (reply, Message("reply", {"stored": "before"})) in site.fleet.pushed, (
        "with the same metadata, so the same id"
    )
    assert [message for _, message, _ in site.handled] == [EVALUATE]
    until(
        lambda: len(site.fleet.calls) >= 2
    )  # another thread: replies may be pushed before the node is connected
    assert site.fleet.calls[:2] == ["deactivate 99", "activate"], "and so it is connected at once"


def test_a_push_is_repeated_until_it_arrives_or_its_run_has_ended(site):
    site.fleet.errors += [
        SuperLinkUnavailableError("no response"),
        SuperLinkUnavailableError("no response"),
        SuperLinkRefusedError(401),
    ]
    site.fleet.give(EVALUATE)
    site.start()
    until(lambda: site.fleet.pushed and not site.spool.message_ids())
    site.fleet.errors.append(SuperLinkRefusedError(409))
    site.fleet.give(EVALUATE, 1)
    until(lambda: len(site.handled) == 2 and not site.spool.message_ids())
    assert len(site.fleet.pushed) == 1, "the run had ended"


def test_a_reply_that_causes_server_errors_does_not_block_others(site, monkeypatch):
    monkeypatch.setattr("abaton.engines.flower.site_node._MAX_SERVER_ERRORS", 2)
    site.fleet.errors += [SuperLinkUnavailableError("status 500", 500)] * 2
    site.fleet.give(EVALUATE)
    site.fleet.give(EVALUATE, 1)
    site.start()
    until(lambda: site.fleet.pushed and not site.spool.message_ids())
    assert len(site.fleet.pushed) == 1, "the controller finds that the first is not stored any more"


def test_the_node_itself_reports_its_stored_messages(site):
    site.may_train.clear()
    request_metadata = site.fleet.give(TRAIN)
    site.start()
    until(lambda: site.handled)
    site.fleet.give(Message(HELD_MESSAGES, {}), 1)
    until(lambda: site.fleet.pushed)
    assert site.fleet.pushed[0][1].header == {HELD_MESSAGES: [request_metadata.message_id]}
    assert len(site.handled) == 1


def test_an_invalid_message_reaches_no_worker_and_gets_a_reply(site):
    request_metadata = site.fleet.give(TRAIN)
    (_, tree) = site.fleet.queue.pop()
    tree.children[0].children.add(object_id="not a digest")
    site.fleet.queue.append((request_metadata, tree))
    site.start()
    until(lambda: site.fleet.pushed)
    assert site.fleet.pushed[0][1].reason == "unknown_message"
    assert site.handled == []
    assert site.spool.message_ids() == []


def test_a_message_without_objects_is_dropped(site):
    site.fleet.give(TRAIN)
    site.fleet.objects.clear()
    site.start()
    site.fleet.give(EVALUATE, 1)
    until(lambda: site.fleet.pushed)
    assert [role for role, _, _ in site.handled] == ["evaluate"]


def test_an_exited_worker_is_a_reply(site):
    site.forward_message = lambda role, message: Message("reply", {"reason": PROCESS_EXITED})
    site.fleet.give(TRAIN)
    site.start()
    until(lambda: site.fleet.pushed)
    assert site.fleet.pushed[0][1].reason == PROCESS_EXITED


def test_settings_survive_a_round_trip(tmp_path):
    built = NodeSettings("c:1", tmp_path, {"train": "a", "evaluate": "b"}, (tmp_path / "study.key",))
    built.write(tmp_path / "node.json")
    assert NodeSettings.read(tmp_path / "node.json") == built
    assert (tmp_path / "node.json").stat().st_mode & 0o777 == 0o600
