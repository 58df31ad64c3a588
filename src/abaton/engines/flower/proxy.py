"""Proxy on the only port that sites connect to: forwards the requests of nodes to the SuperLink, and no others.

Flower's SuperLink serves nodes, commands and executors on one port and requires a key of nodes only. So it listens on
loopback, and this program listens on the public address. It parses `push-messages`, because Flower verifies the signing
node but not the sender in the message: an admitted node could otherwise write in the controller's name.

Invariants:
(1) a request is forwarded only if its method, path and headers are on the lists below; the forwarded request is rebuilt
    from them, so that nothing else reaches the SuperLink;
(2) a caller proves possession of an admitted node's key before the body is read (:mod:`abaton.engines.flower.tls`);
    the SuperLink verifies that it is the node it names;
(3) a node may push only replies in its own name;
(4) the size of one body, the size of all bodies together, and all waiting times are limited
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

from abaton.engines.flower.supervisor import end_with_parent
from abaton.engines.flower.tls import AdmittedKeys, Headers
from abaton.http_server import (
    BodyMemoryBudget,
    BodyTooLargeError,
    BodyTooSlowError,
    ClientDisconnectedError,
    RateLimiter,
    Receive,
    Scope,
    Send,
    ServerBusyError,
    ServerLimits,
    client_address,
    read_body,
)
from abaton.http_server import configure as configure_server

_PATHS = (
    *("activate-node", "deactivate-node", "send-node-heartbeat"),
    *("pull-messages", "push-messages", "confirm-message-received"),
    *("pull-object", "push-object"),
)
FORWARDED_PATHS = {f"/v1/fleet/{name}".encode(): f"/v1/fleet/{name}" for name in _PATHS}
"""Paths that a node with a key may call.

Registration is missing because the centre registers nodes; runs and apps are missing because sites run no foreign code.
"""

_PUSH = "/v1/fleet/push-messages"

_SIGNATURE_HEADERS = (b"flwr-public-key", b"flwr-signature", b"flwr-timestamp")
_VERSION_HEADERS = (b"flwr-package-name", b"flwr-package-version", b"flwr-component-name")
_REQUEST_HEADERS = {b"accept", b"content-type", *_SIGNATURE_HEADERS, *_VERSION_HEADERS}
_RESPONSE_HEADERS = {b"content-type", b"flwr-version-incompatibility-message"}

# Flower's nodes retry after 502, 503 and 504; every other error is final.
_UNAUTHORISED, _NOT_FOUND, _TOO_LARGE, _UNAVAILABLE, _BUSY, _TIMEOUT = 401, 404, 413, 502, 503, 504
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Limits on the resources of the centre's machine that callers can use.

    Attributes:
        max_body_bytes: of one request; a node sends chunks of at most 5 MiB.
        max_buffered_bytes: of all requests that are being read.
        transfer_seconds: for a body to arrive, and for a response to be read.
        header_seconds: for the headers of a request to arrive.
        superlink_seconds: for the SuperLink to respond.
        max_connections: from all addresses.
        max_connections_per_address: from one address.
        rate: requests per second from one address in the long run; a node sends a few per second.
        burst: requests from one address at once, after a pause.
    """

    max_body_bytes: int = 8 << 20
    max_buffered_bytes: int = 256 << 20
    transfer_seconds: float = 120.0
    header_seconds: float = 10.0
    superlink_seconds: float = 30.0
    max_connections: int = 512
    max_connections_per_address: int = 256
    rate: float = 1000.0
    burst: float = 5000.0


class SuperLinkProxy:
    """Proxy that forwards requests of nodes to the SuperLink and its responses back.

    Args:
        superlink: the client of the SuperLink.
        limits: the resource limits.
        admits: whether the headers of a request prove an admitted node's key.
    """

    def __init__(
        self, superlink: httpx.AsyncClient, limits: ProxyLimits, admits: Callable[[Headers], bool]
    ) -> None:
        self._superlink, self._limits, self._admits = superlink, limits, admits
        self._memory, self._addresses = (
            BodyMemoryBudget(limits.max_buffered_bytes),
            RateLimiter(limits.rate, limits.burst, time.monotonic),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request of a node at the proxy: check it and forward it to the SuperLink."""
        if scope["type"] != "http":
            return
        status, headers, body = await self._respond(scope, receive)
        try:
            async with asyncio.timeout(self._limits.transfer_seconds):
                await _send_response(send, status, headers, body)
        except TimeoutError:
            return  # the connection is closed, because the response is incomplete

    async def _respond(self, scope: Scope, receive: Receive) -> tuple[int, Headers, bytes]:
        path = FORWARDED_PATHS.get(scope["raw_path"])
        if self._addresses.take(client_address(scope)):
            return _error_response(_BUSY)
        if path is None or scope["method"] != "POST" or scope["query_string"]:
            return _error_response(_NOT_FOUND)
        if not self._admits(scope["headers"]):
            return _error_response(_UNAUTHORISED)
        with self._memory.reservation() as reserve:
            try:
                body = await read_body(
                    scope,
                    receive,
                    max_bytes=self._limits.max_body_bytes,
                    timeout_seconds=self._limits.transfer_seconds,
                    reserve=reserve,
                )
            except BodyTooLargeError:
                return _error_response(_TOO_LARGE)
            except (BodyTooSlowError, ServerBusyError, ClientDisconnectedError):
                return _error_response(_BUSY)
            if path == _PUSH and not _contains_only_replies(body):
                return _error_response(_NOT_FOUND)
            return await self._forward(path, scope["headers"], body)

    async def _forward(self, path: str, headers: Headers, body: bytes) -> tuple[int, Headers, bytes]:
        forwarded = [(name, value) for name, value in headers if name in _REQUEST_HEADERS]
        try:
            response = await self._superlink.post(path, content=body, headers=forwarded)
        except httpx.TimeoutException:
            return _error_response(_TIMEOUT)
        except httpx.HTTPError:
            return _error_response(_UNAVAILABLE)
        received = [(name.lower(), value) for name, value in response.headers.raw]
        return (
            response.status_code,
            [header for header in received if header[0] in _RESPONSE_HEADERS],
            response.content,
        )


def _contains_only_replies(body: bytes) -> bool:
    from abaton.engines.flower.flower_protocol import contains_only_replies

    return contains_only_replies(body)


def _error_response(status: int) -> tuple[int, Headers, bytes]:
    """Return a response of the proxy itself; the remaining body is not read."""
    return status, [(b"connection", b"close")], b""


async def _send_response(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send a response of the proxy in chunks, so that a slow client delays the sender, not only fills a buffer."""
    size = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *size]})
    for start in range(0, len(body), _CHUNK_BYTES):
        await send(
            {"type": "http.response.body", "body": body[start : start + _CHUNK_BYTES], "more_body": True}
        )
    await send({"type": "http.response.body"})


def open_superlink_client(address: str, authority: Path, limits: ProxyLimits) -> httpx.AsyncClient:
    """Return the proxy's HTTP client of the SuperLink; idle connections close before the SuperLink closes them."""
    return httpx.AsyncClient(
        base_url=f"https://{address}",
        headers={"accept-encoding": "identity"},
        verify=ssl.create_default_context(cafile=str(authority)),
        timeout=limits.superlink_seconds,
        limits=httpx.Limits(max_connections=64, keepalive_expiry=2.0),
        trust_env=False,
    )


def configure(proxy: SuperLinkProxy, limits: ProxyLimits, settings: dict[str, Any]) -> uvicorn.Config:
    """Return the web server configuration of the SuperLink proxy."""
    return configure_server(
        proxy,
        ServerLimits(
            limits.header_seconds,
            max_connections=limits.max_connections,
            max_connections_per_address=limits.max_connections_per_address,
        ),
        shutdown_seconds=5,
        host=settings["host"],
        port=settings["port"],
        ssl_certfile=settings["certificate"],
        ssl_keyfile=settings["key"],
    )


def main(arguments: list[str]) -> None:
    """Run the SuperLink proxy that a settings file describes until the process is ended."""
    end_with_parent()
    settings: dict[str, Any] = json.loads(Path(arguments[0]).read_text())
    _contains_only_replies(b"")  # imports Flower's messages, which takes a second, before the first request
    limits = ProxyLimits()
    callers = AdmittedKeys(Path(settings["keys"]))
    proxy = SuperLinkProxy(
        open_superlink_client(settings["superlink"], Path(settings["authority"]), limits),
        limits,
        callers.admit,
    )
    uvicorn.Server(configure(proxy, limits, settings)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
