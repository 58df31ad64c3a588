"""HTTP server with limits on time, connections and memory, for the intake, the dashboard and the SuperLink's proxy.

Invariants:
(1) a connection is closed when its TLS handshake, the headers of a request, or the reading of a response is not
    finished in time;
(2) the number of connections is limited per address and in total;
(3) a body is read only on request (see :func:`read_body`), and up to a number of bytes, a number of bytes of all bodies
    together, and a number of seconds;
(4) nothing of a request is logged.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_MAX_HEADER_BYTES = 16 * 1024
_HANDSHAKE_SECONDS = 10.0
_MAX_BUCKETS = 10_000


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits on the resources that clients of a server can use.

    Args:
        header_seconds: for the headers of a request to arrive.
        read_seconds: for a client to read more of a response, and its remainder after it is complete.
        idle_seconds: between two requests on one connection.
        max_connections: from all addresses.
        max_connections_per_address: from one address; behind a proxy all clients have the proxy's.
    """

    header_seconds: float = 10.0
    read_seconds: float = 30.0
    idle_seconds: int = 15
    max_connections: int = 1024
    max_connections_per_address: int = 128


class TimeoutProtocol(H11Protocol):
    """Protocol that counts connections, and closes them after a timeout, which uvicorn alone does not."""

    limits = ServerLimits()
    addresses: Counter[str]
    _header_timeout: asyncio.TimerHandle | None = None
    _read_timeout: asyncio.TimerHandle | None = None
    _address = ""

    def connection_made(self, transport: Any) -> None:
        """Count the HTTP connection, and start the timeout of its first request."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self.addresses[self._address] += 1
        if (
            self.addresses.total() > self.limits.max_connections
            or self.addresses[self._address] > self.limits.max_connections_per_address
        ):
            transport.abort()
            return
        self._start_header_timeout()

    def data_received(self, data: bytes) -> None:
        """Start or stop the timeout of an HTTP request's headers."""
        if self._is_idle():
            self._start_header_timeout()
        super().data_received(data)
        if not self._is_idle():
            self._stop("_header_timeout")

    def pause_writing(self) -> None:
        """Start the timeout of an HTTP client that stopped reading a response."""
        super().pause_writing()
        if self._read_timeout is None:
            self._read_timeout = self.loop.call_later(self.limits.read_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timeout of an HTTP client that reads the response again."""
        super().resume_writing()
        self._stop("_read_timeout")

    def on_response_complete(self) -> None:
        """Start the timeout of an HTTP response's remainder, since closing alone would wait without end."""
        super().on_response_complete()
        if self.transport.is_closing() and self._read_timeout is None:
            self._read_timeout = self.loop.call_later(self.limits.read_seconds, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle HTTP connection without a further request."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeouts of an HTTP connection, and count it no longer."""
        self._stop("_header_timeout")
        self._stop("_read_timeout")
        self.addresses[self._address] -= 1
        if self.addresses[self._address] <= 0:
            del self.addresses[self._address]
        super().connection_lost(exc)

    def _is_idle(self) -> bool:
        cycle = getattr(self, "cycle", None)
        return cycle is None or cycle.response_complete

    def _start_header_timeout(self) -> None:
        if self._header_timeout is None:
            self._header_timeout = self.loop.call_later(self.limits.header_seconds, self.transport.abort)

    def _stop(self, name: Literal["_header_timeout", "_read_timeout"]) -> None:
        timer: asyncio.TimerHandle | None = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)


class TimeoutEventLoop(asyncio.SelectorEventLoop):
    """Event loop with a TLS handshake timeout of ten seconds instead of one minute."""

    async def create_server(self, *arguments: Any, **options: Any) -> Any:
        """Create an HTTP server with a timeout of the TLS handshake."""
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", _HANDSHAKE_SECONDS)
        return await super().create_server(*arguments, **options)


def configure(
    app: App, limits: ServerLimits, *, backlog: int = 512, shutdown_seconds: int = 30, **options: Any
) -> uvicorn.Config:
    """Return the uvicorn configuration of an HTTP server with limits.

    Args:
        app: the ASGI application.
        limits: the limits.
        backlog: connections that the system queues.
        shutdown_seconds: for running requests when the server stops.
        options: address and certificates, as uvicorn takes them.
    """
    protocol = type("LimitedProtocol", (TimeoutProtocol,), {"limits": limits, "addresses": Counter()})
    return uvicorn.Config(
        app,
        http=protocol,
        loop="abaton.http_server:TimeoutEventLoop",
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=shutdown_seconds,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        backlog=backlog,
        **{"log_level": "error", "proxy_headers": False, **options},
    )


class BodyTooLargeError(Exception):
    """A body exceeds the size limit."""


class BodyTooSlowError(Exception):
    """A body did not arrive in time."""


class ServerBusyError(Exception):
    """All bodies together exceed the memory limit."""


class ClientDisconnectedError(Exception):
    """The client has disconnected."""


class BodyMemoryBudget:
    """Memory limit for the bodies of all requests together.

    >>> memory = BodyMemoryBudget(10)
    >>> with memory.reservation() as reserve:
    ...     reserve(7)
    >>> memory.used_bytes
    0
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.used_bytes = max_bytes, 0

    @contextmanager
    def reservation(self) -> Iterator[Callable[[int], None]]:
        """Return a function that reserves memory for one HTTP request body until the context ends."""
        reserved = 0

        def reserve(size: int) -> None:
            nonlocal reserved
            reserved += size
            self.used_bytes += size
            if self.used_bytes > self.max_bytes:
                raise ServerBusyError

        try:
            yield reserve
        finally:
            self.used_bytes -= reserved


async def read_body(
    scope: Scope,
    receive: Receive,
    *,
    max_bytes: int,
    timeout_seconds: float,
    reserve: Callable[[int], None] = lambda size: None,
) -> bytes:
    """Read the body of an HTTP request within limits of size, time and memory.

    Args:
        scope: the request.
        receive: returns the body in chunks.
        max_bytes: the size limit, also checked against the declared length.
        timeout_seconds: until it is complete.
        reserve: called with the size of every chunk; raises :class:`ServerBusyError` if the memory limit is exceeded.

    Raises:
        BodyTooLargeError: It is larger than `max_bytes`.
        BodyTooSlowError: It did not arrive in time.
        ServerBusyError: The memory limit is exceeded.
        ClientDisconnectedError: The client disconnected.
    """
    declared = b"".join(value for name, value in scope["headers"] if name == b"content-length")
    if declared and (len(declared) > 15 or not declared.isdigit() or int(declared) > max_bytes):
        raise BodyTooLargeError
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise ClientDisconnectedError
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > max_bytes:
                    raise BodyTooLargeError
                reserve(len(chunk))
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise BodyTooSlowError from None


def replay_body(body: bytes) -> Receive:
    """Return an ASGI `receive` that returns an HTTP body that was read already."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive


def client_address(scope: Scope) -> str:
    """Return the address of an HTTP client."""
    return str((scope.get("client") or ("",))[0])


class RateLimiter:
    """Token bucket per name; the longest unused are dropped, which only gives them more tokens.

    Args:
        rate: requests per second.
        burst: requests at once, after a pause.
        clock: seconds of a monotonic clock.

    >>> limiter = RateLimiter(1, 2, lambda: 0.0)
    >>> [limiter.take("a") for _ in range(3)], limiter.take("b")
    ([0.0, 0.0, 1.0], 0.0)
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self.rate, self.burst, self.clock = rate, max(burst, 1.0), clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> float:
        """Take a token of the HTTP rate limit; return the seconds to wait if there is none, else zero."""
        now = self.clock()
        tokens, updated_at = self._buckets.pop(name, (self.burst, now))
        tokens = min(self.burst, tokens + (now - updated_at) * self.rate)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self.rate
        self._buckets[name] = (tokens if wait else tokens - 1, now)
        if len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return wait
