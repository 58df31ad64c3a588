"""What we take of Flower's private side, held against Flower itself; and trees of objects that nobody should send."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from abaton.engines.flower.tls import node_key
from abaton.engines.flower.flower_messages import PIECE, Parcel
from abaton.errors import PayloadError

pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")

from flwr.proto import fleet_pb2, message_pb2, recorddict_pb2

from abaton.engines.flower import flower_protocol
from abaton.engines.flower.flower_protocol import Head, leaves_of, opened, posted

SOURCE = Path(__file__).parents[3] / "src" / "abaton"
HEAD = Head(7, flower_protocol.CENTRE, 99, 1.8e9, 60.0)
SMALL = Parcel("query", {"run": "r", "n": [1, 2.5, None]}, {"body": b"abc"})
LARGE = Parcel("train", {"key": "ä"}, {"model": bytes(range(256)) * 12_000, "other": b"\0" * (PIECE + 1)})


def read(made: flower_protocol.Posted) -> Parcel:
    return opened(leaves_of(made.tree, made.tree.object_id), lambda name: made.objects[name])


# ---- held against Flower ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("parcel", [SMALL, LARGE])
def test_flower_reads_our_messages_and_we_read_them_back(parcel):
    from flwr.app import Message
    from flwr.common.serde import message_from_proto
    from flwr.server.utils.validator import validate_message
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import (
        inflate_object_from_contents,
        validate_object_content,
    )

    made = posted(replace(HEAD, created=2e9), parcel)
    told = message_from_proto(made.message)
    assert validate_message(told, is_reply_message=False) == []
    assert told.metadata.message_id == made.tree.object_id
    assert sorted(tree.object_id for tree in iterate_object_tree(made.tree)) == sorted(made.objects)
    for data in made.objects.values():
        validate_object_content(data)
    theirs = inflate_object_from_contents(made.tree.object_id, dict(made.objects))
    assert isinstance(theirs, Message)
    assert theirs.object_id == made.tree.object_id, "Flower would name it so itself"
    assert (theirs.metadata.run_id, theirs.metadata.dst_node_id, theirs.metadata.ttl) == (7, 99, 60.0)
    found = [name for record in theirs.content.config_records.values() for name in record]
    assert found[:2] == ["kind", "about"]
    assert read(made) == parcel


def test_a_config_record_of_flowers_is_read():
    from flwr.app import ConfigRecord

    record = ConfigRecord({"kind": "query", "about": "{}", "body/0": b"abc"})
    name = record.object_id
    assert opened([name], {name: record.deflate()}.__getitem__) == Parcel("query", {}, {"body": b"abc"})


def test_every_address_that_is_asked_is_served_with_the_messages_that_are_sent():
    import flwr.superlink.main  # noqa: F401 - it is what fills the table
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    asked: dict[str, str] = {}

    def call(path: str, body: bytes) -> bytes:
        asked[path] = "asked"
        return b""

    fleet, runtime, control = flower_protocol.Fleet(call), flower_protocol.Runtime(call, 7), flower_protocol.Control(call)
    fleet.activate(b"key", 10.0), fleet.deactivate(1), fleet.beat(10.0), fleet.pull(), fleet.object(7, "x")
    fleet.confirm(HEAD), fleet.push(HEAD, SMALL), runtime.begin(), runtime.end(), runtime.beat()
    (
        runtime.nodes(),
        runtime.push(HEAD, SMALL),
        runtime.pull(["x"]),
        runtime.object("x"),
        runtime.confirm(HEAD),
    )
    control.start(), control.stop(7), control.claim(), control.admit(b"key"), control.revoke(1)
    served = {path for _, path in PROTOBUF_REQUEST_TYPES}
    assert asked.keys() | {"/v1/fleet/push-object", "/v1/runtime/push-object"} <= served
    assert not {"/v1/fleet/get-run", "/v1/fleet/get-fab"} & asked.keys(), "a site asks for no app and no run"


def test_our_headers_are_those_that_flower_checks(tmp_path):
    from base64 import b64decode

    from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, SUPERLINK_NODE_ID, ErrorCode, SubStatus
    from flwr.supercore import constant
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
    from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
    from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

    from abaton.engines.flower import superlink_client, site_node, flower_messages

    path, _ = node_key(tmp_path / "key")
    signer = flower_protocol.Signer(path)
    made = signer.headers()
    names = constant.FLEET_HTTP_PUBLIC_KEY_HEADER, constant.FLEET_HTTP_SIGNATURE_HEADER, "flwr-timestamp"
    assert set(made) == set(names)
    key = bytes_to_public_key(b64decode(made[names[0]]))
    assert verify_signature(key, made[names[2]].encode(), b64decode(made[names[1]]))
    theirs = RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()
    assert flower_protocol.who("SuperNode") == dict(theirs)
    assert constant.TASK_TOKEN_HEADER in Path(superlink_client.__file__).read_text()
    assert PROTOBUF_MEDIA_TYPE in Path(superlink_client.__file__).read_text()
    assert flower_protocol.CENTRE == SUPERLINK_NODE_ID
    assert SubStatus.COMPLETED == flower_protocol._COMPLETED
    codes = ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE
    assert codes == (flower_messages.UNAVAILABLE, flower_messages.REPLY_GONE, flower_messages.NODE_GONE)
    assert site_node.INTERVAL >= HEARTBEAT_MIN_INTERVAL


def test_the_app_of_a_run_holds_no_code():
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
    assert importing == {"wire.py"}


def test_the_same_answer_has_the_same_name_so_that_it_can_be_pushed_twice():
    assert posted(HEAD, LARGE).tree == posted(HEAD, LARGE).tree
    assert posted(replace(HEAD, created=1.0), LARGE).tree != posted(HEAD, LARGE).tree


# ---- trees that nobody should send ------------------------------------------------------------------------------


def tree(name: str, *children: message_pb2.ObjectTree) -> message_pb2.ObjectTree:
    return message_pb2.ObjectTree(object_id=name, children=children)


def name(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


A, B, C = name(1), name(2), name(3)
TREES = {
    "another root": tree(B, tree(A, tree(C))),
    "no branch": tree(A),
    "no leaf": tree(A, tree(B)),
    "two branches": tree(A, tree(B, tree(C)), tree(name(4), tree(name(5)))),
    "a leaf with leaves": tree(A, tree(B, tree(C, tree(name(4))))),
    "itself as its leaf": tree(A, tree(B, tree(A))),
    "its branch as a leaf": tree(A, tree(B, tree(B))),
    "a leaf twice": tree(A, tree(B, tree(C), tree(C))),
    "no digest": tree(A, tree(B, tree("../../etc/passwd"))),
    "a digest in capitals": tree(A, tree(B, tree(C.upper()))),
    "too many": tree(A, tree(B, *(tree(name(i)) for i in range(10, 11 + flower_protocol.MOST_LEAVES)))),
}


@pytest.mark.parametrize("which", TREES)
def test_a_tree_of_another_form_is_refused_before_anything_is_fetched(which):
    with pytest.raises(PayloadError, match="not one of Abaton's"):
        leaves_of(TREES[which], A)


def leaf(**items: str | bytes) -> bytes:
    return flower_protocol._leaf(items)


GOOD = leaf(kind="query", about="{}")
OBJECTS = {
    "another object": GOOD + b"x",
    "a larger one than it says": GOOD.replace(b" ", b"  ", 1),
    "another kind": b"ArrayChunk  3\0abc",
    "children": b"ConfigRecord " + A.encode() + b" 0\0",
    "no protobuf": b"ConfigRecord  3\0\xff\xff\xff",
    "no head": b"ConfigRecord",
    "nothing": b"",
    "no kind": leaf(about="{}"),
    "more texts": leaf(kind="query", about="{}", extra="x"),
    "no plain values": leaf(kind="query", about="[1]"),
    "a piece without a place": leaf(kind="query", about="{}", model=b"x"),
    "a lacking piece": leaf(kind="query", about="{}", **{"model/1": b"x"}),
    "too large": leaf(kind="query", about="{}", **{"model/0": b"x" * flower_protocol.LEAF}),
}


@pytest.mark.parametrize("which", OBJECTS)
def test_an_object_of_another_form_is_refused(which):
    data = OBJECTS[which]
    named = hashlib.sha256(data).hexdigest() if which != "another object" else A
    with pytest.raises(PayloadError):
        opened([named], lambda _: data)


def test_numbers_and_lists_in_a_record_are_refused():
    item = recorddict_pb2.ConfigRecord.Item(key="kind", value=recorddict_pb2.ConfigRecordValue(sint64=1))
    data = flower_protocol._object("ConfigRecord", [], recorddict_pb2.ConfigRecord(items=[item]).SerializeToString())
    with pytest.raises(PayloadError):
        opened([hashlib.sha256(data).hexdigest()], lambda _: data)


def test_fetching_stops_when_there_is_more_than_a_message_may_have():
    fetched = []

    def fetch(which: str) -> bytes:
        fetched.append(which)
        return objects[which]

    objects = {}
    for i in range(100):
        data = leaf(**{f"model/{i}": bytes([i]) * 1000})
        objects[hashlib.sha256(data).hexdigest()] = data
    with pytest.raises(PayloadError):
        opened(list(objects), fetch, most=10_000)
    assert len(fetched) <= 10


def test_a_huge_tree_costs_bounded_memory():
    """A million empty branches in the largest answer that is read: refused, within a few hundred megabytes."""
    code = """
import resource, sys
from flwr.proto import fleet_pb2
from abaton.engines.flower import wire
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
fleet = wire.Fleet(lambda path, asked: body)
head, tree = fleet.pull()
assert len(tree.children) > 500_000, len(tree.children)
try:
    wire.leaves_of(tree, "a" * 64)
except PayloadError:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    from abaton.engines.flower import site_node

    done = subprocess.run(
        [sys.executable, "-c", code, str(site_node.ANSWER)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 400, "megabytes"


def test_a_tree_that_is_too_deep_is_refused():
    deep = tree(A)
    for i in range(90):
        deep = tree(name(i), deep)
    data = fleet_pb2.PullMessagesResponse(
        messages_list=[message_pb2.Message()], message_object_trees=[deep]
    ).SerializeToString()
    head, found = flower_protocol.Fleet(lambda path, body: data).pull()
    with pytest.raises(PayloadError):
        leaves_of(found, head.name)
    inner = b""
    for _ in range(200):
        size = len(inner)
        prefix = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
        inner = b"\x12" + prefix + inner
    prefix = bytes([len(inner) & 127 | 128, len(inner) >> 7])
    with pytest.raises(PayloadError):
        flower_protocol.Fleet(lambda path, body: b"\x1a" + prefix + inner).pull()


def test_what_a_parcel_says_is_read_as_it_was():
    assert json.loads(json.dumps(read(posted(HEAD, SMALL)).about)) == SMALL.about
