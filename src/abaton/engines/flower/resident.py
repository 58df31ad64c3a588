"""A site's desk as a program: it has the learner open and the records at hand, and does not talk to the network.

A site has two, so that training does not keep it from evaluating. Its node hands each of them one message after the
other, through a socket in a folder that only the two accounts can enter. Nothing has to survive in a desk: what must is
on disk before an answer is given, and if the program dies its keeper starts it again.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Protocol

from abaton.engines.flower.desk import Place
from abaton.engines.flower.parcels import LARGEST, Parcel
from abaton.engines.flower.programs import end_with_parent
from abaton.engines.reasons import DIED
from abaton.errors import PayloadError, SettingsError

ROLES = ("train", "evaluate")
"""The two desks of a site."""

_QUICK = frozenset({"query", "evaluate", "tell"})
_LARGEST = LARGEST + (1 << 22)
_PATIENCE, _PAUSE = 300.0, 0.05


class Answers(Protocol):
    """Whoever answers a site's messages."""

    def answer(self, parcel: Parcel) -> Parcel:
        """Do what a message asks."""


def role_of(parcel: Parcel) -> str:
    """The desk that a message is for.

    >>> role_of(Parcel("train", {})), role_of(Parcel("query", {}))
    ('train', 'evaluate')
    """
    return "evaluate" if parcel.kind in _QUICK else "train"


def ask(socket: str, parcel: Parcel, patience: float = _PATIENCE) -> Parcel:
    """Hand a message to the desk and wait for its answer; if the desk dies meanwhile, that is the answer.

    Args:
        socket: where the desk is reached.
        parcel: the message.
        patience: seconds to wait for a desk that is not there: it may be starting.
    """
    try:
        with _connected(socket, patience) as desk:
            desk.send_bytes(parcel.packed())
            return Parcel.unpacked(desk.recv_bytes(_LARGEST))
    except (EOFError, OSError):
        return Parcel("answer", {"reason": DIED})


def serve(
    socket: str,
    desk: Answers,
    until: Callable[[], bool] = lambda: False,
    busy: Callable[[str], None] = lambda kind: None,
) -> None:
    """Answer messages, one after the other; `busy` hears the kind of each, and nothing when it is answered."""
    Path(socket).unlink(missing_ok=True)
    with Listener(socket, "AF_UNIX") as listener:
        Path(socket).chmod(0o660)  # who may enter its folder may ask
        while not until():
            # Whoever asked may be gone by the time there is an answer; then it will be asked for again.
            with suppress(EOFError, OSError, PayloadError), listener.accept() as asker:
                parcel = Parcel.unpacked(asker.recv_bytes(_LARGEST))
                busy(parcel.kind)
                try:
                    answer = desk.answer(parcel)
                finally:
                    busy("")
                asker.send_bytes(answer.packed())


def _connected(socket: str, patience: float) -> Connection:
    end = time.monotonic() + patience
    while True:
        try:
            return Client(socket, "AF_UNIX")
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE)


def place_of(config: Mapping[str, Any]) -> Place:
    """Where and for what a desk works, from what its site started it with."""
    folder = Path(str(config["folder"]))
    return Place(str(config["role"]), folder, str(config.get("terms", "")), str(config.get("group", "")))


def named(name: str) -> Callable[..., Any]:
    """The function that ``module:function`` names; only a site's own settings name one, never a message.

    >>> named("math:sqrt")(16.0)
    4.0
    """
    module, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError):
        raise SettingsError(
            f"there is no '{name}'", where="network", remedy="name it as package.module:function"
        ) from None
    return found


def main(words: list[str]) -> None:
    """The program: opens the desk that a file of settings names, and answers until it is ended."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    end_with_parent()
    config: Mapping[str, Any] = json.loads(Path(words[0]).read_text())
    doing = Path(words[0]).with_suffix(".doing")

    def busy(kind: str) -> None:
        doing.write_text(kind)

    busy("")
    serve(str(config["socket"]), named(str(config["desk"]))(config), busy=busy)


if __name__ == "__main__":
    main(sys.argv[1:])
