"""A site's desk as a program that stays: Flower's processes, one for each message, ask it and take its answer.

Starting a learner costs seconds (its libraries, its compiled loops), and Flower starts a process for every message. So
the desk is opened once, in a program of its own beside each node, and is reached through a socket in a folder that only
the site's account can enter. Nothing has to survive in it: what must is on disk before an answer is given, and if the
program dies its keeper starts it again.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Protocol

from abaton.engines.flower.parcels import Parcel, from_text, to_text
from abaton.engines.reasons import DIED

_LARGEST = (1 << 31) - 1
_PATIENCE, _PAUSE = 300.0, 0.1


class Answers(Protocol):
    """Whoever answers a site's messages."""

    def answer(self, parcel: Parcel) -> Parcel:
        """Do what a message asks."""


def ask(socket: str, parcel: Parcel, patience: float = _PATIENCE) -> Parcel:
    """Hand a message to the desk and wait for its answer; if the desk dies meanwhile, that is the answer.

    Args:
        socket: where the desk is reached.
        parcel: the message.
        patience: seconds to wait for a desk that is not there: it may be starting.
    """
    try:
        with _connected(socket, patience) as desk:
            _send(desk, parcel)
            return _receive(desk)
    except (EOFError, OSError):
        return Parcel("answer", {"reason": DIED})


def serve(socket: str, desk: Answers, until: Callable[[], bool] = lambda: False) -> None:
    """Answer messages, one after the other."""
    Path(socket).unlink(missing_ok=True)
    with Listener(socket, "AF_UNIX") as listener:
        while not until():
            # Whoever asked may be gone by the time there is an answer; then it will be asked for again.
            with suppress(EOFError, OSError), listener.accept() as asker:
                _send(asker, desk.answer(_receive(asker)))


def _connected(socket: str, patience: float) -> Connection:
    end = time.monotonic() + patience
    while True:
        try:
            return Client(socket, "AF_UNIX")
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE)


def _send(to: Connection, parcel: Parcel) -> None:
    head = {"kind": parcel.kind, "about": to_text(parcel.about), "blobs": list(parcel.blobs)}
    to.send_bytes(json.dumps(head).encode())
    for data in parcel.blobs.values():
        to.send_bytes(data)


def _receive(whose: Connection) -> Parcel:
    head = json.loads(whose.recv_bytes(_LARGEST))
    blobs = {name: whose.recv_bytes(_LARGEST) for name in head["blobs"]}
    return Parcel(head["kind"], from_text(head["about"]), blobs)


def main(words: list[str]) -> None:
    """The program: opens the desk that a file of settings names, and answers until it is ended."""
    from abaton.engines.flower.grid import named

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    config: Mapping[str, Any] = json.loads(Path(words[0]).read_text())
    serve(str(config["socket"]), named(str(config["desk"]))(config))


if __name__ == "__main__":
    main(sys.argv[1:])
