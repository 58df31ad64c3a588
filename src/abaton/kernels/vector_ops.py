"""Kernels on segments of a vector, and the weighted exchange of one learner's model in a sum.

Segments are rows ``[start, stop)``, ascending and disjoint: the tensors that are sparsified, or the selected
convolution kernels. An index counts either in the full vector or in the compact vector of the concatenated segments.
Payloads contain compact indices, so that no index is outside a segment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.jit import kernel

Indices = NDArray[np.uint32]
Segments = NDArray[np.int64]


@kernel
def segment_values(
    indices: Indices, values: Indices, segments: Segments
) -> tuple[Indices, NDArray[np.bool_]]:
    """Return the compact indices of the entries inside segments of a vector, and whether each is negative.

    Values are the bits of float32 values.
    """
    if segments.shape[0] == 1:  # the common case, without a branch for each index
        first, last = np.searchsorted(indices, segments[0, 0]), np.searchsorted(indices, segments[0, 1])
        signs = values[first:last] >> np.uint32(31) != 0
        return indices[first:last] - np.uint32(segments[0, 0]), signs
    compact_indices, negative = np.empty(indices.size, np.uint32), np.empty(indices.size, np.bool_)
    count, s = 0, -1
    offset, start, stop = np.int64(0), np.int64(0), np.int64(0)
    for i in range(indices.size):
        index = np.int64(indices[i])
        while index >= stop and s < segments.shape[0]:
            offset += stop - start
            s += 1
            if s < segments.shape[0]:
                start, stop = segments[s, 0], segments[s, 1]
        if s == segments.shape[0]:
            break
        if start <= index < stop:
            compact_indices[count] = offset + index - start
            negative[count] = values[i] >> np.uint32(31) != 0
            count += 1
    return compact_indices[:count], negative[:count]


@kernel
def expand_indices(compact_indices: Indices, segments: Segments) -> Indices:
    """Return the indices in the full vector of compact indices; the inverse of ``segment_values``."""
    indices = np.empty(compact_indices.size, np.uint32)
    s, offset = 0, 0
    for i in range(compact_indices.size):
        index = np.int64(compact_indices[i])
        while s + 1 < segments.shape[0] and index - offset >= segments[s, 1] - segments[s, 0]:
            offset += segments[s, 1] - segments[s, 0]
            s += 1
        indices[i] = segments[s, 0] + index - offset
    return indices


@kernel
def scatter_add(
    total: NDArray[np.float64], indices: Indices, values: NDArray[np.float32], weight: float
) -> None:
    """Add weighted values to a vector at ``indices``; the cost depends on the entries, not on its size."""
    for i in range(indices.size):
        if indices[i] < total.size:
            total[indices[i]] += weight * np.float64(values[i])


@kernel
def block_segments(ids: Indices, size: int, segments: Segments) -> Segments:
    """Return the segments of blocks of ``size`` values in a vector, whose ids count through ``segments``."""
    block_bounds = np.empty((ids.size, 2), np.int64)
    s, offset = 0, np.int64(0)
    for i in range(ids.size):
        start = np.int64(ids[i]) * size
        while s + 1 < segments.shape[0] and start - offset >= segments[s, 1] - segments[s, 0]:
            offset += segments[s, 1] - segments[s, 0]
            s += 1
        block_bounds[i, 0] = segments[s, 0] + start - offset
        block_bounds[i, 1] = block_bounds[i, 0] + size
    return block_bounds


@kernel
def block_magnitudes(vector: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Return the sum of magnitudes of each block of ``size`` values of a vector, eight blocks at a time."""
    sums = np.zeros((vector.size // size + 7) // 8 * 8, np.float32)
    block_count = vector.size // size
    for i in range(0, block_count - 7, 8):
        a = b = c = d = e = f = g = h = np.float32(0)
        o = i * size
        for j in range(o, o + size):
            a += abs(vector[j])
            b += abs(vector[j + size])
            c += abs(vector[j + 2 * size])
            d += abs(vector[j + 3 * size])
            e += abs(vector[j + 4 * size])
            f += abs(vector[j + 5 * size])
            g += abs(vector[j + 6 * size])
            h += abs(vector[j + 7 * size])
        sums[i], sums[i + 1], sums[i + 2], sums[i + 3] = a, b, c, d
        sums[i + 4], sums[i + 5], sums[i + 6], sums[i + 7] = e, f, g, h
    for i in range(block_count - block_count % 8, block_count):
        for j in range(i * size, (i + 1) * size):
            sums[i] += abs(vector[j])
    return sums[:block_count]


@kernel
def exchange_weighted(
    total: Any,
    new_model: Any,
    old_model: Any,
    new_weight: float,
    old_weight: float,
    inverse_weight: float,
    community_model: Any,
) -> None:
    """Replace `old_weight * old_model` by `new_weight * new_model` in the total, in one pass over the vector.

    Writes the community model, and copies `new_model` to `old_model`. The total is in integers: subtracting a model
    removes exactly what was added, so the community model does not depend on the order of commits and does not drift.
    """
    for i in range(total.size):
        value = (
            total[i]
            - np.int64(np.rint(old_weight * old_model[i]))
            + np.int64(np.rint(new_weight * new_model[i]))
        )
        total[i] = value
        old_model[i] = new_model[i]
        community_model[i] = np.float32(value * inverse_weight)
