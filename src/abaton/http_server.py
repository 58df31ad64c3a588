"""Listening to a network: nobody is waited for without end, and nobody takes more than their share.

The one mechanism of the intake, the dashboard and the gate before the SuperLink.

Invariants:
(1) a connection is cut when its TLS handshake, the head of a request, or the reading of an answer is not done in time;
(2) one address has so many connections and no more, and all together have a limit, too;
(3) a body is read only if whoever listens asks for it (see :func:`read_body`), and never beyond a number of bytes, a
number of bytes of all bodies together, and a number of seconds;
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

_HEAD_BYTES = 16 * 1024
_HANDSHAKE_SECONDS = 10.0
_MOST_KNOWN = 10_000


@dataclass(frozen=True, slots=True)
class Port:
    """What strangers can take of whoever listens at a port, at most.

    Args:
        head_seconds: For the head of a request to arrive.
        read_seconds: For an answer that waits to be read to move on, and for the rest of it after it is complete.
        idle_seconds: Between two requests on one connection.
        connections: From everybody.
        each: From one address; behind a proxy everybody has the proxy's.
    """

    head_seconds: float = 10.0
    read_seconds: float = 30.0
    idle_seconds: int = 15
    connections: int = 1024
    each: int = 128


class Impatient(H11Protocol):
    """Connections that are counted, and cut when nothing happens on them; uvicorn alone would wait forever."""

    port = Port()
    addresses: Counter[str]
    _cut: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _address = ""

    def connection_made(self, transport: Any) -> None:
        """Count the connection, and wait for the first request."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self.addresses[self._address] += 1
        if self.addresses.total() > self.port.connections or self.addresses[self._address] > self.port.each:
            transport.abort()
            return
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a head, unless it is there."""
        if self._idle():
            self._wait()
        super().data_received(data)
        if not self._idle():
            self._stop("_cut")

    def pause_writing(self) -> None:
        """Wait for whoever reads an answer to go on reading."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.port.read_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Wait no more: somebody reads."""
        super().resume_writing()
        self._stop("_stalled")

    def on_response_complete(self) -> None:
        """What is left of an answer is read soon, or not at all: closing alone would wait for it forever."""
        super().on_response_complete()
        if self.transport.is_closing() and self._stalled is None:
            self._stalled = self.loop.call_later(self.port.read_seconds, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        """Cut a connection on which no further request came; whatever was not read by now never will be."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more, and count the connection no more."""
        self._stop("_cut")
        self._stop("_stalled")
        self.addresses[self._address] -= 1
        if self.addresses[self._address] <= 0:
            del self.addresses[self._address]
        super().connection_lost(exc)

    def _idle(self) -> bool:
        cycle = getattr(self, "cycle", None)
        return cycle is None or cycle.response_complete

    def _wait(self) -> None:
        if self._cut is None:
            self._cut = self.loop.call_later(self.port.head_seconds, self.transport.abort)

    def _stop(self, name: Literal["_cut", "_stalled"]) -> None:
        timer: asyncio.TimerHandle | None = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)


class BriskLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers give a TLS handshake ten seconds; the usual minute lets strangers hold many lines."""

    async def create_server(self, *words: Any, **more: Any) -> Any:
        """Listen, with a limit for handshakes."""
        if more.get("ssl") is not None:
            more.setdefault("ssl_handshake_timeout", _HANDSHAKE_SECONDS)
        return await super().create_server(*words, **more)


def configure(
    app: App, bounds: Port, *, backlog: int = 512, graceful: int = 30, **more: Any
) -> uvicorn.Config:
    """The settings of a web server that waits for nobody.

    Args:
        app: What answers.
        bounds: What strangers can take.
        backlog: Connections that the system keeps until they are taken.
        graceful: Seconds that requests under way have when the server is told to stop.
        more: Address and certificates, as uvicorn takes them.
    """
    protocol = type("Counted", (Impatient,), {"port": bounds, "addresses": Counter()})
    return uvicorn.Config(
        app,
        http=protocol,
        loop="abaton.http_server:BriskLoop",
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        timeout_keep_alive=bounds.idle_seconds,
        timeout_graceful_shutdown=graceful,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        backlog=backlog,
        **{"log_level": "error", "proxy_headers": False, **more},
    )


class TooLarge(Exception):
    """A body is larger than is taken."""


class TooSlow(Exception):
    """A body did not arrive in time."""


class Full(Exception):
    """All bodies that are being read are larger together than is held."""


class Gone(Exception):
    """Whoever asked has hung up."""


class Memory:
    """How many bytes of bodies are held at once, by everybody together.

    >>> memory = Memory(10)
    >>> with memory.held() as take:
    ...     take(7)
    >>> memory.used
    0
    """

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0

    @contextmanager
    def held(self) -> Iterator[Callable[[int], None]]:
        """Count what one request holds until it is answered."""
        mine = 0

        def take(size: int) -> None:
            nonlocal mine
            mine += size
            self.used += size
            if self.used > self.most:
                raise Full

        try:
            yield take
        finally:
            self.used -= mine


async def read_body(
    scope: Scope,
    receive: Receive,
    *,
    most: int,
    seconds: float,
    take: Callable[[int], None] = lambda size: None,
) -> bytes:
    """The body of a request, as far as it may go; one that says beforehand that it is larger is not begun.

    Args:
        scope: The request.
        receive: Gives the body in pieces.
        most: The most bytes.
        seconds: The most seconds until it is complete.
        take: Told of every piece, and raises :class:`Full` if there is no room for it.

    Raises:
        TooLarge, TooSlow, Full, Gone: It was not read to its end.
    """
    declared = b"".join(value for name, value in scope["headers"] if name == b"content-length")
    if declared and (len(declared) > 15 or not declared.isdigit() or int(declared) > most):
        raise TooLarge
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise Gone
                piece = message.get("body", b"")
                size += len(piece)
                if size > most:
                    raise TooLarge
                take(len(piece))
                pieces.append(piece)
                if not message.get("more_body", False):
                    return b"".join(pieces)
    except TimeoutError:
        raise TooSlow from None


def again(body: bytes) -> Receive:
    """A body that was read, to be read once more."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive


def address_of(scope: Scope) -> str:
    """Where a request comes from."""
    return str((scope.get("client") or ("",))[0])


class Rates:
    """One bucket for everybody by name; the longest unseen are forgotten, which only ever gives them more.

    Args:
        rate: Requests a second.
        burst: Requests at once, after a pause.
        tick: Seconds that only go forward.

    >>> rates = Rates(1, 2, lambda: 0.0)
    >>> [rates.take("a") for _ in range(3)], rates.take("b")
    ([0.0, 0.0, 1.0], 0.0)
    """

    def __init__(self, rate: float, burst: float, tick: Callable[[], float]) -> None:
        self.rate, self.burst, self.tick = rate, max(burst, 1.0), tick
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> float:
        """Take one; how many seconds to wait if there is none, else zero."""
        now = self.tick()
        left, since = self._buckets.pop(name, (self.burst, now))
        left = min(self.burst, left + (now - since) * self.rate)
        wait = 0.0 if left >= 1 else (1 - left) / self.rate
        self._buckets[name] = (left if wait else left - 1, now)
        if len(self._buckets) > _MOST_KNOWN:
            self._buckets.popitem(last=False)
        return wait
