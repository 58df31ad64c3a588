"""The gate before a real SuperLink: nodes join and answer through it, and it is closed to whoever has no more than
the authority's certificate, as every invited site has."""

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
from tests.engines.flower.programs import Federation, processes, running, until

from abaton.engines.flower import Lost, Parcel
from abaton.engines.flower.server_processes import Centre, open_post
from abaton.engines.flower.tls import node_key
from abaton.engines.flower.proxy import PASSED
from abaton.engines.flower.supervisor import surroundings

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
description = "Somebody else's."
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
    folder = tmp_path_factory.mktemp("gate")
    with running(folder, ["a"], "tests.engines.flower.test_resident:open_echo") as made:
        yield made


BODY = bytes(range(256)) * 12_000  # three pieces each way


def ask_all(federation: Federation, name: str) -> None:
    """Ask every node, which answers with what it was sent."""
    with open_post(federation.centre.folder, name) as post:
        until(lambda: len(post.nodes()) == 1)
        (node,) = post.nodes()
        letter = post.send(node, Parcel("query", {"run": "x"}, {"body": BODY}), 300.0)
        answers: dict[str, Parcel | Lost] = {}
        until(lambda: answers.update(post.collect([letter])) or answers)
        assert answers[letter].blobs == {"body": BODY}


def test_nodes_join_and_answer_through_the_gate(federation):
    ask_all(federation, "first")
    assert listening(settings(federation.centre)["link"].rpartition(":")[2]) == {"127.0.0.1"}


def listening(port: str) -> set[str]:
    """The addresses at which somebody listens on a port, as the kernel tells them."""
    found = set()
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        (host, at), state = row.split()[1].split(":"), row.split()[3]
        if int(at, 16) == int(port) and state == "0A":
            found.add(".".join(str(byte) for byte in reversed(bytes.fromhex(host))))
    return found


def settings(centre: Centre) -> dict[str, str]:
    return dict(json.loads((centre.folder / "gate.json").read_text()))


def test_no_command_of_flowers_is_obeyed_at_the_port_that_sites_dial(federation, tmp_path):
    own, ran = federation.folder / "certificates" / "ca.pem", tmp_path / "ran"
    before = runs(federation.centre)
    app, home = tmp_path / "app", tmp_path / "flwr"
    for folder in (app / "guest", home):
        folder.mkdir(parents=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "c"\n\n[superlink.c]\naddress = "{federation.centre.address}"\n'
        f'root-certificates = "{own}"\n'
    )
    (app / "pyproject.toml").write_text(APP)
    (app / "guest" / "__init__.py").write_text("")
    (app / "guest" / "client.py").write_text("from flwr.clientapp import ClientApp\napp = ClientApp()\n")
    (app / "guest" / "server.py").write_text(SERVER.format(ran))
    _, public = node_key(tmp_path / "key")
    for words in (["supernode", "register", str(public)], ["run", str(app)], ["ls"], ["supernode", "list"]):
        done = subprocess.run(
            ["flwr", *words, "--format", "json"], env=surroundings(home), capture_output=True, text=True
        )
        assert '"success": true' not in done.stdout, words
        assert done.returncode != 0 or '"success": false' in done.stdout, (words, done.stdout)
    assert runs(federation.centre) == before, "the centre's own commands work, and know of no run but its own"
    assert not ran.exists()


def runs(centre: Centre) -> list[str]:
    """The runs that the SuperLink knows of, asked where it listens."""
    told, home = settings(centre), centre.folder / "flwr"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "c"\n\n[superlink.c]\naddress = "{told["link"]}"\n'
        f'root-certificates = "{told["authority"]}"\n'
    )
    done = subprocess.run(
        ["flwr", "ls", "--format", "json"], env=surroundings(home), capture_output=True, text=True
    )
    said = json.loads(done.stdout[done.stdout.find("{") :])
    assert said["success"]
    return [row["run-id"] for row in said["runs"]]


def test_of_all_that_a_superlink_serves_only_what_nodes_ask_for_is_passed(federation):
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    served = {path for _, path in PROTOBUF_REQUEST_TYPES}
    assert set(PASSED.values()) < served
    assert {path.split("/")[2] for path in served} == {"control", "fleet", "runtime"}
    told = settings(federation.centre)
    inner = ssl.create_default_context(cafile=told["authority"])
    outer = ssl.create_default_context(cafile=str(federation.folder / "certificates" / "ca.pem"))
    kind = {"content-type": "text/plain"}  # nothing is done by it, but it shows who answers
    with httpx.Client(verify=inner) as inside, httpx.Client(verify=outer) as outside:
        for path in sorted(served):
            there = inside.post(f"https://{told['link']}{path}", headers=kind, content=b"x").status_code
            here = outside.post(f"https://{federation.centre.address}{path}", headers=kind, content=b"x")
            assert there != 404, path
            known = path in PASSED.values()  # of what nodes ask, whoever shows no key is told just that
            assert here.status_code == (401 if known else 404), path
        for path in ("/health", "/docs", "/openapi.json"):
            assert inside.get(f"https://{told['link']}{path}").status_code == 200
            assert outside.get(f"https://{federation.centre.address}{path}").status_code == 404
        unsigned = {"content-type": "application/protobuf"}
        asked = outside.post(f"https://{federation.centre.address}/v1/fleet/activate-node", headers=unsigned)
        assert asked.status_code == 401, "and the SuperLink asks nodes for their signature, as before"


def test_a_killed_gate_is_started_again_and_the_nodes_go_on(federation):
    before = gates(federation.centre.folder)
    assert len(before) == 1
    os.kill(before[0], signal.SIGKILL)
    until(lambda: any("gate ended (code -9)" in line for line in federation.said))
    until(lambda: bool(gates(federation.centre.folder)))
    ask_all(federation, "second")


def gates(folder: Path) -> list[int]:
    """The processes that are this centre's gate."""
    return processes("abaton.engines.flower.proxy", str(folder))


def test_an_admitted_node_cannot_write_to_others_in_the_controllers_name(federation):
    """The SuperLink alone would pass it on, so that it is the gate that keeps it out."""
    centre = federation.centre
    node, told = next(iter(centre.admitted())), settings(federation.centre)
    ways = [
        (str(centre.address), federation.folder / "certificates" / "ca.pem", "a" * 64, 404),
        (told["link"], Path(told["authority"]), "b" * 64, 200),
    ]
    federation.sites["a"].node.stop()  # so that what is pushed stays where it is, and can be seen
    with open_post(centre.folder, "forged"):
        run = int(json.loads((centre.folder / "forged.run").read_text()))
        for address, authority, name, status in ways:
            trusted = ssl.create_default_context(cafile=str(authority))
            headers = signed(federation.sites["a"].key)
            url, body = f"https://{address}/v1/fleet/push-messages", forged(run, node, node, name)
            assert httpx.post(url, content=body, headers=headers, verify=trusted).status_code == status
        with closing(sqlite3.connect(centre.folder / "superlink.db")) as database:
            kept = {name for (name,) in database.execute("SELECT message_id FROM message_ins")}
    assert "b" * 64 in kept
    assert "a" * 64 not in kept


def forged(run: int, source: int, target: int, name: str) -> bytes:
    """A message of one node to another as if it were the controller's."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
    from flwr.proto.node_pb2 import Node
    from flwr.proto.recorddict_pb2 import RecordDict

    head = Metadata(
        run_id=run, message_id=name, src_node_id=1, dst_node_id=target, created_at=time.time(), ttl=300.0,
        message_type="query",
    )  # fmt: skip
    return PushMessagesRequest(
        node=Node(node_id=source), messages_list=[Message(metadata=head, content=RecordDict())],
        message_object_trees=[ObjectTree(object_id=name)], clientapp_runtime_list=[1.0],
    ).SerializeToString()  # fmt: skip


def signed(path: Path) -> dict[str, str]:
    """The headers of a node with a key."""
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    key, now = load_ssh_private_key(path.read_bytes(), None), datetime.now(UTC).isoformat()
    return {
        "content-type": "application/protobuf",
        "flwr-public-key": b64encode(public_key_to_bytes(key.public_key())).decode(),
        "flwr-timestamp": now,
        "flwr-signature": b64encode(sign_message(key, now.encode())).decode(),
    }
