"""The k largest magnitudes of a vector, exactly, at about the speed of copying it.

A small sample gives a threshold that is surely a little too low; one pass gathers what reaches it, and the
exact k are found among those few. Where the sample was unlucky, or many values are equal, a histogram of
all magnitudes gives a threshold that cannot fail. Ties go to the lowest position. Magnitudes are compared
as their bits (the order of non-negative floats is the order of their bits), so infinities and NaN come out
on top.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.jit import kernel
from abaton.kernels.simd import (
    INTS,
    LONG,
    WIDTH,
    constant,
    intrinsic,
    ir,
    load,
    pointer,
    splat,
    trailing_zeros,
    truth_bits,
    types,
)

Segments = NDArray[np.int64]
Places = NDArray[np.uint32]
Bits = NDArray[np.uint32]

SAMPLE = 4096
MAGNITUDE = 0x7FFFFFFF
NOT_FINITE = 0x7F800000
_ONE = np.uint64(1)


@intrinsic
def _reach(_: Any, bits: Any, start: Any, threshold: Any) -> Any:
    """Which of 64 values from ``start`` reach the threshold, as a 64-bit mask: four vector comparisons."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        source = pointer(context, build, signature.args[0], args[0], args[1])
        limit, mask = splat(build, args[2], INTS), ir.Constant(LONG, 0)
        for quarter in range(4):
            magnitude = build.and_(load(build, source, INTS, WIDTH * quarter), constant(INTS, MAGNITUDE))
            reached = truth_bits(build, build.icmp_unsigned(">=", magnitude, limit))
            part = build.shl(build.zext(reached, LONG), ir.Constant(LONG, WIDTH * quarter))
            mask = build.or_(mask, part)
        return mask

    return types.uint64(bits, types.int64, types.uint32), generate


@kernel
def _guess(bits: Bits, segments: Segments, total: int, k: int) -> int:
    """A threshold that k values surely reach, judging from one random value of each of 4,096 strata."""
    counts = np.zeros(32768, np.uint16)
    top: Any = 0
    level: Any = 0
    stratum = total // SAMPLE
    segment, before, seed = 0, 0, np.uint64(0x9E3779B97F4A7C15)
    for s in range(SAMPLE):
        seed ^= seed << np.uint64(13)
        seed ^= seed >> np.uint64(7)
        seed ^= seed << np.uint64(17)
        place = s * stratum + np.int64((seed >> np.uint64(33)) % np.uint64(stratum))
        while place - before >= segments[segment, 1] - segments[segment, 0]:
            before += segments[segment, 1] - segments[segment, 0]
            segment += 1
        level = np.int64(bits[segments[segment, 0] + place - before] & np.uint32(MAGNITUDE)) >> 16
        counts[level] += np.uint16(1)
        top = max(top, level)
    share = SAMPLE * k / total
    wanted = share + 4 * np.sqrt(share) + 4
    seen = 0
    for level in range(top, -1, -1):
        seen += counts[level]
        if seen >= wanted:
            return int(level << 16)
    return 0


@kernel
def _exact(bits: Bits, segments: Segments, k: int) -> int:
    """The largest multiple of 2^15 that k values reach, from a histogram of all."""
    counts = np.zeros(65536, np.int64)
    for s in range(segments.shape[0]):
        for i in range(segments[s, 0], segments[s, 1]):
            counts[np.int64(bits[i] & np.uint32(MAGNITUDE)) >> 15] += 1
    seen = 0
    for level in range(65535, -1, -1):
        seen += counts[level]
        if seen >= k:
            return level << 15
    return 0


@kernel
def gathered(bits: Bits, segments: Segments, threshold: int, places: Places, found: Bits) -> int:
    """Collect what reaches the threshold, in order; -1 if there is no room for it."""
    count, room, limit = 0, places.size - 64, np.uint32(threshold)
    for s in range(segments.shape[0]):
        stop = segments[s, 1]
        for start in range(segments[s, 0], stop, 64):
            if count > room:
                return -1
            if start + 64 > bits.size:
                for late in range(start, stop):
                    if bits[late] & np.uint32(MAGNITUDE) >= limit:
                        places[count], found[count] = late, bits[late]
                        count += 1
                continue
            mask = _reach(bits, start, limit)
            if stop - start < 64:
                mask &= (_ONE << np.uint64(stop - start)) - _ONE
            while mask != 0:
                place = start + np.int64(trailing_zeros(mask))
                mask &= mask - _ONE
                places[count], found[count] = place, bits[place]
                count += 1
    return count


@kernel
def _kth(found: Bits, count: int, k: int, floor: int) -> tuple[int, int]:
    """The k-th largest magnitude among the gathered, and how many are larger than it."""
    left, size = found[:count] & np.uint32(MAGNITUDE), count
    low: Any = np.int64(floor)
    above: Any = 0
    top: Any = np.uint32(0)
    for i in range(size):
        top = max(top, left[i])
    span: Any = np.int64(top) - low + 1
    while span > 1:  # each pass tells 2,048 levels apart and keeps the one that holds the k-th
        shift = 0
        while (span - 1) >> shift >= 2048:
            shift += 1
        counts = np.zeros(2048, np.int64)
        for i in range(size):
            counts[(np.int64(left[i]) - low) >> shift] += 1
        level = 2047
        while above + counts[level] < k:
            above += counts[level]
            level -= 1
        low += level << shift
        span, kept = 1 << shift, 0
        for i in range(size):
            left[kept] = left[i]
            kept += 1 if low <= np.int64(left[i]) < low + span else 0
        size = kept
    return low, above


@kernel
def _sum(values: NDArray[np.float32]) -> float:
    """The sum of magnitudes in four interleaved strands, always in the same order."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    whole = values.size - values.size % 4
    for i in range(0, whole, 4):
        a += np.float64(abs(values[i]))
        b += np.float64(abs(values[i + 1]))
        c += np.float64(abs(values[i + 2]))
        d += np.float64(abs(values[i + 3]))
    for i in range(whole, values.size):
        a += np.float64(abs(values[i]))
    return (a + b) + (c + d)


@kernel
def _settle(places: Places, found: Bits, count: int, last: int, ties: int) -> int:
    """Keep only so many of the values that equal the last one, by lowest place; drop zeros."""
    kept = 0
    for i in range(count):
        magnitude = np.int64(found[i] & np.uint32(MAGNITUDE))
        places[kept], found[kept] = places[i], found[i]
        if magnitude > last:
            kept += 1
        elif ties > 0:
            kept += 1 if last > 0 else 0
            ties -= 1
    return kept


@kernel
def largest(bits: Bits, segments: Segments, k: int) -> tuple[Places, Bits, float]:
    """The k largest magnitudes within some stretches of a vector.

    Args:
        bits: The float32 vector, seen as 32-bit integers.
        segments: Stretches [from, to) of the vector, ascending and apart.
        k: How many to choose, at most as many as the stretches hold.

    Returns:
        Their places in ascending order, their bits, and the sum of their magnitudes. Zeros are not listed,
        so there may be fewer than k. A sum that is not finite tells that a value was not.
    """
    total = 0
    for s in range(segments.shape[0]):
        total += segments[s, 1] - segments[s, 0]
    if k == 0:
        return np.empty(0, np.uint32), np.empty(0, np.uint32), 0.0
    small = total < 4 * SAMPLE  # not worth a sample: look at all
    room = (total if small else min(total, 3 * k + 8192)) + 64
    places, found = np.empty(room, np.uint32), np.empty(room, np.uint32)
    threshold = 0 if small else _guess(bits, segments, total, k)
    count = gathered(bits, segments, threshold, places, found)
    if count < k:
        threshold = _exact(bits, segments, k)
        places, found = np.empty(total + 64, np.uint32), np.empty(total + 64, np.uint32)
        count = gathered(bits, segments, threshold, places, found)
    last, above = _kth(found, count, k, threshold)
    inner, values = np.empty(count + 64, np.uint32), np.empty(count + 64, np.uint32)
    kept: Any = gathered(found, np.array([[0, count]]), last, inner, values)
    if kept > k or last == 0:
        kept = _settle(inner, values, kept, last, k - above)
    chosen = inner[:kept]
    for i in range(kept):
        chosen[i] = places[chosen[i]]
    return chosen, values[:kept], _sum(values[:kept].view(np.float32))
