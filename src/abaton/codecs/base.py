"""What every codec is: an update to bytes, bytes to an update, and a sum without decoding each one.

Invariants:
(1) ``encode`` never changes its input and refuses what is not finite, with the tensor's name;
(2) ``decode`` gives the same bits on every machine, and the size of what it makes comes from the
    server's own layout, never from the payload;
(3) ``accumulator(...).mean()`` is the weighted mean of what ``decode`` would give;
(4) randomness comes from the key alone: same update, same key, same bytes.

A codec's settings: how they are checked, and how they are written in one line.

Sums of updates: the running weight, and the plain sum for codecs that must decode each update.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import ClassVar, Protocol, Self

import numpy as np

from abaton.errors import SettingsError
from abaton.layout import Layout, Vector


def line(part: object, name: str) -> str:
    """The one line that names a codec or step: its name and the settings that are not the default.

    >>> from abaton.codecs.float_formats import Raw
    >>> line(Raw(), "raw")
    'raw'
    """
    assert is_dataclass(part)
    given = [
        f"{f.name}={getattr(part, f.name)}"
        for f in fields(part)
        if f.default is MISSING or getattr(part, f.name) != f.default
    ]
    return f"{name}({', '.join(given)})" if given else name


@dataclass(frozen=True, slots=True)
class Written:
    """A codec or step that a study names in one line."""

    name: ClassVar[str]

    @property
    def spec(self) -> str:
        """The line that names it with its settings."""
        return line(self, self.name)


def check_number(name: str, value: float, low: float, high: float, *, above: bool = False) -> None:
    """Refuse a number outside [low, high], or outside (low, high] where it must be above."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SettingsError(f"{name}={value} is not a number", remedy=f"give {name} a finite number")
    if value > high or value < low or (above and value == low):
        span = f"above {low:g} and at most {high:g}" if above else f"between {low:g} and {high:g}"
        raise SettingsError(f"{name}={value} is out of range", remedy=f"choose {name} {span}")


def check_whole(name: str, value: int, low: int, high: int) -> None:
    """Refuse what is not a whole number in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise SettingsError(
            f"{name}={value} is not usable", remedy=f"choose a whole number from {low} to {high} for {name}"
        )


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a word that is not one of the choices."""
    if value not in choices:
        raise SettingsError(f"{name}={value} is not known", remedy=f"choose {name} from {', '.join(choices)}")


@dataclass(frozen=True, slots=True)
class Quantiser(Written):
    """A codec whose first setting is how many bits a number takes, 1 to 4."""

    bits: int

    def __post_init__(self) -> None:
        check_whole("bits", self.bits, 1, 4)


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
        return DecodedSum(self, layout, round_key)


def check_weight(weight: float, learner: str) -> float:
    """The weight itself, if it is one."""
    if not math.isfinite(weight) or weight < 0:
        raise SettingsError(
            f"learner '{learner}' has weight {weight}", remedy="weights are finite and not negative"
        )
    return float(weight)


def check_total(total: float) -> float:
    """The sum of all weights, if a mean can be taken."""
    if not total > 0:
        raise SettingsError("nothing with a weight was added", remedy="add at least one update first")
    return total


class DecodedSum:
    """Decodes each update and adds it, in float64 so that many additions do not drift."""

    def __init__(self, codec: Codec, layout: Layout, round_key: bytes) -> None:
        self.codec, self.layout, self.round_key = codec, layout, round_key
        self.total = 0.0
        self.sum = np.zeros(layout.size, dtype=np.float64)

    def add(self, payload: bytes, weight: float, learner: str) -> None:
        """Add one learner's payload."""
        weight = check_weight(weight, learner)
        self._include(payload, weight, Key(self.round_key, learner))
        self.total += weight

    def merge(self, other: Self) -> None:
        """Add another sum of the same round."""
        check_same(self, other)
        self.sum += other.sum
        self.total += other.total

    def mean(self) -> Vector:
        """The weighted mean of everything added."""
        return (self.sum / check_total(self.total)).astype(np.float32)

    def _include(self, payload: bytes, weight: float, key: Key) -> None:
        self.sum += np.multiply(self.codec.decode(payload, self.layout, key), weight, dtype=np.float64)


def check_same(one: DecodedSum | object, other: DecodedSum | object) -> None:
    """Refuse to merge sums of different codecs, layouts or rounds."""
    for what in ("codec", "layout", "round_key"):
        if getattr(one, what) != getattr(other, what):
            raise SettingsError(
                f"the two sums have a different {what.replace('_', ' ')}", remedy="merge sums of one round"
            )
