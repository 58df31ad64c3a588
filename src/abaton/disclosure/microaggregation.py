"""Microaggregation of scores before their release: groups of neighbouring scores, and their approximate inverse."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MAX_POINTS = 1 << 20  # over which a group is spread: bounds the memory for large groups


def microaggregate(bins: NDArray[np.int64], min_cell_count: int) -> list[tuple[int, int]]:
    """Round scores by microaggregation of at least `min_cell_count`: return each group's mean bin and size.

    >>> microaggregate(np.array([7, 1, 2, 90, 3, 4, 8, 91]), 3)
    [(2, 4), (49, 4)]
    """
    if len(bins) < min_cell_count:
        return []
    groups = np.array_split(np.sort(bins), len(bins) // min_cell_count)
    return [(int(np.rint(group.mean())), len(group)) for group in groups]


def spread_within_groups(
    counts: NDArray[np.float64], other_counts: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Undo the rounding of microaggregated scores approximately: spread each group half-way to its neighbours.

    Without spreading, groups at a single bin each would look better separated than their subjects are. Only released
    counts are used.

    Args:
        counts: Number of subjects at each bin.
        other_counts: Groups of the other outcome. A group without neighbours is spread as widely as these are together;
            spreading it over the whole range would bias the AUROC of small sites by -0.05.

    >>> spread_within_groups(np.array([0, 0, 3, 0, 0, 0, 0, 0, 3, 0, 0])).tolist()
    [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    """
    spread = np.zeros(len(counts))
    bins = np.flatnonzero(counts)
    if not len(bins):
        return spread
    edges = _group_edges(bins)
    if edges is None:
        max_width = min(bins[0], len(counts) - 1 - bins[0])
        other_edges = None if other_counts is None else _group_edges(np.flatnonzero(other_counts))
        width = max_width if other_edges is None else min(max_width, (other_edges[-1] - other_edges[0]) / 2)
        edges = np.array([bins[0] - width, bins[0] + width], np.float64)
    for i, group_bin in enumerate(bins):
        points = min(int(counts[group_bin]), _MAX_POINTS)
        fractions = (np.arange(points) + 0.5) / points
        targets = np.rint(edges[i] + fractions * (edges[i + 1] - edges[i]))
        np.add.at(spread, np.clip(targets, 0, len(counts) - 1).astype(np.int64), counts[group_bin] / points)
    return spread


def _group_edges(bins: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Return the edges of microaggregated groups, half-way between neighbours; None for fewer than two."""
    if len(bins) < 2:
        return None
    between = (bins[1:] + bins[:-1]) / 2
    return np.concatenate([[2 * bins[0] - between[0]], between, [2 * bins[-1] - between[-1]]])
