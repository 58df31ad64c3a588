"""A desk that stays: what Flower's processes hand it comes through whole, and its death is an answer."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from abaton.engines.base import DIED
from abaton.engines.flower import Parcel
from abaton.engines.flower.site_worker import ask, serve


class Echo:
    """Answers with what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def answer(self, parcel: Parcel) -> Parcel:
        self.asked.append(parcel.kind)
        return Parcel("answer", parcel.about, parcel.blobs)


def open_echo(config: Mapping[str, Any]) -> Echo:
    return Echo()


@pytest.fixture
def echo(tmp_path):
    desk, socket = Echo(), str(tmp_path / "s")
    thread = threading.Thread(
        target=serve, args=(socket, desk, lambda: desk.asked[-1:] == ["end"]), daemon=True
    )
    thread.start()
    yield socket
    ask(socket, Parcel("end", {}))
    thread.join(10)


def test_messages_come_through_whole(echo):
    parcel = Parcel("train", {"key": "ä", "n": [1, 2.5]}, {"model": b"\x00" * 3_000_000, "none": b""})
    assert ask(echo, parcel) == Parcel("answer", parcel.about, parcel.blobs)
    assert ask(echo, Parcel("query", {})).about == {}


def test_a_desk_that_is_not_there_is_waited_for_and_then_given_up(tmp_path):
    assert ask(str(tmp_path / "nobody"), Parcel("query", {}), patience=0.2).reason == DIED


def test_a_desk_that_dies_while_it_works_is_told_at_once(tmp_path):
    code = (
        "import os, sys\n"
        "from abaton.engines.flower.site_worker import serve\n"
        "class Dies:\n"
        "    def answer(self, parcel): os._exit(1)\n"
        "serve(sys.argv[1], Dies())\n"
    )
    socket = str(tmp_path / "s")
    process = subprocess.Popen([sys.executable, "-c", code, socket])
    assert ask(socket, Parcel("train", {})).reason == DIED
    assert process.wait(30) == 1


def test_the_program_opens_the_desk_that_its_settings_name(tmp_path):
    socket, settings = str(tmp_path / "s"), tmp_path / "desk.json"
    settings.write_text(
        json.dumps({"socket": socket, "desk": "tests.engines.flower.test_resident:open_echo"})
    )
    words = [sys.executable, "-m", "abaton.engines.flower.site_worker", str(settings)]
    process = subprocess.Popen(words, cwd=Path(__file__).parents[3])
    try:
        assert ask(socket, Parcel("query", {"run": "x"}), patience=60).about == {"run": "x"}
    finally:
        process.kill()
        process.wait()
