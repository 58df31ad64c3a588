"""Messages of the Flower engine, and the encoding of models in them.

A message has a type, a JSON header, and attachments by name. A model is sent as the exact difference from a model
that the site has: the bits are XORed with those of the base, the four bytes of all values are separated into planes,
and the result is compressed with zstandard. Unchanged values cost almost no bytes, changed ones about ten bytes each.
The site gets the bits of the controller, and the digest is checked after decoding. A lossy delta here would change
the model that a site trains from, which is not the decision of an engine. A model without a base is sent as the
difference from zero.

In a run with a compressed downlink the codec's deltas between versions replace the exact difference, and a learner's
model is sent as its update; exact is then only the first version that a site gets, or one that no delta leads to.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import zstandard

from abaton.codecs import missing_deltas
from abaton.engines.base import DeltaPath, validated_code
from abaton.errors import PayloadError
from abaton.layout import Vector
from abaton.store import content_digest

CHUNK_BYTES = 1 << 20
"""Bytes of a chunk: each is sent in a separate request, which completes in time at 1 Mbit/s."""

MAX_MESSAGE_BYTES = 1 << 29
"""Largest number of bytes of a message, all its chunks together."""

_MAX_HEADER_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True)
class Message:
    """Message between the controller and a site.

    Attributes:
        message_type: `introduce`, `train`, `evaluate`, `progress`, or another type of a site worker; `reply` for
            replies.
        header: JSON values.
        attachments: bytes by name.
    """

    message_type: str
    header: Mapping[str, Any]
    attachments: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of bytes of the Flower message's attachments."""
        return sum(map(len, self.attachments.values()))

    @property
    def reason(self) -> str | None:
        """Failure code of a Flower reply message; none if the site succeeded."""
        code = self.header.get("reason")
        return None if code is None else validated_code(code)

    def to_bytes(self) -> bytes:
        """Return the Flower message as bytes for a file or a socket: one JSON line, then the attachments.

        >>> Message.from_bytes(Message("train", {"task_id": "t"}, {"model": b"abc"}).to_bytes())
        Message(message_type='train', header={'task_id': 't'}, attachments={'model': b'abc'})
        """
        sizes = [[name, len(data)] for name, data in self.attachments.items()]
        line = json.dumps([self.message_type, to_text(self.header), sizes]).encode()
        return b"".join([line, b"\n", *self.attachments.values()])

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        """Return the Flower message that `to_bytes` encoded."""
        line, newline, body = data.partition(b"\n")
        try:
            message_type, header, sizes = json.loads(line)
            attachments, start = {}, 0
            for name, size in sizes:
                attachments[str(name)] = body[start : start + size]
                start += size
            if not newline or not isinstance(message_type, str) or start != len(body):
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise PayloadError("a message does not have Abaton's format", where="network") from None
        return cls(message_type, from_text(header), attachments)


@dataclass(frozen=True, slots=True)
class MessageLost:
    """Message without a reply, with Flower's error code; Flower's text is ignored."""

    code: int


UNAVAILABLE, REPLY_GONE, NODE_GONE = 3, 4, 5
"""Flower's error codes for an unavailable message, an unavailable reply, and an unavailable node."""


class MessageTransport(Protocol):
    """Transport of messages to nodes and of replies back."""

    def nodes(self) -> Collection[int]:
        """Interface for transporting Flower messages: return the connected nodes."""

    def send(self, node: int, message: Message, ttl: float) -> str:
        """Interface for transporting Flower messages: send one and return its id; empty without such a node."""

    def collect(self, message_ids: Collection[str]) -> Mapping[str, Message | MessageLost]:
        """Interface for transporting Flower messages: return the replies by message id, without waiting."""

    def silence(self) -> float:
        """Interface for transporting Flower messages: return the longest time without a response."""


def split_chunks(
    attachments: Mapping[str, bytes], chunk_bytes: int = CHUNK_BYTES
) -> Iterator[tuple[str, bytes]]:
    """Yield a Flower message's attachments in chunks, each with its number in the name.

    >>> dict(split_chunks({"model": b"abcde"}, chunk_bytes=2))
    {'model/0': b'ab', 'model/1': b'cd', 'model/2': b'e'}
    """
    for name, data in attachments.items():
        for index, start in enumerate(range(0, len(data), chunk_bytes)):
            yield f"{name}/{index}", data[start : start + chunk_bytes]


def join_chunks(chunks: Mapping[str, bytes]) -> dict[str, bytes]:
    """Join chunks to the attachments of a Flower message.

    >>> join_chunks({"model/1": b"cd", "model/0": b"ab"})
    {'model': b'abcd'}
    """
    by_attachment: dict[str, dict[int, bytes]] = {}
    for chunk_name, data in chunks.items():
        name, _, index = chunk_name.rpartition("/")
        if not name or not index.isdecimal() or len(index) > 9:
            raise PayloadError("a chunk of a message has no number", where="network")
        by_attachment.setdefault(name, {})[int(index)] = data
    for numbered in by_attachment.values():
        if sorted(numbered) != list(range(len(numbered))):
            raise PayloadError("a chunk of a message is missing", where="network")
    return {name: b"".join(data[i] for i in range(len(data))) for name, data in by_attachment.items()}


def to_text(header: Mapping[str, Any]) -> str:
    """Return the header of a Flower message as JSON text."""
    return json.dumps(header, separators=(",", ":"))


def from_text(text: object) -> dict[str, Any]:
    """Parse the JSON header of a Flower message.

    Raises:
        PayloadError: The text is not a JSON object, or too long.
    """
    try:
        if not isinstance(text, str) or len(text) > _MAX_HEADER_CHARACTERS:
            raise ValueError
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise PayloadError("the header of a message is invalid", where="network")
    return header


# ---- models -------------------------------------------------------------------------------------------------------

_COMPRESSION_LEVEL = 3
_MAX_SENT_MODELS = 16


def model_digest(model: Vector) -> str:
    """Return the digest of a model's bits, its name in Flower messages."""
    return content_digest(np.ascontiguousarray(model, dtype="<f4").tobytes())


def encode_model(model: Vector, base: Vector | None = None) -> bytes:
    """Encode a model for a Flower message as the exact difference from a base.

    >>> model = np.arange(1000, dtype=np.float32)
    >>> bool((decode_model(encode_model(model), 1000) == model).all())
    True
    >>> changed = model.copy(); changed[3] = 7
    >>> len(encode_model(changed, model)) < 60
    True
    >>> bool((decode_model(encode_model(changed, model), 1000, model) == changed).all())
    True
    """
    bits = np.ascontiguousarray(model, dtype="<f4").view("<u4")
    if base is not None:
        bits = bits ^ np.ascontiguousarray(base, dtype="<f4").view("<u4")
    planes = np.ascontiguousarray(bits.view(np.uint8).reshape(-1, 4).T)
    return zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).compress(planes.tobytes())


def decode_model(data: bytes, size: int, base: Vector | None = None) -> Vector:
    """Decode a model with `size` values from a Flower message.

    Raises:
        PayloadError: The bytes are invalid or encode another number of values.
    """
    try:
        if zstandard.frame_content_size(data) != 4 * size:
            raise ValueError
        planes = zstandard.ZstdDecompressor().decompress(data, max_output_size=4 * size)
        bits = np.frombuffer(planes, np.uint8).reshape(4, size).T.copy().view("<u4").reshape(size)
    except (zstandard.ZstdError, ValueError):
        raise PayloadError("a model received over the network is invalid", where="network") from None
    if base is not None:
        bits = bits ^ np.ascontiguousarray(base, dtype="<f4").view("<u4")
    return bits.view("<f4")


class SentModelCache:
    """Models that the controller sent last, by digest, as bases of differences."""

    def __init__(self, max_models: int = _MAX_SENT_MODELS) -> None:
        self._models: OrderedDict[str, Vector] = OrderedDict()
        self._versions: dict[str, int] = {}
        self._max_models = max_models

    def pack(
        self, model: Vector, held_models: Iterable[str], delta_path: DeltaPath | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Return a model as header and bytes of a Flower message to a site that has some models."""
        return (
            self._exact(model, held_models)
            if delta_path is None
            else self._with_deltas(model, held_models, delta_path)
        )

    def _with_deltas(
        self, model: Vector, held_models: Iterable[str], delta_path: DeltaPath
    ) -> tuple[dict[str, Any], bytes]:
        """Return the Flower message of a model as deltas from a version at the site, and its learner's update."""
        start = model_digest(delta_path.start)
        self._versions[start] = delta_path.version
        known = {self._versions[digest]: digest for digest in held_models if digest in self._versions}
        deltas, exact = missing_deltas(delta_path.recent_versions, known, delta_path.version), b""
        if deltas is None:
            exact_header, exact = self._exact(delta_path.start, held_models)
            base, deltas = exact_header["base"], ()
        else:
            base = known[delta_path.version - len(deltas)]
        header = {
            "model": start if not delta_path.trained_by else model_digest(model),
            "base": base,
            "start": start,
            "exact_bytes": len(exact),
            "deltas": [[delta.version, len(delta.data)] for delta in deltas],
            "trained_by": [delta_path.version, delta_path.trained_by],
        }
        return header, b"".join([exact, *(delta.data for delta in deltas), delta_path.payload])

    def _exact(self, model: Vector, held_models: Iterable[str]) -> tuple[dict[str, Any], bytes]:
        digest = model_digest(model)
        known = {other: self._models[other] for other in held_models if other in self._models}
        self._models[digest] = model
        self._models.move_to_end(digest)
        while len(self._models) > self._max_models:
            self._models.popitem(last=False)
        base = min(known, key=lambda other: int(np.count_nonzero(known[other] != model)), default=None)
        return {"model": digest, "base": base}, encode_model(model, None if base is None else known[base])
