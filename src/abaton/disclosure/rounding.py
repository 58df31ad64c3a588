"""Rounding of counts and sums before their release.

A class with fewer subjects than `min_cell_count` is not evaluated. For the others the number of subjects is released,
and the number of correct predictions as the midpoint of a bin at least as wide as `min_cell_count`. Released counts are
consistent: they can be added and compared like exact ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from abaton.metrics.counts import REGRESSION_SUMS, SURVIVAL_SUMS, Counts

_DIGITS = 2  # significant digits of losses and of sums of errors
_MAX_POINTS = 1 << 20  # over which a group is spread: bounds the memory for large groups


def bin_midpoint(count: int, total: int, min_cell_count: int) -> int:
    """Round a count to the midpoint of its bin; bins over 0..`total` hold at least `min_cell_count` values.

    >>> [bin_midpoint(count, 12, 5) for count in (0, 5, 6, 7, 12)], bin_midpoint(2, 9, 5)
    ([3, 3, 3, 9, 9], 4)
    """
    bins = max(1, total // min_cell_count)
    index = min(bins - 1, count * bins // (total + 1))
    first = -(-index * (total + 1) // bins)
    last = -(-(index + 1) * (total + 1) // bins) - 1
    return (first + last) // 2


def suppress_label_counts(labels: Sequence[float], min_cell_count: int) -> Counts:
    """Round the number of rows of each class down to 0 if it is below `min_cell_count`.

    >>> suppress_label_counts((12, 4), 5)
    (12, 0)
    """
    return tuple(int(count) if count >= min_cell_count else 0 for count in labels)


def round_counts(
    counts: Sequence[float], min_cell_count: int, *, loss: Literal["none", "mean", "relative"] = "none"
) -> Counts:
    """Round an evaluator's counts so that they may be released; nothing if all classes are too small.

    Args:
        counts: Validation counts as `abaton.metrics.counts` defines them.
        min_cell_count: Smallest count of subjects that may be released.
        loss: Loss that is released, rounded: none, the mean, or the mean relative to the entropy of the evaluator's
            own labels (with half a subject added to each class). A relative loss needs no counts of classes, so only
            the most frequent one is released.

    >>> round_counts((9, 2, 12, 4, 11, 5, 7.1), 5)
    (9.0, 0.0, 12.0, 0.0, 9.0, 3.0)
    >>> round_counts((90, 0, 90, 10, 100, 0, 33.0), 5, loss="relative")
    (88.0, 0.0, 90.0, 0.0, 88.0, 2.0, 89.1)
    """
    if not counts:
        return ()
    if len(counts) in (len(REGRESSION_SUMS), len(SURVIVAL_SUMS)):
        if counts[0] < min_cell_count:
            return ()
        return (counts[0], *(round_significant(total) for total in counts[1:]))
    classes, has_loss = divmod(len(counts), 3)
    correct, actual = ([int(n) for n in counts[i * classes : (i + 1) * classes]] for i in range(2))
    is_released = [n >= min_cell_count for n in actual]
    if loss == "relative":
        is_released = [n >= min_cell_count and i == int(np.argmax(actual)) for i, n in enumerate(actual)]
    subjects = [
        n if is_class_released else 0 for n, is_class_released in zip(actual, is_released, strict=True)
    ]
    if not any(subjects):
        return ()
    hits = [
        bin_midpoint(hit, n, min_cell_count) if n else 0 for hit, n in zip(correct, subjects, strict=True)
    ]
    predicted = list(hits)
    for i, (hit, n) in enumerate(zip(hits, subjects, strict=True)):
        share, remainder = divmod(n - hit, classes - 1)  # spread: the wrongly predicted class is not released
        for index, j in enumerate(j for j in range(classes) if j != i):
            predicted[j] += share + (index < remainder)
    rounded = tuple(float(n) for n in (*hits, *subjects, *predicted))
    if loss == "none" or not has_loss:
        return rounded
    released_loss = counts[-1] / sum(actual)
    if loss == "relative":
        frequencies = (np.array(actual) + 0.5) / (sum(actual) + 0.5 * classes)
        released_loss /= float(-frequencies @ np.log(frequencies))
    return (*rounded, float(round_significant(released_loss) * sum(subjects)))


def round_significant(value: float) -> float:
    """Round a value to two significant digits.

    >>> round_significant(0.69314), round_significant(1234.5), round_significant(0.0)
    (0.69, 1200.0, 0.0)
    """
    return float(f"{value:.{_DIGITS}g}")


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
