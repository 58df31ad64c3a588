"""Attacks on whatever listens, over real sockets: the intake, the dashboard and the gate have one mechanism.

No test waits for a fixed time: each waits until the line is cut, which it must be, however slow the machine is.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests.governance.conftest import DOCUMENT, NOW, STUDY, WHEN, drawing

from abaton.dashboard import Dashboard, make_dashboard
from abaton.engines.flower.tls import issue
from abaton.engines.flower.proxy import Bounds, Gate
from abaton.engines.flower.proxy import configure as configure_gate
from abaton.governance import Inbox, Registry, Ring, SenderRole, Senders, metadata
from abaton.governance.senders import Asked, signed_headers
from abaton.governance.intake import Centre, Limits, Listen, make_app
from abaton.governance.intake.server import _Server, configure
from abaton.http_server import Port
from abaton.http_server import configure as configure_port
from abaton.store import Database, Store

pytestmark = pytest.mark.network
SOON, EACH = 0.4, 4
SITE, CENTRE = (Ring.new(name, drawing(name), WHEN) for name in ("site-a", "centre"))


@contextlib.contextmanager
def served(config) -> Iterator[tuple[str, int]]:
    ready: queue.Queue[str] = queue.Queue()
    server = _Server(config, ready.put)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        parts = urlsplit(ready.get(timeout=30))
        yield str(parts.hostname), int(parts.port or 0)
    finally:
        server.should_exit = True
        thread.join(30)


class Service:
    """One of the three: how it is served, and a request by somebody whom it knows that has a body."""

    def __init__(self, config, path: str, headers: dict[str, str], most: int, plain: bytes = b"POST") -> None:
        self.config, self.path, self.headers, self.most, self.method = config, path, headers, most, plain

    def head(self, length: str) -> bytes:
        told = {"host": "localhost", **self.headers, **({"content-length": length} if length else {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        return self.method + f" {self.path} HTTP/1.1\r\n{lines}\r\n".encode()


def intake(folder, limits: Limits) -> Service:
    database = Database(folder / "centre.db", metadata)
    Senders(database).enter(SITE.public, SenderRole.SITE, NOW)
    Registry(database).publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
    centre = Centre(Inbox(folder / "inbox", database, CENTRE.public, CENTRE.signing), limits, now=lambda: NOW)
    asked = Asked.of(CENTRE.signing.id, "POST", "/v1/consents", "", b"x")
    headers = signed_headers(SITE.signing, asked, NOW, drawing("nonce")(16))
    config = configure(make_app(centre), Listen(port=0), limits)
    return Service(config, "/v1/consents", headers, limits.body)


def dashboard(folder, limits: Limits) -> Service:
    pages = make_dashboard(Dashboard(Store(folder / "store")))
    config = configure(pages, Listen(port=0), limits)
    return Service(config, "/login", {"content-type": "application/x-www-form-urlencoded"}, 16 * 1024)


def gate(folder, limits: Limits) -> Service:
    bounds = Bounds(body=limits.body, seconds=limits.body_seconds, head_seconds=SOON, each=EACH)
    away = httpx.AsyncClient(base_url="https://127.0.0.1:1")
    config = configure_gate(
        Gate(away, bounds, lambda headers: True), bounds,
        {"host": "127.0.0.1", "port": 0, "certificate": None, "key": None},
    )  # fmt: skip
    return Service(config, "/v1/fleet/push-object", {}, limits.body)


@pytest.fixture(params=[intake, dashboard, gate], ids=lambda make: make.__name__)
def service(request, tmp_path, monkeypatch) -> Service:
    monkeypatch.setattr("abaton.dashboard.middleware._BODY_SECONDS", SOON)
    limits = Limits(body=1000, head_seconds=SOON, body_seconds=SOON, read_seconds=SOON, each=EACH)
    return request.param(tmp_path, limits)


def dial(at: tuple[str, int]) -> socket.socket:
    return socket.create_connection(at, timeout=30)


def heard(line: socket.socket) -> bytes:
    """Everything until the line is cut; a line that is never cut fails by its timeout."""
    found = b""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while piece := line.recv(1 << 16):
            found += piece
    return found


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1]) if answer else 0


def test_a_line_that_says_nothing_or_half_a_head_is_cut(service):
    with served(service.config) as at:
        for begun in (b"", b"GET / HT", service.head("5")[:-2]):
            with dial(at) as line:
                line.sendall(begun)
                assert heard(line) == b""


def test_a_drip_of_headers_does_not_help(service):
    with served(service.config) as at, dial(at) as line:
        line.sendall(b"GET / HTTP/1.1\r\n")
        line.settimeout(0.05)
        is_cut, end = False, time.monotonic() + 30
        while not is_cut and time.monotonic() < end:  # a head that never ends, a line at a time
            try:
                line.sendall(b"x: y\r\n")
                is_cut = line.recv(1) == b""
            except TimeoutError:
                pass
            except OSError:
                is_cut = True
        assert is_cut


def test_a_body_that_does_not_come_is_not_waited_for(service):
    with served(service.config) as at:
        for drip in (b"", b"t"):
            with dial(at) as line:
                line.sendall(service.head("100") + drip)
                assert status(heard(line)) in (401, 408, 503)


@pytest.mark.parametrize("size", ["1000000000", "9" * 40])
def test_a_body_that_says_that_it_is_large_is_not_begun(service, size):
    with served(service.config) as at, dial(at) as line:
        line.sendall(service.head(size))
        assert status(heard(line)) in (400, 413)


def test_a_body_that_turns_out_large_is_not_read_on(service):
    head = service.head("").replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n")
    with served(service.config) as at, dial(at) as line:
        line.sendall(head)
        with contextlib.suppress(OSError):
            for _ in range(service.most // 100 + 50):
                line.sendall(b"64\r\n" + b"x" * 100 + b"\r\n")
        assert status(heard(line)) in (0, 413)  # nothing if the line was cut while it was still sent to


def test_one_address_has_so_many_lines_and_no_more(service):
    with served(service.config) as at, contextlib.ExitStack() as stack:
        lines = [stack.enter_context(dial(at)) for _ in range(EACH + 3)]
        # Those that are too many are cut at once, the others when their head has not come; then there is room again.
        for line in lines:
            assert heard(line) == b""
        with dial(at) as line:
            line.sendall(service.head("1000000000"))
            assert status(heard(line)) in (400, 413)


async def endless(scope: Any, receive: Any, send: Any) -> None:
    """An answer that is larger than any buffer on its way."""
    size = 64 << 20
    headers = [(b"content-length", str(size).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(size >> 16):
        await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
    await send({"type": "http.response.body"})


def test_who_does_not_read_an_answer_is_cut():
    config = configure_port(endless, Port(read_seconds=SOON), host="127.0.0.1", port=0)
    lost = threading.Event()
    protocol = config.http
    was = protocol.connection_lost

    def lose(self, error) -> None:
        was(self, error)
        lost.set()

    protocol.connection_lost = lose
    with served(config) as at, dial(at) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert lost.wait(30), "the server still holds the line, and 64 MB that nobody reads"


def test_a_handshake_that_does_not_go_on_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.http_server._HANDSHAKE_SECONDS", SOON)
    own = issue(tmp_path / "certificates", ["127.0.0.1"], datetime.now(UTC))
    tls = {"ssl_certfile": str(own.certificate), "ssl_keyfile": str(own.key)}
    config = configure_port(endless, Port(), host="127.0.0.1", port=0, **tls)
    with served(config) as at:
        for begun in (b"", b"\x16\x03\x01\x02\x00"):
            with dial(at) as line:
                line.sendall(begun)
                assert not heard(line).startswith(b"HTTP")
        trusted = ssl.create_default_context(cafile=str(own.authority))
        with dial(at) as line, trusted.wrap_socket(line, server_hostname="127.0.0.1") as good:
            good.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert good.recv(12) == b"HTTP/1.1 200"
