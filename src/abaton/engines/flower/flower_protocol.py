"""Messages in the format of Flower's SuperLink; the only module that uses Flower's private interfaces.

Flower stores a message as a tree of objects, each named by the SHA-256 of its bytes: the message, its record
dictionary, and the records of that dictionary. Ours are config records of at most one chunk each: the first has the
message type and the header, and all of them have bytes under ``name/number``. Any other format is refused before
objects are fetched: the tree states the number of objects, and no object may exceed the size limit.

Every request is one ``POST`` with one protobuf message in each direction.
``tests/engines/flower/test_flower_protocol.py`` compares each message with Flower's own classes and fails when Flower
changes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto import (
    control_pb2,
    fab_pb2,
    fleet_pb2,
    heartbeat_pb2,
    message_pb2,
    node_pb2,
    recorddict_pb2,
    runtime_pb2,
)
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as FlowerMessage

from abaton.engines.flower.flower_messages import (
    CHUNK_BYTES,
    MAX_MESSAGE_BYTES,
    Message,
    from_text,
    join_chunks,
    split_chunks,
    to_text,
)
from abaton.errors import PayloadError

SUPERLINK_NODE_ID = 1
"""Flower's node id of the SuperLink, the sender of the controller's messages."""

MAX_OBJECT_BYTES = 2 * CHUNK_BYTES + (1 << 16)
"""Largest number of bytes of one object: a chunk and a header."""

MAX_OBJECTS = MAX_MESSAGE_BYTES // CHUNK_BYTES
_COMPLETED = "completed"
_FLOWER_TYPE = "query"
_OBJECT_ID = re.compile("[0-9a-f]{64}")

Call = Callable[[str, bytes], bytes]
"""Calls the SuperLink with a path and a request body; returns the response body."""

_Response = TypeVar("_Response", bound=FlowerMessage)


@dataclass(frozen=True, slots=True)
class MessageMetadata:
    """Metadata of a message in Flower.

    Attributes:
        run: Flower's run id.
        source, target: node ids of sender and recipient.
        created_at: seconds since 1970.
        ttl: seconds for which it can be delivered.
        reply_to: id of the message it replies to; empty for a request.
        message_id: the id of the message, once it has one.
    """

    run: int
    source: int
    target: int
    created_at: float
    ttl: float
    reply_to: str = ""
    message_id: str = ""

    def reply(self, now: float) -> MessageMetadata:
        """Return the Flower metadata of the reply, which expires together with the request."""
        return MessageMetadata(
            self.run, self.target, self.source, now, self.created_at + self.ttl - now, self.message_id
        )

    def to_proto(self) -> Any:
        """Return the metadata as Flower's protobuf message."""
        return message_pb2.Metadata(
            run_id=self.run,
            message_id=self.message_id,
            src_node_id=self.source,
            dst_node_id=self.target,
            reply_to_message_id=self.reply_to,
            ttl=self.ttl,
            message_type=_FLOWER_TYPE,
            created_at=self.created_at,
        )

    @classmethod
    def from_proto(cls, proto: Any) -> MessageMetadata:
        """Build metadata from Flower's protobuf message."""
        ids = proto.run_id, proto.src_node_id, proto.dst_node_id
        return cls(*ids, proto.created_at, proto.ttl, proto.reply_to_message_id, proto.message_id)


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """Message ready to be pushed.

    Attributes:
        message, tree: Flower's message and its object tree.
        objects: all objects by id.
    """

    message: Any
    tree: Any
    objects: Mapping[str, bytes]


# ---- objects ----------------------------------------------------------------------------------------------------


def encode_message(metadata: MessageMetadata, message: Message) -> OutgoingMessage:
    """Encode a message as objects of Flower's protocol; equal metadata and messages give equal bytes."""
    leaves = {_object_id(data): data for data in map(_encode_record, _records(message))}
    names = {str(index): object_id for index, object_id in enumerate(leaves)}
    records = _object("RecordDict", list(leaves), json.dumps(names).encode())
    without_id = replace(metadata, message_id="")
    body = message_pb2.Message(metadata=without_id.to_proto()).SerializeToString(deterministic=True)
    root = _object("Message", [_object_id(records)], body)
    proto = without_id.to_proto()
    proto.message_id = _object_id(root)
    children = [message_pb2.ObjectTree(object_id=object_id) for object_id in leaves]
    branch = message_pb2.ObjectTree(object_id=_object_id(records), children=children)
    return OutgoingMessage(
        message_pb2.Message(metadata=proto, content=recorddict_pb2.RecordDict()),
        message_pb2.ObjectTree(object_id=_object_id(root), children=[branch]),
        {**leaves, _object_id(records): records, _object_id(root): root},
    )


def message_objects(tree: Any, message_id: str) -> list[str]:
    """Return the ids of a message's objects from its Flower object tree.

    Raises:
        PayloadError: The tree has another format.
    """
    branches = tree.children
    if tree.object_id != message_id or len(branches) != 1 or not 0 < len(branches[0].children) <= MAX_OBJECTS:
        raise _invalid_format()
    leaves = branches[0].children
    object_ids = [message_id, branches[0].object_id, *(leaf.object_id for leaf in leaves)]
    is_valid = all(map(_OBJECT_ID.fullmatch, object_ids)) and len(set(object_ids)) == len(object_ids)
    if not is_valid or any(leaf.children for leaf in leaves):
        raise _invalid_format()
    return object_ids[2:]


def decode_message(
    object_ids: Sequence[str], fetch: Callable[[str], bytes], max_bytes: int = MAX_MESSAGE_BYTES
) -> Message:
    """Decode a message from objects of Flower's protocol, fetched one at a time; stop at `max_bytes`."""
    texts: dict[str, str] = {}
    chunks: dict[str, bytes] = {}
    size = 0
    for object_id in object_ids:
        data = fetch(object_id)
        size += len(data)
        if len(data) > MAX_OBJECT_BYTES or size > max_bytes or _object_id(data) != object_id:
            raise _invalid_format()
        for key, value in _items(data):
            if key in texts or key in chunks:
                raise _invalid_format()
            if isinstance(value, str):
                texts[key] = value
            else:
                chunks[key] = value
    if texts.keys() != {"message_type", "header"}:
        raise _invalid_format()
    return Message(texts["message_type"], from_text(texts["header"]), join_chunks(chunks))


def _records(message: Message) -> Iterator[dict[str, str | bytes]]:
    """Yield the records of a message in Flower's format, filled up to a chunk each; a small message has one."""
    record: dict[str, str | bytes] = {"message_type": message.message_type, "header": to_text(message.header)}
    free = CHUNK_BYTES
    for name, data in split_chunks(message.attachments):
        if len(data) > free:
            yield record
            record, free = {}, CHUNK_BYTES
        record[name] = data
        free -= len(data)
    yield record


def _encode_record(record: Mapping[str, str | bytes]) -> bytes:
    items = []
    for key, value in record.items():
        field = recorddict_pb2.ConfigRecordValue()
        if isinstance(value, str):
            field.string = value
        else:
            field.bytes = value
        items.append(recorddict_pb2.ConfigRecord.Item(key=key, value=field))
    return _object("ConfigRecord", [], recorddict_pb2.ConfigRecord(items=items).SerializeToString())


def _items(data: bytes) -> Iterator[tuple[str, str | bytes]]:
    header, separator, body = data.partition(b"\0")
    if not separator or header != f"ConfigRecord  {len(body)}".encode():
        raise _invalid_format()
    for item in _parse(recorddict_pb2.ConfigRecord, body).items:
        value_type = item.value.WhichOneof("value")
        if value_type not in ("string", "bytes"):
            raise _invalid_format()
        yield item.key, getattr(item.value, value_type)


def _object(object_type: str, children: Sequence[str], body: bytes) -> bytes:
    return f"{object_type} {','.join(children)} {len(body)}".encode() + b"\0" + body


def _object_id(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _invalid_format() -> PayloadError:
    return PayloadError("a message does not have Abaton's format", where="network")


def _parse(response_type: type[_Response], data: bytes) -> _Response:
    try:
        return response_type.FromString(data)
    except DecodeError:
        raise _invalid_format() from None


# ---- authentication ---------------------------------------------------------------------------------------------


def version_headers(component: str) -> dict[str, str]:
    """Return the HTTP headers with which Flower's components identify their release."""
    return {
        "flwr-package-name": "flwr",
        "flwr-package-version": version("flwr"),
        "flwr-component-name": component,
    }


class NodeSigner:
    """Signer of requests with a node's key: the current time is signed."""

    def __init__(self, key: Path) -> None:
        private_key = serialization.load_ssh_private_key(key.read_bytes(), None)
        assert isinstance(private_key, ec.EllipticCurvePrivateKey)
        self._key, self.public_key = private_key, public_bytes(private_key.public_key())

    def headers(self) -> dict[str, str]:
        """Return the signature headers of one request of a node, as Flower's protocol requires."""
        now = datetime.now(UTC).isoformat()
        signature = self._key.sign(now.encode(), ec.ECDSA(hashes.SHA256()))
        return {
            "flwr-public-key": base64.b64encode(self.public_key).decode(),
            "flwr-timestamp": now,
            "flwr-signature": base64.b64encode(signature).decode(),
        }


def public_bytes(key: Any) -> bytes:
    """Return a public key in the format in which Flower's protocol compares it."""
    public_format = serialization.PublicFormat.SubjectPublicKeyInfo
    pem: bytes = key.public_bytes(serialization.Encoding.PEM, public_format)
    return pem


# ---- requests ---------------------------------------------------------------------------------------------------


class FleetClient:
    """Requests of a site's node to the SuperLink; it fetches no app and no run."""

    def __init__(self, call: Call) -> None:
        self._call, self.node = call, 0

    def activate(self, public_key: bytes, interval: float) -> int:
        """Activate the node through Flower's Fleet API and return Flower's id of it."""
        request = fleet_pb2.ActivateNodeRequest(public_key=public_key, heartbeat_interval=interval)
        self.node = self._send("activate-node", request, fleet_pb2.ActivateNodeResponse).node_id
        return self.node

    def deactivate(self, node: int) -> None:
        """Deactivate a node through Flower's Fleet API."""
        self._send(
            "deactivate-node",
            fleet_pb2.DeactivateNodeRequest(node_id=node),
            fleet_pb2.DeactivateNodeResponse,
        )

    def send_heartbeat(self, interval: float) -> bool:
        """Send a node's heartbeat through Flower's Fleet API; return whether the SuperLink knows the node."""
        request = heartbeat_pb2.SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=interval)
        return self._send("send-node-heartbeat", request, heartbeat_pb2.SendNodeHeartbeatResponse).success

    def pull(self) -> tuple[MessageMetadata, Any] | None:
        """Pull the node's next message and its tree through Flower's Fleet API; it is delivered once."""
        request = fleet_pb2.PullMessagesRequest(node=self._node)
        response = self._send("pull-messages", request, fleet_pb2.PullMessagesResponse)
        if not response.messages_list or not response.message_object_trees:
            return None
        return MessageMetadata.from_proto(response.messages_list[0].metadata), response.message_object_trees[
            0
        ]

    def object(self, run: int, object_id: str) -> bytes | None:
        """Return an object through Flower's Fleet API; empty if it is not complete yet, none if there is none."""
        return _pull_object(self._send, self._node, run, object_id)

    def confirm(self, metadata: MessageMetadata) -> None:
        """Confirm through Flower's Fleet API that the node has stored a message."""
        _confirm(self._send, self._node, metadata)

    def push(self, metadata: MessageMetadata, message: Message) -> None:
        """Push a node's reply with its objects through Flower's Fleet API; a second push has no effect."""
        outgoing = encode_message(metadata, message)
        request = fleet_pb2.PushMessagesRequest(
            node=self._node,
            messages_list=[outgoing.message],
            message_object_trees=[outgoing.tree],
            clientapp_runtime_list=[0.0],
        )
        response = self._send("push-messages", request, fleet_pb2.PushMessagesResponse)
        _push_objects(
            self._send, self._node, metadata.run, response.session_id, outgoing, response.objects_to_push
        )

    @property
    def _node(self) -> Any:
        return node_pb2.Node(node_id=self.node)

    def _send(self, name: str, request: FlowerMessage, response_type: type[_Response]) -> _Response:
        return _request(self._call, f"/v1/fleet/{name}", request, response_type)


class ServerAppIoClient:
    """Requests of a run's controller to the SuperLink; the calls carry the run's token."""

    def __init__(self, call: Call, run: int) -> None:
        self._call, self.run = call, run

    def start(self) -> None:
        """Mark the run as running through Flower's ServerAppIo API."""
        self._send("pull-task-input", runtime_pb2.PullTaskInputRequest(), runtime_pb2.PullTaskInputResponse)

    def finish(self) -> None:
        """Mark the run as finished through Flower's ServerAppIo API."""
        request = runtime_pb2.PushTaskOutputRequest(sub_status=_COMPLETED)
        self._send("push-task-output", request, runtime_pb2.PushTaskOutputResponse)

    def send_heartbeat(self) -> bool:
        """Send a heartbeat through Flower's ServerAppIo API; return whether the run is still active."""
        request = runtime_pb2.SendTaskHeartbeatRequest()
        return self._send("send-task-heartbeat", request, runtime_pb2.SendTaskHeartbeatResponse).success

    def nodes(self) -> dict[int, str]:
        """Return the connected nodes with activation times through Flower's ServerAppIo API."""
        response = self._send("get-nodes", runtime_pb2.GetNodesRequest(), runtime_pb2.GetNodesResponse)
        return {node.node_id: node.last_activated_at for node in response.nodes}

    def push(self, metadata: MessageMetadata, message: Message) -> str:
        """Push a message through Flower's ServerAppIo API and return its id; empty if there is no such node."""
        outgoing = encode_message(metadata, message)
        request = runtime_pb2.PushAppMessagesRequest(
            messages_list=[outgoing.message], message_object_trees=[outgoing.tree]
        )
        response = self._send("push-messages", request, runtime_pb2.PushAppMessagesResponse)
        message_id = str(response.message_ids[0]) if response.message_ids else ""
        if message_id:
            _push_objects(
                self._send, self._node, self.run, response.session_id, outgoing, response.objects_to_push
            )
        return message_id

    def pull(self, message_ids: Collection[str]) -> list[tuple[MessageMetadata, int | None, Any]]:
        """Pull replies through Flower's ServerAppIo API: metadata, Flower's error code if any, and tree."""
        request = runtime_pb2.PullAppMessagesRequest(message_ids=message_ids)
        response = self._send("pull-messages", request, runtime_pb2.PullAppMessagesResponse)
        return [
            (
                MessageMetadata.from_proto(reply.metadata),
                reply.error.code if reply.HasField("error") else None,
                tree,
            )
            for reply, tree in zip(response.messages_list, response.message_object_trees, strict=False)
        ]

    def object(self, object_id: str) -> bytes | None:
        """Return an object through Flower's ServerAppIo API; empty if incomplete, none if there is none."""
        return _pull_object(self._send, self._node, self.run, object_id)

    def confirm(self, metadata: MessageMetadata) -> None:
        """Confirm through Flower's ServerAppIo API that a reply was received."""
        _confirm(self._send, self._node, metadata)

    @property
    def _node(self) -> Any:
        return node_pb2.Node(node_id=SUPERLINK_NODE_ID)

    def _send(self, name: str, request: FlowerMessage, response_type: type[_Response]) -> _Response:
        return _request(self._call, f"/v1/runtime/{name}", request, response_type)


class ControlClient:
    """Requests of the centre to its SuperLink: runs and admissions."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def start_run(self) -> int:
        """Start a run with an empty, never fetched app through Flower's Control API and return Flower's run id."""
        digest, content = empty_app()
        request = control_pb2.StartRunRequest(fab=fab_pb2.Fab(hash_str=digest, content=content))
        return int(self._send("start-run", request, control_pb2.StartRunResponse).run_id)

    def stop_run(self, run: int) -> None:
        """Stop a run through Flower's Control API and discard its messages."""
        self._send("stop-run", control_pb2.StopRunRequest(run_id=run), control_pb2.StopRunResponse)

    def claim_run(self) -> tuple[int, str] | None:
        """Claim a run of the empty app in Flower's protocol; return its id and the token of its calls."""
        request = runtime_pb2.AcquireTaskRequest(agentapp_fab_hashes=[empty_app()[0]])
        response = _request(self._call, "/v1/runtime/acquire-task", request, runtime_pb2.AcquireTaskResponse)
        return (int(response.task.run_id), str(response.token)) if response.token else None

    def register_node(self, public_key: bytes) -> int:
        """Register a node's key through Flower's Control API and return the node's id."""
        request = control_pb2.RegisterNodeRequest(public_key=public_key)
        return int(self._send("register-node", request, control_pb2.RegisterNodeResponse).node_id)

    def unregister_node(self, node: int) -> None:
        """Unregister a node through Flower's Control API."""
        request = control_pb2.UnregisterNodeRequest(node_id=node)
        self._send("unregister-node", request, control_pb2.UnregisterNodeResponse)

    def _send(self, name: str, request: FlowerMessage, response_type: type[_Response]) -> _Response:
        return _request(self._call, f"/v1/control/{name}", request, response_type)


def contains_only_replies(body: bytes) -> bool:
    """Return whether a Flower protobuf request pushes only replies in the node's name (the SuperLink verifies it)."""
    try:
        pushed = fleet_pb2.PushMessagesRequest.FromString(body)
    except DecodeError:
        return False
    replies = [message.metadata for message in pushed.messages_list]
    return all(reply.reply_to_message_id and reply.src_node_id == pushed.node.node_id for reply in replies)


@cache
def empty_app() -> tuple[str, bytes]:
    """Return the digest and bytes of an app without code, which Flower's protocol requires for a run."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # entries have a constant time stamp
        archive.writestr(zipfile.ZipInfo("pyproject.toml"), _APP)
    return _object_id(buffer.getvalue()), buffer.getvalue()


# frozen: part of the bytes
_APP = """[project]
name = "abaton"
version = "1.0.0"
description = "Holds no code: sites and centre run the Abaton that they installed."
license = "Apache-2.0"

[tool.flwr.app]
publisher = "abaton"

[tool.flwr.app.components]
serverapp = "abaton:none"
clientapp = "abaton:none"

[tool.flwr.app.config]
"""

_Send = Callable[[str, FlowerMessage, type[Any]], Any]


def _request(call: Call, path: str, request: FlowerMessage, response_type: type[_Response]) -> _Response:
    return _parse(response_type, call(path, request.SerializeToString()))


def _pull_object(send: _Send, node: Any, run: int, object_id: str) -> bytes | None:
    request = message_pb2.PullObjectRequest(node=node, run_id=run, object_id=object_id)
    response = send("pull-object", request, message_pb2.PullObjectResponse)
    return response.object_content if response.object_found else None


def _confirm(send: _Send, node: Any, metadata: MessageMetadata) -> None:
    request = message_pb2.ConfirmMessageReceivedRequest(
        node=node, run_id=metadata.run, message_object_id=metadata.message_id
    )
    send("confirm-message-received", request, message_pb2.ConfirmMessageReceivedResponse)


def _push_objects(
    send: _Send, node: Any, run: int, session: str, outgoing: OutgoingMessage, missing_ids: Collection[str]
) -> None:
    missing = set(missing_ids)
    for object_id in (object_id for object_id in outgoing.objects if object_id in missing):
        request = message_pb2.PushObjectRequest(
            node=node,
            run_id=run,
            object_id=object_id,
            object_content=outgoing.objects[object_id],
            session_id=session,
        )
        send("push-object", request, message_pb2.PushObjectResponse)
