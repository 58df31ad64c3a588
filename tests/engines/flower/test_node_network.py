"""A node at a real SuperLink: killed, cut off, given messages that get lost; every message is worked on once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.engines.flower.programs import Federation, running, until

from abaton.engines.flower import Lost, Parcel
from abaton.engines.flower.server_processes import open_post, read_link
from abaton.engines.flower.superlink_client import Line, LinkPost

pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
pytestmark = [pytest.mark.network, pytest.mark.slow]


class Notes:
    """A desk that notes each message in a file, and waits with a training until it may go on."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.folder = Path(config["folder"]).parent

    def answer(self, parcel: Parcel) -> Parcel:
        with (self.folder / "asked").open("a") as file:
            file.write(f"{parcel.kind} {parcel.about.get('key')}\n")
        while parcel.kind == "train" and not (self.folder / "go").exists():
            time.sleep(0.02)
        return Parcel("answer", {"key": parcel.about.get("key")}, parcel.blobs)


@pytest.fixture(scope="module")
def federation(tmp_path_factory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("node")
    with running(folder, ["a"], "tests.engines.flower.test_node_network:Notes") as made:
        yield made


@pytest.fixture(scope="module")
def post(federation) -> Iterator[LinkPost]:
    with open_post(federation.centre.folder) as made:
        until(lambda: made.nodes())
        yield made


class Asked:
    """A message, and how often the site's desks have seen it."""

    def __init__(
        self, federation: Federation, post: LinkPost, kind: str, key: str, blob: bytes = b"x"
    ) -> None:
        self._file, self._post, self._line = federation.folder / "a" / "asked", post, f"{kind} {key}"
        (node,) = post.nodes()
        self.letter = post.send(node, Parcel(kind, {"key": key}, {"b": blob}), 600.0)
        self._answer: dict[str, Parcel | Lost] = {}

    @property
    def seen(self) -> int:
        return self._file.read_text().splitlines().count(self._line) if self._file.exists() else 0

    def answered(self) -> Parcel | Lost | None:
        self._post.nodes()
        if not self._answer:
            self._answer.update(self._post.collect([self.letter]))
        return self._answer.get(self.letter)


def go(federation: Federation, *, on: bool) -> None:
    file = federation.folder / "a" / "go"
    file.touch() if on else file.unlink(missing_ok=True)


def test_a_killed_node_is_back_at_once_under_its_number_and_nothing_is_done_twice(federation, post):
    site = federation.sites["a"]
    before = site.standing()["pid"], list(post.nodes())
    go(federation, on=False)
    asked = Asked(federation, post, "train", "one", os.urandom(3 << 20))
    until(lambda: asked.seen)
    os.kill(before[0], signal.SIGKILL)
    until(lambda: site.standing().get("pid") not in (None, before[0]))
    until(lambda: site.standing()["state"] == "admitted")
    assert list(post.nodes()) == before[1]
    go(federation, on=True)
    until(asked.answered)
    assert isinstance(asked.answered(), Parcel)
    assert asked.seen in (1, 2), (
        "the desk may be asked again what it was at; its own journal answers twice the same"
    )
    assert not list((site.home / "messages").iterdir())


def test_a_site_evaluates_while_it_trains(federation, post):
    go(federation, on=False)
    training = Asked(federation, post, "train", "two")
    until(lambda: training.seen)
    evaluation = Asked(federation, post, "evaluate", "three")
    until(evaluation.answered)
    assert training.answered() is None
    go(federation, on=True)
    until(training.answered)


def test_a_killed_superlink_loses_nothing(federation, post):
    go(federation, on=False)
    training = Asked(federation, post, "train", "four")
    until(lambda: training.seen)
    os.kill(federation.centre._kept[0].pid, signal.SIGKILL)
    go(federation, on=True)
    until(training.answered)
    assert training.answered() == Parcel("answer", {"key": "four"}, {"b": b"x"})
    assert training.seen == 1


def test_a_message_that_is_lost_on_its_way_to_the_node_is_noticed(federation, post):
    """The SuperLink gives a message out once: here to somebody who has the node's key, and then forgets it."""
    from abaton.engines.flower.flower_protocol import Fleet, Signer, who

    site = federation.sites["a"]
    (node,) = post.nodes()
    signer = Signer(site.key)
    line = Line(*read_link(federation.centre.folder), lambda: {**who("SuperNode"), **signer.headers()})
    thief = Fleet(line)
    thief.node = node
    os.kill(site.standing()["pid"], signal.SIGSTOP)
    try:
        asked = Asked(federation, post, "evaluate", "five")
        assert thief.pull()[0].name == asked.letter
    finally:
        os.kill(site.standing()["pid"], signal.SIGCONT)
    until(asked.answered)
    assert isinstance(asked.answered(), Lost), "so that whoever sent it sends it again"
    assert asked.seen == 0
    line.close()


def test_a_run_that_the_superlink_gave_up_is_followed_by_another(federation, post):
    """As after an outage of more than a minute: what was under way counts as lost, and the post goes on."""
    go(federation, on=False)
    training = Asked(federation, post, "train", "six")
    until(lambda: training.seen)
    run = json.loads((federation.centre.folder / "controller.run").read_text())
    post._control.stop(run)
    until(training.answered)
    assert isinstance(training.answered(), Lost)
    go(federation, on=True)
    again = Asked(federation, post, "train", "six")
    until(again.answered)
    assert isinstance(again.answered(), Parcel)
    assert json.loads((federation.centre.folder / "controller.run").read_text()) != run


def test_several_controllers_share_a_node(federation, post):
    go(federation, on=True)
    with open_post(federation.centre.folder, "second") as second:
        mine, theirs = (
            Asked(federation, each, "evaluate", f"seven {each is post}") for each in (post, second)
        )
        until(lambda: mine.answered() and theirs.answered())
        assert mine.answered().about == {"key": "seven True"}
        assert theirs.answered().about == {"key": "seven False"}


def test_the_node_can_open_nothing_of_the_site_but_its_own_folder(federation):
    said = federation.sites["a"].standing()
    if not said["closed"]:
        pytest.skip("this system has no Landlock")
    assert said["readable"] == []
