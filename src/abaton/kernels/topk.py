"""Exact selection of the k largest magnitudes of a vector, at about the speed of copying it.

A stratified sample of 4,096 values gives a threshold that is four standard deviations too low; one pass gathers
the values that reach it, and the exact k are selected among those. If it selects too few values, or many values
are equal, a histogram of all magnitudes is used. Ties are resolved by the lowest index. Magnitudes are compared
as integers (the order of non-negative floats is the order of their bits), so NaN and infinities sort first and
are detected at no extra cost.
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
    mask_bits,
    pointer,
    splat,
    trailing_zeros,
    types,
)

Segments = NDArray[np.int64]
Indices = NDArray[np.uint32]
Bits = NDArray[np.uint32]

SAMPLE_SIZE = 4096
MAGNITUDE = 0x7FFFFFFF
NOT_FINITE = 0x7F800000
_ONE = np.uint64(1)


@intrinsic
def _threshold_mask(_: Any, bits: Any, start: Any, threshold: Any) -> Any:
    """Return a mask of the 64 values from ``start`` that reach the top-k threshold: four vector comparisons."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        source = pointer(context, build, signature.args[0], args[0], args[1])
        limit, mask = splat(build, args[2], INTS), ir.Constant(LONG, 0)
        for quarter in range(4):
            magnitude = build.and_(load(build, source, INTS, WIDTH * quarter), constant(INTS, MAGNITUDE))
            reached = mask_bits(build, build.icmp_unsigned(">=", magnitude, limit))
            quarter_mask = build.shl(build.zext(reached, LONG), ir.Constant(LONG, WIDTH * quarter))
            mask = build.or_(mask, quarter_mask)
        return mask

    return types.uint64(bits, types.int64, types.uint32), generate


@kernel
def _sampled_threshold(bits: Bits, segments: Segments, total: int, k: int) -> int:
    """Return a threshold that k values almost surely reach, from one random value of each of 4,096 strata."""
    counts = np.zeros(32768, np.uint16)
    top: Any = 0
    level: Any = 0
    stratum = total // SAMPLE_SIZE
    segment, offset, seed = 0, 0, np.uint64(0x9E3779B97F4A7C15)
    for s in range(SAMPLE_SIZE):
        seed ^= seed << np.uint64(13)
        seed ^= seed >> np.uint64(7)
        seed ^= seed << np.uint64(17)
        index = s * stratum + np.int64((seed >> np.uint64(33)) * np.uint64(stratum) >> np.uint64(31))
        while index - offset >= segments[segment, 1] - segments[segment, 0]:
            offset += segments[segment, 1] - segments[segment, 0]
            segment += 1
        level = np.int64(bits[segments[segment, 0] + index - offset] & np.uint32(MAGNITUDE)) >> 16
        counts[level] += np.uint16(1)
        top = max(top, level)
    expected = SAMPLE_SIZE * k / total
    required = expected + 4 * np.sqrt(expected) + 4
    selected = 0
    for level in range(top, -1, -1):
        selected += counts[level]
        if selected >= required:
            return int(level << 16)
    return 0


@kernel
def _histogram_threshold(bits: Bits, segments: Segments, k: int) -> int:
    """Return the largest multiple of 2^15 that k values reach, from a histogram of all magnitudes."""
    counts = np.zeros(65536, np.int64)
    for s in range(segments.shape[0]):
        for i in range(segments[s, 0], segments[s, 1]):
            counts[np.int64(bits[i] & np.uint32(MAGNITUDE)) >> 15] += 1
    selected = 0
    for level in range(65535, -1, -1):
        selected += counts[level]
        if selected >= k:
            return level << 15
    return 0


@kernel
def gather(bits: Bits, segments: Segments, threshold: int, indices: Indices, values: Bits) -> int:
    """Gather the top-k candidates that reach the threshold; return their number, or -1 if they do not fit."""
    count, room, limit = 0, indices.size - 64, np.uint32(threshold)
    # Few values per mask: how many is hard to predict, so the first two are written whether they exist or not.
    sparse = 16 * room < bits.size
    for s in range(segments.shape[0]):
        stop = segments[s, 1]
        for start in range(segments[s, 0], stop, 64):
            if count > room:
                return -1
            if start + 64 > bits.size:
                for index in range(start, stop):
                    if bits[index] & np.uint32(MAGNITUDE) >= limit:
                        indices[count], values[count] = index, bits[index]
                        count += 1
                continue
            mask = _threshold_mask(bits, start, limit)
            if stop - start < 64:
                mask &= (_ONE << np.uint64(stop - start)) - _ONE
            if sparse:
                for _ in range(2):
                    indices[count] = start + (np.int64(trailing_zeros(mask)) & 63)
                    count += 1 if mask != 0 else 0
                    mask &= mask - _ONE
            while mask != 0:
                position = start + np.int64(trailing_zeros(mask))
                mask &= mask - _ONE
                indices[count], values[count] = position, bits[position]
                count += 1
    if sparse:
        for i in range(count):
            values[i] = bits[indices[i]]
    return count


@kernel
def _kth_magnitude(values: Bits, count: int, k: int, minimum: int) -> tuple[int, int]:
    """Return the k-th largest magnitude of the gathered candidates, and the number of larger ones."""
    remaining, size = values[:count] & np.uint32(MAGNITUDE), count
    low: Any = np.int64(minimum)
    above: Any = 0
    top: Any = np.uint32(0)
    for i in range(size):
        top = max(top, remaining[i])
    span: Any = np.int64(top) - low + 1
    while span > 1:  # each pass separates 2,048 levels and retains the one that contains the k-th
        shift = 0
        while (span - 1) >> shift >= 2048:
            shift += 1
        counts = np.zeros(2048, np.int64)
        for i in range(size):
            counts[(np.int64(remaining[i]) - low) >> shift] += 1
        level = 2047
        while above + counts[level] < k:
            above += counts[level]
            level -= 1
        low += level << shift
        span, retained = 1 << shift, 0
        for i in range(size):
            remaining[retained] = remaining[i]
            retained += 1 if low <= np.int64(remaining[i]) < low + span else 0
        size = retained
    return low, above


@kernel
def _magnitude_sum(values: NDArray[np.float32]) -> float:
    """Return the sum of the selected top-k magnitudes in four partial sums, always in the same order."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    aligned_size = values.size - values.size % 4
    for i in range(0, aligned_size, 4):
        a += np.float64(abs(values[i]))
        b += np.float64(abs(values[i + 1]))
        c += np.float64(abs(values[i + 2]))
        d += np.float64(abs(values[i + 3]))
    for i in range(aligned_size, values.size):
        a += np.float64(abs(values[i]))
    return (a + b) + (c + d)


@kernel
def _resolve_ties(indices: Indices, values: Bits, count: int, threshold: int, ties: int) -> int:
    """Retain ``ties`` values equal to the top-k threshold, by lowest index; drop zeros; return the number kept."""
    retained = 0
    for i in range(count):
        magnitude = np.int64(values[i] & np.uint32(MAGNITUDE))
        indices[retained], values[retained] = indices[i], values[i]
        if magnitude > threshold:
            retained += 1
        elif ties > 0:
            retained += 1 if threshold > 0 else 0
            ties -= 1
    return retained


@kernel
def top_k(bits: Bits, segments: Segments, k: int) -> tuple[Indices, Bits, float]:
    """Select the k largest magnitudes within segments of a vector.

    Args:
        bits: The float32 vector, viewed as 32-bit integers.
        segments: Segments [start, stop) of the vector, ascending and disjoint.
        k: The number of values to select, at most the size of the segments.

    Returns:
        Their indices in ascending order, their bits, and the sum of their magnitudes. Zeros are not listed,
        so there may be fewer than k. The sum is not finite if any selected value is not.
    """
    total = 0
    for s in range(segments.shape[0]):
        total += segments[s, 1] - segments[s, 0]
    if k == 0:
        return np.empty(0, np.uint32), np.empty(0, np.uint32), 0.0
    small = total < 4 * SAMPLE_SIZE  # too few values for a sample: use all
    room = (total if small else min(total, 3 * k + 8192)) + 64
    candidates, candidate_values = np.empty(room, np.uint32), np.empty(room, np.uint32)
    threshold = 0 if small else _sampled_threshold(bits, segments, total, k)
    count = gather(bits, segments, threshold, candidates, candidate_values)
    if count < k:
        threshold = _histogram_threshold(bits, segments, k)
        candidates, candidate_values = np.empty(total + 64, np.uint32), np.empty(total + 64, np.uint32)
        count = gather(bits, segments, threshold, candidates, candidate_values)
    smallest, above = _kth_magnitude(candidate_values, count, k, threshold)
    positions, values = np.empty(count + 64, np.uint32), np.empty(count + 64, np.uint32)
    retained: Any = gather(candidate_values, np.array([[0, count]]), smallest, positions, values)
    if retained > k or smallest == 0:
        retained = _resolve_ties(positions, values, retained, smallest, k - above)
    selected = positions[:retained]
    for i in range(retained):
        selected[i] = candidates[selected[i]]
    return selected, values[:retained], _magnitude_sum(values[:retained].view(np.float32))
