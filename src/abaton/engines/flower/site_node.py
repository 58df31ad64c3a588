"""The site's node: the one process that talks to the network, and can open nothing of the site but its own folder.

It asks the SuperLink for messages, writes each down before anything is made of it, hands it to the desk it is for, and
writes the answer down before it is pushed. So a message is worked on once however often the node, the desk or the
SuperLink is killed: what was written down goes on after a restart, and an answer that is pushed twice counts once.
Training does not keep a site from evaluating: each of the two desks has a line of its own.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from abaton.atomic_files import replacing
from abaton.engines.base import FAILED, UNKNOWN
from abaton.engines.flower.flower_messages import Parcel
from abaton.engines.flower.flower_protocol import LEAF, Fleet, Head, Signer, leaves_of, opened, who
from abaton.engines.flower.site_processes import NodeSettings
from abaton.engines.flower.site_worker import ROLES, ask, role_of
from abaton.engines.flower.superlink_client import BROKEN, HOLDS, Away, Line, Turned
from abaton.engines.flower.supervisor import close_files, end_with_parent, readable
from abaton.errors import PayloadError

INTERVAL = 10.0
"""Seconds between heartbeats as the SuperLink is told; it takes a node for gone after twice as many."""

ANSWER = LEAF + (1 << 16)
"""Bytes of an answer of the SuperLink that are read at most: an object, or the tree of a message."""

_BEATS = 4.0
# Seconds between two looks: short after a message, then longer and longer.
_SHORT, _LONG, _SLOWER = 0.1, 1.0, 1.3
_AGAIN = 1.0  # seconds between two tries to be let in
_BROKEN_TIMES = 8  # tries of an answer that the SuperLink breaks over
_MOST = 64  # messages that wait here; the SuperLink keeps the others
_PATIENCE = 180.0  # seconds for the objects of a message to come

_LOG = logging.getLogger(__name__)


class Held:
    """The messages that the node holds, on its disk: questions that wait, and answers that are not pushed yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def names(self) -> list[str]:
        """The messages that are held, the oldest first."""
        found = {path.stem: path.stat().st_mtime_ns for path in self._folder.glob("*.asked")}
        return sorted(found, key=found.__getitem__)

    def take(self, head: Head, parcel: Parcel) -> None:
        """Write a question down, before anything is made of it."""
        self._write(self._folder / f"{head.name}.asked", head, parcel)

    def asked(self, name: str) -> tuple[Head, Parcel]:
        """A question."""
        return self._read(self._folder / f"{name}.asked")

    def answer(self, name: str, head: Head, parcel: Parcel) -> None:
        """Write the answer down, before it is pushed."""
        self._write(self._folder / f"{name}.answer", head, parcel)

    def answered(self, name: str) -> tuple[Head, Parcel] | None:
        """The answer, if there is one."""
        path = self._folder / f"{name}.answer"
        return self._read(path) if path.exists() else None

    def forget(self, name: str) -> None:
        """Let go of a message whose answer has arrived, or which nobody wants any more."""
        for kind in ("asked", "answer"):
            (self._folder / f"{name}.{kind}").unlink(missing_ok=True)

    def _write(self, path: Path, head: Head, parcel: Parcel) -> None:
        with replacing(path, mode=0o600) as begun:
            begun.write_bytes(json.dumps(asdict(head)).encode() + b"\n" + parcel.packed())

    def _read(self, path: Path) -> tuple[Head, Parcel]:
        head, _, rest = path.read_bytes().partition(b"\n")
        return Head(**json.loads(head)), Parcel.unpacked(rest)


class Node:
    """Carries messages between a SuperLink and a site's desks.

    Args:
        settings: what it was started with.
        fleet: asks the SuperLink.
        public: the node's public key.
        hand: hands a parcel to the desk of a role and waits for its answer.
    """

    def __init__(
        self, settings: NodeSettings, fleet: Fleet, public: bytes, hand: Callable[[str, Parcel], Parcel]
    ) -> None:
        self._settings, self._fleet, self._public, self._hand = settings, fleet, public, hand
        self._held = Held(settings.folder / "messages")
        self._lines: dict[str, queue.SimpleQueue[str]] = {role: queue.SimpleQueue() for role in ROLES}
        self._outgoing: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._inside = threading.Event()
        self._said: dict[str, Any] = {}

    def run(self) -> None:
        """Be connected, and do what messages ask, for as long as the process lives."""
        for name in self._held.names():
            self._line_up(name)
        for work in (*(partial(self._work, role) for role in ROLES), self._push_all, self._beat):
            threading.Thread(target=_or_end, args=(work,), daemon=True).start()
        while True:
            try:
                self._enter()
                self._look()
            except Away as away:
                self._tell("connecting", str(away))
            except Turned as no:
                self._tell("connected", str(no))
            self._inside.clear()
            time.sleep(_AGAIN)

    def say(self, **more: Any) -> None:
        """Let the site know more of the node."""
        self._said |= more
        with replacing(self._settings.status, sync=False) as begun:
            begun.write_text(json.dumps(self._said))

    def _tell(self, state: str, trouble: str = "") -> None:
        if (self._said.get("state"), self._said.get("trouble")) != (state, trouble):
            self.say(state=state, trouble=trouble)

    # ---- being connected ----------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Be let in; a node that was killed first says that it is not connected any more, and so is back at once."""
        number = self._settings.folder / "number"
        if number.exists():
            with suppress(Turned):
                self._fleet.deactivate(int(number.read_text()))
        made = self._fleet.activate(self._public, INTERVAL)
        with replacing(number) as begun:
            begun.write_text(str(made))
        self._inside.set()
        self._tell("admitted")

    def _beat(self) -> None:
        while self._inside.wait():
            with suppress(Away, Turned, PayloadError):
                self._fleet.beat(INTERVAL)
            time.sleep(_BEATS)

    def _look(self) -> None:
        """Fetch messages until the centre lets the node in no more; while nobody answers, it is asked again."""
        pause, silent = _SHORT, 0
        while True:
            try:
                found = len(self._held.names()) < _MOST and self._fetch()
                silent = 0
                self._tell("admitted")
            except Away as away:
                found, silent = False, silent + 1
                if silent > 2:
                    self._tell("connecting", str(away))
            pause = _SHORT if found else min(_SLOWER * pause, _LONG)
            time.sleep(pause)

    # ---- messages in --------------------------------------------------------------------------------------------

    def _fetch(self) -> bool:
        """Take on the next message; whether there was one."""
        try:
            found = self._fleet.pull()
        except PayloadError as error:
            _LOG.warning("%s", error)
            return True
        if found is None:
            return False
        head, tree = found
        try:
            parcel = opened(leaves_of(tree, head.name), lambda name: self._object(head, name))
        except PayloadError as error:
            _LOG.warning("%s", error)
            self._reply(head, Parcel("answer", {"reason": UNKNOWN}))
            return True
        except _Gone:
            return True  # whoever sent it notices that it is not held here
        if parcel.kind == HOLDS:
            self._reply(head, Parcel("answer", {HOLDS: self._held.names()}))
            return True
        self._held.take(head, parcel)
        self._line_up(head.name, role_of(parcel))
        self._confirm(head)
        return True

    def _reply(self, head: Head, parcel: Parcel) -> None:
        """Answer at once, without a desk; if that is lost, it is asked for again."""
        self._confirm(head)
        with suppress(Away, Turned):
            self._fleet.push(head.answered(time.time()), parcel)

    def _object(self, head: Head, name: str) -> bytes:
        pause, end = _SHORT, time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            try:
                data = self._fleet.object(head.run, name)
            except Away:
                data = b""
            except Turned as no:
                raise _Gone from no
            if data:
                return data
            if data is None:
                raise _Gone
            time.sleep(pause)
            pause = min(2 * pause, _LONG)
        raise _Gone

    def _confirm(self, head: Head) -> None:
        with suppress(
            Away, Turned
        ):  # what it lets go of then stays with the SuperLink until the run has ended
            self._fleet.confirm(head)

    def _line_up(self, name: str, role: str = "") -> None:
        if self._held.answered(name) is not None:
            self._outgoing.put(name)
        else:
            self._lines[role or role_of(self._held.asked(name)[1])].put(name)

    # ---- work, and answers out ----------------------------------------------------------------------------------

    def _work(self, role: str) -> None:
        while True:
            name = self._lines[role].get()
            head, parcel = self._held.asked(name)
            try:
                answer = self._hand(role, parcel)
            except PayloadError:
                answer = Parcel("answer", {"reason": FAILED})
            self._held.answer(name, head.answered(time.time()), answer)
            self._outgoing.put(name)

    def _push_all(self) -> None:
        while True:
            name = self._outgoing.get()
            found = self._held.answered(name)
            if found is not None:
                self._push(*found)
            self._held.forget(name)

    def _push(self, head: Head, parcel: Parcel) -> None:
        """Push an answer until it has arrived, or until nobody wants it any more.

        One that the SuperLink cannot take is let go of: whoever asked notices that it is not held here any more.
        """
        pause, broken = _SHORT, 0
        while head.created + head.ttl > time.time() and broken < _BROKEN_TIMES:
            try:
                self._fleet.push(head, parcel)
                return
            except Turned as no:
                if no.status != 401:
                    return  # its run is over
            except Away as away:
                broken += away.status == BROKEN
            except PayloadError:
                broken += 1
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


class _Gone(Exception):
    """A message that cannot be fetched any more."""


def _or_end(work: Callable[[], None]) -> None:
    """Let the process end, and so be started again, if one of its threads cannot go on, as on a full disk."""
    try:
        work()
    except Exception as error:
        _LOG.error("%s", type(error).__name__)  # its text may hold more
        os._exit(1)


def main(words: list[str]) -> None:
    """The program: closes the site's files behind it, and carries messages until it is ended."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    end_with_parent()
    settings = NodeSettings.read(Path(words[0]))
    signer = Signer(settings.key)
    names = who("SuperNode")
    line = Line(settings.centre, settings.authority, lambda: {**names, **signer.headers()}, ANSWER)
    sockets = {Path(path).parent for path in settings.desks.values()}
    closed = close_files([settings.folder], more=sockets)
    node = Node(settings, Fleet(line), signer.public, lambda role, parcel: ask(settings.desks[role], parcel))
    open_ones = [str(path) for path in readable(settings.private)]
    node.say(state="connecting", trouble="", pid=os.getpid(), closed=closed, readable=open_ones)
    node.run()


if __name__ == "__main__":
    main(sys.argv[1:])
