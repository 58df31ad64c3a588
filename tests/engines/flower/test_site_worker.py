"""Site worker as a process: messages arrive unchanged, and an exit is a reply."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from abaton.engines.base import PROCESS_EXITED
from abaton.engines.flower import Message
from abaton.engines.flower.site_worker import forward, serve


class Echo:
    """Replies with the request."""

    def __init__(self) -> None:
        self.received: list[str] = []

    def reply(self, message: Message) -> Message:
        self.received.append(message.message_type)
        return Message("reply", message.header, message.attachments)


def open_echo(config: Mapping[str, Any]) -> Echo:
    return Echo()


@pytest.fixture
def echo(tmp_path):
    worker, socket = Echo(), str(tmp_path / "s")
    thread = threading.Thread(
        target=serve, args=(socket, worker, lambda: worker.received[-1:] == ["end"]), daemon=True
    )
    thread.start()
    yield socket
    forward(socket, Message("end", {}))
    thread.join(10)


def test_messages_arrive_unchanged(echo):
    message = Message("train", {"task_id": "ä", "n": [1, 2.5]}, {"model": b"\x00" * 3_000_000, "none": b""})
    assert forward(echo, message) == Message("reply", message.header, message.attachments)
    assert forward(echo, Message("introduce", {})).header == {}


def test_a_missing_worker_times_out(tmp_path):
    assert (
        forward(str(tmp_path / "missing"), Message("introduce", {}), connect_timeout=0.2).reason
        == PROCESS_EXITED
    )


def test_a_worker_that_exits_is_reported_at_once(tmp_path):
    code = (
        "import os, sys\n"
        "from abaton.engines.flower.site_worker import serve\n"
        "class Dies:\n"
        "    def reply(self, message): os._exit(1)\n"
        "serve(sys.argv[1], Dies())\n"
    )
    socket = str(tmp_path / "s")
    process = subprocess.Popen([sys.executable, "-c", code, socket])
    assert forward(socket, Message("train", {})).reason == PROCESS_EXITED
    assert process.wait(30) == 1


def test_the_program_runs_the_worker_of_its_settings(tmp_path):
    socket, settings = str(tmp_path / "s"), tmp_path / "worker.json"
    settings.write_text(
        json.dumps({"socket": socket, "worker": "tests.engines.flower.test_site_worker:open_echo"})
    )
    command = [sys.executable, "-m", "abaton.engines.flower.site_worker", str(settings)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[3])
    try:
        assert forward(socket, Message("introduce", {"run": "x"}), connect_timeout=60).header == {"run": "x"}
    finally:
        process.kill()
        process.wait()
