"""Release of scores by microaggregation, the baseline of `abaton bench disclosure`.

A site with at least 15 cases and controls releases its scores in groups of five, each at its mean bin; the centre
spreads a group half-way to its neighbours before it adds the sites' histograms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abaton.metrics.classification import ScoreHistogram, bin_indices, bin_scores

Floats = NDArray[np.float64]

BINS = 4000
GROUP_SIZE = 5
MIN_CLASS_COUNT = 15


def release_histogram(probabilities: Floats, labels: NDArray[np.int64]) -> ScoreHistogram | None:
    """Return the histogram that the centre restores from a site's groups; None with a small class."""
    bins, is_case = bin_indices(probabilities, BINS), labels == 1
    if min(is_case.sum(), (~is_case).sum()) < MIN_CLASS_COUNT:
        return None
    cases, controls = (merge_scores(bins[members]) for members in (is_case, ~is_case))
    return ScoreHistogram(bin_scores(BINS), spread_groups(cases), spread_groups(controls))


def merge_scores(bins: NDArray[np.int64]) -> Floats:
    """Return the number of subjects at the mean bin of each group of neighbouring scores."""
    merged = np.zeros(BINS)
    for group in np.array_split(np.sort(bins), len(bins) // GROUP_SIZE):
        merged[int(np.rint(group.mean()))] += len(group)
    return merged


def spread_groups(counts: Floats) -> Floats:
    """Return counts with each group spread evenly to half of the distance to its neighbours."""
    spread, bins = np.zeros(len(counts)), np.flatnonzero(counts)
    if len(bins) < 2:
        return counts
    between = (bins[1:] + bins[:-1]) / 2
    edges = np.concatenate([[2 * bins[0] - between[0]], between, [2 * bins[-1] - between[-1]]])
    for i, group_bin in enumerate(bins):
        points = int(counts[group_bin])
        targets = np.rint(edges[i] + (np.arange(points) + 0.5) / points * (edges[i + 1] - edges[i]))
        np.add.at(spread, np.clip(targets, 0, len(counts) - 1).astype(np.int64), 1.0)
    return spread
