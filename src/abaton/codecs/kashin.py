"""``kashin``: spread an update over twice as many numbers of nearly equal size, then round at random.

Input: an update and the round's key. Output: the step of each block, and ``bits`` bits for each of 2·d
numbers.
Steps: write each block x of n numbers as x = U·a, where U puts two different rotations side by side. Start
from a = Uᵀx cut off at ±M; do the same with what that leaves of x and a smaller M; the third time cut
nothing off, so that x = U·a holds (Lyubarskii and Vershynin 2010, with the settings of TensorFlow's
encoder). Round a to even levels between its extremes. It costs 2·bits bits a number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import scalar_quantiser
from abaton.codecs.base import Key, KeyPurpose
from abaton.codecs.rotated_domain import rotated_payload_error

if TYPE_CHECKING:
    from abaton.codecs.rotated_domain import Blocks
    from abaton.kernels.rotation import Key as Seeds
    from abaton.layout import Layout, Vector

_ROUNDS, _SHRINK = 3, 0.9


@dataclass(frozen=True, slots=True)
class Kashin(scalar_quantiser.RotatingLevels):
    """Quantises to ``bits`` bits, 1 to 4, for each of twice as many numbers as the update has."""

    name: ClassVar[str] = "kashin"
    code: ClassVar[int] = 21
    unbiased: ClassVar[bool] = True
    copies: ClassVar[int] = 2

    def encode(self, update: Vector, layout: Layout, key: Key) -> bytes:
        """The update as a payload; a block's pair is its norm and the largest number of its frame."""
        from abaton.kernels.rotation import keyed

        rotation, private = (
            keyed(key.derive(purpose)) for purpose in (KeyPurpose.ROTATION, KeyPurpose.PRIVATE)
        )

        def write(
            block: Vector, size: int, place: int
        ) -> tuple[scalar_quantiser.Pair, list[scalar_quantiser.Words]]:
            wide = block.astype(np.float64)
            norm = math.sqrt(float(wide @ wide))
            if norm == 0:
                return scalar_quantiser.NOTHING
            frame = _spread((wide / norm).astype(np.float32), size, place // 256, rotation)
            peak = float(np.abs(frame).max())
            messages = scalar_quantiser.quantise(frame, place // 256, _grid(peak, self.bits), private)
            return (norm, peak), [messages]

        return scalar_quantiser.encode(self, update, layout, key, 2 * self.bits, write)

    def scales(self, pairs: scalar_quantiser.Pairs, cut: Blocks) -> tuple[NDArray[np.float64], list[Vector]]:
        """Even levels up to the largest number; x = U·a has 1/√(2n) where a rotation back has 1/n."""
        if (pairs < 0).any():
            raise rotated_payload_error("a size in it is impossible")
        norms = pairs.prod(axis=1) * np.sqrt(cut.sizes / 2)
        return norms, [_grid(1.0, self.bits)] * len(cut)


def _grid(peak: float, bits: int) -> Vector:
    return np.linspace(-peak, peak, 1 << bits).astype(np.float32)


def _parted(block: Vector, size: int, group: int, seeds: Seeds) -> Vector:
    """Uᵀ times a block: two rotations of it."""
    from abaton.kernels.rotation import forward
    from abaton.kernels.walsh_hadamard import aligned

    frame, norm = aligned(2 * size), 0.0
    for at in (0, size):
        norm = forward(block, 0, block.size, frame, at, size, group + at // 512, seeds)
    return frame * np.float32(norm / math.sqrt(2 * size))


def _joined(frame: Vector, size: int, group: int, seeds: Seeds, factor: float) -> NDArray[np.float64]:
    """U times a frame, times a factor; the frame is used up."""
    from abaton.kernels.rotation import backward

    total, part = np.zeros(size), np.empty(size, dtype=np.float32)
    for at in (0, size):
        backward(frame, at, size, group + at // 512, seeds, 1 / math.sqrt(2 * size), part, 0, size)
        total += part
    return total * factor


def _spread(residual: Vector, size: int, group: int, seeds: Seeds) -> Vector:
    """A frame of a block of norm 1, cut down to nearly equal sizes."""
    total, limit = np.zeros(2 * size, dtype=np.float32), 1 / math.sqrt(2 * size)
    for left in reversed(range(_ROUNDS)):
        part = _parted(residual, size, group, seeds)
        if left:
            np.clip(part, -limit, limit, out=part)
        total += part
        residual = residual - _joined(part, size, group, seeds, 1.0)[: residual.size].astype(np.float32)
        limit *= _SHRINK
    return total
