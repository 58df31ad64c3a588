"""What every codec is: an update to bytes, bytes to an update, and a sum without decoding each one.

Invariants:
(1) ``encode`` never changes its input and refuses what is not finite, with the tensor's name;
(2) ``decode`` gives the same bits on every machine, and the size of what it makes comes from the
    server's own layout, never from the payload;
(3) ``accumulator(...).mean()`` is the weighted mean of what ``decode`` would give;
(4) randomness comes from the key alone: same update, same key, same bytes.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Protocol, Self

from abaton.codecs.settings import line
from abaton.errors import SettingsError
from abaton.layout import Layout, Vector


class KeyPurpose(StrEnum):
    """What a random stream is for; each purpose has a stream of its own."""

    ROTATION = "rotation"  # common to all learners of a round, so that the server inverts once
    DITHER = "dither"  # shared by one learner and the server
    PRIVATE = "private"  # rounding that only the learner needs to know
    NOISE = "noise"  # differential privacy: must be unknown to the server


@dataclass(frozen=True, slots=True)
class Key:
    """Where the random numbers of one learner in one round come from.

    ``round`` is the round's unpredictable key (16 bytes or more in a real run), sent by the controller;
    ``secret`` never leaves the site and feeds only the private streams.

    >>> a, b = Key(b"round one", "north"), Key(b"round one", "south")
    >>> a.derive(KeyPurpose.ROTATION) == b.derive(KeyPurpose.ROTATION)
    True
    >>> a.derive(KeyPurpose.DITHER) == b.derive(KeyPurpose.DITHER)
    False
    """

    round: bytes = field(repr=False)
    learner: str
    secret: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.round) <= 64:
            raise SettingsError(
                f"the round's key has {len(self.round)} bytes", remedy="use between 1 and 64, best 32"
            )

    def derive(self, purpose: KeyPurpose) -> int:
        """A 64-bit seed for one purpose, by keyed BLAKE2b: streams never overlap by accident."""
        learner = b"" if purpose is KeyPurpose.ROTATION else self.learner.encode()
        secret = self.secret if purpose in (KeyPurpose.PRIVATE, KeyPurpose.NOISE) else b""
        parts = (purpose.encode(), learner, secret)
        message = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        digest = hashlib.blake2b(message, key=self.round, digest_size=8, person=b"abaton-codec-1")
        return int.from_bytes(digest.digest(), "little")


class Accumulator(Protocol):
    """The running weighted sum of one round's updates at the server."""

    def add(self, payload: bytes, weight: float, learner: str) -> None:
        """Add one learner's payload; a payload that is refused leaves the sum as it was."""

    def merge(self, other: Self) -> None:
        """Add another accumulator of the same round, as if its payloads had been added here."""

    def mean(self) -> Vector:
        """The weighted mean of everything added."""


OWN_CODES = range(128, 256)
"""The codes of codecs that are not Abaton's."""


class Codec(Protocol):
    """A way to write an update as bytes.

    A codec of your own is a frozen dataclass that inherits from this, has a name and a code from 128 to 255, and says
    how updates are encoded and decoded. `wire.pack` and `wire.unpack` put what it writes into an envelope with a
    checksum.
    """

    name: ClassVar[str]  # as written in a study's codec line
    code: ClassVar[int]  # as written in a payload's header

    @property
    def spec(self) -> str:
        """The one line that names this codec with its settings; parsing it gives an equal codec."""
        return line(self, self.name)

    @property
    def unbiased(self) -> bool:
        """Whether the mean of many decoded payloads goes to the update itself."""
        return False

    @abstractmethod
    def encode(self, update: Vector, layout: Layout, key: Key) -> bytes:
        """The update as a payload."""

    @abstractmethod
    def decode(self, payload: bytes, layout: Layout, key: Key) -> Vector:
        """The update a payload stands for; raises PayloadError if it is not a sound payload."""

    def accumulator(self, layout: Layout, round_key: bytes) -> Accumulator:
        """An empty sum for one round: each update is decoded and added."""
        from abaton.codecs.sums import DecodedSum

        return DecodedSum(self, layout, round_key)
