"""Flower's messages as its SuperLink takes and gives them: the one file that uses Flower's private classes.

Flower keeps a message as a tree of objects, each named by the SHA-256 of its bytes: the message, its record dictionary,
and that dictionary's records. Ours are config records of at most a piece each: the first holds kind and plain values,
and all of them hold bytes under ``name/number``. Whatever has another form is refused before it is fetched: the tree
says how many objects there are, and no object may be larger than a piece.

Every request is one ``POST`` with one protobuf message each way. What this file takes of Flower is held by
``tests/engines/flower/test_wire.py``, which fails when Flower changes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from google.protobuf.message import DecodeError, Message

from abaton.engines.flower.flower_messages import LARGEST, PIECE, Parcel, from_text, pieces, to_text, together
from abaton.errors import PayloadError

CENTRE = 1
"""Flower's number of the SuperLink itself, from which the controller writes."""

LEAF = 2 * PIECE + (1 << 16)
"""Bytes of one object at most: a piece, and plain values."""

MOST_LEAVES = LARGEST // PIECE
_COMPLETED = "completed"
_TYPE = "query"
_NAME = re.compile("[0-9a-f]{64}")

Call = Callable[[str, bytes], bytes]
"""Asks the SuperLink: the address below its own, and the body of a request; the body of the answer."""

_Answer = TypeVar("_Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class Head:
    """What the SuperLink is told of a message, beside what is in it.

    Attributes:
        run: Flower's number of the run.
        source, target: who sends it and who gets it.
        created: when, in seconds since 1970.
        ttl: seconds for which it can be delivered.
        reply_to: the message that it answers; empty if it asks.
        name: the message's own name, once it has one.
    """

    run: int
    source: int
    target: int
    created: float
    ttl: float
    reply_to: str = ""
    name: str = ""

    def answered(self, now: float) -> Head:
        """The head of its answer, which is worth nothing any more when the question is not."""
        return Head(self.run, self.target, self.source, now, self.created + self.ttl - now, self.name)

    def proto(self) -> Any:
        """As Flower's own."""
        return message_pb2.Metadata(
            run_id=self.run,
            message_id=self.name,
            src_node_id=self.source,
            dst_node_id=self.target,
            reply_to_message_id=self.reply_to,
            ttl=self.ttl,
            message_type=_TYPE,
            created_at=self.created,
        )

    @classmethod
    def of(cls, said: Any) -> Head:
        """What Flower's own says."""
        ids = said.run_id, said.src_node_id, said.dst_node_id
        return cls(*ids, said.created_at, said.ttl, said.reply_to_message_id, said.message_id)


@dataclass(frozen=True, slots=True)
class Posted:
    """A message that is ready to be pushed.

    Attributes:
        message, tree: what the SuperLink is told.
        objects: everything that it may ask for, by name.
    """

    message: Any
    tree: Any
    objects: Mapping[str, bytes]


# ---- objects ----------------------------------------------------------------------------------------------------


def posted(head: Head, parcel: Parcel) -> Posted:
    """A parcel as the objects of a Flower message; the same head and parcel give the same bytes."""
    leaves = {_name(data): data for data in map(_leaf, _filled(parcel))}
    named = {str(number): name for number, name in enumerate(leaves)}
    records = _object("RecordDict", list(leaves), json.dumps(named).encode())
    bare = Head(head.run, head.source, head.target, head.created, head.ttl, head.reply_to)
    body = message_pb2.Message(metadata=bare.proto()).SerializeToString(deterministic=True)
    root = _object("Message", [_name(records)], body)
    told = bare.proto()
    told.message_id = _name(root)
    children = [message_pb2.ObjectTree(object_id=name) for name in leaves]
    branch = message_pb2.ObjectTree(object_id=_name(records), children=children)
    return Posted(
        message_pb2.Message(metadata=told, content=recorddict_pb2.RecordDict()),
        message_pb2.ObjectTree(object_id=_name(root), children=[branch]),
        {**leaves, _name(records): records, _name(root): root},
    )


def leaves_of(tree: Any, name: str) -> list[str]:
    """The objects that hold what is in a message, from its tree; any other form is refused, however large it is."""
    branches = tree.children
    if tree.object_id != name or len(branches) != 1 or not 0 < len(branches[0].children) <= MOST_LEAVES:
        raise _foreign()
    leaves = branches[0].children
    names = [name, branches[0].object_id, *(leaf.object_id for leaf in leaves)]
    whole = all(_NAME.fullmatch(each) for each in names) and len(set(names)) == len(names)
    if not whole or any(leaf.children for leaf in leaves):
        raise _foreign()
    return names[2:]


def opened(names: Sequence[str], fetch: Callable[[str], bytes], most: int = LARGEST) -> Parcel:
    """The parcel that some objects hold, fetched one after the other; nothing is fetched beyond `most` bytes."""
    texts: dict[str, str] = {}
    cut: dict[str, bytes] = {}
    size = 0
    for name in names:
        data = fetch(name)
        size += len(data)
        if len(data) > LEAF or size > most or _name(data) != name:
            raise _foreign()
        for key, value in _items(data):
            if key in texts or key in cut:
                raise _foreign()
            if isinstance(value, str):
                texts[key] = value
            else:
                cut[key] = value
    if texts.keys() != {"kind", "about"}:
        raise _foreign()
    return Parcel(texts["kind"], from_text(texts["about"]), together(cut))


def _filled(parcel: Parcel) -> Iterator[dict[str, str | bytes]]:
    """Records that are as full as they may be: a small message has one."""
    record: dict[str, str | bytes] = {"kind": parcel.kind, "about": to_text(parcel.about)}
    room = PIECE
    for name, data in pieces(parcel.blobs):
        if len(data) > room:
            yield record
            record, room = {}, PIECE
        record[name] = data
        room -= len(data)
    yield record


def _leaf(record: Mapping[str, str | bytes]) -> bytes:
    items = []
    for key, value in record.items():
        made = recorddict_pb2.ConfigRecordValue()
        if isinstance(value, str):
            made.string = value
        else:
            made.bytes = value
        items.append(recorddict_pb2.ConfigRecord.Item(key=key, value=made))
    return _object("ConfigRecord", [], recorddict_pb2.ConfigRecord(items=items).SerializeToString())


def _items(data: bytes) -> Iterator[tuple[str, str | bytes]]:
    head, found, body = data.partition(b"\0")
    if not found or head != f"ConfigRecord  {len(body)}".encode():
        raise _foreign()
    for item in _read(recorddict_pb2.ConfigRecord, body).items:
        kind = item.value.WhichOneof("value")
        if kind not in ("string", "bytes"):
            raise _foreign()
        yield item.key, getattr(item.value, kind)


def _object(kind: str, children: Sequence[str], body: bytes) -> bytes:
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body


def _name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _foreign() -> PayloadError:
    return PayloadError("a message is not one of Abaton's", where="network")


def _read(kind: type[_Answer], data: bytes) -> _Answer:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise _foreign() from None


# ---- who asks ---------------------------------------------------------------------------------------------------


def who(component: str) -> dict[str, str]:
    """The headers by which Flower's parts know each other's release."""
    return {
        "flwr-package-name": "flwr",
        "flwr-package-version": version("flwr"),
        "flwr-component-name": component,
    }


class Signer:
    """Proves that a request comes from the owner of a key, by signing the time."""

    def __init__(self, key: Path) -> None:
        made = serialization.load_ssh_private_key(key.read_bytes(), None)
        assert isinstance(made, ec.EllipticCurvePrivateKey)
        self._key, self.public = made, public_bytes(made.public_key())

    def headers(self) -> dict[str, str]:
        """The headers of one request."""
        now = datetime.now(UTC).isoformat()
        signature = self._key.sign(now.encode(), ec.ECDSA(hashes.SHA256()))
        return {
            "flwr-public-key": base64.b64encode(self.public).decode(),
            "flwr-timestamp": now,
            "flwr-signature": base64.b64encode(signature).decode(),
        }


def public_bytes(key: Any) -> bytes:
    """A public key in the form in which Flower compares it."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    made: bytes = key.public_bytes(serialization.Encoding.PEM, form)
    return made


# ---- what is asked ----------------------------------------------------------------------------------------------


class Fleet:
    """What a site's node asks of the SuperLink; it asks for no app and for no run."""

    def __init__(self, call: Call) -> None:
        self._call, self.node = call, 0

    def activate(self, public: bytes, interval: float) -> int:
        """Be connected; the number under which Flower knows the node."""
        asked = fleet_pb2.ActivateNodeRequest(public_key=public, heartbeat_interval=interval)
        self.node = self._ask("activate-node", asked, fleet_pb2.ActivateNodeResponse).node_id
        return self.node

    def deactivate(self, node: int) -> None:
        """Be connected no more."""
        self._ask(
            "deactivate-node",
            fleet_pb2.DeactivateNodeRequest(node_id=node),
            fleet_pb2.DeactivateNodeResponse,
        )

    def beat(self, interval: float) -> bool:
        """Say that the node is alive; whether the SuperLink knows it."""
        asked = heartbeat_pb2.SendNodeHeartbeatRequest(node=self._me, heartbeat_interval=interval)
        return self._ask("send-node-heartbeat", asked, heartbeat_pb2.SendNodeHeartbeatResponse).success

    def pull(self) -> tuple[Head, Any] | None:
        """The next message and its tree, if there is one; the SuperLink gives it once."""
        asked = fleet_pb2.PullMessagesRequest(node=self._me)
        said = self._ask("pull-messages", asked, fleet_pb2.PullMessagesResponse)
        if not said.messages_list or not said.message_object_trees:
            return None
        return Head.of(said.messages_list[0].metadata), said.message_object_trees[0]

    def object(self, run: int, name: str) -> bytes | None:
        """An object; empty if it is still on its way, nothing if there is none."""
        return _object_of(self._ask, self._me, run, name)

    def confirm(self, head: Head) -> None:
        """Say that a message is safe here."""
        _confirm(self._ask, self._me, head)

    def push(self, head: Head, parcel: Parcel) -> None:
        """Push an answer with all that is in it; pushed again, it counts once."""
        made = posted(head, parcel)
        asked = fleet_pb2.PushMessagesRequest(
            node=self._me,
            messages_list=[made.message],
            message_object_trees=[made.tree],
            clientapp_runtime_list=[0.0],
        )
        said = self._ask("push-messages", asked, fleet_pb2.PushMessagesResponse)
        _push_objects(self._ask, self._me, head.run, said.session_id, made, said.objects_to_push)

    @property
    def _me(self) -> Any:
        return node_pb2.Node(node_id=self.node)

    def _ask(self, name: str, asked: Message, kind: type[_Answer]) -> _Answer:
        return _asked(self._call, f"/v1/fleet/{name}", asked, kind)


class Runtime:
    """What a run's controller asks of the SuperLink; the token that its calls carry is the run's."""

    def __init__(self, call: Call, run: int) -> None:
        self._call, self.run = call, run

    def begin(self) -> None:
        """Let the run be running."""
        self._ask("pull-task-input", runtime_pb2.PullTaskInputRequest(), runtime_pb2.PullTaskInputResponse)

    def end(self) -> None:
        """Let the run be over."""
        asked = runtime_pb2.PushTaskOutputRequest(sub_status=_COMPLETED)
        self._ask("push-task-output", asked, runtime_pb2.PushTaskOutputResponse)

    def beat(self) -> bool:
        """Say that the controller is alive; whether the run still is."""
        asked = runtime_pb2.SendTaskHeartbeatRequest()
        return self._ask("send-task-heartbeat", asked, runtime_pb2.SendTaskHeartbeatResponse).success

    def nodes(self) -> dict[int, str]:
        """The nodes that are connected, and since when."""
        said = self._ask("get-nodes", runtime_pb2.GetNodesRequest(), runtime_pb2.GetNodesResponse)
        return {node.node_id: node.last_activated_at for node in said.nodes}

    def push(self, head: Head, parcel: Parcel) -> str:
        """Push a message with all that is in it; its name, empty if there is no such node."""
        made = posted(head, parcel)
        asked = runtime_pb2.PushAppMessagesRequest(
            messages_list=[made.message], message_object_trees=[made.tree]
        )
        said = self._ask("push-messages", asked, runtime_pb2.PushAppMessagesResponse)
        name = str(said.message_ids[0]) if said.message_ids else ""
        if name:
            _push_objects(self._ask, self._me, self.run, said.session_id, made, said.objects_to_push)
        return name

    def pull(self, names: Collection[str]) -> list[tuple[Head, int | None, Any]]:
        """The answers that are there to some messages: head, Flower's code if it is an error, tree."""
        asked = runtime_pb2.PullAppMessagesRequest(message_ids=names)
        said = self._ask("pull-messages", asked, runtime_pb2.PullAppMessagesResponse)
        return [
            (Head.of(each.metadata), each.error.code if each.HasField("error") else None, tree)
            for each, tree in zip(said.messages_list, said.message_object_trees, strict=False)
        ]

    def object(self, name: str) -> bytes | None:
        """An object; empty if it is still on its way, nothing if there is none."""
        return _object_of(self._ask, self._me, self.run, name)

    def confirm(self, head: Head) -> None:
        """Say that an answer is here."""
        _confirm(self._ask, self._me, head)

    @property
    def _me(self) -> Any:
        return node_pb2.Node(node_id=CENTRE)

    def _ask(self, name: str, asked: Message, kind: type[_Answer]) -> _Answer:
        return _asked(self._call, f"/v1/runtime/{name}", asked, kind)


class Control:
    """What the centre asks of its SuperLink: runs and admissions."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def start(self) -> int:
        """Begin a run of nothing: its app is empty, and nobody asks for it. Flower's number of the run."""
        name, content = empty_app()
        asked = control_pb2.StartRunRequest(fab=fab_pb2.Fab(hash_str=name, content=content))
        return int(self._ask("start-run", asked, control_pb2.StartRunResponse).run_id)

    def stop(self, run: int) -> None:
        """End a run, and let its messages be forgotten."""
        self._ask("stop-run", control_pb2.StopRunRequest(run_id=run), control_pb2.StopRunResponse)

    def claim(self) -> tuple[int, str] | None:
        """Take on a run of the empty app that nobody conducts: its number, and the token of its calls."""
        asked = runtime_pb2.AcquireTaskRequest(agentapp_fab_hashes=[empty_app()[0]])
        said = _asked(self._call, "/v1/runtime/acquire-task", asked, runtime_pb2.AcquireTaskResponse)
        return (int(said.task.run_id), str(said.token)) if said.token else None

    def admit(self, public: bytes) -> int:
        """Let the node with a key connect; its number."""
        asked = control_pb2.RegisterNodeRequest(public_key=public)
        return int(self._ask("register-node", asked, control_pb2.RegisterNodeResponse).node_id)

    def revoke(self, node: int) -> None:
        """Let a node connect no more."""
        asked = control_pb2.UnregisterNodeRequest(node_id=node)
        self._ask("unregister-node", asked, control_pb2.UnregisterNodeResponse)

    def _ask(self, name: str, asked: Message, kind: type[_Answer]) -> _Answer:
        return _asked(self._call, f"/v1/control/{name}", asked, kind)


def only_answers(body: bytes) -> bool:
    """Whether a node pushes nothing but answers in its own name; that the name is its own the SuperLink looks after."""
    try:
        pushed = fleet_pb2.PushMessagesRequest.FromString(body)
    except DecodeError:
        return False
    heads = [message.metadata for message in pushed.messages_list]
    return all(head.reply_to_message_id and head.src_node_id == pushed.node.node_id for head in heads)


@cache
def empty_app() -> tuple[str, bytes]:
    """The app that Flower must be given with a run: a name and no code. Its digest, and its bytes."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:  # the time of an entry is always the same
        archive.writestr(zipfile.ZipInfo("pyproject.toml"), _APP)
    return _name(made.getvalue()), made.getvalue()


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

_Ask = Callable[[str, Message, type[Any]], Any]


def _asked(call: Call, path: str, asked: Message, kind: type[_Answer]) -> _Answer:
    return _read(kind, call(path, asked.SerializeToString()))


def _object_of(ask: _Ask, me: Any, run: int, name: str) -> bytes | None:
    asked = message_pb2.PullObjectRequest(node=me, run_id=run, object_id=name)
    said = ask("pull-object", asked, message_pb2.PullObjectResponse)
    return said.object_content if said.object_found else None


def _confirm(ask: _Ask, me: Any, head: Head) -> None:
    asked = message_pb2.ConfirmMessageReceivedRequest(node=me, run_id=head.run, message_object_id=head.name)
    ask("confirm-message-received", asked, message_pb2.ConfirmMessageReceivedResponse)


def _push_objects(ask: _Ask, me: Any, run: int, session: str, made: Posted, wanted: Collection[str]) -> None:
    missing = set(wanted)
    for name in (name for name in made.objects if name in missing):
        asked = message_pb2.PushObjectRequest(
            node=me, run_id=run, object_id=name, object_content=made.objects[name], session_id=session
        )
        ask("push-object", asked, message_pb2.PushObjectResponse)
