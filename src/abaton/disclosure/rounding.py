"""Numbers of people made coarse before they leave: no count tells more than a stretch as wide as the smallest count.

A class of which the site has fewer people is not scored at all. Of the others it is told how many there are, and into
which stretch the number of right ones falls, by its middle. What is told stays consistent: a reader can add and compare
it as if it were exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from abaton.metrics.counts import TIME_SUMS, VALUE_SUMS, Counts

_DIGITS = 2  # of losses and of sums of errors
_STEPS = 1 << 20  # in which a group is spread: a larger one needs no more memory


def middle(count: int, of: int, floor: int) -> int:
    """The middle of the stretch that a count falls into: 0 to `of` in stretches of at least `floor` counts each.

    >>> [middle(count, 12, 5) for count in (0, 5, 6, 7, 12)], middle(2, 9, 5)
    ([3, 3, 3, 9, 9], 4)
    """
    stretches = max(1, of // floor)
    at = min(stretches - 1, count * stretches // (of + 1))
    first = -(-at * (of + 1) // stretches)
    last = -(-(at + 1) * (of + 1) // stretches) - 1
    return (first + last) // 2


def coarse_labels(labels: Sequence[float], floor: int) -> Counts:
    """How many rows of each class there are, without the classes that are too small to be told.

    >>> coarse_labels((12, 4), 5)
    (12, 0)
    """
    return tuple(int(count) if count >= floor else 0 for count in labels)


def coarse_score(score: Sequence[float], floor: int, *, loss: bool) -> Counts:
    """What an evaluator counted, as it may leave; nothing if too few people are left to tell of.

    Args:
        score: As `control.score` defines it.
        floor: The smallest number of people that may be told.
        loss: Whether the sum of losses is told, rounded.

    >>> coarse_score((9, 2, 12, 4, 11, 5, 7.1), 5, loss=False)
    (9.0, 0.0, 12.0, 0.0, 9.0, 3.0)
    """
    if not score:
        return ()
    if len(score) in (len(VALUE_SUMS), len(TIME_SUMS)):
        return (score[0], *(rounded(each) for each in score[1:])) if score[0] >= floor else ()
    classes, more = divmod(len(score), 3)
    right, actual = ([int(n) for n in score[i * classes : (i + 1) * classes]] for i in range(2))
    kept = [n if n >= floor else 0 for n in actual]
    if not any(kept):
        return ()
    hits = [middle(hit, n, floor) if n else 0 for hit, n in zip(right, kept, strict=True)]
    said = list(hits)
    for i, (hit, n) in enumerate(zip(hits, kept, strict=True)):
        share, rest = divmod(n - hit, classes - 1)  # which wrong answer was given is not told
        for place, j in enumerate(j for j in range(classes) if j != i):
            said[j] += share + (place < rest)
    told = tuple(float(n) for n in (*hits, *kept, *said))
    mean = score[-1] / sum(actual) if more else 0.0
    return (*told, float(rounded(mean) * sum(kept))) if loss and more else told


def rounded(number: float) -> float:
    """A number with two digits.

    >>> rounded(0.69314), rounded(1234.5), rounded(0.0)
    (0.69, 1200.0, 0.0)
    """
    return float(f"{number:.{_DIGITS}g}")


def microaggregated(places: NDArray[np.int64], floor: int) -> list[tuple[int, int]]:
    """Scores by groups of at least `floor` people next to each other: the middle place of each group, and how many.

    >>> microaggregated(np.array([7, 1, 2, 90, 3, 4, 8, 91]), 3)
    [(2, 4), (49, 4)]
    """
    if len(places) < floor:
        return []
    groups = np.array_split(np.sort(places), len(places) // floor)
    return [(int(np.rint(group.mean())), len(group)) for group in groups]


def spread(numbers: NDArray[np.float64], other: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Groups of people as a reader may think of them: each spread evenly half-way to its neighbours.

    Groups that stood at one place each would look better told apart than their people are. Nothing is used but what was
    told.

    Args:
        numbers: How many people stand at each place.
        other: The groups of the other kind of people. A group without neighbours is thought to be as wide as they are
            together: as wide as it can be, small sites would seem to have models that are .05 of AUROC worse.

    >>> spread(np.array([0, 0, 3, 0, 0, 0, 0, 0, 3, 0, 0])).tolist()
    [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    """
    made = np.zeros(len(numbers))
    places = np.flatnonzero(numbers)
    if not len(places):
        return made
    edges = _edges(places)
    if edges is None:
        widest = min(places[0], len(numbers) - 1 - places[0])
        around = None if other is None else _edges(np.flatnonzero(other))
        width = widest if around is None else min(widest, (around[-1] - around[0]) / 2)
        edges = np.array([places[0] - width, places[0] + width], np.float64)
    for at, place in enumerate(places):
        steps = min(int(numbers[place]), _STEPS)
        shares = (np.arange(steps) + 0.5) / steps
        found = np.rint(edges[at] + shares * (edges[at + 1] - edges[at]))
        np.add.at(made, np.clip(found, 0, len(numbers) - 1).astype(np.int64), numbers[place] / steps)
    return made


def _edges(places: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Half-way between neighbours, and as far beyond the outer ones; nothing of fewer than two."""
    if len(places) < 2:
        return None
    between = (places[1:] + places[:-1]) / 2
    return np.concatenate([[2 * places[0] - between[0]], between, [2 * places[-1] - between[-1]]])
