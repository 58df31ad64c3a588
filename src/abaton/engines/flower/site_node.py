"""Site node: the only process of a site with network access; it can open no file of the site outside its own folder.

It pulls messages from the SuperLink, stores each before it is processed, forwards it to the worker of its role, and
stores the reply before it is pushed, because the SuperLink marks a message as delivered when a node pulls it. So a
message is processed once, however often the node, the worker or the SuperLink is killed. A reply is named by its
digest, so a second push is the same message. Each worker has its own queue, so that a site can evaluate while it
trains.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from abaton.atomic_files import atomic_write
from abaton.engines.base import LEARNER_FAILED, UNKNOWN_MESSAGE
from abaton.engines.flower.flower_messages import Message
from abaton.engines.flower.flower_protocol import (
    MAX_OBJECT_BYTES,
    FleetClient,
    MessageMetadata,
    NodeSigner,
    decode_message,
    message_objects,
    version_headers,
)
from abaton.engines.flower.site_processes import NodeSettings
from abaton.engines.flower.site_worker import ROLES, forward, role_of
from abaton.engines.flower.superlink_client import (
    HELD_MESSAGES,
    INTERNAL_ERROR,
    SuperLinkConnection,
    SuperLinkRefusedError,
    SuperLinkUnavailableError,
)
from abaton.engines.flower.supervisor import end_with_parent, readable_paths, restrict_file_access
from abaton.errors import PayloadError

HEARTBEAT_SECONDS = 10.0
"""Interval of heartbeats reported to the SuperLink, which considers a node disconnected after twice as many seconds."""

MAX_RESPONSE_BYTES = MAX_OBJECT_BYTES + (1 << 16)
"""Largest number of bytes read from a response of the SuperLink: an object, or the tree of a message."""

_HEARTBEAT_INTERVAL = 4.0
# Seconds between two polls: short after a message, then growing.
_MIN_POLL, _MAX_POLL, _POLL_GROWTH = 0.1, 1.0, 1.3
_RECONNECT_SECONDS = 1.0
_MAX_SERVER_ERRORS = 8  # attempts to push a reply that causes internal errors
_MAX_MESSAGES = 64  # stored here; the SuperLink stores the others
_OBJECT_SECONDS = 180.0  # for the objects of a message to become available

_LOG = logging.getLogger(__name__)


class MessageSpool:
    """Messages on the node's disk: waiting requests, and replies that are not pushed yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def message_ids(self) -> list[str]:
        """Return the ids of all messages in the site node's spool, the oldest first."""
        times = {path.stem: path.stat().st_mtime_ns for path in self._folder.glob("*.request")}
        return sorted(times, key=times.__getitem__)

    def store_request(self, metadata: MessageMetadata, message: Message) -> None:
        """Store a request in the site node's spool before it is processed."""
        self._write(self._folder / f"{metadata.message_id}.request", metadata, message)

    def request(self, message_id: str) -> tuple[MessageMetadata, Message]:
        """Return a request from the site node's spool."""
        return self._read(self._folder / f"{message_id}.request")

    def store_reply(self, message_id: str, metadata: MessageMetadata, message: Message) -> None:
        """Store a worker's reply in the site node's spool before it is pushed."""
        self._write(self._folder / f"{message_id}.reply", metadata, message)

    def reply(self, message_id: str) -> tuple[MessageMetadata, Message] | None:
        """Return the reply to a request from the site node's spool, if there is one."""
        path = self._folder / f"{message_id}.reply"
        return self._read(path) if path.exists() else None

    def delete(self, message_id: str) -> None:
        """Delete a message from the site node's spool after its reply was pushed or has expired."""
        for suffix in ("request", "reply"):
            (self._folder / f"{message_id}.{suffix}").unlink(missing_ok=True)

    def _write(self, path: Path, metadata: MessageMetadata, message: Message) -> None:
        with atomic_write(path, mode=0o600) as temporary_path:
            temporary_path.write_bytes(json.dumps(asdict(metadata)).encode() + b"\n" + message.to_bytes())

    def _read(self, path: Path) -> tuple[MessageMetadata, Message]:
        metadata, _, body = path.read_bytes().partition(b"\n")
        return MessageMetadata(**json.loads(metadata)), Message.from_bytes(body)


class SiteNode:
    """Node that forwards messages between a SuperLink and a site's workers.

    Args:
        settings: the node's settings.
        fleet: the client of the SuperLink.
        public_key: the node's public key.
        forward_message: forwards a message to the worker of a role and returns its reply.
    """

    def __init__(
        self,
        settings: NodeSettings,
        fleet: FleetClient,
        public_key: bytes,
        forward_message: Callable[[str, Message], Message],
    ) -> None:
        self._settings, self._fleet = settings, fleet
        self._public_key, self._forward_message = public_key, forward_message
        self._spool = MessageSpool(settings.folder / "messages")
        self._queues: dict[str, queue.SimpleQueue[str]] = {role: queue.SimpleQueue() for role in ROLES}
        self._outgoing: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._connected = threading.Event()
        self._status: dict[str, Any] = {}

    def run(self) -> None:
        """Connect the site node to the SuperLink and carry messages until the process ends."""
        for message_id in self._spool.message_ids():
            self._enqueue(message_id)
        for work in (*(partial(self._work, role) for role in ROLES), self._push_all, self._send_heartbeats):
            threading.Thread(target=_run_or_exit, args=(work,), daemon=True).start()
        while True:
            try:
                self._connect()
                self._poll()
            except SuperLinkUnavailableError as outage:
                self._set_state("connecting", str(outage))
            except SuperLinkRefusedError as refusal:
                self._set_state("connected", str(refusal))
            self._connected.clear()
            time.sleep(_RECONNECT_SECONDS)

    def update_status(self, **fields: Any) -> None:
        """Add fields to the status file that the site node writes."""
        self._status |= fields
        with atomic_write(self._settings.status, sync=False) as temporary_path:
            temporary_path.write_text(json.dumps(self._status))

    def _set_state(self, state: str, problem: str = "") -> None:
        if (self._status.get("state"), self._status.get("problem")) != (state, problem):
            self.update_status(state=state, problem=problem)

    # ---- connection ---------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Connect the site node; one that was killed first disconnects, so that it is listed again at once."""
        node_id_file = self._settings.folder / "node_id"
        if node_id_file.exists():
            with suppress(SuperLinkRefusedError):
                self._fleet.deactivate(int(node_id_file.read_text()))
        node_id = self._fleet.activate(self._public_key, HEARTBEAT_SECONDS)
        with atomic_write(node_id_file) as temporary_path:
            temporary_path.write_text(str(node_id))
        self._connected.set()
        self._set_state("admitted")

    def _send_heartbeats(self) -> None:
        while self._connected.wait():
            with suppress(SuperLinkUnavailableError, SuperLinkRefusedError, PayloadError):
                self._fleet.send_heartbeat(HEARTBEAT_SECONDS)
            time.sleep(_HEARTBEAT_INTERVAL)

    def _poll(self) -> None:
        """Pull messages for the site node until the centre refuses it; retry while the centre does not respond."""
        pause, failures = _MIN_POLL, 0
        while True:
            try:
                was_found = len(self._spool.message_ids()) < _MAX_MESSAGES and self._fetch()
                failures = 0
                self._set_state("admitted")
            except SuperLinkUnavailableError as outage:
                was_found, failures = False, failures + 1
                if failures > 2:
                    self._set_state("connecting", str(outage))
            pause = _MIN_POLL if was_found else min(_POLL_GROWTH * pause, _MAX_POLL)
            time.sleep(pause)

    # ---- messages in --------------------------------------------------------------------------------------------

    def _fetch(self) -> bool:
        """Pull the next message into the site node's spool; return whether there was one."""
        try:
            pulled = self._fleet.pull()
        except PayloadError as error:
            _LOG.warning("%s", error)
            return True
        if pulled is None:
            return False
        metadata, tree = pulled
        try:
            message = decode_message(
                message_objects(tree, metadata.message_id),
                lambda object_id: self._object(metadata, object_id),
            )
        except PayloadError as error:
            _LOG.warning("%s", error)
            self._reply(metadata, Message("reply", {"reason": UNKNOWN_MESSAGE}))
            return True
        except _ObjectGoneError:
            return True  # the sender finds that the message is not stored here
        if message.message_type == HELD_MESSAGES:
            self._reply(metadata, Message("reply", {HELD_MESSAGES: self._spool.message_ids()}))
            return True
        self._spool.store_request(metadata, message)
        self._enqueue(metadata.message_id, role_of(message))
        self._confirm(metadata)
        return True

    def _reply(self, metadata: MessageMetadata, message: Message) -> None:
        """Reply from the site node itself, without a worker; a lost reply is requested again."""
        self._confirm(metadata)
        with suppress(SuperLinkUnavailableError, SuperLinkRefusedError):
            self._fleet.push(metadata.reply(time.time()), message)

    def _object(self, metadata: MessageMetadata, object_id: str) -> bytes:
        pause, end = _MIN_POLL, time.monotonic() + _OBJECT_SECONDS
        while time.monotonic() < end:
            try:
                data = self._fleet.object(metadata.run, object_id)
            except SuperLinkUnavailableError:
                data = b""
            except SuperLinkRefusedError as refusal:
                raise _ObjectGoneError from refusal
            if data:
                return data
            if data is None:
                raise _ObjectGoneError
            time.sleep(pause)
            pause = min(2 * pause, _MAX_POLL)
        raise _ObjectGoneError

    def _confirm(self, metadata: MessageMetadata) -> None:
        # Without the confirmation the SuperLink keeps the objects until the run ends.
        with suppress(SuperLinkUnavailableError, SuperLinkRefusedError):
            self._fleet.confirm(metadata)

    def _enqueue(self, message_id: str, role: str = "") -> None:
        if self._spool.reply(message_id) is not None:
            self._outgoing.put(message_id)
        else:
            self._queues[role or role_of(self._spool.request(message_id)[1])].put(message_id)

    # ---- work, and messages out ---------------------------------------------------------------------------------

    def _work(self, role: str) -> None:
        while True:
            message_id = self._queues[role].get()
            metadata, message = self._spool.request(message_id)
            try:
                reply = self._forward_message(role, message)
            except PayloadError:
                reply = Message("reply", {"reason": LEARNER_FAILED})
            self._spool.store_reply(message_id, metadata.reply(time.time()), reply)
            self._outgoing.put(message_id)

    def _push_all(self) -> None:
        while True:
            message_id = self._outgoing.get()
            stored = self._spool.reply(message_id)
            if stored is not None:
                self._push(*stored)
            self._spool.delete(message_id)

    def _push(self, metadata: MessageMetadata, message: Message) -> None:
        """Push a reply from the site node to the SuperLink until it is delivered or has expired.

        A reply that the SuperLink cannot accept is deleted: the controller then finds that the node does not have the
        message.
        """
        pause, errors = _MIN_POLL, 0
        while metadata.created_at + metadata.ttl > time.time() and errors < _MAX_SERVER_ERRORS:
            try:
                self._fleet.push(metadata, message)
                return
            except SuperLinkRefusedError as refusal:
                if refusal.status != 401:
                    return  # its run has ended
            except SuperLinkUnavailableError as outage:
                errors += outage.status == INTERNAL_ERROR
            except PayloadError:
                errors += 1
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


class _ObjectGoneError(Exception):
    """Message that can no longer be fetched."""


def _run_or_exit(work: Callable[[], None]) -> None:
    """Run one of the site node's threads; if it fails, end the process, which is then restarted."""
    try:
        work()
    except Exception as error:
        _LOG.error("%s", type(error).__name__)  # its text may contain data
        os._exit(1)


def main(arguments: list[str]) -> None:
    """Restrict the process to the site node's own files, and carry messages until it is ended."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    end_with_parent()
    settings = NodeSettings.read(Path(arguments[0]))
    signer = NodeSigner(settings.key)
    headers = version_headers("SuperNode")
    connection = SuperLinkConnection(
        settings.centre, settings.authority, lambda: {**headers, **signer.headers()}, MAX_RESPONSE_BYTES
    )
    sockets = {Path(path).parent for path in settings.worker_sockets.values()}
    is_restricted = restrict_file_access([settings.folder], readable_folders=sockets)
    node = SiteNode(
        settings,
        FleetClient(connection),
        signer.public_key,
        lambda role, message: forward(settings.worker_sockets[role], message),
    )
    open_paths = [str(path) for path in readable_paths(settings.private_paths)]
    node.update_status(
        state="connecting",
        problem="",
        pid=os.getpid(),
        is_restricted=is_restricted,
        readable_paths=open_paths,
    )
    node.run()


if __name__ == "__main__":
    main(sys.argv[1:])
