"""``hadamard``: rotation, then stochastic rounding to uniform levels between the smallest and the largest value.

Input: an update and the round's key. Output: the smallest value and the step of each block, 1 to 4 bits per
value.
Each block is rotated, and each value is rounded without bias to one of 2^bits uniform levels from the smallest to the
largest value. The range grows with the block, and the error with it: a baseline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from abaton.codecs import scalar_quantiser
from abaton.codecs.base import CodecKey, KeyPurpose

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abaton.codecs.rotated_domain import Blocks
    from abaton.layout import Layout, Vector


@dataclass(frozen=True, slots=True)
class Hadamard(scalar_quantiser.RotatedScalarQuantiser):
    """Rotated uniform quantiser to ``bits`` bits per value, 1 to 4, over the range of a block."""

    name: ClassVar[str] = "hadamard"
    code: ClassVar[int] = 20
    is_unbiased: ClassVar[bool] = True

    def encode(self, update: Vector, layout: Layout, key: CodecKey) -> bytes:
        """Encode the update with ``hadamard``; a block's smallest value and step are in units of the update."""
        from abaton.kernels.rotation import derive_key, forward
        from abaton.kernels.walsh_hadamard import aligned

        rotation, private = (
            derive_key(key.derive(purpose)) for purpose in (KeyPurpose.ROTATION, KeyPurpose.PRIVATE)
        )

        def write(
            block: Vector, size: int, position: int
        ) -> tuple[scalar_quantiser.Pair, list[scalar_quantiser.PackedWords]]:
            z = aligned(size)
            norm = forward(block, 0, block.size, z, 0, size, position // 512, rotation)
            if norm == 0:
                return scalar_quantiser.ZERO_BLOCK
            low, levels = _levels(float(z.min()), float(z.max()), self.bits)
            pair = norm * low, norm * float(levels[1] - levels[0])
            return pair, [scalar_quantiser.quantise(z, position // 512, levels, private)]

        return scalar_quantiser.encode(self, update, layout, key, self.bits, write)

    def scales(
        self, pairs: scalar_quantiser.Pairs, blocks: Blocks
    ) -> tuple[NDArray[np.float64], list[Vector]]:
        """Return the factor of each Hadamard block, the larger magnitude of its pair, and its uniform levels."""
        norms = np.abs(pairs).max(axis=1, initial=0)
        ratios, steps = pairs / np.where(norms > 0, norms, 1.0)[:, None], np.arange(1 << self.bits)
        return norms, [(low + step * steps).astype(np.float32) for low, step in ratios]


def _levels(low: float, high: float, bits: int) -> tuple[float, Vector]:
    """Return uniform levels over the range of a rotated Hadamard block, widened if it is empty."""
    high = max(high, low + 1e-6)
    return low, np.linspace(low, high, 1 << bits).astype(np.float32)
