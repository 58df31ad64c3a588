"""``qsgd``: the sign of each number, and its size rounded at random to even levels up to the largest.

Input: an update. Output: the largest size of each block, one sign and ``bits`` bits a number.
Steps: divide each block by its largest size; lay 2^bits levels evenly from 0 to 1; round each size up or
down at random so that its mean is right. Nothing is rotated, so one large number spoils its whole block:
the baseline. As in the literature ``bits`` does not count the sign: it takes bits + 1 bits a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from abaton.codecs import scalar_quantiser
from abaton.codecs.base import DecodedSum, Key, KeyPurpose, Quantiser
from abaton.codecs.rotated_domain import rotated_payload_error, split

if TYPE_CHECKING:
    from abaton.layout import Layout, Vector


@dataclass(frozen=True, slots=True)
class Qsgd(Quantiser):
    """Quantises sizes to ``bits`` bits, 1 to 4, and sends the sign with them."""

    name: ClassVar[str] = "qsgd"
    code: ClassVar[int] = 22
    unbiased: ClassVar[bool] = True

    def encode(self, update: Vector, layout: Layout, key: Key) -> bytes:
        """The update as a payload; a block's pair is its largest size and zero."""
        from abaton.kernels.rotation import keyed

        grid, private = _grid(self.bits), keyed(key.derive(KeyPurpose.PRIVATE))

        def write(
            block: Vector, size: int, place: int
        ) -> tuple[scalar_quantiser.Pair, list[scalar_quantiser.Words]]:
            wide = np.zeros(size, dtype=np.float64)
            wide[: block.size] = block
            peak = float(np.abs(wide).max())
            if peak == 0:
                return scalar_quantiser.NOTHING
            signs = np.packbits(wide < 0, bitorder="little").view("<u4")
            sizes = (np.abs(wide) / peak).astype(np.float32)
            return (peak, 0.0), [signs, scalar_quantiser.quantise(sizes, place // 512, grid, private)]

        return scalar_quantiser.encode(self, update, layout, key, self.bits + 1, write)

    def decode(self, payload: bytes, layout: Layout, key: Key) -> Vector:
        """The update that a payload stands for."""
        cut = split(layout.size, self.bits + 1)
        parts = scalar_quantiser.unpack(self, payload, layout, self.bits + 1)
        largest = float(np.finfo(np.float32).max)
        if not ((parts.pairs[:, 0] >= 0) & (parts.pairs[:, 0] <= largest)).all():
            raise rotated_payload_error("a size in it is impossible")
        result = np.zeros(layout.size, dtype=np.float32)
        result[cut.tail] = parts.tail
        for i, (start, length, size, _) in enumerate(cut.table.tolist()):
            if parts.words[i].size:
                signs, sizes = parts.words[i][: size // 32], parts.words[i][size // 32 :]
                negative = np.unpackbits(signs.astype("<u4").view(np.uint8), bitorder="little")[:length]
                block = scalar_quantiser.restore(sizes, size, _grid(self.bits))[:length] * np.float32(
                    parts.pairs[i, 0]
                )
                result[start : start + length] = np.where(negative, -block, block)
        return result

    def accumulator(self, layout: Layout, round_key: bytes) -> DecodedSum:
        """A plain sum."""
        return DecodedSum(self, layout, round_key)


def _grid(bits: int) -> Vector:
    return np.linspace(0, 1, 1 << bits).astype(np.float32)
