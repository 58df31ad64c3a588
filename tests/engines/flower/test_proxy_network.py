"""Proxy of a real SuperLink: nodes join and reply through it; the authority's certificate alone gives no access."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import ssl
import subprocess
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from tests.engines.flower.flower_processes import Federation, processes, running, until

from abaton.engines.flower import Message, MessageLost
from abaton.engines.flower.proxy import FORWARDED_PATHS
from abaton.engines.flower.server_processes import ServerProcesses, open_transport
from abaton.engines.flower.supervisor import child_environment
from abaton.engines.flower.tls import create_node_key

pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
pytestmark = [pytest.mark.network, pytest.mark.slow]

SERVER = """from pathlib import Path
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    Path("{}").write_text("ran")
"""


APP = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "guest-app"
version = "1.0.0"
description = "A foreign app."
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<1.42"]

[tool.flwr.app]
publisher = "guest"

[tool.flwr.app.components]
serverapp = "guest.server:app"
clientapp = "guest.client:app"

[tool.flwr.app.config]
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("proxy")
    with running(folder, ["a"], "tests.engines.flower.test_site_worker:open_echo") as federation:
        yield federation


BODY = bytes(range(256)) * 12_000  # three chunks in each direction


def ask_all(federation: Federation, name: str) -> None:
    """Send a message to every node, which replies with its attachments."""
    with open_transport(federation.centre.folder, name) as transport:
        until(lambda: len(transport.nodes()) == 1)
        (node,) = transport.nodes()
        message_id = transport.send(node, Message("introduce", {"run": "x"}, {"body": BODY}), 300.0)
        replies: dict[str, Message | MessageLost] = {}
        until(lambda: replies.update(transport.collect([message_id])) or replies)
        assert replies[message_id].attachments == {"body": BODY}


def test_nodes_join_and_reply_through_the_proxy(federation):
    ask_all(federation, "first")
    assert listening(settings(federation.centre)["superlink"].rpartition(":")[2]) == {"127.0.0.1"}


def listening(port: str) -> set[str]:
    """Addresses with a listener on a port, from the kernel."""
    addresses = set()
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        (host, port_hex), state = row.split()[1].split(":"), row.split()[3]
        if int(port_hex, 16) == int(port) and state == "0A":
            addresses.add(".".join(str(byte) for byte in reversed(bytes.fromhex(host))))
    return addresses


def settings(centre: ServerProcesses) -> dict[str, str]:
    return dict(json.loads((centre.folder / "proxy.json").read_text()))


def test_flower_commands_are_refused_at_the_public_port(federation, tmp_path):
    authority, ran = federation.folder / "certificates" / "ca.pem", tmp_path / "ran"
    before = runs(federation.centre)
    app, home = tmp_path / "app", tmp_path / "flwr"
    for folder in (app / "guest", home):
        folder.mkdir(parents=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "c"\n\n[superlink.c]\naddress = "{federation.centre.address}"\n'
        f'root-certificates = "{authority}"\n'
    )
    (app / "pyproject.toml").write_text(APP)
    (app / "guest" / "__init__.py").write_text("")
    (app / "guest" / "client.py").write_text("from flwr.clientapp import ClientApp\napp = ClientApp()\n")
    (app / "guest" / "server.py").write_text(SERVER.format(ran))
    _, public = create_node_key(tmp_path / "key")
    for command in (["supernode", "register", str(public)], ["run", str(app)], ["ls"], ["supernode", "list"]):
        done = subprocess.run(
            ["flwr", *command, "--format", "json"],
            env=child_environment(home),
            capture_output=True,
            text=True,
        )
        assert '"success": true' not in done.stdout, command
        assert done.returncode != 0 or '"success": false' in done.stdout, (command, done.stdout)
    assert runs(federation.centre) == before, (
        "the centre's authority commands work, and list only its authority runs"
    )
    assert not ran.exists()


def runs(centre: ServerProcesses) -> list[str]:
    """Ids of the SuperLink's runs, requested at its authority address."""
    proxy_settings, home = settings(centre), centre.folder / "flwr"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "c"\n\n[superlink.c]\naddress = "{proxy_settings["superlink"]}"\n'
        f'root-certificates = "{proxy_settings["authority"]}"\n'
    )
    done = subprocess.run(
        ["flwr", "ls", "--format", "json"], env=child_environment(home), capture_output=True, text=True
    )
    response = json.loads(done.stdout[done.stdout.find("{") :])
    assert response["success"]
    return [row["run-id"] for row in response["runs"]]


def test_only_requests_of_nodes_are_forwarded(federation):
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    served = {path for _, path in PROTOBUF_REQUEST_TYPES}
    assert set(FORWARDED_PATHS.values()) < served
    assert {path.split("/")[2] for path in served} == {"control", "fleet", "runtime"}
    proxy_settings = settings(federation.centre)
    inner = ssl.create_default_context(cafile=proxy_settings["authority"])
    outer = ssl.create_default_context(cafile=str(federation.folder / "certificates" / "ca.pem"))
    headers = {"content-type": "text/plain"}  # has no effect, but shows which server responds
    with httpx.Client(verify=inner) as inside, httpx.Client(verify=outer) as outside:
        for path in sorted(served):
            direct = inside.post(
                f"https://{proxy_settings['superlink']}{path}", headers=headers, content=b"x"
            ).status_code
            proxied = outside.post(
                f"https://{federation.centre.address}{path}", headers=headers, content=b"x"
            )
            assert direct != 404, path
            is_forwarded = path in FORWARDED_PATHS.values()  # without a key only the missing key is reported
            assert proxied.status_code == (401 if is_forwarded else 404), path
        for path in ("/health", "/docs", "/openapi.json"):
            assert inside.get(f"https://{proxy_settings['superlink']}{path}").status_code == 200
            assert outside.get(f"https://{federation.centre.address}{path}").status_code == 404
        unsigned = {"content-type": "application/protobuf"}
        reply = outside.post(f"https://{federation.centre.address}/v1/fleet/activate-node", headers=unsigned)
        assert reply.status_code == 401, "and the SuperLink requires the signature of nodes"


def test_a_killed_proxy_is_restarted_and_nodes_continue(federation):
    before = proxy_pids(federation.centre.folder)
    assert len(before) == 1
    os.kill(before[0], signal.SIGKILL)
    until(lambda: any("proxy exited (code -9)" in line for line in federation.reports))
    until(lambda: bool(proxy_pids(federation.centre.folder)))
    ask_all(federation, "second")


def proxy_pids(folder: Path) -> list[int]:
    """Ids of the processes of this centre's proxy."""
    return processes("abaton.engines.flower.proxy", str(folder))


def test_an_admitted_node_cannot_write_to_others_in_the_controllers_name(federation):
    """The SuperLink alone would accept it; the proxy refuses it."""
    centre = federation.centre
    node, proxy_settings = next(iter(centre.admitted_nodes())), settings(federation.centre)
    routes = [
        (str(centre.address), federation.folder / "certificates" / "ca.pem", "a" * 64, 404),
        (proxy_settings["superlink"], Path(proxy_settings["authority"]), "b" * 64, 200),
    ]
    federation.sites["a"].node.stop()  # so that pushed messages stay in the database
    with open_transport(centre.folder, "forged"):
        run = int(json.loads((centre.folder / "forged.run").read_text()))
        for address, authority, name, status in routes:
            trusted = ssl.create_default_context(cafile=str(authority))
            headers = signed(federation.sites["a"].key)
            url, body = f"https://{address}/v1/fleet/push-messages", forged(run, node, node, name)
            assert httpx.post(url, content=body, headers=headers, verify=trusted).status_code == status
        with closing(sqlite3.connect(centre.folder / "superlink.db")) as database:
            stored_ids = {name for (name,) in database.execute("SELECT message_id FROM message_ins")}
    assert "b" * 64 in stored_ids
    assert "a" * 64 not in stored_ids


def forged(run: int, source: int, target: int, name: str) -> bytes:
    """Message of one node to another in the controller's name."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import Message as FlowerMessage
    from flwr.proto.message_pb2 import Metadata, ObjectTree
    from flwr.proto.node_pb2 import Node
    from flwr.proto.recorddict_pb2 import RecordDict

    head = Metadata(
        run_id=run, message_id=name, src_node_id=1, dst_node_id=target, created_at=time.time(), ttl=300.0,
        message_type="query",
    )  # fmt: skip
    return PushMessagesRequest(
        node=Node(node_id=source), messages_list=[FlowerMessage(metadata=head, content=RecordDict())],
        message_object_trees=[ObjectTree(object_id=name)], clientapp_runtime_list=[1.0],
    ).SerializeToString()  # fmt: skip


def signed(path: Path) -> dict[str, str]:
    """Headers of a node with a key."""
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    key, now = load_ssh_private_key(path.read_bytes(), None), datetime.now(UTC).isoformat()
    return {
        "content-type": "application/protobuf",
        "flwr-public-key": b64encode(public_key_to_bytes(key.public_key())).decode(),
        "flwr-timestamp": now,
        "flwr-signature": b64encode(sign_message(key, now.encode())).decode(),
    }
