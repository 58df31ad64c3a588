"""``kashin``: a frame of twice as many coefficients of nearly equal magnitude, stochastically rounded.

Input: an update and the round's key. Output: the step of each block, and ``bits`` bits for each of 2·d
coefficients.
Each block x of n values is written as x = U·a, where U consists of two different rotations. Start
with a = Uᵀx clipped to ±M; repeat with the residual of x and a smaller M; do not clip the third time,
so that x = U·a holds (Lyubarskii and Vershynin 2010, with the settings of TensorFlow's
encoder). Then round a to uniform levels between its extremes. The cost is 2·bits bits per value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import scalar_quantiser
from abaton.codecs.base import CodecKey, KeyPurpose
from abaton.codecs.payload_format import payload_error

if TYPE_CHECKING:
    from abaton.codecs.rotated_domain import Blocks
    from abaton.kernels.rotation import Key
    from abaton.layout import Layout, Vector

_ITERATIONS, _SHRINK = 3, 0.9


@dataclass(frozen=True, slots=True)
class Kashin(scalar_quantiser.RotatedScalarQuantiser):
    """Kashin quantiser to ``bits`` bits, 1 to 4, for each of twice as many coefficients as values."""

    name: ClassVar[str] = "kashin"
    code: ClassVar[int] = 21
    is_unbiased: ClassVar[bool] = True
    rotations: ClassVar[int] = 2

    def encode(self, update: Vector, layout: Layout, key: CodecKey) -> bytes:
        """Encode the update by Kashin frames; a block's pair is its norm and its frame's largest coefficient."""
        from abaton.kernels.rotation import derive_key

        rotation, private = (
            derive_key(key.derive(purpose)) for purpose in (KeyPurpose.ROTATION, KeyPurpose.PRIVATE)
        )

        def write(
            block: Vector, size: int, position: int
        ) -> tuple[scalar_quantiser.Pair, list[scalar_quantiser.PackedWords]]:
            precise = block.astype(np.float64)
            norm = math.sqrt(float(precise @ precise))
            if norm == 0:
                return scalar_quantiser.ZERO_BLOCK
            frame = _kashin_frame((precise / norm).astype(np.float32), size, position // 256, rotation)
            peak = float(np.abs(frame).max())
            messages = scalar_quantiser.quantise(frame, position // 256, _levels(peak, self.bits), private)
            return (norm, peak), [messages]

        return scalar_quantiser.encode(self, update, layout, key, 2 * self.bits, write)

    def scales(
        self, pairs: scalar_quantiser.Pairs, blocks: Blocks
    ) -> tuple[NDArray[np.float64], list[Vector]]:
        """Return uniform levels for Kashin coefficients; x = U·a has 1/√(2n) where a rotation back has 1/n."""
        if (pairs < 0).any():
            raise payload_error("a magnitude is out of range")
        norms = pairs.prod(axis=1) * np.sqrt(blocks.sizes / 2)
        return norms, [_levels(1.0, self.bits)] * len(blocks)


def _levels(peak: float, bits: int) -> Vector:
    return np.linspace(-peak, peak, 1 << bits).astype(np.float32)


def _to_frame(block: Vector, size: int, group: int, key: Key) -> Vector:
    """Return the Kashin frame Uᵀ·x of a block: two rotations of it."""
    from abaton.kernels.rotation import forward
    from abaton.kernels.walsh_hadamard import aligned

    frame, norm = aligned(2 * size), 0.0
    for start in (0, size):
        norm = forward(block, 0, block.size, frame, start, size, group + start // 512, key)
    return frame * np.float32(norm / math.sqrt(2 * size))


def _from_frame(frame: Vector, size: int, group: int, key: Key, factor: float) -> NDArray[np.float64]:
    """Return the block U·a of a Kashin frame, times a factor; the frame is overwritten."""
    from abaton.kernels.rotation import backward

    total, block = np.zeros(size), np.empty(size, dtype=np.float32)
    for start in (0, size):
        backward(frame, start, size, group + start // 512, key, 1 / math.sqrt(2 * size), block, 0, size)
        total += block
    return total * factor


def _kashin_frame(residual: Vector, size: int, group: int, key: Key) -> Vector:
    """Return the Kashin frame of a block of norm 1, with coefficients of nearly equal magnitude."""
    total, limit = np.zeros(2 * size, dtype=np.float32), 1 / math.sqrt(2 * size)
    for remaining in reversed(range(_ITERATIONS)):
        frame = _to_frame(residual, size, group, key)
        if remaining:
            np.clip(frame, -limit, limit, out=frame)
        total += frame
        residual = residual - _from_frame(frame, size, group, key, 1.0)[: residual.size].astype(np.float32)
        limit *= _SHRINK
    return total
