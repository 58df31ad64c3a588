"""``ecdq``: entropy-coded dithered quantisation, the smallest error at 1 to 4 measured bits a number.

Input: an update, the round's key, the learner's name. Output: norms, one entropy-coded stream, rare
outliers.
Steps: rotate each block so that its numbers look normal; add a dither that the learner and the server both
draw from the learner's key, round to a grid, and code the outcome with the frequencies that a normal number
has under that dither. The server subtracts the dither. The error is uniform on the grid's cell whatever the
number was: it is unbiased, and it does not depend on the update. The server adds in the rotated domain and
rotates back once.

Steps and frequencies of ``ecdq``: how coarse to round, and how long each outcome's code is.

A normal number z is rounded to q = round(z/Δ + u) with a dither u that the server knows. Given u, outcome q
has probability Φ((q + ½ - u)·Δ) - Φ((q - ½ - u)·Δ). The dither is cut into S strata; all their frequency
tables are the same function Φ on one grid of spacing Δ/S, read with stride S: outcome q in stratum j runs
from C[k] to C[k + S] with k = S·q - j + K. So one list of cumulative frequencies, in units of 2^-16, serves
every stratum.

``ecdq_tables.json`` holds Δ and the first half of C (the other half is its mirror image), made by
:func:`solve`. Frequencies are shipped, not computed, because both sides must have the same to the last
unit.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import index_coding, payload_format
from abaton.codecs.base import Key, KeyPurpose
from abaton.codecs.rotated_domain import (
    GROUP,
    Blocks,
    Rotating,
    check_finite,
    fitting,
    read_norms,
    rotated_payload_error,
)

if TYPE_CHECKING:
    from abaton.layout import Layout, Vector


TOTAL = 1 << 16
STRATA = {1: 64, 2: 32, 3: 16, 4: 16}
SPARE = 0.0015
"""Bits a number that the codes may take beyond ``bits``; norms and header take as much at 2^20 numbers."""

_REACH = 4.3  # grid points beyond this many standard deviations have probability 0

Counts = NDArray[np.int64]


class Model(NamedTuple):
    """The rounding step, the strata, cumulative frequencies, and a first guess for a search in them."""

    step: float
    strata: int
    cumulative: NDArray[np.int32]
    guess: NDArray[np.int32]


def frequencies(step: float, strata: int) -> Counts:
    """The cumulative frequencies on the grid; every outcome gets at least one unit."""
    from scipy.special import ndtr

    half = strata + int(np.ceil(_REACH * strata / step))
    points = (np.arange(2 * half) - half + 0.5) * step / strata
    counts: Counts = np.rint(TOTAL * ndtr(points)).astype(np.int64)
    counts[:strata] = 0
    for i in range(strata, half):
        counts[i] = max(counts[i], counts[i - strata] + 1)
    counts[half:] = TOTAL - counts[:half][::-1]
    return counts


def rate(step: float, strata: int, counts: Counts) -> float:
    """Expected bits a number for standard normal numbers."""
    from scipy.special import ndtr

    fine = 16  # places of the dither inside its stratum
    half = counts.size // 2
    k = np.arange(counts.size - strata)
    length = 16 - np.log2(counts[strata:] - counts[:-strata])
    # Stratum j, place f: the lower boundary lies at grid point k + ½ - (f + ½)/fine.
    shift = 0.5 - (np.arange(fine) + 0.5) / fine
    low = (k[:, None] - half + 0.5 + shift) * step / strata
    return float((length[:, None] * (ndtr(low + step) - ndtr(low))).sum() / fine / strata)


def solve(bits: int) -> tuple[float, Counts]:
    """The smallest step whose codes take ``bits`` bits a number, and its frequencies."""
    strata = STRATA[bits]
    low, high = 0.1, 4.0
    for _ in range(40):
        middle = (low + high) / 2
        if rate(middle, strata, frequencies(middle, strata)) > bits + SPARE:
            low = middle
        else:
            high = middle
    step = float(np.float32(np.ceil(high * 1e4) / 1e4))
    return step, frequencies(step, strata)


@lru_cache(maxsize=4)
def model(bits: int) -> Model:
    """The shipped model for 1 to 4 bits.

    >>> round(model(2).step ** 2 / 12, 4)
    0.0974
    """
    shipped = json.loads(files("abaton.codecs").joinpath("ecdq_tables.json").read_text("utf-8"))[
        f"bits={bits}"
    ]
    first = np.array(shipped["cumulative"], dtype=np.int32)
    cumulative = np.concatenate([first, TOTAL - first[::-1]]).astype(np.int32)
    guess = np.searchsorted(cumulative, np.arange(0, TOTAL, 64), side="right") - 1
    return Model(shipped["step"], STRATA[bits], cumulative, guess.astype(np.int32))


_STATES = 4
_MOST = 16  # bits a number: the rarest outcome has one frequency unit of 2^16
_START = struct.Struct("<B3xI")  # bits, 0, how many outliers


class Parts(NamedTuple):
    """A payload's parts, decoded to steps of the grid."""

    norms: NDArray[np.float64]
    steps: Vector
    tail: Vector


@dataclass(frozen=True, slots=True)
class Ecdq(Rotating[Parts]):
    """Quantises to about ``bits`` bits a number, the same error for every number.

    >>> from abaton.codecs import parse
    >>> parse("ecdq(bits=2)").spec
    'ecdq(bits=2)'
    """

    name: ClassVar[str] = "ecdq"
    code: ClassVar[int] = 17
    unbiased: ClassVar[bool] = True

    def encode(self, update: Vector, layout: Layout, key: Key) -> bytes:
        """The update as a payload."""
        from abaton.kernels import dithered_quantiser
        from abaton.kernels.rotation import keyed
        from abaton.kernels.walsh_hadamard import aligned

        update = fitting(update, layout, key.learner)
        cut, known = self.cut(layout), model(self.bits)
        norms, outcomes = np.zeros(len(cut)), np.empty(cut.padded, dtype=np.int32)
        most = cut.padded // 16 + 1  # squares of a block sum to its size, and outliers lie beyond 4
        places, excess = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.float32)
        keys = (*keyed(key.derive(KeyPurpose.ROTATION)), *keyed(key.derive(KeyPurpose.DITHER)))
        used, found = dithered_quantiser.quantise(
            update, cut.table, known.step, known.strata, known.cumulative.size, keys,
            aligned(1 << 16), np.empty(GROUP, dtype=np.uint32), norms, outcomes, places, excess,
        )  # fmt: skip
        check_finite(norms, update, cut, layout, key.learner)
        states, stream = np.empty(_STATES, dtype=np.uint64), np.empty(used * _MOST // 32 + 1, dtype=np.uint32)
        at = dithered_quantiser.write(outcomes, used, known.cumulative, known.strata, states, stream)
        return payload_format.pack(
            self.code,
            layout,
            _START.pack(self.bits, found),
            norms.astype("<f8").data,
            update[cut.tail].astype("<f4").data,
            index_coding.write(places[:found], excess[:found], cut.padded),
            states.astype("<u8").data if used else b"",
            stream[at:].astype("<u4").data,
        )

    def parts(self, payload: bytes, layout: Layout, key: Key) -> Parts:
        """Open a payload, check every length in it, and decode its stream."""
        from abaton.kernels import dithered_quantiser
        from abaton.kernels.rotation import keyed

        body, cut = payload_format.unpack(payload, self.code, layout).body, self.cut(layout)
        norms, at = read_norms(body, _START.size, cut)
        bits, found = _START.unpack_from(body)
        coded = int(cut.sizes[norms > 0].sum())
        if bits != self.bits or any(body[1:4]) or found > coded // 16:
            raise rotated_payload_error("it was not written with these settings")
        tail, extra = cut.tail.stop - cut.tail.start, index_coding.length(found, cut.padded)
        rest = len(body) - at - 4 * tail - extra - (8 * _STATES if coded else 0)
        if not 0 <= rest <= coded * _MOST // 8 or rest % 4:
            raise rotated_payload_error("its length does not fit")
        last = np.frombuffer(body, "<f4", tail, at).astype(np.float32)
        places, excess = index_coding.read(body[at + 4 * tail : at + 4 * tail + extra], found, cut.padded)
        steps = np.zeros(cut.padded, dtype=np.float32)
        if coded:
            states = np.frombuffer(body, "<u8", _STATES, len(body) - rest - 8 * _STATES).astype(np.uint64)
            stream = np.zeros(rest // 4 + _STATES, dtype=np.uint32)
            stream[: rest // 4] = np.frombuffer(body, "<u4", rest // 4, len(body) - rest)
            seeds, space = keyed(key.derive(KeyPurpose.DITHER)), np.empty(GROUP, dtype=np.uint32)
            known = model(self.bits)
            tables = (known.cumulative, known.guess, known.strata)
            if not dithered_quantiser.read(stream, states, cut.table, norms, *tables, seeds, space, steps):
                raise rotated_payload_error("its code does not end where it should")
        if not np.isfinite(last).all():
            raise rotated_payload_error("a number in it is not finite")
        steps[places] += excess
        return Parts(norms, steps, last)

    def add_to(
        self, total: Vector, parts: Parts, cut: Blocks, factors: NDArray[np.float64], key: Key
    ) -> None:
        """Total += factor · number, in the rotated domain."""
        from abaton.kernels import dithered_quantiser

        dithered_quantiser.accumulate(parts.steps, cut.table, factors * model(self.bits).step, total)
