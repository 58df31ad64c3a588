"""Discrete Gaussian noise from a key: the same key gives the same noise, in any process.

The sampler is exact: it draws integers only, by rejection from a discrete Laplace distribution (Canonne, Kamath and
Steinke, 2020). No floating-point number decides a draw, so the low bits of a released value carry nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from fractions import Fraction
from math import floor, sqrt

_BLOCK_BYTES = 32


class KeyedStream:
    """Stream of uniform integers from HMAC-SHA256 in counter mode."""

    def __init__(self, key: bytes, label: bytes) -> None:
        self._key = hmac.new(key, label, hashlib.sha256).digest()
        self._counter, self._bits, self._available = 0, 0, 0

    def below(self, limit: int) -> int:
        """Return a uniform integer of the keyed stream from 0 to `limit` - 1."""
        width = (limit - 1).bit_length()
        while (value := self._take(width)) >= limit:
            pass
        return value

    def _take(self, width: int) -> int:
        while self._available < width:
            block = hmac.new(self._key, self._counter.to_bytes(8, "big"), hashlib.sha256).digest()
            self._counter += 1
            self._bits = (self._bits << 8 * _BLOCK_BYTES) | int.from_bytes(block, "big")
            self._available += 8 * _BLOCK_BYTES
        self._available -= width
        value = self._bits >> self._available
        self._bits &= (1 << self._available) - 1
        return value


def discrete_gaussian(stream: KeyedStream, variance: Fraction) -> int:
    """Return an integer with probability proportional to exp(-n²/(2 variance)).

    >>> discrete_gaussian(KeyedStream(b"key", b"cell"), Fraction(0))
    0
    """
    if variance < 0:
        raise ValueError("a variance is negative")
    if not variance:
        return 0
    scale = floor(sqrt(variance)) + 1
    while True:
        candidate = _discrete_laplace(stream, scale)
        distance = (abs(candidate) - variance / scale) ** 2 / (2 * variance)
        if _bernoulli_exp(stream, distance):
            return candidate


def _discrete_laplace(stream: KeyedStream, scale: int) -> int:
    """Return an integer with probability proportional to exp(-|n| / scale)."""
    while True:
        remainder = stream.below(scale)
        if not _bernoulli_exp(stream, Fraction(remainder, scale)):
            continue
        quotient = 0
        while _bernoulli_exp(stream, Fraction(1)):
            quotient += 1
        magnitude = remainder + scale * quotient
        is_negative = stream.below(2) == 1
        if magnitude or not is_negative:
            return -magnitude if is_negative else magnitude


def _bernoulli_exp(stream: KeyedStream, exponent: Fraction) -> bool:
    """Return True with probability exp(-exponent)."""
    while exponent > 1:
        if not _bernoulli_exp(stream, Fraction(1)):
            return False
        exponent -= 1
    trials = 1
    while _bernoulli(stream, exponent / trials):
        trials += 1
    return trials % 2 == 1


def _bernoulli(stream: KeyedStream, probability: Fraction) -> bool:
    return stream.below(probability.denominator) < probability.numerator
