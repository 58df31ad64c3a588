"""``hadamard``: rotate, then round at random to even levels between the smallest and the largest number.

Input: an update and the round's key. Output: the smallest number and the step of each block, 1 to 4 bits a
number.
Steps: rotate each block; lay 2^bits levels evenly from its smallest to its largest number; round each
number up or down at random so that its mean is right. The range grows with the block, and the error with
it: the baseline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from abaton.codecs import scalar_quantiser
from abaton.codecs.base import Key, KeyPurpose

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abaton.codecs.rotated_domain import Blocks
    from abaton.layout import Layout, Vector


@dataclass(frozen=True, slots=True)
class Hadamard(scalar_quantiser.RotatingLevels):
    """Quantises to ``bits`` bits a number, 1 to 4, over the whole range of a block."""

    name: ClassVar[str] = "hadamard"
    code: ClassVar[int] = 20
    unbiased: ClassVar[bool] = True

    def encode(self, update: Vector, layout: Layout, key: Key) -> bytes:
        """The update as a payload; the smallest number and the step are in units of the update."""
        from abaton.kernels.rotation import forward, keyed
        from abaton.kernels.walsh_hadamard import aligned

        rotation, private = (
            keyed(key.derive(purpose)) for purpose in (KeyPurpose.ROTATION, KeyPurpose.PRIVATE)
        )

        def write(
            block: Vector, size: int, place: int
        ) -> tuple[scalar_quantiser.Pair, list[scalar_quantiser.Words]]:
            z = aligned(size)
            norm = forward(block, 0, block.size, z, 0, size, place // 512, rotation)
            if norm == 0:
                return scalar_quantiser.NOTHING
            low, grid = _grid(float(z.min()), float(z.max()), self.bits)
            pair = norm * low, norm * float(grid[1] - grid[0])
            return pair, [scalar_quantiser.quantise(z, place // 512, grid, private)]

        return scalar_quantiser.encode(self, update, layout, key, self.bits, write)

    def scales(self, pairs: scalar_quantiser.Pairs, cut: Blocks) -> tuple[NDArray[np.float64], list[Vector]]:
        """The larger of the smallest number and the step, and even levels."""
        norms = np.abs(pairs).max(axis=1, initial=0)
        shares, steps = pairs / np.where(norms > 0, norms, 1.0)[:, None], np.arange(1 << self.bits)
        return norms, [(low + step * steps).astype(np.float32) for low, step in shares]


def _grid(low: float, high: float, bits: int) -> tuple[float, Vector]:
    """Even levels over a range; equal numbers get a range all the same."""
    high = max(high, low + 1e-6)
    return low, np.linspace(low, high, 1 << bits).astype(np.float32)
