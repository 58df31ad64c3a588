"""What crosses the network: a kind, a few plain values, and bytes by name."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from abaton.engines.reasons import plain_reason
from abaton.errors import PayloadError

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
