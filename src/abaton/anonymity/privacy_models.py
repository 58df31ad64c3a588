"""Privacy models for all classes of a table at once: k-anonymity, l-diversity and t-closeness.

k-anonymity: Sweeney 2002. l-diversity, distinct, entropy and recursive (c, l): Machanavajjhala et al. 2007.
t-closeness with equal and ordered distance: Li, Li and Venkatasubramanian 2007.

All models count subjects. A subject with several values in a class counts once, with the value most common in the
class (of equally common ones the first in order), so that a value that all subjects share is recognised. For subjects
that another site only counts the worst case is assumed: that they have the most common value of the class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from abaton.anonymity.equivalence_classes import Floats, Mask, MultiValueSubjects, SensitiveCounts, renumber
from abaton.anonymity.settings import LDiversity, TCloseness

_TOLERANCE = 1e-9
"""Tolerance: a class exactly at a threshold satisfies it, whatever the rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class ClassCounts:
    """Subjects per class and sensitive value; only pairs that occur, by class and value.

    Attributes:
        classes: the class of every pair.
        values: the value of every pair.
        counts: the number of subjects.
        starts: where each class starts.
        sizes: subjects per class.
        overall: share of every value in the whole table.
        unknown_share: per class, the share of subjects whose value is assumed.
    """

    classes: NDArray[np.intp]
    values: NDArray[np.intp]
    counts: Floats
    starts: NDArray[np.intp]
    sizes: Floats
    overall: Floats
    unknown_share: Floats | None = None

    @property
    def shares(self) -> Floats:
        """Share of the sensitive value in its class, for every pair, as privacy models compare it."""
        return self.counts / self.sizes[self.classes]


def class_counts(
    sensitive: SensitiveCounts, key: NDArray[np.intp], classes: int, overall: Floats
) -> ClassCounts:
    """Count the subjects per sensitive value in each class, for the privacy models of diversity and closeness."""
    width = len(sensitive.values)
    pair, weight = key[sensitive.combinations] * width + sensitive.codes, sensitive.counts
    if sensitive.multi_value_subjects is not None and len(sensitive.multi_value_subjects.combinations):
        representative = _representative_pairs(sensitive.multi_value_subjects, key, pair, weight, width)
        pair = np.append(pair, representative)
        weight = np.append(weight, np.ones(len(representative), np.int64))
    unknown_share = None
    if sensitive.unknown_subjects is not None:
        unknown = np.bincount(key, weights=sensitive.unknown_subjects, minlength=classes)
        common = _most_common(pair, weight, classes, width)
        pair, weight = np.append(pair, common), np.append(weight, unknown.astype(np.int64))
    if classes * width <= 4 * len(pair) + 1024:
        pair_counts = np.bincount(pair, weights=weight, minlength=classes * width)
        pairs = np.flatnonzero(pair_counts)
        counts = pair_counts[pairs].astype(np.float64, copy=False)
    else:
        pairs, index = np.unique(pair, return_inverse=True)
        counts = np.bincount(index, weights=weight).astype(np.float64, copy=False)
        pairs, counts = pairs[counts > 0], counts[counts > 0]
    class_index = pairs // width
    starts = np.searchsorted(class_index, np.arange(classes))
    totals = np.add.reduceat(counts, starts)
    if sensitive.unknown_subjects is not None:
        unknown_share = unknown / totals
    return ClassCounts(class_index, pairs % width, counts, starts, totals, overall, unknown_share)


def _representative_pairs(
    multi_value: MultiValueSubjects,
    key: NDArray[np.intp],
    pair: NDArray[np.intp],
    counts: NDArray[np.int64],
    width: int,
) -> NDArray[np.intp]:
    """Return the class and sensitive value that each subject with several values counts for in its classes."""
    class_index = key[multi_value.combinations]
    subject = class_index * (int(multi_value.subjects.max(initial=0)) + 1) + multi_value.subjects
    order = np.lexsort((multi_value.codes, subject))
    subject, own_pair = subject[order], (class_index * width + multi_value.codes)[order]
    is_repeated = np.append(False, (subject[1:] == subject[:-1]) & (own_pair[1:] == own_pair[:-1]))
    subject, own_pair = subject[~is_repeated], own_pair[~is_repeated]
    index = np.unique(np.append(pair, own_pair), return_inverse=True)[1]
    frequency = np.bincount(index, weights=np.append(counts, np.ones(len(own_pair))))[index[len(pair) :]]
    ranked = np.lexsort((-frequency, subject))
    first = np.append(True, subject[ranked][1:] != subject[ranked][:-1])
    representative: NDArray[np.intp] = own_pair[ranked[first]]
    return representative


def _most_common(
    pair: NDArray[np.intp], counts: NDArray[np.int64], classes: int, width: int
) -> NDArray[np.intp]:
    """Return the pair of each class with its most common sensitive value; its first where none is known."""
    pairs, index = np.unique(pair, return_inverse=True)
    frequency = np.bincount(index, weights=counts)
    common = np.arange(classes) * width
    order = np.argsort(frequency, kind="stable")
    common[pairs[order] // width] = pairs[order]
    return common


def distinct(counts: ClassCounts) -> Floats:
    """Return the distinct l-diversity of each class: its number of distinct sensitive values."""
    return np.diff(np.append(counts.starts, len(counts.classes))).astype(np.float64)


def entropy(counts: ClassCounts) -> Floats:
    """Return the entropy l-diversity of each class: its effective number of values, exp of its entropy."""
    shares = counts.shares
    diverse: Floats = np.exp(np.add.reduceat(-shares * np.log(shares), counts.starts))
    return diverse


def recursive(counts: ClassCounts, l: int) -> Floats:  # noqa: E741 - the model's name
    """Return the recursive (c, l)-diversity of each class: the smallest c that it satisfies."""
    order = np.lexsort((-counts.counts, counts.classes))
    ranked = counts.counts[order]
    rank = np.arange(len(ranked)) - counts.starts[counts.classes]
    tail = np.add.reduceat(np.where(rank >= l - 1, ranked, 0.0), counts.starts)
    with np.errstate(divide="ignore"):
        ratio: Floats = ranked[counts.starts] / tail
    return ratio


def equal_distance(counts: ClassCounts) -> Floats:
    """Return the t-closeness distance of each class from the whole table, equal between all values."""
    overall = counts.overall[counts.values]
    gap = np.abs(counts.shares - overall) - overall
    distance: Floats = 0.5 * (np.add.reduceat(gap, counts.starts) + 1.0)
    return distance


def ordered_distance(counts: ClassCounts) -> Floats:
    """Return the t-closeness distance of each class: the earth mover's, with sensitive values as ranks.

    Between two values of a class its cumulative share P is constant while the whole table's Q rises, so P - Q changes
    sign at most once in the gap; the position is found by bisection, the sums by prefix sums.
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
    crossing = np.clip(np.searchsorted(rising, reached), begin, end)
    below = reached * (crossing - begin) - (prefix[crossing] - prefix[begin])
    above = (prefix[end] - prefix[crossing]) - reached * (end - crossing)
    before = prefix[begin[counts.starts]]
    distance: Floats = (np.add.reduceat(below + above, counts.starts) + before) / (ranks - 1)
    return distance


def measure_diversity(counts: ClassCounts, model: LDiversity) -> Floats:
    """Return the l-diversity of each class in the required kind: distinct or effective values, or its ratio c."""
    if model.kind == "distinct":
        return distinct(counts)
    return entropy(counts) if model.kind == "entropy" else recursive(counts, int(model.l))


def measure_closeness(counts: ClassCounts, model: TCloseness) -> Floats:
    """Return the t-closeness distance of each class from the whole table in the required kind."""
    distance = equal_distance(counts) if model.distance == "equal" else ordered_distance(counts)
    # Subjects with an assumed value change the distance of a class by at most their share.
    return distance if counts.unknown_share is None else distance + counts.unknown_share


def satisfying_classes(
    sensitive: SensitiveCounts, key: NDArray[np.intp], classes: int, overall: Floats
) -> Mask:
    """Return which classes satisfy the privacy models (diversity, closeness) of one sensitive column."""
    if not sensitive.values:
        return np.zeros(classes, bool)  # no value is known, so no model can be verified
    counts = class_counts(sensitive, key, classes, overall)
    is_satisfied = np.ones(classes, bool)
    if (diversity := sensitive.attribute.diversity) is not None:
        measured = measure_diversity(counts, diversity)
        is_recursive = diversity.kind == "recursive"
        is_satisfied &= (
            measured < diversity.c - _TOLERANCE if is_recursive else measured >= diversity.l - _TOLERANCE
        )
    if (closeness := sensitive.attribute.closeness) is not None:
        # Subjects without a reported value change the whole table by at most their share.
        is_satisfied &= (
            measure_closeness(counts, closeness) + sensitive.unreported_fraction <= closeness.t + _TOLERANCE
        )
    return is_satisfied


def restrict_to(sensitive: SensitiveCounts, included: Mask) -> SensitiveCounts:
    """Return the counts of sensitive values of some combinations only, for a privacy model."""
    selected = included[sensitive.combinations]
    multi_value = sensitive.multi_value_subjects
    if multi_value is not None:
        selected_subjects = included[multi_value.combinations]
        multi_value = MultiValueSubjects(
            multi_value.combinations[selected_subjects],
            multi_value.subjects[selected_subjects],
            multi_value.codes[selected_subjects],
        )
    return replace(
        sensitive,
        combinations=sensitive.combinations[selected],
        codes=sensitive.codes[selected],
        counts=sensitive.counts[selected],
        multi_value_subjects=multi_value,
        unknown_subjects=None
        if sensitive.unknown_subjects is None
        else np.where(included, sensitive.unknown_subjects, 0),
    )


def satisfying_combinations(
    key: NDArray[np.intp],
    subjects: Floats,
    k: int,
    sensitive: tuple[SensitiveCounts, ...],
    overall: list[Floats],
    counted: Mask | None = None,
) -> Mask:
    """Return the combinations in classes of at least k subjects that satisfy every privacy model.

    With ``counted``, other combinations are neither in ``subjects`` nor in the result.
    """
    satisfying: Mask = subjects[key] >= k
    if counted is not None:
        satisfying &= counted
    for column, shares in zip(sensitive, overall, strict=True):
        if not satisfying.any():
            break
        if column.attribute.diversity is None and column.attribute.closeness is None:
            continue
        remaining = np.flatnonzero(satisfying)
        index = np.zeros_like(key)
        index[remaining], classes = renumber(key[remaining], len(subjects))
        column_counts = restrict_to(column, satisfying)
        satisfying[remaining] = satisfying_classes(column_counts, index, classes, shares)[index[remaining]]
    return satisfying
