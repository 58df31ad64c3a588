"""Stretches of a vector: the tensors that are sparsified, or the kernels that were chosen.

A stretch is a row ``[from, to)`` of an array, ascending and apart. Places inside them can be told either in
the whole vector or in the shorter vector made of the stretches alone; the second is what goes over the
wire, so that a place can never fall outside.

One fused pass that exchanges a learner's share of the mix: the cost of a commit, whatever the number of learners.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.jit import kernel

Places = NDArray[np.uint32]
Stretches = NDArray[np.int64]


@kernel
def inside(places: Places, values: Places, stretches: Stretches) -> tuple[Places, NDArray[np.bool_]]:
    """The places that lie in the stretches, told in the shorter vector, and whether each value is negative.

    Values come as the bits of their float32.
    """
    if stretches.shape[0] == 1:  # the usual case, without a branch for each place
        first, last = np.searchsorted(places, stretches[0, 0]), np.searchsorted(places, stretches[0, 1])
        signs = values[first:last] >> np.uint32(31) != 0
        return places[first:last] - np.uint32(stretches[0, 0]), signs
    told, negative = np.empty(places.size, np.uint32), np.empty(places.size, np.bool_)
    count, s = 0, -1
    before, start, stop = np.int64(0), np.int64(0), np.int64(0)
    for i in range(places.size):
        place = np.int64(places[i])
        while place >= stop and s < stretches.shape[0]:
            before += stop - start
            s += 1
            if s < stretches.shape[0]:
                start, stop = stretches[s, 0], stretches[s, 1]
        if s == stretches.shape[0]:
            break
        if start <= place < stop:
            told[count] = before + place - start
            negative[count] = values[i] >> np.uint32(31) != 0
            count += 1
    return told[:count], negative[:count]


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


@kernel
def runs(ids: Places, size: int, where: Stretches) -> Stretches:
    """The stretches of some runs of ``size`` numbers, which are numbered through the stretches ``where``."""
    found = np.empty((ids.size, 2), np.int64)
    s, before = 0, np.int64(0)
    for i in range(ids.size):
        place = np.int64(ids[i]) * size
        while s + 1 < where.shape[0] and place - before >= where[s, 1] - where[s, 0]:
            before += where[s, 1] - where[s, 0]
            s += 1
        found[i, 0] = where[s, 0] + place - before
        found[i, 1] = found[i, 0] + size
    return found


@kernel
def magnitudes(vector: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """The sum of magnitudes of each run of ``size`` numbers, eight runs side by side."""
    sums = np.zeros((vector.size // size + 7) // 8 * 8, np.float32)
    whole = vector.size // size
    for i in range(0, whole - 7, 8):
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
    for i in range(whole - whole % 8, whole):
        for j in range(i * size, (i + 1) * size):
            sums[i] += abs(vector[j])
    return sums[:whole]


Total = NDArray[np.int64]


@kernel
def exchange(total: Any, fresh: Any, kept: Any, up: float, down: float, inverse: float, mixed: Any) -> None:
    """Take `down * kept` out of the total, add `up * fresh`, keep `fresh`, and write the mix.

    The total is in whole numbers: taking out a share removes exactly what was added, so the mix does not depend on the
    order of commits and never drifts.
    """
    for i in range(total.size):
        value = total[i] - np.int64(np.rint(down * kept[i])) + np.int64(np.rint(up * fresh[i]))
        total[i] = value
        kept[i] = fresh[i]
        mixed[i] = np.float32(value * inverse)
