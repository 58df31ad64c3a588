"""The gate before the SuperLink: what nodes ask for is passed, whatever else is asked is not, and nobody takes much."""

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
from tests.engines.flower.programs import until

from abaton.engines.flower.tls import (
    Callers,
    Certificates,
    Headers,
    drop_key,
    enter_key,
    issue,
    node_key,
)
from abaton.engines.flower.proxy import PASSED, Bounds, Gate, configure, dial
from abaton.engines.flower.supervisor import Door, free_port

SIGNED = {"flwr-public-key": "key", "flwr-signature": "signature", "flwr-timestamp": "now"}
PUSH = "/v1/fleet/push-messages"


def ANYBODY(headers: Headers) -> bool:
    """Admits whoever asks, for what is not about who asks."""
    return True


Answer = Callable[[httpx.Request], httpx.Response]


class Link:
    """A SuperLink that notes what reaches it."""

    def __init__(self, answer: Answer = lambda request: httpx.Response(200, content=request.content[::-1])):
        self.heard: list[httpx.Request] = []
        self.answer = answer

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.heard.append(request)
        return self.answer(request)


def asked(link: Link, method: str, path: str, bounds: Bounds | None = None, **words: Any) -> httpx.Response:
    """What the gate answers to one request."""

    async def ask() -> httpx.Response:
        inside = httpx.AsyncClient(transport=httpx.MockTransport(link), base_url="https://127.0.0.1:1")
        gate = httpx.ASGITransport(Gate(inside, bounds or Bounds(), ANYBODY))
        async with inside, httpx.AsyncClient(transport=gate, base_url="https://centre") as node:
            return await node.request(method, path, **words)

    return asyncio.run(ask())


@pytest.mark.parametrize("path", sorted(set(PASSED.values()) - {PUSH}))
def test_what_a_node_asks_for_is_passed_with_its_signature_and_answered(path):
    link = Link()
    told = {**SIGNED, "content-type": "application/protobuf", "flwr-package-version": "1.41.0"}
    answer = asked(link, "POST", path, content=b"abc", headers=told)
    assert (answer.status_code, answer.content) == (200, b"cba")
    (heard,) = link.heard
    assert (heard.method, heard.url.path, heard.content) == ("POST", path, b"abc")
    assert {name: heard.headers[name] for name in told} == told


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
def test_whatever_else_is_asked_never_reaches_the_superlink(method, path):
    link = Link()
    answer = asked(link, method, path, content=b"abc", headers=SIGNED)
    assert (answer.status_code, answer.content, link.heard) == (404, b"", [])


def pushed(node: int, *heads: tuple[int, str]) -> bytes:
    """What a node pushes: messages with a sender and what they answer."""
    fleet = pytest.importorskip("flwr.proto.fleet_pb2", reason="Flower is missing: install abaton[flower]")
    message, nodes = import_module("flwr.proto.message_pb2"), import_module("flwr.proto.node_pb2")
    messages = [
        message.Message(metadata=message.Metadata(src_node_id=source, reply_to_message_id=to, run_id=1))
        for source, to in heads
    ]
    return bytes(
        fleet.PushMessagesRequest(node=nodes.Node(node_id=node), messages_list=messages).SerializeToString()
    )


def test_a_node_pushes_answers_in_its_own_name():
    link = Link()
    body = pushed(7, (7, "asked"))
    assert asked(link, "POST", PUSH, content=body, headers=SIGNED).content == body[::-1]
    assert asked(link, "POST", PUSH, content=pushed(7), headers=SIGNED).status_code == 200
    assert len(link.heard) == 2


@pytest.mark.parametrize(
    "heads", [[(1, "")], [(7, "")], [(8, "asked")], [(7, "asked"), (8, "asked")], [(0, "asked")]]
)
def test_and_none_in_the_name_of_the_controller_or_another_node(heads):
    link = Link()
    for body in (pushed(7, *heads), b"no protobuf"):
        assert asked(link, "POST", PUSH, content=body, headers=SIGNED).status_code == 404
    assert link.heard == []


def test_headers_that_nodes_do_not_send_stay_outside():
    link = Link(lambda _: httpx.Response(412, content=b"why", headers={"set-cookie": "a=b", "server": "x"}))
    others = {"authorization": "Bearer x", "flwr-task-token": "x", "flwr-superexec-signature": "x"}
    others |= {"x-forwarded-for": "127.0.0.1", "x-flwr-client": "x", "cookie": "a=b"}
    answer = asked(link, "POST", "/v1/fleet/activate-node", content=b"abc", headers={**SIGNED, **others})
    assert not set(others) & set(link.heard[0].headers)
    assert link.heard[0].headers["host"] == "127.0.0.1:1"
    assert (answer.status_code, answer.content) == (412, b"why")
    assert not {"set-cookie", "server"} & set(answer.headers)


def test_a_body_that_is_too_large_is_refused_and_not_passed():
    link, bounds = Link(), Bounds(body=1000)
    assert asked(link, "POST", "/v1/fleet/push-object", bounds, content=bytes(1000)).status_code == 200
    assert asked(link, "POST", "/v1/fleet/push-object", bounds, content=bytes(1001)).status_code == 413
    assert len(link.heard) == 1


def test_bodies_together_are_bounded_and_let_go():
    async def ask() -> list[int]:
        link = Link()
        inside = httpx.AsyncClient(transport=httpx.MockTransport(link), base_url="https://127.0.0.1:1")
        gate = Gate(inside, Bounds(held=1500), ANYBODY)
        more = asyncio.Event()

        async def slowly():
            yield bytes(1000)
            await more.wait()

        async with (
            inside,
            httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="https://centre") as node,
        ):
            first = asyncio.create_task(node.post("/v1/fleet/push-object", content=slowly()))
            await asyncio.sleep(0.05)
            second = await node.post("/v1/fleet/push-object", content=bytes(1000))
            more.set()
            third = await first
            fourth = await node.post("/v1/fleet/push-object", content=bytes(1000))
        return [each.status_code for each in (second, third, fourth)]

    assert asyncio.run(ask()) == [503, 200, 200]


def test_a_body_that_does_not_come_is_not_waited_for():
    link = Link()

    async def never():
        yield b"a"
        await asyncio.sleep(60)

    answer = asked(link, "POST", "/v1/fleet/push-object", Bounds(seconds=0.1), content=never())
    assert (answer.status_code, link.heard) == (503, [])


@pytest.mark.parametrize(("trouble", "status"), [(httpx.ConnectError, 502), (httpx.ReadTimeout, 504)])
def test_nodes_ask_again_when_the_superlink_is_away_or_slow(trouble, status):
    def away(request: httpx.Request) -> httpx.Response:
        raise trouble("x", request=request)

    assert asked(Link(away), "POST", "/v1/fleet/pull-messages", content=b"").status_code == status


# --- with sockets -----------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Certificates:
    return issue(tmp_path / "certificates", ["127.0.0.1"], datetime.now(UTC))


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
    """A SuperLink that answers with what it is sent."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def superlink(own: Certificates, port: int) -> uvicorn.Config:
    return uvicorn.Config(
        echo, port=port, ssl_certfile=str(own.certificate), ssl_keyfile=str(own.key), lifespan="off",
        log_level="error", ws="none",
    )  # fmt: skip


def settings(own: Certificates, port: int, link: int) -> dict[str, Any]:
    here = {"host": "127.0.0.1", "port": port, "link": f"127.0.0.1:{link}", "authority": str(own.authority)}
    return {
        **here, "certificate": str(own.certificate), "key": str(own.key),
        "keys": str(own.key.parent / "node-keys"),
    }  # fmt: skip


def signed(key: Path, when: datetime | None = None) -> dict[str, str]:
    """The headers by which a node shows its key, as Flower's nodes do."""
    private = serialization.load_ssh_private_key(key.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    stamp = (when or datetime.now(UTC)).isoformat()
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    signature = private.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        "flwr-public-key": base64.b64encode(public).decode(), "flwr-timestamp": stamp,
        "flwr-signature": base64.b64encode(signature).decode(),
    }  # fmt: skip


def test_who_holds_the_key_of_an_admitted_node_is_known_before_the_body(tmp_path):
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    (mine, public), (other, _) = node_key(tmp_path / "mine"), node_key(tmp_path / "other")
    callers = Callers(tmp_path / "keys", lambda: now)

    def admits(headers: dict[str, str]) -> bool:
        return callers.admit([(name.encode(), value.encode("latin-1")) for name, value in headers.items()])

    good = signed(mine, now)
    assert not admits(good), "nobody is on the list yet"
    enter_key(tmp_path / "keys", 7, public.read_bytes())
    assert admits(good)
    assert admits(signed(mine, now - timedelta(seconds=290)))
    for strange in (
        signed(other, now),
        signed(mine, now - timedelta(seconds=400)),
        signed(mine, now + timedelta(seconds=60)),
        {**good, "flwr-signature": signed(other, now)["flwr-signature"]},
        {**good, "flwr-timestamp": (now + timedelta(seconds=1)).isoformat()},
        {**good, "flwr-timestamp": "é"},
        {**good, "flwr-timestamp": now.replace(tzinfo=None).isoformat()},
        {**good, "flwr-public-key": "not base64"},
        *({name: value for name, value in good.items() if name != left} for left in good),
    ):
        assert not admits(strange)
    drop_key(tmp_path / "keys", 7)
    assert not admits(good)


def test_nothing_of_a_strangers_body_is_read():
    class Unread(httpx.AsyncByteStream):
        async def __aiter__(self):
            pytest.fail("the body was read")
            yield b""

    async def ask() -> int:
        gate = Gate(httpx.AsyncClient(), Bounds(), lambda headers: False)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(gate), base_url="https://centre"
        ) as stranger:
            return (await stranger.post("/v1/fleet/push-object", content=Unread())).status_code

    assert asyncio.run(ask()) == 401


def test_an_address_asks_so_often_and_no_more():
    async def ask() -> list[int]:
        inside = httpx.AsyncClient(transport=httpx.MockTransport(Link()), base_url="https://127.0.0.1:1")
        gate = Gate(inside, Bounds(rate=0.001, burst=3), ANYBODY)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="https://centre") as node:
            return [(await node.post("/v1/fleet/pull-messages")).status_code for _ in range(5)]

    assert asyncio.run(ask()) == [200, 200, 200, 503, 503]


def trusted(own: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(own.authority))


def test_the_program_passes_over_tls_on_both_sides_and_logs_nothing(own, tmp_path):
    pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
    port, link, file = free_port(), free_port(), tmp_path / "gate.json"
    told = settings(own, port, link)
    file.write_text(json.dumps(told))
    key, public = node_key(tmp_path / "node")
    enter_key(Path(told["keys"]), 7, public.read_bytes())
    command = [sys.executable, "-m", "abaton.engines.flower.proxy", str(file)]
    log = tmp_path / "log"
    with log.open("wb") as out, listening(superlink(own, link)):
        program = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            with httpx.Client(verify=trusted(own), base_url=f"https://127.0.0.1:{port}") as node:
                until(lambda: not is_silent(port))
                body = b"Canary-4711" * 300_000
                assert node.post("/v1/fleet/push-object", content=body, headers=signed(key)).content == body
                assert node.post("/v1/fleet/push-object", content=body[:9]).status_code == 401
                assert node.post("/v1/control/start-run", content=body[:9]).status_code == 404
            with socket.create_connection(("127.0.0.1", port)) as plain:
                plain.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\n\r\n")
                assert not plain.recv(100).startswith(b"HTTP/")
            for words in (
                b"Canary-4711",
                b"POST /v1/fleet/pull-object HTTP/1.1\r\nx: " + b"Canary-4711" * 2000,
            ):
                with connected(own, port) as line:
                    line.settimeout(10)
                    line.sendall(words + b"\r\n\r\n")
                    assert line.recv(100).startswith(b"HTTP/1.1 400")
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


def test_connections_are_counted_and_silent_ones_are_cut(own):
    port, bounds = free_port(), Bounds(each=3, head_seconds=1.0)
    gate = Gate(dial("127.0.0.1:1", own.authority, bounds), bounds, ANYBODY)
    config = configure(gate, bounds, settings(own, port, 1))
    with listening(config):
        first = [connected(own, port) for _ in range(5)]
        assert sum(map(is_open, first)) == 3, "the others were turned away at once"
        until(lambda: not any(map(is_open, first)))
        with httpx.Client(verify=trusted(own)) as node:
            assert node.post(f"https://127.0.0.1:{port}/v1/fleet/pull-object").status_code == 502
        for each in first:
            each.close()


def connected(own: Certificates, port: int) -> ssl.SSLSocket:
    raw = socket.create_connection(("127.0.0.1", port))
    made = trusted(own).wrap_socket(raw, server_hostname="127.0.0.1")
    made.settimeout(0.2)
    return made


def is_open(line: ssl.SSLSocket) -> bool:
    try:
        return line.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def test_a_certificate_may_be_for_the_name_that_sites_dial_alone(tmp_path):
    named = issue(tmp_path / "named", ["centre.example.org"], datetime.now(UTC))
    port, bounds = free_port(), Bounds()
    gate = Gate(dial("127.0.0.1:1", named.authority, bounds), bounds, ANYBODY)
    with listening(configure(gate, bounds, settings(named, port, 1))):
        at = f"127.0.0.1:{port}"
        assert Door("gate", at, named.authority, 404, "centre.example.org").trouble() == ""
        assert "CERTIFICATE_VERIFY_FAILED" in Door("gate", at, named.authority, 404).trouble()
        assert Door("SuperLink", at, named.authority, 200, "centre.example.org").trouble() == "status 404"
