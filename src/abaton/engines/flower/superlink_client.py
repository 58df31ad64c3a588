"""Connection to a SuperLink, and the centre's message transport over it.

The centre coordinates a run in its own process, which calls the SuperLink directly; no process of Flower is started for
it. A run of Flower is only an address here: the SuperLink gives it up one minute after the last heartbeat; then another
run is started, messages in flight count as lost, and their sender sends them again.

A SuperLink delivers each message once, so a message lost on the way to a node would never get a reply. The transport
therefore asks a node which messages it has, at intervals and after every restart of the node.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from abaton.atomic_files import atomic_write
from abaton.engines.base import UNKNOWN_MESSAGE
from abaton.engines.flower.flower_messages import NODE_GONE, REPLY_GONE, Message, MessageLost
from abaton.errors import PayloadError, SettingsError

if TYPE_CHECKING:
    from abaton.engines.flower.flower_protocol import ServerAppIoClient

MIN_SILENCE_SECONDS = 5.0  # shorter outages are not reported
HELD_MESSAGES = "held_messages"
"""Message type that asks a node for its stored messages; the node itself replies."""

INTERNAL_ERROR = 500
_TEMPORARY = frozenset(
    {INTERNAL_ERROR, 502, 503, 504}
)  # the SuperLink, its proxy or its database is starting or busy
_RUN_GONE = frozenset({401, 403, 404, 409, 412})  # of a run whose token is no longer known
_TIMEOUT_SECONDS, _HEARTBEAT_SECONDS = 30.0, 10.0
_MIN_RETRY, _MAX_RETRY = 0.1, 5.0  # seconds between two attempts
_MAX_RESPONSE_BYTES = 16 << 20  # room for several objects
_QUERY_SECONDS = 15.0  # until a node is asked whether it has a message
_CLAIM_SECONDS = 60.0
_MAX_ERROR_SECONDS = 300.0  # of internal errors only, until the request is given up

T = TypeVar("T")


class SuperLinkUnavailableError(Exception):
    """The SuperLink does not respond, or responds with a temporary error; to be retried."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class SuperLinkRefusedError(Exception):
    """The SuperLink refuses a request with an HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class SuperLinkConnection:
    """HTTPS client of a SuperLink, or of the proxy in front of it.

    Args:
        address: ``host:port``.
        authority: the certificate of its authority.
        headers: returns the headers of each request.
        max_response_bytes: longer responses are not read.
    """

    def __init__(
        self,
        address: str,
        authority: Path,
        headers: Callable[[], Mapping[str, str]],
        max_response_bytes: int = _MAX_RESPONSE_BYTES,
    ) -> None:
        import httpx

        self._headers, self._max_bytes, self._http_error = headers, max_response_bytes, httpx.HTTPError
        self._client = httpx.Client(
            base_url=f"https://{address}",
            verify=ssl.create_default_context(cafile=str(authority)),
            timeout=_TIMEOUT_SECONDS,
            trust_env=False,
            limits=httpx.Limits(max_connections=8, keepalive_expiry=4.0),
        )

    def __call__(self, path: str, body: bytes) -> bytes:
        """Send one HTTP request to the SuperLink and return the response body.

        Raises:
            SuperLinkUnavailableError: There is no response, or a temporary error.
            SuperLinkRefusedError: The request is refused.
        """
        media_type = "application/protobuf"
        headers = {
            **self._headers(),
            "content-type": media_type,
            "accept": media_type,
            "accept-encoding": "identity",
        }
        received = bytearray()
        try:
            with self._client.stream("POST", path, content=body, headers=headers) as response:
                for chunk in response.iter_raw():
                    received += chunk
                    if len(received) > self._max_bytes:
                        raise PayloadError("a response of the SuperLink is too long", where="network")
        except self._http_error as error:
            raise SuperLinkUnavailableError(str(error) or "no response") from None
        if response.status_code in _TEMPORARY:
            raise SuperLinkUnavailableError(f"status {response.status_code}", response.status_code)
        if response.status_code != 200:
            raise SuperLinkRefusedError(response.status_code)
        return bytes(received)

    def close(self) -> None:
        """Close all HTTP connections of this SuperLink client."""
        self._client.close()


@dataclass(slots=True)
class _OpenMessage:
    """Message without a collected reply."""

    node: int
    sent_at: float
    reply: Message | MessageLost | None = None


@dataclass(slots=True)
class _Node:
    """State of a node.

    Attributes:
        activated_at: when it was started, as the SuperLink reports.
        has_restarted: whether it was restarted since the last query.
        query_id: id of the open query for its messages.
        queried_at: when it was last queried.
        queried_messages: the messages of that query.
    """

    activated_at: str = ""
    has_restarted: bool = False
    query_id: str = ""
    queried_at: float = float("-inf")
    queried_messages: tuple[str, ...] = ()


class SuperLinkTransport:
    """Message transport of a centre's controller.

    Args:
        address: the SuperLink's address, ``host:port``.
        authority: the certificate of its authority.
        run_file: stores the id of the current run, so that the next controller can stop it.
        clock: the time in seconds.
    """

    def __init__(
        self,
        address: str,
        authority: Path,
        run_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from abaton.engines.flower.flower_protocol import ControlClient, version_headers

        self._address, self._version_headers, self._clock = address, version_headers("flwr-serverapp"), clock
        self._token: dict[str, str] = {}
        self._connection = SuperLinkConnection(
            address, authority, lambda: {**self._version_headers, **self._token}
        )
        self._control, self._run_file = ControlClient(self._connection), run_file
        self._open: dict[str, _OpenMessage] = {}
        self._nodes: dict[int, _Node] = {}
        self._runtime: ServerAppIoClient | None = None
        self._longest_silence = 0.0
        self._closed = threading.Event()
        self._lock = threading.RLock()

    def __enter__(self) -> SuperLinkTransport:
        self._retry(self._stop_previous_run)
        self._start_run()
        threading.Thread(target=self._send_heartbeats, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        with self._lock, suppress(SuperLinkUnavailableError, SuperLinkRefusedError):
            if self._runtime is not None:
                self._runtime.finish()
                self._control.stop_run(self._runtime.run)
        if self._run_file is not None:
            self._run_file.unlink(missing_ok=True)
        self._connection.close()

    # ---- transport ----------------------------------------------------------------------------------------------

    def nodes(self) -> Collection[int]:
        """Return the nodes that the SuperLink lists; a node that exited stays listed for some seconds."""
        activation_times = self._with_run(lambda runtime: runtime.nodes())
        for node, activated_at in activation_times.items():
            state = self._nodes.setdefault(node, _Node(activated_at))
            if (
                state.activated_at != activated_at
            ):  # messages fetched but not stored before the restart are lost
                state.activated_at, state.has_restarted = activated_at, True
        return list(activation_times)

    def send(self, node: int, message: Message, ttl: float) -> str:
        """Push a message to the SuperLink and return its id; empty if it does not know the node."""
        message_id = self._push(node, message, ttl)
        if message_id:
            self._open[message_id] = _OpenMessage(node, self._clock())
        return message_id

    def collect(self, message_ids: Collection[str]) -> Mapping[str, Message | MessageLost]:
        """Return available replies from the SuperLink; a message that its node does not have is lost."""
        open_ids = [message_id for message_id in message_ids if message_id in self._open]
        replies: dict[str, Message | MessageLost] = {
            message_id: MessageLost(REPLY_GONE) for message_id in message_ids if message_id not in self._open
        }
        if open_ids:
            self._pull(open_ids)
            self._query_nodes(open_ids)
        for message_id in open_ids:
            reply = self._open[message_id].reply
            if reply is not None:
                del self._open[message_id]
                replies[message_id] = reply
        return replies

    def silence(self) -> float:
        """Return the longest time without a response from the SuperLink since the last call; 0 if it was short."""
        silence, self._longest_silence = self._longest_silence, 0.0
        return silence if silence > MIN_SILENCE_SECONDS else 0.0

    # ---- messages -----------------------------------------------------------------------------------------------

    def _push(self, node: int, message: Message, ttl: float) -> str:
        from abaton.engines.flower.flower_protocol import SUPERLINK_NODE_ID, MessageMetadata

        def push(runtime: ServerAppIoClient) -> str:
            return runtime.push(
                MessageMetadata(runtime.run, SUPERLINK_NODE_ID, node, time.time(), ttl), message
            )

        return self._with_run(push)

    def _pull(self, message_ids: Collection[str]) -> None:
        queries = {state.query_id: node for node, state in self._nodes.items() if state.query_id}
        pulled = self._with_run(lambda runtime: runtime.pull([*message_ids, *queries]))
        query_replies: dict[int, Message | MessageLost] = {}
        for metadata, code, tree in pulled:
            reply = MessageLost(code) if code is not None else self._fetch(metadata, tree)
            if metadata.reply_to in queries:
                query_replies[queries[metadata.reply_to]] = reply
            elif metadata.reply_to in self._open:
                self._open[metadata.reply_to].reply = reply
        for node, reply in query_replies.items():  # after the replies, which may have arrived just before
            self._mark_lost(node, reply)

    def _fetch(self, metadata: Any, tree: Any) -> Message | MessageLost:
        from abaton.engines.flower.flower_protocol import decode_message, message_objects

        def fetch_object(object_id: str) -> bytes:
            pause, end = _MIN_RETRY, self._clock() + 6 * _TIMEOUT_SECONDS
            while True:
                data = self._with_run(lambda runtime: runtime.object(object_id))
                if data:
                    return data
                if data is None or self._clock() > end:
                    raise _ObjectGoneError
                self._closed.wait(pause)
                pause = min(2 * pause, 1.0)

        try:
            object_ids = message_objects(tree, metadata.message_id)
            reply: Message | MessageLost = decode_message(object_ids, fetch_object)
        except _ObjectGoneError:
            reply = MessageLost(REPLY_GONE)
        except PayloadError:
            reply = Message("reply", {"reason": UNKNOWN_MESSAGE})
        self._with_run(lambda runtime: runtime.confirm(metadata))
        return reply

    def _query_nodes(self, message_ids: Collection[str]) -> None:
        """Ask nodes through the SuperLink which of the open messages they have."""
        now = self._clock()
        waiting: dict[int, list[str]] = {}
        for message_id in message_ids:
            message = self._open[message_id]
            if message.reply is None:
                waiting.setdefault(message.node, []).append(message_id)
        for node, node_messages in waiting.items():
            state = self._nodes.setdefault(node, _Node())
            last = max(state.queried_at, min(self._open[message_id].sent_at for message_id in node_messages))
            if state.has_restarted or now > last + _QUERY_SECONDS:
                state.query_id = self._push(node, Message(HELD_MESSAGES, {}), 4 * _QUERY_SECONDS)
                state.queried_at = now
                state.queried_messages, state.has_restarted = tuple(node_messages), False

    def _mark_lost(self, node: int, query_reply: Message | MessageLost) -> None:
        state = self._nodes[node]
        state.query_id = ""
        if isinstance(query_reply, MessageLost):
            return
        stored = query_reply.header.get(HELD_MESSAGES)
        for message_id in state.queried_messages:
            message = self._open.get(message_id)
            is_missing = isinstance(stored, list) and message_id not in stored
            if is_missing and message is not None and message.reply is None:
                message.reply = MessageLost(REPLY_GONE)

    # ---- run ----------------------------------------------------------------------------------------------------

    def _with_run(self, send: Callable[[ServerAppIoClient], T]) -> T:
        """Send a request to the SuperLink, with retries; start another run if it has given up the current one."""
        while True:
            with self._lock:
                assert self._runtime is not None
                runtime = self._runtime
            try:
                return self._retry(partial(send, runtime))
            except SuperLinkRefusedError as refusal:
                if refusal.status not in _RUN_GONE:
                    raise self._refused(refusal) from None
                self._renew(runtime, refusal)

    def _refused(self, refusal: SuperLinkRefusedError) -> SettingsError:
        return SettingsError(
            f"the SuperLink refuses a request ({refusal})",
            where=self._address,
            remedy="see its log; Abaton and the SuperLink need the same release of Flower",
        )

    def _renew(self, old: ServerAppIoClient, refusal: SuperLinkRefusedError) -> None:
        with self._lock:
            if self._runtime is not old:
                return
            if self._retry(self._is_alive):
                raise self._refused(refusal)
            self._start_run()
            for message in self._open.values():
                message.reply = message.reply or MessageLost(NODE_GONE)
            self._nodes.clear()

    def _is_alive(self) -> bool:
        assert self._runtime is not None
        try:
            return self._runtime.send_heartbeat()
        except SuperLinkRefusedError:
            return False

    def _start_run(self) -> None:
        """Start a run at the SuperLink for this client."""
        from abaton.engines.flower.flower_protocol import ServerAppIoClient

        with self._lock:
            self._token = {}
            self._retry(self._control.start_run)
            end, claimed = self._clock() + _CLAIM_SECONDS, None
            while claimed is None:
                claimed = self._retry(self._control.claim_run)
                if claimed is None and self._clock() > end:
                    raise SettingsError(
                        "another process claims the SuperLink's runs",
                        where=self._address,
                        remedy="stop flower-superexec on this SuperLink",
                    )
            run, token = claimed
            self._token = {"flwr-task-token": token}
            self._runtime = ServerAppIoClient(self._connection, run)
            self._retry(self._runtime.start)
            if self._run_file is not None:
                with atomic_write(self._run_file) as temporary_path:
                    temporary_path.write_text(json.dumps(run))

    def _stop_previous_run(self) -> None:
        """Stop the run of a killed controller at the SuperLink."""
        if self._run_file is None or not self._run_file.exists():
            return
        with suppress(SuperLinkRefusedError, ValueError):
            self._control.stop_run(int(json.loads(self._run_file.read_text())))

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(_HEARTBEAT_SECONDS):
            with self._lock:
                runtime = self._runtime
            with suppress(SuperLinkUnavailableError, SuperLinkRefusedError):
                assert runtime is not None
                runtime.send_heartbeat()

    def _retry(self, send: Callable[[], T]) -> T:
        """Send a request until the SuperLink responds, and record the waiting time."""
        started, pause = self._clock(), _MIN_RETRY
        while True:
            try:
                response = send()
            except SuperLinkUnavailableError as outage:
                if outage.status == INTERNAL_ERROR and self._clock() > started + _MAX_ERROR_SECONDS:
                    raise self._refused(SuperLinkRefusedError(outage.status)) from None
                self._closed.wait(pause)
                pause = min(2 * pause, _MAX_RETRY)
            else:
                self._longest_silence = max(self._longest_silence, self._clock() - started)
                return response


class _ObjectGoneError(Exception):
    """Object that is no longer available."""
