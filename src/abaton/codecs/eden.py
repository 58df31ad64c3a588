"""``eden`` and ``drive``: the nearest Lloyd-Max level, with a scale that removes the bias.

Input: an update and its learner's key. Output: one scale per block and 1 to 4 bits per value.
Each block is rotated with the learner's own rotation and rounded to the nearest of the optimal levels of a normal
distribution (Lloyd-Max); the scale is ‖x‖² / ⟨levels, rotated x⟩. DRIVE is EDEN with one bit.

In contrast to ``quicfl`` and ``ecdq``, the server inverts one rotation per learner, and the scale is exact
only for uniform rotations: with the Hadamard rotation, an update with few nonzero values has a bias that does not
average out over learners (see ``docs/quantisers.md``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from abaton.codecs import scalar_quantiser
from abaton.codecs.base import CodecKey, DecodedSum, KeyPurpose, Quantiser
from abaton.codecs.rotated_domain import rotate_back, split_blocks

if TYPE_CHECKING:
    from abaton.layout import Layout, Vector

_LLOYD_MAX = {  # positive levels, which minimise the mean squared error of a standard normal value
    1: (0.7978845608,),
    2: (0.4527800346, 1.5104176085),
    3: (0.2450941789, 0.7560052812, 1.3439092785, 2.1519457045),
    4: (
        0.1283950299, 0.3880482995, 0.6567591185, 0.9423404565,
        1.2562311973, 1.6180463860, 2.0690172265, 2.7325895710,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Eden(Quantiser):
    """EDEN quantiser to ``bits`` bits per value, 1 to 4."""

    name: ClassVar[str] = "eden"
    code: ClassVar[int] = 18
    is_unbiased: ClassVar[bool] = False

    def encode(self, update: Vector, layout: Layout, key: CodecKey) -> bytes:
        """Encode the update with EDEN: the nearest Lloyd-Max levels and a scale per block."""
        from abaton.kernels.rotation import derive_key, forward
        from abaton.kernels.walsh_hadamard import aligned

        levels, rotation = _levels(self.bits), derive_key(key.derive(KeyPurpose.DITHER))

        def write(
            block: Vector, size: int, position: int
        ) -> tuple[scalar_quantiser.Pair, list[scalar_quantiser.PackedWords]]:
            z = aligned(size)
            norm = forward(block, 0, block.size, z, 0, size, position // 512, rotation)
            if norm == 0:
                return scalar_quantiser.ZERO_BLOCK
            packed = scalar_quantiser.quantise(z, 0, levels, None)
            return (norm * size / float(scalar_quantiser.dequantise(packed, size, levels) @ z), 0.0), [packed]

        return scalar_quantiser.encode(self, update, layout, key, self.bits, write)

    def decode(self, payload: bytes, layout: Layout, key: CodecKey) -> Vector:
        """Decode an EDEN or DRIVE payload with the learner's own rotation."""
        blocks, levels = split_blocks(layout.size, self.bits), _levels(self.bits)
        contents = scalar_quantiser.unpack(self, payload, layout, self.bits)
        rotated = np.zeros(blocks.padded_size, dtype=np.float32)
        for packed, (_, _, size, position) in zip(contents.packed, blocks.table.tolist(), strict=True):
            if packed.size:
                scalar_quantiser.add(packed, rotated, position, size, levels)
        return rotate_back(
            rotated, contents.pairs[:, 0], contents.tail, blocks, key.derive(KeyPurpose.DITHER)
        )

    def accumulator(self, layout: Layout, round_key: bytes) -> DecodedSum:
        """Return a sum of decoded EDEN updates, since every learner has its own rotation."""
        return DecodedSum(self, layout, round_key)


@dataclass(frozen=True, slots=True)
class Drive(Eden):
    """DRIVE quantiser to the sign of each rotated value: EDEN with one bit."""

    name: ClassVar[str] = "drive"
    code: ClassVar[int] = 19

    bits: int = field(default=1, init=False)


def _levels(bits: int) -> Vector:
    positive = np.array(_LLOYD_MAX[bits], dtype=np.float32)
    return np.concatenate([-positive[::-1], positive])
