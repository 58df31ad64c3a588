"""Mondrian: multidimensional partition of a table into boxes of at least k subjects (LeFevre et al. 2006).

All boxes of one iteration are cut at once. A cut is at the median of the relatively widest column that allows one, its
width multiplied by the column's weight; both sides must satisfy k, diversity and closeness. Columns are cut along the
order of values in their hierarchy, so that neighbours are similar. No record is suppressed. A subject with rows on
both sides of a cut counts once on each side.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from abaton.anonymity.equivalence_classes import EncodedTable, Floats, Indices, Mask, SubjectIndex, renumber
from abaton.anonymity.hierarchies import Hierarchy, Label
from abaton.anonymity.privacy_models import restrict_to, satisfying_classes, satisfying_combinations
from abaton.anonymity.settings import AnonymitySettings
from abaton.errors import RefusedError

_MAX_LISTED_VALUES = 20


@dataclass(frozen=True, slots=True, eq=False)
class MondrianPartition:
    """Boxes of a partitioned table.

    Attributes:
        key: the box of every combination.
        ranges: per quasi-identifier, the first and last value in every box, as codes of the hierarchy.
        names: per quasi-identifier, the distinct names of such ranges.
        indices: per quasi-identifier, the name of every box.
    """

    key: Indices
    ranges: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]
    names: tuple[tuple[Label, ...], ...]
    indices: tuple[Indices, ...]


def mondrian_partition(table: EncodedTable, settings: AnonymitySettings) -> MondrianPartition:
    """Partition a table by Mondrian into the smallest boxes that satisfy the study's models.

    Raises:
        RefusedError: The whole table in one box does not satisfy them.
    """
    overall = [column.overall for column in table.sensitive]
    key = np.zeros(len(table.counts), np.intp)
    if not satisfying_combinations(
        key, table.subjects.per_class(key, 1), settings.k, table.sensitive, overall
    ).all():
        raise RefusedError(
            "the whole table in one class does not satisfy the study's anonymity models",
            where="privacy.anonymity",
            remedy="lower k or l, or collect records of more subjects",
        )
    active = np.arange(len(key))
    box_count = 1
    while len(active):
        upper, cut = _cut(table, settings, overall, key, active)
        key[active[upper]] += box_count
        # Boxes that could not be cut are finished.
        active = active[cut]
        key, box_count = renumber(key, 2 * box_count)
    return _describe(table, key)


def _cut(
    table: EncodedTable, settings: AnonymitySettings, overall: list[Floats], key: Indices, active: Indices
) -> tuple[Mask, Mask]:
    """Cut the Mondrian boxes: return the combinations of upper halves, and those whose box was cut."""
    box, count = renumber(key[active], int(key.max()) + 1)
    box_subjects = _BoxSubjects(table.subjects, active, box, len(key))
    widest = np.full(count, -1.0)
    upper = np.zeros(len(active), bool)
    for hierarchy, codes, weight in zip(table.hierarchies, table.codes, settings.weights, strict=True):
        threshold, span = _medians(box_subjects.runs(codes, len(hierarchy.labels[0])), count, settings.k)
        width = span / max(len(hierarchy.labels[0]) - 1, 1) * weight
        wider = (width > widest) & (threshold >= 0)
        if not wider.any():
            continue
        side = codes[active] > threshold[box]
        if table.sensitive:
            wider &= _both_halves_satisfy(table, overall, active, 2 * box + side, wider[box])
        widest[wider] = width[wider]
        is_cut = wider[box]
        upper[is_cut] = side[is_cut]
    cut = widest[box] >= 0
    return upper & cut, cut


class _BoxValues(NamedTuple):
    """Distinct pairs of box and value in order, with the subjects for which each is the lowest or the highest value.

    After a cut above a value, the lower side has the subjects whose lowest value is not above it, and the upper side
    those whose highest value is; both are cumulative sums along the values.
    """

    box: Indices
    value: Indices
    lowest: Floats
    highest: Floats


class _BoxSubjects:
    """Subjects of each box: those with one combination, and the others with all combinations in the box."""

    def __init__(self, subjects: SubjectIndex, active: Indices, box: Indices, combinations: int) -> None:
        self.active, self.boxes = active, int(box.max()) + 1
        box_of = np.full(combinations, -1)
        box_of[active] = box
        self.listed, self.starts = subjects.shared_combinations(box_of)
        self.box = np.append(box, box_of[self.listed[self.starts]])
        self.weights = np.append(subjects.single_counts[active], np.ones(len(self.starts), np.int64))

    def runs(self, codes: NDArray[np.int32], width: int) -> _BoxValues:
        """Return the lowest and highest values of the subjects of every Mondrian box in a column."""
        ends = [self.box * width + self._extreme_codes(codes, np.minimum)]
        if len(self.starts):
            ends.append(self.box * width + self._extreme_codes(codes, np.maximum))
        if self.boxes * width <= 8 * len(self.box) + 1024:
            counts_by_end = [np.bincount(end, self.weights, self.boxes * width) for end in ends]
            cells = np.flatnonzero(sum(counts_by_end))
            counts_by_end = [end_counts[cells] for end_counts in counts_by_end]
        else:
            cells, index = np.unique(np.concatenate(ends), return_inverse=True)
            counts_by_end = [
                np.bincount(segment, self.weights, len(cells)) for segment in np.split(index, len(ends))
            ]
        counts = [end_counts.astype(np.float64, copy=False) for end_counts in counts_by_end]
        return _BoxValues(cells // width, cells % width, counts[0], counts[-1])

    def _extreme_codes(self, codes: NDArray[np.int32], end: np.ufunc) -> NDArray[np.int32]:
        single = codes[self.active]
        if not len(self.starts):
            return single
        return np.append(single, end.reduceat(codes[self.listed], self.starts))


def _medians(runs: _BoxValues, boxes: int, k: int) -> tuple[Indices, Indices]:
    """Return per Mondrian box the last value of its lower half (-1: no cut leaves k on both sides) and its width."""
    first = np.searchsorted(runs.box, np.arange(boxes))
    last = np.append(first[1:], len(runs.box)) - 1
    lowest_sum, highest_sum = np.cumsum(runs.lowest), np.cumsum(runs.highest)
    before = lowest_sum[first] - runs.lowest[first]
    totals = lowest_sum[last] - before
    middle = np.minimum(np.searchsorted(lowest_sum, before + totals / 2), last)
    below = lowest_sum[middle] - before
    above = totals - (highest_sum[middle] - before)
    lower_below, lower_above = below - runs.lowest[middle], above + runs.highest[middle]
    fits = (below >= k) & (above >= k)
    lower_fits = (lower_below >= k) & (lower_above >= k)
    is_closer = lower_fits & (~fits | (totals / 2 - lower_below < below - totals / 2))
    threshold = np.where(is_closer, runs.value[middle] - 1, np.where(fits, runs.value[middle], -1))
    return threshold, runs.value[last] - runs.value[first]


def _both_halves_satisfy(
    table: EncodedTable, overall: list[Floats], active: Indices, halves: Indices, tried: Mask
) -> Mask:
    """Return for every Mondrian box whether both halves satisfy diversity and closeness."""
    satisfying_halves = np.ones(int(halves.max() // 2 + 1) * 2, bool)
    is_tried = np.zeros(len(table.counts), bool)
    is_tried[active[tried]] = True
    index = np.zeros(len(table.counts), np.intp)
    index[active[tried]], count = renumber(halves[tried], len(satisfying_halves))
    for column, shares in zip(table.sensitive, overall, strict=True):
        satisfying = satisfying_classes(restrict_to(column, is_tried), index, count, shares)
        satisfying_halves[halves[tried]] &= satisfying[index[active[tried]]]
    both: Mask = satisfying_halves[0::2] & satisfying_halves[1::2]
    return both


def _describe(table: EncodedTable, key: Indices) -> MondrianPartition:
    order = np.argsort(key, kind="stable")
    starts = np.searchsorted(key[order], np.arange(int(key.max()) + 1))
    ranges, names, indices = [], [], []
    for hierarchy, codes in zip(table.hierarchies, table.codes, strict=True):
        low = np.minimum.reduceat(codes[order], starts).astype(np.int64)
        high = np.maximum.reduceat(codes[order], starts).astype(np.int64)
        pairs, index = np.unique(low * len(hierarchy.labels[0]) + high, return_inverse=True)
        namer = _RangeNames(hierarchy)
        named = [namer.name(*divmod(int(pair), len(hierarchy.labels[0]))) for pair in pairs]
        ends = np.array([(first, last) for _, first, last in named], np.int64)[index]
        names.append(tuple(label for label, _, _ in named))
        ranges.append((ends[:, 0], ends[:, 1]))
        indices.append(index)
    return MondrianPartition(key, tuple(ranges), tuple(names), tuple(indices))


class _RangeNames:
    """Names for ranges of a hierarchy's values."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.values = hierarchy.labels[0]
        self.separator = _separator([value for value in self.values if value is not None])
        self.missing = self.values.index(None) if None in self.values else -1
        self.levels = []
        for labels, step in zip(hierarchy.labels, hierarchy.ancestors, strict=True):
            first = np.unique(step, return_index=True)[1]
            last = len(step) - 1 - np.unique(step[::-1], return_index=True)[1]
            self.levels.append((labels, step, first, last))

    def name(self, low: int, high: int) -> tuple[Label, int, int]:
        """Return the name of a range of a Mondrian box and the range that it covers.

        The hierarchy's name where it has one for exactly this range, else from-to, else all values; a long list of
        values is replaced by the finest name of the hierarchy that covers them all.
        """
        covering = [
            (labels[step[low]], int(first[step[low]]), int(last[step[low]]))
            for labels, step, first, last in self.levels
            if step[low] == step[high]
        ]
        if covering and covering[0][1:] == (low, high):
            return covering[0]
        if self.separator:
            ends = [index for index in (low, low + 1, high - 1, high) if index != self.missing]
            first, last = self.values[ends[0]], self.values[ends[-1]]
            text = f"{first}{self.separator}{last}" if first != last else f"{first}"
            return text + "|missing" * (low <= self.missing <= high), low, high
        if covering and high - low >= _MAX_LISTED_VALUES:
            return covering[0]
        return "|".join("missing" if v is None else v for v in self.values[low : high + 1]), low, high


def _separator(values: list[str]) -> str:
    """Return the separator in the range of a Mondrian box: 7-9 for numbers, 1987-05/1988 for dates."""
    if all(re.fullmatch(r"-?\d+(\.\d+)?", value) for value in values):
        return "-" if sorted(values, key=float) == values else ""
    dates = all(re.fullmatch(r"\d{4}(-\d{2}.*)?", value) for value in values)
    return "/" if dates and sorted(values) == values else ""
