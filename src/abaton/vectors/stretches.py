"""Stretches of a vector: the tensors that are sparsified, or the kernels that were chosen.

A stretch is a row ``[from, to)`` of an array, ascending and apart. Places inside them can be told either in
the whole vector or in the shorter vector made of the stretches alone; the second is what goes over the
wire, so that a place can never fall outside.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abaton.vectors.jit import kernel, loose_kernel

Places = NDArray[np.uint32]
Stretches = NDArray[np.int64]


@kernel
def inside(places: Places, stretches: Stretches) -> tuple[Places, Places]:
    """The places that lie in the stretches, told in the shorter vector, and which of ``places`` they are."""
    told, which = np.empty(places.size, np.uint32), np.empty(places.size, np.uint32)
    count, s = 0, -1
    before, start, stop = np.int64(0), np.int64(0), np.int64(0)
    for i in range(places.size):
        place = np.int64(places[i])
        while place >= stop and s < stretches.shape[0]:
            before += stop - start
            s += 1
            if s < stretches.shape[0]:
                start, stop = stretches[s, 0], stretches[s, 1]
        if start <= place < stop:
            told[count] = before + place - start
            which[count] = i
            count += 1
    return told[:count], which[:count]


@kernel
def outside(told: Places, stretches: Stretches) -> Places:
    """Places of the shorter vector, told in the whole one; the inverse of ``inside``."""
    places = np.empty(told.size, np.uint32)
    s, before = 0, 0
    for i in range(told.size):
        place = np.int64(told[i])
        while s + 1 < stretches.shape[0] and place - before >= stretches[s, 1] - stretches[s, 0]:
            before += stretches[s, 1] - stretches[s, 0]
            s += 1
        places[i] = stretches[s, 0] + place - before
    return places


@kernel
def add_entries(
    total: NDArray[np.float64], places: Places, values: NDArray[np.float32], weight: float
) -> None:
    """Add weighted values at some places: the work is that of the entries, not of the whole vector."""
    for i in range(places.size):
        if places[i] < total.size:
            total[places[i]] += weight * np.float64(values[i])


@loose_kernel
def magnitudes(vector: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """The sum of magnitudes of each run of ``size`` numbers."""
    sums = np.empty(vector.size // size, np.float32)
    for i in range(sums.size):
        total = np.float32(0)
        for j in range(i * size, (i + 1) * size):
            total += abs(vector[j])
        sums[i] = total
    return sums
