"""The gate: the one port that sites reach passes what their nodes ask the SuperLink for, and nothing else.

Flower's SuperLink serves nodes, commands and executors on one port and asks nodes alone for a key. So it listens on
loopback, and this program listens for it where sites dial.

Invariants:
(1) a request is passed only if its method, its address and its headers are on the lists below; the passed request is
made anew from them, so that nothing else that was sent reaches the SuperLink;
(2) whoever asks shows, before anything of the body is read, that they hold the key of a node that was admitted
(:mod:`abaton.engines.flower.tls`); whether it is the node they name is the SuperLink's to say;
(3) a node pushes answers in its own name; the SuperLink would take messages in the controller's, to other nodes;
(4) no body is held beyond a size, all bodies together neither, and nobody is waited for without end
(:mod:`abaton.http_server`);
(5) nothing of a request is logged.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from abaton.engines.flower.tls import Callers, Headers
from abaton.engines.flower.supervisor import end_with_parent
from abaton.http_server import (
    Full,
    Gone,
    Memory,
    Port,
    Rates,
    Receive,
    Scope,
    Send,
    TooLarge,
    TooSlow,
    address_of,
    read_body,
)
from abaton.http_server import configure as listening

_ASKED = (
    *("activate-node", "deactivate-node", "send-node-heartbeat"),
    *("pull-messages", "push-messages", "confirm-message-received"),
    *("pull-object", "push-object"),
)
PASSED = {f"/v1/fleet/{name}".encode(): f"/v1/fleet/{name}" for name in _ASKED}
"""What a node with a key asks for.

Not among them: to register itself, which is the centre's to do; and runs and apps, for sites run no code of others.
"""

_PUSH = "/v1/fleet/push-messages"

_SIGNED = (b"flwr-public-key", b"flwr-signature", b"flwr-timestamp")
_VERSION = (b"flwr-package-name", b"flwr-package-version", b"flwr-component-name")
_TO_LINK = {b"accept", b"content-type", *_SIGNED, *_VERSION}
_TO_NODE = {b"content-type", b"flwr-version-incompatibility-message"}

# Flower's nodes ask again after 502, 503 and 504, and take every other refusal as final.
_STRANGER, _NO_SUCH, _TOO_LARGE, _NO_LINK, _BUSY, _LINK_IS_SLOW = 401, 404, 413, 502, 503, 504
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a stranger can take of the centre's machine, at most.

    Attributes:
        body: bytes of one request; a node sends pieces of at most 5 MiB.
        held: bytes of all requests that are being read.
        seconds: for a body to arrive, and for an answer to be fetched.
        head_seconds: for the head of a request to arrive.
        link_seconds: for the SuperLink to answer.
        connections: from everybody.
        each: from one address.
        rate: requests a second from one address, in the long run; a node asks a few times a second.
        burst: requests from one address at once, after a pause.
    """

    body: int = 8 << 20
    held: int = 256 << 20
    seconds: float = 120.0
    head_seconds: float = 10.0
    link_seconds: float = 30.0
    connections: int = 512
    each: int = 256
    rate: float = 1000.0
    burst: float = 5000.0


class Gate:
    """Passes requests of nodes to the SuperLink and its answers back.

    Args:
        link: dials the SuperLink.
        bounds: what is held and waited for at most.
        admits: whether the headers of a request show the key of a node that was admitted.
    """

    def __init__(self, link: httpx.AsyncClient, bounds: Bounds, admits: Callable[[Headers], bool]) -> None:
        self._link, self._bounds, self._admits = link, bounds, admits
        self._memory, self._addresses = Memory(bounds.held), Rates(bounds.rate, bounds.burst, time.monotonic)

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
        if self._addresses.take(address_of(scope)):
            return _refusal(_BUSY)
        if path is None or scope["method"] != "POST" or scope["query_string"]:
            return _refusal(_NO_SUCH)
        if not self._admits(scope["headers"]):
            return _refusal(_STRANGER)
        with self._memory.held() as take:
            try:
                most, seconds = self._bounds.body, self._bounds.seconds
                body = await read_body(scope, receive, most=most, seconds=seconds, take=take)
            except TooLarge:
                return _refusal(_TOO_LARGE)
            except (TooSlow, Full, Gone):
                return _refusal(_BUSY)
            if path == _PUSH and not _answers_only(body):
                return _refusal(_NO_SUCH)
            return await self._pass(path, scope["headers"], body)

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


def _answers_only(body: bytes) -> bool:
    from abaton.engines.flower.flower_protocol import only_answers

    return only_answers(body)


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
    return listening(
        gate,
        Port(bounds.head_seconds, connections=bounds.connections, each=bounds.each),
        graceful=5,
        host=settings["host"],
        port=settings["port"],
        ssl_certfile=settings["certificate"],
        ssl_keyfile=settings["key"],
    )


def main(words: list[str]) -> None:
    """The program: listens where a file of settings says until it is ended."""
    end_with_parent()
    settings: dict[str, Any] = json.loads(Path(words[0]).read_text())
    _answers_only(b"")  # loads what it needs, which takes a second, before anybody waits
    bounds = Bounds()
    callers = Callers(Path(settings["keys"]))
    gate = Gate(dial(settings["link"], Path(settings["authority"]), bounds), bounds, callers.admit)
    uvicorn.Server(configure(gate, bounds, settings)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
