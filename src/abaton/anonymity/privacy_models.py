"""Which classes are safe: k-anonymity, l-diversity and t-closeness, for all classes of a table at once.

k-anonymity: Sweeney 2002. l-diversity, distinct, entropy and recursive (c, l): Machanavajjhala et al. 2007.
t-closeness with equal and ordered distance: Li, Li and Venkatasubramanian 2007.

All of them count people. Who has several values in a class counts once, with the one of them that most people of the
class have (of equally common ones the first in order): what everybody has is then seen as what it is, known of all.
Of people whom another site only counts, the worst is assumed: that they have the class's most common value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from abaton.anonymity.equivalence_classes import Floats, Mask, SensitiveCounts, Several, dense
from abaton.anonymity.settings import Closeness, Diversity

_SLACK = 1e-9
"""A class exactly on a threshold is safe; rounding must not decide."""


@dataclass(frozen=True, slots=True, eq=False)
class ClassCounts:
    """How many people stand for each sensitive value in each class; only pairs that occur, by class and value.

    Attributes:
        classes: The class of every pair.
        values: The value of every pair.
        counts: How many people.
        starts: Where each class begins.
        sizes: People per class.
        overall: Share of every value in the whole table.
        unsure: Of every class, the share of people whose value is assumed.
    """

    classes: NDArray[np.intp]
    values: NDArray[np.intp]
    counts: Floats
    starts: NDArray[np.intp]
    sizes: Floats
    overall: Floats
    unsure: Floats | None = None

    @property
    def shares(self) -> Floats:
        """Of every pair, the share of the value in its class."""
        return self.counts / self.sizes[self.classes]


def class_counts(
    sensitive: SensitiveCounts, key: NDArray[np.intp], classes: int, overall: Floats
) -> ClassCounts:
    """Count who stands for which sensitive value in each class; ``key`` gives the class of every combination."""
    width = len(sensitive.values)
    pair, weight = key[sensitive.tuples] * width + sensitive.codes, sensitive.counts
    if sensitive.several is not None and len(sensitive.several.tuples):
        stand = _standing(sensitive.several, key, pair, weight, width)
        pair, weight = np.append(pair, stand), np.append(weight, np.ones(len(stand), np.int64))
    unsure = None
    if sensitive.unsure is not None:
        number = np.bincount(key, weights=sensitive.unsure, minlength=classes)
        common = _most_common(pair, weight, classes, width)
        pair, weight = np.append(pair, common), np.append(weight, number.astype(np.int64))
    if classes * width <= 4 * len(pair) + 1024:
        tally = np.bincount(pair, weights=weight, minlength=classes * width)
        pairs = np.flatnonzero(tally)
        counts = tally[pairs].astype(np.float64, copy=False)
    else:
        pairs, place = np.unique(pair, return_inverse=True)
        counts = np.bincount(place, weights=weight).astype(np.float64, copy=False)
        pairs, counts = pairs[counts > 0], counts[counts > 0]
    owner = pairs // width
    starts = np.searchsorted(owner, np.arange(classes))
    totals = np.add.reduceat(counts, starts)
    if sensitive.unsure is not None:
        unsure = number / totals
    return ClassCounts(owner, pairs % width, counts, starts, totals, overall, unsure)


def _standing(
    several: Several, key: NDArray[np.intp], pair: NDArray[np.intp], counts: NDArray[np.int64], width: int
) -> NDArray[np.intp]:
    """For everybody with several values and every class they are in: the pair of class and value they stand for."""
    owner = key[several.tuples]
    who = owner * (int(several.people.max(initial=0)) + 1) + several.people
    order = np.lexsort((several.codes, who))
    who, own = who[order], (owner * width + several.codes)[order]
    again = np.append(False, (who[1:] == who[:-1]) & (own[1:] == own[:-1]))
    who, own = who[~again], own[~again]
    place = np.unique(np.append(pair, own), return_inverse=True)[1]
    have = np.bincount(place, weights=np.append(counts, np.ones(len(own))))[place[len(pair) :]]
    ranked = np.lexsort((-have, who))
    first = np.append(True, who[ranked][1:] != who[ranked][:-1])
    stand: NDArray[np.intp] = own[ranked[first]]
    return stand


def _most_common(
    pair: NDArray[np.intp], counts: NDArray[np.int64], classes: int, width: int
) -> NDArray[np.intp]:
    """Of every class the pair with its most common value; its first value where nobody's is told."""
    pairs, place = np.unique(pair, return_inverse=True)
    have = np.bincount(place, weights=counts)
    common = np.arange(classes) * width
    order = np.argsort(have, kind="stable")
    common[pairs[order] // width] = pairs[order]
    return common


def distinct(counts: ClassCounts) -> Floats:
    """The number of different values in each class."""
    return np.diff(np.append(counts.starts, len(counts.classes))).astype(np.float64)


def entropy(counts: ClassCounts) -> Floats:
    """The number of equally frequent values that would be as diverse as each class: exp of its entropy."""
    shares = counts.shares
    diverse: Floats = np.exp(np.add.reduceat(-shares * np.log(shares), counts.starts))
    return diverse


def recursive(counts: ClassCounts, l: int) -> Floats:  # noqa: E741 - the model's name
    """The smallest c each class would satisfy: its most frequent value over the sum from the l-th on."""
    order = np.lexsort((-counts.counts, counts.classes))
    ranked = counts.counts[order]
    rank = np.arange(len(ranked)) - counts.starts[counts.classes]
    tail = np.add.reduceat(np.where(rank >= l - 1, ranked, 0.0), counts.starts)
    with np.errstate(divide="ignore"):
        ratio: Floats = ranked[counts.starts] / tail
    return ratio


def equal_distance(counts: ClassCounts) -> Floats:
    """How far each class is from the whole table when all values are equally far apart."""
    overall = counts.overall[counts.values]
    gap = np.abs(counts.shares - overall) - overall
    far: Floats = 0.5 * (np.add.reduceat(gap, counts.starts) + 1.0)
    return far


def ordered_distance(counts: ClassCounts) -> Floats:
    """How far each class is from the whole table when values are ranks: the earth mover's distance.

    Between two values of a class its cumulated share P is constant while the whole table's Q rises, so P - Q
    changes its sign at most once in the gap; the place is found by bisection, the sums by prefix.
    """
    ranks = len(counts.overall)
    if ranks < 2:
        return np.zeros(len(counts.starts))
    rising = np.cumsum(counts.overall)
    prefix = np.concatenate(([0.0], np.cumsum(rising)))
    running = np.cumsum(counts.shares)
    reached = running - (running[counts.starts] - counts.shares[counts.starts])[counts.classes]
    begin = counts.values
    end = np.append(begin[1:], ranks)
    end[np.append(counts.starts[1:], len(begin)) - 1] = ranks
    turn = np.clip(np.searchsorted(rising, reached), begin, end)
    below = reached * (turn - begin) - (prefix[turn] - prefix[begin])
    above = (prefix[end] - prefix[turn]) - reached * (end - turn)
    before = prefix[begin[counts.starts]]
    far: Floats = (np.add.reduceat(below + above, counts.starts) + before) / (ranks - 1)
    return far


def diversity_of(counts: ClassCounts, asked: Diversity) -> Floats:
    """What each class achieves in the measure asked: distinct or effective values, or its ratio c."""
    if asked.kind == "distinct":
        return distinct(counts)
    return entropy(counts) if asked.kind == "entropy" else recursive(counts, int(asked.l))


def closeness_of(counts: ClassCounts, asked: Closeness) -> Floats:
    """How far each class is from the whole table in the distance asked."""
    far = equal_distance(counts) if asked.distance == "equal" else ordered_distance(counts)
    # People whose value is assumed can move a class no further than their share.
    return far if counts.unsure is None else far + counts.unsure


def safe_classes(sensitive: SensitiveCounts, key: NDArray[np.intp], classes: int, overall: Floats) -> Mask:
    """Which classes are diverse and close enough in one sensitive column."""
    if not sensitive.values:
        return np.zeros(classes, bool)  # no value is told of anybody: nothing can be shown to hold
    counts = class_counts(sensitive, key, classes, overall)
    safe = np.ones(classes, bool)
    if (asked := sensitive.asked.diversity) is not None:
        reached = diversity_of(counts, asked)
        safe &= reached < asked.c - _SLACK if asked.kind == "recursive" else reached >= asked.l - _SLACK
    if (close := sensitive.asked.closeness) is not None:
        # Nor can people of whom no value is told move the whole table any further than theirs.
        safe &= closeness_of(counts, close) + sensitive.untold <= close.t + _SLACK
    return safe


def only(sensitive: SensitiveCounts, wanted: Mask) -> SensitiveCounts:
    """The counts of some combinations only."""
    chosen = wanted[sensitive.tuples]
    several = sensitive.several
    if several is not None:
        mine = wanted[several.tuples]
        several = Several(several.tuples[mine], several.people[mine], several.codes[mine])
    return replace(
        sensitive,
        tuples=sensitive.tuples[chosen],
        codes=sensitive.codes[chosen],
        counts=sensitive.counts[chosen],
        several=several,
        unsure=None if sensitive.unsure is None else np.where(wanted, sensitive.unsure, 0),
    )


def safe(
    key: NDArray[np.intp],
    people: Floats,
    k: int,
    sensitive: tuple[SensitiveCounts, ...],
    overall: list[Floats],
    counted: Mask | None = None,
) -> Mask:
    """Which combinations may be shown: those in classes of at least k people that satisfy every model.

    Where ``counted`` is given, the others are neither in ``people`` nor shown.
    """
    kept: Mask = people[key] >= k
    if counted is not None:
        kept &= counted
    for column, whole in zip(sensitive, overall, strict=True):
        if not kept.any():
            break
        if column.asked.diversity is None and column.asked.closeness is None:
            continue
        shown = np.flatnonzero(kept)
        place = np.zeros_like(key)
        place[shown], classes = dense(key[shown], len(people))
        kept[shown] = safe_classes(only(column, kept), place, classes, whole)[place[shown]]
    return kept
