"""A site's node without a network: what it writes down before work, and what it does after a restart."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

import pytest
from tests.engines.flower.programs import until

from abaton.engines.base import DIED
from abaton.engines.flower.flower_messages import Parcel
from abaton.engines.flower.superlink_client import HOLDS, Away, Turned

pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")

from abaton.engines.flower.flower_protocol import Head, posted
from abaton.engines.flower.site_node import Held, Node
from abaton.engines.flower.site_processes import NodeSettings

TRAIN, EVALUATE = Parcel("train", {"key": "t"}, {"model": b"abc"}), Parcel("evaluate", {"key": "e"})


class Fleet:
    """A SuperLink that gives out what it was given, once, and notes what it hears."""

    def __init__(self) -> None:
        self.queue: deque = deque()
        self.objects: dict[str, bytes] = {}
        self.heard: list[str] = []
        self.pushed: list[tuple[Head, Parcel]] = []
        self.fates: deque = deque()
        self.over = False

    def give(self, parcel: Parcel, number: int = 0) -> Head:
        made = posted(Head(7, 1, 99, 2e9 + number, 1e9), parcel)
        self.objects |= made.objects
        head = Head.of(made.message.metadata)
        self.queue.append((head, made.tree))
        return head

    def activate(self, public: bytes, interval: float) -> int:
        self.heard.append("activate")
        return 99

    def deactivate(self, node: int) -> None:
        self.heard.append(f"deactivate {node}")

    def beat(self, interval: float) -> bool:
        return True

    def pull(self):
        if self.over:
            raise SystemExit
        return self.queue.popleft() if self.queue else None

    def object(self, run: int, name: str) -> bytes | None:
        return self.objects.get(name)

    def confirm(self, head: Head) -> None:
        self.heard.append(f"confirm {head.name}")

    def push(self, head: Head, parcel: Parcel) -> None:
        if self.fates:
            raise self.fates.popleft()
        self.pushed.append((head, parcel))


class Site:
    """A node over such a SuperLink, with a desk that a test can hold up."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fleet, self.asked = folder, Fleet(), []
        self.may_train = threading.Event()
        self.may_train.set()
        self._thread: threading.Thread | None = None

    @property
    def held(self) -> Held:
        return Held(self.folder / "messages")

    def hand(self, role: str, parcel: Parcel) -> Parcel:
        self.asked.append((role, parcel, self.held.names()))
        if role == "train":
            self.may_train.wait()
        return Parcel("answer", {"to": parcel.kind})

    def start(self) -> Site:
        node = Node(NodeSettings("c:1", self.folder, {}), self.fleet, b"key", self.hand)

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
    made = Site(tmp_path)
    yield made
    made.may_train.set()
    made.stop()


def test_a_message_is_written_down_confirmed_worked_on_and_answered(site):
    head = site.fleet.give(TRAIN)
    site.start()
    until(lambda: site.fleet.pushed and not site.held.names())
    ((role, parcel, names),) = site.asked
    assert (role, parcel, names) == ("train", TRAIN, [head.name]), "it was on disk before it was worked on"
    assert f"confirm {head.name}" in site.fleet.heard
    ((answer, said),) = site.fleet.pushed
    assert said == Parcel("answer", {"to": "train"})
    assert (answer.reply_to, answer.source, answer.target) == (head.name, 99, 1)
    assert answer.created + answer.ttl == pytest.approx(head.created + head.ttl)


def test_training_does_not_keep_a_site_from_evaluating(site):
    site.may_train.clear()
    for number, parcel in enumerate((TRAIN, EVALUATE, Parcel("query", {}), Parcel("tell", {}))):
        site.fleet.give(parcel, number)
    site.start()
    until(lambda: len(site.fleet.pushed) == 3)
    assert [parcel.about["to"] for _, parcel in site.fleet.pushed] == ["evaluate", "query", "tell"]
    site.may_train.set()
    until(lambda: len(site.fleet.pushed) == 4)


def test_after_a_restart_what_was_written_down_goes_on_and_an_answer_is_not_made_twice(site):
    done, open_one = Head(7, 1, 99, 2e9, 1e9, "", "a" * 64), Head(7, 1, 99, 2e9, 1e9, "", "b" * 64)
    site.held.take(done, TRAIN)
    answer = done.answered(2e9)
    site.held.answer(done.name, answer, Parcel("answer", {"made": "before"}))
    site.held.take(open_one, EVALUATE)
    (site.folder / "number").write_text("99")
    site.start()
    until(lambda: len(site.fleet.pushed) == 2 and not site.held.names())
    assert (answer, Parcel("answer", {"made": "before"})) in site.fleet.pushed, (
        "with the same head, so the same name"
    )
    assert [parcel for _, parcel, _ in site.asked] == [EVALUATE]
    until(
        lambda: len(site.fleet.heard) >= 2
    )  # another thread: answers may be pushed before the node is let in
    assert site.fleet.heard[:2] == ["deactivate 99", "activate"], "and so it is let in at once"


def test_a_push_is_repeated_until_it_arrives_or_nobody_wants_it(site):
    site.fleet.fates += [Away("no answer"), Away("no answer"), Turned(401)]
    site.fleet.give(EVALUATE)
    site.start()
    until(lambda: site.fleet.pushed and not site.held.names())
    site.fleet.fates.append(Turned(409))
    site.fleet.give(EVALUATE, 1)
    until(lambda: len(site.asked) == 2 and not site.held.names())
    assert len(site.fleet.pushed) == 1, "the run was over"


def test_an_answer_that_the_superlink_breaks_over_does_not_hold_up_the_others(site, monkeypatch):
    monkeypatch.setattr("abaton.engines.flower.site_node._BROKEN_TIMES", 2)
    site.fleet.fates += [Away("status 500", 500)] * 2
    site.fleet.give(EVALUATE)
    site.fleet.give(EVALUATE, 1)
    site.start()
    until(lambda: site.fleet.pushed and not site.held.names())
    assert len(site.fleet.pushed) == 1, "whoever asked for the first notices that it is not held any more"


def test_the_node_itself_says_what_it_holds(site):
    site.may_train.clear()
    head = site.fleet.give(TRAIN)
    site.start()
    until(lambda: site.asked)
    site.fleet.give(Parcel(HOLDS, {}), 1)
    until(lambda: site.fleet.pushed)
    assert site.fleet.pushed[0][1].about == {HOLDS: [head.name]}
    assert len(site.asked) == 1


def test_a_foreign_message_reaches_no_desk_and_is_answered(site):
    head = site.fleet.give(TRAIN)
    (_, tree) = site.fleet.queue.pop()
    tree.children[0].children.add(object_id="not a digest")
    site.fleet.queue.append((head, tree))
    site.start()
    until(lambda: site.fleet.pushed)
    assert site.fleet.pushed[0][1].reason == "unknown message"
    assert site.asked == []
    assert site.held.names() == []


def test_a_message_whose_objects_are_gone_is_let_go_of(site):
    site.fleet.give(TRAIN)
    site.fleet.objects.clear()
    site.start()
    site.fleet.give(EVALUATE, 1)
    until(lambda: site.fleet.pushed)
    assert [role for role, _, _ in site.asked] == ["evaluate"]


def test_a_desk_that_died_is_an_answer(site):
    site.hand = lambda role, parcel: Parcel("answer", {"reason": DIED})
    site.fleet.give(TRAIN)
    site.start()
    until(lambda: site.fleet.pushed)
    assert site.fleet.pushed[0][1].reason == DIED


def test_settings_are_read_as_they_were_written(tmp_path):
    made = NodeSettings("c:1", tmp_path, {"train": "a", "evaluate": "b"}, (tmp_path / "study.key",))
    made.write(tmp_path / "node.json")
    assert NodeSettings.read(tmp_path / "node.json") == made
    assert (tmp_path / "node.json").stat().st_mode & 0o777 == 0o600
