"""Codecs that send every value: ``raw`` as float32, ``fp16`` as half floats with one common power of two."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from abaton.codecs import payload_format
from abaton.codecs.base import DecodedSum, SpecifiedComponent
from abaton.errors import PayloadError

if TYPE_CHECKING:
    from abaton.codecs.base import CodecKey
    from abaton.layout import Layout, Vector


@dataclass(frozen=True, slots=True)
class RawCodec(SpecifiedComponent):
    """Codec that sends the update unchanged as float32, the baseline of all others."""

    name: ClassVar[str] = "raw"
    code: ClassVar[int] = 1
    is_unbiased: ClassVar[bool] = True

    def encode(self, update: Vector, layout: Layout, key: CodecKey) -> bytes:
        """Encode the update as little-endian float32 (codec ``raw``)."""
        values = np.ascontiguousarray(layout.check(update, label="update"), dtype="<f4")
        return payload_format.pack(self.code, layout, values.data)

    def decode(self, payload: bytes, layout: Layout, key: CodecKey) -> Vector:
        """Decode a float32 payload of ``raw`` to the same values, bit for bit."""
        body = payload_format.unpack(payload, self.code, layout).body
        payload_format.check_body_size(body, 4 * layout.size)
        return check_finite_update(np.frombuffer(body, dtype="<f4").astype(np.float32))

    def accumulator(self, layout: Layout, round_key: bytes) -> DecodedSum:
        """Return a sum of float32 updates of ``raw``."""
        return DecodedSum(self, layout, round_key)


def check_finite_update(values: Vector) -> Vector:
    """Return the values; raise an error if any is not finite, since one NaN would spoil the community model."""
    # A finite sum of squares proves it in one pass; `vdot` does not warn.
    if not math.isfinite(np.vdot(values, values)) and not np.isfinite(values).all():
        raise PayloadError(
            "the payload has a value that is not finite", remedy="exclude this learner's update"
        )
    return values


_EXPONENT = struct.Struct("<h")


@dataclass(frozen=True, slots=True)
class Fp16(SpecifiedComponent):
    """Codec with half floats: eleven significant bits per value, rounded to nearest."""

    name: ClassVar[str] = "fp16"
    code: ClassVar[int] = 2
    is_unbiased: ClassVar[bool] = False

    def encode(self, update: Vector, layout: Layout, key: CodecKey) -> bytes:
        """Encode the update as little-endian half floats (codec ``fp16``)."""
        return payload_format.pack(self.code, layout, to_half(layout.check(update, label="update")))

    def decode(self, payload: bytes, layout: Layout, key: CodecKey) -> Vector:
        """Decode an ``fp16`` payload to the update rounded to half floats."""
        return from_half(payload_format.unpack(payload, self.code, layout).body, layout.size)

    def accumulator(self, layout: Layout, round_key: bytes) -> DecodedSum:
        """Return a sum of decoded half-float updates of ``fp16``."""
        return DecodedSum(self, layout, round_key)


def to_half(values: Vector) -> bytes:
    """Return an exponent e, then the values times 2^e as half floats; the largest is between 2^14 and 2^15."""
    peak = float(np.abs(values).max(initial=0.0))
    exponent = 15 - int(np.frexp(peak)[1]) if peak > 0 else 0
    # In float64, so that scaling a subnormal up or a huge value down is exact.
    scaled = np.ldexp(values.astype(np.float64), exponent)
    return _EXPONENT.pack(exponent) + scaled.astype("<f2").tobytes()


def from_half(body: memoryview, count: int) -> Vector:
    """Return float32 values from the common exponent and half floats of ``to_half``."""
    payload_format.check_body_size(body, 2 + 2 * count)
    exponent = _EXPONENT.unpack_from(body)[0]
    if not -113 <= exponent <= 163:
        raise payload_format.payload_error(f"its exponent is {exponent}")
    half = np.frombuffer(body, dtype="<f2", offset=2)
    with np.errstate(over="ignore", invalid="ignore"):
        return check_finite_update(np.ldexp(half.astype(np.float64), -exponent).astype(np.float32))
