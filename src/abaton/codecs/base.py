"""Codec and accumulator interfaces, codec keys, setting checks and the decoded sum.

Invariants:
(1) ``encode`` does not change its input and refuses values that are not finite, with the tensor's name;
(2) ``decode`` returns the same bits on every machine, and takes the size of its result from the layout
    of the server, not from the payload;
(3) ``accumulator(...).mean()`` is the weighted mean of the decoded updates;
(4) randomness depends on the key only: the same update and key give the same bytes.
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


def to_spec(component: object, name: str) -> str:
    """Return the spec of a codec or transform: its name and the settings that differ from the default.

    >>> from abaton.codecs.float_formats import RawCodec
    >>> to_spec(RawCodec(), "raw")
    'raw'
    """
    assert is_dataclass(component)
    settings = [
        f"{f.name}={getattr(component, f.name)}"
        for f in fields(component)
        if f.default is MISSING or getattr(component, f.name) != f.default
    ]
    return f"{name}({', '.join(settings)})" if settings else name


@dataclass(frozen=True, slots=True)
class SpecifiedComponent:
    """Codec or transform with a spec."""

    name: ClassVar[str]

    @property
    def spec(self) -> str:
        """Spec of a codec or transform, from its dataclass fields: the name with its settings."""
        return to_spec(self, self.name)


def check_number(name: str, value: float, low: float, high: float, *, exclusive: bool = False) -> None:
    """Raise an error for a codec setting outside [low, high], or outside (low, high] if ``exclusive``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SettingsError(f"{name}={value} is not a finite number", remedy=f"give {name} a finite number")
    if value > high or value < low or (exclusive and value == low):
        allowed = f"above {low:g} and at most {high:g}" if exclusive else f"between {low:g} and {high:g}"
        raise SettingsError(f"{name}={value} is out of range", remedy=f"choose {name} {allowed}")


def check_integer(name: str, value: int, low: int, high: int) -> None:
    """Raise an error for a codec setting that is not an integer in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise SettingsError(
            f"{name}={value} is not an integer from {low} to {high}",
            remedy=f"choose such an integer for {name}",
        )


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise an error for a codec setting that is not one of the choices."""
    if value not in choices:
        raise SettingsError(f"{name}={value} is unknown", remedy=f"choose {name} from {', '.join(choices)}")


@dataclass(frozen=True, slots=True)
class Quantiser(SpecifiedComponent):
    """Codec whose first setting is the bits per value, 1 to 4."""

    bits: int

    def __post_init__(self) -> None:
        check_integer("bits", self.bits, 1, 4)


class KeyPurpose(StrEnum):
    """Purpose of a random stream; each purpose has its own stream."""

    # frozen: the values are part of the bytes
    ROTATION = "rotation"  # common to all learners of a round, so that the server inverts once
    DITHER = "dither"  # shared by one learner and the server
    PRIVATE = "private"  # stochastic rounding, known to the learner only
    NOISE = "noise"  # differential privacy: must be unknown to the server


@dataclass(frozen=True, slots=True)
class CodecKey:
    """Key of the random streams of one learner in one round.

    ``round`` is the round's unpredictable key (16 bytes or more outside simulations), sent by the controller;
    ``secret`` does not leave the site and is used for the private streams only.

    >>> a, b = CodecKey(b"round one", "north"), CodecKey(b"round one", "south")
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
                f"the round's key has {len(self.round)} bytes", remedy="use 1 to 64 bytes, preferably 32"
            )

    def derive(self, purpose: KeyPurpose) -> int:
        """Return a 64-bit seed of this codec key for one purpose, derived by keyed BLAKE2b."""
        learner = b"" if purpose is KeyPurpose.ROTATION else self.learner.encode()
        secret = self.secret if purpose in (KeyPurpose.PRIVATE, KeyPurpose.NOISE) else b""
        components = (purpose.encode(), learner, secret)
        message = b"".join(len(component).to_bytes(4, "little") + component for component in components)
        # frozen: part of the bytes
        digest = hashlib.blake2b(message, key=self.round, digest_size=8, person=b"abaton-codec-1")
        return int.from_bytes(digest.digest(), "little")


class Accumulator(Protocol):
    """Running weighted sum of one round's updates at the server."""

    def add(self, payload: bytes, weight: float, learner: str) -> None:
        """Add one learner's payload (interface of accumulators); a refused payload does not change the sum."""

    def merge(self, other: Self) -> None:
        """Add another accumulator of the same round (interface), as if its payloads had been added here."""

    def mean(self) -> Vector:
        """Return the weighted mean of the added updates (interface of accumulators)."""


USER_CODES = range(128, 256)
"""Codes reserved for user-defined codecs."""


class Codec(Protocol):
    """Encoder and decoder of updates.

    A user-defined codec is a frozen dataclass that inherits from this class, has a name and a code from 128 to 255, and
    implements `encode` and `decode`. `payload_format.pack` and `payload_format.unpack` add and check the header and
    the checksum.
    """

    name: ClassVar[str]  # as written in a spec
    code: ClassVar[int]  # as written in a payload's header

    @property
    def spec(self) -> str:
        """Spec of any codec with its settings (interface); parsing it returns an equal codec."""
        return to_spec(self, self.name)

    @property
    def is_unbiased(self) -> bool:
        """Whether a codec is unbiased (interface): the expected decoded update equals the update."""
        return False

    @abstractmethod
    def encode(self, update: Vector, layout: Layout, key: CodecKey) -> bytes:
        """Encode the update as a payload (interface of all codecs)."""

    @abstractmethod
    def decode(self, payload: bytes, layout: Layout, key: CodecKey) -> Vector:
        """Decode a payload (interface of all codecs); raise PayloadError if the payload is invalid."""

    def accumulator(self, layout: Layout, round_key: bytes) -> Accumulator:
        """Return an empty sum for one round; this default of the base class decodes each update and adds it."""
        return DecodedSum(self, layout, round_key)


def check_weight(weight: float, learner: str) -> float:
    """Return the weight of an accumulated update; raise an error if it is negative or not finite."""
    if not math.isfinite(weight) or weight < 0:
        raise SettingsError(
            f"learner '{learner}' has weight {weight}", remedy="use a finite weight that is not negative"
        )
    return float(weight)


def check_total(total: float) -> float:
    """Return the sum of an accumulator's weights; raise an error if it is not positive."""
    if not total > 0:
        raise SettingsError(
            "no update with a positive weight was added", remedy="add an update before taking the mean"
        )
    return total


class DecodedSum:
    """Sum of decoded updates, in float64 so that many additions do not drift."""

    def __init__(self, codec: Codec, layout: Layout, round_key: bytes) -> None:
        self.codec, self.layout, self.round_key = codec, layout, round_key
        self.total = 0.0
        self.sum = np.zeros(layout.size, dtype=np.float64)

    def add(self, payload: bytes, weight: float, learner: str) -> None:
        """Decode one learner's payload and add it to the sum, as codecs do by default."""
        weight = check_weight(weight, learner)
        self._add_decoded(payload, weight, CodecKey(self.round_key, learner))
        self.total += weight

    def merge(self, other: Self) -> None:
        """Add another sum of decoded updates of the same round."""
        check_mergeable(self, other)
        self.sum += other.sum
        self.total += other.total

    def mean(self) -> Vector:
        """Return the weighted mean of the decoded updates in the default accumulator."""
        return (self.sum / check_total(self.total)).astype(np.float32)

    def _add_decoded(self, payload: bytes, weight: float, key: CodecKey) -> None:
        self.sum += np.multiply(self.codec.decode(payload, self.layout, key), weight, dtype=np.float64)


def check_mergeable(one: DecodedSum | object, other: DecodedSum | object) -> None:
    """Raise an error for accumulators of different codecs, layouts or rounds."""
    for attribute in ("codec", "layout", "round_key"):
        if getattr(one, attribute) != getattr(other, attribute):
            raise SettingsError(
                f"the two sums have a different {attribute.replace('_', ' ')}",
                remedy="merge sums of the same round only",
            )
