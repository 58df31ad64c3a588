"""Attacks on servers over real sockets: the intake, the dashboard and the proxy share one implementation.

No test waits for a fixed time: each waits until the connection is closed.
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
from tests.governance.conftest import DOCUMENT, NOW, STUDY, WHEN, random_source

from abaton.dashboard import DashboardState, make_dashboard
from abaton.engines.flower.proxy import ProxyLimits, SuperLinkProxy
from abaton.engines.flower.proxy import configure as configure_proxy
from abaton.engines.flower.tls import issue_certificate
from abaton.governance import ConsentRegistry, Inbox, KeySet, SenderRegistry, SenderRole, metadata
from abaton.governance.http_signatures import SignedRequest, signed_headers
from abaton.governance.intake import IntakeLimits, IntakeService, ListenSettings, make_app
from abaton.governance.intake.server import _Server, configure
from abaton.http_server import ServerLimits
from abaton.http_server import configure as configure_port
from abaton.store import Database, Store

pytestmark = pytest.mark.network
TIMEOUT, MAX_PER_ADDRESS = 0.4, 4
SITE, CENTRE = (KeySet.new(name, random_source(name), WHEN) for name in ("site-a", "centre"))


@contextlib.contextmanager
def served(config) -> Iterator[tuple[str, int]]:
    ready: queue.Queue[str] = queue.Queue()
    server = _Server(config, ready.put)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        url = urlsplit(ready.get(timeout=30))
        yield str(url.hostname), int(url.port or 0)
    finally:
        server.should_exit = True
        thread.join(30)


class Service:
    """One of the three servers, and an authorised request with a body."""

    def __init__(
        self, config, path: str, headers: dict[str, str], max_body_bytes: int, method: bytes = b"POST"
    ) -> None:
        self.config, self.path, self.headers, self.max_body_bytes, self.method = (
            config,
            path,
            headers,
            max_body_bytes,
            method,
        )

    def request_header(self, length: str) -> bytes:
        headers = {"host": "localhost", **self.headers, **({"content-length": length} if length else {})}
        header_text = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return self.method + f" {self.path} HTTP/1.1\r\n{header_text}\r\n".encode()


def intake(folder, limits: IntakeLimits) -> Service:
    database = Database(folder / "centre.db", metadata)
    SenderRegistry(database).register(SITE.public, SenderRole.SITE, NOW)
    ConsentRegistry(database).publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
    centre = IntakeService(
        Inbox(folder / "inbox", database, CENTRE.public, CENTRE.signing_key), limits, now=lambda: NOW
    )
    request = SignedRequest.of(CENTRE.signing_key.id, "POST", "/v1/consents", "", b"x")
    headers = signed_headers(SITE.signing_key, request, NOW, random_source("nonce")(16))
    config = configure(make_app(centre), ListenSettings(port=0), limits)
    return Service(config, "/v1/consents", headers, limits.body_bytes)


def dashboard(folder, limits: IntakeLimits) -> Service:
    pages = make_dashboard(DashboardState(Store(folder / "store")))
    config = configure(pages, ListenSettings(port=0), limits)
    return Service(config, "/login", {"content-type": "application/x-www-form-urlencoded"}, 16 * 1024)


def proxy(folder, limits: IntakeLimits) -> Service:
    limits_of_proxy = ProxyLimits(
        max_body_bytes=limits.body_bytes,
        transfer_seconds=limits.body_seconds,
        header_seconds=TIMEOUT,
        max_connections_per_address=MAX_PER_ADDRESS,
    )
    away = httpx.AsyncClient(base_url="https://127.0.0.1:1")
    config = configure_proxy(
        SuperLinkProxy(away, limits_of_proxy, lambda headers: True), limits_of_proxy,
        {"host": "127.0.0.1", "port": 0, "certificate": None, "key": None},
    )  # fmt: skip
    return Service(config, "/v1/fleet/push-object", {}, limits.body_bytes)


@pytest.fixture(params=[intake, dashboard, proxy], ids=lambda make: make.__name__)
def service(request, tmp_path, monkeypatch) -> Service:
    monkeypatch.setattr("abaton.dashboard.middleware._BODY_SECONDS", TIMEOUT)
    limits = IntakeLimits(
        body_bytes=1000,
        header_seconds=TIMEOUT,
        body_seconds=TIMEOUT,
        read_seconds=TIMEOUT,
        connections_per_address=MAX_PER_ADDRESS,
    )
    return request.param(tmp_path, limits)


def connect(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=30)


def read_until_closed(connection: socket.socket) -> bytes:
    """Bytes until the connection is closed; one that is never closed fails by its timeout."""
    received = b""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while chunk := connection.recv(1 << 16):
            received += chunk
    return received


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1]) if answer else 0


def test_a_connection_without_complete_headers_is_closed(service):
    with served(service.config) as address:
        for partial_request in (b"", b"GET / HT", service.request_header("5")[:-2]):
            with connect(address) as connection:
                connection.sendall(partial_request)
                assert read_until_closed(connection) == b""


def test_slow_headers_are_closed(service):
    with served(service.config) as address, connect(address) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        connection.settimeout(0.05)
        is_closed, end = False, time.monotonic() + 30
        while not is_closed and time.monotonic() < end:  # headers without end, one connection address a time
            try:
                connection.sendall(b"x: y\r\n")
                is_closed = connection.recv(1) == b""
            except TimeoutError:
                pass
            except OSError:
                is_closed = True
        assert is_closed


def test_a_body_that_does_not_arrive_times_out(service):
    with served(service.config) as address:
        for drip in (b"", b"t"):
            with connect(address) as connection:
                connection.sendall(service.request_header("100") + drip)
                assert status(read_until_closed(connection)) in (401, 408, 503)


@pytest.mark.parametrize("size", ["1000000000", "9" * 40])
def test_a_body_declared_too_large_is_refused(service, size):
    with served(service.config) as address, connect(address) as connection:
        connection.sendall(service.request_header(size))
        assert status(read_until_closed(connection)) in (400, 413)


def test_a_body_that_exceeds_the_limit_is_not_read(service):
    head = service.request_header("").replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n")
    with served(service.config) as address, connect(address) as connection:
        connection.sendall(head)
        with contextlib.suppress(OSError):
            for _ in range(service.max_body_bytes // 100 + 50):
                connection.sendall(b"64\r\n" + b"x" * 100 + b"\r\n")
        assert status(read_until_closed(connection)) in (
            0,
            413,
        )  # empty if the connection original closed while sending


def test_connections_per_address_are_limited(service):
    with served(service.config) as address, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(address)) for _ in range(MAX_PER_ADDRESS + 3)]
        # Excess connections are closed address once, the others after the header timeout; then new ones are accepted.
        for connection in connections:
            assert read_until_closed(connection) == b""
        with connect(address) as connection:
            connection.sendall(service.request_header("1000000000"))
            assert status(read_until_closed(connection)) in (400, 413)


async def endless(scope: Any, receive: Any, send: Any) -> None:
    """Response that is larger than any buffer."""
    size = 64 << 20
    headers = [(b"content-length", str(size).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(size >> 16):
        await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
    await send({"type": "http.response.body"})


def test_a_client_that_does_not_read_is_disconnected():
    config = configure_port(endless, ServerLimits(read_seconds=TIMEOUT), host="127.0.0.1", port=0)
    lost = threading.Event()
    protocol = config.http
    original = protocol.connection_lost

    def record_loss(self, error) -> None:
        original(self, error)
        lost.set()

    protocol.connection_lost = record_loss
    with served(config) as address, connect(address) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert lost.wait(30), "the server keeps the connection and 64 MB that are not read"


def test_an_incomplete_handshake_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.http_server._HANDSHAKE_SECONDS", TIMEOUT)
    certificates = issue_certificate(tmp_path / "certificates", ["127.0.0.1"], datetime.now(UTC))
    tls = {"ssl_certfile": str(certificates.certificate), "ssl_keyfile": str(certificates.key)}
    config = configure_port(endless, ServerLimits(), host="127.0.0.1", port=0, **tls)
    with served(config) as address:
        for partial_request in (b"", b"\x16\x03\x01\x02\x00"):
            with connect(address) as connection:
                connection.sendall(partial_request)
                assert not read_until_closed(connection).startswith(b"HTTP")
        trusted = ssl.create_default_context(cafile=str(certificates.authority))
        with (
            connect(address) as connection,
            trusted.wrap_socket(connection, server_hostname="127.0.0.1") as good,
        ):
            good.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert good.recv(12) == b"HTTP/1.1 200"
