"""``raw``: every number as it is, four bytes each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from abaton.codecs import payload_format
from abaton.codecs.settings import Written
from abaton.codecs.sums import DecodedSum
from abaton.errors import PayloadError

if TYPE_CHECKING:
    from abaton.codecs.contract import Key
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
