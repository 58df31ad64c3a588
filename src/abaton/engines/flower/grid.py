"""The translation to Flower and back, and the two apps that Flower starts.

Only Flower's public interface is used: `flwr.app`, `flwr.serverapp`, `flwr.clientapp`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abaton.engines.flower.desk import Place
from abaton.engines.flower.parcels import Lost, Parcel, from_text, pieces, to_text, together
from abaton.engines.flower.resident import ask
from abaton.engines.reasons import FAILED, UNKNOWN
from abaton.errors import PayloadError, SettingsError

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

_KIND = "abaton.v1"
_OWN = ("query", "train", "evaluate")  # Flower's own types of messages
_OTHER = "other"  # the type of query that all others are; what they ask is written in the parcel


def pack(parcel: Parcel) -> RecordDict:
    """A parcel as what a Flower message holds."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    cut = {name: Array("uint8", (len(data),), _KIND, data) for name, data in pieces(parcel.blobs)}
    about = ConfigRecord({"kind": parcel.kind, "about": to_text(parcel.about)})
    return RecordDict({"about": about, "blobs": ArrayRecord(cut)})


def unpack(content: Mapping[str, Any]) -> Parcel:
    """The parcel that a Flower message holds."""
    try:
        about, blobs = content["about"], content["blobs"]
        cut = {name: array.data for name, array in blobs.items() if array.stype == _KIND}
        return Parcel(str(about["kind"]), from_text(about["about"]), together(cut))
    except (KeyError, AttributeError, TypeError):
        raise PayloadError("a message is not one of Abaton's", where="network") from None


class GridPost:
    """Flower's grid as a post: messages are pushed one by one and pulled when they are there, never waited for."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Collection[int]:
        """Which nodes Flower lists; one that died stays listed for about a minute."""
        return list(self._grid.get_node_ids())

    def send(self, node: int, parcel: Parcel, ttl: float) -> str:
        """Push a message; empty if Flower does not know the node."""
        from flwr.app import Message

        message = Message(pack(parcel), dst_node_id=node, message_type=_type(parcel.kind), ttl=ttl)
        (letter,) = self._grid.push_messages([message])
        return letter

    def collect(self, letters: Collection[str]) -> Mapping[str, Parcel | Lost]:
        """Pull the answers that are there."""
        pulled = self._grid.pull_messages(list(letters))
        return {reply.metadata.reply_to_message_id: _answer(reply) for reply in pulled}


def _type(kind: str) -> str:
    return kind if kind in _OWN else f"query.{_OTHER}"


def _answer(reply: Message) -> Parcel | Lost:
    if reply.has_error():
        return Lost(reply.error.code)
    try:
        return unpack(reply.content)
    except PayloadError:
        return Parcel("answer", {"reason": UNKNOWN})


def server_app() -> ServerApp:
    """The app that Flower starts at the research centre: it calls the function that the run was submitted with."""
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        conduct = named(str(context.run_config["controller"]))
        conduct(GridPost(grid), str(context.run_config["about"]))

    return app


def client_app() -> ClientApp:
    """The app that Flower starts at a site, anew for every message."""
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        return Message(pack(_at_the_desk(message, context.node_config)), reply_to=message)

    for register in (app.train(), app.evaluate(), app.query(), app.query(_OTHER)):
        register(answer)
    return app


def _at_the_desk(message: Message, config: Mapping[str, Any]) -> Parcel:
    """The answer of the site; Flower would send the text of an exception, so none gets there."""
    try:
        return ask(str(config["socket"]), unpack(message.content))
    except Exception:
        return Parcel("answer", {"reason": FAILED})


def place_of(config: Mapping[str, Any]) -> Place:
    """Where and for what a node works, from what its site started it with."""
    folder = Path(str(config["folder"]))
    return Place(str(config["role"]), folder, str(config.get("terms", "")), str(config.get("group", "")))


def named(name: str) -> Callable[..., Any]:
    """The function that ``module:function`` names.

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
