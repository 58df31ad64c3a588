"""Our use of Flower's private interfaces, compared with Flower itself; and invalid object trees."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from abaton.engines.flower.flower_messages import CHUNK_BYTES, Message
from abaton.engines.flower.tls import create_node_key
from abaton.errors import PayloadError

pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")

from flwr.proto import fleet_pb2, message_pb2, recorddict_pb2

from abaton.engines.flower import flower_protocol
from abaton.engines.flower.flower_protocol import (
    MessageMetadata,
    decode_message,
    encode_message,
    message_objects,
)

SOURCE = Path(__file__).parents[3] / "src" / "abaton"
METADATA = MessageMetadata(7, flower_protocol.SUPERLINK_NODE_ID, 99, 1.8e9, 60.0)
SMALL = Message("introduce", {"run": "r", "n": [1, 2.5, None]}, {"body": b"abc"})
LARGE = Message(
    "train", {"task_id": "ä"}, {"model": bytes(range(256)) * 12_000, "other": b"\0" * (CHUNK_BYTES + 1)}
)


def read(outgoing: flower_protocol.OutgoingMessage) -> Message:
    object_ids = message_objects(outgoing.tree, outgoing.tree.object_id)
    return decode_message(object_ids, outgoing.objects.__getitem__)


# ---- compared with Flower ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [SMALL, LARGE])
def test_flower_reads_our_messages_and_we_read_them_back(message):
    from flwr.app import Message as FlowerMessage
    from flwr.common.serde import message_from_proto
    from flwr.server.utils.validator import validate_message
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import (
        inflate_object_from_contents,
        validate_object_content,
    )

    outgoing = encode_message(replace(METADATA, created_at=2e9), message)
    parsed = message_from_proto(outgoing.message)
    assert validate_message(parsed, is_reply_message=False) == []
    assert parsed.metadata.message_id == outgoing.tree.object_id
    assert sorted(tree.object_id for tree in iterate_object_tree(outgoing.tree)) == sorted(outgoing.objects)
    for data in outgoing.objects.values():
        validate_object_content(data)
    theirs = inflate_object_from_contents(outgoing.tree.object_id, dict(outgoing.objects))
    assert isinstance(theirs, FlowerMessage)
    assert theirs.object_id == outgoing.tree.object_id, "Flower computes the same id"
    assert (theirs.metadata.run_id, theirs.metadata.dst_node_id, theirs.metadata.ttl) == (7, 99, 60.0)
    keys = [name for record in theirs.content.config_records.values() for name in record]
    assert keys[:2] == ["message_type", "header"]
    assert read(outgoing) == message


def test_a_config_record_of_flowers_is_read():
    from flwr.app import ConfigRecord

    record = ConfigRecord({"message_type": "introduce", "header": "{}", "body/0": b"abc"})
    name = record.object_id
    assert decode_message([name], {name: record.deflate()}.__getitem__) == Message(
        "introduce", {}, {"body": b"abc"}
    )


def test_flower_serves_every_path_that_is_called():
    import flwr.superlink.main  # noqa: F401 - fills the table
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    called: dict[str, str] = {}

    def call(path: str, body: bytes) -> bytes:
        called[path] = "called"
        return b""

    fleet, runtime, control = (
        flower_protocol.FleetClient(call),
        flower_protocol.ServerAppIoClient(call, 7),
        flower_protocol.ControlClient(call),
    )
    (
        fleet.activate(b"key", 10.0),
        fleet.deactivate(1),
        fleet.send_heartbeat(10.0),
        fleet.pull(),
        fleet.object(7, "x"),
    )
    (
        fleet.confirm(METADATA),
        fleet.push(METADATA, SMALL),
        runtime.start(),
        runtime.finish(),
        runtime.send_heartbeat(),
    )
    (
        runtime.nodes(),
        runtime.push(METADATA, SMALL),
        runtime.pull(["x"]),
        runtime.object("x"),
        runtime.confirm(METADATA),
    )
    (
        control.start_run(),
        control.stop_run(7),
        control.claim_run(),
        control.register_node(b"key"),
        control.unregister_node(1),
    )
    served = {path for _, path in PROTOBUF_REQUEST_TYPES}
    assert called.keys() | {"/v1/fleet/push-object", "/v1/runtime/push-object"} <= served
    assert not {"/v1/fleet/get-run", "/v1/fleet/get-fab"} & called.keys(), "a site requests no app and no run"


def test_our_headers_are_those_that_flower_checks(tmp_path):
    from base64 import b64decode

    from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, SUPERLINK_NODE_ID, ErrorCode, SubStatus
    from flwr.supercore import constant
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
    from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
    from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

    from abaton.engines.flower import flower_messages, site_node, superlink_client

    path, _ = create_node_key(tmp_path / "key")
    signer = flower_protocol.NodeSigner(path)
    headers = signer.headers()
    names = constant.FLEET_HTTP_PUBLIC_KEY_HEADER, constant.FLEET_HTTP_SIGNATURE_HEADER, "flwr-timestamp"
    assert set(headers) == set(names)
    key = bytes_to_public_key(b64decode(headers[names[0]]))
    assert verify_signature(key, headers[names[2]].encode(), b64decode(headers[names[1]]))
    theirs = RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()
    assert flower_protocol.version_headers("SuperNode") == dict(theirs)
    assert constant.TASK_TOKEN_HEADER in Path(superlink_client.__file__).read_text()
    assert PROTOBUF_MEDIA_TYPE in Path(superlink_client.__file__).read_text()
    assert flower_protocol.SUPERLINK_NODE_ID == SUPERLINK_NODE_ID
    assert SubStatus.COMPLETED == flower_protocol._COMPLETED
    codes = ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE
    assert codes == (flower_messages.UNAVAILABLE, flower_messages.REPLY_GONE, flower_messages.NODE_GONE)
    assert site_node.HEARTBEAT_SECONDS >= HEARTBEAT_MIN_INTERVAL


def test_the_app_of_a_run_contains_no_code():
    import io
    import zipfile

    name, content = flower_protocol.empty_app()
    assert hashlib.sha256(content).hexdigest() == name
    assert zipfile.ZipFile(io.BytesIO(content)).namelist() == ["pyproject.toml"]


def test_one_file_uses_flowers_classes():
    importing = {
        path.name
        for path in SOURCE.rglob("*.py")
        if any(
            line.strip().startswith(("from flwr", "import flwr")) for line in path.read_text().splitlines()
        )
    }
    assert importing == {"flower_protocol.py"}


def test_equal_replies_have_equal_ids():
    assert encode_message(METADATA, LARGE).tree == encode_message(METADATA, LARGE).tree
    assert (
        encode_message(replace(METADATA, created_at=1.0), LARGE).tree != encode_message(METADATA, LARGE).tree
    )


# ---- invalid trees ----------------------------------------------------------------------------------------------


def tree(name: str, *children: message_pb2.ObjectTree) -> message_pb2.ObjectTree:
    return message_pb2.ObjectTree(object_id=name, children=children)


def name(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


A, B, C = name(1), name(2), name(3)
TREES = {
    "another root": tree(B, tree(A, tree(C))),
    "no branch": tree(A),
    "no record": tree(A, tree(B)),
    "two branches": tree(A, tree(B, tree(C)), tree(name(4), tree(name(5)))),
    "a record with leaves": tree(A, tree(B, tree(C, tree(name(4))))),
    "itself as its record": tree(A, tree(B, tree(A))),
    "its branch as a record": tree(A, tree(B, tree(B))),
    "a record twice": tree(A, tree(B, tree(C), tree(C))),
    "no digest": tree(A, tree(B, tree("../../etc/passwd"))),
    "a digest in capitals": tree(A, tree(B, tree(C.upper()))),
    "too many": tree(A, tree(B, *(tree(name(i)) for i in range(10, 11 + flower_protocol.MAX_OBJECTS)))),
}


@pytest.mark.parametrize("case", TREES)
def test_an_invalid_tree_is_refused_before_objects_are_fetched(case):
    with pytest.raises(PayloadError, match="does not have Abaton's format"):
        message_objects(TREES[case], A)


def record(**items: str | bytes) -> bytes:
    return flower_protocol._encode_record(items)


GOOD = record(message_type="introduce", header="{}")
OBJECTS = {
    "another object": GOOD + b"x",
    "a larger one than it says": GOOD.replace(b" ", b"  ", 1),
    "another type": b"ArrayChunk  3\0abc",
    "children": b"ConfigRecord " + A.encode() + b" 0\0",
    "no protobuf": b"ConfigRecord  3\0\xff\xff\xff",
    "no header": b"ConfigRecord",
    "nothing": b"",
    "no message type": record(header="{}"),
    "more texts": record(message_type="introduce", header="{}", extra="x"),
    "no JSON object": record(message_type="introduce", header="[1]"),
    "a chunk without a number": record(message_type="introduce", header="{}", model=b"x"),
    "a missing chunk": record(message_type="introduce", header="{}", **{"model/1": b"x"}),
    "too large": record(
        message_type="introduce", header="{}", **{"model/0": b"x" * flower_protocol.MAX_OBJECT_BYTES}
    ),
}


@pytest.mark.parametrize("case", OBJECTS)
def test_an_invalid_object_is_refused(case):
    data = OBJECTS[case]
    object_id = hashlib.sha256(data).hexdigest() if case != "another object" else A
    with pytest.raises(PayloadError):
        decode_message([object_id], lambda _: data)


def test_numbers_and_lists_in_a_record_are_refused():
    item = recorddict_pb2.ConfigRecord.Item(
        key="message_type", value=recorddict_pb2.ConfigRecordValue(sint64=1)
    )
    data = flower_protocol._object(
        "ConfigRecord", [], recorddict_pb2.ConfigRecord(items=[item]).SerializeToString()
    )
    with pytest.raises(PayloadError):
        decode_message([hashlib.sha256(data).hexdigest()], lambda _: data)


def test_fetching_stops_at_the_size_limit_of_a_message():
    fetched = []

    def fetch(case: str) -> bytes:
        fetched.append(case)
        return objects[case]

    objects = {}
    for i in range(100):
        data = record(**{f"model/{i}": bytes([i]) * 1000})
        objects[hashlib.sha256(data).hexdigest()] = data
    with pytest.raises(PayloadError):
        decode_message(list(objects), fetch, max_bytes=10_000)
    assert len(fetched) <= 10


def test_a_huge_tree_costs_bounded_memory():
    """A million empty branches in the largest response are refused within a few hundred megabytes."""
    code = """
import resource, sys
from flwr.proto import fleet_pb2
from abaton.engines.flower import flower_protocol
from abaton.errors import PayloadError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
branch = b"\\x12\\x00" * (int(sys.argv[1]) // 2 - 64)
def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])
message = b"\\x12\\x02\\x0a\\x00"
body = message + b"\\x1a" + varint(len(branch)) + branch
fleet = flower_protocol.FleetClient(lambda path, request: body)
head, tree = fleet.pull()
assert len(tree.children) > 500_000, len(tree.children)
try:
    flower_protocol.message_objects(tree, "a" * 64)
except PayloadError:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    from abaton.engines.flower import site_node

    done = subprocess.run(
        [sys.executable, "-c", code, str(site_node.MAX_RESPONSE_BYTES)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 400, "megabytes"


def test_a_tree_that_is_too_deep_is_refused():
    deep = tree(A)
    for i in range(90):
        deep = tree(name(i), deep)
    data = fleet_pb2.PullMessagesResponse(
        messages_list=[message_pb2.Message()], message_object_trees=[deep]
    ).SerializeToString()
    metadata, pulled = flower_protocol.FleetClient(lambda path, body: data).pull()
    with pytest.raises(PayloadError):
        message_objects(pulled, metadata.message_id)
    inner = b""
    for _ in range(200):
        size = len(inner)
        prefix = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
        inner = b"\x12" + prefix + inner
    prefix = bytes([len(inner) & 127 | 128, len(inner) >> 7])
    with pytest.raises(PayloadError):
        flower_protocol.FleetClient(lambda path, body: b"\x1a" + prefix + inner).pull()


def test_a_message_header_is_decoded_unchanged():
    assert json.loads(json.dumps(read(encode_message(METADATA, SMALL)).header)) == SMALL.header
