"""The gate: the one port that sites reach passes what their nodes ask the SuperLink for, and nothing else.

Flower's SuperLink serves nodes, commands and executors on one port and asks nodes alone for a key. So it listens on
loopback, and this program listens for it where sites dial.

Invariants:
(1) a request is passed only if its method, its address and its headers are on the lists below; the passed request is
made anew from them, so that nothing else that was sent reaches the SuperLink;
(2) whether a node may ask is the SuperLink's to say, by the node's signature, which is passed as it is;
(3) a node pushes answers in its own name; the SuperLink would take messages in the controller's, to other nodes;
(4) no body is held beyond a size, all bodies together neither, and nobody is waited for without end;
(5) nothing of a request is logged.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from abaton.listening import Impatient

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_ASKED = (
    *("activate-node", "deactivate-node", "send-node-heartbeat"),
    *("pull-messages", "push-messages", "confirm-message-received"),
    *("pull-object", "push-object", "get-run", "get-fab"),
)
PASSED = {f"/v1/fleet/{name}".encode(): f"/v1/fleet/{name}" for name in _ASKED}
"""What a node with a key asks for. Not among them: to register itself, which is the centre's to do."""

_PUSH = "/v1/fleet/push-messages"

_SIGNED = (b"flwr-public-key", b"flwr-signature", b"flwr-timestamp")
_VERSION = (b"flwr-package-name", b"flwr-package-version", b"flwr-component-name")
_TO_LINK = {b"accept", b"content-type", *_SIGNED, *_VERSION}
_TO_NODE = {b"content-type", b"flwr-version-incompatibility-message"}

# Flower's nodes ask again after 502, 503 and 504, and take every other refusal as final.
_NO_SUCH, _TOO_LARGE, _NO_LINK, _BUSY, _LINK_IS_SLOW = 404, 413, 502, 503, 504
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a stranger can take of the centre's machine, at most.

    Attributes:
        body: bytes of one request; a node sends pieces of at most 5 MiB.
        held: bytes of all requests that are being read.
        seconds: for a body to arrive, and for an answer to be fetched.
        link_seconds: for the SuperLink to answer.
        connections: from everybody.
        each: from one address.
    """

    body: int = 8 << 20
    held: int = 256 << 20
    seconds: float = 120.0
    link_seconds: float = 30.0
    connections: int = 512
    each: int = 256


class Gate:
    """Passes requests of nodes to the SuperLink and its answers back.

    Args:
        link: dials the SuperLink.
        bounds: what is held and waited for at most.
    """

    def __init__(self, link: httpx.AsyncClient, bounds: Bounds) -> None:
        self._link, self._bounds, self._held = link, bounds, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        status, headers, body = await self._answer(scope, receive)
        try:
            async with asyncio.timeout(self._bounds.seconds):
                await _tell(send, status, headers, body)
        except TimeoutError:
            return  # the connection is closed, because the answer is not complete

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, Headers, bytes]:
        path = PASSED.get(scope["raw_path"])
        if path is None or scope["method"] != "POST" or scope["query_string"]:
            return _refusal(_NO_SUCH)
        body = bytearray()
        try:
            status = await self._read(receive, body)
            if status:
                return _refusal(status)
            if path == _PUSH and not only_answers(bytes(body)):
                return _refusal(_NO_SUCH)
            return await self._pass(path, scope["headers"], bytes(body))
        finally:
            self._held -= len(body)

    async def _read(self, receive: Receive, body: bytearray) -> int:
        """Read a body as far as it may go; why it was not read to its end, if so."""
        try:
            async with asyncio.timeout(self._bounds.seconds):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return _BUSY  # whoever asked is gone
                    piece = message.get("body", b"")
                    body += piece
                    self._held += len(piece)
                    if len(body) > self._bounds.body:
                        return _TOO_LARGE
                    if self._held > self._bounds.held:
                        return _BUSY
                    if not message.get("more_body", False):
                        return 0
        except TimeoutError:
            return _BUSY

    async def _pass(self, path: str, headers: Headers, body: bytes) -> tuple[int, Headers, bytes]:
        told = [(name, value) for name, value in headers if name in _TO_LINK]
        try:
            answer = await self._link.post(path, content=body, headers=told)
        except httpx.TimeoutException:
            return _refusal(_LINK_IS_SLOW)
        except httpx.HTTPError:
            return _refusal(_NO_LINK)
        back = [(name.lower(), value) for name, value in answer.headers.raw]
        return answer.status_code, [each for each in back if each[0] in _TO_NODE], answer.content


def only_answers(body: bytes) -> bool:
    """Whether a node pushes nothing but answers in its own name; that the name is its own the SuperLink looks after."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from google.protobuf.message import DecodeError

    try:
        pushed = PushMessagesRequest.FromString(body)
    except DecodeError:
        return False
    heads = [message.metadata for message in pushed.messages_list]
    return all(head.reply_to_message_id and head.src_node_id == pushed.node.node_id for head in heads)


def _refusal(status: int) -> tuple[int, Headers, bytes]:
    """An answer of the gate's own; what is left of a body is not waited for."""
    return status, [(b"connection", b"close")], b""


async def _tell(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send an answer, in pieces: a slow line then holds up the sending, and not only the socket's buffer."""
    size = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *size]})
    for start in range(0, len(body), _PIECE):
        await send({"type": "http.response.body", "body": body[start : start + _PIECE], "more_body": True})
    await send({"type": "http.response.body"})


def dial(link: str, authority: Path, bounds: Bounds) -> httpx.AsyncClient:
    """What speaks to the SuperLink; idle lines are given up before the SuperLink does, after five seconds."""
    return httpx.AsyncClient(
        base_url=f"https://{link}",
        headers={"accept-encoding": "identity"},
        verify=ssl.create_default_context(cafile=str(authority)),
        timeout=bounds.link_seconds,
        limits=httpx.Limits(max_connections=64, keepalive_expiry=2.0),
        trust_env=False,
    )


def configure(gate: Gate, bounds: Bounds, settings: dict[str, Any]) -> uvicorn.Config:
    """The settings of the web server."""

    class Counted(Impatient):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            hosts = [other.client[0] for other in self.connections if other.client]
            same = hosts.count(self.client[0]) if self.client else 0
            if len(self.connections) > bounds.connections or same > bounds.each:
                transport.abort()

    return uvicorn.Config(
        gate,
        host=settings["host"],
        port=settings["port"],
        ssl_certfile=settings["certificate"],
        ssl_keyfile=settings["key"],
        http=Counted,
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="error",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=16 * 1024,
    )


def main(words: list[str]) -> None:
    """The program: listens where a file of settings says until it is ended."""
    settings: dict[str, Any] = json.loads(Path(words[0]).read_text())
    only_answers(b"")  # loads what it needs, which takes a second, before anybody waits
    bounds = Bounds()
    gate = Gate(dial(settings["link"], Path(settings["authority"]), bounds), bounds)
    uvicorn.Server(configure(gate, bounds, settings)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
