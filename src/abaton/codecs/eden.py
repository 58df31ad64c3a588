"""``eden`` and ``drive``: the nearest level of a normal number, with a scale that makes one update unbiased.

Input: an update and its learner's key. Output: one scale a block and 1 to 4 bits a number.
Steps: rotate each block with a rotation of the learner's own; take the nearest of the levels that are best
for a normal number (Lloyd-Max); send them with the scale ‖x‖² / ⟨levels, rotated x⟩. DRIVE is EDEN with one
bit.

Two costs that ``quicfl`` and ``ecdq`` do not have. The server inverts one rotation for each learner. And
the scale is only right for a truly uniform rotation: with the Hadamard rotation, an update with few
non-zero numbers is decoded with a bias that no number of learners averages away (``docs/quantisers.md``
shows it).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from abaton.codecs import scalar_quantiser
from abaton.codecs.base import DecodedSum, Key, KeyPurpose, Quantiser
from abaton.codecs.rotated_domain import decoded, split

if TYPE_CHECKING:
    from abaton.layout import Layout, Vector

_LLOYD_MAX = {  # the positive levels, which minimise the mean square error of a standard normal number
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
    """Quantises to ``bits`` bits a number, 1 to 4."""

    name: ClassVar[str] = "eden"
    code: ClassVar[int] = 18
    unbiased: ClassVar[bool] = False

    def encode(self, update: Vector, layout: Layout, key: Key) -> bytes:
        """The update as a payload."""
        from abaton.kernels.rotation import forward, keyed
        from abaton.kernels.walsh_hadamard import aligned

        known, seeds = _levels(self.bits), keyed(key.derive(KeyPurpose.DITHER))

        def write(
            block: Vector, size: int, place: int
        ) -> tuple[scalar_quantiser.Pair, list[scalar_quantiser.Words]]:
            z = aligned(size)
            norm = forward(block, 0, block.size, z, 0, size, place // 512, seeds)
            if norm == 0:
                return scalar_quantiser.NOTHING
            words = scalar_quantiser.quantise(z, 0, known, None)
            return (norm * size / float(scalar_quantiser.restore(words, size, known) @ z), 0.0), [words]

        return scalar_quantiser.encode(self, update, layout, key, self.bits, write)

    def decode(self, payload: bytes, layout: Layout, key: Key) -> Vector:
        """The update that a payload stands for."""
        cut, known = split(layout.size, self.bits), _levels(self.bits)
        parts = scalar_quantiser.unpack(self, payload, layout, self.bits)
        rotated = np.zeros(cut.padded, dtype=np.float32)
        for words, (_, _, size, place) in zip(parts.words, cut.table.tolist(), strict=True):
            if words.size:
                scalar_quantiser.add(words, rotated, place, size, known)
        return decoded(rotated, parts.pairs[:, 0], parts.tail, cut, key.derive(KeyPurpose.DITHER))

    def accumulator(self, layout: Layout, round_key: bytes) -> DecodedSum:
        """A plain sum: every learner has a rotation of its own."""
        return DecodedSum(self, layout, round_key)


@dataclass(frozen=True, slots=True)
class Drive(Eden):
    """Quantises to the sign of each rotated number: EDEN with one bit, and no setting."""

    name: ClassVar[str] = "drive"
    code: ClassVar[int] = 19

    bits: int = field(default=1, init=False)


def _levels(bits: int) -> Vector:
    positive = np.array(_LLOYD_MAX[bits], dtype=np.float32)
    return np.concatenate([-positive[::-1], positive])
