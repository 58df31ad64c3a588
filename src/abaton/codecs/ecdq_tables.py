"""Steps and frequencies of ``ecdq``: how coarse to round, and how long each outcome's code is.

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
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
