"""Proxy of the SuperLink: it forwards the requests of nodes only, within resource limits."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.engines.flower.flower_processes import until

from abaton.engines.flower.proxy import (
    FORWARDED_PATHS,
    ProxyLimits,
    SuperLinkProxy,
    configure,
    open_superlink_client,
)
from abaton.engines.flower.supervisor import HealthEndpoint, free_port
from abaton.engines.flower.tls import (
    AdmittedKeys,
    CertificateAuthority,
    Headers,
    admit_key,
    create_node_key,
    issue_certificate,
    revoke_key,
)

SIGNED = {"flwr-public-key": "key", "flwr-signature": "signature", "flwr-timestamp": "now"}
PUSH = "/v1/fleet/push-messages"


def ADMIT_ALL(headers: Headers) -> bool:
    """Admit every caller."""
    return True


Answer = Callable[[httpx.Request], httpx.Response]


class RecordingSuperLink:
    """SuperLink that records requests."""

    def __init__(self, answer: Answer = lambda request: httpx.Response(200, content=request.content[::-1])):
        self.requests: list[httpx.Request] = []
        self.answer = answer

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.answer(request)


def send_request(
    superlink_double: RecordingSuperLink,
    method: str,
    path: str,
    limits: ProxyLimits | None = None,
    **options: Any,
) -> httpx.Response:
    """Return the proxy's response to one request."""

    async def ask() -> httpx.Response:
        inside = httpx.AsyncClient(
            transport=httpx.MockTransport(superlink_double), base_url="https://127.0.0.1:1"
        )
        proxy = httpx.ASGITransport(SuperLinkProxy(inside, limits or ProxyLimits(), ADMIT_ALL))
        async with inside, httpx.AsyncClient(transport=proxy, base_url="https://centre") as node:
            return await node.request(method, path, **options)

    return asyncio.run(ask())


@pytest.mark.parametrize("path", sorted(set(FORWARDED_PATHS.values()) - {PUSH}))
def test_requests_of_nodes_are_forwarded_with_their_signature(path):
    superlink_double = RecordingSuperLink()
    headers = {**SIGNED, "content-type": "application/protobuf", "flwr-package-version": "1.41.0"}
    answer = send_request(superlink_double, "POST", path, content=b"abc", headers=headers)
    assert (answer.status_code, answer.content) == (200, b"cba")
    (request,) = superlink_double.requests
    assert (request.method, request.url.path, request.content) == ("POST", path, b"abc")
    assert {name: request.headers[name] for name in headers} == headers


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/control/register-node"),
        ("POST", "/v1/runtime/acquire-task"),
        ("POST", "/v1/runtime/push-messages"),
        ("POST", "/v1/fleet/register-node"),
        ("POST", "/v1/fleet/unregister-node"),
        ("POST", "/v1/fleet/get-run"),
        ("POST", "/v1/fleet/get-fab"),
        ("POST", "/v1/fleet/"),
        ("POST", "/v1/fleet"),
        ("POST", "/v1/fleet/pull-messages/"),
        ("POST", "//v1/fleet/pull-messages"),
        ("POST", "/V1/fleet/pull-messages"),
        ("POST", "/v1/fleet/pull-messages?then=/v1/control/start-run"),
        ("POST", "/v1/fleet/%70ull-messages"),
        ("POST", "/v1/fleet/..%2fcontrol/start-run"),
        ("POST", "/v1/fleet/pull-messages%2f..%2f..%2fcontrol%2fstart-run"),
        ("POST", "/v1/fleet/pull-messages;x"),
        ("POST", "/"),
        ("GET", "/v1/fleet/pull-messages"),
        ("PUT", "/v1/fleet/push-object"),
        ("OPTIONS", "/v1/fleet/pull-messages"),
        ("GET", "/health"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
    ],
)
def test_other_requests_do_not_reach_the_superlink(method, path):
    superlink_double = RecordingSuperLink()
    answer = send_request(superlink_double, method, path, content=b"abc", headers=SIGNED)
    assert (answer.status_code, answer.content, superlink_double.requests) == (404, b"", [])


def pushed(node: int, *heads: tuple[int, str]) -> bytes:
    """Body of a push: messages with sender and the message they reply to."""
    fleet = pytest.importorskip("flwr.proto.fleet_pb2", reason="Flower is missing: install abaton[flower]")
    message, nodes = import_module("flwr.proto.message_pb2"), import_module("flwr.proto.node_pb2")
    messages = [
        message.Message(metadata=message.Metadata(src_node_id=source, reply_to_message_id=to, run_id=1))
        for source, to in heads
    ]
    return bytes(
        fleet.PushMessagesRequest(node=nodes.Node(node_id=node), messages_list=messages).SerializeToString()
    )


def test_a_node_may_push_replies_in_its_own_name():
    superlink_double = RecordingSuperLink()
    body = pushed(7, (7, "request"))
    assert send_request(superlink_double, "POST", PUSH, content=body, headers=SIGNED).content == body[::-1]
    assert send_request(superlink_double, "POST", PUSH, content=pushed(7), headers=SIGNED).status_code == 200
    assert len(superlink_double.requests) == 2


@pytest.mark.parametrize(
    "heads", [[(1, "")], [(7, "")], [(8, "request")], [(7, "request"), (8, "request")], [(0, "request")]]
)
def test_a_node_may_not_push_in_the_name_of_another(heads):
    superlink_double = RecordingSuperLink()
    for body in (pushed(7, *heads), b"no protobuf"):
        assert send_request(superlink_double, "POST", PUSH, content=body, headers=SIGNED).status_code == 404
    assert superlink_double.requests == []


def test_other_headers_are_not_forwarded():
    superlink_double = RecordingSuperLink(
        lambda _: httpx.Response(412, content=b"why", headers={"set-cookie": "a=b", "server": "x"})
    )
    others = {"authorization": "Bearer x", "flwr-task-token": "x", "flwr-superexec-signature": "x"}
    others |= {"x-forwarded-for": "127.0.0.1", "x-flwr-client": "x", "cookie": "a=b"}
    answer = send_request(
        superlink_double, "POST", "/v1/fleet/activate-node", content=b"abc", headers={**SIGNED, **others}
    )
    assert not set(others) & set(superlink_double.requests[0].headers)
    assert superlink_double.requests[0].headers["host"] == "127.0.0.1:1"
    assert (answer.status_code, answer.content) == (412, b"why")
    assert not {"set-cookie", "server"} & set(answer.headers)


def test_a_body_that_is_too_large_is_refused():
    superlink_double, limits = RecordingSuperLink(), ProxyLimits(max_body_bytes=1000)
    assert (
        send_request(
            superlink_double, "POST", "/v1/fleet/push-object", limits, content=bytes(1000)
        ).status_code
        == 200
    )
    assert (
        send_request(
            superlink_double, "POST", "/v1/fleet/push-object", limits, content=bytes(1001)
        ).status_code
        == 413
    )
    assert len(superlink_double.requests) == 1


def test_the_memory_of_all_bodies_is_bounded_and_released():
    async def ask() -> list[int]:
        superlink_double = RecordingSuperLink()
        inside = httpx.AsyncClient(
            transport=httpx.MockTransport(superlink_double), base_url="https://127.0.0.1:1"
        )
        proxy = SuperLinkProxy(inside, ProxyLimits(max_buffered_bytes=1500), ADMIT_ALL)
        more = asyncio.Event()

        async def slowly():
            yield bytes(1000)
            await more.wait()

        async with (
            inside,
            httpx.AsyncClient(transport=httpx.ASGITransport(proxy), base_url="https://centre") as node,
        ):
            first = asyncio.create_task(node.post("/v1/fleet/push-object", content=slowly()))
            await asyncio.sleep(0.05)
            second = await node.post("/v1/fleet/push-object", content=bytes(1000))
            more.set()
            third = await first
            fourth = await node.post("/v1/fleet/push-object", content=bytes(1000))
        return [response.status_code for response in (second, third, fourth)]

    assert asyncio.run(ask()) == [503, 200, 200]


def test_a_body_that_does_not_arrive_times_out():
    superlink_double = RecordingSuperLink()

    async def never():
        yield b"a"
        await asyncio.sleep(60)

    answer = send_request(
        superlink_double, "POST", "/v1/fleet/push-object", ProxyLimits(transfer_seconds=0.1), content=never()
    )
    assert (answer.status_code, superlink_double.requests) == (503, [])


@pytest.mark.parametrize(("error", "status"), [(httpx.ConnectError, 502), (httpx.ReadTimeout, 504)])
def test_nodes_get_a_retryable_status_when_the_superlink_is_unavailable(error, status):
    def away(request: httpx.Request) -> httpx.Response:
        raise error("x", request=request)

    assert (
        send_request(RecordingSuperLink(away), "POST", "/v1/fleet/pull-messages", content=b"").status_code
        == status
    )


# --- with sockets -----------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> CertificateAuthority:
    return issue_certificate(tmp_path / "certificates", ["127.0.0.1"], datetime.now(UTC))


@contextmanager
def listening(config: uvicorn.Config) -> Iterator[None]:
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(20)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """SuperLink that responds with the request body."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def superlink(own: CertificateAuthority, port: int) -> uvicorn.Config:
    return uvicorn.Config(
        echo, port=port, ssl_certfile=str(own.certificate), ssl_keyfile=str(own.key), lifespan="off",
        log_level="error", ws="none",
    )  # fmt: skip


def settings(own: CertificateAuthority, port: int, superlink_double: int) -> dict[str, Any]:
    here = {
        "host": "127.0.0.1",
        "port": port,
        "superlink": f"127.0.0.1:{superlink_double}",
        "authority": str(own.authority),
    }
    return {
        **here, "certificate": str(own.certificate), "key": str(own.key),
        "keys": str(own.key.parent / "node-keys"),
    }  # fmt: skip


def signed(key: Path, when: datetime | None = None) -> dict[str, str]:
    """Headers that prove a node's key, as Flower's nodes send them."""
    private = serialization.load_ssh_private_key(key.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    timestamp = (when or datetime.now(UTC)).isoformat()
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    signature = private.sign(timestamp.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        "flwr-public-key": base64.b64encode(public).decode(), "flwr-timestamp": timestamp,
        "flwr-signature": base64.b64encode(signature).decode(),
    }  # fmt: skip


def test_the_key_of_a_node_is_checked_before_the_body(tmp_path):
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    (admitted, public), (other, _) = (
        create_node_key(tmp_path / "admitted"),
        create_node_key(tmp_path / "other"),
    )
    callers = AdmittedKeys(tmp_path / "keys", lambda: now)

    def admits(headers: dict[str, str]) -> bool:
        return callers.admit([(name.encode(), value.encode("latin-1")) for name, value in headers.items()])

    good = signed(admitted, now)
    assert not admits(good), "no key is on the list yet"
    admit_key(tmp_path / "keys", 7, public.read_bytes())
    assert admits(good)
    assert admits(signed(admitted, now - timedelta(seconds=290)))
    for headers in (
        signed(other, now),
        signed(admitted, now - timedelta(seconds=400)),
        signed(admitted, now + timedelta(seconds=60)),
        {**good, "flwr-signature": signed(other, now)["flwr-signature"]},
        {**good, "flwr-timestamp": (now + timedelta(seconds=1)).isoformat()},
        {**good, "flwr-timestamp": "é"},
        {**good, "flwr-timestamp": now.replace(tzinfo=None).isoformat()},
        {**good, "flwr-public-key": "not base64"},
        *({name: value for name, value in good.items() if name != removed} for removed in good),
    ):
        assert not admits(headers)
    revoke_key(tmp_path / "keys", 7)
    assert not admits(good)


def test_the_body_of_an_unauthorised_request_is_not_read():
    class Unread(httpx.AsyncByteStream):
        async def __aiter__(self):
            pytest.fail("the body was read")
            yield b""

    async def ask() -> int:
        proxy = SuperLinkProxy(httpx.AsyncClient(), ProxyLimits(), lambda headers: False)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(proxy), base_url="https://centre"
        ) as stranger:
            return (await stranger.post("/v1/fleet/push-object", content=Unread())).status_code

    assert asyncio.run(ask()) == 401


def test_requests_of_an_address_are_rate_limited():
    async def ask() -> list[int]:
        inside = httpx.AsyncClient(
            transport=httpx.MockTransport(RecordingSuperLink()), base_url="https://127.0.0.1:1"
        )
        proxy = SuperLinkProxy(inside, ProxyLimits(rate=0.001, burst=3), ADMIT_ALL)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(proxy), base_url="https://centre") as node:
            return [(await node.post("/v1/fleet/pull-messages")).status_code for _ in range(5)]

    assert asyncio.run(ask()) == [200, 200, 200, 503, 503]


def trusted(own: CertificateAuthority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(own.authority))


def test_the_proxy_forwards_over_tls_and_logs_nothing(own, tmp_path):
    pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
    port, superlink_double, file = free_port(), free_port(), tmp_path / "proxy.json"
    proxy_settings = settings(own, port, superlink_double)
    file.write_text(json.dumps(proxy_settings))
    key, public = create_node_key(tmp_path / "node")
    admit_key(Path(proxy_settings["keys"]), 7, public.read_bytes())
    command = [sys.executable, "-m", "abaton.engines.flower.proxy", str(file)]
    log = tmp_path / "log"
    with log.open("wb") as out, listening(superlink(own, superlink_double)):
        program = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            with httpx.Client(verify=trusted(own), base_url=f"https://127.0.0.1:{port}") as node:
                until(lambda: not is_silent(port))
                body = b"Canary-4711" * 300_000
                assert node.post("/v1/fleet/push-object", content=body, headers=signed(key)).content == body
                assert node.post("/v1/fleet/push-object", content=body[:9]).status_code == 401
                assert node.post("/v1/control/start-run", content=body[:9]).status_code == 404
            with socket.create_connection(("127.0.0.1", port)) as tcp:
                tcp.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\n\r\n")
                assert not tcp.recv(100).startswith(b"HTTP/")
            for text in (
                b"Canary-4711",
                b"POST /v1/fleet/pull-object HTTP/1.1\r\nx: " + b"Canary-4711" * 2000,
            ):
                with connected(own, port) as connection:
                    connection.settimeout(10)
                    connection.sendall(text + b"\r\n\r\n")
                    assert connection.recv(100).startswith(b"HTTP/1.1 400")
        finally:
            program.terminate()
            program.wait(30)
    assert log.read_text() == ""


def is_silent(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return True
    return False


def test_connections_are_limited_and_idle_ones_are_closed(own):
    port, limits = free_port(), ProxyLimits(max_connections_per_address=3, header_seconds=1.0)
    proxy = SuperLinkProxy(open_superlink_client("127.0.0.1:1", own.authority, limits), limits, ADMIT_ALL)
    config = configure(proxy, limits, settings(own, port, 1))
    with listening(config):
        first = [connected(own, port) for _ in range(5)]
        assert sum(map(is_open, first)) == 3, "the others were closed at once"
        until(lambda: not any(map(is_open, first)))
        with httpx.Client(verify=trusted(own)) as node:
            assert node.post(f"https://127.0.0.1:{port}/v1/fleet/pull-object").status_code == 502
        for connection in first:
            connection.close()


def connected(own: CertificateAuthority, port: int) -> ssl.SSLSocket:
    raw = socket.create_connection(("127.0.0.1", port))
    connection = trusted(own).wrap_socket(raw, server_hostname="127.0.0.1")
    connection.settimeout(0.2)
    return connection


def is_open(connection: ssl.SSLSocket) -> bool:
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def test_a_certificate_may_be_valid_for_the_public_name_only(tmp_path):
    named = issue_certificate(tmp_path / "named", ["centre.example.org"], datetime.now(UTC))
    port, limits = free_port(), ProxyLimits()
    proxy = SuperLinkProxy(open_superlink_client("127.0.0.1:1", named.authority, limits), limits, ADMIT_ALL)
    with listening(configure(proxy, limits, settings(named, port, 1))):
        address = f"127.0.0.1:{port}"
        assert HealthEndpoint("proxy", address, named.authority, 404, "centre.example.org").problem() == ""
        assert "CERTIFICATE_VERIFY_FAILED" in HealthEndpoint("proxy", address, named.authority, 404).problem()
        assert (
            HealthEndpoint("SuperLink", address, named.authority, 200, "centre.example.org").problem()
            == "status 404"
        )
