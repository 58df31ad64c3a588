"""``fp16``: every number as a half float, with one power of two for all so that none is lost to the range.

``raw``: every number as it is, four bytes each.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from abaton.codecs import payload_format
from abaton.codecs.base import DecodedSum, Written
from abaton.errors import PayloadError

if TYPE_CHECKING:
    from abaton.codecs.base import Key
    from abaton.layout import Layout, Vector


@dataclass(frozen=True, slots=True)
class Raw(Written):
    """Sends the update unchanged: the measure for all other codecs."""

    name: ClassVar[str] = "raw"
    code: ClassVar[int] = 1
    unbiased: ClassVar[bool] = True

    def encode(self, update: Vector, layout: Layout, key: Key) -> bytes:
        """The update as little-endian float32."""
        values = np.ascontiguousarray(layout.check(update, whose="update"), dtype="<f4")
        return payload_format.pack(self.code, layout, values.data)

    def decode(self, payload: bytes, layout: Layout, key: Key) -> Vector:
        """The same numbers, bit for bit."""
        body = payload_format.unpack(payload, self.code, layout).body
        payload_format.exact(body, 4 * layout.size)
        return finite(np.frombuffer(body, dtype="<f4").astype(np.float32))

    def accumulator(self, layout: Layout, round_key: bytes) -> DecodedSum:
        """A plain sum."""
        return DecodedSum(self, layout, round_key)


def finite(values: Vector) -> Vector:
    """The values, if all are finite: one NaN in a sum would spoil the community model."""
    # Squares that add up to a number say so at once; `vdot` never warns.
    if not math.isfinite(np.vdot(values, values)) and not np.isfinite(values).all():
        raise PayloadError(
            "the payload holds a value that is not finite", remedy="refuse this learner's update"
        )
    return values


_EXPONENT = struct.Struct("<h")


@dataclass(frozen=True, slots=True)
class Fp16(Written):
    """Halves the bytes: each number keeps eleven significant bits, rounded to nearest."""

    name: ClassVar[str] = "fp16"
    code: ClassVar[int] = 2
    unbiased: ClassVar[bool] = False

    def encode(self, update: Vector, layout: Layout, key: Key) -> bytes:
        """The update as little-endian half floats."""
        return payload_format.pack(self.code, layout, to_half(layout.check(update, whose="update")))

    def decode(self, payload: bytes, layout: Layout, key: Key) -> Vector:
        """The rounded update."""
        return from_half(payload_format.unpack(payload, self.code, layout).body, layout.size)

    def accumulator(self, layout: Layout, round_key: bytes) -> DecodedSum:
        """A plain sum."""
        return DecodedSum(self, layout, round_key)


def to_half(values: Vector) -> bytes:
    """An exponent e, then the values times 2^e as half floats; the largest lies between 2^14 and 2^15."""
    top = float(np.abs(values).max(initial=0.0))
    exponent = 15 - int(np.frexp(top)[1]) if top > 0 else 0
    # In float64, so that scaling a subnormal up or a huge value down is exact.
    scaled = np.ldexp(values.astype(np.float64), exponent)
    return _EXPONENT.pack(exponent) + scaled.astype("<f2").tobytes()


def from_half(body: memoryview, count: int) -> Vector:
    """The values again."""
    payload_format.exact(body, 2 + 2 * count)
    exponent = _EXPONENT.unpack_from(body)[0]
    if not -113 <= exponent <= 163:
        raise PayloadError(f"the payload is broken: exponent {exponent}", remedy="send it again")
    half = np.frombuffer(body, dtype="<f2", offset=2)
    with np.errstate(over="ignore", invalid="ignore"):
        return finite(np.ldexp(half.astype(np.float64), -exponent).astype(np.float32))
