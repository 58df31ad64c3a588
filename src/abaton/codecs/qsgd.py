"""``qsgd``: signs, and magnitudes stochastically rounded to uniform levels.

Input: an update. Output: the largest magnitude of each block, one sign and ``bits`` bits per value.
Each block is divided by its largest magnitude, and each magnitude is rounded without bias to one of 2^bits
uniform levels from 0 to 1. There is no rotation, so one large value increases the error of its block: a baseline. As in
the literature ``bits`` does not count the sign, so a value takes bits + 1 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from abaton.codecs import scalar_quantiser
from abaton.codecs.base import CodecKey, DecodedSum, KeyPurpose, Quantiser
from abaton.codecs.payload_format import payload_error
from abaton.codecs.rotated_domain import split_blocks

if TYPE_CHECKING:
    from abaton.layout import Layout, Vector


@dataclass(frozen=True, slots=True)
class Qsgd(Quantiser):
    """QSGD quantiser of magnitudes to ``bits`` bits, 1 to 4, in addition to the sign."""

    name: ClassVar[str] = "qsgd"
    code: ClassVar[int] = 22
    is_unbiased: ClassVar[bool] = True

    def encode(self, update: Vector, layout: Layout, key: CodecKey) -> bytes:
        """Encode the update with QSGD: signs and rounded magnitudes; a block's pair is its largest magnitude and 0."""
        from abaton.kernels.rotation import derive_key

        levels, private = _levels(self.bits), derive_key(key.derive(KeyPurpose.PRIVATE))

        def write(
            block: Vector, size: int, position: int
        ) -> tuple[scalar_quantiser.Pair, list[scalar_quantiser.PackedWords]]:
            padded = np.zeros(size, dtype=np.float64)
            padded[: block.size] = block
            peak = float(np.abs(padded).max())
            if peak == 0:
                return scalar_quantiser.ZERO_BLOCK
            signs = np.packbits(padded < 0, bitorder="little").view("<u4")
            sizes = (np.abs(padded) / peak).astype(np.float32)
            return (peak, 0.0), [signs, scalar_quantiser.quantise(sizes, position // 512, levels, private)]

        return scalar_quantiser.encode(self, update, layout, key, self.bits + 1, write)

    def decode(self, payload: bytes, layout: Layout, key: CodecKey) -> Vector:
        """Decode a QSGD payload."""
        blocks = split_blocks(layout.size, self.bits + 1)
        contents = scalar_quantiser.unpack(self, payload, layout, self.bits + 1)
        max_float32 = float(np.finfo(np.float32).max)
        if not ((contents.pairs[:, 0] >= 0) & (contents.pairs[:, 0] <= max_float32)).all():
            raise payload_error("a magnitude is out of range")
        update = np.zeros(layout.size, dtype=np.float32)
        update[blocks.tail] = contents.tail
        for i, (start, length, size, _) in enumerate(blocks.table.tolist()):
            if contents.packed[i].size:
                signs, sizes = contents.packed[i][: size // 32], contents.packed[i][size // 32 :]
                negative = np.unpackbits(signs.astype("<u4").view(np.uint8), bitorder="little")[:length]
                block = scalar_quantiser.dequantise(sizes, size, _levels(self.bits))[:length] * np.float32(
                    contents.pairs[i, 0]
                )
                update[start : start + length] = np.where(negative, -block, block)
        return update

    def accumulator(self, layout: Layout, round_key: bytes) -> DecodedSum:
        """Return a sum of decoded QSGD updates."""
        return DecodedSum(self, layout, round_key)


def _levels(bits: int) -> Vector:
    return np.linspace(0, 1, 1 << bits).astype(np.float32)
