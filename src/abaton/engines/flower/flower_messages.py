"""What crosses the network: a kind, a few plain values, and bytes by name; and how models become such bytes.

A model goes down as an exact difference from one that the site holds already. Its bits are compared with those of a
base (exclusive or), the four bytes of all numbers are laid side by side, and the result is compressed. What did not
change costs next to nothing, what did costs about ten bytes a number; and the site has the very same bits as the
controller, whatever happened before. A model without a base is a difference from nothing.

In a run whose way down is compressed the codec's own differences between versions take their place, and a learner's
model goes as its update; what is exact is then only the first version that a site gets, or one that it can no longer
be led to.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import zstandard

from abaton.codecs import lacking
from abaton.engines.base import Way, plain_reason
from abaton.errors import PayloadError
from abaton.kernels import Vector
from abaton.store import digest_of

PIECE = 1 << 20
"""Bytes of a piece: each travels by a request of its own, which ends in time on a line of 1 Mbit/s, too."""

LARGEST = 1 << 29
"""Bytes of one message, all of its pieces together."""

_LONGEST = 1 << 20  # characters of plain values: much more than any honest message has


@dataclass(frozen=True, slots=True)
class Parcel:
    """One message.

    Attributes:
        kind: `query`, `train`, `evaluate`, `tell`, or another that the desk knows; `answer` on the way back.
        about: plain values.
        blobs: bytes by name.
    """

    kind: str
    about: Mapping[str, Any]
    blobs: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many bytes its blobs have."""
        return sum(map(len, self.blobs.values()))

    @property
    def reason(self) -> str | None:
        """Why the site did not do it, in words of ours; nothing if it did."""
        said = self.about.get("reason")
        return None if said is None else plain_reason(said)

    def packed(self) -> bytes:
        """As bytes, for a file or a socket: a line of plain values, then the blobs one after the other.

        >>> Parcel.unpacked(Parcel("train", {"key": "t"}, {"model": b"abc"}).packed())
        Parcel(kind='train', about={'key': 't'}, blobs={'model': b'abc'})
        """
        sizes = [[name, len(data)] for name, data in self.blobs.items()]
        head = json.dumps([self.kind, to_text(self.about), sizes]).encode()
        return b"".join([head, b"\n", *self.blobs.values()])

    @classmethod
    def unpacked(cls, data: bytes) -> Parcel:
        """What `packed` made."""
        head, found, rest = data.partition(b"\n")
        try:
            kind, about, sizes = json.loads(head)
            blobs, start = {}, 0
            for name, size in sizes:
                blobs[str(name)] = rest[start : start + size]
                start += size
            if not found or not isinstance(kind, str) or start != len(rest):
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise PayloadError("a message is not one of Abaton's", where="network") from None
        return cls(kind, from_text(about), blobs)


@dataclass(frozen=True, slots=True)
class Lost:
    """A message that will not be answered, with Flower's code for why; its text stays unread."""

    code: int


UNAVAILABLE, REPLY_GONE, NODE_GONE = 3, 4, 5
"""Flower's codes: a message that is not there any more, an answer that is not, and a node that is not."""


class Post(Protocol):
    """What carries parcels to nodes and back."""

    def nodes(self) -> Collection[int]:
        """Which nodes are connected."""

    def send(self, node: int, parcel: Parcel, ttl: float) -> str:
        """Send a parcel; the name under which its answer is collected, empty if there is no such node."""

    def collect(self, letters: Collection[str]) -> Mapping[str, Parcel | Lost]:
        """The answers that are there, by the names of what they answer; never waits."""

    def silence(self) -> float:
        """How long the network did not answer since this was last asked; 0 if it was not for long."""


def pieces(blobs: Mapping[str, bytes], most: int = PIECE) -> Iterator[tuple[str, bytes]]:
    """Bytes cut into pieces, each under a name that says where it belongs.

    >>> dict(pieces({"model": b"abcde"}, most=2))
    {'model/0': b'ab', 'model/1': b'cd', 'model/2': b'e'}
    """
    for name, data in blobs.items():
        for number, start in enumerate(range(0, len(data), most)):
            yield f"{name}/{number}", data[start : start + most]


def together(cut: Mapping[str, bytes]) -> dict[str, bytes]:
    """The bytes that were cut into pieces.

    >>> together({"model/1": b"cd", "model/0": b"ab"})
    {'model': b'abcd'}
    """
    found: dict[str, dict[int, bytes]] = {}
    for name, data in cut.items():
        whole, _, number = name.rpartition("/")
        if not whole or not number.isdecimal() or len(number) > 9:
            raise PayloadError("a message holds a piece without a place", where="network")
        found.setdefault(whole, {})[int(number)] = data
    for parts in found.values():
        if sorted(parts) != list(range(len(parts))):
            raise PayloadError("a message lacks a piece", where="network")
    return {name: b"".join(parts[i] for i in range(len(parts))) for name, parts in found.items()}


def to_text(about: Mapping[str, Any]) -> str:
    """Plain values as the text that travels."""
    return json.dumps(about, separators=(",", ":"))


def from_text(text: object) -> dict[str, Any]:
    """The plain values that a text holds; anything else is refused."""
    try:
        if not isinstance(text, str) or len(text) > _LONGEST:
            raise ValueError
        about = json.loads(text)
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict):
        raise PayloadError("a message has no readable header", where="network")
    return about


# ---- models -------------------------------------------------------------------------------------------------------

_LEVEL = 3
_REMEMBERED = 16


def model_name(model: Vector) -> str:
    """The name of a model on the network: the digest of its bits."""
    return digest_of(np.ascontiguousarray(model, dtype="<f4").tobytes())


def encode(model: Vector, base: Vector | None = None) -> bytes:
    """A model as a difference from a base.

    >>> model = np.arange(1000, dtype=np.float32)
    >>> bool((decode(encode(model), 1000) == model).all())
    True
    >>> moved = model.copy(); moved[3] = 7
    >>> len(encode(moved, model)) < 60, bool((decode(encode(moved, model), 1000, model) == moved).all())
    (True, True)
    """
    bits = np.ascontiguousarray(model, dtype="<f4").view("<u4")
    if base is not None:
        bits = bits ^ np.ascontiguousarray(base, dtype="<f4").view("<u4")
    planes = np.ascontiguousarray(bits.view(np.uint8).reshape(-1, 4).T)
    return zstandard.ZstdCompressor(level=_LEVEL).compress(planes.tobytes())


def decode(data: bytes, size: int, base: Vector | None = None) -> Vector:
    """The model of so many numbers; bytes that say they are more, or are not whole, are refused."""
    try:
        if zstandard.frame_content_size(data) != 4 * size:
            raise ValueError
        planes = zstandard.ZstdDecompressor().decompress(data, max_output_size=4 * size)
        bits = np.frombuffer(planes, np.uint8).reshape(4, size).T.copy().view("<u4").reshape(size)
    except (zstandard.ZstdError, ValueError):
        raise PayloadError("a model that came over the network is not readable", where="network") from None
    if base is not None:
        bits = bits ^ np.ascontiguousarray(base, dtype="<f4").view("<u4")
    return bits.view("<f4")


class Shelf:
    """The models that the controller sent last, by name: what sites hold is measured against them."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._models: OrderedDict[str, Vector] = OrderedDict()
        self._versions: dict[str, int] = {}
        self._most = most

    def parcel(
        self, model: Vector, held: Iterable[str], way: Way | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """A model for a site that holds some: its name, the name of the base, and what makes the one of the other."""
        return self._exact(model, held) if way is None else self._led(model, held, way)

    def _led(self, model: Vector, held: Iterable[str], way: Way) -> tuple[dict[str, Any], bytes]:
        """The differences from a version that is held, and the update that makes the model, if a learner made it."""
        start = model_name(way.start)
        self._versions[start] = way.version
        known = {self._versions[name]: name for name in held if name in self._versions}
        steps, exact = lacking(way.lately, known, way.version), b""
        if steps is None:
            named, exact = self._exact(way.start, held)
            base, steps = named["base"], ()
        else:
            base = known[way.version - len(steps)]
        about = {
            "model": start if not way.author else model_name(model),
            "base": base,
            "start": start,
            "exact": len(exact),
            "steps": [[step.version, len(step.data)] for step in steps],
            "made": [way.version, way.author],
        }
        return about, b"".join([exact, *(step.data for step in steps), way.payload])

    def _exact(self, model: Vector, held: Iterable[str]) -> tuple[dict[str, Any], bytes]:
        name = model_name(model)
        known = {other: self._models[other] for other in held if other in self._models}
        self._models[name] = model
        self._models.move_to_end(name)
        while len(self._models) > self._most:
            self._models.popitem(last=False)
        base = min(known, key=lambda other: int(np.count_nonzero(known[other] != model)), default=None)
        return {"model": name, "base": base}, encode(model, None if base is None else known[base])
