"""A node at a real SuperLink: killed, disconnected, with lost messages; every message is processed once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.engines.flower.flower_processes import Federation, running, until

from abaton.engines.flower import Message, MessageLost
from abaton.engines.flower.server_processes import open_transport, read_superlink
from abaton.engines.flower.superlink_client import SuperLinkConnection, SuperLinkTransport

pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
pytestmark = [pytest.mark.network, pytest.mark.slow]


class RecordingWorker:
    """Worker that records each message in a file, and delays training until it is released."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.folder = Path(config["folder"]).parent

    def reply(self, message: Message) -> Message:
        with (self.folder / "requests").open("a") as file:
            file.write(f"{message.message_type} {message.header.get('task_id')}\n")
        while message.message_type == "train" and not (self.folder / "released").exists():
            time.sleep(0.02)
        return Message("reply", {"task_id": message.header.get("task_id")}, message.attachments)


@pytest.fixture(scope="module")
def federation(tmp_path_factory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("node")
    with running(folder, ["a"], "tests.engines.flower.test_site_node_network:RecordingWorker") as federation:
        yield federation


@pytest.fixture(scope="module")
def transport(federation) -> Iterator[SuperLinkTransport]:
    with open_transport(federation.centre.folder) as transport:
        until(lambda: transport.nodes())
        yield transport


class SentMessage:
    """A message, and how often the site's workers received it."""

    def __init__(
        self,
        federation: Federation,
        transport: SuperLinkTransport,
        message_type: str,
        task_id: str,
        attachment: bytes = b"x",
    ) -> None:
        self._file, self._transport, self._line = (
            federation.folder / "a" / "requests",
            transport,
            f"{message_type} {task_id}",
        )
        (node,) = transport.nodes()
        self.message_id = transport.send(
            node, Message(message_type, {"task_id": task_id}, {"b": attachment}), 600.0
        )
        self._replies: dict[str, Message | MessageLost] = {}

    @property
    def seen(self) -> int:
        return self._file.read_text().splitlines().count(self._line) if self._file.exists() else 0

    def reply(self) -> Message | MessageLost | None:
        self._transport.nodes()
        if not self._replies:
            self._replies.update(self._transport.collect([self.message_id]))
        return self._replies.get(self.message_id)


def set_released(federation: Federation, *, is_released: bool) -> None:
    file = federation.folder / "a" / "released"
    file.touch() if is_released else file.unlink(missing_ok=True)


def test_a_killed_node_reconnects_with_its_id_and_repeats_nothing(federation, transport):
    site = federation.sites["a"]
    before = site.node_status()["pid"], list(transport.nodes())
    set_released(federation, is_released=False)
    request = SentMessage(federation, transport, "train", "one", os.urandom(3 << 20))
    until(lambda: request.seen)
    os.kill(before[0], signal.SIGKILL)
    until(lambda: site.node_status().get("pid") not in (None, before[0]))
    until(lambda: site.node_status()["state"] == "admitted")
    assert list(transport.nodes()) == before[1]
    set_released(federation, is_released=True)
    until(request.reply)
    assert isinstance(request.reply(), Message)
    assert request.seen in (1, 2), "the worker may get the message again; its stored reply is the same"
    until(lambda: not list((site.node_dir / "messages").iterdir()))


def test_a_site_evaluates_while_it_trains(federation, transport):
    set_released(federation, is_released=False)
    training = SentMessage(federation, transport, "train", "two")
    until(lambda: training.seen)
    evaluation = SentMessage(federation, transport, "evaluate", "three")
    until(evaluation.reply)
    assert training.reply() is None
    set_released(federation, is_released=True)
    until(training.reply)


def test_a_killed_superlink_loses_nothing(federation, transport):
    set_released(federation, is_released=False)
    training = SentMessage(federation, transport, "train", "four")
    until(lambda: training.seen)
    os.kill(federation.centre._supervisors[0].pid, signal.SIGKILL)
    set_released(federation, is_released=True)
    until(training.reply)
    assert training.reply() == Message("reply", {"task_id": "four"}, {"b": b"x"})
    assert training.seen == 1


def test_a_message_lost_before_the_node_is_detected(federation, transport):
    """The SuperLink delivers a message once: here to another client with the node's key."""
    from abaton.engines.flower.flower_protocol import FleetClient, NodeSigner, version_headers

    site = federation.sites["a"]
    (node,) = transport.nodes()
    signer = NodeSigner(site.key)
    connection = SuperLinkConnection(
        *read_superlink(federation.centre.folder),
        lambda: {**version_headers("SuperNode"), **signer.headers()},
    )
    impostor = FleetClient(connection)
    impostor.node = node
    os.kill(site.node_status()["pid"], signal.SIGSTOP)
    try:
        request = SentMessage(federation, transport, "evaluate", "five")
        assert impostor.pull()[0].message_id == request.message_id
    finally:
        os.kill(site.node_status()["pid"], signal.SIGCONT)
    until(request.reply)
    assert isinstance(request.reply(), MessageLost), "so that the sender sends it again"
    assert request.seen == 0
    connection.close()


def test_a_run_that_the_superlink_gave_up_is_replaced(federation, transport):
    """As after an outage of more than a minute: messages in flight count as lost, and the transport continues."""
    set_released(federation, is_released=False)
    training = SentMessage(federation, transport, "train", "six")
    until(lambda: training.seen)
    run = json.loads((federation.centre.folder / "controller.run").read_text())
    transport._control.stop_run(run)
    until(training.reply)
    assert isinstance(training.reply(), MessageLost)
    set_released(federation, is_released=True)
    again = SentMessage(federation, transport, "train", "six")
    until(again.reply)
    assert isinstance(again.reply(), Message)
    assert json.loads((federation.centre.folder / "controller.run").read_text()) != run


def test_several_controllers_share_a_node(federation, transport):
    set_released(federation, is_released=True)
    with open_transport(federation.centre.folder, "second") as second:
        first_message, second_message = (
            SentMessage(federation, each_transport, "evaluate", f"seven {each_transport is transport}")
            for each_transport in (transport, second)
        )
        until(lambda: first_message.reply() and second_message.reply())
        assert first_message.reply().header == {"task_id": "seven True"}
        assert second_message.reply().header == {"task_id": "seven False"}


def test_the_node_can_open_only_its_own_folder(federation):
    status = federation.sites["a"].node_status()
    if not status["is_restricted"]:
        pytest.skip("this system has no Landlock")
    assert status["readable_paths"] == []
