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

from abaton.codecs import levels
from abaton.codecs.blocks import split
from abaton.codecs.contract import Key, Purpose
from abaton.codecs.rotated import decoded
from abaton.codecs.settings import check_whole, line
from abaton.codecs.sums import DecodedSum

if TYPE_CHECKING:
    from abaton.vectors.layout import Layout, Vector


@dataclass(frozen=True, slots=True)
class Hadamard:
    """Quantises to ``bits`` bits a number, 1 to 4, over the whole range of a block."""

    name: ClassVar[str] = "hadamard"
    code: ClassVar[int] = 20
    unbiased: ClassVar[bool] = True

    bits: int

    def __post_init__(self) -> None:
        check_whole("bits", self.bits, 1, 4)

    @property
    def spec(self) -> str:
        """The codec's line."""
        return line(self, self.name)

    def encode(self, update: Vector, layout: Layout, key: Key) -> bytes:
        """The update as a payload; the smallest number and the step are in units of the update."""
        from abaton.vectors.rotation import aligned, forward, keyed

        layout.check(update, whose=f"update of learner '{key.learner}'")
        cut, source = split(layout.size, self.bits), np.ascontiguousarray(update)
        rotation, private = (keyed(key.derive(purpose)) for purpose in (Purpose.ROTATION, Purpose.PRIVATE))
        pairs, words = np.zeros((len(cut), 2)), []
        for i, (start, length, size, place) in enumerate(cut.table.tolist()):
            z = aligned(size)
            norm = forward(source, start, length, z, 0, size, place // 512, rotation)
            if norm > 0:
                low, grid = _grid(float(z.min()), float(z.max()), self.bits)
                words.append(levels.quantise(z, place // 512, grid, private))
                pairs[i] = norm * low, norm * float(grid[1] - grid[0])
        return levels.pack(self.code, self.bits, layout, pairs, words, source[cut.tail])

    def decode(self, payload: bytes, layout: Layout, key: Key) -> Vector:
        """The update that a payload stands for."""
        cut = split(layout.size, self.bits)
        parts = levels.unpack(payload, self.code, self.bits, layout, cut, self.bits)
        rotated, scales = np.zeros(cut.padded, dtype=np.float32), np.abs(parts.pairs).max(axis=1, initial=0)
        for i, (_, _, size, place) in enumerate(cut.table.tolist()):
            if scales[i] > 0:
                low, step = parts.pairs[i] / scales[i]
                grid = (low + step * np.arange(1 << self.bits)).astype(np.float32)
                rotated[place : place + size] = levels.restore(parts.words[i], size, grid)
        return decoded(rotated, scales, parts.tail, cut, key.derive(Purpose.ROTATION))

    def accumulator(self, layout: Layout, round_key: bytes) -> DecodedSum:
        """A plain sum."""
        return DecodedSum(self, layout, round_key)


def _grid(low: float, high: float, bits: int) -> tuple[float, Vector]:
    """Even levels over a range; equal numbers get a range all the same."""
    high = max(high, low + 1e-6)
    return low, np.linspace(low, high, 1 << bits).astype(np.float32)
