"""Rate model of ``tcdq``: grid step and frequencies for every rate, the same integers on every machine.

A normal value z becomes λ - u = z/Δ + e. The error e of the trellis is independent of z and has variance 4·G,
where G is the normalised second moment of the code. The density of λ - u is close to a normal density of
variance W = 1/Δ² + 4·G. Given ν, the outcomes k have weights exp(-(2k - ν)² / 2W), normalised for each
stratum of ν (a row).

Frequencies are computed with :mod:`decimal`, whose functions round correctly at a fixed precision.
``tcdq_steps.json`` has Δ in units of 1e-5 for rates in 20ths of a bit, computed by :func:`solve_step`.
"""

from __future__ import annotations

import json
import math
from decimal import Context, Decimal
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TOTAL = 1 << 14  # sum of the frequencies of a row
RATE_UNITS = 20  # rates are multiples of 1/20 bit
LOWEST_RATE, DIRECT_RATE, HIGHEST_RATE = 0.3, 0.4, 6.0
SAMPLED_RATE = 0.5
"""Below ``DIRECT_RATE``, a random part of the rotated values is coded at ``SAMPLED_RATE``: the error is smaller."""

ERROR_VARIANCES = {8: "0.2600", 64: "0.2500", 256: "0.2456"}
"""Variance 4·G of the error of the trellis codes, in grid units, by number of states; 1/3 without a trellis."""

_UNIFORM_PART = {8: 0.70, 64: 0.59, 256: 0.54}
"""Half width of the uniform part of the trellis error, fitted to its histogram; its kurtosis is 2.55, 2.68, 2.76."""

RATE_TOLERANCE = 0.0015
"""Bits per value that the codes may take beyond ``bits``."""

_STEP_UNIT = 100_000
_MAX_DEVIATION = 4.4  # in standard deviations of λ - u
_CONTEXT = Context(prec=24)

Frequencies = NDArray[np.int64]


class TcdqRateModel(NamedTuple):
    """Grid step, part of the values that are coded, and a row of frequencies for each stratum."""

    step: float
    sampled_share: float
    rows: Frequencies


def stratum_count(bits: float) -> int:
    """Return the number of strata of the trellis dither for a rate."""
    return 64 if bits < 1.5 else 32 if bits < 2.5 else 16


def frequencies(step_units: int, states: int, strata: int) -> Frequencies:
    """Return the trellis frequencies of all strata for a step in units of 1e-5; each row sums to 2^14.

    >>> frequencies(120540, 64, 64)[0].tolist()
    [1, 3, 1519, 13231, 1624, 4, 1, 1]
    """
    context = _CONTEXT
    variance = context.add(
        context.divide(Decimal(_STEP_UNIT**2), Decimal(step_units**2)), Decimal(ERROR_VARIANCES[states])
    )
    half = math.ceil(_MAX_DEVIATION * math.sqrt(variance) / 2) + 1
    rows = np.empty((strata, 2 * half), np.int64)
    scale = context.divide(Decimal(-1), 2 * variance * strata**2)
    for row in range(strata // 2):
        # Distances 2k - ν in units of 1/strata, at the middle of the stratum.
        distances = [2 * k * strata - (2 * row + 1) for k in range(1 - half, half + 1)]
        weights = [context.exp(context.multiply(scale, Decimal(distance**2))) for distance in distances]
        rows[row] = _integers(weights)
        rows[strata - 1 - row] = rows[row][::-1]
    return rows


def _integers(weights: list[Decimal]) -> list[int]:
    """Return positive integers in proportion to the weights that sum to 2^14; the largest remainders round up."""
    context, spare = _CONTEXT, TOTAL - len(weights)
    total = Decimal(0)
    for weight in weights:
        total = context.add(total, weight)
    shares = [context.divide(context.multiply(weight, Decimal(spare)), total) for weight in weights]
    counts = [int(share) for share in shares]
    order = sorted(range(len(weights)), key=lambda i: (context.subtract(counts[i], shares[i]), i))
    for i in order[: spare - sum(counts)]:
        counts[i] += 1
    return [1 + count for count in counts]


def rate(step_units: int, states: int, strata: int, rows: Frequencies) -> float:
    """Return the expected bits per value of the trellis outcomes of normal values, for rows of frequencies.

    The error e is modelled as a normal plus a uniform value, with the variance of the code. ν = u - p - 2a is not
    uniform below 2 bits: the search prefers the parity that is closer.
    """
    from scipy.special import ndtr

    points, width = 16, _UNIFORM_PART[states]  # values of ν within a stratum
    spread = math.sqrt((_STEP_UNIT / step_units) ** 2 + float(ERROR_VARIANCES[states]) - width**2 / 3)
    half = rows.shape[1] // 2
    nu = (np.arange(strata * points) + 0.5) * 2 / (strata * points)
    distances = 2 * np.arange(1 - half, half + 1) - nu[:, None]
    weights = ndtr((width - distances) / spread) - ndtr((-width - distances) / spread)
    lengths = math.log2(TOTAL) - np.log2(np.repeat(rows, points, axis=0))
    return float((weights * lengths).sum() / weights.sum())


def solve_step(bits: float, states: int) -> int:
    """Return the smallest trellis grid step, in units of 1e-5, whose codes take ``bits`` bits per value."""
    strata = stratum_count(bits)
    low, high = 1000, 400_000
    while high - low > 1:
        middle = (low + high) // 2
        is_too_long = (
            rate(middle, states, strata, frequencies(middle, states, strata)) > bits + RATE_TOLERANCE
        )
        low, high = (middle, high) if is_too_long else (low, middle)
    return high


@lru_cache(maxsize=1)
def _shipped_steps() -> dict[str, list[int]]:
    steps: dict[str, list[int]] = json.loads(
        files("abaton.codecs").joinpath("tcdq_steps.json").read_text("utf-8")
    )
    return steps


@lru_cache(maxsize=16)
def trellis_rate_model(bits: float, states: int) -> TcdqRateModel:
    """Return the rate model of TCDQ for a rate in 20ths of a bit and a number of states.

    >>> model = trellis_rate_model(2, 64)
    >>> model.step, model.sampled_share, model.rows.shape
    (0.53429, 1.0, (32, 12))
    """
    share = min(1.0, bits / SAMPLED_RATE) if bits < DIRECT_RATE else 1.0
    coded_bits = SAMPLED_RATE if bits < DIRECT_RATE else bits
    units = _shipped_steps()[str(states)][round(coded_bits * RATE_UNITS) - round(DIRECT_RATE * RATE_UNITS)]
    return TcdqRateModel(units / _STEP_UNIT, share, frequencies(units, states, stratum_count(coded_bits)))
